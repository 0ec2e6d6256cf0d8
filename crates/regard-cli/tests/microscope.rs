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

#[test]
fn heads_of_the_small_model_have_scores_and_names() {
    let text = works(&["classify", "--json", "--texts", "6", "--tokens", "96"], here());
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = json[0]["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["induction"].is_number() && row["previous"].is_number()), "{text}");
    let labels: Vec<&str> = rows.iter().filter_map(|row| row["labels"].as_str()).collect();
    assert_eq!(labels.len(), 12, "{text}");
    assert!(labels.iter().any(|label| label.contains("own")), "{labels:?}");
    assert!(labels.iter().any(|label| label.contains("local")), "{labels:?}");
}

#[test]
fn the_small_model_knows_the_text_that_is_there_without_any() {
    assert!(works(&["tokens"], here()).contains("the text"));
    assert!(works(&["lens"], here()).contains("entropy"));
}

#[test]
fn what_cannot_be_used_is_said_in_one_line() {
    for (words, reason) in [
        (["surgery", "L9=zero"].as_slice(), "no layer 9"),
        (&["surgery", "scale=of"], "no number"),
        (&["inspect", "no/such/model"], "no such file"),
        (&["look", "Cargo.toml"], "neither GGUF"),
        (&["patch", "--clean", "a", "--corrupt", "abc"], "as long"),
    ] {
        refused(words, here(), reason);
    }
}
