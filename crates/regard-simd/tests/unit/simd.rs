//! What products of pairs are, in words of ordinary multiply-adds.

use super::*;
use crate::float::Storage;
use crate::level::Level;
use half::bf16;

/// Vectors of `(c, a, b)`: `dot_pairs`, the elements of `a`, and `dot_narrow_pairs`.
struct Dots<'t>(&'t [[f32; 3]]);

impl Driver<f32> for Dots<'_> {
    type Output = Option<Vec<[f32; 4]>>;
    fn run<S: Simd<T = f32>>(self, simd: S) -> Self::Output {
        struct One<'t>([f32; 3], &'t mut [f32; 4]);
        impl Kernel<f32> for One<'_> {
            #[inline(always)]
            fn run<S: Simd<T = f32>>(self, simd: S) {
                let narrow = simd.narrow();
                let [x, y, z] = self.0.map(|x| narrow.splat(x));
                let dot = narrow.to_array(simd.dot_narrow_pairs(y, z, x))[S::Narrow::LANES - 1];
                let [c, a, b] = self.0.map(|x| simd.splat(x));
                let [low, high] = simd.unpair(a);
                let [wide, low, high] = [simd.dot_pairs(a, b, c), low, high].map(|v| simd.to_array(v)[S::LANES - 1]);
                *self.1 = [wide, low, high, dot];
            }
        }
        S::PAIRS.then(|| {
            let mut results = vec![[0.0; 4]; self.0.len()];
            results.iter_mut().zip(self.0).for_each(|(to, &from)| simd.call(One(from, to)));
            results
        })
    }
}

fn pair(low: bf16, high: bf16) -> f32 {
    f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16)
}

#[test]
fn products_of_pairs_are_two_multiply_adds_the_second_element_first() {
    let run = |of: &[[f32; 3]]| <bf16 as Storage>::dispatch_stored(Level::Avx512Bf16, Dots(of)).expect("it has pairs");
    for level in Level::available().filter(|&level| level < Level::Avx512Bf16) {
        assert!(<bf16 as Storage>::dispatch_stored(level, Dots(&[])).is_none(), "{}", level.name());
    }
    if !Level::Avx512Bf16.is_available() {
        return;
    }
    let mut state = 1u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 4.0
    };
    let drawn: Vec<_> = (0..20_000).map(|_| (number(), std::array::from_fn::<_, 4, _>(|_| bf16::from_f32(number())))).collect();
    let tasks: Vec<_> = drawn.iter().map(|&(c, [a0, a1, b0, b1])| [c, pair(a0, a1), pair(b0, b1)]).collect();
    for (got, (c, elements)) in run(&tasks).into_iter().zip(drawn) {
        let [a0, a1, b0, b1] = elements.map(bf16::to_f32);
        let dot = a0.mul_add(b0, a1.mul_add(b1, c));
        assert_eq!(got.map(f32::to_bits), [dot, a0, a1, dot].map(f32::to_bits));
    }
    // Subnormal elements, sums and products are zero; what is not finite stays so.
    let (zero, one, tiny) = (bf16::ZERO, bf16::ONE, bf16::from_bits(0x0040));
    let small = bf16::from_f32(1e-20);
    let exact = |c: f32, a: bf16, b: bf16| {
        let [wide, .., narrow] = run(&[[c, pair(a, zero), pair(b, zero)]])[0];
        assert!(wide.to_bits() == narrow.to_bits() || (wide.is_nan() && narrow.is_nan()), "{wide} and {narrow}");
        wide
    };
    assert_eq!(exact(0.0, tiny, bf16::from_f32(1e38)), 0.0);
    assert_eq!(exact(f32::from_bits(7), zero, zero), 0.0);
    assert_eq!(exact(0.0, small, small), 0.0);
    assert_eq!(exact(0.0, bf16::INFINITY, one), f32::INFINITY);
    assert!(exact(0.0, bf16::NAN, one).is_nan() && exact(0.0, bf16::INFINITY, zero).is_nan());
}
