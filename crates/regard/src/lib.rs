//! Exact scaled dot-product attention for CPUs.
//!
//! ```text
//! out = softmax(q k^T / sqrt(head_dim) + bias, where the mask allows) v
//! ```

mod attention;
mod bias;
mod block;
mod decode;
mod element;
mod error;
mod forward;
mod maps;
mod mask;
mod online_softmax;
mod product;
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
pub use bias::{Bias, alibi_slopes};
pub use element::Element;
pub use error::{Error, Result, Shape4};
pub use forward::Forward;
pub use maps::{HeadSimilarity, HeatMap};
pub use mask::{Mask, MaskRule, Place, TileCoverage};
pub use online_softmax::merge;
pub use score::Stage;
pub use simd::{Level, Real};
pub use stats::{HeadStats, RowStats, StatsOptions};
