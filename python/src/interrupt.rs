//! Calls into the library without the GIL; Ctrl-C ends long calls.
//!
//! Python's signal handlers run on the main thread, when it checks for signals. A long call therefore runs on its own thread, while this
//! one checks every [`POLL`]; a handler that raises sets the flag that the library reads between tiles. A short call runs on this thread.

use crate::parse::refused;
use crate::settings::Settings;
use pyo3::prelude::*;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Interval between checks for signals.
const POLL: Duration = Duration::from_millis(50);

/// Multiply-adds above which a call gets its own thread: 10 ms of a fast core, while a thread costs about 10 us.
const LONG: usize = 1 << 29;

/// Runs a call of about `work` multiply-adds, whose attention has the interrupt flag of `settings`.
pub(crate) fn run<R: Send>(
    py: Python<'_>,
    settings: &Settings<'_>,
    work: usize,
    call: impl FnOnce() -> regard::Result<R> + Send,
) -> PyResult<R> {
    if work < LONG {
        return py.detach(call).map_err(refused);
    }
    let flag = settings.flag();
    watched(py, || flag.store(true, Relaxed), call)?.map_err(refused)
}

/// Work on a thread of its own, while this one runs Python's signal handlers; after a handler that raises, `stop` is called once, and its
/// exception returned when the work has ended.
pub(crate) fn watched<R: Send>(py: Python<'_>, stop: impl Fn() + Send + Sync, work: impl FnOnce() -> R + Send) -> PyResult<R> {
    py.detach(|| {
        thread::scope(|scope| {
            let (done, finished) = channel::<()>();
            let worker = thread::Builder::new().name("regard-call".to_owned()).spawn_scoped(scope, move || {
                // Dropped at the end, also by a panic.
                let _done = done;
                work()
            });
            let worker = worker.map_err(|error| {
                let text = format!("cannot start a thread for the call: {error}");
                pyo3::exceptions::PyRuntimeError::new_err(text)
            })?;
            let mut raised = None;
            while let Err(RecvTimeoutError::Timeout) = finished.recv_timeout(POLL) {
                if raised.is_none()
                    && let Err(error) = Python::attach(|py| py.check_signals())
                {
                    stop();
                    raised = Some(error);
                }
            }
            let result = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            raised.map_or(Ok(result), Err)
        })
    })
}
