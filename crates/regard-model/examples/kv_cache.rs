//! What a cache of fewer bits costs and gains: `cargo run --release --example kv_cache -- MODEL [texts] [tokens] [context] [steps]`.
//!
//! The loss of every token of the texts as if it were decoded, against f32: the mean difference and its 95 % interval over texts. Then
//! decoding at a context of that many tokens: the types take turns.

use regard_model::paired_test::interval;
use regard_model::{Edits, Error, Generation, Model, Sources};
use regard_nn::cache::CacheType;
use std::time::Instant;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().map_or_else(Model::built_in, Model::load)?;
    let mut number = |otherwise: usize| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (texts, tokens, context, steps) = (number(16), number(256), number(4096), number(32));
    let (none, nothing) = (Edits::default(), Sources::default());
    let texts = model.own_texts(texts, tokens)?;
    let losses = |kind: CacheType| -> Result<Vec<f64>, Error> {
        texts.iter().map(|ids| Ok(model.evaluate_with_cache(ids, None, &none, &nothing, kind, |_, _| {})?.loss())).collect()
    };
    println!(
        "{} texts of {} tokens, {} layers, {} kv heads of {}",
        texts.len(),
        texts[0].len(),
        model.shape().layers,
        model.shape().kv_heads,
        model.head_dim()
    );
    let exact = losses(CacheType::F32)?;
    println!("f32   loss {:.5}", exact.iter().sum::<f64>() / exact.len() as f64);
    for kind in &CacheType::ALL[1..] {
        let differences: Vec<f64> = losses(*kind)?.iter().zip(&exact).map(|(x, y)| x - y).collect();
        let (low, high) = interval(&differences, 1);
        println!("{:<5} {:+.6} [{low:+.6}, {high:+.6}]", kind.name(), differences.iter().sum::<f64>() / differences.len() as f64);
    }
    let ids: Vec<u32> = model.own_texts(64, tokens)?.concat().into_iter().cycle().take(context).collect();
    let mut rates = vec![Vec::new(); CacheType::ALL.len()];
    for _ in 0..3 {
        for (kind, rates) in CacheType::ALL.iter().zip(&mut rates) {
            let options = Generation { cache_type: *kind, ..Generation::greedy(steps + 1) };
            let (mut first, mut written) = (None, 0);
            model.generate(&ids, &options, &none, &nothing, |_| {
                first.get_or_insert_with(Instant::now);
                written += 1;
                true
            })?;
            let seconds = first.map_or(f64::NAN, |first| first.elapsed().as_secs_f64());
            rates.push((written - 1) as f64 / seconds);
        }
    }
    for (kind, rates) in CacheType::ALL.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        let bytes = model.cache_bytes(*kind, context);
        println!(
            "{:<5} {:.1} MB, {:.1} tokens/s (median of {}) at {context} tokens",
            kind.name(),
            bytes as f64 / 1e6,
            rates[rates.len() / 2],
            rates.len()
        );
    }
    Ok(())
}
