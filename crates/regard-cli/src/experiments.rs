//! The experiments' arguments.

use crate::common::{Common, Out, Outcome, Sizes, Unusable, figure_files, table_files, write_files};
use crate::output::note;
use anyhow::Result;
use clap::{Args, ValueEnum};
use regard_lab::experiments::{
    BenchConfig, ChecksConfig, EntropyConfig, HeadsConfig, Loss, Numbers, ParityConfig, PatternsConfig, Progress, RobustnessConfig,
    SweepConfig, agrees, find_torch,
};
use regard_lab::{Folder, Table, Tables, claims, draw};
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NumbersArg {
    /// torch.manual_seed(seed + d_k), torch.randn; reproduced here, PyTorch is not needed
    Pytorch,
    /// Regard's own counter-based numbers, in double precision
    Regard,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LossArg {
    /// mean(out^2)
    MeanSquare,
    /// sum(out^2)
    SumSquare,
    /// sum(out)
    Sum,
    /// A random direction, scaled so that the gradients on the weights have variance 1
    Unit,
}

/// Run an experiment: folder first, so that it does not compute for nothing; then files, then tables on the screen.
pub(crate) fn experiment(
    name: &'static str,
    common: &Common,
    out: &Out,
    run: impl FnOnce(&dyn Progress) -> regard_lab::Result<Vec<Table>>,
) -> Result<Outcome> {
    let bar = common.start(name)?;
    let folder = Folder::open(&out.out, name)?;
    let mut tables = Tables::from(run(&bar)?);
    drop(bar);
    let judged = claims::judge_what_is_there(&tables);
    if !judged.is_empty() {
        let mut verdicts = claims::table(&judged);
        verdicts.origin.clone_from(&tables.all()[0].origin);
        tables.put(verdicts);
    }
    // Everything is drawn before anything is written.
    let mut files = table_files(tables.all());
    files.extend(figure_files(&draw::all(&tables)?)?);
    write_files(folder, &files, common)?;
    common.show(tables.all())?;
    Ok(Outcome::Done)
}

/// Sweep d_k, without and with the scale: weights, scores and gradients
///
/// By default this is the run of the first document, number for number: 8 tokens, the draws of PyTorch's seeds 42 + d_k, loss mean(out^2).
/// Writes attention_sweep_results.csv, and the weights of the first draws.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  regard sweep --d-k 4,16,64,256,1024,4096 --numbers regard --loss unit --seeds 400")]
pub(crate) struct Sweep {
    /// Head dimensions, each up to 4096
    #[arg(long, default_value = "4,16,64,256", value_name = "LIST")]
    d_k: Sizes,
    /// Tokens: queries and keys of each matrix
    #[arg(long, default_value_t = 8, value_name = "N")]
    seq: usize,
    /// Draws per cell; the table has means over them
    #[arg(long, default_value_t = 1, value_name = "N")]
    seeds: usize,
    /// Which draws
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Where the random numbers come from
    #[arg(long, value_enum, default_value = "pytorch")]
    numbers: NumbersArg,
    /// What the gradients are gradients of
    #[arg(long, value_enum, default_value = "mean-square")]
    loss: LossArg,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Sweep {
    pub(crate) fn run(self) -> Result<Outcome> {
        let numbers = match self.numbers {
            NumbersArg::Pytorch => Numbers::PyTorch,
            NumbersArg::Regard => Numbers::Regard,
        };
        let loss = match self.loss {
            LossArg::MeanSquare => Loss::MeanSquare,
            LossArg::SumSquare => Loss::SumSquare,
            LossArg::Sum => Loss::Sum,
            LossArg::Unit => Loss::Unit,
        };
        let config = SweepConfig { d_k: self.d_k.0, seq: self.seq, seeds: self.seeds, seed: self.seed, numbers, loss };
        experiment("sweep", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// The same over many seeds: mean, spread, exact expectation, and where published numbers lie
///
/// The expectations are computed by quadrature, without sampling; `deviation` is the distance of the mean from it in standard errors.
/// Writes attention_robustness_summary.csv.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  regard robustness --d-k 64,256 --seq 8 --seeds 20000")]
pub(crate) struct Robustness {
    /// Head dimensions, each up to 4096
    #[arg(long, default_value = "4,16,64,256,1024", value_name = "LIST")]
    d_k: Sizes,
    /// Numbers of tokens
    #[arg(long, default_value = "4,8", value_name = "LIST")]
    seq: Sizes,
    /// Draws per cell
    #[arg(long, default_value_t = 2000, value_name = "N")]
    seeds: usize,
    /// Which draws
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Robustness {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = RobustnessConfig { d_k: self.d_k.0, seq: self.seq.0, seeds: self.seeds, seed: self.seed };
        experiment("robustness", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// Entropy of the weights against d_k at 20 tokens, and the weights of one row
///
/// Writes attention_entropy.csv and attention_entropy_row.csv.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  regard entropy --d-k 8,32,128,512 --seq 64")]
pub(crate) struct Entropy {
    /// Head dimensions, each up to 4096
    #[arg(long, default_value = "8,16,32,64,128,256,512", value_name = "LIST")]
    d_k: Sizes,
    /// Tokens
    #[arg(long, default_value_t = 20, value_name = "N")]
    seq: usize,
    /// Draws per cell
    #[arg(long, default_value_t = 2000, value_name = "N")]
    seeds: usize,
    /// Which draws
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The dimension whose first row is shown weight by weight
    #[arg(long, default_value_t = 256, value_name = "N")]
    row_d_k: usize,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Entropy {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = EntropyConfig { d_k: self.d_k.0, seq: self.seq, seeds: self.seeds, seed: self.seed, row_d_k: self.row_d_k };
        experiment("entropy", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// Masks as patterns: pictures, cost, statistics, and rows that see nothing
///
/// Full, causal, local, reverse, strictly future, dilated, block-sparse, sinks + window. Writes attention_patterns.csv, the weights, what becomes of
/// rows without any visible key, and patterns_time.csv, the one table that differs from run to run.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  regard patterns --seq 48 --window 5 --dilation 3 --timed-seq 8192")]
pub(crate) struct Patterns {
    /// Tokens of the pictures, up to 256
    #[arg(long, default_value_t = 32, value_name = "N")]
    seq: usize,
    /// Reach of the local patterns to each side
    #[arg(long, default_value_t = 3, value_name = "N")]
    window: usize,
    /// Step of the dilated pattern
    #[arg(long, default_value_t = 2, value_name = "N")]
    dilation: usize,
    /// Side of a block of the block-sparse pattern
    #[arg(long, default_value_t = 8, value_name = "N")]
    block: usize,
    /// Keys that every query sees in "sinks + window"
    #[arg(long, default_value_t = 2, value_name = "N")]
    sinks: usize,
    /// Head dimension
    #[arg(long, default_value_t = 64, value_name = "N")]
    d_k: usize,
    /// Which draw
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tokens of the time measurement
    #[arg(long, default_value_t = 4096, value_name = "N")]
    timed_seq: usize,
    /// Leave the time measurement out
    #[arg(long)]
    no_timing: bool,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Patterns {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = PatternsConfig {
            seq: self.seq,
            window: self.window,
            dilation: self.dilation,
            block: self.block,
            sinks: self.sinks,
            d_k: self.d_k,
            timed_seq: (!self.no_timing).then_some(self.timed_seq),
            seed: self.seed,
        };
        experiment("patterns", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// How different are untrained heads? Plain cosine, centred cosine, Jensen-Shannon
///
/// The plain cosine of two maps, often published as their similarity, is 1 / (tokens x sum of squared weights) for independent heads: it measures
/// sharpness. Writes head_diversity.csv and head_sharpness.csv.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  regard heads --heads 2,4,16 --d-model 128 --seq 50")]
pub(crate) struct Heads {
    /// Numbers of heads; each divides d_model
    #[arg(long, default_value = "1,2,4,8", value_name = "LIST")]
    heads: Sizes,
    /// Width of the model
    #[arg(long, default_value_t = 64, value_name = "N")]
    d_model: usize,
    /// Tokens
    #[arg(long, default_value_t = 20, value_name = "N")]
    seq: usize,
    /// Draws
    #[arg(long, default_value_t = 2000, value_name = "N")]
    seeds: usize,
    /// Which draws
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Heads {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = HeadsConfig { heads: self.heads.0, d_model: self.d_model, seq: self.seq, seeds: self.seeds, seed: self.seed };
        experiment("heads", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// Four questions about attention, each answered by an experiment
///
/// How q.k grows with d_k; why to hide with -inf and not with 0; who sets the width of the output; whether the output can have a higher rank than
/// the input. And a popular test for vanishing gradients, run on attention that should fail it.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  regard checks --d-k 16,64,256,1024 --seeds 4000")]
pub(crate) struct Checks {
    /// Head dimensions of the first question
    #[arg(long, default_value = "1,4,16,64,256,512,1024,4096", value_name = "LIST")]
    d_k: Sizes,
    /// Draws per dimension
    #[arg(long, default_value_t = 1000, value_name = "N")]
    seeds: usize,
    /// Which draws
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Checks {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = ChecksConfig { d_k: self.d_k.0, seeds: self.seeds, seed: self.seed };
        experiment("checks", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// Compare with PyTorch: stored answers always, PyTorch itself where a Python has it
///
/// Looks for PyTorch in the active virtual environment, in python3 and in python, and says so when it is in none of them.
/// The exit code is 1 when a comparison does not hold. Writes parity_golden.csv and parity_torch.csv.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  regard parity --python .venv/bin/python")]
pub(crate) struct Parity {
    /// A Python that has PyTorch
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Seconds that Python is waited for
    #[arg(long, default_value_t = 120, value_name = "S")]
    timeout: u64,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Parity {
    pub(crate) fn run(self) -> Result<Outcome> {
        let python = find_torch(self.python.as_deref(), self.timeout)?;
        if let (Some(given), None) = (&self.python, &python) {
            return Err(Unusable(format!(
                "{} cannot import torch: give a Python that has PyTorch, or leave --python out",
                given.display()
            ))
            .into());
        }
        if python.is_none() {
            note("no Python with PyTorch was found (python3 -c 'import torch' fails): comparing with the stored answers only");
        }
        let mut holds = true;
        let config = ParityConfig { python, timeout: self.timeout };
        experiment("parity", &self.common, &self.out, |progress| {
            let tables = config.run(progress)?;
            holds = agrees(&tables);
            Ok(tables)
        })?;
        if !self.common.quiet {
            note(if holds { "every comparison holds" } else { "a comparison does not hold: see the column `agrees`" });
        }
        Ok(if holds { Outcome::Done } else { Outcome::Disagrees })
    }
}

/// Time attention at your shape against the ceiling of this machine
///
/// Time, GFLOP/s, GB/s and memory; the ceilings are measured: multiply-adds in registers, and reading memory, on the same threads.
/// Leave the machine alone meanwhile. Writes bench.csv.
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  regard bench --heads 32 --kv-heads 8 --seq 4096 --head-dim 128 --causal\n  regard bench --heads 32 --seq-q 1 --seq-kv 32768 --head-dim 128      # decoding"
)]
pub(crate) struct Bench {
    /// Batch entries
    #[arg(long, default_value_t = 1, value_name = "N")]
    batch: usize,
    /// Query heads
    #[arg(long, default_value_t = 8, value_name = "N")]
    heads: usize,
    /// Key and value heads [default: as many as query heads]
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Queries and keys
    #[arg(long, default_value_t = 1024, value_name = "N")]
    seq: usize,
    /// Queries, if their number is another than --seq
    #[arg(long, value_name = "N")]
    seq_q: Option<usize>,
    /// Keys, if their number is another than --seq
    #[arg(long, value_name = "N")]
    seq_kv: Option<usize>,
    /// Width of a head
    #[arg(long, default_value_t = 64, value_name = "N")]
    head_dim: usize,
    /// No query sees a later key
    #[arg(long)]
    causal: bool,
    /// Double precision
    #[arg(long)]
    double: bool,
    /// How long to measure at least
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    seconds: f64,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Bench {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = BenchConfig {
            batch: self.batch,
            heads: self.heads,
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            seq_q: self.seq_q.unwrap_or(self.seq),
            seq_kv: self.seq_kv.unwrap_or(self.seq),
            head_dim: self.head_dim,
            causal: self.causal,
            double: self.double,
            seconds: self.seconds,
        };
        experiment("bench", &self.common, &self.out, |progress| config.run(progress))
    }
}
