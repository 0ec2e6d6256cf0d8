//! What a model costs on this machine: `cargo run --release --example speed -- MODEL [prefill tokens] [tokens to write]`.

use regard_model::{Edits, Error, Generation, Model, Sources};
use std::time::Instant;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().map_or_else(Model::built_in, Model::load)?;
    let mut number = |otherwise: usize| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (prefill, count) = (number(512), number(100));
    let (none, nothing) = (Edits::default(), Sources::default());
    let ids = model.own_texts(1, prefill)?.swap_remove(0);
    for _ in 0..4 {
        let begin = Instant::now();
        model.run(&ids, &none, &nothing)?;
        let seconds = begin.elapsed().as_secs_f64();
        println!("prefill of {} tokens: {:.1} ms, {:.0} tokens/s", ids.len(), 1e3 * seconds, ids.len() as f64 / seconds);
    }
    for _ in 0..3 {
        let mut first = None;
        let written = model.generate(&ids[..8.min(ids.len())], &Generation::greedy(count), &none, &nothing, |_| {
            first.get_or_insert_with(Instant::now);
            true
        })?;
        let seconds = first.map_or(f64::NAN, |first| first.elapsed().as_secs_f64());
        println!("decoding: {:.1} tokens/s ({} tokens)", (written.len() as f64 - 1.0) / seconds, written.len());
    }
    Ok(())
}
