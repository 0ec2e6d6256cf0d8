//! Planted faults of conversion: each is found at its first part, and its cause named.

use crate::damage::small_tokenizer;
use crate::golden::folder;
use regard_model::diff::{Cause, Difference, Side, compare};
use regard_model::{Edits, Model, Sources};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Numbers by name, with their shapes.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path.join("model.safetensors")).expect("weights");
    let file = SafeTensors::deserialize(&bytes).expect("weights");
    let numbers = |bytes: &[u8]| bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes"))).collect();
    file.tensors().into_iter().map(|(name, t)| (name, (t.shape().to_vec(), numbers(t.data())))).collect()
}

fn write(path: &Path, tensors: &Tensors, half: bool) {
    let bytes: BTreeMap<&String, Vec<u8>> = tensors
        .iter()
        .map(|(name, (_, x))| {
            let of = |x: &f32| if half { half::f16::from_f32(*x).to_le_bytes().to_vec() } else { x.to_le_bytes().to_vec() };
            (name, x.iter().flat_map(of).collect())
        })
        .collect();
    let kind = if half { Dtype::F16 } else { Dtype::F32 };
    let views = tensors.iter().map(|(name, (shape, _))| (name, TensorView::new(kind, shape.clone(), &bytes[name]).expect("a tensor")));
    std::fs::write(path.join("model.safetensors"), safetensors::serialize(views, None).expect("weights")).expect("a file");
}

/// The same model with a fault in its settings or its tensors.
fn faulty(name: &str, settings: impl FnOnce(&mut Value), tensors: impl FnOnce(&mut Tensors), half: bool) -> (tempfile::TempDir, Model) {
    let to = tempfile::tempdir().expect("a folder");
    let text = std::fs::read(folder(name).join("config.json")).expect("settings");
    let mut config: Value = serde_json::from_slice(&text).expect("settings");
    settings(&mut config);
    std::fs::write(to.path().join("config.json"), config.to_string()).expect("a file");
    let mut weights = read(&folder(name));
    tensors(&mut weights);
    write(to.path(), &weights, half);
    let model = Model::load(to.path()).expect("a model");
    (to, model)
}

fn differ(a: &Model, b: &Model) -> Difference {
    let (edits, sources) = (Edits::default(), Sources::default());
    let side = |model| Side { model, edits: &edits, sources: &sources };
    compare(side(a), side(b), &a.random_texts(3, 40, 1), &[], |_, _| true).expect("models of one shape")
}

/// Rows of queries and keys in the order in which neighbours turn together.
fn permuted(tensors: &mut Tensors, dim: usize) {
    for (name, (shape, x)) in tensors.iter_mut().filter(|(name, _)| name.contains("q_proj") || name.contains("k_proj")) {
        assert_eq!(shape[0] % dim, 0, "{name}");
        let (old, width) = (x.clone(), shape[1]);
        for row in 0..shape[0] {
            let (head, i) = (row / dim, row % dim);
            let from = head * dim + i / 2 + i % 2 * (dim / 2);
            x[row * width..(row + 1) * width].copy_from_slice(&old[from * width..(from + 1) * width]);
        }
    }
}

struct Fault {
    name: &'static str,
    model: &'static str,
    settings: fn(&mut Value),
    tensors: fn(&mut Tensors),
    half: bool,
    cause: &'static str,
    first: &'static str,
}

fn exchange(tensors: &mut Tensors, a: &str, b: &str) {
    let names: Vec<String> = tensors.keys().filter(|name| name.contains(a)).cloned().collect();
    for name in names {
        let other = name.replace(a, b);
        let (x, y) = (tensors[&name].clone(), tensors[&other].clone());
        tensors.insert(name, y);
        tensors.insert(other, x);
    }
}

#[test]
fn planted_faults_are_found_and_named() {
    let same = |_: &mut Tensors| {};
    let keep = |_: &mut Value| {};
    let fault = |name, model, settings: fn(&mut Value), tensors: fn(&mut Tensors), cause, first| Fault {
        name,
        model,
        settings,
        tensors,
        half: false,
        cause,
        first,
    };
    let faults = [
        fault("theta", "llama3", |c| c["rope_parameters"]["rope_theta"] = json!(10_000.0), same, "theta", "L0.q"),
        fault("theta of Qwen", "qwen3", |c| c["rope_parameters"]["rope_theta"] = json!(1e6), same, "theta", "L0.q"),
        fault("scaling left out", "llama3", |c| c["rope_parameters"]["rope_type"] = json!("default"), same, "rotary scaling", "L0.q"),
        fault("eps", "qwen3", |c| c["rms_norm_eps"] = json!(1e-3), same, "eps", "L0.q"),
        fault("eps of layer norms", "gpt2", |c| c["layer_norm_epsilon"] = json!(1e-2), same, "eps", "L0.q"),
        fault("softcap of scores", "gemma2", |c| c["attn_logit_softcapping"] = json!(2.0), same, "softcap", "L0.pattern"),
        fault("softcap of logits", "gemma2", |c| c["final_logit_softcapping"] = Value::Null, same, "softcap", "logits"),
        fault("scale", "gemma2", |c| c["query_pre_attn_scalar"] = json!(64), same, "scale", "L0.pattern"),
        fault("tied", "llama3", |c| c["tie_word_embeddings"] = json!(true), same, "tied embeddings", "logits"),
        fault("not parallel", "gpt_neox", |c| c["use_parallel_residual"] = json!(false), same, "norm placement", "L0.mlp_out"),
        fault(
            "share of heads",
            "gpt_neox",
            |c| c["rope_parameters"]["partial_rotary_factor"] = json!(0.5),
            same,
            "rotated share of a head",
            "L0.q",
        ),
        fault("tanh or not", "gpt2", |c| c["activation_function"] = json!("gelu"), same, "activation", "none"),
        fault("rows permuted", "llama3", keep, |t| permuted(t, 8), "rotary pairing", "L0.q"),
        fault(
            "heads of values in another order",
            "llama3",
            keep,
            |t| {
                t.iter_mut().filter(|(name, _)| name.contains("v_proj")).for_each(|(_, (_, x))| {
                    let half = x.len() / 2;
                    x.rotate_left(half);
                });
            },
            "order of heads",
            "L0.v",
        ),
        fault("gate and up", "llama3", keep, |t| exchange(t, "gate_proj", "up_proj"), "exchanged tensors", "L0.mlp_out"),
        fault(
            "head copied",
            "llama3",
            keep,
            |t| {
                let table = t["model.embed_tokens.weight"].clone();
                t.insert("lm_head.weight".to_owned(), table);
            },
            "tied embeddings",
            "logits",
        ),
        fault(
            "scale folded in twice",
            "llama3",
            keep,
            |t| {
                t.iter_mut()
                    .filter(|(name, _)| name.contains("q_proj"))
                    .for_each(|(_, (_, x))| x.iter_mut().for_each(|x| *x *= 0.353_553_4));
            },
            "scale",
            "L0.q",
        ),
        Fault { half: true, ..fault("halved", "qwen3", keep, same, "quantisation type", "embedding") },
    ];
    let mut missed = Vec::new();
    for f in faults {
        let a = Model::load(folder(f.model)).expect(f.model);
        let (_kept, b) = faulty(f.model, f.settings, f.tensors, f.half);
        let found = differ(&a, &b);
        assert!(!found.identical, "{}", f.name);
        let first = found.first().map(|part| part.layer.map_or(part.part.to_owned(), |layer| format!("L{layer}.{}", part.part)));
        let cause: Option<&Cause> = found.causes.first();
        let named = cause.is_some_and(|cause| cause.name == f.cause && cause.left.is_some_and(|left| left < 0.02));
        // Both forms of GELU differ by less than rounding may: there is a cause, and no part beyond rounding.
        if first.as_deref().unwrap_or("none") != f.first || !named {
            missed.push(format!("{}: first {first:?}, causes {:?}", f.name, found.causes));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn a_window_is_found_in_a_model_of_several_files() {
    let to = tempfile::tempdir().expect("a folder");
    for file in folder("mistral").read_dir().expect("a folder").filter_map(Result::ok) {
        std::fs::copy(file.path(), to.path().join(file.file_name())).expect("a copy");
    }
    let config = to.path().join("config.json");
    let mut settings: Value = serde_json::from_slice(&std::fs::read(&config).expect("settings")).expect("settings");
    settings["sliding_window"] = json!(5);
    std::fs::write(&config, settings.to_string()).expect("a file");
    let (a, b) = (Model::load(folder("mistral")).expect("a model"), Model::load(to.path()).expect("a model"));
    let found = differ(&a, &b);
    let first = found.first().expect("it differs");
    assert_eq!((first.layer, first.part), (Some(0), "pattern"));
    assert_eq!((found.causes[0].name, found.causes[0].left), ("window", Some(0.0)), "{:?}", found.causes);
}

#[test]
fn identical_files_differ_in_exactly_nothing() {
    for name in ["llama3", "gguf_small", "gemma2", "bert"] {
        let a = Model::load(folder(name)).expect(name);
        let b = Model::load(folder(name)).expect(name);
        let found = differ(&a, &b);
        assert!(found.identical && found.causes.is_empty() && found.first().is_none(), "{name}: {found:?}");
        assert!(found.results == 0.0 && found.parts.iter().all(|part| part.relative == 0.0), "{name}");
        assert!(found.heads.iter().all(|head| head.pattern.mean == 0.0 && head.pattern.high == 0.0), "{name}");
    }
}

#[test]
fn settings_of_one_model_are_compared_and_named() {
    let model = Model::built_in().expect("the small model");
    let (none, off) = (Edits::default(), Edits::parse("scale=off").expect("an edit"));
    let sources = Sources::default();
    let texts = model.own_texts(4, 48).expect("texts");
    let a = Side { model: &model, edits: &none, sources: &sources };
    let found = compare(a, Side { edits: &off, ..a }, &texts, &[], |_, _| true).expect("one model");
    let first = found.first().expect("it differs");
    assert_eq!((first.layer, first.part), (Some(0), "pattern"));
    assert_eq!((found.causes[0].name, found.causes[0].left), ("scale", Some(0.0)), "{:?}", found.causes);
    let loss = found.loss.expect("a loss");
    assert!(loss.mean > 0.0 && loss.low <= loss.mean && loss.mean <= loss.high, "{loss:?}");
}

#[test]
fn tokenizers_that_differ_are_a_cause_of_their_own() {
    let with = |tokenizer: serde_json::Value| {
        let (kept, _) = faulty("llama3", |_| {}, |_| {}, false);
        std::fs::write(kept.path().join("tokenizer.json"), tokenizer.to_string()).expect("a file");
        let model = Model::load(kept.path()).expect("a model");
        (kept, model)
    };
    let (edits, sources) = (Edits::default(), Sources::default());
    let text = "once on ce once".to_owned();
    // Without the table of characters, which is there to be refused.
    let plain = || {
        let mut tokenizer = small_tokenizer();
        tokenizer["normalizer"] = Value::Null;
        tokenizer
    };
    let (mut without, mut other) = (plain(), plain());
    without["post_processor"] = Value::Null;
    (other["model"]["vocab"]["on"], other["model"]["vocab"]["ce"]) = (json!(5), json!(4));
    let (_a, a) = with(plain());
    for (tokenizer, cause) in [(without, "BOS"), (other, "tokenizer")] {
        let (_b, b) = with(tokenizer);
        let ids = a.ids(regard_model::Input::Text(&text)).expect("tokens");
        let (a, b) = (Side { model: &a, edits: &edits, sources: &sources }, Side { model: &b, edits: &edits, sources: &sources });
        let found = compare(a, b, &[ids], std::slice::from_ref(&text), |_, _| true).expect("models of one shape");
        let tokens = found.tokens.as_ref();
        assert_eq!(tokens.map(|tokens| tokens.bos), Some(cause == "BOS"), "{found:?}");
        assert_eq!(found.causes.iter().map(|cause| cause.name).collect::<Vec<_>>(), [cause]);
        assert!(!found.identical && found.first().is_none());
    }
}
