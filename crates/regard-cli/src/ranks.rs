//! This process as a rank of an MPI job, or as the only rank.

use crate::options::Unusable;
use anyhow::Result;
use regard_dist::{Comm, Exchange, Failure, Kind, SingleRank, Tag};
use regard_nn::training::ranks as training;
use std::time::Duration;

/// Variables with the number of ranks, which launchers set: Open MPI, MPICH and its derivatives, and Slurm's `srun` for each step. The
/// first that is set counts, as `mpirun` may run within a step of `srun`. A script of `sbatch` has none of them: SLURM_NTASKS is the number
/// of tasks requested, not started.
const SIZES: [&str; 5] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS", SRUN];
const SRUN: &str = "SLURM_STEP_NUM_TASKS";

/// Variables with the number of this rank, of launchers that do not set the number of ranks.
const RANKS: [&str; 2] = ["PMIX_RANK", "PMI_RANK"];

/// How this process was started, as far as its environment says.
#[derive(Clone, Copy)]
enum Started {
    Single,
    Of(usize),
    /// A rank other than 0.
    OfSeveral,
    /// Rank 0, of one or of several.
    First,
}

impl Started {
    fn by_environment() -> Self {
        let number = |name: &&str| std::env::var(name).ok()?.trim().parse::<usize>().ok();
        match (SIZES.iter().find_map(number), RANKS.iter().find_map(number)) {
            (Some(of), _) if of > 1 => Self::Of(of),
            (Some(_), _) | (None, None) => Self::Single,
            (None, Some(0)) => Self::First,
            (None, Some(_)) => Self::OfSeveral,
        }
    }
}

/// Time between the first error of a rank and the end of the job.
#[cfg(feature = "mpi")]
const GRACE: Duration = Duration::from_millis(700);

pub(crate) enum Ranks {
    Single(SingleRank),
    #[cfg(feature = "mpi")]
    Mpi(regard_dist::Mpi),
}

impl Ranks {
    /// A rank that waits longer than `watchdog` seconds for another ends the job.
    pub(crate) fn start(watchdog: f64) -> Result<Self> {
        if !(watchdog > 0.0 && watchdog < 1e9) {
            return Err(Unusable(format!("invalid --watchdog: {watchdog}; give a number of seconds above 0")).into());
        }
        Self::started(Started::by_environment(), Duration::from_secs_f64(watchdog))
    }

    /// With any sign of other ranks, MPI gives their number.
    #[cfg(feature = "mpi")]
    fn started(by: Started, timeout: Duration) -> Result<Self> {
        if matches!(by, Started::Single) {
            return Ok(Self::Single(SingleRank));
        }
        regard_dist::Mpi::abort_on_panic();
        let mpi = regard_dist::Mpi::start(timeout).map_err(anyhow::Error::msg)?;
        match by {
            Started::Of(of) if mpi.ranks() == 1 => Err(Unusable(format!(
                "this is one of {of} ranks, but MPI reports one rank, and each would do all of the work; start them with mpirun, or with \
                 srun --mpi=pmix (srun --mpi=list shows which kinds are available)"
            ))
            .into()),
            _ => Ok(Self::Mpi(mpi)),
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn started(by: Started, _: Duration) -> Result<Self> {
        let of = match by {
            Started::Single | Started::First => return Ok(Self::Single(SingleRank)),
            Started::Of(of) => of.to_string(),
            Started::OfSeveral => "several".to_owned(),
        };
        let build = "cargo build --release -p regard-cli --features mpi";
        Err(Unusable(format!(
            "this is one of {of} ranks, but the program was built without MPI, and each would do all of the work; build it with: {build}"
        ))
        .into())
    }

    /// Bytes received from other ranks.
    pub(crate) fn bytes_received(&self) -> u64 {
        match self {
            Self::Single(_) => 0,
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.bytes_received(),
        }
    }

    /// An error of one rank ends the job, as the others would wait for it.
    pub(crate) fn or_end<T>(&self, result: Result<T>) -> Result<T> {
        #[cfg(feature = "mpi")]
        if let (Self::Mpi(mpi), Err(error)) = (self, &result) {
            crate::output::note(format_args!("error: {}", crate::options::causes(error)));
            // Another rank may have a more precise error, and gets the time to print it.
            std::thread::sleep(GRACE);
            mpi.abort_with(crate::code_of(error));
        }
        result
    }
}

impl Exchange for Ranks {
    fn rank(&self) -> usize {
        match self {
            Self::Single(single) => single.rank(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.rank(),
        }
    }

    fn ranks(&self) -> usize {
        match self {
            Self::Single(single) => single.ranks(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.ranks(),
        }
    }

    fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> std::result::Result<(), Failure> {
        match self {
            Self::Single(single) => single.send(to, tag, bytes),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.send(to, tag, bytes),
        }
    }

    fn receive(&self, from: usize, tag: Tag) -> std::result::Result<Vec<u8>, Failure> {
        match self {
            Self::Single(single) => single.receive(from, tag),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.receive(from, tag),
        }
    }
}

/// The ranks of an exchange, for a training that they share.
#[derive(Debug, Clone, Copy)]
pub struct ByExchange<'x, X>(pub &'x X);

/// The tag of all messages of a training.
const TRAINING: Tag = (Kind::Training, 0);

impl<X: Exchange> training::Ranks for ByExchange<'_, X> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn send(&self, to: usize, bytes: Vec<u8>, what: &dyn Fn() -> String) -> regard_nn::Result<()> {
        Comm::new(self.0).send(to, TRAINING, bytes, what).map_err(|error| regard_nn::Error::Ranks { problem: error.to_string() })
    }

    fn receive(&self, from: usize, what: &dyn Fn() -> String) -> regard_nn::Result<Vec<u8>> {
        Comm::new(self.0).receive(from, TRAINING, what).map_err(|error| regard_nn::Error::Ranks { problem: error.to_string() })
    }
}

/// Costs of this process; NaN where the system does not report them.
pub(crate) struct ProcessCosts {
    /// Bytes.
    pub(crate) peak_memory: f64,
    /// Of all threads.
    pub(crate) cpu_seconds: f64,
}

pub(crate) fn process_costs() -> ProcessCosts {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<f64>().ok());
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    // User and system time, in hundredths of a second.
    let ticks = |i: usize| fields.get(i).and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
    ProcessCosts { peak_memory: peak.map_or(f64::NAN, |kilobytes| kilobytes * 1024.0), cpu_seconds: (ticks(11) + ticks(12)) / 100.0 }
}
