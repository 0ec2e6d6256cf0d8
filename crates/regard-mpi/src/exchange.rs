//! One thread makes all calls of MPI: it takes whatever arrives, at once, and sends one message after the other, taking what arrives meanwhile. So messages are on their way while
//! others compute, a send never waits for somebody who sends too, and MPI need not be compiled for several threads. How much can arrive is bounded by the sender, which waits for credit.

use mpi::point_to_point::{Destination, MatchedReceiveVec, Source};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::{Threading, environment};
use regard_dist::{Exchange, Failure, Kind, Tag};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps when there is nothing to do: twice as long each time, as looking for messages costs the cores that compute. A message may lie there for so long.
const IDLE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];

/// How long it waits before it looks again whether a message was sent.
const PAUSE: [Duration; 2] = [Duration::from_micros(10), Duration::from_micros(200)];

/// MPI counts in 32 bits: longer messages are cut.
const MOST_BYTES: usize = 1 << 30;

/// More of this message follows.
const MORE: i32 = 1 << 30;

/// Of a tag, for the number of the block.
const BLOCK_BITS: u32 = 24;

/// This process as a rank of an MPI job. Dropping it ends MPI, for good.
pub struct Mpi {
    rank: usize,
    ranks: usize,
    patience: Duration,
    commands: Sender<Command>,
    mail: Arc<Mail>,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    Send { to: usize, tag: Tag, bytes: Vec<u8> },
    Stop,
}

/// What has arrived.
#[derive(Default)]
struct Mail {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// The job is to end, also where a message cannot be got rid of: the exit code, if it is not 0.
    abort: AtomicU8,
}

#[derive(Default)]
struct Inbox {
    messages: HashMap<(usize, Tag), VecDeque<Vec<u8>>>,
    /// Of messages that were cut.
    begun: HashMap<(usize, Tag), Vec<u8>>,
    bytes: u64,
    /// The thread has ended.
    over: bool,
}

impl Mail {
    fn open(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, from: usize, tag: i32, mut bytes: Vec<u8>) {
        let key = (from, decoded(tag & !MORE));
        let mut inbox = self.open();
        inbox.bytes += bytes.len() as u64;
        if let Some(mut begun) = inbox.begun.remove(&key) {
            begun.append(&mut bytes);
            bytes = begun;
        }
        if tag & MORE != 0 {
            inbox.begun.insert(key, bytes);
        } else {
            inbox.messages.entry(key).or_default().push_back(bytes);
            self.arrived.notify_all();
        }
    }
}

impl Mpi {
    /// Start MPI. `None` where this process has done so before. Whoever waits longer than `patience` for a message gives up.
    ///
    /// # Panics
    /// When the MPI library does not allow another thread than the first one to call it.
    pub fn start(patience: Duration) -> Option<Self> {
        let (commands, orders) = channel();
        let (tell, told) = channel();
        let mail = Arc::new(Mail::default());
        let to_fill = Arc::clone(&mail);
        let thread = std::thread::Builder::new().name("mpi".to_owned()).spawn(move || {
            let Some((universe, _)) = environment::initialize_with_threading(Threading::Funneled) else { return };
            let world = universe.world();
            let ours = (world.rank() as usize, world.size() as usize);
            if tell.send(ours).is_ok() {
                communicate(&world, &orders, &to_fill);
            }
            to_fill.open().over = true;
            to_fill.arrived.notify_all();
        });
        let (rank, ranks) = told.recv().ok()?;
        Some(Self { rank, ranks, patience, commands, mail, thread: thread.ok() })
    }

    /// Bytes that have arrived.
    pub fn bytes_received(&self) -> u64 {
        self.mail.open().bytes
    }

    /// End the job, all of its ranks.
    pub fn abort(&self) -> ! {
        self.abort_with(1)
    }

    /// The same with an exit code for whoever started them, other than 0.
    pub fn abort_with(&self, code: u8) -> ! {
        self.mail.abort.store(code.max(1), Ordering::Relaxed);
        // Where the thread hangs, whoever started the ranks notices that one of them has ended so.
        std::thread::sleep(Duration::from_secs(1));
        std::process::abort()
    }

    /// A panic of any thread ends the job: MPI would let all others wait for ever.
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
        // The last messages, and everybody else's end.
        while !thread.is_finished() {
            if begun.elapsed() > self.patience {
                eprintln!("rank {} waited {} s for the other ranks to end; it ends the job", self.rank, self.patience.as_secs_f64());
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
        self.commands.send(Command::Send { to, tag, bytes }).map_err(|_| Failure::Lost)
    }

    fn receive(&self, from: usize, tag: Tag) -> Result<Vec<u8>, Failure> {
        let begun = Instant::now();
        let mut inbox = self.mail.open();
        loop {
            if let Some(bytes) = inbox.messages.get_mut(&(from, tag)).and_then(VecDeque::pop_front) {
                return Ok(bytes);
            }
            let left = self.patience.saturating_sub(begun.elapsed());
            if inbox.over {
                return Err(Failure::Lost);
            }
            if left.is_zero() {
                return Err(Failure::Waited(self.patience));
            }
            inbox = self.mail.arrived.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn encoded((kind, block): Tag) -> i32 {
    assert!(block >> BLOCK_BITS == 0, "fewer than {} blocks", 1 << BLOCK_BITS);
    let kind = Kind::ALL.iter().position(|&other| other == kind).expect("all of them are in the list");
    ((kind as u32) << BLOCK_BITS | block) as i32
}

fn decoded(tag: i32) -> Tag {
    let tag = tag as u32;
    (Kind::ALL[(tag >> BLOCK_BITS) as usize], tag & ((1 << BLOCK_BITS) - 1))
}

/// Everything that MPI is asked for.
fn communicate(world: &SimpleCommunicator, orders: &Receiver<Command>, mail: &Mail) {
    let mut idle = IDLE[0];
    loop {
        if take_what_arrived(world, mail) {
            idle = IDLE[0];
        }
        end_if_told(world, mail);
        match orders.recv_timeout(idle) {
            Ok(Command::Send { to, tag, bytes }) => {
                send(world, to, encoded(tag), &bytes, mail);
                idle = IDLE[0];
            }
            Err(RecvTimeoutError::Timeout) => idle = IDLE[1].min(2 * idle),
            Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Taking what arrives meanwhile: the other one may be sending to us.
fn send(world: &SimpleCommunicator, to: usize, tag: i32, bytes: &[u8], mail: &Mail) {
    let process = world.process_at_rank(to as i32);
    let last = bytes.len().saturating_sub(1) / MOST_BYTES;
    for part in 0..=last {
        let bytes = &bytes[part * MOST_BYTES..bytes.len().min((part + 1) * MOST_BYTES)];
        mpi::request::scope(|scope| {
            let mut request = process.immediate_send_with_tag(scope, bytes, if part < last { tag | MORE } else { tag });
            let mut pause = PAUSE[0];
            while let Err(unfinished) = request.test() {
                request = unfinished;
                end_if_told(world, mail);
                if !take_what_arrived(world, mail) {
                    std::thread::sleep(pause);
                    pause = PAUSE[1].min(2 * pause);
                }
            }
        });
    }
}

fn end_if_told(world: &SimpleCommunicator, mail: &Mail) {
    let code = mail.abort.load(Ordering::Relaxed);
    if code > 0 {
        world.abort(code.into());
    }
}

/// Was there anything?
fn take_what_arrived(world: &SimpleCommunicator, mail: &Mail) -> bool {
    let mut any = false;
    while let Some(found) = world.any_process().immediate_matched_probe() {
        let (bytes, status) = found.matched_receive_vec::<u8>();
        mail.put(status.source_rank() as usize, status.tag(), bytes);
        any = true;
    }
    any
}
