//! Runs a learner's file for the judge: reads calls from a socket, answers with arrays. Standard output stays the learner's.
//!
//! Compiled once, as a library: what is compiled for each answer is then the answer and a few lines.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

trait Link: Read + Write {}
impl<T: Read + Write> Link for T {}

/// The other end of the socket.
pub struct Judge {
    link: Box<dyn Link>,
    pid: u32,
}

impl Judge {
    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        if self.link.read_exact(&mut bytes).is_err() {
            std::process::exit(0);
        }
        bytes
    }

    pub fn receive(&mut self) -> (String, Vec<u8>) {
        let lengths = self.take(8);
        let size = |at: usize| u32::from_le_bytes([lengths[at], lengths[at + 1], lengths[at + 2], lengths[at + 3]]) as usize;
        (String::from_utf8(self.take(size(0))).unwrap_or_default(), self.take(size(4)))
    }

    pub fn send(&mut self, header: &str, payload: &[u8]) {
        if std::process::id() != self.pid {
            std::process::exit(0);
        }
        let mut bytes = Vec::with_capacity(8 + header.len() + payload.len());
        bytes.extend((header.len() as u32).to_le_bytes());
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(payload);
        if self.link.write_all(&bytes).is_err() {
            std::process::exit(3);
        }
    }
}

/// Whole numbers after `"key":`, alone or in brackets, from byte `from` on; and where they end.
fn wholes(header: &str, key: &str, from: usize) -> Option<(Vec<usize>, usize)> {
    let key = format!("\"{key}\":");
    let start = header[from..].find(&key)? + from + key.len();
    let rest = &header[start..];
    let end = if rest.starts_with('[') { rest.find(']')? + 1 } else { rest.find([',', '}'])? };
    let numbers = rest[..end].split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    Some((numbers, start + end))
}

/// The arguments, one after the other.
pub struct Args {
    sizes: Vec<usize>,
    payload: Vec<u8>,
    next: usize,
    at: usize,
}

impl Args {
    pub fn new(header: &str, payload: Vec<u8>) -> Self {
        let (mut sizes, mut from) = (Vec::new(), 0);
        while let Some((shape, end)) = wholes(header, "shape", from) {
            sizes.push(shape.iter().product());
            from = end;
        }
        Args { sizes, payload, next: 0, at: 0 }
    }

    fn take<const B: usize, T>(&mut self, read: impl Fn([u8; B]) -> T) -> Vec<T> {
        let count = self.sizes[self.next];
        self.next += 1;
        let bytes = &self.payload[self.at..self.at + B * count];
        self.at += B * count;
        bytes.chunks_exact(B).map(|chunk| read(chunk.try_into().expect("B bytes"))).collect()
    }

    pub fn floats(&mut self) -> Vec<f32> {
        self.take(f32::from_le_bytes)
    }

    pub fn float(&mut self) -> f32 {
        self.floats()[0]
    }

    pub fn wholes(&mut self) -> Vec<i64> {
        self.take(i64::from_le_bytes)
    }

    pub fn text(&mut self) -> String {
        String::from_utf8(self.take(|[byte]: [u8; 1]| byte)).expect("UTF-8")
    }

    pub fn flags(&mut self) -> Vec<bool> {
        self.take(|[byte]: [u8; 1]| byte != 0)
    }
}

static LAST_PANIC: Mutex<(String, usize)> = Mutex::new((String::new(), 0));

pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(2000) {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out
}

pub fn results(id: usize, all: &[Vec<f32>], changed: &[usize]) -> (String, Vec<u8>) {
    let specs: Vec<String> = all.iter().map(|one| format!("{{\"dtype\":\"f32\",\"shape\":[{}]}}", one.len())).collect();
    let header = format!("{{\"id\":{id},\"results\":[{}],\"changed\":{changed:?}}}", specs.join(","));
    (header, all.iter().flatten().flat_map(|x| x.to_le_bytes()).collect())
}

pub fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Takes the arguments off a frame, calls the learner's function and packs its results.
pub type AnswerCall = fn(&RefCell<Judge>, usize, Vec<usize>, Args) -> (String, Vec<u8>);

#[cfg(unix)]
fn unix_link(place: &str) -> Box<dyn Link> {
    Box::new(std::os::unix::net::UnixStream::connect(place).expect("the judge listens"))
}

#[cfg(not(unix))]
fn unix_link(place: &str) -> Box<dyn Link> {
    panic!("there are no Unix sockets here: {place}")
}

/// Ends this process when the judge is gone, also within an endless loop.
#[cfg(unix)]
fn watch_parent() {
    let parent = std::os::unix::process::parent_id();
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        std::process::exit(0);
    });
}

/// The end of the connection is noticed at the next read.
#[cfg(not(unix))]
fn watch_parent() {}

/// Answers the judge's calls with the function of the file `path`.
pub fn serve(path: &'static str, answer_call: AnswerCall) {
    let words: Vec<String> = std::env::args().collect();
    let (kind, place) = words[1].split_once(':').expect("an address");
    let link: Box<dyn Link> = if kind == "unix" {
        unix_link(place)
    } else {
        let (port, token) = place.split_once(':').expect("a port and a token");
        let mut link = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).expect("the judge listens");
        link.write_all(token.as_bytes()).expect("the judge listens");
        Box::new(link)
    };
    watch_parent();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or("a panic without text");
        let line = info.location().filter(|place| place.file() == path).map_or(0, |place| place.line() as usize);
        if let Ok(mut last) = LAST_PANIC.lock() {
            *last = (text.chars().take(2000).collect(), line);
        }
    }));
    let judge = RefCell::new(Judge { link, pid: std::process::id() });
    judge.borrow_mut().send("{\"id\":0,\"results\":[]}", &[]);
    loop {
        let (header, payload) = judge.borrow_mut().receive();
        let id = wholes(&header, "id", 0).map_or(0, |found| found.0[0]);
        if header.contains("\"call\":\"load\"") {
            judge.borrow_mut().send(&format!("{{\"id\":{id},\"results\":[]}}"), &[]);
            continue;
        }
        let dims = wholes(&header, "dims", 0).map(|found| found.0).unwrap_or_default();
        let args = Args::new(&header, payload);
        let reply = catch_unwind(AssertUnwindSafe(|| answer_call(&judge, id, dims, args)));
        let _ = std::io::stdout().flush();
        match reply {
            Ok((header, payload)) => judge.borrow_mut().send(&header, &payload),
            Err(_) => {
                let (text, line) = LAST_PANIC.lock().map(|last| last.clone()).unwrap_or_default();
                let todo = text.starts_with("not yet implemented") || text.starts_with("not implemented");
                let kind = if todo { "todo" } else { "panic" };
                let line = if line == 0 { String::new() } else { format!(",\"line\":{line}") };
                let header = format!("{{\"id\":{id},\"error\":{{\"kind\":\"{kind}\",\"text\":\"{}\"{line}}}}}", escaped(&text));
                judge.borrow_mut().send(&header, &[]);
            }
        }
    }
}
