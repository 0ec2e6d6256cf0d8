//! Exact scaled dot-product attention for CPUs: any mask, streaming statistics, bits that do not move.
//!
//! ```text
//! out = softmax(q k^T / sqrt(head_dim) + bias, where the mask allows) v
//! ```
//!
//! ```
//! use ndarray::Array4;
//! use regard::Attention;
//!
//! let q = Array4::<f32>::from_shape_fn((1, 8, 256, 64), |(_, h, i, d)| ((h + i * d) as f32).sin());
//! let k = Array4::<f32>::from_shape_fn((1, 2, 256, 64), |(_, h, j, d)| ((h + j + d) as f32).cos());
//! let v = k.clone();
//!
//! let result = Attention::new().causal().forward(&q, &k, &v)?;
//! assert_eq!(result.out.shape(), [1, 8, 256, 64]);
//! # Ok::<(), regard::Error>(())
//! ```
//!
//! # What it promises
//!
//! 1. **Exact**: a running softmax over tiles, never an approximation; judged by a textbook in f64 that shares no code with it.
//! 2. **Linear memory**: no `seq_q x seq_kv` buffer, except in [`Attention::weights`] and [`Attention::scores`].
//! 3. **Hidden means hidden**: a masked key never contributes, not even when it is NaN or infinite. A row without any visible
//!    key is exactly zero, with `lse = -inf`. A visible NaN propagates.
//! 4. **Bits that do not move**: a row's result depends on that row, its keys and its mask alone. Not on the number of threads, nor on
//!    what else is in the batch, nor on the other rows of the call (a query decoded alone equals the same query in a prefill), nor on
//!    whether AVX2 or AVX-512 ran it.
//! 5. **Checked once**: shapes, lengths and values are validated before any work; an [`Error`] names the operand and
//!    quotes both shapes.
//!
//! # The order of things
//!
//! `q.k * scale -> softcap -> + bias -> masks -> top-k -> softmax (with sink) -> dropout -> @ v`. Tensors are `[batch, head, seq, dim]`
//! views with any strides, of f32 or f64, or of f16 or bf16 with f32 arithmetic. Query head `h` reads key/value head `h / (heads_q /
//! heads_kv)`.
//!
//! # Gradients
//!
//! [`Attention::forward_saved`] keeps what [`Attention::backward`] needs: the result and two values per row. Every option of the forward
//! pass has its gradient, in linear memory: masks, bias (in its own broadcast shape), softcap, sinks, top-k, dropout, grouped heads. The
//! order of every sum is fixed there too; what a gradient's bits depend on is the head, not the batch or the threads.

#![warn(missing_docs)]
#![deny(clippy::too_many_arguments)]

mod arrays;
mod backward;
mod bias;
mod api;
mod error;
mod forward;
mod instruments;
mod mask;
mod plan;
mod mainloop;

/// Sizes that decide the order of sums, for callers that share a call among several: pieces that end at these bounds have the bits of one
/// call.
pub mod tiling {
    pub use crate::mainloop::tiling::{GRADIENT_SPLIT, KV_SPLIT, Q_TILE, tile_queries};
}

pub use api::{CacheView, Element, Finished, PartInputs, PartSums, RunningAttention, View};
pub use backward::{GradientStats, Gradients, GradientsViewMut, OptionGradients};
pub use bias::{Bias, BiasGradient, alibi_slopes};
pub use error::{Error, Result, Shape4};
pub use forward::{Forward, Saved, SavedView, SavedViewMut, merge};
pub use instruments::{
    HeadSimilarity, HeadStats, HeatMap, HeatMapCells, HeatMapState, Rectangle, RowStats, SoftmaxDenominators, StatsOptions, stats,
};
pub use mainloop::scores::Stage;
pub use mask::{HeadPosition, Mask, MaskRule, TileCoverage};
pub use plan::{Attention, CuSeqlens, GlobalOffset, Scale};
pub use regard_simd::allocator::CachingAllocator;
pub use regard_simd::compressed::{Q8Block, q8_blocks};
pub use regard_simd::{Level, MappedFile, Real, Storage, matmul, random};
