//! Attention over several machines, with the bits of one: for any number of ranks, and however tokens are shared out among them.
//!
//! A row of attention is a sum over spans of keys in their order, and the gradients of a key are sums over tiles of queries in theirs (see the
//! architecture of `regard`). So no results are merged: queries stay put and **keys arrive in key order**; backward, **the running sums of dk and dv travel in
//! query order**. [`Partition`] says which tokens a rank has: a choice of speed, never of bits. [`Exchange`] carries the messages.
//!
//! ```
//! use ndarray::Array4;
//! use regard::Attention;
//! use regard_dist::{Distributed, Local, Partition};
//!
//! let x = Array4::from_shape_fn((1, 2, 700, 8), |(_, h, i, d)| ((h + i * d) as f32).sin());
//! let attention = Attention::new().causal();
//! let partition = Partition::snake(700, 2, 256)?;
//! let parts = Local::run(2, |exchange| {
//!     let mine = partition.shard(exchange.rank(), x.view());
//!     Distributed::new(&attention, &exchange, &partition).forward_saved(mine.view(), mine.view(), mine.view())
//! });
//! let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
//! let out = partition.join(&parts.iter().map(|part| part.out.view()).collect::<Vec<_>>());
//! assert_eq!(out, attention.forward(&x, &x, &x)?.out);
//! # Ok::<(), regard_dist::Error>(())
//! ```
//!
//! [`Rows`] is the same without other machines: keys that come in pieces, out of files that are larger than memory or pages of a cache. [`regard::merge`]
//! joins finished results, as others do; its bits depend on where the keys were cut.

mod backward;
mod decode;
mod error;
mod exchange;
pub mod files;
mod forward;
mod heat_map;
mod local;
mod members;
mod npy;
mod partition;
pub mod plan;
mod rows;
mod stream;
mod unfinished;
mod ways;

pub use error::{Error, Failure, Result};
pub use exchange::{Exchange, Kind, Number, Tag, Talk};
pub use forward::Distributed;
pub use local::{Faults, Local};
pub use members::{Alone, Members};
pub use npy::Npy;
pub use partition::Partition;
pub use rows::{InPieces, Rows};
pub use unfinished::Unfinished;
