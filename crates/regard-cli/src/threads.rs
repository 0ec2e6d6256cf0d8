//! The thread pool of the process.

use anyhow::{Context, Result};
use rayon::{ThreadBuilder, ThreadPoolBuilder};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Threads that are left to others, such as the one that waits for Ctrl-C, where the system does not start all that were wanted.
const SPARE: usize = 2;

/// Start the pool that all parallel loops use: `threads` of them, or an error; without a number one per core, or as many as the system
/// starts. Returned is a note about threads that are missing.
///
/// Rayon's own start of the pool panics where a thread is missing, and cannot be tried twice: so the threads are started first, and then
/// given to it.
pub(crate) fn start_pool(threads: Option<usize>) -> Result<Option<String>> {
    let wanted = threads.unwrap_or_else(default_threads);
    let mut started = Vec::new();
    let failure = (0..wanted).find_map(|_| waiting_thread().map(|thread| started.push(thread)).err());
    let mut note = None;
    if let Some(reason) = failure {
        if threads.is_some() || started.is_empty() {
            let count = if wanted == 1 { "1 thread".to_owned() } else { format!("{wanted} threads") };
            return Err(anyhow::Error::new(reason).context(format!(
                "cannot start {count}: the system starts {}; give --threads, or allow this user more processes (ulimit -u)",
                started.len()
            )));
        }
        for (hand_over, thread) in started.split_off(started.len().saturating_sub(SPARE).max(1)) {
            drop(hand_over);
            let _ = thread.join();
        }
        note = Some(format!("using {} of {wanted} threads, as the system starts no more ({reason})", started.len()));
    }
    let count = started.len();
    let mut waiting = started.into_iter();
    let built = ThreadPoolBuilder::new()
        .num_threads(count)
        .spawn_handler(|thread| {
            let (hand_over, _) = waiting.next().ok_or(std::io::ErrorKind::WouldBlock)?;
            hand_over.send(thread).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
        })
        .build_global();
    // A process that has its pool already, as within Python, cannot change its size.
    if threads.is_some_and(|threads| threads != rayon::current_num_threads()) {
        built.context("cannot change the number of threads of a running process")?;
    }
    Ok(note)
}

/// What rayon starts by itself.
fn default_threads() -> usize {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok()).filter(|&threads| threads > 0);
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    number("RAYON_NUM_THREADS").or_else(|| number("RAYON_RS_NUM_CPUS")).unwrap_or_else(cores)
}

/// A thread that does the work which is handed over to it, or ends when nothing is.
fn waiting_thread() -> std::io::Result<(Sender<ThreadBuilder>, JoinHandle<()>)> {
    let (hand_over, work) = channel::<ThreadBuilder>();
    let thread = std::thread::Builder::new().spawn(move || {
        if let Ok(work) = work.recv() {
            work.run();
        }
    })?;
    Ok((hand_over, thread))
}
