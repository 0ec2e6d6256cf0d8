//! What a tensor is made of. Numbers that are not of the type of the computation are widened where they are used, a piece at a time.

use super::blocks::BlockKind;
use crate::float::Float;
use half::{bf16, f16};
use regard_simd::matmul::Write;
use std::borrow::Cow;
use std::ops::Range;

/// The elements of a tensor, row-major; borrowed from a buffer or a file where they lie well there.
#[derive(Debug, Clone)]
pub enum Numbers<'w> {
    /// 32 bits.
    F32(Cow<'w, [f32]>),
    /// 64 bits.
    F64(Cow<'w, [f64]>),
    /// 16 bits, 11 of them the number.
    F16(Cow<'w, [f16]>),
    /// 16 bits, 8 of them the number.
    Bf16(Cow<'w, [bf16]>),
    /// 32 bits in little-endian bytes, at a place where they cannot be read as elements: for use, not for training.
    Unaligned(&'w [u8]),
    /// Blocks of a few bits per number, with a scale each: for use, not for training.
    Quantised(Blocks<'w>),
}

/// Quantised elements.
#[derive(Debug, Clone)]
pub struct Blocks<'w> {
    kind: BlockKind,
    bytes: Cow<'w, [u8]>,
}

impl<'w> Blocks<'w> {
    /// Whole blocks; `None` when the bytes are not.
    pub fn new(kind: BlockKind, bytes: impl Into<Cow<'w, [u8]>>) -> Option<Self> {
        let bytes = bytes.into();
        bytes.len().is_multiple_of(kind.bytes).then_some(Self { kind, bytes })
    }

    fn len(&self) -> usize {
        self.bytes.len() / self.kind.bytes * self.kind.numbers
    }

    /// `y (+)= w x` for the rows from `first` on, as many as y has elements; false where rows are not whole blocks.
    fn dots(&self, first: usize, x: &[f32], y: &mut [f32], write: Write) -> bool {
        let BlockKind { numbers, bytes, dots, .. } = self.kind;
        if !x.len().is_multiple_of(numbers) {
            return false;
        }
        let row = x.len() / numbers * bytes;
        dots(&self.bytes[first * row..(first + y.len()) * row], x, y, write);
        true
    }

    fn widen<T: Float>(&self, range: Range<usize>, to: &mut [T]) {
        let BlockKind { numbers, bytes, widen, .. } = self.kind;
        let (first, last) = (range.start.div_ceil(numbers), range.end / numbers);
        if range.start == first * numbers && range.end == last * numbers {
            return T::from_f32s(to, |to| widen(&self.bytes[first * bytes..last * bytes], to));
        }
        if first <= last {
            let whole = first * numbers - range.start..last * numbers - range.start;
            T::from_f32s(&mut to[whole], |to| widen(&self.bytes[first * bytes..last * bytes], to));
        }
        // What begins or ends within a block.
        let mut block = vec![0.0; numbers];
        let mut edge = |at: Range<usize>| {
            if !at.is_empty() {
                let number = at.start / numbers;
                widen(&self.bytes[number * bytes..(number + 1) * bytes], &mut block);
                let to = &mut to[at.start - range.start..at.end - range.start];
                to.iter_mut().zip(&block[at.start % numbers..]).for_each(|(to, &x)| *to = T::from_f64(f64::from(x)));
            }
        };
        edge(range.start..(first * numbers).min(range.end));
        if first <= last {
            edge(last * numbers..range.end);
        }
    }
}

impl Numbers<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F64(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::Bf16(x) => x.len(),
            Self::Unaligned(x) => x.len() / 4,
            Self::Quantised(x) => x.len(),
        }
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::F32(_) | Self::Unaligned(_) => "f32",
            Self::F64(_) => "f64",
            Self::F16(_) => "f16",
            Self::Bf16(_) => "bf16",
            Self::Quantised(x) => x.kind.name,
        }
    }

    /// `y = w x` or `y += w x`, where w are rows as long as x: those from `first` on, as many as y has elements. False, and nothing done,
    /// where widening them first is the way.
    pub(crate) fn dots<T: Float>(&self, first: usize, x: &[T], y: &mut [T], write: Write) -> bool {
        match (self, T::as_f32s(x, y)) {
            (Self::Quantised(blocks), Some((x, y))) => blocks.dots(first, x, y, write),
            _ => false,
        }
    }

    /// Some of them in the type of the computation.
    ///
    /// # Panics
    /// When `to` is not as long as the range, or the range is not within.
    pub fn widen<T: Float>(&self, range: Range<usize>, to: &mut [T]) {
        assert_eq!(range.len(), to.len(), "as many places as elements");
        match self {
            Self::F32(x) => to.iter_mut().zip(&x[range]).for_each(|(to, &x)| *to = T::from_f64(f64::from(x))),
            Self::F64(x) => to.iter_mut().zip(&x[range]).for_each(|(to, &x)| *to = T::from_f64(x)),
            Self::F16(x) => to.iter_mut().zip(&x[range]).for_each(|(to, &x)| *to = T::from_f64(f64::from(x.to_f32()))),
            Self::Bf16(x) => to.iter_mut().zip(&x[range]).for_each(|(to, &x)| *to = T::from_f64(f64::from(x.to_f32()))),
            Self::Unaligned(x) => {
                let (numbers, _) = x[4 * range.start..4 * range.end].as_chunks();
                to.iter_mut().zip(numbers).for_each(|(to, x)| *to = T::from_f64(f64::from(f32::from_le_bytes(*x))));
            }
            Self::Quantised(x) => x.widen(range, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_what_their_bytes_say() {
        let mut bytes = f16::from_f32(0.5).to_le_bytes().to_vec();
        bytes.extend((0..32).map(|i| (i as i8 - 16) as u8));
        let eight = Blocks::new(BlockKind::Q8_0, bytes).expect("whole");
        let mut got = [0f64; 32];
        Numbers::Quantised(eight).widen(0..32, &mut got);
        assert!(got.iter().zip(-16..).all(|(x, i)| *x == 0.5 * f64::from(i)), "{got:?}");

        let mut bytes = [f16::from_f32(2.0).to_le_bytes(), f16::from_f32(-3.0).to_le_bytes()].concat();
        bytes.extend((0..16u8).map(|i| i | (15 - i) << 4));
        let four = Numbers::Quantised(Blocks::new(BlockKind::Q4_1, bytes.repeat(2)).expect("whole"));
        assert_eq!((four.len(), four.kind()), (64, "Q4_1"));
        let number = |i: usize| if i % 32 < 16 { 2.0 * (i % 16) as f64 - 3.0 } else { 2.0 * (15 - i % 16) as f64 - 3.0 };
        // From the middle of one block to the middle of the next.
        let mut got = [0f64; 30];
        four.widen(20..50, &mut got);
        assert!(got.iter().zip(20..).all(|(x, i)| *x == number(i)), "{got:?}");
        assert!(Blocks::new(BlockKind::Q4_0, vec![0; 17]).is_none());
    }

    #[test]
    fn every_kind_widens_to_the_same_numbers() {
        let right = [0.5, -2.0, 1.25, 96.0];
        let kinds = [
            Numbers::F32(right.iter().map(|x| *x as f32).collect::<Vec<_>>().into()),
            Numbers::F64(right.to_vec().into()),
            Numbers::F16(right.iter().map(|x| f16::from_f64(*x)).collect::<Vec<_>>().into()),
            Numbers::Bf16(right.iter().map(|x| bf16::from_f64(*x)).collect::<Vec<_>>().into()),
        ];
        let bytes: Vec<u8> = [0u8].into_iter().chain(right.iter().flat_map(|x| (*x as f32).to_le_bytes())).collect();
        for numbers in kinds.into_iter().chain([Numbers::Unaligned(&bytes[1..])]) {
            let mut got = [0f64; 3];
            numbers.widen(1..4, &mut got);
            assert_eq!(got, right[1..], "{}", numbers.kind());
        }
    }
}
