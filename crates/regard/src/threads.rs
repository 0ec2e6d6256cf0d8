//! Threads: how many, and where from.

use crate::error::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Run `f` where rayon's iterators use `threads` threads: a pool of that size, kept for later calls, or the pool that
/// the caller is in when no number is given. One thread is the caller's own.
pub(crate) fn install<R: Send>(threads: Option<usize>, f: impl FnOnce() -> R + Send) -> Result<R> {
    match threads {
        None => Ok(f()),
        Some(n) if n == rayon::current_num_threads() && rayon::current_thread_index().is_some() => Ok(f()),
        Some(n) => Ok(pool(n)?.install(f)),
    }
}

fn pool(threads: usize) -> Result<Arc<ThreadPool>> {
    static POOLS: Mutex<BTreeMap<usize, Arc<ThreadPool>>> = Mutex::new(BTreeMap::new());
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(&threads) {
        return Ok(Arc::clone(pool));
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("regard-{i}"))
        .build()
        .map_err(|e| Error::Threads { threads, reason: e.to_string() })?;
    let pool = Arc::new(pool);
    pools.insert(threads, Arc::clone(&pool));
    Ok(pool)
}
