//! A child process behind a socket: bytes in and out, its prints, its memory, its end.

use super::{frame, system};
use crate::error::{Error, Result};
use crate::value::Gone;
use serde_json::Value as Json;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often the judge looks up while it waits for an answer.
const TICK: Duration = Duration::from_millis(10);
/// Bounds on the lines of output that are kept, and on their length.
const LINES: usize = 200;
const LINE_LENGTH: usize = 300;
/// Bytes of the stacks of all threads of a Python runner.
const LONGEST_TRACE: u64 = 1 << 20;
/// In the environment of a runner and of all that it starts.
const MARK: &str = "REGARD_LEARN_RUNNER";

/// A command to be started, and a file of ours that it runs.
pub(super) struct Launch {
    pub(super) command: Command,
    pub(super) harness: Option<(&'static str, &'static str)>,
    /// Whether it may write only into its temporary folder, where the kernel can enforce it.
    pub(super) confined: bool,
}

enum Link {
    #[cfg(unix)]
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Link {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            #[cfg(unix)]
            Link::Unix(link) => link.read(buffer),
            Link::Tcp(link) => link.read(buffer),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            #[cfg(unix)]
            Link::Unix(link) => link.write_all(bytes),
            Link::Tcp(link) => link.write_all(bytes),
        }
    }

    fn set_timeouts(&self, read: Duration) -> std::io::Result<()> {
        // A runner that does not read cannot make the judge wait for ever either.
        let write = Some(Duration::from_secs(2));
        match self {
            #[cfg(unix)]
            Link::Unix(link) => link.set_read_timeout(Some(read)).and_then(|()| link.set_write_timeout(write)),
            Link::Tcp(link) => link.set_read_timeout(Some(read)).and_then(|()| link.set_write_timeout(write)),
        }
    }
}

enum Listener {
    #[cfg(unix)]
    Unix(UnixListener),
    Tcp(TcpListener, String),
}

impl Listener {
    /// A socket in the private folder; where its path is too long or there are none, a port of this machine and a token.
    #[cfg_attr(not(unix), expect(unused_variables, reason = "there are no Unix sockets"))]
    fn open(folder: &Path) -> std::io::Result<(Self, String)> {
        #[cfg(unix)]
        {
            let path = folder.join("judge");
            if let Ok(door) = UnixListener::bind(&path) {
                door.set_nonblocking(true)?;
                return Ok((Listener::Unix(door), format!("unix:{}", path.display())));
            }
        }
        let door = TcpListener::bind("127.0.0.1:0")?;
        door.set_nonblocking(true)?;
        let token = token();
        let address = format!("tcp:{}:{token}", door.local_addr()?.port());
        Ok((Listener::Tcp(door, token), address))
    }

    /// On macOS and Windows a connection is as non-blocking as its listener.
    fn accept(&self) -> std::io::Result<Link> {
        match self {
            #[cfg(unix)]
            Listener::Unix(door) => {
                let (link, _) = door.accept()?;
                link.set_nonblocking(false)?;
                Ok(Link::Unix(link))
            }
            Listener::Tcp(door, token) => {
                let (mut link, _) = door.accept()?;
                link.set_nonblocking(false)?;
                let mut said = vec![0; token.len()];
                link.set_read_timeout(Some(Duration::from_secs(1)))?;
                link.read_exact(&mut said)?;
                if said != token.as_bytes() {
                    return Err(ErrorKind::WouldBlock.into());
                }
                Ok(Link::Tcp(link))
            }
        }
    }
}

/// A secret of this process.
fn token() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}

#[derive(Default)]
struct Prints {
    lines: Vec<String>,
    count: usize,
}

/// The running child.
pub(super) struct Process {
    child: Child,
    ended: Option<ExitStatus>,
    link: Option<Link>,
    door: Listener,
    bytes: Vec<u8>,
    prints: Arc<Mutex<Prints>>,
    readers: Vec<std::thread::JoinHandle<()>>,
    program: String,
    mark: String,
    last_look: Instant,
    /// Resident bytes when they last grew, and when that was.
    resident: u64,
    grew: Instant,
    born: Instant,
    folder: tempfile::TempDir,
}

impl Process {
    pub(super) fn start(launch: Launch, file: &Path) -> Result<Self> {
        let failed = |reason| Error::Process { reason };
        let folder = tempfile::Builder::new().prefix("regard-learn-").tempdir();
        let folder = folder.map_err(Error::temporary)?;
        let (door, address) = Listener::open(folder.path()).map_err(failed)?;
        let mut command = launch.command;
        if let Some((name, text)) = launch.harness {
            let path = folder.path().join(name);
            std::fs::write(&path, text).map_err(Error::temporary)?;
            command.arg(path);
        }
        let work = folder.path().join("work");
        std::fs::create_dir(&work).map_err(Error::temporary)?;
        let trace = folder.path().join("trace");
        std::fs::write(&trace, "").map_err(Error::temporary)?;
        let mark = token();
        command.arg(address).arg(file).arg(&trace).env(MARK, &mark).current_dir(&work);
        command.envs(["TMPDIR", "TEMP", "TMP"].map(|name| (name, &work)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        system::set_group(&mut command);
        let program = command.get_program().to_string_lossy().into_owned();
        let spawn = || if launch.confined { super::confine::spawn(&mut command, &[&work, &trace]) } else { command.spawn() };
        let mut child = system::started(spawn).map_err(failed)?;
        let prints = Arc::<Mutex<Prints>>::default();
        let mut readers = Vec::new();
        if let Some(stream) = child.stdout.take() {
            readers.push(read_lines(stream, &prints));
        }
        if let Some(stream) = child.stderr.take() {
            readers.push(read_lines(stream, &prints));
        }
        let now = Instant::now();
        let (bytes, last_look, resident, grew) = (Vec::new(), now, 0, now);
        Ok(Self {
            child,
            ended: None,
            link: None,
            door,
            bytes,
            prints,
            readers,
            program,
            mark,
            last_look,
            resident,
            grew,
            born: now,
            folder,
        })
    }

    /// The path of a file with these bytes, which the runner can read and not change.
    pub(super) fn file(&self, bytes: &[u8]) -> String {
        let path = self.folder.path().join(format!("{}.safetensors", crate::app::state::hash(bytes)));
        if !path.exists() {
            // A missing file shows where the runner reads it.
            let _ = std::fs::write(&path, bytes);
        }
        path.display().to_string()
    }

    pub(super) fn program(&self) -> &str {
        &self.program
    }

    pub(super) fn alive(&self) -> bool {
        self.ended.is_none()
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        // A broken link shows when the answer is read.
        if let Some(link) = &mut self.link {
            let _ = link.write_all(bytes);
        }
    }

    /// The next frame, or nothing within a tick.
    pub(super) fn receive(&mut self) -> std::result::Result<Option<(Json, Vec<u8>)>, Gone> {
        if self.link.is_none() {
            self.connect();
            if self.link.is_none() {
                return if self.has_ended() { Err(self.exit()) } else { Ok(None) };
            }
        }
        match frame::unpack(&mut self.bytes) {
            Ok(None) => {}
            Ok(frame) => return Ok(frame),
            Err(text) => return Err(Gone::Garbled { text }),
        }
        let mut buffer = [0; 1 << 16];
        let Some(link) = &mut self.link else { return Ok(None) };
        match link.read(&mut buffer) {
            Ok(0) => Err(self.exit()),
            Ok(count) => {
                self.bytes.extend(&buffer[..count]);
                frame::unpack(&mut self.bytes).map_err(|text| Gone::Garbled { text })
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                // A child of the runner may keep the socket open when the runner itself is gone.
                if self.has_ended() { Err(self.exit()) } else { Ok(None) }
            }
            Err(_) => Err(self.exit()),
        }
    }

    fn connect(&mut self) {
        match self.door.accept() {
            Ok(link) if link.set_timeouts(TICK).is_ok() => self.link = Some(link),
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }

    fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_some()
    }

    /// How it ended; it has a moment to do so after it closed the socket.
    fn exit(&mut self) -> Gone {
        let start = Instant::now();
        while !self.has_ended() && start.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let how = match self.ended {
            Some(status) => match (status.code(), system::signal(status)) {
                (Some(code), _) => format!("it ended by itself with exit code {code}"),
                (_, Some(signal)) => format!("it crashed with signal {signal}{}", signal_name(signal)),
                _ => "it ended".to_owned(),
            },
            None => "it closed the connection to the judge".to_owned(),
        };
        Gone::Exit { how }
    }

    /// The lines that the learner's code printed, and how many there were.
    pub(super) fn prints(&mut self) -> (Vec<String>, usize) {
        // What is on its way arrives within a moment.
        let start = Instant::now();
        while self.ended.is_some() && self.readers.iter().any(|r| !r.is_finished()) && start.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.prints.lock().map(|p| (p.lines.clone(), p.count)).unwrap_or_default()
    }

    /// Resident bytes of the process, its group and its children, where more than this.
    pub(super) fn over(&mut self, limit: u64) -> Option<u64> {
        if self.last_look.elapsed() < Duration::from_millis(20) {
            return None;
        }
        self.last_look = Instant::now();
        // They would have memory of their own.
        system::end_orphans();
        let bytes = system::resident(self.child.id());
        if bytes > self.resident + (4 << 20) {
            (self.resident, self.grew) = (bytes, Instant::now());
        }
        (bytes > limit).then_some(bytes)
    }

    /// Whether it is taking memory in at this moment, and much of it.
    pub(super) fn growing(&self) -> bool {
        self.resident > 200 << 20 && self.grew.elapsed() < Duration::from_millis(500)
    }

    /// Time since it was started, without the time that it waited for a processor: load on the machine does not count.
    pub(super) fn clock(&self) -> Duration {
        self.born.elapsed().saturating_sub(system::queued(self.child.id()))
    }

    /// Processor time of it and of its group, where it can be read.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        system::processor_time(self.child.id())
    }

    /// The line of the file that a Python runner is in.
    pub(super) fn line_of(&mut self, file: &Path) -> Option<usize> {
        system::request_trace(&self.child)?;
        let trace = self.folder.path().join("trace");
        let start = format!("File \"{}\", line ", file.display());
        for _ in 0..30 {
            std::thread::sleep(Duration::from_millis(10));
            // The answer can write to this file, too.
            let text = regard_files::read_text(&trace, LONGEST_TRACE).unwrap_or_default();
            let found = text.lines().find_map(|line| line.trim().strip_prefix(&start)?.split(' ').next()?.parse().ok());
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Ends the process group, and what left it.
    pub(super) fn end(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
        }
        system::end_group(&self.child);
        if self.ended.is_none() {
            self.ended = self.child.wait().ok();
        }
        system::end_marked(&format!("{MARK}={}", self.mark));
        system::end_orphans();
        system::ended(self.child.id());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (illegal instruction)",
        6 => " (abort)",
        9 => " (killed)",
        11 => " (segmentation fault)",
        _ => "",
    }
}

/// Keeps the first lines and counts the others.
fn read_lines(stream: impl Read + Send + 'static, prints: &Arc<Mutex<Prints>>) -> std::thread::JoinHandle<()> {
    let prints = Arc::clone(prints);
    std::thread::spawn(move || {
        let mut reader = BufReader::with_capacity(1 << 16, stream);
        let (mut buffer, mut line) = (vec![0; 1 << 16], Vec::new());
        let keep = |line: &mut Vec<u8>| {
            if let Ok(mut prints) = prints.lock() {
                prints.count += 1;
                if prints.lines.len() < LINES {
                    let text = String::from_utf8_lossy(line);
                    prints.lines.push(text.chars().filter(|c| !c.is_control() || *c == '\t').take(LINE_LENGTH).collect());
                }
            }
            line.clear();
        };
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            for byte in &buffer[..count] {
                match byte {
                    b'\n' => keep(&mut line),
                    byte if line.len() < 4 * LINE_LENGTH => line.push(*byte),
                    _ => {}
                }
            }
        }
        if !line.is_empty() {
            keep(&mut line);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_token_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("as a door has it");
        let (address, token) = (listener.local_addr().expect("an address"), token());
        let sent = token.clone();
        let runner = std::thread::spawn(move || {
            let mut link = TcpStream::connect(address).expect("the judge listens");
            std::thread::sleep(Duration::from_millis(200));
            link.write_all(sent.as_bytes()).expect("the judge reads");
            link
        });
        let (door, begun) = (Listener::Tcp(listener, token), Instant::now());
        let accepted = loop {
            match door.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && begun.elapsed() < Duration::from_secs(10) => {
                    std::thread::sleep(TICK)
                }
                accepted => break accepted,
            }
        };
        accepted.expect("the token is right");
        drop(runner.join().expect("the runner ends"));
    }
}
