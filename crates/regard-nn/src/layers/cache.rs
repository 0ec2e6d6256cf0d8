//! Keys and values of tokens that were seen already. A cache grows with its tokens, and every sequence has a length of its own.

use super::attention::AttentionConfig;
use super::pass::Pass;
use crate::float::Float;
use ndarray::{ArrayView4, ShapeBuilder};

/// The past of one layer: keys and values `[batch, kv_heads, capacity, head_dim]`.
#[derive(Debug, Clone)]
pub struct KvCache<T> {
    keys: Vec<T>,
    values: Vec<T>,
    batch: usize,
    heads: usize,
    dim: usize,
    capacity: usize,
    /// Tokens of the longest sequence.
    longest: usize,
}

impl<T: Float> KvCache<T> {
    /// An empty past of `batch` sequences.
    pub fn new(config: &AttentionConfig, batch: usize) -> Self {
        let (heads, dim) = (config.kv_heads, config.head_dim);
        Self { keys: Vec::new(), values: Vec::new(), batch, heads, dim, capacity: 0, longest: 0 }
    }

    /// Tokens per sequence that there is room for before it must grow.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forget the past.
    pub fn clear(&mut self) {
        self.longest = 0;
    }

    /// Capacity in tokens per sequence.
    fn reserve(&mut self, tokens: usize) {
        if tokens <= self.capacity {
            return;
        }
        let capacity = tokens.max(2 * self.capacity).max(16);
        for numbers in [&mut self.keys, &mut self.values] {
            let mut larger = vec![T::ZERO; self.batch * self.heads * capacity * self.dim];
            let old = (self.capacity * self.dim).max(1);
            for (to, from) in larger.chunks_exact_mut(capacity * self.dim).zip(numbers.chunks_exact(old)) {
                to[..from.len()].copy_from_slice(from);
            }
            *numbers = larger;
        }
        self.capacity = capacity;
    }

    /// Append the keys and values of a pass, each sequence's after its own past.
    pub(crate) fn push(&mut self, pass: &Pass<'_>, k: ArrayView4<'_, T>, v: ArrayView4<'_, T>) {
        self.reserve(pass.end());
        self.longest = self.longest.max(pass.end());
        for b in 0..self.batch {
            for h in 0..self.heads {
                for t in 0..pass.seq {
                    let to = ((b * self.heads + h) * self.capacity + pass.start(b) + t) * self.dim;
                    for d in 0..self.dim {
                        self.keys[to + d] = k[[b, h, t, d]];
                        self.values[to + d] = v[[b, h, t, d]];
                    }
                }
            }
        }
    }

    /// Keys and values up to the end of the longest sequence; after a shorter one's end they are of no meaning, and a mask by
    /// position hides them.
    pub(crate) fn views(&self) -> (ArrayView4<'_, T>, ArrayView4<'_, T>) {
        let per_head = self.capacity * self.dim;
        let shape = || (self.batch, self.heads, self.longest, self.dim).strides((self.heads * per_head, per_head, self.dim, 1));
        let view = |numbers| ArrayView4::from_shape(shape(), numbers).expect("the cache is as large as its capacity");
        (view(&self.keys), view(&self.values))
    }
}
