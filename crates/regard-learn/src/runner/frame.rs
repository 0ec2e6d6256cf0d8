//! Frames: little-endian header length, payload length, header (JSON), payload.

use serde_json::Value as Json;

/// The longest header and payload that a runner may send.
const LONGEST_HEADER: usize = 1 << 20;
const LONGEST_PAYLOAD: usize = 256 << 20;

/// A frame as bytes.
pub(crate) fn pack(header: &Json, payload: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let mut bytes = Vec::with_capacity(8 + header.len() + payload.len());
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(payload);
    bytes
}

/// Takes a whole frame off the front of `bytes`; `None` while there is more to come; an error for what is no frame.
pub(crate) fn unpack(bytes: &mut Vec<u8>) -> Result<Option<(Json, Vec<u8>)>, String> {
    let Some(lengths) = bytes.first_chunk::<8>() else { return Ok(None) };
    let size = |at: usize| u32::from_le_bytes([lengths[at], lengths[at + 1], lengths[at + 2], lengths[at + 3]]) as usize;
    let (header, payload) = (size(0), size(4));
    if header > LONGEST_HEADER || payload > LONGEST_PAYLOAD {
        return Err(format!("a frame of {header} and {payload} bytes"));
    }
    if bytes.len() < 8 + header + payload {
        return Ok(None);
    }
    let parsed = serde_json::from_slice(&bytes[8..8 + header]).map_err(|e| format!("a header that is no JSON ({e})"))?;
    let data = bytes[8 + header..8 + header + payload].to_vec();
    bytes.drain(..8 + header + payload);
    Ok(Some((parsed, data)))
}

#[cfg(test)]
mod tests {
    use super::{pack, unpack};
    use serde_json::json;

    #[test]
    fn a_frame_comes_back_whole_and_only_then() {
        let bytes = pack(&json!({"id": 7}), &[1, 2, 3]);
        for cut in 0..bytes.len() {
            assert!(unpack(&mut bytes[..cut].to_vec()).is_ok_and(|frame| frame.is_none()), "{cut}");
        }
        let mut more = [bytes, vec![9]].concat();
        assert_eq!(unpack(&mut more), Ok(Some((json!({"id": 7}), vec![1, 2, 3]))));
        assert_eq!(more, [9]);
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        assert!(unpack(&mut b"hello, world".to_vec()).is_err());
        assert!(unpack(&mut [2, 0, 0, 0, 0, 0, 0, 0, b'{', b'{'].to_vec()).is_err());
    }
}
