//! The tensors of a model by name, and where each lies when all are side by side in one buffer.
//!
//! A part asks a [`Layout`] for its tensors when it is built and keeps their [`TensorId`]s; the elements themselves are handed in
//! with each call. In a training parameters, gradients and moments are such buffers: an optimiser is one loop over one slice, and a
//! gradient is summed over micro-batches by not clearing it.

use crate::float::Float;
use crate::random::Draws;
use std::collections::HashMap;
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

/// A tensor of a [`Layout`]: what layers keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId(u32);

impl TensorId {
    /// Its place in the layout.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The tensors of a model, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Layout {
    entries: Vec<Entry>,
    numbers: HashMap<String, u32>,
    prefix: Vec<String>,
}

impl Layout {
    /// No tensors yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Add a tensor, or find the one of that name: parts with the same names share their tensors.
    ///
    /// # Panics
    /// When the name is taken by a tensor of another shape.
    pub fn add(&mut self, name: &str, shape: &[usize], init: Init, decay: bool) -> TensorId {
        let name = self.prefix.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
        if let Some(&number) = self.numbers.get(&name) {
            assert_eq!(self.entries[number as usize].shape, shape, "{name} has two shapes");
            return TensorId(number);
        }
        let (start, len) = (self.len(), shape.iter().product::<usize>());
        let number = u32::try_from(self.entries.len()).expect("fewer than 2^32 tensors");
        self.numbers.insert(name.clone(), number);
        self.entries.push(Entry { name, shape: shape.to_vec(), range: start..start + len, init, decay });
        TensorId(number)
    }

    /// One of its tensors.
    pub fn entry(&self, id: TensorId) -> &Entry {
        &self.entries[id.index()]
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

/// Gradients of all tensors side by side, reached by tensor; or none, where only those of activations are wanted.
#[derive(Debug)]
pub struct Gradients<'g, T> {
    wanted: Option<(&'g Layout, &'g mut [T])>,
}

impl<'g, T> Gradients<'g, T> {
    /// A buffer as long as the layout.
    ///
    /// # Panics
    /// When it has another length.
    pub fn new(layout: &'g Layout, buffer: &'g mut [T]) -> Self {
        assert_eq!(layout.len(), buffer.len(), "gradients have the layout of the parameters");
        Self { wanted: Some((layout, buffer)) }
    }

    /// Weights are constant: only gradients of activations are computed.
    pub fn of_activations() -> Self {
        Self { wanted: None }
    }

    /// Gradients of tensors are wanted.
    pub fn are_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    fn parts(&mut self) -> (&Layout, &mut [T]) {
        let (layout, buffer) = self.wanted.as_mut().expect("asked for only where gradients of tensors are wanted");
        (layout, buffer)
    }

    /// The gradient of one tensor, to be added to.
    ///
    /// # Panics
    /// When gradients of tensors are not wanted.
    pub fn of(&mut self, id: TensorId) -> &mut [T] {
        let (layout, buffer) = self.parts();
        &mut buffer[layout.entry(id).range.clone()]
    }

    /// Those of two different tensors.
    ///
    /// # Panics
    /// When they are the same, or not wanted.
    pub fn both(&mut self, a: TensorId, b: TensorId) -> (&mut [T], &mut [T]) {
        let (layout, buffer) = self.parts();
        let ranges = [a, b].map(|id| layout.entry(id).range.clone());
        let [a, b] = buffer.get_disjoint_mut(ranges).expect("two tensors of one layout do not overlap");
        (a, b)
    }
}
