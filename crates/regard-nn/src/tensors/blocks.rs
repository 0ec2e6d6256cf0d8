//! Numbers of a few bits in blocks with scales of their own, as GGUF files have them.
//!
//! ```text
//! Q4_0 Q5_0 Q8_0     x = scale q                      32 elements, one scale
//! Q4_1 Q5_1          x = scale q + least
//! Q2_K Q4_K Q5_K     x = scale s q - least m          256 elements in groups; s and m are a group's own small integers
//! Q3_K Q6_K          x = scale s q
//! IQ4_NL IQ4_XS      x = scale (s) table[q]           16 values that lie closer around zero
//! ```
//!
//! A kind is one function from the bytes of a block to its elements; it is compiled for every SIMD level, into a loop that writes the
//! elements of as many blocks as it is given, and into one that multiplies them with a row as they come, without writing them.

use crate::float::{WIDE, fold_wide};
use regard_simd::matmul::Write;

/// How a block of elements is packed.
#[derive(Debug, Clone, Copy)]
pub struct BlockKind {
    /// For people.
    pub name: &'static str,
    /// Numbers of a block.
    pub numbers: usize,
    /// Its bytes.
    pub bytes: usize,
    /// From the bytes of whole blocks to their elements.
    pub widen: fn(&[u8], &mut [f32]),
    /// `y = w x` or `y += w x` for as many rows w of whole blocks as y has elements, x being as long as one of them.
    pub dots: fn(&[u8], &[f32], &mut [f32], Write),
}

/// A number of 16 bits, 5 of them its exponent: the same bits in 32, times what the exponents differ by. Every number of 16 bits comes out
/// exactly.
#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f32 {
    let bits = u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (sign, rest) = ((bits & 0x8000) << 16, (bits & 0x7FFF) << 13);
    let finite = (f32::from_bits(rest) * f32::from_bits(0x7780_0000)).to_bits();
    f32::from_bits(sign | if rest >= 0x0F80_0000 { rest | 0x7F80_0000 } else { finite })
}

/// `y (+)= w x` for rows of blocks of `B` bytes and `N` elements: each block is multiplied with its part of x while it is in registers.
#[inline(always)]
fn dot_rows<const BYTES: usize, const NUMBERS: usize>(
    rows: &[u8],
    x: &[f32],
    y: &mut [f32],
    write: Write,
    block: impl Fn(&[u8; BYTES], &mut [f32; NUMBERS]),
) {
    let row_bytes = x.len() / NUMBERS * BYTES;
    for (row, y) in rows.chunks_exact(row_bytes.max(1)).zip(y) {
        let mut lanes = [0f32; WIDE];
        for (from, x) in row.chunks_exact(BYTES).zip(x.chunks_exact(NUMBERS)) {
            let mut numbers = [0f32; NUMBERS];
            block(from.try_into().expect("a whole block"), &mut numbers);
            for (w, x) in numbers.chunks_exact(WIDE).zip(x.chunks_exact(WIDE)) {
                for (j, lane) in lanes.iter_mut().enumerate() {
                    *lane = w[j].mul_add(x[j], *lane);
                }
            }
        }
        let dot = fold_wide(lanes);
        *y = if write == Write::Add { *y + dot } else { dot };
    }
}

/// The low halves of the bytes, then the high halves.
#[inline(always)]
fn nibbles(bytes: &[u8], to: &mut [f32], number: impl Fn(i32) -> f32) {
    let (low, high) = to.split_at_mut(16);
    for (j, &byte) in bytes.iter().enumerate().take(16) {
        low[j] = number(i32::from(byte & 15));
        high[j] = number(i32::from(byte >> 4));
    }
}

/// The same with a fifth bit each, which stand together in 32.
#[inline(always)]
fn nibbles_and_bit(bits: &[u8], bytes: &[u8], to: &mut [f32], number: impl Fn(i32) -> f32) {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    let (low, high) = to.split_at_mut(16);
    for (j, &byte) in bytes.iter().enumerate().take(16) {
        low[j] = number(i32::from(byte & 15) | ((bits >> j) as i32 & 1) << 4);
        high[j] = number(i32::from(byte >> 4) | ((bits >> (j + 16)) as i32 & 1) << 4);
    }
}

/// Scale and least of group `j` of eight, six bits each in twelve bytes.
#[inline(always)]
fn six_bits(scales: &[u8], j: usize) -> (f32, f32) {
    let (scale, least) = if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        ((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4, (scales[j + 4] >> 4) | (scales[j] >> 6) << 4)
    };
    (f32::from(scale), f32::from(least))
}

/// The values of IQ4 blocks.
const NONLINEAR: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[inline(always)]
fn q8_0(from: &[u8; 34], to: &mut [f32; 32]) {
    let scale = half_at(from, 0);
    to.iter_mut().zip(&from[2..]).for_each(|(to, &byte)| *to = scale * f32::from(byte as i8));
}

#[inline(always)]
fn q4_0(from: &[u8; 18], to: &mut [f32; 32]) {
    let scale = half_at(from, 0);
    nibbles(&from[2..], to, |x| scale * (x - 8) as f32);
}

#[inline(always)]
fn q4_1(from: &[u8; 20], to: &mut [f32; 32]) {
    let (scale, least) = (half_at(from, 0), half_at(from, 2));
    nibbles(&from[4..], to, |x| scale * x as f32 + least);
}

#[inline(always)]
fn q5_0(from: &[u8; 22], to: &mut [f32; 32]) {
    let scale = half_at(from, 0);
    nibbles_and_bit(&from[2..6], &from[6..], to, |x| scale * (x - 16) as f32);
}

#[inline(always)]
fn q5_1(from: &[u8; 24], to: &mut [f32; 32]) {
    let (scale, least) = (half_at(from, 0), half_at(from, 2));
    nibbles_and_bit(&from[4..8], &from[8..], to, |x| scale * x as f32 + least);
}

/// 16 scales, 64 bytes of 2 bits, scale, least.
#[inline(always)]
fn q2_k(from: &[u8; 84], to: &mut [f32; 256]) {
    let (scale, least) = (half_at(from, 80), half_at(from, 82));
    for (group, to) in to.chunks_exact_mut(16).enumerate() {
        let (s, m) = (scale * f32::from(from[group] & 15), least * f32::from(from[group] >> 4));
        // Groups in pairs: 32 bytes hold eight groups, two bits of each byte at a time.
        let bytes = &from[16 + group / 8 * 32 + group % 2 * 16..][..16];
        let shift = group % 8 / 2 * 2;
        to.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = s * f32::from(byte >> shift & 3) - m);
    }
}

/// 32 bytes of high bits, 64 bytes of 2 bits, 12 bytes of scales, scale.
#[inline(always)]
fn q3_k(from: &[u8; 110], to: &mut [f32; 256]) {
    let (high, low, scales, scale) = (&from[..32], &from[32..96], &from[96..108], half_at(from, 108));
    for (group, to) in to.chunks_exact_mut(16).enumerate() {
        let four = if group < 8 { scales[group] & 15 } else { scales[group - 8] >> 4 };
        let two = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        let s = scale * (f32::from(four | two << 4) - 32.0);
        let half = group % 2 * 16;
        let (bytes, bits) = (&low[group / 8 * 32 + half..][..16], &high[half..][..16]);
        let (shift, bit) = (group % 8 / 2 * 2, group / 2);
        for ((to, &byte), &bits) in to.iter_mut().zip(bytes).zip(bits) {
            *to = s * (f32::from(byte >> shift & 3) - if bits >> bit & 1 == 1 { 0.0 } else { 4.0 });
        }
    }
}

#[inline(always)]
fn q4_k(from: &[u8; 144], to: &mut [f32; 256]) {
    let (scale, least, scales) = (half_at(from, 0), half_at(from, 2), &from[4..16]);
    for (pair, to) in to.chunks_exact_mut(64).enumerate() {
        let bytes = &from[16 + pair * 32..][..32];
        for (which, to) in to.chunks_exact_mut(32).enumerate() {
            let (s, m) = six_bits(scales, 2 * pair + which);
            let (s, m) = (scale * s, least * m);
            to.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = s * f32::from(byte >> (4 * which) & 15) - m);
        }
    }
}

#[inline(always)]
fn q5_k(from: &[u8; 176], to: &mut [f32; 256]) {
    let (scale, least, scales, high) = (half_at(from, 0), half_at(from, 2), &from[4..16], &from[16..48]);
    for (pair, to) in to.chunks_exact_mut(64).enumerate() {
        let bytes = &from[48 + pair * 32..][..32];
        for (which, to) in to.chunks_exact_mut(32).enumerate() {
            let (s, m) = six_bits(scales, 2 * pair + which);
            let (s, m) = (scale * s, least * m);
            for ((to, &byte), &bits) in to.iter_mut().zip(bytes).zip(high) {
                *to = s * f32::from((byte >> (4 * which) & 15) | (bits >> (2 * pair + which) & 1) << 4) - m;
            }
        }
    }
}

/// 128 bytes of 4 bits, 64 bytes of 2 bits, 16 scales, scale.
#[inline(always)]
fn q6_k(from: &[u8; 210], to: &mut [f32; 256]) {
    let scale = half_at(from, 208);
    for (quarter, to) in to.chunks_exact_mut(32).enumerate() {
        let (side, part) = (quarter / 4, quarter % 4);
        let low = &from[side * 64 + part % 2 * 32..][..32];
        let high = &from[128 + side * 32..][..32];
        for (half, to) in to.chunks_exact_mut(16).enumerate() {
            let s = scale * f32::from(from[192 + side * 8 + part * 2 + half] as i8);
            for ((to, &low), &high) in to.iter_mut().zip(&low[half * 16..]).zip(&high[half * 16..]) {
                *to = s * (f32::from((low >> (part / 2 * 4) & 15) | (high >> (2 * part) & 3) << 4) - 32.0);
            }
        }
    }
}

#[inline(always)]
fn iq4_nl(from: &[u8; 18], to: &mut [f32; 32]) {
    let scale = half_at(from, 0);
    nibbles(&from[2..], to, |x| scale * f32::from(NONLINEAR[x as usize]));
}

/// Scale, 16 bits of high and 4 bytes of low halves of eight scales, 128 bytes of 4 bits.
#[inline(always)]
fn iq4_xs(from: &[u8; 136], to: &mut [f32; 256]) {
    let (scale, high) = (half_at(from, 0), u16::from_le_bytes([from[2], from[3]]));
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        let four = from[4 + group / 2] >> (4 * (group % 2)) & 15;
        let s = scale * (f32::from(four | ((high >> (2 * group) & 3) as u8) << 4) - 32.0);
        nibbles(&from[8 + group * 16..][..16], to, |x| s * f32::from(NONLINEAR[x as usize]));
    }
}

macro_rules! kinds {
    ($($(#[$meta:meta])* $name:ident = $block:ident($bytes:literal -> $numbers:literal);)*) => {
        impl BlockKind {
            $($(#[$meta])* pub const $name: Self = Self {
                name: stringify!($name),
                numbers: $numbers,
                bytes: $bytes,
                widen: |from, to| {
                    struct Call<'a>(&'a [u8], &'a mut [f32]);
                    impl regard_simd::Kernel<f32> for Call<'_> {
                        #[inline(always)]
                        fn run<S: regard_simd::Simd<T = f32>>(self, _: S) {
                            for (from, to) in self.0.chunks_exact($bytes).zip(self.1.chunks_exact_mut($numbers)) {
                                let from: &[u8; $bytes] = from.try_into().expect("a whole block");
                                $block(from, to.try_into().expect("a whole block"));
                            }
                        }
                    }
                    <f32 as regard_simd::Real>::call(regard_simd::Level::preferred_or_panic(), Call(from, to));
                },
                dots: |rows, x, y, write| {
                    struct Call<'a>(&'a [u8], &'a [f32], &'a mut [f32], Write);
                    impl regard_simd::Kernel<f32> for Call<'_> {
                        #[inline(always)]
                        fn run<S: regard_simd::Simd<T = f32>>(self, _: S) {
                            dot_rows::<$bytes, $numbers>(self.0, self.1, self.2, self.3, $block);
                        }
                    }
                    <f32 as regard_simd::Real>::call(regard_simd::Level::preferred_or_panic(), Call(rows, x, y, write));
                },
            };)*

            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

kinds! {
    /// 32 elements of 8 bits with a scale in f16.
    Q8_0 = q8_0(34 -> 32);
    /// 32 elements of 4 bits around zero with a scale in f16.
    Q4_0 = q4_0(18 -> 32);
    /// 32 elements of 4 bits with a scale and a smallest number in f16.
    Q4_1 = q4_1(20 -> 32);
    /// 32 elements of 5 bits around zero with a scale in f16.
    Q5_0 = q5_0(22 -> 32);
    /// 32 elements of 5 bits with a scale and a smallest number in f16.
    Q5_1 = q5_1(24 -> 32);
    /// 16 groups of 16 elements of 2 bits, each with a scale and a smallest number.
    Q2_K = q2_k(84 -> 256);
    /// 16 groups of 16 elements of 3 bits around zero, each with a scale.
    Q3_K = q3_k(110 -> 256);
    /// 8 groups of 32 elements of 4 bits, each with a scale and a smallest number.
    Q4_K = q4_k(144 -> 256);
    /// 8 groups of 32 elements of 5 bits, each with a scale and a smallest number.
    Q5_K = q5_k(176 -> 256);
    /// 16 groups of 16 elements of 6 bits around zero, each with a scale.
    Q6_K = q6_k(210 -> 256);
    /// 32 elements of 4 bits that stand for values of a table, with a scale.
    IQ4_NL = iq4_nl(18 -> 32);
    /// 8 groups of 32 such elements, each with a scale.
    IQ4_XS = iq4_xs(136 -> 256);
}
