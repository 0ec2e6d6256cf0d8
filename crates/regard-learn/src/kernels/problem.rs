//! What an attention kernel is asked to compute, and what it returns.

use super::catalogue::Mistake;

/// Where the diagonal of a causal mask starts if there are more keys than queries, or fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Query i sees key j iff j <= i (PyTorch, JAX).
    TopLeft,
    /// Query i sees key j iff j <= i + keys - queries (flash-attention, decoding).
    BottomRight,
}

/// One sequence: its rows of q and of k, v.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub q0: usize,
    pub n: usize,
    pub k0: usize,
    pub m: usize,
}

/// An array that is broadcast to `[batch, heads, queries, keys]`.
#[derive(Clone, Debug)]
pub struct Plane {
    pub shape: [usize; 4],
    pub data: Vec<f64>,
}

impl Plane {
    pub fn index(&self, at: [usize; 4]) -> usize {
        (0..4).fold(0, |flat, axis| flat * self.shape[axis] + if self.shape[axis] == 1 { 0 } else { at[axis] })
    }

    pub fn at(&self, at: [usize; 4]) -> f64 {
        self.data[self.index(at)]
    }
}

/// Rows of a page, as in `harness.py`.
pub const PAGE: usize = 16;

/// How the arrays lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Contiguous,
    /// q, k and v are transposed views of `[batch, seq, heads, dim]`, or of the other order.
    Transposed,
    /// Every second element of a larger array.
    Strided,
}

/// Two partial results to be merged.
#[derive(Clone, Debug)]
pub struct Partial {
    pub out: [Vec<f64>; 2],
    pub lse: [Vec<f64>; 2],
}

/// One call of a kernel. Rows are tokens: q is `[tokens, heads, dim]`; a batch is a list of equal segments.
#[derive(Clone, Debug)]
pub struct Problem {
    pub label: String,
    pub segments: Vec<Segment>,
    /// Query heads, key/value heads, head dimension, value dimension.
    pub heads: [usize; 2],
    pub dims: [usize; 2],
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
    pub scale: Option<f64>,
    pub mask: Option<Plane>,
    pub bias: Option<Plane>,
    pub causal: bool,
    pub window: Option<[Option<usize>; 2]>,
    pub softcap: Option<f64>,
    pub alibi: Option<Vec<f64>>,
    pub sinks: Option<Vec<f64>>,
    /// Valid keys per segment; the others are padding.
    pub lengths: Option<Vec<usize>>,
    /// Position of query 0 among the keys.
    pub offset: Option<usize>,
    /// Scale of each row of k: `[tokens, heads]`.
    pub k_scale: Option<Vec<f64>>,
    pub packed: bool,
    /// k and v lie in pages, in reversed order.
    pub paged: bool,
    /// Dropout probability; which weights were kept by the forward and by the backward pass, `[batch, heads, n, m]`.
    pub dropout: f64,
    pub keep: [Option<Vec<bool>>; 2],
    /// What is wrong with the choice of the dropped weights.
    pub dropout_fault: Option<Mistake>,
    pub d_out: Option<Vec<f64>>,
    pub lse: bool,
    pub align: Align,
    pub memory: Memory,
    /// The kernel's own order is `[batch, seq, heads, dim]`.
    pub seq_major: bool,
    pub merge: Option<Partial>,
    /// Rows without a visible key, NaN, overflow, strides: what robust kernels survive.
    pub hard: bool,
    /// A NaN where no query sees it.
    pub hidden_nan: bool,
}

impl Problem {
    pub fn tokens(&self) -> [usize; 2] {
        let last = |f: fn(&Segment) -> usize| self.segments.iter().map(f).max().unwrap_or(0);
        [last(|s| s.q0 + s.n), last(|s| s.k0 + s.m)]
    }

    /// Number of keys of a segment that hold data.
    pub fn used(&self, segment: usize) -> usize {
        self.lengths.as_ref().map_or(self.segments[segment].m, |all| all[segment])
    }

    /// Share of the weights that the forward pass kept.
    pub fn kept_share(&self) -> f64 {
        let Some(kept) = &self.keep[0] else { return 1.0 };
        kept.iter().filter(|kept| **kept).count() as f64 / kept.len().max(1) as f64
    }

    /// Multiply-adds of the scores.
    pub fn work(&self) -> usize {
        self.segments.iter().map(|s| s.n * s.m).sum::<usize>() * self.heads[0] * self.dims[0]
    }

    /// Rows of `[segment, head, query]` that see no key and have no sink.
    pub fn blind(&self, segment: usize, head: usize, query: usize) -> bool {
        let used = self.used(segment);
        self.sinks.is_none() && !(0..used).any(|j| self.visible([segment, head, query, j]))
    }

    pub fn position(&self, segment: usize, query: usize) -> i64 {
        let start = match (self.offset, self.align) {
            (Some(offset), _) => offset as i64,
            (None, Align::TopLeft) => 0,
            (None, Align::BottomRight) => self.used(segment) as i64 - self.segments[segment].n as i64,
        };
        start + query as i64
    }

    /// Whether a query sees a key.
    pub fn visible(&self, at: [usize; 4]) -> bool {
        let [segment, _, query, key] = at;
        let distance = self.position(segment, query) - key as i64;
        let [left, right] = self.window.unwrap_or_default();
        key < self.used(segment)
            && (!self.causal || distance >= 0)
            && left.is_none_or(|left| distance <= left as i64)
            && right.is_none_or(|right| -distance <= right as i64)
            && self.mask.as_ref().is_none_or(|mask| mask.at(at) != 0.0)
            && self.bias.as_ref().is_none_or(|bias| bias.at(at) != f64::NEG_INFINITY)
    }
}

/// Names of results, in the order of [`Results::named`].
pub const RESULTS: [&str; 6] = ["out", "lse", "dq", "dk", "dv", "d_bias"];

/// What a kernel returns: arrays by tokens, like the inputs; `lse` is `[tokens, heads]`. What was not returned is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    pub arrays: [Option<Vec<f64>>; 6],
}

impl Results {
    pub fn named(&self, name: &str) -> Option<&Vec<f64>> {
        RESULTS.iter().position(|one| *one == name).and_then(|at| self.arrays[at].as_ref())
    }
}
