//! Attention over several machines, with the bits of one: for any number of ranks, and any partition of the tokens.
//!
//! A row of attention is a sum over spans of keys in their order, and the gradients of a key are sums over tiles of queries in theirs (see
//! the architecture of `regard`). So no results are merged: queries stay on their rank and **keys arrive in key order**; backward, **the
//! running sums of dk and dv travel in query order**. The [`Partition`] of the tokens decides the speed, never the bits. An [`Exchange`]
//! carries the messages.
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
//! [`Rows`] needs no other machines: keys are given in pieces, from files that are larger than memory or pages of a cache.
//! [`regard::merge`] merges finished results, as ring attention does; its bits depend on where the keys were cut.
#![warn(missing_docs)]

mod backward;
mod comm;
mod decode;
mod distributed;
mod error;
mod exchange;
pub mod files;
mod forward;
#[cfg(any(test, feature = "mpi"))]
mod framing;
mod heat_map;
mod in_flight;
mod local;
#[cfg(feature = "mpi")]
mod mpi_exchange;
mod npy;
mod option_gradients;
mod partition;
pub mod plan;
mod resumable;
mod routes;
mod stream;
mod sub_comm;
mod temp_files;

pub use comm::Comm;
pub use distributed::Distributed;
pub use error::{Error, Failure, Result};
pub use exchange::{Exchange, Kind, Tag, WireElement};
pub use local::{Faults, Local};
#[cfg(feature = "mpi")]
pub use mpi_exchange::Mpi;
pub use npy::Npy;
pub use partition::{Block, Partition};
pub use resumable::{InPieces, Rows};
pub use sub_comm::{SingleRank, SubComm};
pub use temp_files::TempFiles;
