//! How many threads a call uses: what it asks for, else the default of the process.
//!
//! Worker threads do not survive a fork. A child process that was forked after the workers were started computes on its
//! own thread; the results are the same bits.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// 0: all there are.
static DEFAULT: AtomicUsize = AtomicUsize::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);
static ORPHANED: AtomicBool = AtomicBool::new(false);

/// The number to hand to the library; `None` is all there are.
pub(crate) fn choose(asked: Option<usize>) -> Option<usize> {
    if ORPHANED.load(Relaxed) {
        return Some(1);
    }
    let threads = asked.or_else(_chosen_num_threads);
    if threads != Some(1) {
        STARTED.store(true, Relaxed);
    }
    threads
}

pub(crate) fn at_least_one(name: &str, threads: i64) -> PyResult<usize> {
    match usize::try_from(threads) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(PyValueError::new_err(format!("{name} is {threads}; it must be at least 1"))),
    }
}

/// Set how many threads calls use that do not say ``threads=``; None is the default again, all of the machine's. Results do not depend on it,
/// not even in the last bit.
///
/// >>> import regard
/// >>> before = regard.get_num_threads()
/// >>> regard.set_num_threads(2)
/// >>> regard.get_num_threads()
/// 2
/// >>> regard.set_num_threads(before)
#[pyfunction]
#[pyo3(signature = (n))]
pub(crate) fn set_num_threads(n: Option<i64>) -> PyResult<()> {
    DEFAULT.store(n.map_or(Ok(0), |n| at_least_one("n", n))?, Relaxed);
    Ok(())
}

/// How many threads calls use that do not say ``threads=``: all of the machine's unless
/// :func:`set_num_threads` has set another number.
///
/// >>> import regard
/// >>> regard.get_num_threads() >= 1
/// True
#[pyfunction]
pub(crate) fn get_num_threads() -> usize {
    choose(None).unwrap_or_else(rayon::current_num_threads)
}

/// The number that :func:`set_num_threads` has set; None where it was not called.
#[pyfunction]
pub(crate) fn _chosen_num_threads() -> Option<usize> {
    Some(DEFAULT.load(Relaxed)).filter(|&n| n != 0)
}

#[pyfunction]
fn after_fork_in_child() {
    ORPHANED.store(STARTED.load(Relaxed), Relaxed);
}

/// Work that uses a pool of threads: as many as were chosen. After a fork the pool of all is the parent's, whose threads are not here: then one of its
/// own, too.
pub(crate) fn pooled<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let threads = _chosen_num_threads();
    if threads.is_none() && !ORPHANED.load(Relaxed) {
        STARTED.store(true, Relaxed);
        return work();
    }
    match rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build() {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}

/// Be told of forks, on systems that have them.
pub(crate) fn watch_forks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let os = py.import("os")?;
    if os.hasattr("register_at_fork")? {
        let keywords = pyo3::types::PyDict::new(py);
        keywords.set_item("after_in_child", wrap_pyfunction!(after_fork_in_child, module)?)?;
        os.call_method("register_at_fork", (), Some(&keywords))?;
    }
    Ok(())
}
