//! Thread pools.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::sync::{Arc, Mutex, PoisonError};

/// Pools kept for later calls: alternating between two sizes starts no thread twice, and trying all sizes keeps two pools.
const KEPT: usize = 2;

/// Run `f` where rayon's iterators use `threads` threads: a pool of that size, kept for later calls, or the pool that
/// the caller is in when no number is given. One thread is the caller's own.
///
/// # Errors
/// When the system starts no more threads.
pub fn install<R: Send>(threads: Option<usize>, f: impl FnOnce() -> R + Send) -> Result<R, ThreadPoolBuildError> {
    match threads {
        None => Ok(f()),
        Some(n) if n == rayon::current_num_threads() && rayon::current_thread_index().is_some() => Ok(f()),
        Some(n) => Ok(pool(n)?.install(f)),
    }
}

fn pool(threads: usize) -> Result<Arc<ThreadPool>, ThreadPoolBuildError> {
    /// The one used last is the last.
    static POOLS: Mutex<Vec<Arc<ThreadPool>>> = Mutex::new(Vec::new());
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = match pools.iter().position(|p| p.current_num_threads() == threads) {
        Some(at) => pools.remove(at),
        None => Arc::new(ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("regard-{i}")).build()?),
    };
    pools.push(Arc::clone(&pool));
    // The threads of a pool end when its last call has: outside of the lock, they may take a while.
    let old = if pools.len() > KEPT { Some(pools.remove(0)) } else { None };
    drop(pools);
    drop(old);
    Ok(pool)
}
