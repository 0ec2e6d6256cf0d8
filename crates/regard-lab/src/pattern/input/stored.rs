//! Arrays of numbers out of a stream: in pieces, into the one array that is kept.

use super::{InputError, MAX_BYTES, Numbers};
use ndarray::{ArrayD, IxDyn, ShapeBuilder};
use std::io::Read;
use std::path::Path;

/// How an element is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    F16,
    Bf16,
    F32,
    F64,
}

/// Why an array was not read.
pub(super) enum ReadError {
    /// Bytes read before the end.
    Short(u64),
    Memory,
    Io(std::io::Error),
}

/// Bytes that are read at once.
const PIECE: usize = 1 << 16;

impl Stored {
    pub(super) fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Bytes of memory that an element takes.
    pub(super) fn held(self) -> u64 {
        if self == Self::F64 { 8 } else { 4 }
    }

    /// Read `shape` out of a stream, piece by piece, into the one array that is kept.
    pub(super) fn read(self, stream: &mut impl Read, big_endian: bool, fortran: bool, shape: &[usize]) -> Result<Numbers, ReadError> {
        let mut single = |read: fn([u8; 4]) -> f32| fill(stream, self.size(), big_endian, fortran, shape, read);
        match self {
            Self::F16 => single(|[a, b, ..]| half::f16::from_le_bytes([a, b]).to_f32()).map(Numbers::Single),
            Self::Bf16 => single(|[a, b, ..]| half::bf16::from_le_bytes([a, b]).to_f32()).map(Numbers::Single),
            Self::F32 => single(f32::from_le_bytes).map(Numbers::Single),
            Self::F64 => fill(stream, 8, big_endian, fortran, shape, f64::from_le_bytes).map(Numbers::Double),
        }
    }
}

/// Elements of `size` bytes, each given to `read` with its least byte first.
fn fill<T, const N: usize>(
    stream: &mut impl Read,
    size: usize,
    big_endian: bool,
    fortran: bool,
    shape: &[usize],
    read: impl Fn([u8; N]) -> T,
) -> Result<ArrayD<T>, ReadError> {
    let count: usize = shape.iter().product();
    let mut values = Vec::new();
    // Memory is taken as it is filled: a header that lies costs addresses only.
    values.try_reserve_exact(count).map_err(|_| ReadError::Memory)?;
    let mut piece = [0; PIECE];
    while values.len() < count {
        let wanted = (count - values.len()).saturating_mul(size).min(PIECE);
        let got = read_full(stream, &mut piece[..wanted]).map_err(ReadError::Io)?;
        if got < wanted {
            return Err(ReadError::Short((values.len() * size + got) as u64));
        }
        values.extend(piece[..wanted].chunks_exact(size).map(|element| {
            let mut bytes = [0; N];
            bytes[..size].copy_from_slice(element);
            if big_endian {
                bytes[..size].reverse();
            }
            read(bytes)
        }));
    }
    ArrayD::from_shape_vec(IxDyn(shape).set_f(fortran), values).map_err(|_| ReadError::Memory)
}

/// As much as there is, up to the whole of the buffer.
fn read_full(stream: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// Bytes that an array of this shape has in its file, if that can be said in 64 bits.
pub(super) fn byte_length(shape: &[usize], stored: Stored) -> Option<u64> {
    shape.iter().try_fold(stored.size() as u64, |n, &d| n.checked_mul(d as u64))
}

/// Refuse an array that would take more memory than is given to one; `bytes` is its length in the file.
pub(super) fn check_size(path: &Path, array: &str, bytes: u64, stored: Stored) -> Result<(), InputError> {
    let held = bytes / stored.size() as u64 * stored.held();
    if held <= MAX_BYTES { Ok(()) } else { Err(InputError::TooLarge { path: path.to_owned(), array: array.to_owned(), bytes: held }) }
}

/// Maps a read error of an array whose header requires `expected` bytes.
pub(super) fn unread(path: &Path, array: &str, expected: u64, error: ReadError) -> InputError {
    let (path, array) = (path.to_owned(), array.to_owned());
    match error {
        ReadError::Short(got) => InputError::Length { path, array, expected, got },
        ReadError::Memory => InputError::TooLarge { path, array, bytes: expected },
        ReadError::Io(source) => InputError::Io { path, source },
    }
}
