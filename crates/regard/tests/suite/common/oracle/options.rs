//! A call, described: from it come the judge's answer and the library's [`Attention`].

use super::mask::{Mask, Pair, broadcast};
use ndarray::{Array2, Array4};
use regard::{Attention, Scale};

/// The sizes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub batch: usize,
    pub heads_q: usize,
    pub heads_kv: usize,
    pub seq_q: usize,
    pub seq_kv: usize,
    pub head_dim: usize,
    pub value_dim: usize,
}

impl Shape {
    /// Of a call that fits.
    pub fn of(q: &[usize], k: &[usize], v: &[usize]) -> Self {
        Self { batch: q[0], heads_q: q[1], heads_kv: k[1], seq_q: q[2], seq_kv: k[2], head_dim: q[3], value_dim: v[3] }
    }

    pub const fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads_q, self.seq_q, self.seq_kv]
    }

    /// The key/value head that a query head reads.
    pub fn kv_head(&self, head: usize) -> usize {
        head / (self.heads_q / self.heads_kv)
    }
}

/// Where query 0 stands on the key axis.
#[derive(Debug, Clone, PartialEq)]
pub enum Offset {
    Same(i64),
    PerBatch(Vec<i64>),
    /// The last query at the last key that exists.
    End,
}

/// Numbers that are added to the scores.
#[derive(Debug, Clone)]
pub enum Bias {
    Dense(Array4<f32>),
    Dense64(Array4<f64>),
    Alibi(Vec<f64>),
    Relative(Array2<f32>),
}

impl Bias {
    /// The place in the flat gradient that a pair adds to, and the factor with which it does.
    pub fn place(&self, p: &Pair) -> (usize, f64) {
        let dense = |(b, h, n, m): (usize, usize, usize, usize)| {
            ((broadcast(p.batch, b) * h + broadcast(p.head, h)) * n + broadcast(p.query, n)) * m + broadcast(p.key, m)
        };
        match self {
            Self::Dense(x) => (dense(x.dim()), 1.0),
            Self::Dense64(x) => (dense(x.dim()), 1.0),
            Self::Alibi(_) => (p.head, -(p.distance().unsigned_abs() as f64)),
            Self::Relative(table) => {
                let reach = (table.ncols() / 2) as i128;
                let column = (p.distance().clamp(-reach, reach) + reach) as usize;
                (broadcast(p.head, table.nrows()) * table.ncols() + column, 1.0)
            }
        }
    }

    /// How many numbers it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(x) => x.len(),
            Self::Dense64(x) => x.len(),
            Self::Alibi(x) => x.len(),
            Self::Relative(x) => x.len(),
        }
    }

    /// The number that a pair gets.
    pub fn at(&self, p: &Pair) -> f64 {
        let (place, factor) = self.place(p);
        let number = match self {
            Self::Dense(x) => f64::from(x.as_slice().expect("as it was made")[place]),
            Self::Dense64(x) => x.as_slice().expect("as it was made")[place],
            Self::Alibi(x) => x[place],
            Self::Relative(x) => f64::from(x.as_slice().expect("as it was made")[place]),
        };
        factor * number
    }

    pub fn library(&self) -> regard::Bias<'_> {
        match self {
            Self::Dense(x) => regard::Bias::Dense(x.view().into()),
            Self::Dense64(x) => regard::Bias::Dense64(x.view().into()),
            Self::Alibi(x) => regard::Bias::Alibi(x.clone()),
            Self::Relative(x) => regard::Bias::Relative(x.view().into()),
        }
    }
}

/// Weights are dropped with this probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    pub probability: f64,
    pub seed: u64,
}

impl Dropout {
    /// What the weight of a pair is multiplied with.
    pub fn factor(&self, p: &Pair) -> f64 {
        let counter = [(p.key / 4) as u32, p.query as u32, p.head as u32, p.batch as u32];
        let word = philox(counter, [self.seed as u32, (self.seed >> 32) as u32])[p.key % 4];
        let limit = (self.probability * 4_294_967_296.0).round() as u64;
        if u64::from(word) < limit { 0.0 } else { 1.0 / (1.0 - self.probability) }
    }
}

/// Philox 4x32 with seven rounds (Salmon and others, 2011).
fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..7 {
        let a = u64::from(c[0]) * 0xD251_1F53;
        let b = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// Everything that a call can be asked to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f64>,
    pub softcap: Option<f64>,
    pub biases: Vec<Bias>,
    pub bias_gradient: bool,
    pub mask: Mask,
    /// Of the call: all of them hold, and queries that are aligned to the end end there.
    pub key_lengths: Vec<Vec<usize>>,
    pub offset: Offset,
    pub top_k: Option<usize>,
    pub sink: Option<Vec<f64>>,
    pub dropout: Option<Dropout>,
    pub threads: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scale: None,
            softcap: None,
            biases: Vec::new(),
            bias_gradient: true,
            mask: Mask::Everything,
            key_lengths: Vec::new(),
            offset: Offset::Same(0),
            top_k: None,
            sink: None,
            dropout: None,
            threads: None,
        }
    }
}

/// The same words as [`Attention`] has, so that a test reads the same.
impl Options {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn scale(self, scale: f64) -> Self {
        Self { scale: Some(scale), ..self }
    }

    pub fn softcap(self, cap: f64) -> Self {
        Self { softcap: Some(cap), ..self }
    }

    pub fn bias(mut self, bias: Bias) -> Self {
        self.biases.push(bias);
        self
    }

    pub fn bias_gradient(self, wanted: bool) -> Self {
        Self { bias_gradient: wanted, ..self }
    }

    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = match self.mask {
            Mask::Everything => mask,
            other => other & mask,
        };
        self
    }

    pub fn causal(self) -> Self {
        self.mask(Mask::Causal)
    }

    pub fn causal_bottom_right(self) -> Self {
        self.causal().align_end()
    }

    pub fn reverse(self) -> Self {
        self.mask(Mask::Reverse)
    }

    pub fn strictly_future(self) -> Self {
        self.mask(Mask::StrictlyFuture)
    }

    pub fn window(self, left: usize, right: usize) -> Self {
        self.mask(Mask::Window(Some(left), Some(right)))
    }

    pub fn key_lengths(mut self, lengths: impl Into<Vec<usize>>) -> Self {
        self.key_lengths.push(lengths.into());
        self
    }

    pub fn q_offset(self, offset: i64) -> Self {
        Self { offset: Offset::Same(offset), ..self }
    }

    pub fn q_offsets(self, offsets: impl Into<Vec<i64>>) -> Self {
        Self { offset: Offset::PerBatch(offsets.into()), ..self }
    }

    pub fn align_end(self) -> Self {
        Self { offset: Offset::End, ..self }
    }

    pub fn top_k(self, k: usize) -> Self {
        Self { top_k: Some(k), ..self }
    }

    pub fn sink(self, logits: impl Into<Vec<f64>>) -> Self {
        Self { sink: Some(logits.into()), ..self }
    }

    pub fn dropout(self, probability: f64, seed: u64) -> Self {
        Self { dropout: Some(Dropout { probability, seed }), ..self }
    }

    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// The position of query 0 of a batch entry.
    pub fn q_offset_of(&self, batch: usize, dims: &Shape) -> i128 {
        match &self.offset {
            Offset::Same(n) => i128::from(*n),
            Offset::PerBatch(n) => i128::from(n[batch]),
            Offset::End => {
                let keys = self.key_lengths.iter().map(|lengths| lengths[batch]).min().unwrap_or(dims.seq_kv);
                keys as i128 - dims.seq_q as i128
            }
        }
    }

    /// Whether masks and lengths show a pair.
    pub fn shows(&self, p: &Pair) -> bool {
        self.mask.visible(p) && self.key_lengths.iter().all(|lengths| p.key < lengths[p.batch])
    }

    /// What the dot products are multiplied with.
    pub fn factor(&self, dims: &Shape) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (dims.head_dim.max(1) as f64).sqrt())
    }

    /// The call of the library.
    pub fn attention(&self) -> Attention<'_> {
        let mut a = Attention::new().mask(self.mask.library()).bias_gradient(self.bias_gradient);
        if let Some(scale) = self.scale {
            a = a.scale(Scale::By(scale));
        }
        if let Some(cap) = self.softcap {
            a = a.softcap(cap);
        }
        for bias in &self.biases {
            a = a.bias(bias.library());
        }
        for lengths in &self.key_lengths {
            a = a.key_lengths(&lengths[..]);
        }
        a = match &self.offset {
            // Left out where it says nothing: two offsets are one too many.
            Offset::Same(0) => a,
            Offset::Same(n) => a.q_offset(*n),
            Offset::PerBatch(n) => a.q_offsets(&n[..]),
            Offset::End => a.align_end(),
        };
        if let Some(k) = self.top_k {
            a = a.top_k(k);
        }
        if let Some(logits) = &self.sink {
            a = a.sink(&logits[..]);
        }
        if let Some(Dropout { probability, seed }) = self.dropout {
            a = a.dropout(probability, seed);
        }
        match self.threads {
            Some(threads) => a.threads(threads),
            None => a,
        }
    }
}

/// The known answers that the authors of Philox publish for seven rounds.
#[test]
fn philox_gives_the_published_words() {
    assert_eq!(philox([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
    assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
    let (counter, key) = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
    assert_eq!(philox(counter, key), [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]);
}

#[test]
fn a_bias_of_the_distance_is_that_of_its_definition() {
    let at = |bias: &Bias, query: usize, key: usize| bias.at(&Pair { batch: 0, head: 1, query, key, position: query as i128 + 2 });
    let alibi = Bias::Alibi(vec![1.0, 0.5]);
    assert_eq!([at(&alibi, 0, 2), at(&alibi, 0, 5), at(&alibi, 3, 1)], [0.0, -1.5, -2.0]);
    let relative = Bias::Relative(Array2::from_shape_vec((1, 3), vec![10.0, 20.0, 30.0]).expect("three"));
    assert_eq!([at(&relative, 0, 0), at(&relative, 0, 1), at(&relative, 0, 2), at(&relative, 0, 9)], [10.0, 10.0, 20.0, 30.0]);
}
