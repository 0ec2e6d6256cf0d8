//! Keys and values of tokens that were seen already, and attention of new tokens over them.

use crate::attention::MultiHeadAttention;
use crate::error::Result;
use crate::float::Float;
use crate::positions::Rotary;
use ndarray::{ArrayView4, ShapeBuilder};

/// The past of one layer: keys and values `[batch, kv_heads, capacity, head_dim]`.
#[derive(Debug, Clone)]
pub struct KvCache<T> {
    keys: Vec<T>,
    values: Vec<T>,
    batch: usize,
    capacity: usize,
    len: usize,
}

impl<T: Float> KvCache<T> {
    /// Room for `capacity` tokens of each of `batch` sequences.
    pub fn new(attention: &MultiHeadAttention, batch: usize, capacity: usize) -> Self {
        let config = attention.config();
        let size = batch * config.kv_heads * capacity * config.head_dim;
        Self { keys: vec![T::ZERO; size], values: vec![T::ZERO; size], batch, capacity, len: 0 }
    }

    /// Tokens in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No tokens in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forget the past.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    fn view<'c>(&self, numbers: &'c [T], heads: usize, dim: usize) -> ArrayView4<'c, T> {
        let shape = (self.batch, heads, self.len, dim).strides((heads * self.capacity * dim, self.capacity * dim, dim, 1));
        ArrayView4::from_shape(shape, numbers).expect("the cache is as large as its capacity")
    }

    /// Add the keys and values of rows `[q | k | v]`, `new` tokens of each sequence, at columns `first` and behind.
    fn push(&mut self, rows: &[T], width: usize, first: usize, new: usize, heads: usize, dim: usize) {
        for (row, numbers) in rows.chunks_exact(width).enumerate() {
            let (b, t) = (row / new, row % new);
            for h in 0..heads {
                let to = ((b * heads + h) * self.capacity + self.len + t) * dim;
                let from = first + h * dim;
                self.keys[to..to + dim].copy_from_slice(&numbers[from..from + dim]);
                self.values[to..to + dim].copy_from_slice(&numbers[from + heads * dim..from + heads * dim + dim]);
            }
        }
        self.len += new;
    }
}

impl MultiHeadAttention {
    /// Causal self-attention of `new` tokens per sequence, given their projected rows, over the cache, to which they are added.
    /// `out` gets the heads side by side.
    ///
    /// # Errors
    /// None in practice: shapes follow from the cache.
    pub(crate) fn attend_cached<T: Float>(
        &self,
        new: usize,
        rotary: Option<&Rotary<T>>,
        qkv: &mut [T],
        cache: &mut KvCache<T>,
        out: &mut [T],
    ) -> Result<()> {
        let c = self.config();
        let (width, q_width) = (self.input().outputs(), c.heads * c.head_dim);
        if let Some(rotary) = rotary {
            for (row, numbers) in qkv.chunks_exact_mut(width).enumerate() {
                rotary.turn(numbers, c.heads + c.kv_heads, cache.len + row % new, false);
            }
        }
        cache.push(qkv, width, q_width, new, c.kv_heads, c.head_dim);
        let past = cache.len - new;
        let attention = self.plain_attention().causal().q_offset(past as i64);
        let q = ArrayView4::from_shape((cache.batch, c.heads, new, c.head_dim).strides((new * width, c.head_dim, width, 1)), qkv)
            .expect("rows of queries");
        let (keys, values) = (cache.view(&cache.keys, c.kv_heads, c.head_dim), cache.view(&cache.values, c.kv_heads, c.head_dim));
        let shape = (cache.batch, c.heads, new, c.head_dim).strides((new * q_width, c.head_dim, q_width, 1));
        let out = ndarray::ArrayViewMut4::from_shape(shape, out).expect("rows of results");
        attention.forward_into(q, keys, values, out, None)?;
        Ok(())
    }

    /// Keys and values of a memory's rows, `[k | v]` side by side; nothing for self-attention.
    pub(crate) fn memory_heads<T: Float>(&self, p: &[T], memory: &[T]) -> Vec<T> {
        let Some(kv) = self.memory_input() else { return Vec::new() };
        let mut rows = vec![T::ZERO; memory.len() / kv.inputs().max(1) * kv.outputs()];
        kv.forward(p, memory, &mut rows);
        rows
    }

    /// Cross-attention of `new` tokens per sequence over [`MultiHeadAttention::memory_heads`].
    pub(crate) fn attend_memory<T: Float>(
        &self,
        batch: usize,
        new: usize,
        q: &[T],
        kv: &[T],
        seq: usize,
        lengths: Option<&[usize]>,
        out: &mut [T],
    ) -> Result<()> {
        let c = self.config();
        let (dim, q_width, kv_width) = (c.head_dim, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let keys = (batch, c.kv_heads, seq, dim).strides((seq * 2 * kv_width, dim, 2 * kv_width, 1));
        let k = ArrayView4::from_shape(keys, kv).expect("rows of keys and values");
        let v = ArrayView4::from_shape(keys, kv.get(kv_width..).unwrap_or_default()).expect("rows of keys and values");
        let queries = (batch, c.heads, new, dim).strides((new * q_width, dim, q_width, 1));
        let q = ArrayView4::from_shape(queries, q).expect("rows of queries");
        let out = ndarray::ArrayViewMut4::from_shape(queries, out).expect("rows of results");
        let mut attention = self.plain_attention();
        if let Some(lengths) = lengths {
            attention = attention.key_lengths(lengths);
        }
        attention.forward_into(q, k, v, out, None)?;
        Ok(())
    }
}
