//! Which rank of which job this process is: of MPI, if it was started so, or the only one.

use crate::common::Unusable;
use anyhow::Result;
use regard_dist::{Alone, Exchange, Failure, Tag};
use std::time::Duration;

/// Set by those who start ranks, to how many there are: OpenMPI, MPICH and its kin, and Slurm's `srun` for each step, whatever kind of MPI is meant. The first one that is there counts:
/// `mpirun` within a step of `srun` knows better. A script of `sbatch` has none of them (SLURM_NTASKS is what was asked for, not what was started).
const SIZES: [&str; 5] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS", SRUN];
const SRUN: &str = "SLURM_STEP_NUM_TASKS";

/// Set to the number of this rank, where nobody says how many there are.
const PLACES: [&str; 2] = ["PMIX_RANK", "PMI_RANK"];

/// How many ranks this process seems to be one of.
#[derive(Clone, Copy)]
enum Started {
    Alone,
    Of(usize),
    /// Its number is not the first.
    OfSeveral,
    /// Its number is the first, of one or of several.
    First,
}

impl Started {
    fn by_environment() -> Self {
        let number = |name: &&str| std::env::var(name).ok()?.trim().parse::<usize>().ok();
        match (SIZES.iter().find_map(number), PLACES.iter().find_map(number)) {
            (Some(of), _) if of > 1 => Self::Of(of),
            (Some(_), _) | (None, None) => Self::Alone,
            (None, Some(0)) => Self::First,
            (None, Some(_)) => Self::OfSeveral,
        }
    }
}

/// How long a job goes on after the first error.
#[cfg(feature = "mpi")]
const GRACE: Duration = Duration::from_millis(700);

pub(crate) enum Ranks {
    Alone(Alone),
    #[cfg(feature = "mpi")]
    Mpi(regard_mpi::Mpi),
}

impl Ranks {
    /// Whoever waits longer than so many seconds for another rank ends the job.
    pub(crate) fn start(watchdog: f64) -> Result<Self> {
        if !(watchdog > 0.0 && watchdog < 1e9) {
            return Err(Unusable(format!("--watchdog {watchdog} is not possible: it must be more than 0 seconds")).into());
        }
        Self::started(Started::by_environment(), Duration::from_secs_f64(watchdog))
    }

    /// Whatever sign of other ranks there is, MPI knows.
    #[cfg(feature = "mpi")]
    fn started(by: Started, patience: Duration) -> Result<Self> {
        if matches!(by, Started::Alone) {
            return Ok(Self::Alone(Alone));
        }
        regard_mpi::Mpi::abort_on_panic();
        let mpi = regard_mpi::Mpi::start(patience).ok_or_else(|| Unusable("MPI does not start".to_owned()))?;
        match by {
            Started::Of(of) if mpi.ranks() == 1 => Err(Unusable(format!(
                "this is one of {of} ranks, but MPI knows of one alone, and each would do all of the work; start them with mpirun, or with \
                 srun --mpi=pmix (srun --mpi=list says which kinds there are)"
            ))
            .into()),
            _ => Ok(Self::Mpi(mpi)),
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn started(by: Started, _: Duration) -> Result<Self> {
        let of = match by {
            Started::Alone | Started::First => return Ok(Self::Alone(Alone)),
            Started::Of(of) => of.to_string(),
            Started::OfSeveral => "several".to_owned(),
        };
        let build = "cargo build --release -p regard-cli --features mpi";
        Err(Unusable(format!(
            "this is one of {of} ranks, but the program was built without MPI, and each would do all of the work; build it with: {build}"
        ))
        .into())
    }

    /// Bytes that have come from other ranks.
    pub(crate) fn bytes_received(&self) -> u64 {
        match self {
            Self::Alone(_) => 0,
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.bytes_received(),
        }
    }

    /// An error of one rank ends the job: the others would wait for it.
    pub(crate) fn or_end<T>(&self, result: Result<T>) -> Result<T> {
        #[cfg(feature = "mpi")]
        if let (Self::Mpi(mpi), Err(error)) = (self, &result) {
            crate::output::note(format_args!("error: {}", crate::common::causes(error)));
            // Another rank, which waits for this one or for the same, may know better what is the matter: let it say so.
            std::thread::sleep(GRACE);
            mpi.abort_with(crate::code_of(error));
        }
        result
    }
}

impl Exchange for Ranks {
    fn rank(&self) -> usize {
        match self {
            Self::Alone(alone) => alone.rank(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.rank(),
        }
    }

    fn ranks(&self) -> usize {
        match self {
            Self::Alone(alone) => alone.ranks(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.ranks(),
        }
    }

    fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> std::result::Result<(), Failure> {
        match self {
            Self::Alone(alone) => alone.send(to, tag, bytes),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.send(to, tag, bytes),
        }
    }

    fn receive(&self, from: usize, tag: Tag) -> std::result::Result<Vec<u8>, Failure> {
        match self {
            Self::Alone(alone) => alone.receive(from, tag),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.receive(from, tag),
        }
    }
}

/// The most memory, in bytes, and the seconds of all threads; NaN where the system does not tell.
pub(crate) fn process_costs() -> [f64; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<f64>().ok());
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    // User and system time, in hundredths of a second.
    let ticks = |i: usize| fields.get(i).and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
    [peak.map_or(f64::NAN, |kilobytes| kilobytes * 1024.0), (ticks(11) + ticks(12)) / 100.0]
}
