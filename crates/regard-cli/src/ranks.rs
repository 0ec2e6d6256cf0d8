//! Which rank of which job this process is: of MPI, if it was started so, or the only one.

use crate::common::Unusable;
use anyhow::Result;
use regard_dist::{Alone, Exchange, Failure, Tag};
use std::time::Duration;

/// Set by those who start ranks: OpenMPI, MPICH and its kin, Slurm's own.
const SIZES: [&str; 4] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE"];

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
        let of = SIZES.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok()).unwrap_or(1);
        if of < 2 {
            return Ok(Self::Alone(Alone));
        }
        Self::started(of, Duration::from_secs_f64(watchdog))
    }

    #[cfg(feature = "mpi")]
    fn started(_: usize, patience: Duration) -> Result<Self> {
        regard_mpi::Mpi::abort_on_panic();
        regard_mpi::Mpi::start(patience).map(Self::Mpi).ok_or_else(|| Unusable("MPI does not start".to_owned()).into())
    }

    #[cfg(not(feature = "mpi"))]
    fn started(of: usize, _: Duration) -> Result<Self> {
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
