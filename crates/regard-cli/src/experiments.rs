//! The experiments' arguments.

use crate::common::{Common, Out, Outcome, Sizes, write_tables};
use anyhow::Result;
use clap::{Args, ValueEnum};
use regard_lab::experiments::{EntropyConfig, Loss, Numbers, Progress, RobustnessConfig, SweepConfig};
use regard_lab::{Folder, Table};

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
fn experiment(
    name: &'static str,
    common: &Common,
    out: &Out,
    run: impl FnOnce(&dyn Progress) -> regard_lab::Result<Vec<Table>>,
) -> Result<Outcome> {
    let bar = common.start(name)?;
    let mut folder = Folder::open(&out.out, name)?;
    let tables = run(&bar)?;
    drop(bar);
    let names = write_tables(&mut folder, &tables)?;
    folder.finish()?;
    common.show(&tables)?;
    common.wrote(&out.out, &names);
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
