//! Ranks that are MPI processes.
//!
//! One thread makes all calls of MPI: it receives whatever arrives, and sends one message after the other, receiving meanwhile. So messages
//! travel while other threads compute, two ranks that send to each other do not block, and MPI need not be compiled for several threads.
//! Senders wait for flow-control credit, which bounds how much can arrive.

use crate::error::Failure;
use crate::exchange::{Exchange, Tag};
use crate::framing::{Assembly, MPI_TAG, PART, framed, parts, unframed};
use mpi::point_to_point::{Destination, MatchedReceiveVec, Source};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::{Threading, environment};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Sleep of the thread when there is nothing to do, doubled each time: polling costs the cores that compute. It bounds the delay of a
/// message.
const IDLE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];

/// Sleep between two tests whether a message was sent, doubled each time.
const PAUSE: [Duration; 2] = [Duration::from_micros(10), Duration::from_micros(200)];

/// This process as a rank of an MPI job. Dropping it finalises MPI, which cannot be started again.
pub struct Mpi {
    rank: usize,
    ranks: usize,
    timeout: Duration,
    commands: Sender<Command>,
    inbox: Arc<SharedInbox>,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    Send { to: usize, message: Vec<u8> },
    Stop,
}

#[derive(Default)]
struct SharedInbox {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Exit code with which the job is to end, if it is not 0.
    abort: AtomicU8,
}

#[derive(Default)]
struct Inbox {
    messages: HashMap<(usize, Tag), VecDeque<Vec<u8>>>,
    /// Parts of unfinished messages, by sender.
    assemblies: HashMap<usize, Assembly>,
    /// Bytes of all payloads.
    bytes: u64,
    /// The thread has ended.
    closed: bool,
}

impl SharedInbox {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part that arrived.
    ///
    /// # Panics
    /// When a message is not one of this program, which [`Mpi::abort_on_panic`] makes the end of the job.
    fn add(&self, from: usize, part: Vec<u8>) {
        let mut inbox = self.lock();
        let Some(message) = inbox.assemblies.entry(from).or_default().add(part, PART) else { return };
        let (tag, payload) = unframed(message).unwrap_or_else(|| panic!("rank {from} runs another version of this program"));
        inbox.bytes += payload.len() as u64;
        inbox.messages.entry((from, tag)).or_default().push_back(payload);
        self.arrived.notify_all();
    }
}

impl Mpi {
    /// Start MPI; a message that does not arrive within `timeout` is an error of the receiver.
    ///
    /// # Errors
    /// When this process has started MPI before, or has no thread for it.
    ///
    /// # Panics
    /// When the MPI library does not allow calls from another thread than the main one.
    pub fn start(timeout: Duration) -> Result<Self, String> {
        let (commands, orders) = channel();
        let (report, reported) = channel();
        let inbox = Arc::new(SharedInbox::default());
        let to_fill = Arc::clone(&inbox);
        let thread = std::thread::Builder::new().name("mpi".to_owned()).spawn(move || {
            let Some((universe, _)) = environment::initialize_with_threading(Threading::Funneled) else { return };
            let world = universe.world();
            let size = (world.rank() as usize, world.size() as usize);
            if report.send(size).is_ok() {
                communicate(&world, &orders, &to_fill);
            }
            to_fill.lock().closed = true;
            to_fill.arrived.notify_all();
        });
        let thread = thread.map_err(|e| format!("cannot start a thread for MPI: {e}; allow this user more processes (ulimit -u)"))?;
        let (rank, ranks) = reported.recv().map_err(|_| "MPI was started before in this process".to_owned())?;
        Ok(Self { rank, ranks, timeout, commands, inbox, thread: Some(thread) })
    }

    /// Bytes of all messages that have arrived.
    pub fn bytes_received(&self) -> u64 {
        self.inbox.lock().bytes
    }

    /// End the job, all of its ranks.
    pub fn abort(&self) -> ! {
        self.abort_with(1)
    }

    /// End the job with an exit code other than 0.
    pub fn abort_with(&self, code: u8) -> ! {
        self.inbox.abort.store(code.max(1), Ordering::Relaxed);
        // If the MPI thread hangs, mpirun ends the job when it sees this process abort.
        std::thread::sleep(Duration::from_secs(1));
        std::process::abort()
    }

    /// Make a panic of any thread end the job: otherwise all other ranks wait for ever.
    pub fn abort_on_panic() {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            std::process::abort();
        }));
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        let begun = Instant::now();
        let Some(thread) = self.thread.take() else { return };
        // The last messages are sent, and all other ranks finalise MPI.
        while !thread.is_finished() {
            if begun.elapsed() > self.timeout {
                eprintln!("rank {} waited {} s for the other ranks to end; it ends the job", self.rank, self.timeout.as_secs_f64());
                std::process::abort();
            }
            std::thread::sleep(IDLE[0]);
        }
        let _ = thread.join();
    }
}

impl Exchange for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> Result<(), Failure> {
        self.commands.send(Command::Send { to, message: framed(tag, bytes) }).map_err(|_| Failure::Disconnected)
    }

    fn receive(&self, from: usize, tag: Tag) -> Result<Vec<u8>, Failure> {
        let begun = Instant::now();
        let mut inbox = self.inbox.lock();
        loop {
            if let Some(bytes) = inbox.messages.get_mut(&(from, tag)).and_then(VecDeque::pop_front) {
                return Ok(bytes);
            }
            let left = self.timeout.saturating_sub(begun.elapsed());
            if inbox.closed {
                return Err(Failure::Disconnected);
            }
            if left.is_zero() {
                return Err(Failure::Timeout(self.timeout));
            }
            inbox = self.inbox.arrived.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The loop of the MPI thread.
fn communicate(world: &SimpleCommunicator, orders: &Receiver<Command>, inbox: &SharedInbox) {
    let mut idle = IDLE[0];
    loop {
        if receive_all(world, inbox) {
            idle = IDLE[0];
        }
        abort_if_asked(world, inbox);
        match orders.recv_timeout(idle) {
            Ok(Command::Send { to, message }) => {
                send(world, to, &message, inbox);
                idle = IDLE[0];
            }
            Err(RecvTimeoutError::Timeout) => idle = IDLE[1].min(2 * idle),
            Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Send, and receive meanwhile: the other rank may be sending to this one.
fn send(world: &SimpleCommunicator, to: usize, message: &[u8], inbox: &SharedInbox) {
    let process = world.process_at_rank(to as i32);
    for part in parts(message, PART) {
        mpi::request::scope(|scope| {
            let mut request = process.immediate_send_with_tag(scope, part, MPI_TAG);
            let mut pause = PAUSE[0];
            while let Err(unfinished) = request.test() {
                request = unfinished;
                abort_if_asked(world, inbox);
                if !receive_all(world, inbox) {
                    std::thread::sleep(pause);
                    pause = PAUSE[1].min(2 * pause);
                }
            }
        });
    }
}

fn abort_if_asked(world: &SimpleCommunicator, inbox: &SharedInbox) {
    let code = inbox.abort.load(Ordering::Relaxed);
    if code > 0 {
        world.abort(code.into());
    }
}

/// Receive what has arrived; false if that was nothing.
fn receive_all(world: &SimpleCommunicator, inbox: &SharedInbox) -> bool {
    let mut any = false;
    while let Some(found) = world.any_process().immediate_matched_probe() {
        let (bytes, status) = found.matched_receive_vec::<u8>();
        inbox.add(status.source_rank() as usize, bytes);
        any = true;
    }
    any
}
