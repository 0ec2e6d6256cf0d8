//! Tensors by name: how they are laid out in a training's buffer, what elements they are made of, and where they come from.

pub mod blocks;
pub mod layout;
pub mod numbers;
pub mod source;
pub mod weights;

pub use blocks::BlockKind;
pub use layout::{Gradients, Init, Layout, TensorId};
pub use numbers::{Blocks, Numbers};
pub use source::{Buffer, Renamed, SafetensorsFile, Shards, Source, Tensor};
pub use weights::{Matrix, Order, Weights};
