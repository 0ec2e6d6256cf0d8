//! Messages as MPI carries them: one constant tag for all, as MPI guarantees no tag above 32,767, and the meaning in a trailer.
//!
//! ```text
//! payload | kind (1 byte) | 0 0 0 | block (4 bytes, little-endian)
//! ```
//!
//! MPI counts in 32 bits, so long messages are sent in parts of [`PART`] bytes. A part of exactly that length is followed by another one;
//! the last part is shorter, and may be empty. A sender finishes a message before it begins the next, and MPI keeps the order of messages
//! with one tag.

use crate::exchange::{Kind, Tag};

/// The tag of all messages.
pub(crate) const MPI_TAG: i32 = 0;

/// Bytes of a part that another one follows.
pub(crate) const PART: usize = 1 << 30;

const TRAILER: usize = 8;

/// A message as it is sent. The trailer is at the end, so that nothing is moved.
pub(crate) fn framed((kind, block): Tag, mut payload: Vec<u8>) -> Vec<u8> {
    let kind = Kind::ALL.iter().position(|&other| other == kind).expect("all kinds are in the list");
    payload.reserve_exact(TRAILER);
    payload.extend_from_slice(&[kind as u8, 0, 0, 0]);
    payload.extend_from_slice(&block.to_le_bytes());
    payload
}

/// The parts of a framed message, in the order in which they are sent.
pub(crate) fn parts(message: &[u8], part: usize) -> impl Iterator<Item = &[u8]> {
    (0..=message.len() / part).map(move |i| &message[i * part..message.len().min((i + 1) * part)])
}

/// Tag and payload of a whole message; `None` where it is not one of this program.
pub(crate) fn unframed(mut message: Vec<u8>) -> Option<(Tag, Vec<u8>)> {
    let trailer = *message.last_chunk::<TRAILER>()?;
    let [kind, 0, 0, 0, a, b, c, d] = trailer else { return None };
    message.truncate(message.len() - TRAILER);
    Some(((*Kind::ALL.get(usize::from(kind))?, u32::from_le_bytes([a, b, c, d])), message))
}

/// Parts of one sender, put together.
#[derive(Debug, Default)]
pub(crate) struct Assembly(Vec<u8>);

impl Assembly {
    /// The whole message, when this part was its last.
    pub(crate) fn add(&mut self, mut bytes: Vec<u8>, part: usize) -> Option<Vec<u8>> {
        let last = bytes.len() < part;
        if self.0.is_empty() {
            self.0 = bytes;
        } else {
            self.0.append(&mut bytes);
        }
        last.then(|| std::mem::take(&mut self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind, any block, messages around multiples of a part: what arrives is what was sent, and no tag is above MPI's bound.
    #[test]
    fn messages_arrive_as_they_were_sent() {
        assert!((0..=32_767).contains(&MPI_TAG) && i32::try_from(PART).is_ok());
        for (kind, block) in Kind::ALL.into_iter().flat_map(|kind| [0, 1, 1 << 24, u32::MAX].map(|block| (kind, block))) {
            let mut assembly = Assembly::default();
            for length in 0..70 {
                let payload: Vec<u8> = (0..length).collect();
                let message = framed((kind, block), payload.clone());
                let sent: Vec<_> = parts(&message, 16).map(<[u8]>::to_vec).collect();
                assert!(sent.iter().rev().skip(1).all(|part| part.len() == 16) && sent.last().is_some_and(|last| last.len() < 16));
                let mut arrived = sent.into_iter().map(|part| assembly.add(part, 16)).collect::<Vec<_>>();
                let whole = arrived.pop().flatten().expect("the last part completes it");
                assert!(arrived.iter().all(Option::is_none));
                assert_eq!(unframed(whole), Some(((kind, block), payload)));
            }
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert_eq!(unframed(vec![0; 7]), None);
        assert_eq!(unframed(vec![Kind::ALL.len() as u8, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(unframed(vec![0, 1, 0, 0, 0, 0, 0, 0]), None);
    }
}
