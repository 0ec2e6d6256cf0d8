//! The mask experiment on a text, or on stories: which masks look good in training, and which can write.
//!
//!     cargo run --release -p regard-nn --example masks -- [TEXT] [variant ...]

use regard_nn::experiments::masks::{MasksConfig, Variant, masks};
use regard_nn::stories;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let small = std::env::var_os("REGARD_EXAMPLE_SMALL").is_some();
    let mut arguments = std::env::args().skip(1);
    let text = match arguments.next() {
        Some(path) => std::fs::read_to_string(path)?,
        None => stories::write(if small { 20_000 } else { 1_000_000 }, 1),
    };
    let mut config = MasksConfig::default();
    let chosen: Vec<Variant> = arguments.map(|name| serde_json::from_value(name.into())).collect::<Result<_, _>>()?;
    if !chosen.is_empty() {
        config.variants = chosen;
    }
    if small {
        config.train.steps = 5;
        config.windows = 16;
        config.samples = 2;
        config.variants.truncate(2);
    }
    let tokenizer = Tokenizer::train(TokenizerKind::Char, &text)?;
    let start = std::time::Instant::now();
    let result = masks(&config, &text, &tokenizer, &mut |progress| {
        if let (Some(loss), 0) = (progress.loss, progress.step % 100) {
            eprintln!(
                "{:7.1} s  {} step {} of {}: loss {loss:.3}",
                start.elapsed().as_secs_f64(),
                progress.stage,
                progress.step,
                progress.steps
            );
        }
    })?;
    println!("{}", serde_json::to_string(&result.baselines)?);
    println!("a story's entropy: {:.4} nats per character", stories::entropy_rate());
    for v in &result.variants {
        println!(
            "{:22} train {:.3}, validation {:.3} ({:.1} %), last position {:.3}, prefix-only {:.4}, causal swapped in {:.3}, leak {:.3} then {}",
            v.variant.name(),
            v.curve.last().map_or(f64::NAN, |c| c.loss),
            v.validation,
            100.0 * v.accuracy,
            v.last_position,
            v.prefix_only_mean,
            v.causal_swapped_in,
            v.leak_before,
            v.leak
        );
        println!("    placeholder {:?}", v.placeholder);
        for written in v.sampled.iter().chain(&v.greedy) {
            println!(
                "    real words {:.2}, surprise {:.2}: {:?} -> {:?}",
                written.real_words, written.surprise, written.prompt, written.sample
            );
        }
    }
    Ok(())
}
