//! Heads whose weights were written by hand, so that what they do is known.
//!
//! A Llama of two layers of two heads. The stream of a token has three parts: a code of its own, room for the code of the token before, and
//! a one.
//!
//! ```text
//! layer 0, head 0    previous token: the ones, turned by one position in planes that turn with the position, match one token back; copies
//!                     the code
//! layer 0, head 1    nothing: all scores are 0
//! layer 1, head 0    induction: a token's code matches the copied code of the token after it, in planes that do not turn
//! layer 1, head 1    nothing
//! ```

use crate::golden::{Golden, folder};
use ndarray::Axis;
use regard_model::scores::NAMES;
use regard_model::{Edits, Input, Model, Sink, Sources};
use regard_nn::random::Draws;
use safetensors::tensor::{Dtype, TensorView};

const VOCAB: usize = 512;
const DIM: usize = 64;
/// Planes that turn so slowly that a hundred positions are nothing.
const CODE: usize = 56;
const WIDTH: usize = 2 * CODE + 1;
const ONE: usize = 2 * CODE;
/// The k-th plane turns by THETA^(-k / 32) a position: 1, 0.115, 0.013, 0.0015, then nothing.
const THETA: f64 = 1e30;

fn matrix(rows: usize, cols: usize, entries: impl IntoIterator<Item = (usize, usize, f32)>) -> (Vec<usize>, Vec<f32>) {
    let mut numbers = vec![0.0; rows * cols];
    entries.into_iter().for_each(|(row, col, x)| numbers[row * cols + col] = x);
    (vec![rows, cols], numbers)
}

/// Where the numbers of a code lie in a head: planes 4 to 31, which are pairs (k, k + 32).
fn place(number: usize) -> usize {
    4 + number % 28 + 32 * (number / 28)
}

fn write(folder: &std::path::Path) {
    let mut draws = Draws::at(5, &[]);
    let code: Vec<f32> = (0..VOCAB * CODE).map(|_| if draws.bits().is_multiple_of(2) { 1.0 } else { -1.0 }).collect();
    let embedding = (0..VOCAB).flat_map(|t| (0..CODE).map(move |c| (t, c)).chain([(t, ONE)]));
    let embedding = matrix(VOCAB, WIDTH, embedding.map(|(t, c)| (t, c, if c == ONE { 1.0 } else { code[t * CODE + c] })));
    // q is k, turned by one position: they match where the key is one position back.
    let turned = |plane: usize| THETA.powf(-(plane as f64) / 32.0);
    let loud = 60.0;
    let nothing = || matrix(2 * DIM, WIDTH, []);
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), embedding)];
    for layer in 0..2 {
        let (q, k, v, o) = if layer == 0 {
            let q = (0..3).flat_map(|p| [(p, ONE, (loud * turned(p).cos()) as f32), (p + 32, ONE, (-loud * turned(p).sin()) as f32)]);
            let k = (0..3).map(|p| (p, ONE, 8.0));
            let (v, o) = ((0..CODE).map(|c| (place(c), c, 1.0)), (0..CODE).map(|c| (CODE + c, place(c), 1.0)));
            (matrix(2 * DIM, WIDTH, q), matrix(2 * DIM, WIDTH, k), matrix(2 * DIM, WIDTH, v), matrix(WIDTH, 2 * DIM, o))
        } else {
            let (q, k) = ((0..CODE).map(|c| (place(c), c, 4.0)), (0..CODE).map(|c| (place(c), CODE + c, 4.0)));
            (matrix(2 * DIM, WIDTH, q), matrix(2 * DIM, WIDTH, k), nothing(), matrix(WIDTH, 2 * DIM, []))
        };
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        tensors
            .extend([("q_proj", q), ("k_proj", k), ("v_proj", v), ("o_proj", o)].map(|(part, x)| (name(&format!("self_attn.{part}")), x)));
        tensors.extend(["gate_proj", "up_proj"].map(|part| (name(&format!("mlp.{part}")), matrix(8, WIDTH, []))));
        tensors.push((name("mlp.down_proj"), matrix(WIDTH, 8, [])));
        tensors.extend(["input_layernorm", "post_attention_layernorm"].map(|part| (name(part), (vec![WIDTH], vec![1.0; WIDTH]))));
    }
    tensors.push(("model.norm.weight".to_owned(), (vec![WIDTH], vec![1.0; WIDTH])));
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> =
        tensors.into_iter().map(|(name, (shape, x))| (name, shape, x.iter().flat_map(|x| x.to_le_bytes()).collect())).collect();
    let views = bytes.iter().map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("whole")));
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).expect("written")).expect("written");
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": DIM, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": true
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
}

fn known() -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path());
    Model::load(folder.path()).expect("a model")
}

fn random(len: usize, seed: u64) -> Vec<u32> {
    let mut draws = Draws::at(seed, &[1]);
    (0..len).map(|_| draws.below(VOCAB) as u32).collect()
}

fn score(heads: &[regard_model::HeadScores], at: usize, name: &str) -> f64 {
    heads[at].scores[NAMES.iter().position(|n| *n == name).expect(name)]
}

#[test]
fn heads_made_by_hand_are_named() {
    let (model, texts) = (known(), (0..6).map(|seed| random(120, seed)).collect::<Vec<_>>());
    let heads = model.classify(&texts, |_, _| true).expect("scores");
    assert!(score(&heads, 0, "previous") > 0.99 && score(&heads, 2, "repeated") > 0.9, "{heads:?}");
    assert!(heads[0].labels.contains(&"previous") && !heads[0].labels.contains(&"induction"), "{:?}", heads[0].labels);
    assert!(heads[2].labels.contains(&"induction") && !heads[2].labels.contains(&"previous"), "{:?}", heads[2].labels);
    for other in [1, 3] {
        assert!(heads[other].labels.is_empty(), "{:?}", heads[other].labels);
        assert!((heads[other].broad - 1.0).abs() < 1e-5);
    }
    // The same rows on any text; induction follows the text.
    assert!(heads[0].positional > 0.99 && heads[2].positional < 0.3, "{} {}", heads[0].positional, heads[2].positional);
}

#[test]
fn runs_of_equal_tokens_are_no_induction() {
    // Each token five times: for a head that looks one token back, that token mostly follows an earlier copy of the query's.
    let model = known();
    let texts: Vec<Vec<u32>> = (0..4).map(|seed| random(24, seed).into_iter().flat_map(|token| [token; 5]).collect()).collect();
    let heads = model.classify(&texts, |_, _| true).expect("scores");
    assert!(score(&heads, 0, "previous") > 0.99);
    for head in [0, 1, 3] {
        assert!(!heads[head].labels.contains(&"induction"), "{:?}", heads[head]);
    }
}

#[test]
fn what_heads_write_adds_up_to_the_logit() {
    for name in ["gpt2", "llama3", "qwen2", "qwen3", "gpt_neox", "mistral"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        for row in [0, golden.ids.len() / 2, golden.ids.len() - 1] {
            let token = golden.ids[0];
            let parts = model.attribute(&golden.ids, &Edits::default(), &Sources::default(), row, token).expect(name);
            let heads = parts.parts.iter().filter(|part| part.contains(".H")).count();
            assert_eq!(heads, model.shape().layers * model.shape().heads, "{name}");
            let sum: f64 = parts.writes.iter().sum();
            assert!((sum - parts.logit).abs() < 1e-4 * (1.0 + parts.logit.abs()), "{name}, row {row}: {sum} is not {}", parts.logit);
        }
    }
}

#[test]
fn a_neuron_view_is_the_weight_that_it_explains() {
    for name in ["llama3", "gemma2", "qwen3", "gpt_neox", "bert"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        for edits in ["", "scale=off", "heads=hide:first", "temp=2"] {
            let run = model.run(&golden.ids, &Edits::parse(edits).expect(edits), &Sources::default()).expect(name);
            let weights = run.weights(1, 1).expect(name);
            let (query, key) = (golden.ids.len() - 2, 3);
            let view = run.neuron(1, 1, query, key).expect(name);
            // By the definition: weights are the softmax of the scores, in f64.
            let most = view.keys.iter().fold(f64::NEG_INFINITY, |most, k| most.max(k.score));
            let whole: f64 = view.keys.iter().map(|k| (k.score - most).exp()).sum();
            for (j, k) in view.keys.iter().enumerate() {
                assert!(((k.score - most).exp() / whole - k.weight).abs() < 2e-6, "{name} {edits} key {j}: {k:?}");
                assert_eq!(k.weight as f32, weights[[query, j]], "{name} {edits}");
            }
            let dot = view.sums.last().copied().expect("numbers");
            assert!((dot - view.keys[key].dot).abs() < 1e-9 && view.q.len() == model.head_dim());
            // Turning keeps lengths, and at the first token turns by nothing.
            let length = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            assert!((length(&view.q) - length(&view.q_before)).abs() < 1e-4 * length(&view.q), "{name}");
            let first = run.neuron(1, 1, query, 0).expect(name);
            assert_eq!(first.k, first.k_before, "{name}");
            let turned = run.q(1, false).expect(name);
            assert_eq!(view.q_before, turned.index_axis(Axis(0), 1).row(query).to_vec(), "{name} {edits}");
        }
        let run = model.run(&golden.ids, &Edits::default(), &Sources::default()).expect(name);
        assert!(run.neuron(1, 1, golden.ids.len(), 0).is_err() && run.neuron(9, 1, 0, 0).is_err());
    }
}

#[test]
fn a_sink_is_shown_hidden_or_divided_away() {
    let (golden, model) = (Golden::read("llama3"), Model::load(folder("llama3")).expect("llama3"));
    let run = model.run(&golden.ids, &Edits::default(), &Sources::default()).expect("a run");
    let n = golden.ids.len();
    let [shown, hidden, divided] =
        [Sink::Show, Sink::Hide, Sink::Renormalise].map(|sink| run.weights_without(1, 2, 0..n, sink).expect("weights"));
    for i in 1..n {
        assert_eq!((hidden[[i, 0]], divided[[i, 0]]), (0.0, 0.0));
        for j in 1..n {
            assert_eq!(hidden[[i, j]], shown[[i, j]]);
            assert!((divided[[i, j]] * (1.0 - shown[[i, 0]]) - shown[[i, j]]).abs() < 1e-6);
        }
    }
    assert_eq!((hidden[[0, 0]], divided[[0, 0]]), (1.0, 1.0), "a query keeps its own key");
    // Pooled: four rows of n / 4 keys each, by hand.
    for (sink, weights) in [(Sink::Hide, &hidden), (Sink::Renormalise, &divided)] {
        let map = run.heat_map_without(1, 2, [4, 4], sink).expect("a map").mean;
        for (row, col) in [(0, 0), (3, 0), (3, 2)] {
            let of = |cell: usize| (cell * n).div_ceil(4)..((cell + 1) * n).div_ceil(4);
            let (rows, cols) = (of(row), of(col));
            let count = (rows.len() * cols.len()) as f32;
            let sum: f32 = rows.flat_map(|i| cols.clone().map(move |j| (i, j))).map(|at| weights[at]).sum();
            assert!((map[[0, 0, row, col]] - sum / count).abs() < 1e-6, "{sink:?} {row} {col}");
        }
    }
}

#[test]
fn windows_of_a_long_text_judge_every_token_once() {
    let (model, none, nothing) = (Model::built_in().expect("the small model"), Edits::default(), Sources::default());
    let context = model.context();
    let mut ids = model.ids(Input::Text(&regard_nn::stories::write(3000, 1))).expect("a text");
    assert!(ids.len() > 2 * context + 40, "{}", ids.len());
    ids.truncate(2 * context + 40);
    let bos = model.tokenizer().expect("a tokenizer").first().expect("a first token");
    assert_eq!(ids[0], bos);
    let of = |ids: &[u32]| model.losses(ids, &none, &nothing).expect("losses");
    let judged =
        |ids: &[u32], stride: Option<usize>| model.evaluate(ids, stride, &none, &nothing, |_, _| {}).map(|evaluated| evaluated.losses);
    // Every window begins with the first token, and goes on where the one before it ended.
    let losses = judged(&ids, None).expect("losses");
    let begun = |from: usize, to: usize| [&[bos], &ids[from..to]].concat();
    let windows = [begun(1, context), begun(context, 2 * context - 1), begun(2 * context - 1, ids.len())];
    assert_eq!(losses, windows.map(|window| of(&window)).concat());
    assert_eq!(losses.len(), ids.len() - 1);
    let near = judged(&ids, Some(16)).expect("losses");
    assert_eq!((near.len(), &near[..context - 1]), (losses.len(), &losses[..context - 1]));
    assert_eq!(near[context - 1..context + 15], of(&begun(17, context + 16))[context - 17..]);
    assert!(judged(&ids, Some(0)).is_err() && judged(&ids, Some(context)).is_err());
    // Without such a token the first of a window is not predicted in it: windows overlap by one.
    let plain = &ids[1..];
    let windows = [&plain[..context], &plain[context - 1..2 * context - 1], &plain[2 * context - 2..]];
    assert_eq!(judged(plain, None).expect("losses"), windows.map(of).concat());
}

/// Not of our grammar.
const STRANGER: [&str; 4] = [
    "Sehr geehrte Damen und Herren, der Zug nach K\u{f6}ln f\u{e4}llt heute aus. Bitte nehmen Sie den Bus um 17:45 Uhr vom Platz hinter \
        dem Bahnhof.",
    "fn main() { let total: u64 = (1..=10).map(|n| n * n).sum(); println!(\"{total}\"); } // prints 385, or so they say, on most days",
    "It was a bright cold day, and no one on the island remembered who had first lit the lamp above the harbour wall or why it still \
        burned.",
    "0.125 + 0.25 = 0.375; x^2 - 4x + 3 = 0 has roots 1 and 3, while 2, 3, 5, 7, 11, 13 are primes and 4, 6, 8, 9, 10, 12 are not, of \
        course.",
];

#[test]
fn the_small_model_has_heads_that_are_named() {
    let model = Model::built_in().expect("the small model");
    let ours = model.own_texts(16, 256).expect("texts");
    let theirs = model.cut_texts(&STRANGER, model.context()).expect("texts");
    for (whose, texts, labels) in
        [("ours", ours, ["previous", "induction", "first"].as_slice()), ("a stranger's", theirs, &["previous", "induction"])]
    {
        let heads = model.classify(&texts, |_, _| true).expect("scores");
        for label in labels {
            assert!(heads.iter().any(|head| head.labels.contains(label)), "no head is called {label} on {whose}: {heads:?}");
        }
    }
}

#[test]
fn the_small_model_looks_up_what_it_has_seen() {
    let model = Model::built_in().expect("the small model");
    let bos = model.tokenizer().expect("a tokenizer").first();
    let mut means = [0.0; 2];
    for seed in 0..4 {
        let mut draws = Draws::at(seed, &[77]);
        let half: Vec<u32> = (0..45).map(|_| draws.below(model.vocab() - 1) as u32).collect();
        let ids: Vec<u32> = bos.into_iter().chain(half.iter().copied()).chain(half.iter().copied()).collect();
        let losses = model.losses(&ids, &Edits::default(), &Sources::default()).expect("losses");
        // The first token of the second half cannot be known either.
        for (mean, losses) in means.iter_mut().zip([&losses[..45], &losses[46..]]) {
            *mean += losses.iter().sum::<f64>() / losses.len() as f64 / 4.0;
        }
    }
    let [first, again] = means;
    assert!(first > 0.8 * (model.vocab() as f64).ln() && again < 0.5, "{first} the first time, {again} the second");
}
