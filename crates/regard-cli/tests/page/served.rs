//! `regard serve` as a child.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub struct Served {
    pub child: Child,
    pub address: String,
    pub port: u16,
    pub token: String,
}

pub fn regard(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
    command.args(words).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// What a command says as JSON.
pub fn said(words: &[&str]) -> Value {
    let output = regard(words).output().expect("it runs");
    assert!(output.status.success(), "{words:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

impl Served {
    pub fn start(port: u16) -> Self {
        Self::with(&["serve", "--no-open", "--json", "--port", &port.to_string()], |command| command)
    }

    /// A server by this command line, in an environment of the caller's.
    pub fn with(words: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = regard(words);
        let mut child = change(&mut command).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says where it is");
        let said: Value = serde_json::from_str(&line).expect("JSON");
        let address = said["address"].as_str().expect("an address").to_owned();
        let (origin, token) = address.split_once("/#token=").expect("a token");
        let port = origin.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(80);
        Self { child, token: token.to_owned(), port, address }
    }

    /// Bytes sent as they are, and what comes back until the connection is closed.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a time");
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A request with headers of one's own; its status and its body.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut words = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            words.push_str(&format!("{name}: {value}\r\n"));
        }
        let answer = self.raw(format!("{words}\r\n{body}").as_bytes());
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, body.to_owned())
    }

    /// As the page asks.
    pub fn asked(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let host = format!("127.0.0.1:{}", self.port);
        let headers = [("host", host.as_str()), ("x-regard-token", &self.token), ("content-type", "application/json")];
        self.request(method, path, &headers, body)
    }

    /// Bytes that the process holds.
    pub fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
        line.trim().split(' ').next().and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) * 1024
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
