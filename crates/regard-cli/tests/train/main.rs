//! `regard train`, `eval` and `generate` as people use them: interrupted, resumed, and given unusable input.

#[path = "../common/mod.rs"]
mod common;
mod interrupted;

use common::{assert_same, command, fails, files, refused, regard, works};
use regard_nn::tokenizer::Tokenizer;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A model that learns in no time.
const TINY: [&str; 12] = ["--characters", "6000", "--width", "16", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "4"];

/// `regard train` of a tiny model, changed by these options.
fn train(more: &[&str]) -> Vec<String> {
    let tiny = TINY.chunks(2).filter(|option| !more.contains(&option[0])).flatten();
    ["train"].iter().chain(tiny).chain(more).map(|word| (*word).to_owned()).collect()
}

fn trained(more: &[&str], folder: &Path) -> String {
    let all = train(more);
    works(&all.iter().map(String::as_str).collect::<Vec<_>>(), folder)
}

fn refused_training(more: &[&str], folder: &Path, words: &str) {
    let all = train(more);
    refused(&all.iter().map(String::as_str).collect::<Vec<_>>(), folder, words);
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// Steps done, as the folder's summary says.
fn step(folder: &Path) -> Option<u64> {
    let bytes = std::fs::read(folder.join("model.json")).ok()?;
    serde_json::from_slice::<serde_json::Value>(&bytes).ok()?["step"].as_u64()
}

const FILES: [&str; 6] = ["model.json", "model.safetensors", "tokenizer.json", "training.csv", "training.png", "training.svg"];

#[test]
fn training_learns_towards_the_floor_and_writes_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let summary = json(&trained(&["--steps", "150", "--validate-every", "50", "--json"], dir.path()));
    let row = &summary[0]["rows"][0];
    let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
    assert!((number("floor") - regard_nn::stories::entropy_rate()).abs() < 1e-12);
    assert!(number("floor") < number("loss") && number("loss") < 2.9 && number("validation_loss") < 2.9, "{row}");
    let out = dir.path().join("model");
    let written = files(&out);
    assert_eq!(written.keys().filter(|name| *name != ".regard.json").collect::<Vec<_>>(), FILES.iter().collect::<Vec<_>>());
    let csv = String::from_utf8(written["training.csv"].clone()).unwrap();
    assert!(csv.contains("# command: regard train --characters 6000 --tokenizer char --width 16 --layers 1"), "{csv}");
    let rows: Vec<&str> = csv.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows[0], "step,loss,validation_loss,accuracy,gradient_norm,rate");
    assert_eq!(rows.len(), 151);
    assert_eq!(rows[1..].iter().filter(|row| !row.split(',').nth(2).unwrap().is_empty()).count(), 3);
    assert!(String::from_utf8(written["training.svg"].clone()).unwrap().contains("entropy of the text"));
    assert!(written["training.png"].starts_with(b"\x89PNG"));

    let eval = json(&works(&["eval", "model", "--json"], dir.path()))[0]["rows"][0].clone();
    let number = |name: &str| eval[name].as_f64().unwrap_or_else(|| panic!("{name} of {eval}"));
    assert_eq!(eval["part"], "validation");
    assert_eq!((number("tokens"), number("step")), (number("characters"), 150.0));
    assert!(number("tokens") > 550.0 && number("tokens") < 700.0, "a tenth of 6000 characters and of a story: {eval}");
    assert!(number("floor") < number("loss") && number("loss") < 2.9);
    assert!((number("perplexity") - number("loss").exp()).abs() < 1e-9);
    assert!((number("bits_per_character") - number("loss") / 2f64.ln()).abs() < 1e-12);
    assert!((number("floor_bits_per_character") - number("floor") / 2f64.ln()).abs() < 1e-12);
    let again = |more: &[&str]| json(&works(&[&["eval", "model", "--json"], more].concat(), dir.path()))[0]["rows"][0].clone();
    assert_eq!(again(&["--threads", "1"]), eval);
    let closer = again(&["--stride", "1"]);
    assert!(closer["tokens"] == eval["tokens"] && closer["loss"] != eval["loss"], "each token once, from more context: {closer} {eval}");
    assert!((closer["loss"].as_f64().unwrap() - number("loss")).abs() < 0.2);
    assert!(works(&["eval", "model"], dir.path()).contains("bits_per_character"));
}

#[test]
fn resuming_keeps_settings_and_text_and_refuses_others() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.txt"), regard_nn::stories::write(5000, 3)).unwrap();
    std::fs::write(dir.path().join("copy.txt"), regard_nn::stories::write(5000, 3)).unwrap();
    std::fs::write(dir.path().join("b.txt"), regard_nn::stories::write(5000, 4)).unwrap();
    let small = ["train", "--text", "a.txt", "--width", "16", "--heads", "2", "--context", "16", "--steps", "6", "--quiet"];
    works(&small, dir.path());
    let out = dir.path().join("model");
    let before = files(&out);
    let resume = |more: &[&'static str]| [&["train", "--resume"], more].concat();
    for (more, words) in [
        (&["--width", "32"][..], "--width 32 cannot be changed with --resume: the model in model is trained with --width 16"),
        (&["--positions", "rotary"], "--positions rotary cannot be changed with --resume"),
        (&["--tied"], "--tied true"),
        (&["--rate", "0.1"], "--rate 0.1"),
        (&["--parts", "4"], "--parts 4 cannot be changed with --resume: the model in model is trained with --parts 1"),
        (&["--workers", "2"], "--workers 2 is more than the 1 parts of a step; use fewer, or train a new model with more --parts"),
        (&["--tokenizer", "bpe:300"], "--tokenizer bpe:300"),
        (&["--seed", "2"], "--seed 2"),
        (&["--characters", "5000"], "--characters 5000 cannot be changed with --resume: the model in model is trained with --text a.txt"),
        (&["--validate-every", "3"], "--validate-every 3"),
        (&["--steps", "5"], "too few steps: 5; the resumed training has 6"),
        (&["--text", "b.txt"], "the text is not the one that the model in model learns"),
        (&["--out", "nowhere"], "nowhere has no model.safetensors"),
        (&["--overwrite"], "--overwrite"),
    ] {
        refused(&resume(more), dir.path(), words);
    }
    assert_same(&before, &files(&out), "refused");
    // What is the same may be said again; a copy of the text will do; the tokenizer can be made again.
    works(&resume(&["--width", "16", "--text", "copy.txt", "--quiet"]), dir.path());
    assert_same(&before, &files(&out), "nothing to do");
    std::fs::remove_file(out.join("tokenizer.json")).unwrap();
    works(&resume(&["--steps", "9", "--quiet"]), dir.path());
    let after = files(&out);
    assert!(after["tokenizer.json"] == before["tokenizer.json"] && step(&out) == Some(9));
    let csv = String::from_utf8(after["training.csv"].clone()).unwrap();
    assert!(csv.contains("\n6,") && csv.lines().last().unwrap().starts_with("9,"), "{csv}");
    // Without the file, its name is what is missing.
    std::fs::remove_file(dir.path().join("a.txt")).unwrap();
    refused(&resume(&[]), dir.path(), "cannot read a.txt");
    works(&resume(&["--text", "copy.txt", "--quiet"]), dir.path());
}

#[test]
fn model_that_is_there_is_not_overwritten_by_accident() {
    let dir = tempfile::tempdir().unwrap();
    trained(&["--steps", "2"], dir.path());
    let out = dir.path().join("model");
    let before = files(&out);
    refused_training(&["--steps", "3"], dir.path(), "model has a model already: go on with --resume");
    // What is refused must not cost the old model.
    refused_training(&["--steps", "3", "--overwrite", "--heads", "3"], dir.path(), "width is 16; it must be a multiple of heads (3)");
    refused_training(&["--overwrite", "--context", "5000"], dir.path(), "tokens, but at least 5002 are needed");
    assert_same(&before, &files(&out), "refused");
    trained(&["--steps", "3", "--overwrite"], dir.path());
    assert_eq!(step(&out), Some(3));
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    std::fs::write(dir.path().join("mine/training.csv"), "mine").unwrap();
    refused_training(&["--out", "mine"], dir.path(), "mine has a file training.csv already");
    assert_eq!(std::fs::read(dir.path().join("mine/training.csv")).unwrap(), b"mine");
    // A temporary file of a killed training is removed, and nothing else.
    let part = regard_files::names::part(123);
    std::fs::write(out.join(&part), "half").unwrap();
    std::fs::write(out.join(".model.safetensors.123.partial"), "mine").unwrap();
    works(&["train", "--resume"], dir.path());
    let names: Vec<String> = files(&out).into_keys().collect();
    assert!(names.contains(&".model.safetensors.123.partial".to_owned()) && !names.contains(&part), "{names:?}");
}

#[test]
fn every_kind_of_model_can_be_trained_measured_and_let_write() {
    let dir = tempfile::tempdir().unwrap();
    for (i, options) in [
        &["--positions", "rotary", "--norm", "rms", "--mlp", "swiglu", "--kv-heads", "1", "--tied"][..],
        &["--positions", "alibi", "--norm-place", "post", "--clip", "none", "--weight-decay", "0.1", "--warmup", "1"],
        &["--positions", "sinusoidal", "--dropout", "0.2", "--micro-batches", "2", "--rate", "0.01", "--seed", "4"],
        &["--positions", "none", "--tokenizer", "wordpiece:80", "--tied", "false"],
    ]
    .iter()
    .enumerate()
    {
        let out = format!("model{i}");
        trained(&[options, &["--steps", "3", "--quiet", "--out", &out][..]].concat(), dir.path());
        let eval = json(&works(&["eval", &out, "--json"], dir.path()));
        // A tokenizer that loses case and spaces has no floor.
        assert_eq!(eval[0]["rows"][0]["floor"].is_null(), i == 3, "{eval}");
        assert!(works(&["generate", &out, "--tokens", "40"], dir.path()).len() > 40);
    }
}

#[test]
fn generate_writes_the_same_with_and_without_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    trained(&["--steps", "60", "--quiet"], dir.path());
    let write = |more: &[&str]| works(&[&["generate", "model", "--tokens", "70"], more].concat(), dir.path());
    // 70 tokens with a context of 16: the window moves on more than once.
    for options in [&[][..], &["--temperature", "0"], &["--temperature", "0.8", "--top-k", "9", "--top-p", "0.9", "--seed", "5"]] {
        let text = write(options);
        assert_eq!(text, write(&[options, &["--no-cache", "--threads", "1"]].concat()));
        assert_eq!(text.chars().count(), 71, "70 characters and the end of the line: {text:?}");
    }
    assert_ne!(write(&["--seed", "1"]), write(&["--seed", "2"]));
    let prompted = write(&["--prompt", "Anna and Ben"]);
    assert!(prompted.starts_with("Anna and Ben") && prompted.len() == 83, "{prompted}");
    let summary = json(&write(&["--prompt", "Anna and Ben", "--json"]));
    assert_eq!(format!("{}{}\n", summary["prompt"].as_str().unwrap(), summary["text"].as_str().unwrap()), prompted);
    assert_eq!(summary["tokens"].as_array().unwrap().len(), 70);
    assert!(summary["tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[cfg(unix)]
#[test]
fn generate_ends_quietly_when_nobody_reads() {
    let dir = tempfile::tempdir().unwrap();
    trained(&["--steps", "1", "--quiet"], dir.path());
    let mut child = command(&["generate", "model", "--tokens", "1000000"], dir.path());
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut few = [0; 5];
    child.stdout.take().unwrap().read_exact(&mut few).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn byte_pairs_lose_nothing_on_their_way_through_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let text = "Größe, naïve café: 日本語 \u{1F600}\u{1F680}!\n\tтри кота, трёх котов…\r\n".repeat(60);
    std::fs::write(dir.path().join("t.txt"), &text).unwrap();
    let options =
        ["--text", "t.txt", "--tokenizer", "bpe:280", "--width", "16", "--heads", "2", "--context", "16", "--steps", "2", "--quiet"];
    works(&[&["train"], &options[..]].concat(), dir.path());
    let tokenizer = Tokenizer::load(&dir.path().join("model/tokenizer.json")).unwrap();
    assert_eq!(tokenizer.vocab(), 280);
    let ids = tokenizer.encode(&text).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    let part = text.lines().next().unwrap();
    let list = tokenizer.encode(part).unwrap().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let shown = works(&["generate", "model", "--prompt-tokens", &list, "--tokens", "0"], dir.path());
    assert_eq!(shown, format!("{part}\n"));
    // A model that has hardly learned anything writes bytes in any order; what is printed is text all the same.
    let write = |more: &[&str]| works(&[&["generate", "model", "--tokens", "200"], more].concat(), dir.path());
    assert_eq!(write(&[]), write(&["--no-cache"]));
    let eval = json(&works(&["eval", "model", "--json"], dir.path()))[0]["rows"][0].clone();
    let number = |name: &str| eval[name].as_f64().unwrap();
    let expected = number("bits_per_token") * number("tokens") / number("characters");
    assert!(
        eval["floor"].is_null()
            && (number("bits_per_character") / expected - 1.0).abs() < 1e-12
            && number("characters") != number("tokens")
    );
}

#[test]
fn bad_texts_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("empty.txt"), "").unwrap();
    std::fs::write(dir.path().join("latin.txt"), b"caf\xe9 au lait".repeat(1000)).unwrap();
    std::fs::write(dir.path().join("short.txt"), "to be or not to be").unwrap();
    for (text, words) in [
        ("empty.txt", "empty.txt is empty"),
        ("latin.txt", "latin.txt is not UTF-8: invalid UTF-8 at byte 3"),
        ("short.txt", "the training text has 16 tokens, but at least 66 are needed; give a longer text or a smaller context"),
        ("nowhere.txt", "cannot read nowhere.txt"),
        (".", ". is a directory"),
        #[cfg(unix)]
        ("/dev/zero", "/dev/zero is a device, not a regular file"),
    ] {
        refused(&["train", "--text", text], dir.path(), words);
    }
    assert!(!dir.path().join("model/model.safetensors").exists());
    trained(&["--steps", "1", "--quiet"], dir.path());
    std::fs::write(dir.path().join("one.txt"), "A").unwrap();
    for (text, words) in [
        ("empty.txt", "empty.txt is empty"),
        ("latin.txt", "latin.txt is not UTF-8"),
        ("one.txt", "a loss needs at least two tokens"),
        ("nowhere.txt", "cannot read nowhere.txt"),
    ] {
        refused(&["eval", "model", "--text", text], dir.path(), words);
    }
    std::fs::write(dir.path().join("strange.txt"), "Anna ∞").unwrap();
    refused(&["eval", "model", "--text", "strange.txt"], dir.path(), "the character '∞' is not in the tokenizer's vocabulary");
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for (more, words) in [
        (&["--heads", "5"][..], "width is 16; it must be a multiple of heads (5)"),
        (&["--heads", "2", "--kv-heads", "3"], "heads is 2; it must be a multiple of kv_heads (3)"),
        (&["--dropout", "1"], "dropout is 1; it must be in [0, 1)"),
        (&["--micro-batches", "3"], "micro_batches is 3; it must be a divisor of batch (4)"),
        (&["--parts", "3"], "parts is 3; it must be a divisor of batch / micro_batches (4)"),
        (&["--micro-batches", "2", "--parts", "4"], "parts is 4; it must be a divisor of batch / micro_batches (2)"),
        (&["--workers", "0"], "0 is not in 1.."),
        (&["--rate", "-1"], "the learning rate is -1; it must be finite and positive"),
        (&["--rate", "0"], "the learning rate is 0; it must be finite and positive"),
        (&["--clip", "0"], "clip is 0"),
        (&["--clip", "some"], "give a number, or none"),
        (&["--tokenizer", "bpe"], "give char, bpe:SIZE, bpe+bos:SIZE or wordpiece:SIZE"),
        (&["--tokenizer", "bpe:100"], "the vocabulary is 100; it must be at least 256, one per byte"),
        (&["--steps", "0"], "0 is not in 1..="),
        (&["--checkpoint-every", "0"], "0 is not in 1.."),
        (&["--text", "x"], "cannot be used with"),
        (&["--threads", "0"], "threads = 0"),
        (&["--width", "65536", "--layers", "1000"], "parameters, at most"),
        (&["--batch", "1048576", "--context", "200"], "GB are free: give more --micro-batches, or make the model smaller"),
        (&["--width", "4096", "--heads", "4", "--batch", "4096"], "GB are free: give more --micro-batches, or make the model smaller"),
    ] {
        refused_training(more, dir.path(), words);
    }
    assert!(!dir.path().join("model/model.safetensors").exists());
    trained(&["--steps", "1", "--quiet"], dir.path());
    for (more, words) in [
        (&["--prompt", "Anna ∞"][..], "the character '∞' is not in the tokenizer's vocabulary"),
        (&["--prompt", ""], "the prompt has no tokens"),
        (&["--prompt-tokens", "1,2,999"], "token 999 is outside the vocabulary"),
        (&["--prompt-tokens", "5000000000"], "token 5000000000 is outside the vocabulary"),
        (&["--prompt-tokens", "1,x"], "\"x\" is not a whole number"),
        (&["--temperature", "NaN"], "temperature is NaN"),
        (&["--top-k", "0"], "top-k is 0"),
        (&["--top-p", "1.5"], "top-p is 1.5; it must be in (0, 1]"),
    ] {
        refused(&[&["generate", "model"], more].concat(), dir.path(), words);
    }
    refused(&["eval", "model", "--stride", "17"], dir.path(), "the stride is 17; it must be from 1 to 16");
    refused(&["generate", "nowhere"], dir.path(), "nowhere is no model");
}

/// With one bit changed.
fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1;
    bytes
}

fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect("it is there");
    [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
}

#[test]
fn spoiled_checkpoints_are_refused_in_one_line_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    trained(&["--steps", "1", "--quiet"], dir.path());
    let path = dir.path().join("model/model.safetensors");
    let good = std::fs::read(&path).unwrap();
    let mut with_nan = good.clone();
    let end = with_nan.len();
    with_nan[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    for (bytes, words) in [
        (good[..good.len() / 2].to_vec(), "it is cut short"),
        (good[..3].to_vec(), "it is cut short"),
        (with_nan, "has NaN in it"),
        (replaced(&good, r#"\"width\":16"#, r#"\"width\":32"#), "its checksum is not the one in model.json"),
        (flipped(&good, good.len() - 6), "its checksum is not the one in model.json"),
        (flipped(&good, good.len() / 2), "its checksum is not the one in model.json"),
        (replaced(&good, "regard-nn 2", "regard-nn 9"), "its format is \"regard-nn 9\""),
    ] {
        std::fs::write(&path, &bytes).unwrap();
        for arguments in [&["train", "--resume"][..], &["eval", "model"], &["generate", "model"]] {
            refused(arguments, dir.path(), words);
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "it is as it was");
    }
    std::fs::write(&path, &good).unwrap();
    works(&["eval", "model"], dir.path());
    // The tokenizer of another model has tokens that this one does not know.
    trained(&["--steps", "1", "--quiet", "--tokenizer", "bpe:300", "--out", "other"], dir.path());
    std::fs::copy(dir.path().join("other/tokenizer.json"), dir.path().join("model/tokenizer.json")).unwrap();
    for command in ["eval", "generate"] {
        refused(&[command, "model"], dir.path(), "has 300 tokens, but the model has 45: it is the tokenizer of another model");
    }
    std::fs::write(dir.path().join("model/tokenizer.json"), "{}").unwrap();
    refused(&["generate", "model"], dir.path(), "is not a tokenizer.json");
}

#[test]
fn folder_that_cannot_be_written_is_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "mine").unwrap();
    refused_training(&["--out", "file"], dir.path(), "cannot write into file");
    refused_training(&["--out", "file/below"], dir.path(), "cannot write into file/below");
    assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"mine");
}

/// With files of at most 8 blocks, as if the disk were full.
#[cfg(unix)]
fn on_a_full_disk(arguments: &[&str], folder: &Path) -> Output {
    Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_regard")])
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("there is a shell")
}

#[cfg(unix)]
#[test]
fn full_disk_is_said_and_costs_nothing_that_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let all = train(&["--steps", "4", "--quiet"]);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    fails(&on_a_full_disk(&all, dir.path()), 1, "cannot write model/model.safetensors");
    assert!(files(&dir.path().join("model")).is_empty(), "no temporary file is left");
    works(&all, dir.path());
    let out = dir.path().join("model");
    let before = files(&out);
    let more = ["train", "--resume", "--steps", "7", "--quiet"];
    fails(&on_a_full_disk(&more, dir.path()), 1, "`regard train --resume --out model` resumes from the last checkpoint: cannot write");
    let after = files(&out);
    assert!(after["model.safetensors"] == before["model.safetensors"] && after.len() == before.len());
    // Nothing was lost: it goes on as if the disk had never been full.
    works(&more, dir.path());
    let patient = files(&out);
    std::fs::remove_dir_all(&out).unwrap();
    works(&all, dir.path());
    works(&more, dir.path());
    assert_same(&patient, &files(&out), "after a full disk");
}

/// With this on its standard input.
fn piped(arguments: &[&str], folder: &Path, input: &[u8]) -> Output {
    use std::io::Write;
    let mut child = command(arguments, folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn text_may_come_from_the_standard_input_and_begin_with_a_byte_order_mark() {
    let dir = tempfile::tempdir().unwrap();
    let text = regard_nn::stories::write(5000, 3);
    std::fs::write(dir.path().join("plain.txt"), &text).unwrap();
    let marked = format!("\u{FEFF}{text}");
    std::fs::write(dir.path().join("marked.txt"), &marked).unwrap();
    let small = |text: &'static str, out: &'static str| {
        ["train", "--text", text, "--width", "16", "--heads", "2", "--context", "16", "--steps", "3", "--quiet", "--out", out]
    };
    works(&small("plain.txt", "plain"), dir.path());
    works(&small("marked.txt", "marked"), dir.path());
    let output = piped(&small("-", "piped"), dir.path(), marked.as_bytes());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tokenizer = |out: &str| std::fs::read(dir.path().join(out).join("tokenizer.json")).unwrap();
    assert!(tokenizer("plain") == tokenizer("marked") && tokenizer("plain") == tokenizer("piped"), "the mark is no character");
    let loss = |more: &[&str]| json(&works(&[&["eval"], more, &["--json"]].concat(), dir.path()))[0]["rows"][0].clone();
    assert_eq!(loss(&["plain"]), loss(&["marked"]));
    assert_eq!(loss(&["plain"]), loss(&["piped", "--text", "plain.txt"]));
    let output = piped(&["eval", "plain", "--text", "-", "--json"], dir.path(), text.as_bytes());
    assert_eq!(json(&String::from_utf8(output.stdout).unwrap())[0]["rows"][0], loss(&["plain"]));
    // A text that went by is not there any more.
    for arguments in [&["eval", "piped"][..], &["train", "--resume", "--out", "piped", "--steps", "4"]] {
        refused(arguments, dir.path(), "the text came from the standard input");
    }
    works(&["train", "--resume", "--out", "piped", "--steps", "4", "--text", "plain.txt", "--quiet"], dir.path());
    fails(&piped(&small("-", "none"), dir.path(), b""), 2, "the standard input is empty");
}

#[test]
fn losses_that_differ_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let trained = trained(&["--steps", "2"], dir.path());
    assert!(trained.contains("`regard eval` reads all of the text"), "{trained}");
    let measured = works(&["eval", "model"], dir.path());
    assert!(measured.contains("`regard train` validates on some windows"), "{measured}");
}

#[test]
fn weights_that_cannot_be_checked_are_read_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    trained(&["--steps", "2", "--quiet"], dir.path());
    std::fs::remove_file(dir.path().join("model/model.json")).unwrap();
    for arguments in [&["eval", "model", "--quiet"][..], &["generate", "model", "--tokens", "3"], &["train", "--resume", "--quiet"]] {
        let output = regard(arguments, dir.path());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && message.starts_with("warning: model has no model.json with a checksum"), "{message}");
    }
    // The training that went on wrote it again.
    assert!(regard(&["eval", "model", "--quiet"], dir.path()).stderr.is_empty());
}

#[test]
fn training_that_diverges_keeps_its_last_good_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let all = train(&["--steps", "50", "--rate", "1e30", "--clip", "none", "--warmup", "0", "--checkpoint-every", "1", "--quiet"]);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    fails(&regard(&all, dir.path()), 1, "lower the learning rate or clip gradients");
    // The checkpoint is whole; weights of 1e30 may overflow on another text, which is an error and not a loss of NaN.
    let readable = |folder: &str| {
        let output = regard(&["eval", folder], dir.path());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || message.contains("the hidden states of the model are not finite"), "{message}");
    };
    readable("model");
    // With few checkpoints the state before the step that failed is saved, not the one of the last checkpoint.
    let all = train(&["--steps", "50", "--rate", "1e19", "--clip", "none", "--warmup", "0", "--quiet", "--out", "rare"]);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    fails(&regard(&all, dir.path()), 1, "`regard train --resume --out rare` resumes from the last checkpoint: the ");
    assert!(step(&dir.path().join("rare")).is_some_and(|done| done > 0), "{:?}", step(&dir.path().join("rare")));
    readable("rare");
}

#[test]
fn help_teaches_with_examples() {
    let dir = tempfile::tempdir().unwrap();
    let general = works(&["--help"], dir.path());
    for command in ["train", "eval", "generate"] {
        assert!(general.contains(command));
        let help = works(&[command, "--help"], dir.path());
        assert!(help.contains("Examples:") && help.contains(&format!("regard {command}")), "{help}");
    }
    let output = regard(&["train", "--characters", "3000", "--context", "8", "--steps", "1", "--quiet"], dir.path());
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
}

/// What a training was killed in, and what would be waited for.
#[test]
#[cfg(unix)]
fn folders_that_cannot_be_resumed_say_why_at_once() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    for name in FILES {
        let folder = dir.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        if name != "model.safetensors" {
            std::fs::write(folder.join(name), "{}").unwrap();
            refused(
                &["train", "--resume", "--out", name],
                dir.path(),
                &format!("train one first with `regard train --out {name} --overwrite`"),
            );
            std::fs::remove_file(folder.join(name)).unwrap();
            std::fs::write(folder.join("model.safetensors"), "").unwrap();
        }
        assert!(std::process::Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
        refused(&["train", "--resume", "--out", name], dir.path(), "not a regular file");
    }
    refused(&["train", "--resume", "--out", "none"], dir.path(), "train one first with `regard train --out none`");
    let mut text = command(&["train", "--text"], dir.path());
    let output = text.arg(std::ffi::OsStr::from_bytes(b"b\xffok.txt")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("its name is not UTF-8"), "{output:?}");
}

/// As a user who may have few threads, which root can be for a while.
#[test]
#[cfg(target_os = "linux")]
fn workers_that_cannot_be_started_end_the_training() {
    let dir = tempfile::tempdir().unwrap();
    refused(&["train", "--parts", "300", "--batch", "300", "--workers", "257"], dir.path(), "1..=256");
    let as_other_user = |arguments: &[&str]| {
        let mut command = Command::new("bash");
        let script = "ulimit -u 60 && cd / && exec timeout -s KILL 60 setpriv --reuid=65534 --clear-groups \"$@\"";
        command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_regard")]).args(arguments).output().unwrap()
    };
    if !as_other_user(&["--version"]).status.success() {
        eprintln!("skipped: this needs root, bash, setpriv, and a program that all can run");
        return;
    }
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let out = dir.path().join("model");
    let small = ["--width", "8", "--heads", "1", "--layers", "1", "--context", "8", "--characters", "20000", "--threads", "1", "--quiet"];
    let words = ["train", "--parts", "200", "--batch", "200", "--workers", "200", "--out", out.to_str().unwrap()];
    let output = as_other_user(&[&words[..], &small].concat());
    fails(&output, 1, "of 200 cannot be started");
}
