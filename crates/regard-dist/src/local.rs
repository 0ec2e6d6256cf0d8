//! Ranks that are threads of this process: for tests, with the faults of networks, and as an example of an [`Exchange`].

use crate::error::Failure;
use crate::exchange::{Exchange, Tag};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often a waiting rank checks whether the other is connected.
const POLL: Duration = Duration::from_millis(5);

/// Faults to simulate.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Latency of every message.
    pub delay: Duration,
    /// A rank, and its pause before each message that it sends.
    pub slow: Option<(usize, Duration)>,
    /// A rank that disconnects, and the number of messages that it sends before.
    pub lost: Option<(usize, usize)>,
    /// A link `[from, to]` that drops messages, and the number of messages that `from` sends before: a cut cable, or a stopped process.
    pub cut: Option<([usize; 2], usize)>,
    /// How long a rank waits for a message.
    pub timeout: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        Self { delay: Duration::ZERO, slow: None, lost: None, cut: None, timeout: Duration::from_secs(60) }
    }
}

struct Message {
    from: usize,
    tag: Tag,
    bytes: Vec<u8>,
    due: Instant,
}

/// State of all ranks, by rank.
struct Shared {
    faults: Faults,
    connected: Vec<AtomicBool>,
    /// Bytes that were received.
    received: Vec<AtomicU64>,
    /// Bytes that were sent to the rank and not received.
    pending: Vec<AtomicU64>,
    most_pending: Vec<AtomicU64>,
}

struct Inbox {
    arriving: Receiver<Message>,
    /// Messages that have arrived, by sender and tag.
    arrived: HashMap<(usize, Tag), VecDeque<Message>>,
}

impl Inbox {
    fn add(&mut self, message: Message) {
        self.arrived.entry((message.from, message.tag)).or_default().push_back(message);
    }
}

/// A rank that is a thread.
pub struct Local {
    rank: usize,
    to: Vec<Sender<Message>>,
    inbox: Mutex<Inbox>,
    sent: AtomicUsize,
    shared: Arc<Shared>,
}

impl Local {
    /// Run `ranks` ranks, each with its exchange, and return their results in order.
    ///
    /// # Panics
    /// When a rank does.
    pub fn run<T: Send>(ranks: usize, rank: impl Fn(Self) -> T + Sync) -> Vec<T> {
        Self::run_with(ranks, Faults::default(), rank)
    }

    /// The same, with faults.
    ///
    /// # Panics
    /// When a rank does.
    pub fn run_with<T: Send>(ranks: usize, faults: Faults, rank: impl Fn(Self) -> T + Sync) -> Vec<T> {
        let ended = Self::run_to_the_end(ranks, faults, rank);
        ended.into_iter().map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    }

    /// The same, with the panics of ranks as results. A rank that panics is disconnected.
    pub fn run_to_the_end<T: Send>(ranks: usize, faults: Faults, rank: impl Fn(Self) -> T + Sync) -> Vec<std::thread::Result<T>> {
        let (to, inboxes): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
        let counters = || (0..ranks).map(|_| AtomicU64::new(0)).collect();
        let connected = (0..ranks).map(|_| AtomicBool::new(true)).collect();
        let shared = Arc::new(Shared { faults, connected, received: counters(), pending: counters(), most_pending: counters() });
        let exchanges = inboxes.into_iter().enumerate().map(|(rank, arriving)| Self {
            rank,
            to: to.clone(),
            inbox: Mutex::new(Inbox { arriving, arrived: HashMap::new() }),
            sent: AtomicUsize::new(0),
            shared: Arc::clone(&shared),
        });
        std::thread::scope(|scope| {
            let threads: Vec<_> = exchanges.map(|exchange| scope.spawn(|| rank(exchange))).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Bytes that this rank has received.
    pub fn bytes_received(&self) -> u64 {
        self.shared.received[self.rank].load(Ordering::Relaxed)
    }

    /// The most bytes that were pending at a time: sent to this rank and not yet received.
    pub fn most_bytes_pending(&self) -> u64 {
        self.shared.most_pending[self.rank].load(Ordering::Relaxed)
    }
}

/// Ranks that wait for this one get an error.
impl Drop for Local {
    fn drop(&mut self) {
        self.shared.connected[self.rank].store(false, Ordering::Release);
    }
}

impl Exchange for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> Result<(), Failure> {
        let faults = &self.shared.faults;
        let before = self.sent.fetch_add(1, Ordering::Relaxed);
        if faults.lost.is_some_and(|(rank, after)| rank == self.rank && before >= after) {
            return Err(Failure::Disconnected);
        }
        if let Some((_, pause)) = faults.slow.filter(|(rank, _)| *rank == self.rank) {
            std::thread::sleep(pause);
        }
        if faults.cut.is_some_and(|(link, after)| link == [self.rank, to] && before >= after) {
            return Ok(());
        }
        let pending = self.shared.pending[to].fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64;
        self.shared.most_pending[to].fetch_max(pending, Ordering::Relaxed);
        let message = Message { from: self.rank, tag, bytes, due: Instant::now() + faults.delay };
        self.to[to].send(message).map_err(|_| Failure::Disconnected)
    }

    fn receive(&self, from: usize, tag: Tag) -> Result<Vec<u8>, Failure> {
        let timeout = self.shared.faults.timeout;
        let begun = Instant::now();
        let mut inbox = self.inbox.lock().expect("one thread at a time");
        loop {
            // Checked before the inbox: messages that a rank sent before it disconnected are received.
            let connected = self.shared.connected[from].load(Ordering::Acquire);
            while let Ok(message) = inbox.arriving.try_recv() {
                inbox.add(message);
            }
            if let Some(message) = inbox.arrived.get_mut(&(from, tag)).and_then(VecDeque::pop_front) {
                std::thread::sleep(message.due.saturating_duration_since(Instant::now()));
                let count = message.bytes.len() as u64;
                self.shared.pending[self.rank].fetch_sub(count, Ordering::Relaxed);
                self.shared.received[self.rank].fetch_add(count, Ordering::Relaxed);
                return Ok(message.bytes);
            }
            if !connected {
                return Err(Failure::Disconnected);
            }
            if begun.elapsed() >= timeout {
                return Err(Failure::Timeout(timeout));
            }
            if let Ok(message) = inbox.arriving.recv_timeout(POLL) {
                inbox.add(message);
            }
        }
    }
}
