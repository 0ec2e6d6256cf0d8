//! Ranks that are threads of this process: for tests, with the faults that networks have, and as an example of an [`Exchange`].

use crate::error::Failure;
use crate::exchange::{Exchange, Tag};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often a rank that waits looks whether the other is still there.
const LOOK: Duration = Duration::from_millis(5);

/// What is to go wrong.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// How long a message is on its way.
    pub delay: Duration,
    /// A rank that takes so long before each message that it sends.
    pub slow: Option<(usize, Duration)>,
    /// A rank that is gone after so many messages.
    pub lost: Option<(usize, usize)>,
    /// A way from one rank to another that loses everything after so many messages of the first: a cut link, or a process that was stopped.
    pub cut: Option<([usize; 2], usize)>,
    /// How long to wait for a message.
    pub patience: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        Self { delay: Duration::ZERO, slow: None, lost: None, cut: None, patience: Duration::from_secs(60) }
    }
}

struct Message {
    from: usize,
    tag: Tag,
    bytes: Vec<u8>,
    due: Instant,
}

struct Shared {
    faults: Faults,
    here: Vec<AtomicBool>,
    /// Bytes that each rank has received, and those that lie there untaken, now and at the most.
    received: Vec<AtomicU64>,
    untaken: Vec<AtomicU64>,
    most_untaken: Vec<AtomicU64>,
}

/// What is still to be looked at, and what was, by sender and tag.
type Inbox = (Receiver<Message>, HashMap<(usize, Tag), VecDeque<Message>>);

/// One of some ranks that are threads.
pub struct Local {
    rank: usize,
    to: Vec<Sender<Message>>,
    inbox: Mutex<Inbox>,
    sent: AtomicUsize,
    shared: Arc<Shared>,
}

impl Local {
    /// Run so many ranks, each with its own exchange; what they return, in their order.
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

    /// The same, with what each rank returned or panicked with. Whoever needs a rank that panicked is told that it is gone.
    pub fn run_to_the_end<T: Send>(ranks: usize, faults: Faults, rank: impl Fn(Self) -> T + Sync) -> Vec<std::thread::Result<T>> {
        let (to, inboxes): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
        let numbers = || (0..ranks).map(|_| AtomicU64::new(0)).collect();
        let here = (0..ranks).map(|_| AtomicBool::new(true)).collect();
        let shared = Arc::new(Shared { faults, here, received: numbers(), untaken: numbers(), most_untaken: numbers() });
        let exchanges = inboxes.into_iter().enumerate().map(|(rank, inbox)| Self {
            rank,
            to: to.clone(),
            inbox: Mutex::new((inbox, HashMap::new())),
            sent: AtomicUsize::new(0),
            shared: Arc::clone(&shared),
        });
        std::thread::scope(|scope| {
            let threads: Vec<_> = exchanges.map(|exchange| scope.spawn(|| rank(exchange))).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        })
    }

    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Bytes that came here and were taken.
    pub fn bytes_received(&self) -> u64 {
        self.shared.received[self.rank].load(Ordering::Relaxed)
    }

    /// The most bytes that ever lay here, sent and not yet taken.
    pub fn most_bytes_untaken(&self) -> u64 {
        self.shared.most_untaken[self.rank].load(Ordering::Relaxed)
    }

    fn is_here(&self, rank: usize) -> bool {
        self.shared.here[rank].load(Ordering::Acquire)
    }
}

/// Whoever waits for it must know.
impl Drop for Local {
    fn drop(&mut self) {
        self.shared.here[self.rank].store(false, Ordering::Release);
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
            return Err(Failure::Lost);
        }
        if let Some((_, pause)) = faults.slow.filter(|(rank, _)| *rank == self.rank) {
            std::thread::sleep(pause);
        }
        if faults.cut.is_some_and(|(way, after)| way == [self.rank, to] && before >= after) {
            return Ok(());
        }
        let untaken = self.shared.untaken[to].fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64;
        self.shared.most_untaken[to].fetch_max(untaken, Ordering::Relaxed);
        let message = Message { from: self.rank, tag, bytes, due: Instant::now() + faults.delay };
        self.to[to].send(message).map_err(|_| Failure::Lost)
    }

    fn receive(&self, from: usize, tag: Tag) -> Result<Vec<u8>, Failure> {
        let patience = self.shared.faults.patience;
        let begun = Instant::now();
        let mut inbox = self.inbox.lock().expect("one thread at a time");
        let (receiver, known) = &mut *inbox;
        loop {
            // Looked at before the inbox: what it sent before it went is still taken.
            let here = self.is_here(from);
            while let Ok(message) = receiver.try_recv() {
                known.entry((message.from, message.tag)).or_default().push_back(message);
            }
            if let Some(message) = known.get_mut(&(from, tag)).and_then(VecDeque::pop_front) {
                std::thread::sleep(message.due.saturating_duration_since(Instant::now()));
                let count = message.bytes.len() as u64;
                self.shared.untaken[self.rank].fetch_sub(count, Ordering::Relaxed);
                self.shared.received[self.rank].fetch_add(count, Ordering::Relaxed);
                return Ok(message.bytes);
            }
            if !here {
                return Err(Failure::Lost);
            }
            if begun.elapsed() >= patience {
                return Err(Failure::Waited(patience));
            }
            match receiver.recv_timeout(LOOK) {
                Ok(message) => known.entry((message.from, message.tag)).or_default().push_back(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }
}
