//! A mask of one's own: strided attention, as in sparse transformers. A query sees its last `STRIDE` keys, and before
//! them every `STRIDE`-th key.
//!
//! `visible` decides. `coverage` and `key_range` are worth writing too: by them whole tiles are skipped, or taken
//! without asking pair by pair.
//!
//! ```text
//! cargo run --release -p regard --example custom_mask
//! ```

use ndarray::Array4;
use regard::{Attention, HeadPosition, Mask, MaskRule, Result, TileCoverage};
use std::ops::Range;
use std::time::Instant;

struct Strided {
    stride: i64,
}

impl MaskRule for Strided {
    fn visible(&self, place: &HeadPosition, query: usize, key: usize) -> bool {
        let back = place.position(query) - key as i64;
        (0..self.stride).contains(&back) || (back > 0 && (key as i64 + 1) % self.stride == 0)
    }

    /// Full beside the diagonal, empty above it and between two of the far keys; "partial" is never wrong.
    fn coverage(&self, place: &HeadPosition, queries: Range<usize>, keys: Range<usize>) -> TileCoverage {
        let (first, last) = (place.position(queries.start), place.position(queries.end - 1));
        let (low, high) = (keys.start as i64, keys.end as i64 - 1);
        let next_far_key = (low + self.stride) / self.stride * self.stride - 1;
        if low > last || (high <= first - self.stride && next_far_key > high) {
            TileCoverage::Empty
        } else if high <= first && last - low < self.stride {
            TileCoverage::Full
        } else {
            TileCoverage::Partial
        }
    }

    /// Nothing after the last query's own position.
    fn key_range(&self, place: &HeadPosition, queries: Range<usize>, keys: Range<usize>) -> Range<usize> {
        let end = usize::try_from(place.position(queries.end - 1) + 1).unwrap_or(0);
        keys.start..keys.end.min(end)
    }
}

fn main() -> Result<()> {
    let small = Strided { stride: 4 };
    let x = Array4::<f32>::zeros((1, 1, 20, 1));
    let weights = Attention::new().mask(Mask::custom(&small)).weights(&x, &x)?;
    println!("20 queries (down) and 20 keys (across), stride 4:\n");
    for row in weights.rows() {
        let line: String = row.iter().map(|&w| if w > 0.0 { " #" } else { " ." }).collect();
        println!("  {line}");
    }

    let n = 4096;
    let x = Array4::from_shape_fn((1, 1, n, 64), |(_, _, i, d)| ((i * 37 + d * 11) % 101) as f32 / 101.0 - 0.5);
    let strided = Strided { stride: 64 };
    println!("\n{n} tokens, head_dim 64:");
    for (name, attention) in [
        ("everything", Attention::new()),
        ("causal", Attention::new().causal()),
        ("strided by 64", Attention::new().mask(Mask::custom(&strided))),
        // Masks combine: the rule, but no farther back than a thousand keys, and the first four keys always.
        ("and a window", Attention::new().mask((Mask::custom(&strided) & Mask::window(Some(1000), Some(0))) | Mask::first_keys(4))),
    ] {
        let start = Instant::now();
        let result = attention.forward(&x, &x, &x)?;
        let time = start.elapsed().as_secs_f64() * 1e3;
        println!("  {name:<15} {time:7.1} ms   out[last, 0] = {:+.4}", result.out[[0, 0, n - 1, 0]]);
    }
    Ok(())
}
