//! Files that contradict themselves are refused, and tokenizers do what their own libraries do.

use crate::golden::folder;
use regard_model::formats::{Gguf, Pickle};
use regard_model::front::sound::Sound;
use regard_model::tokens::Tokenizer;
use regard_model::{Edits, Model, Sources};
use regard_nn::tensors::Source;
use std::path::{Path, PathBuf};

/// A value of a GGUF setting, with its type in front.
fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [kind.to_le_bytes().as_slice(), bytes].concat()
}

fn string(text: &str) -> Vec<u8> {
    [(text.len() as u64).to_le_bytes().as_slice(), text.as_bytes()].concat()
}

fn strings(list: &[&str]) -> Vec<u8> {
    let all: Vec<u8> = list.iter().flat_map(|text| string(text)).collect();
    [8u32.to_le_bytes().as_slice(), &(list.len() as u64).to_le_bytes(), &all].concat()
}

/// A file of these settings and of f32 tensors with dimensions and offsets.
fn gguf(folder: &Path, settings: &[(&str, Vec<u8>)], tensors: &[(&str, &[u64], u64)], data: usize) -> PathBuf {
    let mut bytes =
        [b"GGUF".as_slice(), &3u32.to_le_bytes(), &(tensors.len() as u64).to_le_bytes(), &(settings.len() as u64).to_le_bytes()].concat();
    settings.iter().for_each(|(key, value)| bytes.extend([string(key), value.clone()].concat()));
    for (name, dims, offset) in tensors {
        bytes.extend([string(name), (dims.len() as u32).to_le_bytes().to_vec()].concat());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend([0u32.to_le_bytes().as_slice(), &offset.to_le_bytes()].concat());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    let path = folder.join("model.gguf");
    std::fs::write(&path, bytes).expect("written");
    path
}

#[test]
fn gguf_files_that_contradict_themselves_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let key = |name| (name, value(4, &7u32.to_le_bytes()));
    let open = |settings: &[(&str, Vec<u8>)], tensors: &[(&str, &[u64], u64)]| {
        Gguf::open(&gguf(dir.path(), settings, tensors, 128)).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(open(&[key("a"), key("b")], &[("x", &[8], 0), ("y", &[8], 32)]), Ok(()));
    for (settings, tensors, reason) in [
        ([key("a"), key("a")], [("x", [8u64].as_slice(), 0u64), ("y", &[8], 32)], "setting a is there twice"),
        ([key("a"), key("b")], [("x", &[8], 0), ("x", &[8], 32)], "tensor x is there twice"),
        ([key("a"), key("b")], [("x", &[16], 0), ("y", &[8], 32)], "x and y share bytes"),
        ([key("a"), key("b")], [("x", &[8], 0), ("y", &[8], 36)], "multiple of 32"),
    ] {
        let error = open(&settings, &tensors).expect_err(reason);
        assert!(error.contains(reason), "{error}");
    }
    let text = |text: &str| value(8, &string(text));
    let path = gguf(dir.path(), &[("general.architecture", text("llama"))], &[("token_embd.weight", &[], 0)], 64);
    assert!(Model::load(path).expect_err("no dimensions").to_string().contains("embedding_length"));
}

/// A copy of a checkpoint in which bytes of one file are replaced.
fn replaced(name: &str, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a folder");
    for entry in folder(name).read_dir().expect("golden files") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, to.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    let mut bytes = std::fs::read(to.path().join(file)).expect(file);
    change(&mut bytes);
    std::fs::write(to.path().join(file), bytes).expect(file);
    to
}

fn find(bytes: &[u8], what: &str) -> usize {
    bytes.windows(what.len()).position(|window| window == what.as_bytes()).expect(what)
}

#[test]
fn models_with_more_tensors_than_their_settings_name_are_refused() {
    let refused = |folder: tempfile::TempDir, reason: &str| {
        let error = Model::load(folder.path()).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    };
    // One block of two.
    for name in ["llama3", "gpt2", "bert", "distilbert", "gpt_neox", "gemma2"] {
        let fewer = replaced(name, "config.json", |bytes| {
            let mut json: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
            let key = ["num_hidden_layers", "n_layer", "n_layers"].into_iter().find(|key| json[key] == 2).expect("two blocks");
            json[key] = 1.into();
            *bytes = json.to_string().into_bytes();
        });
        refused(fewer, if name == "gemma2" { "layer_types" } else { "belongs to no part" });
    }
    // Positions begin after that of padding.
    for pad in [serde_json::json!(1e20), serde_json::json!(u64::MAX), serde_json::json!(64)] {
        let far = replaced("roberta", "config.json", |bytes| {
            let mut json: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
            json["pad_token_id"] = pad.clone();
            *bytes = json.to_string().into_bytes();
        });
        refused(far, "max_position_embeddings");
    }
    // A tensor of a second block, where one is named.
    let more = replaced("gguf_small", "model.gguf", |bytes| {
        let at = find(bytes, "rope_freqs.weight");
        bytes[at..at + 17].copy_from_slice(b"blk.1.attn_v.bias");
    });
    refused(more, "blk.1.attn_v.bias belongs to no part");
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let eps = replaced("gguf_small", "model.gguf", |bytes| {
            let at = find(bytes, "layer_norm_rms_epsilon") + "layer_norm_rms_epsilon".len() + 4;
            bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
        });
        refused(eps, "layer_norm_rms_epsilon");
    }
}

/// The instructions of a pickle.
fn pickled(code: &[u8]) -> Vec<u8> {
    [b"\x80\x02".as_slice(), code, b"."].concat()
}

fn text(text: &str) -> Vec<u8> {
    [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// A tensor of one dimension that is all of a storage.
fn tensor(storage: &str, key: &str, count: u8) -> Vec<u8> {
    let storage =
        [b"(".as_slice(), &text("storage"), b"ctorch\n", storage.as_bytes(), b"\n", &text(key), &text("cpu"), &[b'K', count], b"tQ"]
            .concat();
    let shape = [b'(', b'K', count, b't', b'(', b'K', 1, b't', 0x89];
    [b"ctorch._utils\n_rebuild_tensor_v2\n(".as_slice(), &storage, b"K\x00", &shape, b"ccollections\nOrderedDict\n)RtR"].concat()
}

/// An old file of PyTorch's with this object and these storages: key, count, bytes.
fn old_file(folder: &Path, object: &[u8], storages: &[(&str, u64, Vec<u8>)]) -> PathBuf {
    const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
    let keys: Vec<u8> = storages.iter().flat_map(|(key, _, _)| text(key)).collect();
    let mut file = [pickled(&[[0x8a, 10].as_slice(), &MAGIC].concat()), pickled(b"M\xe9\x03"), pickled(b"}")].concat();
    file.extend(pickled(object));
    file.extend(pickled(&[b"](".as_slice(), &keys, b"e"].concat()));
    storages.iter().for_each(|(_, count, bytes)| file.extend([count.to_le_bytes().as_slice(), bytes].concat()));
    let path = folder.join("pytorch_model.bin");
    std::fs::write(&path, file).expect("written");
    path
}

#[test]
fn storages_of_old_pickles_have_the_sizes_of_their_types() {
    let dir = tempfile::tempdir().expect("a folder");
    let weights: Vec<u8> = [1.5f32, -2.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    for (storage, width) in
        [("ByteStorage", 1), ("BoolStorage", 1), ("CharStorage", 1), ("ShortStorage", 2), ("IntStorage", 4), ("LongStorage", 8)]
    {
        let object =
            [b"}(".as_slice(), &text("mask"), &tensor(storage, "0", 3), &text("weight"), &tensor("FloatStorage", "1", 2), b"u"].concat();
        let path = old_file(dir.path(), &object, &[("0", 3, vec![1; 3 * width]), ("1", 2, weights.clone())]);
        let file = Pickle::open(&path).expect(storage);
        let mut got = [0f32; 2];
        file.tensor("weight").expect(storage).numbers.widen(0..2, &mut got);
        assert_eq!(got, [1.5, -2.5], "{storage}");
        assert!(file.tensor("mask").expect_err("integers").to_string().contains("integers"));
    }
}

/// A value of a pickle is named again in two bytes: a small file could describe texts, lists and tensors of any size, and dictionaries
/// without an end.
#[test]
fn small_pickles_that_describe_much_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let open = |object: &[u8], count: u32| {
        let storage = ("0", u64::from(count), vec![0; 4 * count as usize]);
        Pickle::open(&old_file(dir.path(), object, &[storage])).expect_err("refused").to_string()
    };
    let repeated = |start: &[u8], again: &[u8], count: usize, end: &[u8]| [start, &again.repeat(count), end].concat();
    let (long, storage) = (text(&"x".repeat(100_000)), b"ctorch\nFloatStorage\n".as_slice());
    // A name, the key of a storage and the name of a function.
    let names = [b"}(".as_slice(), &long, b"q\x00", &tensor("FloatStorage", "0", 2), b"q\x01"].concat();
    let error = open(&repeated(&names, b"h\x00h\x01", 100_000, b"u"), 2);
    assert!(error.contains("more than a file of its length can hold"), "{error}");
    let keys = [&long, b"q\x000".as_slice(), &text("storage"), b"q\x010", storage, b"q\x020"].concat();
    assert!(open(&repeated(&keys, b"(h\x01h\x02h\x00h\x00K\x02tQ0", 10, b"}"), 2).contains("it is damaged"));
    assert!(open(&repeated(&[&long, b"q\x000".as_slice()].concat(), b"h\x00h\x00\x930", 10, b"}"), 2).contains("it is damaged"));
    // A shape that many tensors have.
    let shape = [b"(".as_slice(), &b"K\x01".repeat(65), b"tq\x000}("].concat();
    let tensor = |shape: &[u8], strides: &[u8]| {
        let start = [b"ctorch._utils\n_rebuild_tensor_v2\n((".as_slice(), &text("storage"), storage, &text("0"), &text("cpu")].concat();
        [&start, b"J\x00\x00\x10\x00tQK\x00".as_slice(), shape, strides, b"\x89ccollections\nOrderedDict\n)RtR"].concat()
    };
    let object = [shape, text("w"), tensor(b"h\x00", b"h\x00"), b"u".to_vec()].concat();
    assert!(open(&object, 2).contains("65 dimensions"));
    // A dictionary inside itself.
    let object = repeated(&[b"}q\x00(".as_slice(), &text("model"), b"q\x01h\x00"].concat(), b"h\x01h\x00", 20_000, b"u");
    assert!(open(&object, 2).contains("belongs to no tensor"));
    // Transposed tensors that share one storage: each in order would have its own elements.
    let side = b"J\x00\x04\x00\x00";
    let (shape, strides) = ([b"(", &side[..], side, b"t"].concat(), [b"(K\x01", &side[..], b"t"].concat());
    let tensors: Vec<u8> = (0..40).flat_map(|i| [text(&format!("w{i}")), tensor(&shape, &strides)].concat()).collect();
    let error = open(&[b"}(".as_slice(), &tensors, b"u"].concat(), 1 << 20);
    assert!(error.contains("more than a file of its length can hold"), "{error}");
}

#[test]
fn files_that_cannot_be_run_name_what_is_missing() {
    let dir = tempfile::tempdir().expect("a folder");
    let inner = [b"}(".as_slice(), &text("encoder.conv1.weight"), &tensor("FloatStorage", "0", 2), b"u"].concat();
    let object = [b"}(".as_slice(), &text("dims"), b"}", &text("model_state_dict"), &inner, b"u"].concat();
    let path = old_file(dir.path(), &object, &[("0", 2, vec![0; 8])]);
    let error = Model::load(path).expect_err("a model of sound").to_string();
    assert!(error.contains("encoder.conv1.weight") && error.contains("missing"), "{error}");
    let inner = [b"}(".as_slice(), &text("some.weight"), &tensor("FloatStorage", "0", 2), b"u"].concat();
    let object = [b"}(".as_slice(), &text("epoch"), b"K\x03", &text("model_state_dict"), &inner, b"u"].concat();
    let error = Model::load(old_file(dir.path(), &object, &[("0", 2, vec![0; 8])])).expect_err("which?").to_string();
    assert!(error.contains("config.json"), "{error}");
    for (name, missing) in [("phimoe", "experts"), ("falcon", "fused by groups"), ("gemma3n_text", "this version")] {
        let model = replaced("llama3", "config.json", |bytes| *bytes = format!(r#"{{"model_type": "{name}"}}"#).into_bytes());
        let error = Model::load(model.path()).expect_err(name).to_string();
        assert!(error.contains(missing) && error.contains("phi3"), "{error}");
    }
}

#[test]
fn tokens_of_llama_3_are_those_of_its_own_library() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = |text: &str| value(8, &string(text));
    let tokens = ["o", "n", "c", "e", "on", "once", "<|begin_of_text|>"];
    let kinds: Vec<u8> = [1i32, 1, 1, 1, 1, 1, 3].iter().flat_map(|kind| kind.to_le_bytes()).collect();
    let read = |pre: &str, more: Option<(&'static str, Vec<u8>)>| {
        let mut settings = vec![
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text(pre)),
            ("tokenizer.ggml.tokens", value(9, &strings(&tokens))),
            ("tokenizer.ggml.merges", value(9, &strings(&["o n"]))),
            ("tokenizer.ggml.token_type", value(9, &[5u32.to_le_bytes().as_slice(), &7u64.to_le_bytes(), &kinds].concat())),
            ("tokenizer.ggml.bos_token_id", value(4, &6u32.to_le_bytes())),
        ];
        settings.extend(more);
        let file = Gguf::open(&gguf(dir.path(), &settings, &[], 0)).expect("a file");
        let tokenizer = Tokenizer::of_gguf(&file).expect("a tokenizer");
        tokenizer.encode("once").expect("tokens").into_iter().map(|token| token.id).collect::<Vec<_>>()
    };
    // A word that is a token is taken whole, though no merge makes it; BOS is added unless the file says otherwise.
    assert_eq!(read("llama-bpe", None), [6, 5]);
    assert_eq!(read("llama-bpe", Some(("tokenizer.ggml.add_bos_token", value(7, &[0])))), [5]);
    assert_eq!(read("gpt-2", None), [4, 2, 3]);
    assert_eq!(read("gpt-2", Some(("tokenizer.ggml.add_bos_token", value(7, &[1])))), [6, 4, 2, 3]);
}

/// Byte-level BPE of few tokens.
fn small_tokenizer(change: impl FnOnce(&mut serde_json::Value)) -> Tokenizer {
    let mut json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null, "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false,
            "vocab": { "o": 0, "n": 1, "c": 2, "e": 3, "on": 4, "ce": 5, "once": 6 }, "merges": ["o n", "c e", "on ce"]
        }
    });
    change(&mut json);
    Tokenizer::of_bytes(json.to_string().as_bytes()).expect("a tokenizer")
}

#[test]
fn tokens_do_not_depend_on_chance() {
    let tokenizer = small_tokenizer(|json| json["model"]["dropout"] = 0.5.into());
    for _ in 0..64 {
        let ids: Vec<u32> = tokenizer.encode("onceonce").expect("tokens").into_iter().map(|token| token.id).collect();
        assert_eq!(ids, [6, 6]);
    }
}

#[test]
fn texts_that_a_tokenizer_would_blow_up_are_refused() {
    let replace = |content: &str| serde_json::json!({ "type": "Replace", "pattern": { "String": "o" }, "content": content });
    let twelve = |content: &str| serde_json::json!({ "type": "Sequence", "normalizers": vec![replace(content); 12] });
    let error = small_tokenizer(|json| json["normalizer"] = twelve("oooooooo")).encode("once").expect_err("69 GB").to_string();
    assert!(error.contains("lengthen"), "{error}");
    // As many that keep the length are no danger.
    let ids = small_tokenizer(|json| json["normalizer"] = twelve("o")).encode("once").expect("tokens");
    assert_eq!(ids.len(), 1);
    let decoders = serde_json::json!({ "type": "Sequence", "decoders": vec![replace("oooooooo"); 12] });
    let error = small_tokenizer(|json| json["decoder"] = decoders).decode(&[6]).expect_err("69 GB").to_string();
    assert!(error.contains("lengthen"), "{error}");
}

#[test]
fn means_of_other_texts_are_taken_once() {
    let model = Model::built_in().expect("the small model");
    let ids = model.own_texts(1, 256).expect("a text").swap_remove(0);
    let texts = model.own_texts(64, 256).expect("texts");
    let sources = Sources { reference: Some(model.reference(&texts).expect("a reference").into()), ..Sources::default() };
    let best = |edits: &str| {
        let edits = Edits::parse(edits).expect(edits);
        let once = || {
            let start = std::time::Instant::now();
            model.run(&ids, &edits, &sources).expect("a run");
            start.elapsed().as_secs_f64()
        };
        (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
    };
    let [zero, mean] = ["heads=zero", "heads=mean"].map(best);
    // The pool has 16,384 rows: a mean for each of 256 rows would take a hundred times as long as the rest.
    assert!(mean < 8.0 * zero, "{mean} s for means, {zero} s for zeros");
    let [zero, mean] = ["L0-2.mlp=zero", "L0-2.mlp=mean"].map(best);
    assert!(mean < 8.0 * zero, "{mean} s for means, {zero} s for zeros");
}

/// At a low rate, a file within its limit would have hundreds of times its samples.
#[test]
fn sound_that_is_too_long_is_refused_before_its_rate_is_changed() {
    let (begun, sound) = (std::time::Instant::now(), Sound { samples: vec![0.0; 8 << 20], rate: 1000 });
    let error = sound.log_mel(80, 3000).expect_err("too long").to_string();
    assert!(error.contains("8388.6 seconds; the model reads 30"), "{error}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    // The last sample that fits, and one more.
    let sound = |len: usize| Sound { samples: vec![0.1; len], rate: 44_100 };
    assert!(sound(441).log_mel(2, 1).is_ok() && sound(442).log_mel(2, 1).is_err());
}

#[test]
fn sounds_whose_sizes_contradict_each_other_are_refused() {
    let wav = |bits: u16, frame: u16, length: u32, chunks: &[(&[u8; 4], &[u8])]| {
        let mut format = [1u16.to_le_bytes(), 1u16.to_le_bytes()].concat();
        format.extend([16_000u32.to_le_bytes(), (16_000 * u32::from(frame)).to_le_bytes()].concat());
        format.extend([frame.to_le_bytes(), bits.to_le_bytes()].concat());
        let mut body = b"WAVE".to_vec();
        for (name, bytes) in [(b"fmt ", format.as_slice())].iter().chain(chunks) {
            body.extend([name.as_slice(), &(bytes.len() as u32).to_le_bytes(), bytes].concat());
        }
        let length = if length == 0 { 0 } else { body.len() as u32 };
        [b"RIFF".as_slice(), &length.to_le_bytes(), &body].concat()
    };
    let error = Sound::of_wav(&wav(24, 4, 1, &[(b"data", &[0; 8])])).expect_err("frames");
    assert!(error.contains("1 channels of 24 bits and frames of 4 bytes contradict each other"), "{error}");
    assert_eq!(Sound::of_wav(&wav(16, 2, 1, &[(b"data", &[0; 8])])).expect("whole").samples.len(), 4);
    // What follows an empty chunk of samples is a text, unless the file is a stream that was never ended.
    let followed: [(&[u8; 4], &[u8]); 2] = [(b"data", &[]), (b"LIST", &[1; 8])];
    assert!(Sound::of_wav(&wav(16, 2, 1, &followed)).expect_err("a text").contains("no samples"));
    assert_eq!(Sound::of_wav(&wav(16, 2, 0, &followed)).expect("a stream").samples.len(), 8);
}
