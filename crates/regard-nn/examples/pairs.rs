//! An encoder-decoder that learns to reverse words, or to write numbers in words.
//!
//!     cargo run --release -p regard-nn --example pairs -- [reverse|number_words] [steps]

use regard_nn::experiments::pairs::{PairKind, PairsConfig, learn_pairs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind: PairKind = arguments.next().map_or(Ok(PairKind::Reverse), |name| serde_json::from_value(name.into()))?;
    let mut config = PairsConfig::new(kind);
    if let Some(steps) = arguments.next() {
        config.train.steps = steps.parse()?;
    } else if std::env::var_os("REGARD_EXAMPLE_SMALL").is_some() {
        config.train.steps = 5;
    }
    let start = std::time::Instant::now();
    let result = learn_pairs(&config, &mut |_| {})?;
    for point in &result.curve {
        println!("step {:5}: loss {:.4}", point.step, point.loss);
    }
    println!(
        "{:.2} % of {} held-out inputs right, after {:.0} s",
        100.0 * result.exact_match,
        result.held_out,
        start.elapsed().as_secs_f64()
    );
    for example in &result.examples {
        println!(
            "  {} -> {} ({})",
            example.source,
            example.written,
            if example.written == example.right { "right" } else { &example.right }
        );
    }
    for map in &result.maps {
        println!(
            "block {}, head {}: {:.2} of its weight on the anti-diagonal of {:?}",
            map.layer, map.head, map.anti_diagonal, result.mapped
        );
    }
    Ok(())
}
