//! Files that are cut, flipped, or lie about their sizes: one line, no panic.

use crate::golden::folder;
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
            error.contains("not numbers") || error.contains("damaged") || error.contains("cut short") || error.contains("cannot be used"),
            "{name}: {error}"
        );
    }
}

#[test]
fn unknown_families_name_what_is_missing() {
    let config = damaged("llama3", "config.json", |bytes| *bytes = br#"{"model_type": "mixtral"}"#.to_vec());
    assert!(outcome(config.path()).expect_err("mixtral").contains("experts"));
    let shape = damaged("llama3", "config.json", |bytes| {
        *bytes =
            String::from_utf8(bytes.clone()).expect("UTF-8").replace("\"intermediate_size\": 48", "\"intermediate_size\": 40").into_bytes();
    });
    let error = outcome(shape.path()).expect_err("another shape");
    assert!(error.contains("[48, 32]") && error.contains("[40, 32]"), "{error}");
}

/// Flips, cuts and swaps at random places, most of them in the header.
fn fuzz(name: &str, file: &str, runs: usize, parse: impl Fn(&[u8])) {
    let bytes = std::fs::read(folder(name).join(file)).expect(file);
    let mut draws = Draws::at(23, &[name.len() as u64]);
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

#[test]
fn parsers_survive_what_is_thrown_at_them() {
    let runs = std::env::var("REGARD_FUZZ_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(2000);
    fuzz("gguf_small", "model.gguf", runs, |bytes| {
        let _ = regard_model::archives::gguf::parses(bytes);
    });
    fuzz("bert", "pytorch_model.bin", runs, |bytes| {
        let _ = regard_model::archives::pickle::parses(bytes);
    });
    fuzz("albert", "pytorch_model.bin", runs, |bytes| {
        let _ = regard_model::archives::pickle::parses(bytes);
    });
    fuzz("llama2c", "model.bin", runs, |bytes| {
        let _ = regard_model::archives::Llama2c::sniff(bytes);
    });
    fuzz("llama3", "model.safetensors", runs, |bytes| drop(regard_nn::tensors::SafetensorsFile::new(Path::new("fuzz"), bytes)));
    fuzz("llama3", "config.json", runs, |bytes| drop(serde_json::from_slice::<serde_json::Value>(bytes)));
}
