//! The microscope's commands, on the model that comes with regard.

mod common;

use common::{refused, works};
use std::path::Path;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_look_without_a_model_draws_every_head() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = works(&["look", "--out", "."], folder.path());
    assert!(text.contains("entropy") && text.contains("loss"), "{text}");
    for file in ["look.csv", "heads.svg", "heads.png"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn surgery_without_a_model_costs_something_and_says_how_sure_that_is() {
    let text = works(&["surgery", "scale=off", "--json", "--texts", "6", "--tokens", "96"], here());
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let value = |what: &str| {
        let rows = json[0]["rows"].as_array().expect("rows");
        let row =
            rows.iter().find(|row| row["what"].as_str().is_some_and(|w| w.starts_with(what))).unwrap_or_else(|| panic!("{what}: {json}"));
        row["value"].as_f64().expect("a number")
    };
    assert!(value("change") > 0.0 && value("95 % from") <= value("change"), "{json}");
    let words = works(&["surgery", "heads=hide:first/L1.H2=zero", "--explain"], here());
    assert!(words.contains("first key") && words.contains("Head 2 of layer 1"), "{words}");
}

fn rows(json: &str) -> Vec<serde_json::Value> {
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    json[0]["rows"].as_array().expect("rows").clone()
}

#[test]
fn heads_of_the_small_model_have_scores_and_names() {
    let text = works(&["classify", "--json", "--texts", "6", "--tokens", "96"], here());
    let rows = rows(&text);
    assert!(rows.len() >= 6 && rows.iter().all(|row| row["induction"].is_number() && row["positional"].is_number()), "{text}");
    for name in ["previous", "induction", "first"] {
        assert!(rows.iter().filter_map(|row| row["labels"].as_str()).any(|label| label.contains(name)), "{name}: {text}");
    }
}

#[test]
fn one_weight_is_explained_number_by_number() {
    let folder = tempfile::tempdir().expect("a folder");
    works(&["look", "--layer", "0", "--head", "1", "--neuron", "12,7", "--sink", "renormalise", "--out", "."], folder.path());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (numbers, keys, weights) = (read("neuron.csv"), read("neuron_keys.csv"), read("head_0_1.csv"));
    let cells = |line: &str| line.rsplit(',').map(|x| x.parse::<f64>().unwrap_or(f64::NAN)).collect::<Vec<_>>();
    let product = cells(numbers.lines().last().expect("a line"))[0];
    // From the end: weight, score, capped, scaled, q.k.
    let key = cells(keys.lines().find(|line| line.starts_with("7,")).expect("the key"));
    assert!((key[4] - product).abs() < 1e-9, "{product} is not in {key:?}");
    assert!(weights.contains("left out, and the rest divided"), "{}", &weights[..300]);
    for file in ["neuron_0_1_12_7.svg", "neuron_0_1_12_7.png", "head_0_1.svg", "head_0_1.png"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn heads_are_taken_out_in_three_ways_and_directly() {
    let folder = tempfile::tempdir().expect("a folder");
    let ways = rows(&works(&["surgery", "L1.H1=zero", "--ways", "--json", "--texts", "3", "--tokens", "48"], here()));
    let edits: Vec<&str> = ways.iter().filter_map(|row| row["edits"].as_str()).collect();
    assert_eq!(edits, ["L1.H1=zero", "L1.H1=mean", "L1.H1=resample:1"]);
    refused(&["surgery", "scale=off", "--ways"], here(), "--ways is about");
    let screen = rows(&works(&["screen", "--direct", "--json", "--texts", "2", "--tokens", "32", "--out", "."], folder.path()));
    assert!(screen.iter().all(|row| row["change"].is_number() && row["direct"].is_number()), "{screen:?}");
}

#[test]
fn any_model_is_measured_with_and_without_edits() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("text.txt"), "Emma and David went to the market. She likes the old boats. They wait at the market.")
        .expect("written");
    works(
        &["train", "--steps", "2", "--characters", "20000", "--tokenizer", "bpe+bos:300", "--repeats", "0.5", "--context", "32", "--quiet"],
        folder.path(),
    );
    let rows = rows(&works(&["eval", "model", "--text", "text.txt", "--edits", "scale=off", "--json"], folder.path()));
    assert_eq!(rows.len(), 2, "{rows:?}");
    let loss = |row: &serde_json::Value| row["loss"].as_f64().expect("a loss");
    assert!(loss(&rows[0]) > 1.0 && loss(&rows[0]) != loss(&rows[1]), "{rows:?}");
    assert!(!works(&["generate", "model", "--tokens", "5", "--edits", "L0.H1=zero"], folder.path()).is_empty());
}

#[test]
fn the_small_model_knows_the_text_that_is_there_without_any() {
    assert!(works(&["tokens"], here()).contains("the text"));
    assert!(works(&["lens"], here()).contains("entropy"));
    // What is in no file is said as a whole, however long it is.
    let text = "Emma went home. ".repeat(40);
    let tokens = rows(&works(&["tokens", "--text", &text, "--json"], here())).len();
    let lines = works(&["tokens", "--text", &text], here()).lines().filter(|line| line.contains("the text")).count();
    assert!(tokens > 100 && lines >= tokens - 1, "{lines} lines of {tokens} tokens");
}

#[test]
fn what_cannot_be_used_is_said_in_one_line() {
    for (words, reason) in [
        (["surgery", "L9=zero"].as_slice(), "no layer 9"),
        (&["surgery", "scale=of"], "no number"),
        (&["inspect", "no/such/model"], "no such file"),
        (&["look", "Cargo.toml"], "neither GGUF"),
        (&["patch", "--clean", "a", "--corrupt", "the cat and the dog"], "as long"),
        (&["look", "--layer", "0", "--head", "1", "--neuron", "12"], "as in 12,7"),
        (&["look", "--layer", "0", "--head", "1", "--neuron", "12,700"], "key"),
        (&["eval", "Cargo.toml"], "neither GGUF"),
    ] {
        refused(words, here(), reason);
    }
}
