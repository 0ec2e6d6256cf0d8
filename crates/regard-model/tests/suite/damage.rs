//! Files that are cut, flipped, or lie about their sizes: one line, no panic.

use crate::golden::folder;
use regard_model::formats::safetensors::names;
use regard_model::tokens::Tokenizer;
use regard_model::{Edits, Model, Sources};
use regard_nn::random::Draws;
use std::path::Path;

/// A copy of a checkpoint, with one file of it changed.
fn damaged(name: &str, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
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

/// Loaded and run, or refused in one line.
fn outcome(folder: &Path) -> Result<(), String> {
    let model = Model::load(folder).map_err(|e| e.to_string())?;
    let run = model.run(&[5, 6, 7, 8], &Edits::default(), &Sources::default()).map_err(|e| e.to_string())?;
    if model.has_head() { run.logits().map(drop).map_err(|e| e.to_string()) } else { Ok(()) }
}

const FORMATS: [(&str, &str); 5] = [
    ("llama3", "model.safetensors"),
    ("bert", "pytorch_model.bin"),
    ("albert", "pytorch_model.bin"),
    ("gguf_small", "model.gguf"),
    ("llama2c", "model.bin"),
];

#[test]
fn cut_files_say_so() {
    for (name, file) in FORMATS {
        assert_eq!(outcome(&folder(name)), Ok(()), "{name} as it is");
        let len = std::fs::metadata(folder(name).join(file)).expect(file).len() as usize;
        for keep in [0, 1, 7, 20, 60, len / 3, len - 1000, len - 1] {
            let cut = damaged(name, file, |bytes| bytes.truncate(keep));
            let error = outcome(cut.path()).expect_err(&format!("{name} cut to {keep}"));
            assert!(!error.contains('\n') && error.len() < 600, "{name}: {error}");
        }
    }
}

#[test]
fn files_that_change_while_they_are_in_use_are_refused() {
    for (name, file) in FORMATS {
        let copy = damaged(name, file, |_| {});
        let model = Model::load(copy.path()).expect(name);
        let run = || model.run(&[5, 6, 7, 8], &Edits::default(), &Sources::default());
        let before = run().expect(name);
        std::fs::File::options().write(true).open(copy.path().join(file)).expect(file).set_len(64).expect("shortened");
        let error = run().expect_err(name).to_string();
        assert!(error.contains(file) && error.contains("was changed"), "{name}: {error}");
        // What was computed stays.
        before.weights(0, 0).expect(name);
    }
}

/// Without them a model would write, pool or split texts in another way.
#[test]
fn damaged_settings_beside_a_model_are_refused() {
    for file in ["generation_config.json", "modules.json", "1_Pooling/config.json"] {
        let copy = damaged("whisper", "config.json", |_| {});
        std::fs::create_dir(copy.path().join("1_Pooling")).expect("a folder");
        std::fs::write(copy.path().join(file), "{\"eos_token").expect("written");
        let error = Model::load(copy.path()).expect_err(file).to_string();
        assert!(error.contains(file) && error.contains("it is not JSON"), "{error}");
    }
    let copy = damaged("bert", "config.json", |_| {});
    std::fs::write(copy.path().join("tokenizer_config.json"), "{").expect("written");
    let error = Tokenizer::of_folder(copy.path(), "bert").expect_err("settings of the tokenizer").to_string();
    assert!(error.contains("tokenizer_config.json") && error.contains("it is not JSON"), "{error}");
}

#[test]
fn huge_sizes_are_refused_before_anything_is_reserved() {
    let all_ones = |at: usize| move |bytes: &mut Vec<u8>| bytes[at..at + 8].fill(0xFF);
    // The length of a safetensors header; numbers of tensors and of settings, and the length of the first key of GGUF.
    for (name, file, at) in [
        ("llama3", "model.safetensors", 0),
        ("gguf_small", "model.gguf", 8),
        ("gguf_small", "model.gguf", 16),
        ("gguf_small", "model.gguf", 24),
    ] {
        assert!(outcome(damaged(name, file, all_ones(at)).path()).is_err(), "{name} at {at}");
    }
    let wide = damaged("llama2c", "model.bin", |bytes| bytes[..4].copy_from_slice(&0x00FF_FF00i32.to_le_bytes()));
    assert!(outcome(wide.path()).is_err());
    for (key, value) in
        [("hidden_size", "16777216"), ("vocab_size", "99999999999"), ("num_hidden_layers", "100000"), ("num_attention_heads", "0")]
    {
        let config = damaged("llama3", "config.json", |bytes| {
            let text = String::from_utf8(bytes.clone()).expect("UTF-8");
            let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            json[key] = serde_json::from_str(value).expect("a number");
            *bytes = json.to_string().into_bytes();
        });
        assert!(outcome(config.path()).is_err(), "{key}");
    }
}

#[test]
fn weights_that_are_no_numbers_are_said() {
    for (name, file, from) in [
        ("llama3", "model.safetensors", 8000),
        ("gguf_small", "model.gguf", 9000),
        ("llama2c", "model.bin", 28),
        ("albert", "pytorch_model.bin", 20_000),
    ] {
        let nan = damaged(name, file, |bytes| {
            let end = bytes.len() * 3 / 4 / 4 * 4;
            bytes[from..end].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&f32::NAN.to_le_bytes()));
        });
        let error = outcome(nan.path()).expect_err(name);
        assert!(
            error.contains("not finite") || error.contains("damaged") || error.contains("cut short") || error.contains("cannot be used"),
            "{name}: {error}"
        );
    }
}

#[test]
fn unknown_families_name_what_is_missing() {
    let config = damaged("llama3", "config.json", |bytes| *bytes = br#"{"model_type": "phimoe"}"#.to_vec());
    assert!(outcome(config.path()).expect_err("phimoe").contains("experts"));
    let shape = damaged("llama3", "config.json", |bytes| {
        *bytes =
            String::from_utf8(bytes.clone()).expect("UTF-8").replace("\"intermediate_size\": 48", "\"intermediate_size\": 40").into_bytes();
    });
    let error = outcome(shape.path()).expect_err("another shape");
    assert!(error.contains("[48, 32]") && error.contains("[40, 32]"), "{error}");
}

/// Flips, cuts and swaps at random places, most of them in the header.
fn fuzz(name: &str, file: &str, runs: usize, parse: impl Fn(&[u8])) {
    throw(&std::fs::read(folder(name).join(file)).expect(file), runs, parse);
}

/// The same with these bytes.
fn throw(bytes: &[u8], runs: usize, parse: impl Fn(&[u8])) {
    let mut draws = Draws::at(23, &[bytes.len() as u64]);
    for _ in 0..runs {
        let mut bytes = bytes[..bytes.len().min(if draws.below(4) == 0 { bytes.len() } else { 40_000 })].to_vec();
        for _ in 0..=draws.below(4) {
            let (len, header) = (bytes.len().max(1), bytes.len().clamp(1, 2000));
            let at = if draws.below(8) == 0 { draws.below(len) } else { draws.below(header) };
            match draws.below(4) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << draws.below(8),
                1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][draws.below(5)],
                2 => bytes.truncate(at),
                _ => {
                    let end = (at + 8).min(bytes.len());
                    bytes[at.min(end)..end].fill(0xFF);
                }
            }
        }
        parse(&bytes);
    }
}

fn runs() -> usize {
    std::env::var("REGARD_FUZZ_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(2000)
}

#[test]
fn parsers_survive_what_is_thrown_at_them() {
    let runs = runs();
    fuzz("gguf_small", "model.gguf", runs, |bytes| {
        let _ = regard_model::formats::gguf::parses(bytes);
    });
    fuzz("bert", "pytorch_model.bin", runs, |bytes| {
        let _ = regard_model::formats::pickle::parses(bytes);
    });
    fuzz("albert", "pytorch_model.bin", runs, |bytes| {
        let _ = regard_model::formats::pickle::parses(bytes);
    });
    fuzz("llama2c", "model.bin", runs, |bytes| {
        let _ = regard_model::formats::Llama2c::sniff(bytes);
    });
    fuzz("llama3", "model.safetensors", runs, |bytes| drop(regard_nn::tensors::SafetensorsFile::new(Path::new("fuzz"), bytes)));
    fuzz("llama3", "config.json", runs, |bytes| drop(serde_json::from_slice::<serde_json::Value>(bytes)));
}

#[test]
fn lists_of_files_reach_nowhere_else() {
    fuzz("mistral", "model.safetensors.index.json", runs(), |bytes| {
        for name in names(bytes) {
            assert!(!name.is_empty() && !name.contains('/') && name != "..", "{name:?}");
        }
    });
    for name in ["../model.safetensors", "/etc/passwd", "a/b", "..", ""] {
        assert!(names(serde_json::json!({ "weight_map": { "w": name } }).to_string().as_bytes()).is_empty(), "{name}");
    }
}

/// A `tokenizer.json` of few pieces, so that there is time for many runs.
pub(crate) fn small_tokenizer() -> serde_json::Value {
    let cut = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let pieces = ["o", "n", "c", "e", "on", "ce", "once", "\u{120}", "u", "p", "up", "<s>"];
    let vocab: serde_json::Map<String, serde_json::Value> = (0..).zip(pieces).map(|(i, piece)| (piece.to_owned(), i.into())).collect();
    serde_json::json!({
        "version": "1.0", "truncation": { "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0 },
        "padding": { "strategy": { "Fixed": 16 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "o" },
        "added_tokens": [{ "id": 11, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true }],
        "normalizer": { "type": "Sequence", "normalizers": [{ "type": "NFC" }, { "type": "Precompiled", "precompiled_charsmap": TABLE }] },
        "pre_tokenizer": cut, "decoder": cut,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [11], "tokens": ["<s>"] } }
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": ["o n", "c e", "on ce", "u p"]
        }
    })
}

/// A table of characters of eight bytes, all of them zero: it replaces nothing.
const TABLE: &str = "CAAAAAAAAAAAAAAA";

#[test]
fn what_makes_the_library_of_tokenizers_panic_is_an_error() {
    let with = |path: &str, value: serde_json::Value| {
        let mut json = small_tokenizer();
        *json.pointer_mut(path).expect(path) = value;
        Tokenizer::of_bytes(json.to_string().as_bytes())
    };
    let template = "/post_processor/single/0";
    let used = [
        with(template, serde_json::json!({ "SpecialToken": { "id": "<t>", "type_id": 0 } })),
        with(template, serde_json::json!({ "Sequence": { "id": "B", "type_id": 0 } })),
    ];
    for tokenizer in used {
        let error = tokenizer.and_then(|tokenizer| tokenizer.encode("once")).expect_err("a template without its tokens");
        assert!(error.to_string().contains("the tokenizers library cannot use it"), "{error}");
    }
    let table = "/normalizer/normalizers/1/precompiled_charsmap";
    // Eight bytes that point beyond themselves; none; and 2 GB announced.
    let far = with(table, "CAAAAAD/AAAAAAAA".into()).and_then(|tokenizer| tokenizer.encode("once"));
    assert!(far.expect_err("a table that points nowhere").to_string().contains("cannot use it"));
    for (value, reason) in [("", "promises more"), ("/////wAAAAAAAAAA", "promises more"), ("CAAAAAAA", "cannot use it")] {
        let error = with(table, value.into()).expect_err(value).to_string();
        assert!(error.contains(reason), "{value}: {error}");
    }
    assert!(with("/decoder", serde_json::json!({ "type": 7 })).is_err());
}

#[test]
fn tokenizers_survive_what_is_thrown_at_them() {
    const TEXT: &str = "Once upon a time, 12 d\u{f6}gs (C=O).";
    let used = |read: regard_model::Result<Tokenizer>| {
        if let Ok(tokenizer) = read {
            let ids: Vec<u32> = tokenizer.encode(TEXT).unwrap_or_default().iter().map(|token| token.id).collect();
            let _ = (tokenizer.decode(&ids), ids.first().map(|id| tokenizer.piece(*id)));
        }
    };
    let words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nonce\nupon\na\ntime\n##s\nd\n##o\n##g\n,\n.\n1\n##2\n";
    let atoms = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nC\nO\n=\n(\n)\n.\n";
    for text in [words, atoms] {
        throw(text.as_bytes(), runs(), |bytes| used(Tokenizer::of_vocabulary(&String::from_utf8_lossy(bytes), true)));
    }
    let bytes = small_tokenizer().to_string().into_bytes();
    assert!(Tokenizer::of_bytes(&bytes).is_ok(), "whole, it is one");
    throw(&bytes, runs(), |bytes| used(Tokenizer::of_bytes(bytes)));
}
