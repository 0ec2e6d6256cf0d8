//! Number of threads of a call: its argument, else the default of the process.
//!
//! Worker threads do not survive a fork. A child that was forked after the workers were started computes on one thread;
//! the results have the same bits.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Upper bound that catches typing errors: more threads than processors of any machine.
const MAX_THREADS: usize = 1024;

/// The variable that rayon reads when its global pool starts.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// 0: one thread per processor.
static DEFAULT: AtomicUsize = AtomicUsize::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);
static ORPHANED: AtomicBool = AtomicBool::new(false);

/// The number of threads for a call; `None` is the global pool of rayon.
pub(crate) fn choose(asked: Option<usize>) -> PyResult<Option<usize>> {
    if ORPHANED.load(Relaxed) {
        return Ok(Some(1));
    }
    let threads = asked.or_else(_chosen_num_threads);
    if threads.is_none() {
        check_variable()?;
    }
    if threads != Some(1) {
        STARTED.store(true, Relaxed);
    }
    Ok(threads)
}

/// A number of threads from Python, within the bounds.
pub(crate) fn in_bounds(name: &str, threads: i64) -> PyResult<usize> {
    match usize::try_from(threads) {
        Ok(n) if (1..=MAX_THREADS).contains(&n) => Ok(n),
        _ => Err(PyValueError::new_err(format!("{name} is {threads}; it must be from 1 to {MAX_THREADS}"))),
    }
}

/// Refuses a value of the environment variable that rayon would obey by starting that many threads.
/// Read once: rayon, too, reads it once.
pub(crate) fn check_variable() -> PyResult<()> {
    static CHECKED: OnceLock<Result<(), String>> = OnceLock::new();
    let check = || match std::env::var(VARIABLE).map(|value| value.parse::<usize>()) {
        Ok(Ok(n)) if n > MAX_THREADS => {
            Err(format!("{VARIABLE} is {n}; it must be at most {MAX_THREADS}: set it before Python starts, or call regard.set_num_threads"))
        }
        _ => Ok(()),
    };
    CHECKED.get_or_init(check).clone().map_err(PyValueError::new_err)
}

/// Set the number of threads (1 to 1024) of calls without ``threads=``; None restores the default, one per processor. Results do not
/// depend on it, bit for bit.
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
    DEFAULT.store(n.map_or(Ok(0), |n| in_bounds("n", n))?, Relaxed);
    Ok(())
}

/// The number of threads of calls without ``threads=``: one per processor, or what :func:`set_num_threads` has set.
///
/// >>> import regard
/// >>> regard.get_num_threads() >= 1
/// True
#[pyfunction]
pub(crate) fn get_num_threads() -> PyResult<usize> {
    Ok(choose(None)?.unwrap_or_else(rayon::current_num_threads))
}

/// The number that :func:`set_num_threads` has set; None by default.
#[pyfunction]
pub(crate) fn _chosen_num_threads() -> Option<usize> {
    Some(DEFAULT.load(Relaxed)).filter(|&n| n != 0)
}

#[pyfunction]
fn after_fork_in_child() {
    ORPHANED.store(STARTED.load(Relaxed), Relaxed);
}

/// Runs work of rayon in a pool of the chosen number of threads. After a fork the global pool has no threads, so a new pool is used.
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

/// Registers the fork handler, on systems that have forks.
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
