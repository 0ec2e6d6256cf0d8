//! What a tensor is made of. Numbers that are not of the type of the computation are widened where they are used, a piece at a time.

use crate::float::Float;
use half::{bf16, f16};
use std::borrow::Cow;
use std::ops::Range;

/// The numbers of a tensor, row-major; borrowed from a buffer or a file where they lie well there.
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
    /// Blocks of a few bits per number, with a scale each: for use, not for training.
    Quantised(Blocks<'w>),
}

/// How a block of numbers is packed.
#[derive(Debug, Clone, Copy)]
pub struct BlockKind {
    /// For people.
    pub name: &'static str,
    /// Numbers of a block.
    pub numbers: usize,
    /// Its bytes.
    pub bytes: usize,
    /// From the bytes of one block to its numbers.
    pub widen: fn(&[u8], &mut [f32]),
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The low halves of the bytes, then the high halves.
fn nibbles(bytes: &[u8], to: &mut [f32], number: impl Fn(u8) -> f32) {
    let (low, high) = to.split_at_mut(bytes.len());
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = number(byte & 15);
        *high = number(byte >> 4);
    }
}

impl BlockKind {
    /// 32 numbers of 8 bits with a scale in f16.
    pub const Q8_0: Self = Self {
        name: "Q8_0",
        numbers: 32,
        bytes: 34,
        widen: |from, to| {
            let scale = half_at(from, 0);
            to.iter_mut().zip(&from[2..]).for_each(|(to, &byte)| *to = scale * f32::from(byte as i8));
        },
    };
    /// 32 numbers of 4 bits around zero with a scale in f16.
    pub const Q4_0: Self = Self {
        name: "Q4_0",
        numbers: 32,
        bytes: 18,
        widen: |from, to| {
            let scale = half_at(from, 0);
            nibbles(&from[2..], to, |x| scale * (f32::from(x) - 8.0));
        },
    };
    /// 32 numbers of 4 bits with a scale and a smallest number in f16.
    pub const Q4_1: Self = Self {
        name: "Q4_1",
        numbers: 32,
        bytes: 20,
        widen: |from, to| {
            let (scale, least) = (half_at(from, 0), half_at(from, 2));
            nibbles(&from[4..], to, |x| scale * f32::from(x) + least);
        },
    };
}

/// Quantised numbers.
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

    fn widen<T: Float>(&self, range: Range<usize>, to: &mut [T]) {
        let BlockKind { numbers, bytes, widen, .. } = self.kind;
        let mut block = vec![0.0; numbers];
        let mut at = range.start;
        while at < range.end {
            let (number, first) = (at / numbers, at % numbers);
            widen(&self.bytes[number * bytes..(number + 1) * bytes], &mut block);
            let count = (numbers - first).min(range.end - at);
            let to = &mut to[at - range.start..][..count];
            to.iter_mut().zip(&block[first..]).for_each(|(to, &x)| *to = T::from_f64(f64::from(x)));
            at += count;
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
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::F16(_) => "f16",
            Self::Bf16(_) => "bf16",
            Self::Quantised(x) => x.kind.name,
        }
    }

    /// Some of them in the type of the computation.
    ///
    /// # Panics
    /// When `to` is not as long as the range, or the range is not within.
    pub fn widen<T: Float>(&self, range: Range<usize>, to: &mut [T]) {
        assert_eq!(range.len(), to.len(), "as many places as numbers");
        match self {
            Self::F32(x) => to.iter_mut().zip(&x[range]).for_each(|(to, &x)| *to = T::from_f64(f64::from(x))),
            Self::F64(x) => to.iter_mut().zip(&x[range]).for_each(|(to, &x)| *to = T::from_f64(x)),
            Self::F16(x) => to.iter_mut().zip(&x[range]).for_each(|(to, &x)| *to = T::from_f64(f64::from(x.to_f32()))),
            Self::Bf16(x) => to.iter_mut().zip(&x[range]).for_each(|(to, &x)| *to = T::from_f64(f64::from(x.to_f32()))),
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
        for numbers in kinds {
            let mut got = [0f64; 3];
            numbers.widen(1..4, &mut got);
            assert_eq!(got, right[1..], "{}", numbers.kind());
        }
    }
}
