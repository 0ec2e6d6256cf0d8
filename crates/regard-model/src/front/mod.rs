//! Front ends: rows for an encoder of sound or of images, where others have a table of tokens.
//!
//! ```text
//! sound     log-mel frames -> two convolutions of three frames, the second every other frame -> + positions
//! image     patches -> a layer -> after a row of the class -> + positions
//! ```
//!
//! A convolution is a product: the elements that it reads at one place are one row.

pub mod image;
pub mod sound;

use crate::error::{Error, Result};
use ndarray::{ArrayView2, ArrayView3};
use regard_nn::layers::activation::Activation;
use regard_nn::layers::linear::Linear;
use regard_nn::tensors::layout::{Init, Layout, TensorId};
use regard_nn::tensors::{Order, Weights};

/// What a front end reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Log-mel frames, of which the encoder gets one for two.
    Sound {
        /// Numbers per frame.
        mels: usize,
        /// Rows of the encoder.
        frames: usize,
    },
    /// A square image.
    Image {
        /// Colours.
        channels: usize,
        /// Pixels of a side.
        side: usize,
        /// Pixels of a patch's side.
        patch: usize,
    },
}

impl Front {
    /// Rows that the encoder gets.
    pub fn rows(self) -> usize {
        match self {
            Self::Sound { frames, .. } => frames,
            Self::Image { side, patch, .. } => 1 + (side / patch).pow(2),
        }
    }
}

impl Front {
    /// A row for people.
    pub(crate) fn piece(self, row: usize) -> String {
        match self {
            Self::Sound { .. } => format!("{:.2}s", row as f64 * sound::SECONDS_PER_ROW),
            Self::Image { .. } if row == 0 => "class".to_owned(),
            Self::Image { side, patch, .. } => {
                let per_side = (side / patch).max(1);
                format!("{},{}", (row - 1) / per_side, (row - 1) % per_side)
            }
        }
    }
}

/// Frames that a convolution reads.
const KERNEL: usize = 3;

/// The layers of a front end.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    pub(crate) kind: Front,
    layout: Layout,
    layers: Vec<Linear>,
    /// The row of the class, of images.
    class: Option<TensorId>,
    positions: TensorId,
    width: usize,
}

impl FrontEnd {
    pub(crate) fn new(kind: Front, width: usize) -> Self {
        let mut layout = Layout::new();
        let mut layer = |name: &str, inputs: usize| Linear::with_order(&mut layout, name, inputs, width, true, Order::OutIn);
        let layers = match kind {
            Front::Sound { mels, .. } => vec![layer("conv1", KERNEL * mels), layer("conv2", KERNEL * width)],
            Front::Image { channels, patch, .. } => vec![layer("patches", channels * patch * patch)],
        };
        let mut table = |name: &str, rows: usize| layout.within(name, |l| l.add("table", &[rows, width], Init::Zero, false));
        let class = matches!(kind, Front::Image { .. }).then(|| table("class", 1));
        let positions = table("frames", kind.rows());
        Self { kind, layout, layers, class, positions, width }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Add the positions.
    fn placed(&self, w: &Weights<'_, f32>, mut rows: Vec<f32>) -> Vec<f32> {
        let positions = w.matrix(self.positions, self.width, self.kind.rows(), Order::OutIn);
        let mut place = vec![0f32; self.width];
        for (number, row) in rows.chunks_exact_mut(self.width).enumerate() {
            positions.line(number, &mut place);
            row.iter_mut().zip(&place).for_each(|(x, p)| *x += p);
        }
        rows
    }

    /// Rows of log-mel frames `[mels, frames]`.
    ///
    /// # Errors
    /// When there are not as many as the model reads, or one is not finite.
    pub(crate) fn sound(&self, w: &Weights<'_, f32>, features: ArrayView2<'_, f32>) -> Result<Vec<f32>> {
        let Front::Sound { mels, frames } = self.kind else { return Err(other("an image")) };
        if features.dim() != (mels, 2 * frames) {
            let reason = format!("features have the shape {:?}; the model reads {:?}", features.dim(), (mels, 2 * frames));
            return Err(Error::Tokens { reason });
        }
        finite(features.iter())?;
        let mut rows: Vec<f32> = features.t().iter().copied().collect();
        for (layer, stride) in self.layers.iter().zip([1, 2]) {
            rows = convolved(w, layer, &rows, stride);
        }
        Ok(self.placed(w, rows))
    }

    /// Rows of an image's pixels `[channels, height, width]`, which are normalised as the model was trained.
    ///
    /// # Errors
    /// When it has another size, or a pixel is not finite.
    pub(crate) fn image(&self, w: &Weights<'_, f32>, pixels: ArrayView3<'_, f32>) -> Result<Vec<f32>> {
        let (Front::Image { channels, side, patch }, Some(class)) = (self.kind, self.class) else { return Err(other("sound")) };
        if pixels.dim() != (channels, side, side) {
            let reason = format!("the image has the shape {:?}; the model reads {:?}", pixels.dim(), (channels, side, side));
            return Err(Error::Tokens { reason });
        }
        finite(pixels.iter())?;
        let (per_side, size) = (side / patch, channels * patch * patch);
        let mut patches = Vec::with_capacity(per_side * per_side * size);
        for (y, x) in (0..per_side).flat_map(|y| (0..per_side).map(move |x| (y, x))) {
            let at = |start: usize| ndarray::Slice::from(start * patch..(start + 1) * patch);
            let patch = pixels.slice_axis(ndarray::Axis(1), at(y));
            patches.extend(patch.slice_axis(ndarray::Axis(2), at(x)).iter());
        }
        let mut rows = vec![0f32; self.kind.rows() * self.width];
        let (first, others) = rows.split_at_mut(self.width);
        w.matrix(class, self.width, 1, Order::OutIn).line(0, first);
        self.layers[0].forward(w, &patches, others);
        Ok(self.placed(w, rows))
    }
}

fn other(what: &str) -> Error {
    Error::Tokens { reason: format!("the model reads {what}; give that instead") }
}

fn finite<'x>(mut numbers: impl Iterator<Item = &'x f32>) -> Result<()> {
    match numbers.find(|x| !x.is_finite()) {
        Some(x) => Err(Error::Tokens { reason: format!("the input has the number {x}; all must be finite") }),
        None => Ok(()),
    }
}

/// GELU of a convolution of three rows, zeros beyond both ends.
fn convolved(w: &Weights<'_, f32>, layer: &Linear, rows: &[f32], stride: usize) -> Vec<f32> {
    let inputs = layer.inputs() / KERNEL;
    let count = rows.len() / inputs.max(1);
    let out = count.div_ceil(stride);
    let mut read = vec![0f32; out * layer.inputs()];
    for (place, read) in read.chunks_exact_mut(layer.inputs()).enumerate() {
        for tap in 0..KERNEL {
            let Some(row) = (place * stride + tap).checked_sub(1).filter(|row| *row < count) else { continue };
            let from = &rows[row * inputs..(row + 1) * inputs];
            read[tap..].iter_mut().step_by(KERNEL).zip(from).for_each(|(to, x)| *to = *x);
        }
    }
    let mut inner = vec![0f32; out * layer.outputs()];
    let mut act = inner.clone();
    layer.forward(w, &read, &mut inner);
    Activation::Gelu.apply(None, &mut inner, &mut act);
    act
}
