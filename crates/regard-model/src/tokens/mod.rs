//! Texts to tokens and back: whatever tokenizer a model's files have.
//!
//! ```text
//! tokenizer.json            the `tokenizers` library; cutting and padding are switched off
//! vocab.txt                 WordPiece; without any `##` piece, chemical formulas (SMILES)
//! vocab.json, merges.txt    byte-level BPE
//! tokenizer.bin, GGUF       pieces with scores, merged best first; or byte-level BPE
//! ```

mod build;
mod sentencepiece;

pub use sentencepiece::Pieces;

use crate::disk;
use crate::error::{Error, Result};
use crate::formats::Gguf;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regard_files::limits::TOKENIZER_BYTES;
use regard_nn::tokenizer::guarded;
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// A token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its number.
    pub id: u32,
    /// The bytes of the text that it stands for; empty where it stands for none.
    pub bytes: Range<usize>,
    /// Not from the text: the tokenizer added it.
    pub added: bool,
}

#[derive(Debug)]
enum Kind {
    Library(Box<tokenizers::Tokenizer>),
    Pieces(Pieces),
    Ours(regard_nn::tokenizer::Tokenizer),
}

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    kind: Kind,
    /// Put before every text.
    first: Option<u32>,
    /// The BOS token, whether the tokenizer or its template adds it.
    bos: Option<u32>,
    /// Those that end a text.
    eos_ids: Vec<u32>,
    /// Texts leave special tokens out.
    skips_special: bool,
    /// How many times as long a text may become when it is encoded, and when it is decoded.
    growth: [f64; 2],
}

fn refused(reason: impl std::fmt::Display) -> Error {
    Error::Tokenizer { reason: reason.to_string() }
}

/// `"<s>"` or `{"content": "<s>", ...}`.
fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// What of a `tokenizer.json` is looked at before the library reads it.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    decoder: Value,
}

/// How many times as long a text may become by the replacements of a normalizer or decoder, one after the other.
fn growth(part: &Value) -> f64 {
    match part {
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "Replace") => {
            let content = fields.get("content").and_then(Value::as_str).map_or(0, str::len) as f64;
            match fields.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Value::as_str) {
                Some(pattern) if !pattern.is_empty() => (content / pattern.len() as f64).max(1.0),
                // A regular expression may match nothing, before each byte.
                _ => content + 1.0,
            }
        }
        Value::Object(fields) => fields.values().map(growth).product(),
        Value::Array(parts) => parts.iter().map(growth).product(),
        _ => 1.0,
    }
}

/// Whether a text of this many bytes would become too long.
///
/// # Errors
/// [`Error::Tokens`].
fn check_growth(bytes: usize, growth: f64) -> Result<()> {
    // Growth that common tokenizers stay below, and bytes that a text may have after more.
    const USUAL: f64 = 16.0;
    const MOST: f64 = (1u32 << 28) as f64;
    if growth > USUAL && bytes as f64 * growth > MOST {
        return Err(Error::Tokens {
            reason: format!("the tokenizer may lengthen a text {growth:.0} times: {bytes} bytes are too many; give a shorter text"),
        });
    }
    Ok(())
}

/// Whether a table of characters says that it is longer than what is there: so much would be allocated for it.
fn promises_too_much(normalizer: &Value) -> bool {
    match normalizer {
        Value::Object(parts) => parts.iter().any(|(name, value)| match value.as_str().filter(|_| name == "precompiled_charsmap") {
            // Its length stands in its first four bytes.
            Some(table) => match STANDARD.decode(table.get(..8).unwrap_or_default()).as_deref() {
                Ok([a, b, c, d, ..]) => u32::from_le_bytes([*a, *b, *c, *d]) as usize > table.len(),
                _ => true,
            },
            None => promises_too_much(value),
        }),
        Value::Array(parts) => parts.iter().any(promises_too_much),
        _ => false,
    }
}

impl Tokenizer {
    fn library(mut tokenizer: tokenizers::Tokenizer) -> Result<Self> {
        tokenizer.with_padding(None).with_truncation(None).map_err(refused)?;
        // Dropout is for training: the same text has the same tokens.
        if let tokenizers::ModelWrapper::BPE(bpe) = tokenizer.get_model()
            && bpe.dropout.is_some()
        {
            let mut bpe = bpe.clone();
            bpe.dropout = None;
            tokenizer.with_model(bpe);
        }
        Ok(Self {
            kind: Kind::Library(Box::new(tokenizer)),
            first: None,
            bos: None,
            eos_ids: Vec::new(),
            skips_special: true,
            growth: [1.0; 2],
        })
    }

    /// The bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    #[doc(hidden)]
    pub fn of_bytes(bytes: &[u8]) -> Result<Self> {
        let parts: Parts = serde_json::from_slice(bytes).map_err(refused)?;
        if promises_too_much(&parts.normalizer) {
            return Err(refused("its table of characters promises more than it has"));
        }
        let read = Self::library(guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(refused)?)?;
        Ok(Self { growth: [growth(&parts.normalizer), growth(&parts.decoder)], ..read })
    }

    /// The text of a `vocab.txt`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    #[doc(hidden)]
    pub fn of_vocabulary(text: &str, lower: bool) -> Result<Self> {
        Self::of_json(build::vocabulary(text, lower)?)
    }

    fn of_json(value: Value) -> Result<Self> {
        Self::library(build::read(value)?)
    }

    /// One of our own.
    pub(crate) fn ours(tokenizer: regard_nn::tokenizer::Tokenizer) -> Result<Self> {
        let bos = tokenizer.bos();
        let read = match tokenizer.library() {
            Some(library) => Self::library(library.clone())?,
            None => {
                Self { kind: Kind::Ours(tokenizer), first: None, bos: None, eos_ids: Vec::new(), skips_special: true, growth: [1.0; 2] }
            }
        };
        // Without BOS, the only special token is the unknown one, which texts show.
        Ok(Self { first: bos, bos, skips_special: bos.is_some(), ..read })
    }

    /// The tokenizer of a folder of transformers.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] and [`Error::Tokenizer`].
    pub fn of_folder(folder: &Path, family: &str) -> Result<Self> {
        let file = |name: &str| Some(folder.join(name)).filter(|path| disk::is_file(path));
        let settings = disk::json_if_there(&folder.join("tokenizer_config.json"))?;
        let mut tokenizer = if let Some(path) = file("tokenizer.json") {
            let bytes = disk::read(&path, TOKENIZER_BYTES)?;
            Self::of_bytes(&bytes).map_err(|e| refused(format!("{}: {e}", path.display())))?
        } else if let Some(path) = file("vocab.txt") {
            Self::of_vocabulary(&disk::vocabulary(&path)?, settings["do_lower_case"].as_bool().unwrap_or(true))?
        } else if let (Some(vocab), Some(merges)) = (file("vocab.json"), file("merges.txt")) {
            Self::of_json(build::merges(&disk::vocabulary(&vocab)?, &disk::vocabulary(&merges)?, family == "roberta")?)?
        } else {
            let reason = format!("{} has no tokenizer.json, vocab.txt, or vocab.json with merges.txt", folder.display());
            return Err(Error::NoTokenizer { reason });
        };
        let id = |name: &str| content(&settings[name]).and_then(|token| tokenizer.id(token));
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        (tokenizer.bos, tokenizer.eos_ids) = (bos, eos.into_iter().collect());
        // These classes add the first token by this setting, whatever the file says.
        let class = settings["tokenizer_class"].as_str().unwrap_or_default();
        if (class.contains("Llama") || class.contains("Gemma")) && settings["add_bos_token"] == true {
            tokenizer.first = tokenizer.bos;
        }
        Ok(tokenizer)
    }

    /// A file of tiktoken: tokens with their ranks, and special tokens by number.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Tokenizer`].
    pub fn of_tiktoken(path: &Path, special: &[(u32, &str)]) -> Result<Self> {
        let read = build::tiktoken(&disk::vocabulary(path)?, special).map_err(|e| refused(format!("{}: {e}", path.display())))?;
        Self::library(read)
    }

    /// The tokenizer inside a GGUF file.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] and [`Error::Tokenizer`].
    pub fn of_gguf(file: &Gguf) -> Result<Self> {
        let id = |name: &str| file.integer(&format!("tokenizer.ggml.{name}_token_id")).and_then(|id| u32::try_from(id).ok());
        let kind = file.text("tokenizer.ggml.model").unwrap_or("none");
        let (mut tokenizer, add_bos) = match kind {
            "gpt2" => {
                let (tokenizer, add_bos) = build::gguf_merges(file)?;
                (Self::library(tokenizer)?, add_bos)
            }
            "llama" => (Self::of_pieces(Pieces::of_gguf(file)?), true),
            other => {
                let reason = format!("{} has a tokenizer of the kind {other:?}; gpt2 and llama are known", file.path().display());
                return Err(Error::NoTokenizer { reason });
            }
        };
        tokenizer.bos = id("bos");
        tokenizer.first = tokenizer.bos.filter(|_| file.flag("tokenizer.ggml.add_bos_token").unwrap_or(add_bos));
        tokenizer.eos_ids = id("eos").into_iter().collect();
        Ok(tokenizer)
    }

    /// llama2.c's `tokenizer.bin`.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Damaged`].
    pub fn of_llama2c(path: &Path, vocab: usize) -> Result<Self> {
        let mut tokenizer = Self::of_pieces(Pieces::of_llama2c(path, vocab)?);
        (tokenizer.bos, tokenizer.first, tokenizer.eos_ids) = (Some(1), Some(1), vec![2]);
        Ok(tokenizer)
    }

    fn of_pieces(pieces: Pieces) -> Self {
        Self { kind: Kind::Pieces(pieces), first: None, bos: None, eos_ids: Vec::new(), skips_special: true, growth: [1.0; 2] }
    }

    /// The number of a token that is written so.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            Kind::Library(tokenizer) => tokenizer.token_to_id(token),
            Kind::Pieces(pieces) => pieces.id(token.as_bytes()),
            Kind::Ours(_) => None,
        }
    }

    /// How many tokens it has.
    pub fn vocab(&self) -> usize {
        match &self.kind {
            Kind::Library(tokenizer) => tokenizer.get_vocab_size(true),
            Kind::Pieces(pieces) => pieces.len(),
            Kind::Ours(tokenizer) => tokenizer.vocab(),
        }
    }

    /// Tokens that end a text: writing stops there.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The token that is put before every text.
    pub fn first(&self) -> Option<u32> {
        self.first
    }

    /// The token that texts begin with.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The tokens of a text, with those that the tokenizer adds.
    ///
    /// # Errors
    /// [`Error::Tokens`] when the text brings the token that the tokenizer puts before it.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokens: Vec<Token> = match &self.kind {
            Kind::Library(tokenizer) => {
                check_growth(text.len(), self.growth[0])?;
                let encoding = guarded(|| tokenizer.encode(text, true)).map_err(refused)?;
                let parts = encoding.get_ids().iter().zip(encoding.get_offsets()).zip(encoding.get_special_tokens_mask());
                // A special token that is written in the text has a place in it.
                parts.map(|((&id, &(a, b)), &special)| Token { id, bytes: a..b, added: special == 1 && a == b }).collect()
            }
            Kind::Pieces(pieces) => pieces.encode(text),
            Kind::Ours(tokenizer) => {
                let ids = tokenizer.encode(text)?;
                let mut at = 0;
                let mut place = |id: u32| {
                    let len = tokenizer.decode(&[id]).map_or(0, |piece| piece.len()).min(text.len() - at);
                    at += len;
                    Token { id, bytes: at - len..at, added: false }
                };
                ids.into_iter().map(&mut place).collect()
            }
        };
        if let Some(first) = self.first
            && (tokens.first().is_none_or(|token| token.id != first) || !tokens[0].added)
        {
            tokens.insert(0, Token { id: first, bytes: 0..0, added: true });
        }
        if let (Some(bos), [a, b, ..]) = (self.bos, tokens.as_slice())
            && a.id == bos
            && b.id == bos
        {
            let name = self.piece(bos);
            return Err(Error::Tokens {
                reason: format!("the text begins with {name}, and the tokenizer puts one before it: leave it out"),
            });
        }
        Ok(tokens)
    }

    /// A text from tokens; special ones are left out.
    ///
    /// # Errors
    /// When the tokenizer refuses.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        match &self.kind {
            Kind::Library(tokenizer) => {
                let written = |id: &u32| tokenizer.id_to_token(*id).map_or(0, |token| token.len());
                if self.growth[1] > 1.0 {
                    check_growth(ids.iter().map(written).sum(), self.growth[1])?;
                }
                guarded(|| tokenizer.decode(ids, self.skips_special)).map_err(refused)
            }
            Kind::Pieces(pieces) => Ok(pieces.decode(ids)),
            Kind::Ours(tokenizer) => Ok(tokenizer.decode(ids)?),
        }
    }

    /// A token as people read it: its text, or how its file writes it.
    pub fn piece(&self, id: u32) -> String {
        match &self.kind {
            Kind::Library(tokenizer) => {
                let written = tokenizer.id_to_token(id).unwrap_or_else(|| format!("<{id}>"));
                if check_growth(written.len(), self.growth[1]).is_err() {
                    return written;
                }
                match guarded(|| tokenizer.decode(&[id], false)) {
                    Ok(text) if !text.is_empty() && !text.contains('\u{fffd}') => text,
                    // Half a character: its bytes.
                    _ => match byte_level(&written).filter(|bytes| std::str::from_utf8(bytes).is_err()) {
                        Some(bytes) => bytes.iter().map(|byte| format!("<0x{byte:02X}>")).collect(),
                        None => written,
                    },
                }
            }
            Kind::Pieces(pieces) => pieces.piece(id),
            Kind::Ours(tokenizer) => tokenizer.decode(&[id]).unwrap_or_else(|_| format!("<{id}>")),
        }
    }
}

/// The bytes that the letters of a byte-level vocabulary stand for; `None` where one is not of its alphabet.
fn byte_level(written: &str) -> Option<Vec<u8>> {
    let byte = |letter: char| match u32::from(letter) {
        code @ (33..=126 | 161..=172 | 174..=255) => Some(code),
        code @ 256..=288 => Some(code - 256),
        code @ 289..=322 => Some(code - 289 + 127),
        323 => Some(173),
        _ => None,
    };
    written.chars().map(|letter| byte(letter).and_then(|byte| u8::try_from(byte).ok())).collect()
}
