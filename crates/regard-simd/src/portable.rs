//! Lanes in plain Rust: arrays that the compiler vectorises as far as the target's baseline goes.

use crate::sealed::Sealed;
use crate::simd::{Kernel, Simd, Transpose, methods};
use std::array::from_fn;

macro_rules! portable {
    ($name:ident, $t:ty, $lanes:literal, $mantissa:literal) => {
        /// Needs no proof.
        #[derive(Clone, Copy)]
        pub struct $name;

        impl Sealed for $name {}

        impl Simd for $name {
            type T = $t;
            type V = [$t; $lanes];
            type M = [bool; $lanes];
            type Narrow = Self;
            const LANES: usize = $lanes;
            const TILE_ROWS: usize = 2;

            #[inline(always)]
            fn narrow(self) -> Self {
                self
            }
            #[inline(never)]
            fn call<K: Kernel<$t>>(self, kernel: K) {
                kernel.run(self);
            }
            #[inline(always)]
            unsafe fn load(self, p: *const $t) -> Self::V {
                // SAFETY: the caller guarantees LANES elements.
                unsafe { p.cast::<Self::V>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t, v: Self::V) {
                // SAFETY: the caller guarantees LANES elements.
                unsafe { p.cast::<Self::V>().write_unaligned(v) }
            }
            #[inline(always)]
            fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                // Without the instruction, `mul_add` is a library call per lane.
                if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
                    from_fn(|i| a[i].mul_add(b[i], c[i]))
                } else {
                    from_fn(|i| a[i] * b[i] + c[i])
                }
            }
            methods! {
                fn splat(self, x: $t) -> Self::V = [x; $lanes];
                fn add(self, a: Self::V, b: Self::V) -> Self::V = from_fn(|i| a[i] + b[i]);
                fn sub(self, a: Self::V, b: Self::V) -> Self::V = from_fn(|i| a[i] - b[i]);
                fn mul(self, a: Self::V, b: Self::V) -> Self::V = from_fn(|i| a[i] * b[i]);
                fn div(self, a: Self::V, b: Self::V) -> Self::V = from_fn(|i| a[i] / b[i]);
                fn max(self, a: Self::V, b: Self::V) -> Self::V = from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] });
                fn abs(self, a: Self::V) -> Self::V = from_fn(|i| a[i].abs());
                fn lt(self, a: Self::V, b: Self::V) -> Self::M = from_fn(|i| a[i] < b[i]);
                fn eq(self, a: Self::V, b: Self::V) -> Self::M = from_fn(|i| a[i] == b[i]);
                fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V = from_fn(|i| if m[i] { a[i] } else { b[i] });
                fn clear(self, m: Self::M, a: Self::V) -> Self::V = from_fn(|i| if m[i] { 0.0 } else { a[i] });
                fn mask_from_bits(self, bits: u32, n: usize) -> Self::M = from_fn(|i| bits >> (n * $lanes + i) & 1 == 1);
                fn bits_from_mask(self, m: Self::M) -> u32 = m.iter().enumerate().fold(0, |bits, (i, &on)| bits | u32::from(on) << i);
                fn power_of_two(self, t: Self::V) -> Self::V =
                    from_fn(|i| <$t>::from_bits((1.0 as $t).to_bits().wrapping_add(t[i].to_bits() << $mantissa)));
            }
        }

        impl Transpose for $name {
            type Square = [[$t; $lanes]; $lanes];
            #[inline(always)]
            fn zero_square(self) -> Self::Square {
                [[0.0; $lanes]; $lanes]
            }
            #[inline(always)]
            fn transpose(self, rows: Self::Square) -> Self::Square {
                from_fn(|i| from_fn(|j| rows[j][i]))
            }
        }
    };
}

portable!(F32, f32, 8, 23);
portable!(F64, f64, 4, 52);
