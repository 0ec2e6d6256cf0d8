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
//! 1. **Exact**: a running softmax over tiles, never an approximation; [`reference`] is the definition, in f64.
//! 2. **Linear memory**: no `seq_q x seq_kv` buffer, unless [`Attention::weights`] or [`Attention::scores`] is asked for one.
//! 3. **Hidden means hidden**: a masked key never contributes, not even when it is NaN or infinite. A row without any visible
//!    key is exactly zero, with `lse = -inf`. A visible NaN propagates.
//! 4. **Bits that do not move**: a row's result depends on that row, its keys and its mask alone. Not on the number of threads, nor on
//!    what else is in the batch, nor on the other rows of the call (a query decoded alone equals the same query in a prefill), nor on
//!    whether AVX2 or AVX-512 ran it.
//! 5. **Checked once**: shapes, lengths and numbers are validated before any work; an [`Error`] names the operand and
//!    quotes both shapes.
//!
//! # The order of things
//!
//! `q.k * scale -> softcap -> + bias -> masks -> top-k -> softmax (with sink) -> dropout -> @ v`. Tensors are `[batch, head, seq, dim]` views with any
//! strides, of f32 or f64, or of f16 or bf16 with f32 arithmetic. Query head `h` reads key/value head `h / (heads_q / heads_kv)`.
//!
//! # Gradients
//!
//! [`Attention::forward_saved`] keeps what [`Attention::backward`] needs: the result and two numbers per row. Every option of the forward pass
//! has its gradient, in linear memory: masks, bias (in its own broadcast shape), softcap, sinks, top-k, dropout, grouped heads. The order of every
//! sum is fixed there too; what a gradient's bits depend on is the head, not the batch or the threads.
//!

mod attention;
mod backward;
mod bias;
mod bias_gradient;
mod block;
mod calls;
mod ceiling;
mod decode;
mod dense_mask;
mod dropout;
mod element;
mod error;
mod forward;
mod gradient;
mod gradient_kernels;
mod maps;
mod mask;
pub mod matmul;
mod online_softmax;
mod philox;
mod product;
pub mod random;
mod recycling;
pub mod reference;
mod rows;
mod score;
mod scratch;
mod simd;
pub mod stats;
mod threads;
mod top_k;
mod weights;

pub use attention::{Attention, Scale};
pub use backward::{GradientStats, Gradients};
pub use bias::{Bias, alibi_slopes};
pub use bias_gradient::BiasGradient;
pub use ceiling::ceiling;
pub use element::Element;
pub use error::{Error, Result, Shape4};
pub use forward::{Forward, Saved, SavedView};
pub use maps::{HeadSimilarity, HeatMap};
pub use mask::{Mask, MaskRule, Place, TileCoverage};
pub use online_softmax::merge;
pub use recycling::Recycling;
pub use score::Stage;
pub use simd::{Level, Real};
pub use stats::{HeadStats, RowStats, StatsOptions};
