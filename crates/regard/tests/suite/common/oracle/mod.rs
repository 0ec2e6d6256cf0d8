//! The judge of the tests: textbook attention, forward and backward, in f64. It shares no code with the crate: masks, biases, dropout and
//! offsets are described by types of its own, from which both its answer and the call of the library are made.
//!
//! It is slow and lays everything out. Positions are exact (i128), sums are plain loops, and nothing is skipped but what is hidden.
//!
//! ```text
//! raw     = q k^T * scale            capped = cap * tanh(raw / cap)          scores = capped + biases
//! visible = mask and no bias of -inf, and among the k highest of these
//! weights = softmax(scores) over the visible keys and the sink               applied = weights * dropout
//! out     = sum over the visible keys of applied * v
//! ```

mod backward;
mod forward;
mod instruments;
mod mask;
mod options;
mod refusal;

pub use backward::{BackwardAnswer, backward};
pub use forward::{Answer, MinusInfinity, attention, attention_with};
pub use instruments::{RowStatistics, Similarity, column_sums, heat_map, heaviest_first, row_statistics, similarity};
pub use mask::{Mask, Pair};
pub use options::{Bias, Options, Shape};
pub use refusal::refusal;

use ndarray::{Array4, ArrayView4};
use regard::{BiasGradient, Element, Gradients};

/// What a tensor may hold, widened by other means than the library's.
pub trait Number: Element {
    /// The same number in f64.
    fn wide(self) -> f64;
    /// The nearest number of this type.
    fn narrow(x: f64) -> Self;
    /// A NaN or an infinity, bit by bit: see [`Poison`].
    fn poison(poison: Poison) -> Self;
}

/// Numbers that are not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poison {
    /// The NaN that arithmetic makes.
    Nan,
    /// A quiet NaN whose payload is 1.
    Payload,
    /// All bits set.
    AllOnes,
    /// R's NA, a signalling NaN with a payload; in f32 and the half types the same idea.
    Missing,
    /// Plus infinity.
    Infinity,
    /// Minus infinity.
    MinusInfinity,
}

impl Poison {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Nan, Self::Payload, Self::AllOnes, Self::Missing, Self::Infinity, Self::MinusInfinity];
}

macro_rules! number {
    ($t:ty, |$x:ident| $wide:expr, |$y:ident| $narrow:expr, $bits:expr) => {
        impl Number for $t {
            fn wide(self) -> f64 {
                let $x = self;
                $wide
            }
            fn narrow($y: f64) -> Self {
                $narrow
            }
            fn poison(poison: Poison) -> Self {
                <$t>::from_bits($bits[poison as usize])
            }
        }
    };
}

number!(f32, |x| f64::from(x), |y| y as f32, [0x7fc0_0000, 0x7fc0_0001, 0xffff_ffff, 0x7f80_07a2, 0x7f80_0000, 0xff80_0000]);
number!(
    f64,
    |x| x,
    |y| y,
    [
        0x7ff8_0000_0000_0000,
        0x7ff8_0000_0000_0001,
        0xffff_ffff_ffff_ffff,
        0x7ff0_0000_0000_07a2,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000
    ]
);
number!(half::f16, |x| x.to_f64(), |y| half::f16::from_f64(y), [0x7e00, 0x7e01, 0xffff, 0x7c05, 0x7c00, 0xfc00]);
number!(half::bf16, |x| x.to_f64(), |y| half::bf16::from_f64(y), [0x7fc0, 0x7fc1, 0xffff, 0x7f82, 0x7f80, 0xff80]);

/// A tensor as the judge reads it.
pub fn widened<E: Number>(x: ArrayView4<'_, E>) -> Array4<f64> {
    x.as_standard_layout().mapv(E::wide)
}

/// The gradient of each bias, in the order given, flat.
pub fn bias_gradients<E: Element>(gradients: &Gradients<E>) -> Vec<Vec<f64>> {
    gradients.d_biases.iter().map(flat_bias_gradient).collect()
}

fn flat_bias_gradient(gradient: &BiasGradient) -> Vec<f64> {
    match gradient {
        BiasGradient::Dense(x) => x.iter().map(|&x| f64::from(x)).collect(),
        BiasGradient::Dense64(x) => x.iter().copied().collect(),
        BiasGradient::Alibi(x) => x.clone(),
        BiasGradient::Relative(x) => x.iter().map(|&x| f64::from(x)).collect(),
        other => panic!("a kind of bias that the judge does not know: {other:?}"),
    }
}
