//! A `tokenizer.json` for what older files and GGUF say in their own ways.

use super::refused;
use crate::error::{Error, Result};
use crate::formats::Gguf;
use ahash::AHashMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regard_nn::tokenizer::guarded;
use serde_json::{Map, Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, Tokenizer};

/// How chemical formulas are cut: an atom in brackets, an atom, a bond, a ring, ... (Schwaller et al. 2018, doi 10.1039/C8SC02339E).
const SMILES: &str =
    r"\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9]";
/// Words as Llama 3 and Qwen 2 cut them, but for how many digits go together.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The tokenizer of a `tokenizer.json`.
pub(super) fn read(value: Value) -> Result<Tokenizer> {
    let text = value.to_string();
    drop(value);
    guarded(|| Tokenizer::from_bytes(text)).map_err(refused)
}

fn special(id: u64, content: &str) -> Value {
    json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
}

fn whole(normalizer: Value, pre_tokenizer: Value, post_processor: Value, decoder: Value, model: Value, added: Vec<Value>) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model
    })
}

/// `[first] text [last]`.
fn around(first: (&str, u64), last: (&str, u64)) -> Value {
    let one = |(token, _): (&str, u64)| json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let known = |(token, id): (&str, u64)| (token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }));
    let tokens: Map<String, Value> = [known(first), known(last)].into_iter().collect();
    let text = |id: &str, kind: u64| json!({ "Sequence": { "id": id, "type_id": kind } });
    json!({
        "type": "TemplateProcessing",
        "single": [one(first), text("A", 0), one(last)],
        "pair": [one(first), text("A", 0), one(last), text("B", 1), one(last)],
        "special_tokens": tokens
    })
}

/// BERT's `vocab.txt`: a token per line.
pub(super) fn vocabulary(text: &str, lower: bool) -> Result<Value> {
    let tokens: Vec<&str> = text.lines().map(|line| line.trim_end_matches('\r')).collect();
    let vocab: Map<String, Value> = tokens.iter().enumerate().map(|(i, token)| ((*token).to_owned(), i.into())).collect();
    let id = |token: &str| vocab.get(token).and_then(Value::as_u64).ok_or_else(|| refused(format!("vocab.txt has no {token}")));
    let template = around(("[CLS]", id("[CLS]")?), ("[SEP]", id("[SEP]")?));
    let names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let added = names.iter().filter_map(|name| Some(special(vocab.get(*name)?.as_u64()?, name))).collect();
    if !tokens.iter().any(|token| token.starts_with("##")) {
        let model = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" });
        let cut = json!({ "type": "Split", "pattern": { "Regex": SMILES }, "behavior": "Removed", "invert": true });
        return Ok(whole(Value::Null, cut, template, json!({ "type": "Fuse" }), model, added));
    }
    let model = json!({
        "type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100
    });
    let normal =
        json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": lower });
    let decoder = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
    Ok(whole(normal, json!({ "type": "BertPreTokenizer" }), template, decoder, model, added))
}

fn byte_level(regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex })
}

fn bpe(vocab: Map<String, Value>, merges: Vec<Value>) -> Value {
    json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges
    })
}

/// GPT-2's and RoBERTa's `vocab.json` and `merges.txt`.
pub(super) fn merges(vocab: &str, merges: &str, roberta: bool) -> Result<Value> {
    let vocab: Map<String, Value> = serde_json::from_str(vocab).map_err(|e| refused(format!("vocab.json: {e}")))?;
    let merges = merges.lines().filter(|line| !line.starts_with("#version") && !line.is_empty()).map(Value::from).collect();
    let names = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>"];
    let added = names.iter().filter_map(|name| Some(special(vocab.get(*name)?.as_u64()?, name))).collect();
    let id = |token: &str| vocab.get(token).and_then(Value::as_u64).ok_or_else(|| refused(format!("vocab.json has no {token}")));
    let template = if roberta { around(("<s>", id("<s>")?), ("</s>", id("</s>")?)) } else { byte_level(true) };
    Ok(whole(Value::Null, byte_level(true), template, byte_level(true), bpe(vocab, merges), added))
}

/// How a byte-level vocabulary writes a byte.
fn letter(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..byte).filter(|byte| !plain(*byte)).count() as u32;
    if plain(byte) { char::from(byte) } else { char::from_u32(256 + others).expect("below the surrogates") }
}

/// A file of tiktoken: on each line a token, in base 64, and its rank. What is merged follows from the ranks.
pub(super) fn tiktoken(text: &str, special: &[(u32, &str)]) -> Result<Tokenizer> {
    let mut ranks: AHashMap<Vec<u8>, u32> = AHashMap::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let pair = line.split_once(' ').and_then(|(token, rank)| Some((STANDARD.decode(token).ok()?, rank.trim().parse().ok()?)));
        let Some((token, rank)) = pair.filter(|(token, _)| !token.is_empty()) else {
            return Err(refused(format!("line {number} is not a token in base 64 and its rank")));
        };
        ranks.insert(token, rank);
    }
    let written = |token: &[u8]| token.iter().map(|byte| letter(*byte)).collect::<String>();
    let mut merges = Vec::new();
    for (token, &rank) in &ranks {
        let halves = (1..token.len()).map(|at| token.split_at(at));
        merges.extend(halves.filter_map(|(a, b)| Some(((rank, *ranks.get(a)?, *ranks.get(b)?), (written(a), written(b))))));
    }
    merges.sort_unstable_by_key(|(ranks, _)| *ranks);
    let merges = merges.into_iter().map(|(_, pair)| pair).collect();
    let mut vocab: AHashMap<String, u32> = ranks.iter().map(|(token, rank)| (written(token), *rank)).collect();
    vocab.extend(special.iter().map(|(id, name)| ((*name).to_owned(), *id)));
    let model = BPE::builder().vocab_and_merges(vocab, merges).build().map_err(refused)?;
    let empty = whole(Value::Null, byte_level(true), Value::Null, byte_level(true), bpe(Map::new(), Vec::new()), Vec::new());
    let mut tokenizer = read(empty)?;
    let added = special.iter().map(|(_, name)| AddedToken::from((*name).to_owned(), true));
    tokenizer.with_model(model).add_special_tokens(added).map_err(refused)?;
    Ok(tokenizer)
}

/// Byte-level BPE inside a GGUF file, whose way to split words is a name only; and whether BOS is added where the file does not say so.
/// As llama.cpp has it, a word of Llama 3 that is a token is not built from merges, and BOS is added.
pub(super) fn gguf_merges(file: &Gguf) -> Result<(Tokenizer, bool)> {
    let words = |digits: &str| {
        let cut =
            json!({ "type": "Split", "pattern": { "Regex": WORDS.replace("DIGITS", digits) }, "behavior": "Isolated", "invert": false });
        json!({ "type": "Sequence", "pretokenizers": [cut, byte_level(false)] })
    };
    let name = file.text("tokenizer.ggml.pre").unwrap_or("default");
    let llama3 = matches!(name, "llama-bpe" | "llama3" | "llama-v3");
    let cut = match name {
        "default" | "gpt-2" | "phi-2" | "olmo" | "mpt" | "roberta-bpe" | "jais" => byte_level(true),
        "smollm" | "codeshell" | "refact" | "command-r" | "starcoder" => {
            json!({ "type": "Sequence", "pretokenizers": [{ "type": "Digits", "individual_digits": true }, byte_level(true)] })
        }
        "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" | "dbrx" => words("{1,3}"),
        "qwen2" | "stablelm2" => words(""),
        other => {
            let reason = format!("{} cuts words as {other:?}, which is not known", file.path().display());
            return Err(Error::NoTokenizer { reason });
        }
    };
    let missing = |key: &str| refused(format!("{} has no {key}", file.path().display()));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let tokens = file.texts("tokenizer.ggml.tokens").ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
    let merges = file.texts("tokenizer.ggml.merges").ok_or_else(|| missing("tokenizer.ggml.merges"))?;
    let kinds = file.integers("tokenizer.ggml.token_type").unwrap_or_default();
    // 3 is a control token, 4 one that a user defined: both are found whole in texts.
    let is_special = |i: usize| matches!(kinds.get(i), Some(3 | 4));
    let added = tokens.iter().enumerate().filter(|(i, _)| is_special(*i)).map(|(_, token)| AddedToken::from(text(token), true));
    let vocab: AHashMap<String, u32> = (0..).zip(&tokens).map(|(i, token)| (text(token), i)).collect();
    let pair = |merge: &[u8]| {
        let merge = text(merge);
        merge
            .split_once(' ')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .ok_or_else(|| refused(format!("a merge is {merge:?}, not two tokens")))
    };
    let merges = merges.into_iter().map(pair).collect::<Result<_>>()?;
    // Straight into its tables: as JSON they would take five times the memory for a moment.
    let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(llama3).build().map_err(refused)?;
    let mut tokenizer = read(whole(Value::Null, cut, Value::Null, byte_level(true), bpe(Map::new(), Vec::new()), Vec::new()))?;
    tokenizer.with_model(model).add_special_tokens(added).map_err(refused)?;
    Ok((tokenizer, llama3))
}
