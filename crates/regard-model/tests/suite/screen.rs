//! Screens: the numbers of whole passes, whatever is shared and however many threads there are.

use crate::golden::{Golden, folder};
use regard_model::{Edits, Error, Metric, Model, Screened, Sources, TokenMetric};

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

/// Texts of several lengths, as short as can be among them.
fn texts(golden: &Golden) -> Vec<Vec<u32>> {
    [golden.ids.len(), 9, 2, 5].map(|len| golden.ids[..len].to_vec()).to_vec()
}

fn on_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads").install(f)
}

#[test]
fn screens_are_whole_passes_to_the_bit_on_any_number_of_threads() {
    // A network in parallel with attention, norms of sums, a window, a softcap, learned positions, blocks of few bits.
    for name in ["gpt_neox", "gpt2", "mistral", "gemma2", "qwen3", "llama3", "gguf_small"] {
        let (model, texts) = (Model::load(folder(name)).expect(name), texts(&Golden::read(name)));
        let whole = |edits: &str| -> Vec<u64> {
            let edits = Edits::parse(edits).expect(edits);
            texts.iter().map(|ids| mean(&model.losses(ids, &edits, &Sources::default()).expect(name)).to_bits()).collect()
        };
        let intact = whole("");
        for threads in [1, 2, 5] {
            let mut order = Vec::new();
            let outcomes = on_threads(threads, || {
                model.screen(&texts, &[], |head, all| {
                    order.push((head.layer, head.head));
                    assert_eq!(all, model.shape().layers * model.shape().heads);
                    true
                })
            });
            let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            for (outcome, (layer, head)) in outcomes.expect(name).iter().zip(&order) {
                let edits = format!("L{layer}.H{head}=zero");
                assert_eq!(outcome.edits, edits, "{name}: in order");
                assert_eq!(bits(&outcome.intact), intact, "{name}, {threads} threads");
                assert_eq!(bits(&outcome.edited), whole(&edits), "{name} {edits}, {threads} threads");
            }
            assert_eq!(order.len(), model.shape().layers * model.shape().heads, "{name}");
        }
    }
}

#[test]
fn screens_are_stopped_and_taken_up_again() {
    let (model, golden) = (Model::load(folder("llama3")).expect("a model"), Golden::read("llama3"));
    let texts = texts(&golden);
    let whole = model.screen(&texts, &[], |_, _| true).expect("a screen");
    let mut seen: Vec<Screened> = Vec::new();
    let stopped = model.screen(&texts, &[], |head, _| {
        seen.push(head.clone());
        seen.len() < 3
    });
    assert!(matches!(stopped, Err(Error::Stopped)) && seen.len() == 3);
    // What is known is taken as it is.
    seen[1].losses = vec![7.0; texts.len()];
    let again = model.screen(&texts, &seen, |_, _| true).expect("the rest of it");
    for (number, (a, b)) in whole.iter().zip(&again).enumerate() {
        if number == 1 {
            assert_eq!(b.edited, vec![7.0; texts.len()]);
        } else {
            assert_eq!((&a.edits, &a.edited), (&b.edits, &b.edited));
        }
    }
    assert!(model.screen(&[vec![3]], &[], |_, _| true).is_err(), "one token has no loss");
    assert!(model.screen(&[], &[], |_, _| true).is_err());
    let bert = Model::load(folder("bert")).expect("a model");
    assert!(matches!(bert.screen(&texts, &[], |_, _| true), Err(Error::NoHead { .. })));
}

/// A copy of a checkpoint in which two thirds of the tokens were never told apart.
fn alike(name: &str, tensor: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a folder");
    std::fs::copy(folder(name).join("config.json"), to.path().join("config.json")).expect("copied");
    let mut bytes = std::fs::read(folder(name).join("model.safetensors")).expect("a file");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..header]).expect("JSON");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number") as usize;
    let place = &json[tensor]["data_offsets"];
    let (table, row) = (&mut bytes[header + number(&place[0])..header + number(&place[1])], 4 * number(&json[tensor]["shape"][1]));
    let third = table.len() / row / 3 * row;
    let shared = table[third..third + row].to_vec();
    table[third..].chunks_exact_mut(row).for_each(|to| to.copy_from_slice(&shared));
    std::fs::write(to.path().join("model.safetensors"), bytes).expect("written");
    to
}

#[test]
fn tokens_that_are_alike_are_taken_together() {
    let folder = alike("llama3", "lm_head.weight");
    let (model, texts) = (Model::load(folder.path()).expect("a model"), texts(&Golden::read("llama3")));
    for outcome in model.screen(&texts, &[], |_, _| true).expect("a screen") {
        let edits = Edits::parse(&outcome.edits).expect("edits");
        for (ids, got) in texts.iter().zip(&outcome.edited) {
            let whole = mean(&model.losses(ids, &edits, &Sources::default()).expect("losses"));
            assert!((got - whole).abs() < 2e-6, "{}: {got} {whole}", outcome.edits);
        }
    }
}

#[test]
fn screens_by_a_prediction_are_runs_with_edits() {
    for name in ["gpt2", "llama3", "gemma2"] {
        let (model, texts) = (Model::load(folder(name)).expect(name), texts(&Golden::read(name)));
        let of = |number: usize| TokenMetric { position: (number == 1).then_some(2), token: 3 + number as u32, minus: None };
        let apart: Vec<TokenMetric> = (0..texts.len()).map(of).collect();
        let difference = TokenMetric { position: None, token: 3, minus: Some(5) };
        for metric in [Metric::Tokens(apart), Metric::Tokens(vec![difference])] {
            let Metric::Tokens(all) = &metric else { unreachable!("of tokens") };
            let value = |number: usize, edits: &str| {
                let (ids, of) = (&texts[number], all.get(number).unwrap_or(&all[0]));
                let run = model.run(ids, &Edits::parse(edits).expect(edits), &Sources::default()).expect(name);
                let logits = run.logits().expect(name);
                let row = logits.row(of.position.unwrap_or(ids.len() - 1));
                let logit = |token: u32| f64::from(row[token as usize]);
                let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
                of.minus.map_or(logit(of.token).exp() / sum, |minus| logit(of.token) - logit(minus))
            };
            let outcomes = model.screen_by(&texts, &metric, &[], |_, _| true).expect(name);
            for outcome in outcomes {
                for number in 0..texts.len() {
                    let (intact, edited) = (value(number, ""), value(number, &outcome.edits));
                    assert!((outcome.intact[number] - intact).abs() < 1e-6, "{name}: {} is not {intact}", outcome.intact[number]);
                    assert!(
                        (outcome.edited[number] - edited).abs() < 1e-6,
                        "{name} {}: {} is not {edited}",
                        outcome.edits,
                        outcome.edited[number]
                    );
                }
            }
        }
        // What is written to the stream last has no later layer that reacts.
        if name != "gemma2" {
            let metric = Metric::Tokens(vec![difference]);
            let (totals, direct) =
                (model.screen_by(&texts, &metric, &[], |_, _| true), model.direct_effects_by(&texts, &metric, |_, _| {}));
            assert_eq!(totals.expect(name).len(), direct.expect(name).len());
        }
        let bad = |of: TokenMetric| model.screen_by(&texts, &Metric::Tokens(vec![of; 1]), &[], |_, _| true).is_err();
        assert!(bad(TokenMetric { token: 1 << 30, ..difference }) && bad(TokenMetric { position: Some(2), ..difference }), "{name}");
        assert!(model.screen_by(&texts, &Metric::Tokens(vec![difference; 2]), &[], |_, _| true).is_err(), "{name}: two for four");
        assert!(model.screen_by(&texts, &Metric::Tokens(Vec::new()), &[], |_, _| true).is_err(), "{name}: none");
    }
}
