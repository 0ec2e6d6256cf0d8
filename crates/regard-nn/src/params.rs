//! All parameters of a model side by side in one buffer; gradients and moments have the same layout.
//!
//! A part asks a [`Layout`] for its tensors when it is built and keeps the [`Slot`]s; the numbers themselves are handed in
//! with each call. So an optimiser is one loop over one slice, and a gradient is summed over micro-batches by not clearing it.

use crate::float::Float;
use crate::random::Draws;
use std::ops::Range;

/// How a tensor begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero.
    Zero,
    /// All one.
    One,
    /// Uniform in (-bound, bound).
    Uniform(f64),
    /// Normal with this standard deviation.
    Normal(f64),
}

/// A named tensor of a [`Layout`].
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// For example `blocks.0.attention.qkv.weight`.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Where it lies in the buffer.
    pub range: Range<usize>,
    /// How it begins.
    pub init: Init,
    /// Weight decay applies: matrices yes, biases, gains and embeddings of positions no.
    pub decay: bool,
}

/// Where a tensor lies in the parameter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    start: usize,
    len: usize,
}

impl Slot {
    /// Its part of a buffer.
    pub fn of<'p, T>(&self, buffer: &'p [T]) -> &'p [T] {
        &buffer[self.start..self.start + self.len]
    }

    /// Its part of a buffer, to write.
    pub fn of_mut<'p, T>(&self, buffer: &'p mut [T]) -> &'p mut [T] {
        &mut buffer[self.start..self.start + self.len]
    }

    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// It has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its part of a buffer, and what lies behind it.
    pub(crate) fn and_rest_mut<'p, T>(&self, buffer: &'p mut [T]) -> (&'p mut [T], &'p mut [T]) {
        buffer[self.start..].split_at_mut(self.len)
    }
}

/// The tensors of a model, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Layout {
    entries: Vec<Entry>,
    prefix: Vec<String>,
}

impl Layout {
    /// No tensors yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Add a tensor.
    pub fn add(&mut self, name: &str, shape: &[usize], init: Init, decay: bool) -> Slot {
        let (start, len) = (self.len(), shape.iter().product());
        let name = self.prefix.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
        self.entries.push(Entry { name, shape: shape.to_vec(), range: start..start + len, init, decay });
        Slot { start, len }
    }

    /// Build a part whose tensors' names begin with `name`.
    pub fn within<R>(&mut self, name: impl Into<String>, build: impl FnOnce(&mut Self) -> R) -> R {
        self.prefix.push(name.into());
        let part = build(self);
        self.prefix.pop();
        part
    }

    /// Numbers in all tensors together.
    pub fn len(&self) -> usize {
        self.entries.last().map_or(0, |e| e.range.end)
    }

    /// No tensors at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The tensors, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// First values, a pure function of the seed and each tensor's number.
    pub fn init<T: Float>(&self, seed: u64) -> Vec<T> {
        let mut values = Vec::with_capacity(self.len());
        for (number, entry) in self.entries.iter().enumerate() {
            let mut draws = Draws::at(seed, &[0x1417, number as u64]);
            values.extend(entry.range.clone().map(|_| {
                T::from_f64(match entry.init {
                    Init::Zero => 0.0,
                    Init::One => 1.0,
                    Init::Uniform(bound) => bound * (2.0 * draws.uniform() - 1.0),
                    Init::Normal(std) => std * draws.normal(),
                })
            }));
        }
        values
    }
}
