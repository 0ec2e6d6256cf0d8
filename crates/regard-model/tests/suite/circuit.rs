//! Circuits: patched runs against hooks and whole texts, attribution against patching, induction found, chance not.

use crate::golden::folder;
use ndarray::{Array2, ArrayD, ArrayViewMutD, s};
use regard_model::circuit::{Found, Graph, Options, Pair, Reader, Store, Writer, rank_correlation};
use regard_model::{Edits, Hook, Input, Model, Run, Site, Sources};
use regard_nn::layers::probe::Operand;
use std::collections::HashMap;
use std::sync::Mutex;

/// Keeps finished steps in memory.
#[derive(Default)]
struct Memory {
    steps: Mutex<HashMap<String, String>>,
    recalled: Mutex<usize>,
}

impl Store for Memory {
    fn recall(&self, step: &str) -> Option<String> {
        let found = self.steps.lock().expect("no panics").get(step).cloned();
        *self.recalled.lock().expect("no panics") += usize::from(found.is_some());
        found
    }
    fn remember(&self, step: &str, what: &str) {
        self.steps.lock().expect("no panics").insert(step.to_owned(), what.to_owned());
    }
    fn expect(&self, _: usize) {}
    fn advance(&self) {}
}

/// Adds to or replaces activations, and keeps those that are named.
#[derive(Default)]
struct Hands {
    add: HashMap<(usize, Site), ArrayD<f32>>,
    /// A head of one activation.
    head: Option<((usize, Site), usize, Array2<f32>)>,
    keep: Vec<(usize, Site)>,
    kept: Mutex<HashMap<(usize, Site), ArrayD<f32>>>,
}

impl Hook for Hands {
    fn wants(&self, layer: usize, site: Site) -> bool {
        let at = (layer, site);
        self.add.contains_key(&at) || self.keep.contains(&at) || self.head.as_ref().is_some_and(|head| head.0 == at)
    }
    fn at(&self, layer: usize, site: Site, mut x: ArrayViewMutD<'_, f32>) -> bool {
        let at = (layer, site);
        if self.keep.contains(&at) {
            self.kept.lock().expect("no panics").insert(at, x.to_owned());
        }
        if let Some(add) = self.add.get(&at) {
            x.scaled_add(1.0, add);
        }
        if let Some((_, head, rows)) = self.head.as_ref().filter(|head| head.0 == at) {
            x.slice_mut(s![*head, .., ..]).assign(rows);
        }
        true
    }
}

fn hooked(model: &Model, ids: &[u32], hands: &Hands) -> Run {
    model.run_with(ids, &Edits::default(), &Sources::default(), hands).expect("a run")
}

fn margin(run: &Run, pair: &Pair) -> f64 {
    let logits = run.logits().expect("logits");
    f64::from(logits[[pair.position, pair.answer as usize]]) - f64::from(logits[[pair.position, pair.wrong as usize]])
}

/// What a writer writes, from what hooks see.
fn written(model: &Model, ids: &[u32], writer: Writer) -> ArrayD<f32> {
    match writer {
        Writer::Head { layer, head } => {
            let run = model.run(ids, &Edits::default(), &Sources::default()).expect("a run");
            let z = run.z(layer).expect("a layer").slice(s![head, .., ..]).to_owned();
            let [_, _, _, output] = model.projections(layer).expect("weights");
            z.dot(&output.slice(s![head, .., ..])).into_dyn()
        }
        Writer::Embedding | Writer::Network { .. } => {
            let at = if let Writer::Network { layer } = writer { (layer, Site::MlpOut) } else { (0, Site::ResidPre) };
            let hands = Hands { keep: vec![at], ..Hands::default() };
            hooked(model, ids, &hands);
            hands.kept.into_inner().expect("no panics").remove(&at).expect("kept")
        }
    }
}

/// The effect of one edge by hooks: what the reader makes of a changed stream is taken from a run of its own, and put in.
fn by_hooks(model: &Model, pair: &Pair, from: Writer, to: Reader) -> f64 {
    let clean = margin(&hooked(model, &pair.clean, &Hands::default()), pair);
    let change = written(model, &pair.corrupt, from) - written(model, &pair.clean, from);
    let patched = match to {
        Reader::Output => {
            let last = (model.shape().layers - 1, Site::ResidPost);
            hooked(model, &pair.clean, &Hands { add: [(last, change)].into(), ..Hands::default() })
        }
        Reader::Head { layer, head, operand } => {
            let site = [Site::Q, Site::K, Site::V][operand as usize];
            let hands = Hands { add: [((layer, Site::ResidPre), change)].into(), keep: vec![(layer, site)], ..Hands::default() };
            hooked(model, &pair.clean, &hands);
            let made = hands.kept.into_inner().expect("no panics").remove(&(layer, site)).expect("kept");
            let rows = made.slice(s![head, .., ..]).to_owned();
            hooked(model, &pair.clean, &Hands { head: Some(((layer, site), head, rows)), ..Hands::default() })
        }
        Reader::Network { layer } => {
            let at = (layer, Site::MlpOut);
            let into = (layer, if model.family().contains("neox") { Site::ResidPre } else { Site::ResidMid });
            let hands = Hands { add: [(into, change)].into(), keep: vec![at], ..Hands::default() };
            hooked(model, &pair.clean, &hands);
            let changed = hands.kept.into_inner().expect("no panics").remove(&at).expect("kept");
            let add = changed - written(model, &pair.clean, Writer::Network { layer });
            hooked(model, &pair.clean, &Hands { add: [(at, add)].into(), ..Hands::default() })
        }
    };
    margin(&patched, pair) - clean
}

fn golden_pair(model: &Model) -> Pair {
    let texts = model.random_texts(1, 14, 3);
    let mut other = texts[0].clone();
    other[4] = (other[4] + 31) % model.vocab() as u32;
    other[9] = (other[9] + 17) % model.vocab() as u32;
    Pair { clean: texts[0].clone(), corrupt: other, position: 13, answer: 5, wrong: 9 }
}

/// Grouped heads, norms of queries and keys, a parallel network, quantised blocks, biases.
const FAMILIES: [&str; 6] = ["llama3", "qwen3", "gpt_neox", "gguf_small", "gpt2", "llama2c"];

#[test]
fn circuits_of_all_and_of_no_edges_are_the_two_texts() {
    for name in FAMILIES {
        let model = Model::load(folder(name)).expect(name);
        let (graph, pair) = (Graph::of(&model).expect(name), golden_pair(&model));
        let all: Vec<usize> = (0..graph.edges()).collect();
        let faithful = |edges: &[usize]| model.circuit_faithfulness(&pair, edges).expect(name);
        assert!((faithful(&all) - 1.0).abs() < 1e-3, "{name}: {}", faithful(&all));
        assert!(faithful(&[]).abs() < 1e-3, "{name}: {}", faithful(&[]));
        // Half of the edges twice over, by the shorter and by the longer sum.
        let some: Vec<usize> = all.iter().copied().filter(|edge| edge % 3 == 0).collect();
        let value = faithful(&some);
        assert!(value.is_finite() && (value - 1.0).abs() > 1e-6, "{name}: {value}");
    }
}

#[test]
fn exact_effects_of_edges_are_those_of_hooks() {
    for name in FAMILIES {
        let model = Model::load(folder(name)).expect(name);
        let (graph, pair) = (Graph::of(&model).expect(name), golden_pair(&model));
        let mut compared = 0;
        let mut sizes = 0f64;
        for edge in 0..graph.edges() {
            let (from, to) = graph.ends(edge);
            let (ours, theirs) = (model.edge_effect(&pair, edge).expect(name), by_hooks(&model, &pair, from, to));
            sizes = sizes.max(theirs.abs());
            assert!((ours - theirs).abs() < 1e-3 * (1.0 + theirs.abs()), "{name}: {from} to {to}: {ours}, by hooks {theirs}");
            compared += 1;
        }
        assert!(compared > 15 && sizes > 1e-3, "{name}: {compared} edges, the largest {sizes}");
    }
}

#[test]
fn attribution_at_the_clean_text_is_the_slope_of_patching() {
    for name in FAMILIES {
        let model = Model::load(folder(name)).expect(name);
        let mut pair = golden_pair(&model);
        // Nearly the same text: a change of one token by one, where patching is nearly linear, is not small in tokens, so compare ranks.
        pair.corrupt[9] = pair.clean[9];
        let options = Options { steps: 8, exact: usize::MAX, edges: Some(4), random: 1, seed: 1 };
        let found = model.find_circuit(&[pair], &options, &Memory::default()).expect(name);
        let (r, _, _) = found.agreement.expect("many edges");
        assert!(r > 0.8, "{name}: rank correlation {r}");
    }
}

#[test]
fn scores_are_the_sum_of_their_parts() {
    for name in FAMILIES {
        let model = Model::load(folder(name)).expect(name);
        let ids = model.random_texts(1, 12, 5).swap_remove(0);
        let run = model.run(&ids, &Edits::default(), &Sources::default()).expect(name);
        let (layer, head) = (model.shape().layers - 1, model.shape().heads - 1);
        for (query, key) in [(11, 4), (7, 7), (3, 0)] {
            let parts = model.score_parts(&ids, layer, head, query, key).expect(name);
            let row = run.neuron(layer, head, query, key).expect(name).keys;
            let scaled = row[key].scaled;
            assert!((parts.score - scaled).abs() < 1e-4 * (1.0 + scaled.abs()), "{name}: {} {scaled}", parts.score);
            assert!((parts.sum - parts.score).abs() < 1e-4 * (1.0 + scaled.abs()), "{name}: {} {}", parts.sum, parts.score);
            assert!(parts.parts.len() == parts.products.nrows() && parts.parts[0] == "embedding", "{name}");
        }
    }
}

#[test]
fn induction_is_found_in_five_of_five_seeds_and_chance_is_not() {
    let model = Model::built_in().expect("the small model");
    let texts = model.own_texts(4, 64).expect("texts");
    let scores = model.classify(&texts, |_, _| true).expect("scores");
    let labelled = |label: &str| -> Vec<(usize, usize)> {
        scores.iter().filter(|s| s.labels.iter().any(|l| l.contains(label))).map(|s| (s.layer, s.head)).collect()
    };
    let (previous, induction) = (labelled("previous"), labelled("induction"));
    assert!(!previous.is_empty() && !induction.is_empty(), "{previous:?} {induction:?}");
    let group = model.shape().heads / model.shape().kv_heads;
    for seed in 1..=5 {
        let options = Options { steps: 4, exact: 8, edges: None, random: 10, seed };
        let found: Found = model.find_circuit(&model.repeated_pairs(16, seed), &options, &Memory::default()).expect("a circuit");
        let is_it = |from: Writer, to: Reader| match (from, to) {
            (Writer::Head { layer, head }, Reader::Head { layer: later, head: kv, operand: Operand::K }) => {
                previous.contains(&(layer, head)) && induction.iter().any(|(l, h)| *l == later && h / group == kv)
            }
            _ => false,
        };
        let place = found.edges.iter().position(|edge| is_it(edge.from, edge.to));
        let edge = place.map(|place| &found.edges[place]).expect("an edge of the two");
        assert!(edge.chosen && edge.q < 0.05, "seed {seed}: place {place:?}, {edge:?}");
        let of = |kind: &str| found.sizes.iter().rev().find(|size| size.kind == kind).map(|size| &size.faithfulness).expect(kind);
        // The chosen edges carry part of the difference; as many random ones, or those of shuffled pairs, do not.
        assert!(of("found").low > 0.1, "seed {seed}: {:?}", found.sizes);
        assert!(of("random").high < 0.05 && of("shuffled").high < of("found").low, "seed {seed}: {:?}", found.sizes);
    }
}

#[test]
fn a_circuit_is_the_same_when_it_is_resumed() {
    let model = Model::load(folder("llama3")).expect("a model");
    let pairs = [golden_pair(&model)];
    let options = Options { steps: 2, exact: 5, edges: Some(3), random: 2, seed: 1 };
    let store = Memory::default();
    let first = model.find_circuit(&pairs, &options, &store).expect("a circuit");
    let before = *store.recalled.lock().expect("no panics");
    let again = model.find_circuit(&pairs, &options, &store).expect("a circuit");
    assert!(*store.recalled.lock().expect("no panics") > before + 5);
    assert_eq!(format!("{first:?}"), format!("{again:?}"));
}

#[test]
fn models_and_pairs_without_a_circuit_are_refused() {
    for name in ["bert", "gemma2"] {
        let model = Model::load(folder(name)).expect(name);
        assert!(Graph::of(&model).expect_err(name).to_string().contains("norms stand after"), "{name}");
    }
    let model = Model::built_in().expect("the small model");
    let ids = |text: &str| model.ids(Input::Text(text)).expect("tokens");
    assert!(model.pair(ids("The cat"), ids("The cat sleeps"), None).expect_err("lengths").to_string().contains("one length"));
    assert!(model.pair(ids("The cat"), ids("The cat"), None).expect_err("the same").to_string().contains("no difference"));
    assert!((rank_correlation(&[1.0, 2.0, 3.0], &[2.0, 4.0, 9.0]) - 1.0).abs() < 1e-12);
    assert!((rank_correlation(&[1.0, 2.0, 3.0], &[2.0, -4.0, -9.0]) + 1.0).abs() < 1e-12);
}
