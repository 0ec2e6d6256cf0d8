//! Calls into the library: without the GIL, and such that Ctrl-C ends a long one.
//!
//! Python's signal handlers run on the main thread, when it asks for them. A long call therefore works on a thread of its own, while this one asks
//! every [`PATIENCE`]; a handler that raises sets the flag that the library looks at between tiles. A short call is simply made.

use crate::parse::refused;
use crate::settings::Settings;
use pyo3::prelude::*;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How long a signal may wait.
const PATIENCE: Duration = Duration::from_millis(50);

/// Multiply-adds of a call that is worth a thread: ten milliseconds of a fast core, where the thread costs some ten microseconds.
const LONG: usize = 1 << 29;

/// Make a call of about `work` multiply-adds, with an attention made of `settings`.
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
    py.detach(|| {
        thread::scope(|scope| {
            let (done, finished) = channel::<()>();
            let worker = thread::Builder::new().name("regard-call".to_owned()).spawn_scoped(scope, move || {
                // Dropped at the end, also by a panic.
                let _done = done;
                call()
            });
            let worker = worker.map_err(|error| {
                let text = format!("no thread for the call: {error}");
                pyo3::exceptions::PyRuntimeError::new_err(text)
            })?;
            let mut raised = None;
            while let Err(RecvTimeoutError::Timeout) = finished.recv_timeout(PATIENCE) {
                if raised.is_none()
                    && let Err(error) = Python::attach(|py| py.check_signals())
                {
                    flag.store(true, Relaxed);
                    raised = Some(error);
                }
            }
            let result = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            raised.map_or_else(|| result.map_err(refused), Err)
        })
    })
}
