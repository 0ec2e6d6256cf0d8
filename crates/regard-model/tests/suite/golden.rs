//! Every family and format against transformers.

use regard_model::{Edits, Error, Generation, Input, Model, Sources};
use regard_nn::tensors::{SafetensorsFile, Source};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// All folders with golden numbers.
pub(crate) fn all() -> Vec<String> {
    let folders = folder("").read_dir().expect("golden checkpoints").filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = folders.filter(|name| folder(name).join("golden.safetensors").is_file()).collect();
    names.sort();
    names
}

pub(crate) struct Golden {
    pub(crate) ids: Vec<u32>,
    file: SafetensorsFile,
}

impl Golden {
    pub(crate) fn read(name: &str) -> Self {
        let file = SafetensorsFile::read(&folder(name).join("golden.safetensors")).expect("golden numbers");
        let mut golden = Self { ids: Vec::new(), file };
        golden.ids = golden.numbers("ids").expect("ids").into_iter().map(|x| x as u32).collect();
        golden
    }

    pub(crate) fn numbers(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.file.tensor(name).ok()?;
        let mut numbers = vec![0f32; tensor.numbers.len()];
        tensor.numbers.widen(0..numbers.len(), &mut numbers);
        Some(numbers)
    }
}

/// The largest difference; a NaN is the largest of all.
pub(crate) fn worst(got: impl IntoIterator<Item = f32>, want: &[f32]) -> f32 {
    let got: Vec<f32> = got.into_iter().collect();
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, |worst, d| if d <= worst { worst } else { d })
}

#[test]
fn logits_and_weights_are_those_of_transformers() {
    let names = all();
    assert!(names.len() >= 29, "{names:?}");
    for name in names {
        let (golden, model) = (Golden::read(&name), Model::load(folder(&name)).expect(&name));
        let run = model.run(&golden.ids, &Edits::default(), &Sources::default()).expect(&name);
        let error = match golden.numbers("logits") {
            Some(logits) => worst(run.logits().expect(&name), &logits),
            None => worst(run.hidden().iter().copied(), &golden.numbers("hidden").expect("one of both")),
        };
        assert!(error < 2e-4, "{name}: {error}");
        let weights = run.weights(model.shape().layers - 1, 1).expect(&name);
        let error = worst(weights, &golden.numbers("weights").expect("weights"));
        assert!(error < 1e-5, "{name}: weights differ by {error}");
    }
}

#[test]
fn surgery_costs_what_it_costs_in_transformers() {
    let mut counted = 0;
    for name in all() {
        let Ok(text) = std::fs::read(folder(&name).join("losses.json")) else { continue };
        let losses: BTreeMap<String, f64> = serde_json::from_slice(&text).expect("losses");
        let (golden, model) = (Golden::read(&name), Model::load(folder(&name)).expect(&name));
        for (edit, want) in losses {
            let edits = Edits::parse(&edit).expect(&edit);
            let got = model.run(&golden.ids, &edits, &Sources::default()).expect(&edit).loss().expect("a loss");
            assert!((got - want).abs() < 1e-5, "{name} {edit:?}: {got}, not {want}");
            let rows = model.losses(&golden.ids, &edits, &Sources::default()).expect(&edit);
            assert_eq!(rows.iter().sum::<f64>() / rows.len() as f64, got, "{name} {edit:?}");
            counted += 1;
        }
    }
    assert!(counted > 40, "{counted}");
}

#[test]
fn statistics_and_maps_are_those_of_the_weights() {
    for (name, edit) in [("llama3", ""), ("llama3", "L1.H2=uniform"), ("gpt_neox", "heads=hide:first"), ("albert", "L1.H1=temp:3@2-9")] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let run = model.run(&golden.ids, &Edits::parse(edit).expect(edit), &Sources::default()).expect(name);
        for layer in 0..model.shape().layers {
            let (stats, _) = run.layer_statistics(layer, regard::StatsOptions::default()).expect(name);
            for head in 0..model.shape().heads {
                let weights = run.weights(layer, head).expect(name);
                for (row, weights) in weights.outer_iter().enumerate() {
                    assert!((weights.sum() - 1.0).abs() < 1e-5, "{name} {edit}");
                    let entropy: f32 = weights.iter().filter(|w| **w > 0.0).map(|w| -w * w.ln()).sum();
                    assert!((stats.entropy[[0, head, row]] - entropy).abs() < 1e-4, "{name} {edit} layer {layer} head {head} row {row}");
                    assert!((stats.first_token_mass[[0, head, row]] - weights[0]).abs() < 1e-5, "{name} {edit}");
                }
            }
        }
        let map = run.heat_map(1, 0, 1000, 1000).expect(name);
        assert!(worst(map.mean, run.weights(1, 0).expect(name).as_slice().expect("standard")) < 1e-6, "{name} {edit}: a cell per weight");
    }
}

#[test]
fn writing_with_a_cache_is_writing_without() {
    for (name, edit) in [("gpt2", ""), ("llama3", "L1.H1=zero"), ("gpt_neox", "scale=off"), ("qwen3", "L0.H0,3=uniform/L1.mlp=gain:0.5")] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let edits = Edits::parse(edit).expect(edit);
        let mut ids = golden.ids[..8].to_vec();
        let written = model.generate(&ids, &Generation::greedy(12), &edits, &Sources::default(), |_| true).expect(name);
        for token in written {
            let run = model.run(&ids, &edits, &Sources::default()).expect(name);
            let logits = run.logits().expect(name);
            let last = logits.row(ids.len() - 1);
            let best = last.iter().copied().fold(f32::MIN, f32::max);
            assert!(last[token as usize] > best - 1e-4, "{name} {edit}: {token} is not the most likely");
            ids.push(token);
        }
    }
}

#[test]
fn what_a_model_cannot_do_is_said() {
    let model = Model::load(folder("bert_only")).expect("a model");
    let run = model.run(&[3, 4, 5], &Edits::default(), &Sources::default()).expect("hidden states");
    assert!(matches!(run.logits(), Err(Error::NoHead { .. })));
    assert!(matches!(model.ids(Input::Text("a")), Err(Error::NoTokenizer { .. })));
    let bert = Model::load(folder("bert")).expect("a model");
    assert!(matches!(bert.generate(&[3], &Generation::greedy(1), &Edits::default(), &Sources::default(), |_| true), Err(Error::Encoder)));
    assert!(bert.run(&[3, 96], &Edits::default(), &Sources::default()).expect_err("no such token").to_string().contains("96"));
    assert!(bert.run(&[], &Edits::default(), &Sources::default()).is_err());
    assert!(bert.run(&[5; 65], &Edits::default(), &Sources::default()).expect_err("too long").to_string().contains("64"));
    assert!(matches!(Model::load("no/such"), Err(Error::NoModel { .. })));
}
