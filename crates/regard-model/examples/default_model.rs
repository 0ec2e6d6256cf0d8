//! How the model inside the crate was made:
//!
//! ```sh
//! cargo run --release -p regard-model --example default_model -- text > /tmp/text.txt
//! cargo run --release -- train --text /tmp/text.txt --out /tmp/default --width 96 --layers 3 --heads 4 --context 128 --positions rotary --norm rms --tied \
//!     --steps 3000 --batch 16
//! cargo run --release -p regard-model --example default_model -- export /tmp/default crates/regard-model/src/default
//! ```
//!
//! Half of the text are stories of our grammar, half are letters at random that are said twice or three times: the second time can be known from the first,
//! by heads that look for what followed the same letter before.

use regard_nn::random::Draws;
use regard_nn::training::folder::Trained;
use safetensors::tensor::{Dtype, TensorView};
use std::io::Write;
use std::path::Path;

const CHARACTERS: usize = 1_200_000;
const SEED: u64 = 1706;

/// Stories and repeated sequences in turn, made of the stories' own characters.
fn text() -> String {
    let stories = regard_nn::stories::write(CHARACTERS / 2, SEED);
    let letters: Vec<char> = ('a'..='z').filter(|letter| stories.contains(*letter)).collect();
    let mut draws = Draws::at(SEED, &[1]);
    let mut text = String::with_capacity(CHARACTERS);
    let mut lines = stories.lines().peekable();
    while lines.peek().is_some() {
        let story: Vec<&str> = lines.by_ref().take(6).collect();
        let target = text.len() + 2 * story.iter().map(|line| line.len() + 1).sum::<usize>();
        story.iter().for_each(|line| text.extend([line, "\n"]));
        while text.len() < target {
            let sequence: String = (0..8 + draws.below(25)).map(|_| letters[draws.below(letters.len())]).collect();
            let times = 2 + draws.below(2);
            text.extend(std::iter::repeat_n(sequence.as_str(), times));
            text.push('\n');
        }
    }
    text
}

fn export(from: &Path, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let trained = Trained::read(from)?;
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = trained
        .model
        .layout()
        .entries()
        .iter()
        .map(|entry| {
            (entry.name.clone(), entry.shape.clone(), trained.params[entry.range.clone()].iter().flat_map(|x| x.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)));
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
        ["text"] => Ok(std::io::stdout().write_all(text().as_bytes())?),
        ["export", from, to] => export(Path::new(from), Path::new(to)),
        _ => Err("usage: text, or export FOLDER FOLDER".into()),
    }
}
