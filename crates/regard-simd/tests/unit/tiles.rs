//! Products of tiles in words of ordinary multiply-adds.

use super::*;
use crate::float::{Real, Storage};
use crate::level::Level;
use crate::simd::{Driver, Kernel, Simd};
use half::bf16;

/// Subnormal numbers are zero.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0 } else { x }
}

/// One element of a product.
fn element(of: impl Iterator<Item = (bf16, bf16)>) -> f32 {
    let pairs: Vec<_> = of.map(|(a, b)| (flushed(a.to_f32()), flushed(b.to_f32()))).collect();
    pairs.chunks(TILE_DEPTH).fold(0.0, |sum, step| {
        let chain = |first: usize| step[first..].iter().step_by(2).fold(0.0f32, |sum, &(a, b)| flushed(a.mul_add(b, sum)));
        flushed(sum + flushed(chain(0) + chain(1)))
    })
}

fn pair(low: bf16, high: bf16) -> f32 {
    f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16)
}

struct Multiply(TileProduct<f32>);

impl Kernel<f32> for Multiply {
    #[inline(always)]
    fn run<S: Simd<T = f32>>(self, simd: S) {
        // SAFETY: the test made the operands.
        unsafe { simd.multiply_tiles(self.0) };
    }
}

impl Driver<f32> for Multiply {
    type Output = ();
    fn run<S: Simd<T = f32>>(self, simd: S) {
        assert!(S::TILES && S::PAIRS);
        simd.call(self);
    }
}

struct Split<'t>(f32, f32, &'t mut [f32; 2]);

impl Kernel<f32> for Split<'_> {
    #[inline(always)]
    fn run<S: Simd<T = f32>>(self, simd: S) {
        *self.2 = simd.split_pairs(simd.splat(self.0), simd.splat(self.1)).map(|v| simd.to_array(v)[S::LANES - 1]);
    }
}

impl Driver<f32> for Split<'_> {
    type Output = ();
    fn run<S: Simd<T = f32>>(self, simd: S) {
        simd.call(self);
    }
}

struct Numbers(u64);

impl Numbers {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
    fn next(&mut self) -> bf16 {
        bf16::from_f32((self.bits() as f32 / (1u64 << 30) as f32 - 1.0) * 4.0)
    }
}

#[test]
fn products_of_tiles_are_two_chains_of_multiply_adds_for_every_32_elements() {
    if !Level::Amx.is_available() {
        return;
    }
    let mut numbers = Numbers(1);
    for (rows, columns, steps) in [(16, 16, 1), (17, 32, 2), (31, 16, 3), (32, 48, 1), (33, 64, 2), (100, 32, 4), (16, 16, 0)] {
        for parts in [Parts::None, Parts::A, Parts::B] {
            let (of_a, of_b) = (1 + usize::from(parts == Parts::A), 1 + usize::from(parts == Parts::B));
            let depth = steps * TILE_DEPTH;
            let (a_ld, b_ld, c_ld) = (depth * of_a + 6, columns + 3, columns + 5);
            // Subnormal elements, sums that become subnormal, and elements that are not finite.
            let mut draw = |kind: usize| match (kind, numbers.bits() % 40) {
                (1, 0) => bf16::from_bits(0x0041),
                (1, 1..4) => bf16::from_f32(1e-20),
                (2, 0) => bf16::INFINITY,
                _ => numbers.next(),
            };
            for kind in 0..3 {
                let a: Vec<_> = (0..rows * a_ld).map(|_| draw(kind)).collect();
                let b: Vec<_> = (0..2 * of_b * steps * TILE * b_ld).map(|_| draw(kind)).collect();
                let a_pairs: Vec<_> = a.chunks(2).map(|p| pair(p[0], p[1])).collect();
                let b_pairs: Vec<_> = b.chunks(2).map(|p| pair(p[0], p[1])).collect();
                let mut c = vec![7.0f32; rows * c_ld];
                let task = TileProduct {
                    rows,
                    columns,
                    steps,
                    parts,
                    a: a_pairs.as_ptr(),
                    a_stride: 2 * a_ld as isize,
                    b: b_pairs.as_ptr(),
                    b_stride: b_ld,
                    c: c.as_mut_ptr(),
                    c_stride: c_ld,
                };
                <bf16 as Storage>::dispatch_stored(Level::Amx, Multiply(task));
                for (row, line) in c.chunks(c_ld).enumerate() {
                    for (column, &got) in line.iter().enumerate() {
                        let terms = (0..depth * of_a.max(of_b)).map(|d| {
                            let (a_d, b_d) = (if of_a == 2 { d } else { d % depth }, if of_b == 2 { d } else { d % depth });
                            (a[row * a_ld + a_d], b[2 * (b_d / 2 * b_ld + column) + b_d % 2])
                        });
                        let expected = if column < columns { element(terms) } else { 7.0 };
                        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
                        assert!(same, "({row}, {column}) of {rows} x {columns} x {steps} {parts:?}: {got:e}, not {expected:e}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_split_has_sixteen_bits_and_what_is_not_finite_no_rest() {
    if !Level::Amx.is_available() {
        return;
    }
    let split = |low: f32, high: f32| {
        let mut parts = [0.0; 2];
        <bf16 as Storage>::dispatch_stored(Level::Amx, Split(low, high, &mut parts));
        parts.map(f32::to_bits).map(|bits| [bits as u16, (bits >> 16) as u16].map(|bits| bf16::from_bits(bits).to_f32()))
    };
    let mut numbers = Numbers(2);
    for _ in 0..20_000 {
        let [low, high] = [(); 2].map(|()| numbers.bits() as f32 / 1e9 - 1.0);
        let [first, rest] = split(low, high);
        for (i, x) in [low, high].into_iter().enumerate() {
            assert_eq!(first[i].to_bits(), x.to_bits() & 0xffff_0000);
            assert_eq!(rest[i].to_bits(), ((x - first[i]).to_bits() + 0x8000) & 0xffff_0000);
            assert!((x - first[i] - rest[i]).abs() <= x.abs() * 2f32.powi(-15));
        }
    }
    assert_eq!(split(f32::INFINITY, f32::NEG_INFINITY), [[f32::INFINITY, f32::NEG_INFINITY], [0.0; 2]]);
    let [[first, _], [rest, _]] = split(f32::NAN, 1.0);
    assert!(first.is_nan() && rest == 0.0);
}

/// Another configuration, or none, does no harm: the next product makes its own.
#[test]
fn tiles_are_configured_whenever_they_are_not() {
    if !Level::Amx.is_available() {
        return;
    }
    let (a, b, mut c) = (vec![pair(bf16::ONE, bf16::ZERO); 256], vec![pair(bf16::ONE, bf16::ONE); 256], vec![0.0f32; 256]);
    let task = TileProduct {
        rows: TILE,
        columns: TILE,
        steps: 1,
        parts: Parts::None,
        a: a.as_ptr(),
        a_stride: 64,
        b: b.as_ptr(),
        b_stride: TILE,
        c: c.as_mut_ptr(),
        c_stride: TILE,
    };
    struct Nested(TileProduct<f32>);
    impl Driver<f32> for Nested {
        type Output = ();
        fn run<S: Simd<T = f32>>(self, simd: S) {
            simd.call(Multiply(self.0));
            // Releases the tiles of this thread at its end.
            <bf16 as Storage>::dispatch_stored(Level::Amx, Multiply(self.0));
            simd.call(Multiply(self.0));
        }
    }
    <bf16 as Storage>::dispatch_stored(Level::Amx, Nested(task));
    assert!(c.iter().all(|&x| x == 16.0));
    assert_eq!(f32::ZERO, 0.0);
}
