//! The exercises, one folder each: texts, stubs, solutions, wrong answers, cases and formula. This list has one line for each.

use crate::exercise::Exercise;
use crate::rng::Rng;
use crate::value::{Case, Value, array};

macro_rules! list {
    ($($name:ident,)*) => {
        $(pub(crate) mod $name;)*

        /// All exercises, in order.
        pub static EXERCISES: &[&Exercise] = &[$(&$name::EXERCISE),*];
    };
}

list! {
    similarity,
    softmax,
    attention,
    scaled_attention,
    saturation,
    causal_attention,
    masked_attention,
    attention_backward,
    multi_head,
    grouped_attention,
    decode,
    absorb,
    backward_tile,
    diagnose,
    block,
    checkpoint,
}

/// The exercise of a number or a name: `3`, `03`, `attention`, `03_attention`.
pub fn find(word: &str) -> Option<&'static Exercise> {
    find_in(EXERCISES, word)
}

/// The same in a set.
pub fn find_in(list: &[&'static Exercise], word: &str) -> Option<&'static Exercise> {
    let number = word.split('_').next().and_then(|start| start.parse::<usize>().ok());
    list.iter()
        .copied()
        .find(|e| Some(e.number) == number && (word.bytes().all(|b| b.is_ascii_digit()) || word == e.file_stem()) || e.name == word)
}

/// A random array.
fn normal(rng: &mut Rng, shape: &[usize]) -> Value<f64> {
    array(shape, rng.normals(shape.iter().product()))
}

/// An array of small whole numbers times a power of two.
fn whole(rng: &mut Rng, shape: &[usize], bound: i64, unit: f32) -> Value<f64> {
    array(shape, rng.wholes(shape.iter().product(), bound, unit))
}

/// Sizes that all differ.
fn different<const N: usize>(rng: &mut Rng, low: usize, high: usize) -> [usize; N] {
    let mut sizes = [0; N];
    for at in 0..N {
        sizes[at] = loop {
            let size = rng.size(low, high);
            if !sizes[..at].contains(&size) {
                break size;
            }
        };
    }
    sizes
}

/// Every third case goes to Python as a view with strides.
fn strided(mut cases: Vec<Case>) -> Vec<Case> {
    cases.iter_mut().skip(1).step_by(3).for_each(|case| case.strided = true);
    cases
}
