//! Keys and values of tokens that were seen already. A cache grows with its tokens, and every sequence has a length of its own.

use super::attention::AttentionConfig;
use super::pass::Pass;
use crate::error::{Error, Result};
use crate::float::Float;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::{Array4, ArrayView4, Axis, ShapeBuilder};
use regard::{CacheView, Q8Block, q8_blocks};
use std::str::FromStr;

/// How a cache stores keys and values. A key is rounded once, when it enters; attention is exact over what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// As they were computed.
    #[default]
    F32,
    /// 16 bits, 11 of them the mantissa; beyond 65504 is infinite.
    F16,
    /// 16 bits, 8 of them the mantissa.
    Bf16,
    /// Blocks of 32 integers of 8 bits with a scale in f16: see [`Q8Block`].
    Q8_0,
}

impl CacheType {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0];

    /// Bytes of a key (or value) of `dim` elements in f32 arithmetic.
    pub const fn row_bytes(self, dim: usize) -> usize {
        match self {
            Self::F32 => 4 * dim,
            Self::F16 | Self::Bf16 => 2 * dim,
            Self::Q8_0 => q8_blocks(dim) * size_of::<Q8Block>(),
        }
    }

    /// As options spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }
}

impl FromStr for CacheType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let requirement = format!("one of {}", Self::ALL.map(Self::name).join(", "));
            Error::Config { name: "the cache type", value: text.to_owned(), requirement }
        })
    }
}

/// Rows of one type.
#[derive(Debug, Clone)]
enum Rows<T> {
    Full(Vec<T>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Q8(Vec<Q8Block>),
}

/// `$call` of the rows, their zero and the number of them that a row of `$dim` elements takes, whatever their type.
macro_rules! of_any {
    ($rows:expr, $dim:expr, |$x:ident, $zero:ident, $per_row:ident| $call:expr) => {
        match $rows {
            Rows::Full($x) => {
                let ($zero, $per_row) = (T::ZERO, $dim);
                $call
            }
            Rows::F16($x) => {
                let ($zero, $per_row) = (f16::ZERO, $dim);
                $call
            }
            Rows::Bf16($x) => {
                let ($zero, $per_row) = (bf16::ZERO, $dim);
                $call
            }
            Rows::Q8($x) => {
                let ($zero, $per_row) = (Q8Block::ZERO, q8_blocks($dim));
                $call
            }
        }
    };
}

impl<T: Float> Rows<T> {
    fn new(kind: CacheType) -> Self {
        match kind {
            CacheType::F32 => Self::Full(Vec::new()),
            CacheType::F16 => Self::F16(Vec::new()),
            CacheType::Bf16 => Self::Bf16(Vec::new()),
            CacheType::Q8_0 => Self::Q8(Vec::new()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Full(x) => size_of_val(x.as_slice()),
            Self::F16(x) => size_of_val(x.as_slice()),
            Self::Bf16(x) => size_of_val(x.as_slice()),
            Self::Q8(x) => size_of_val(x.as_slice()),
        }
    }

    /// Room for `to` rows of `dim` elements instead of `from`, in each of `heads` heads.
    fn grow(&mut self, heads: usize, dim: usize, [from, to]: [usize; 2]) {
        of_any!(self, dim, |rows, zero, per_row| {
            let mut larger = vec![zero; heads * to * per_row];
            for (to, from) in larger.chunks_exact_mut((to * per_row).max(1)).zip(rows.chunks_exact((from * per_row).max(1))) {
                to[..from.len()].copy_from_slice(from);
            }
            *rows = larger;
        });
    }

    /// Row `at` becomes `row`, rounded; `narrow` is scratch.
    fn put(&mut self, at: usize, row: &[T], narrow: &mut Vec<f32>) {
        let dim = row.len();
        if !matches!(self, Self::Full(_)) {
            narrow.clear();
            narrow.extend(row.iter().map(|x| x.to_f64() as f32));
        }
        match self {
            Self::Full(rows) => rows[at * dim..(at + 1) * dim].copy_from_slice(row),
            Self::F16(rows) => rows[at * dim..(at + 1) * dim].convert_from_f32_slice(narrow),
            Self::Bf16(rows) => rows[at * dim..(at + 1) * dim].convert_from_f32_slice(narrow),
            Self::Q8(rows) => {
                let blocks = q8_blocks(dim);
                let to = &mut rows[at * blocks..(at + 1) * blocks];
                to.iter_mut().zip(narrow.chunks(32)).for_each(|(to, x)| *to = Q8Block::quantise(x));
            }
        }
    }
}

/// The past of one layer: keys and values `[batch, kv_heads, capacity, head_dim]`.
#[derive(Debug, Clone)]
pub struct KvCache<T> {
    keys: Rows<T>,
    values: Rows<T>,
    batch: usize,
    heads: usize,
    dim: usize,
    capacity: usize,
    /// Tokens of the longest sequence.
    longest: usize,
}

/// Keys and values of a cache, as they are stored.
pub(crate) enum CacheViews<'c, T> {
    Full([ArrayView4<'c, T>; 2]),
    Compressed([CacheView<'c>; 2]),
}

impl<T: Float> KvCache<T> {
    /// An empty past of `batch` sequences.
    pub fn new(config: &AttentionConfig, batch: usize) -> Self {
        let (heads, dim) = (config.kv_heads, config.head_dim);
        let rows = || Rows::new(CacheType::F32);
        Self { keys: rows(), values: rows(), batch, heads, dim, capacity: 0, longest: 0 }
    }

    /// An empty past that stores keys and values in another type.
    #[must_use]
    pub fn stored_as(self, kind: CacheType) -> Self {
        Self { keys: Rows::new(kind), values: Rows::new(kind), capacity: 0, longest: 0, ..self }
    }

    /// Tokens per sequence that there is room for before it must grow.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of keys and values, with the room to grow.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Forget the past.
    pub fn clear(&mut self) {
        self.longest = 0;
    }

    /// Capacity in tokens per sequence. Each token reads the whole cache, so a copy of it once in `1 / 8` of its tokens costs little.
    fn reserve(&mut self, tokens: usize) {
        if tokens <= self.capacity {
            return;
        }
        let capacity = (tokens + tokens / 8).next_multiple_of(16);
        for rows in [&mut self.keys, &mut self.values] {
            rows.grow(self.batch * self.heads, self.dim, [self.capacity, capacity]);
        }
        self.capacity = capacity;
    }

    /// Append the keys and values of a pass, each sequence's after its own past.
    pub(crate) fn push(&mut self, pass: &Pass<'_>, k: ArrayView4<'_, T>, v: ArrayView4<'_, T>) {
        self.reserve(pass.end());
        self.longest = self.longest.max(pass.end());
        let mut narrow = Vec::new();
        for (from, to) in [(k, &mut self.keys), (v, &mut self.values)] {
            for (b, from) in from.outer_iter().enumerate() {
                for (h, from) in from.outer_iter().enumerate() {
                    let first = (b * self.heads + h) * self.capacity + pass.start(b);
                    for (t, row) in from.axis_iter(Axis(0)).enumerate() {
                        let row = row.as_slice().expect("rows of heads are contiguous");
                        to.put(first + t, row, &mut narrow);
                    }
                }
            }
        }
    }

    /// `[batch, heads, longest, per_row]` of rows that are `capacity` apart from head to head.
    fn view<'c, X>(&self, rows: &'c [X], per_row: usize) -> ArrayView4<'c, X> {
        let per_head = self.capacity * per_row;
        let shape = (self.batch, self.heads, self.longest, per_row).strides((self.heads * per_head, per_head, per_row, 1));
        ArrayView4::from_shape(shape, rows).expect("the cache is as large as its capacity")
    }

    fn compressed<'c>(&self, rows: &'c Rows<T>) -> Option<CacheView<'c>> {
        match rows {
            Rows::Full(_) => None,
            Rows::F16(rows) => Some(self.view(rows, self.dim).into()),
            Rows::Bf16(rows) => Some(self.view(rows, self.dim).into()),
            Rows::Q8(rows) => Some(CacheView::q8_0(self.view(rows, q8_blocks(self.dim)), self.dim).expect("as many blocks as a row takes")),
        }
    }

    /// Keys and values up to the end of the longest sequence; after a shorter one's end they are of no meaning, and a mask by
    /// position hides them.
    pub(crate) fn views(&self) -> CacheViews<'_, T> {
        match (&self.keys, &self.values, self.compressed(&self.keys), self.compressed(&self.values)) {
            (_, _, Some(keys), Some(values)) => CacheViews::Compressed([keys, values]),
            (Rows::Full(keys), Rows::Full(values), ..) => CacheViews::Full([self.view(keys, self.dim), self.view(values, self.dim)]),
            _ => unreachable!("keys and values are of one type"),
        }
    }

    /// Copies of keys and values as they are read: for hooks that look at them.
    pub(crate) fn widened(&self) -> [Array4<T>; 2] {
        [&self.keys, &self.values].map(|rows| {
            let shape = (self.batch, self.heads, self.longest, self.dim);
            let wide = |x: f32| T::from_f64(f64::from(x));
            match rows {
                Rows::Full(rows) => self.view(rows, self.dim).to_owned(),
                Rows::F16(rows) => self.view(rows, self.dim).mapv(|x| wide(x.to_f32())),
                Rows::Bf16(rows) => self.view(rows, self.dim).mapv(|x| wide(x.to_f32())),
                Rows::Q8(rows) => {
                    let blocks = self.view(rows, q8_blocks(self.dim));
                    let row = |blocks: ndarray::ArrayView1<'_, Q8Block>| {
                        blocks.iter().flat_map(|block| block.widen().map(wide)).take(self.dim).collect::<Vec<_>>()
                    };
                    let rows = blocks.rows().into_iter().flat_map(row).collect();
                    Array4::from_shape_vec(shape, rows).expect("dim elements of each row")
                }
            }
        })
    }
}
