//! How long a training step and a written token take, for the small and the large model of the benchmark: one line of JSON.
//! `bench/train_step.py` puts it beside PyTorch.
//!
//! ```text
//! cargo run --release -p regard-nn --example train_step -- [small|large] [threads] [steps] [turns]
//! ```
//!
//! With `turns` it does so again for every line of its input, and a line each: programs can take turns step by step.

use regard_nn::data::{Target, Text};
use regard_nn::generate::{Sampling, Writer};
use regard_nn::training::trainer::{TextTask, TrainConfig, Trainer};
use regard_nn::{LanguageModel, MaskKind, ModelConfig};
use std::time::Instant;

/// Attention in loops: large blocks go round, as in the command.
#[global_allocator]
static MEMORY: regard::CachingAllocator = regard::CachingAllocator::new();

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let large = arguments.next().is_some_and(|size| size == "large");
    let threads: usize = arguments.next().map_or(Ok(1), |n| n.parse())?;
    let small_run = std::env::var_os("REGARD_EXAMPLE_SMALL").is_some();
    let steps: usize = arguments.next().map_or(Ok(if small_run { 2 } else { 20 }), |n| n.parse())?;
    let in_turns = arguments.next().is_some_and(|word| word == "turns");
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    let (config, batch) = if large {
        (ModelConfig { width: 384, heads: 6, layers: 6, context: 256, ..ModelConfig::default() }, 16)
    } else {
        (ModelConfig::default(), 32)
    };
    let model = LanguageModel::new(config)?;
    let tokens = (0..100_000u64).map(|i| (i * i % 65) as u32).collect();
    let text = Text::split(tokens, model.config().context)?;
    let mut task = TextTask::new(&model, &text, MaskKind::Causal, Target::Next);
    let mut trainer = Trainer::new(model.layout(), TrainConfig { batch, ..TrainConfig::default() })?;
    let mut turn = || -> Result<(), Box<dyn std::error::Error>> {
        let mut seconds = Vec::new();
        for _ in 0..steps {
            let start = Instant::now();
            trainer.advance(&mut task)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        let token_seconds = write(&model, trainer.params())?;
        let peak = peak_megabytes().map_or("null".to_owned(), |peak| peak.to_string());
        println!("{{\"seconds\": {seconds:?}, \"token_seconds\": {token_seconds:?}, \"peak_megabytes\": {peak}}}");
        Ok(())
    };
    if !in_turns {
        return turn();
    }
    for line in std::io::stdin().lines() {
        line?;
        turn()?;
    }
    Ok(())
}

/// Seconds per token of a text as long as the context.
fn write(model: &LanguageModel, params: &[f32]) -> Result<f64, Box<dyn std::error::Error>> {
    let mut writer = Writer::new(model, params, &[1], Sampling::default(), true)?;
    let count = model.config().context - 4;
    let start = Instant::now();
    for _ in 0..count {
        writer.next_token()?;
    }
    Ok(start.elapsed().as_secs_f64() / count as f64)
}

/// The most memory that this process has had, where the system tells.
fn peak_megabytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}
