//! How the model inside the crate was made:
//!
//! ```sh
//! cargo run --release -- train --out /tmp/default --characters 1000000 --tokenizer bpe+bos:300 --width 64 --layers 3 --heads 4 --context
//! 96 \
//!     --positions rotary --norm rms --tied --steps 3000 --batch 16 --rate 0.003 --repeats-first 1600 --repeats 0.5
//! cargo run --release -p regard-model --example default_model -- /tmp/default crates/regard-model/src/default
//! ```
//!
//! At first all windows are random tokens that repeat in segments of any length in which no token comes twice: what
//! follows can only be known by looking for the token's last place (induction), which needs keys that know the token before them (previous
//! token). Then half of them are stories of our grammar. Every window begins with a token of its own, where heads rest that find nothing
//! (sinks). Weights are stored in 16 bits.

use half::f16;
use regard_nn::training::folder::Trained;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

fn export(from: &Path, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let trained = Trained::read(from)?;
    let entries = trained.model.layout().entries();
    let bytes: Vec<Vec<u8>> = entries
        .iter()
        .map(|entry| trained.params[entry.range.clone()].iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect())
        .collect();
    let views =
        entries.iter().zip(&bytes).map(|(entry, bytes)| Ok((&entry.name, TensorView::new(Dtype::F16, entry.shape.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    std::fs::create_dir_all(to)?;
    std::fs::write(to.join("model.safetensors"), safetensors::serialize(views, None)?)?;
    std::fs::write(to.join("config.json"), serde_json::to_string_pretty(trained.model.config())? + "\n")?;
    std::fs::copy(from.join("tokenizer.json"), to.join("tokenizer.json"))?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [from, to] => export(Path::new(from), Path::new(to)),
        _ => Err("usage: default_model FOLDER FOLDER, from a trained model to the crate's".into()),
    }
}
