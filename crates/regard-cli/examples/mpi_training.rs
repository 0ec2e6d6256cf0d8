//! Ranks share a training, without folder and command.
//!
//! ```sh
//! mpirun --bind-to none -n 3 target/debug/examples/mpi_training [panic]
//! ```
//!
//! With `panic`, rank 1 panics in the middle of a step.

use regard_cli::ranks::ByExchange;
use regard_dist::Mpi;
use regard_nn::data::{Target, Text};
use regard_nn::tensors::layout::Layout;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::training::ranks::Ranks;
use regard_nn::training::trainer::{Task, TextTask, TrainConfig, Trainer};
use regard_nn::{Error, LanguageModel, Loss, MaskKind, ModelConfig, stories};
use std::time::{Duration, SystemTime};

/// The step in which rank 1 panics.
const FAULT: u64 = 20;

/// A task that ends badly, if it is told to.
struct Panicking<'t>(TextTask<'t>, bool);

impl Task for Panicking<'_> {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    fn gradient(&mut self, p: &[f32], g: &mut [f32], config: &TrainConfig, step: u64, piece: usize) -> Result<Loss, Error> {
        if self.1 && step == FAULT {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
            println!("fault at {now}");
            panic!("on purpose");
        }
        self.0.gradient(p, g, config, step, piece)
    }
}

fn run(ranks: &dyn Ranks, panics: bool) -> Result<f64, Error> {
    let story = stories::write(20_000, 1);
    let tokenizer = Tokenizer::train(TokenizerKind::Char, &story)?;
    let model = LanguageModel::new(ModelConfig { vocab: tokenizer.vocab(), context: 32, ..ModelConfig::default() })?;
    let text = Text::split(tokenizer.encode(&story)?, 32)?;
    let config = TrainConfig { steps: 100, batch: 8, parts: 8, ..TrainConfig::default() };
    let mut trainer = Trainer::new(model.layout(), config)?.share(ranks, "stories")?;
    let mut task = Panicking(TextTask::new(&model, &text, MaskKind::Causal, Target::Next), panics && ranks.rank() == 1);
    let mut last = f64::NAN;
    trainer.run_by(&mut task, ranks, |_, report| {
        last = report.loss;
        Ok(true)
    })?;
    Ok(last)
}

fn main() {
    Mpi::abort_on_panic();
    let panics = std::env::args().nth(1).is_some_and(|word| word == "panic");
    let mpi = Mpi::start(Duration::from_secs(60)).expect("MPI starts once");
    let ranks = ByExchange(&mpi);
    match run(&ranks, panics) {
        Ok(loss) => println!("rank {} of {}: loss {loss}", ranks.rank(), ranks.ranks()),
        Err(error) => {
            eprintln!("error: {error}");
            mpi.abort();
        }
    }
}
