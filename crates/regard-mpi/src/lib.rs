//! Ranks that are MPI processes: an `Exchange` for `regard_dist::Distributed`.
//!
//! ```ignore
//! # use ndarray::Array4;
//! use regard::Attention;
//! use regard_dist::{Distributed, Exchange, Partition};
//! let mpi = regard_mpi::Mpi::start(std::time::Duration::from_secs(60)).expect("it is started once");
//! let partition = Partition::snake(1 << 20, mpi.ranks(), 2048)?;
//! # let mine = Array4::<f32>::zeros((1, 1, partition.count(mpi.rank()), 64));
//! let attention = Attention::new().causal();
//! let saved = Distributed::new(&attention, &mpi, &partition).forward_saved(mine.view(), mine.view(), mine.view())?;
//! # Ok::<(), regard_dist::Error>(())
//! ```
//!
//! Without the feature `mpi` there is nothing in this crate: it needs an MPI library with its headers, which an ordinary build must not.

#![forbid(unsafe_code)]

#[cfg(feature = "mpi")]
mod exchange;

#[cfg(feature = "mpi")]
pub use exchange::Mpi;
