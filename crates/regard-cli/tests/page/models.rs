//! Small random models with tokenizers for the page's tests: one that reads bytes, and one that reads in both directions.

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A text in scripts from right to left, of wide characters, with joined emoji and combining marks.
pub const SCRIPTS: &str =
    "\u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{4f60}\u{597d} \u{1f469}\u{200d}\u{1f467} e\u{301} \u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947}";

/// A folder with a checkpoint of the model crate's tests and a tokenizer.
fn with_tokenizer(folder: &Path, name: &str, files: &[&str], tokenizer: &Value) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../regard-model/tests/golden").join(name);
    let to = folder.join(name);
    std::fs::create_dir_all(&to).expect("a folder");
    for file in files {
        std::fs::copy(from.join(file), to.join(file)).expect("it is copied");
    }
    std::fs::write(to.join("tokenizer.json"), tokenizer.to_string()).expect("it is written");
    to
}

/// The letter that a byte-level vocabulary writes for a byte.
fn letter(byte: u8) -> char {
    let own = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if own(&byte) { char::from(byte) } else { char::from_u32(256 + (0..byte).filter(|byte| !own(byte)).count() as u32).expect("a letter") }
}

/// A model of every byte of [`SCRIPTS`].
pub fn of_bytes(folder: &Path) -> PathBuf {
    let mut bytes = SCRIPTS.as_bytes().to_vec();
    bytes.sort_unstable();
    bytes.dedup();
    let vocab: Map<String, Value> = bytes.iter().enumerate().map(|(id, byte)| (letter(*byte).to_string(), json!(id))).collect();
    let level =
        |prefix: bool, regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": level(false, false), "decoder": level(true, true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "vocab": vocab, "merges": [],
        },
    });
    with_tokenizer(folder, "gpt2", &["config.json", "model.safetensors"], &tokenizer)
}

/// A BERT of a few words.
pub fn both_ways(folder: &Path) -> PathBuf {
    let words = ["[UNK]", "the", "red", "apple", "market"];
    let vocab: Map<String, Value> = words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": { "type": "Whitespace" }, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" },
    });
    with_tokenizer(folder, "bert", &["config.json", "pytorch_model.bin"], &tokenizer)
}

/// A T5 of a few words, which reads and writes.
pub fn reads_and_writes(folder: &Path) -> PathBuf {
    let words = ["<pad>", "</s>", "[UNK]", "the", "red", "apple", "market", "went", "to", "dog"];
    let vocab: Map<String, Value> = words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    let end = json!({ "id": "</s>", "ids": [1], "tokens": ["</s>"] });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{
            "id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
        }],
        "pre_tokenizer": { "type": "Whitespace" }, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing", "special_tokens": { "</s>": end },
            "single": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "SpecialToken": { "id": "</s>", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" },
    });
    with_tokenizer(folder, "t5", &["config.json", "generation_config.json", "model.safetensors"], &tokenizer)
}
