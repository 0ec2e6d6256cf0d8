//! One of each kind of mask, and their combinations.

use super::oracle::Mask;
use super::{Normal, Recipe, Shape};
use ndarray::{Array, Array2, Array3, Dimension, ShapeBuilder};

pub fn random_bools<D: Dimension, Sh: ShapeBuilder<Dim = D>>(shape: Sh, seed: u64) -> Array<bool, D> {
    let mut numbers = Normal::new(seed);
    Array::from_shape_simple_fn(shape, || numbers.below(3) > 0)
}

/// A dozen tokens to a document, the borders different in every batch entry.
fn documents(shape: &Shape, offset: usize) -> Mask {
    let ids = |n: usize, from: usize| Array2::from_shape_fn((shape.batch, n), |(b, i)| ((i + from + 5 * b) / 12) as u32);
    Mask::Documents { queries: ids(shape.seq_q, offset), keys: ids(shape.seq_kv, 0) }
}

/// Recipes with every kind of mask.
pub fn masks(s: &Shape) -> Vec<(&'static str, Recipe)> {
    let (n, m) = (s.seq_q, s.seq_kv);
    let lengths: Vec<usize> = (0..s.batch).map(|b| if b == 0 { m.saturating_sub(3) } else { m * (b % 3) / 3 }).collect();
    let offsets: Vec<i64> = (0..s.batch).map(|b| m as i64 / 2 - 4 * b as i64).collect();
    let mask = |m: Mask| Recipe::new().with(|a| a.mask(m));
    let dense = |shape: [usize; 4], seed| mask(Mask::Dense(random_bools(shape, seed)));
    let blocks = |heads: usize, q_block: usize, kv_block: usize| Mask::Blocks {
        table: random_bools((heads, n.div_ceil(q_block), m.div_ceil(kv_block)), 31),
        q_block,
        kv_block,
    };
    vec![
        ("full", Recipe::new()),
        ("causal", Recipe::new().with(|a| a.causal())),
        ("bottom right", Recipe::new().with(|a| a.causal_bottom_right())),
        ("causal with an offset", Recipe::new().with(|a| a.causal().q_offset(11))),
        ("causal with a negative offset", Recipe::new().with(|a| a.causal().q_offset(-5))),
        ("causal with offsets", Recipe::new().with(|a| a.causal().q_offsets(offsets.clone()))),
        ("reverse", Recipe::new().with(|a| a.reverse())),
        ("strictly future", Recipe::new().with(|a| a.strictly_future())),
        ("window", Recipe::new().with(|a| a.window(5, 2))),
        ("window with offsets", Recipe::new().with(|a| a.window(17, 3).q_offsets(offsets))),
        ("window to the left only", mask(Mask::Window(None, Some(3)))),
        ("window to the right only", mask(Mask::Window(Some(4), None))),
        ("sinks and window", mask(Mask::FirstKeys(4) | Mask::Window(Some(9), Some(0)))),
        ("key lengths", Recipe::new().with(|a| a.key_lengths(lengths.clone()))),
        ("key lengths, bottom right", Recipe::new().with(|a| a.key_lengths(lengths).causal_bottom_right())),
        ("documents", mask(documents(s, 0))),
        ("causal documents", mask(Mask::Causal & documents(s, 0))),
        ("dense", dense(s.scores(), 21)),
        ("dense, one for all heads", dense([s.batch, 1, n, m], 22)),
        ("dense, one for all queries", dense([s.batch, 1, 1, m], 23)),
        ("dense, one for all keys", dense([1, s.heads_q, n, 1], 24)),
        ("blocks", mask(blocks(1, 7, 9))),
        ("blocks per head", mask(blocks(s.heads_q, 64, 64))),
        ("custom", mask(Mask::Dilated)),
        ("custom with an offset", mask(Mask::Dilated).with(|a| a.q_offset(20))),
        ("not window", mask(!Mask::Window(Some(3), Some(3)))),
        ("not custom and not documents", mask(!(Mask::Dilated | documents(s, 2)))),
        ("a mixture", mask((Mask::Causal & !documents(s, 3)) | Mask::FirstKeys(2) | !Mask::Window(Some(40), Some(30)))),
        ("nothing", mask(!Mask::Everything)),
    ]
}

#[test]
fn the_generator_of_masks_hides_and_shows() {
    let table: Array3<bool> = random_bools((2, 9, 9), 1);
    assert!(table.iter().any(|&on| on) && table.iter().any(|&on| !on));
}
