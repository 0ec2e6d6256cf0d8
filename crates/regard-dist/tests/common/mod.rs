//! Numbers to attend to, and how they are compared.

use ndarray::{Array, Array4, Dimension};
use regard::{Real, Storage};

pub(crate) fn random<E: Storage>(shape: [usize; 4], seed: u64) -> Array4<E> {
    let mut state = seed;
    Array4::from_shape_simple_fn(shape, || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        E::from_real(E::Real::from_f64(((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 * 4.0 - 4.0))
    })
}

/// One NaN is as good as another.
pub(crate) fn assert_bits<E: Storage, D: Dimension>(what: &str, a: &Array<E, D>, b: &Array<E, D>) {
    assert_eq!(a.shape(), b.shape(), "{what}");
    let bits = |x: &E| Some(x.to_real().to_f64()).filter(|x| !x.is_nan()).map(f64::to_bits);
    let differ = a.iter().zip(b).filter(|(a, b)| bits(a) != bits(b)).count();
    assert_eq!(differ, 0, "{what}: {differ} of {} numbers differ", a.len());
}
