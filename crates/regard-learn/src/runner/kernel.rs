//! The process behind `regard judge`: a Python harness of its own, or one that runs already.

use super::process::{Launch, Process};
use super::{frame, printable, python, system};
use crate::error::{Error, Result};
use crate::kernels::Failure;
use serde_json::{Value as Json, json};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A call ends when its processor time and its time exceed the limit, or its time this multiple of it.
const MOST_PATIENT: u32 = 10;
/// How often processor time is read.
const LOOK: Duration = Duration::from_millis(200);

/// A Python program that serves calls.
pub(crate) struct PythonHarness<'a> {
    pub(crate) python: Option<&'a Path>,
    pub(crate) text: &'static str,
}

enum Other {
    Child(Box<Process>),
    /// A harness in the process that called this one.
    Attached(system::LocalStream, Vec<u8>),
}

/// A harness that answers requests.
pub(crate) struct HarnessProcess<'a> {
    other: Other,
    stop: &'a AtomicBool,
    next_id: u64,
}

type Answer = std::result::Result<(Json, Vec<u8>), Failure>;

impl<'a> HarnessProcess<'a> {
    pub(crate) fn start(harness: &PythonHarness<'_>, stop: &'a AtomicBool) -> Result<Self> {
        let launch = python::command(harness.python, python::Arrays::NumPy)?;
        let folder = std::env::current_dir().map_err(|reason| Error::Process { reason })?;
        // A kernel is its author's own program: it may compile itself, and write where compilers write.
        let launch = Launch { harness: Some(("judge_harness.py", harness.text)), confined: false, ..launch };
        let process = Process::start(launch, &folder)?;
        let mut started = Self { other: Other::Child(Box::new(process)), stop, next_id: 0 };
        started.wait(Duration::from_secs(60)).map_err(|failure| started.no_start(&failure))?;
        Ok(started)
    }

    pub(crate) fn attach(socket: &Path, stop: &'a AtomicBool) -> Result<Self> {
        let link = system::connect(socket).map_err(|reason| Error::file("read", socket, reason))?;
        link.set_read_timeout(Some(Duration::from_millis(20))).map_err(|reason| Error::Process { reason })?;
        let mut started = Self { other: Other::Attached(link, Vec::new()), stop, next_id: 0 };
        started.wait(Duration::from_secs(60)).map_err(|failure| started.no_start(&failure))?;
        Ok(started)
    }

    fn no_start(&mut self, failure: &Failure) -> Error {
        let program = match &self.other {
            Other::Child(process) => process.program().to_owned(),
            Other::Attached(..) => "Python".to_owned(),
        };
        match failure {
            Failure::Raised(text) if text.starts_with("no-numpy") => Error::NoNumpy { python: program, reason: text.clone() },
            other => Error::BadPython { python: program, reason: format!("{other:?}; {}", self.finish().join(" ")) },
        }
    }

    pub(crate) fn request(&mut self, mut header: Json, payload: &[u8], limit: Duration) -> Answer {
        self.next_id += 1;
        header["id"] = json!(self.next_id);
        let bytes = frame::pack(&header, payload);
        match &mut self.other {
            Other::Child(process) if process.alive() => process.send(&bytes),
            Other::Child(_) => return Err(Failure::Gone("the process has ended".to_owned())),
            // A broken link shows when the answer is read.
            Other::Attached(link, _) => drop(link.write_all(&bytes)),
        }
        self.wait(limit)
    }

    fn receive(&mut self) -> std::result::Result<Option<(Json, Vec<u8>)>, Failure> {
        match &mut self.other {
            Other::Child(process) => process.receive().map_err(|gone| Failure::Gone(gone.to_string())),
            Other::Attached(link, bytes) => {
                let mut buffer = vec![0; 1 << 16];
                match link.read(&mut buffer) {
                    Ok(0) => return Err(Failure::Gone("the connection is closed".to_owned())),
                    Ok(count) => bytes.extend(&buffer[..count]),
                    Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                    Err(e) => return Err(Failure::Gone(e.to_string())),
                }
                frame::unpack(bytes).map_err(Failure::Gone)
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> Answer {
        let (start, before, mut looked) = (Instant::now(), self.processor_time(), Instant::now());
        loop {
            if let Some((header, payload)) = self.receive()? {
                if header["id"] != json!(self.next_id) {
                    return Err(Failure::Gone("an answer to another call".to_owned()));
                }
                let Some(error) = header.get("error") else { return Ok((header, payload)) };
                let text = printable(error["text"].as_str().unwrap_or_default());
                return Err(match error["kind"].as_str() {
                    Some("refused") => Failure::Refused(text),
                    Some("shape") => Failure::Shape(text),
                    Some("no-numpy") => Failure::Raised(format!("no-numpy: {text}")),
                    _ => Failure::Raised(text),
                });
            }
            if self.stop.load(Ordering::Relaxed) {
                self.finish();
                return Err(Failure::Gone("stopped".to_owned()));
            }
            // On a busy machine a call takes longer than it computes.
            let elapsed = start.elapsed();
            if elapsed > limit && looked.elapsed() > LOOK {
                looked = Instant::now();
                let computed = self.processor_time().zip(before).map(|(now, before)| now.saturating_sub(before));
                if computed.is_none_or(|computed| computed > limit) || elapsed > MOST_PATIENT * limit {
                    self.finish();
                    return Err(Failure::Gone(format!("no answer after {} s", elapsed.as_secs())));
                }
            }
        }
    }

    fn processor_time(&self) -> Option<Duration> {
        match &self.other {
            Other::Child(process) => process.processor_time(),
            Other::Attached(..) => system::processor_time(std::process::id()),
        }
    }

    /// Ends it; what it printed.
    pub(crate) fn finish(&mut self) -> Vec<String> {
        match &mut self.other {
            Other::Child(process) => {
                process.end();
                process.prints().0
            }
            Other::Attached(link, _) => {
                let _ = link.write_all(&frame::pack(&json!({"id": 0, "call": "end"}), &[]));
                Vec::new()
            }
        }
    }
}
