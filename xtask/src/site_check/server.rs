//! A plain static server, which counts what it sends.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    missing: Mutex<Vec<String>>,
    stopped: AtomicBool,
}

impl Counts {
    fn missing(&self) -> MutexGuard<'_, Vec<String>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server; it ends with [`Static::stop`] or with the program.
pub(super) struct Static {
    port: u16,
    counts: Arc<Counts>,
}

impl Static {
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
        let server = Self { port: listener.local_addr()?.port(), counts: Arc::default() };
        let (folder, counts) = (folder.to_owned(), server.counts.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if counts.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (folder, counts) = (folder.clone(), counts.clone());
                std::thread::spawn(move || {
                    let _ = respond(stream, &folder, &counts);
                });
            }
        });
        Ok(server)
    }

    pub(super) fn origin(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Bytes of all answers until now.
    pub(super) fn sent(&self) -> u64 {
        self.counts.sent.load(Ordering::SeqCst)
    }

    /// Paths that were asked for and are not there.
    pub(super) fn missing(&self) -> Vec<String> {
        self.counts.missing().clone()
    }

    pub(super) fn stop(&self) {
        self.counts.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn respond(mut stream: TcpStream, folder: &Path, counts: &Counts) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("/").split(['?', '#']).next().unwrap_or("/").trim_start_matches('/').to_owned();
    let file = folder.join(if path.is_empty() || path.ends_with('/') { format!("{path}index.html") } else { path.clone() });
    let kind = match file.extension().and_then(|e| e.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    let inside = !path.split('/').any(|part| part == "..");
    let (status, body) = match std::fs::read(file) {
        Ok(body) if inside => ("200 OK", body),
        _ => {
            counts.missing().push(path);
            ("404 Not Found", b"not found".to_vec())
        }
    };
    counts.sent.fetch_add(body.len() as u64, Ordering::SeqCst);
    write!(stream, "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}
