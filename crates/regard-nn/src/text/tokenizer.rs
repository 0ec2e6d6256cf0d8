//! Texts to tokens and back: characters, byte-level BPE, WordPiece. All three are saved as a `tokenizer.json` that the `tokenizers`
//! library reads in any language.

use crate::error::{Error, Result};
pub use crate::text::guarded::guarded;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainerBuilder};
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, ModelWrapper, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Trainer,
};

/// Which tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// One token per character of the text.
    #[default]
    Char,
    /// Pairs of bytes merged by frequency, up to this number of tokens, at least 256. Lossless.
    Bpe(usize),
    /// The same, and among them a token that begins every text.
    BpeBos(usize),
    /// Pieces of lower-case words, up to this number of tokens. Case and spacing are lost.
    WordPiece(usize),
}

/// A trained tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer(Inner);

#[derive(Debug, Clone)]
enum Inner {
    Char(Characters),
    Library(Box<tokenizers::Tokenizer>),
}

/// How the token that begins every text is written.
const BOS: &str = "<s>";

#[derive(Debug, Clone)]
struct Characters {
    list: Vec<char>,
    ids: HashMap<char, u32>,
}

impl Characters {
    fn new(list: Vec<char>) -> Self {
        let ids = list.iter().zip(0..).map(|(&c, i)| (c, i)).collect();
        Self { list, ids }
    }

    /// What the library calls a tokenizer of whole words, each of one character.
    fn to_json(&self) -> Value {
        let vocab: serde_json::Map<_, _> = self.list.iter().zip(0u32..).map(|(c, i)| (c.to_string(), i.into())).collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": { "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false },
            "post_processor": null, "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" }
        })
    }

    /// The reverse, for ids of this tokenizer.
    fn from_json(json: &Value) -> Option<Self> {
        if json["model"]["type"] != "WordLevel" || json["decoder"]["type"] != "Fuse" {
            return None;
        }
        let vocab = json["model"]["vocab"].as_object()?;
        let mut list = vec![None; vocab.len()];
        for (word, id) in vocab {
            let mut chars = word.chars();
            let (character, None) = (chars.next()?, chars.next()) else { return None };
            *list.get_mut(usize::try_from(id.as_u64()?).ok()?)? = Some(character);
        }
        list.into_iter().collect::<Option<Vec<_>>>().map(Self::new)
    }
}

fn refused(e: impl std::fmt::Display) -> Error {
    Error::Tokenizer { reason: e.to_string() }
}

fn train_bpe(text: &str, size: usize) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::from(BPE::default()));
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true))).with_decoder(Some(ByteLevel::default()));
    let trainer =
        BpeTrainerBuilder::new().vocab_size(size).show_progress(false).initial_alphabet(ByteLevel::alphabet().into_iter().collect());
    let mut trainer = TrainerWrapper::from(trainer.build());
    tokenizer.train(&mut trainer, text.split_inclusive('\n'))?;
    Ok(tokenizer)
}

fn train_word_piece(text: &str, size: usize) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::from(WordPiece::default()));
    tokenizer
        .with_normalizer(Some(BertNormalizer::default()))?
        .with_pre_tokenizer(Some(BertPreTokenizer))
        .with_decoder(Some(WordPieceDecoder::default()));
    // The trainer numbers the continuing characters in the order of a hash map, which differs from run to run. Named as special tokens they
    // come first and in order; only the unknown token is told to the tokenizer as one.
    let unknown = AddedToken::from("[UNK]", true);
    let mut normal = text.to_owned().into();
    BertNormalizer::default().normalize(&mut normal)?;
    let letters: BTreeSet<char> = normal.get().chars().filter(|c| !c.is_whitespace()).collect();
    let mut first = vec![unknown.clone()];
    first.extend(letters.iter().map(|c| AddedToken::from(format!("##{c}"), false)));
    let mut trainer = WordPieceTrainerBuilder::new().vocab_size(size).show_progress(false).special_tokens(first).build();
    trainer.feed(text.split_inclusive('\n'), |line| {
        let mut line = PreTokenizedString::from(NormalizedString::from(line));
        line.normalize(|piece| BertNormalizer::default().normalize(piece))?;
        BertPreTokenizer.pre_tokenize(&mut line)?;
        Ok(line.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter().map(|(word, _, _)| word.to_owned()).collect())
    })?;
    let mut model = WordPiece::default();
    trainer.train(&mut model)?;
    tokenizer.with_model(model);
    tokenizer.add_special_tokens([unknown])?;
    Ok(tokenizer)
}

impl Tokenizer {
    /// Train on a text, which must not be empty.
    ///
    /// # Errors
    /// [`Error::ShortText`], [`Error::Config`] for a vocabulary without room for bytes, [`Error::Tokenizer`].
    pub fn train(kind: TokenizerKind, text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::ShortText { what: "the text", got: 0, needed: 1 });
        }
        let inner = match kind {
            TokenizerKind::Char => Inner::Char(Characters::new(text.chars().collect::<BTreeSet<_>>().into_iter().collect())),
            TokenizerKind::Bpe(size) | TokenizerKind::BpeBos(size) if size < 256 + usize::from(kind == TokenizerKind::BpeBos(size)) => {
                return Err(Error::Config {
                    name: "the vocabulary",
                    value: size.to_string(),
                    requirement: "at least 256, one per byte, and one more for a token that begins texts".to_owned(),
                });
            }
            TokenizerKind::Bpe(size) => Inner::Library(Box::new(train_bpe(text, size).map_err(refused)?)),
            TokenizerKind::BpeBos(size) => {
                let mut tokenizer = train_bpe(text, size - 1).map_err(refused)?;
                tokenizer.add_special_tokens([AddedToken::from(BOS, true)]).map_err(refused)?;
                Inner::Library(Box::new(tokenizer))
            }
            TokenizerKind::WordPiece(size) => Inner::Library(Box::new(train_word_piece(text, size).map_err(refused)?)),
        };
        Ok(Self(inner))
    }

    /// How many tokens there are.
    pub fn vocab(&self) -> usize {
        match &self.0 {
            Inner::Char(characters) => characters.list.len(),
            Inner::Library(tokenizer) => tokenizer.get_vocab_size(true),
        }
    }

    /// The token that begins every text, where there is one.
    pub fn bos(&self) -> Option<u32> {
        match &self.0 {
            Inner::Char(_) => None,
            Inner::Library(tokenizer) => tokenizer.token_to_id(BOS),
        }
    }

    /// The library's tokenizer, where it is not one of characters.
    pub fn library(&self) -> Option<&tokenizers::Tokenizer> {
        match &self.0 {
            Inner::Char(_) => None,
            Inner::Library(tokenizer) => Some(tokenizer),
        }
    }

    /// Text to tokens, without the one that begins it.
    ///
    /// # Errors
    /// [`Error::Character`] for a character that training has not seen, [`Error::Tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.0 {
            Inner::Char(characters) => {
                text.chars().map(|c| characters.ids.get(&c).copied().ok_or(Error::Character { character: c })).collect()
            }
            Inner::Library(tokenizer) => Ok(guarded(|| tokenizer.encode_fast(text, false)).map_err(refused)?.get_ids().to_vec()),
        }
    }

    /// Tokens to text.
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::Tokenizer`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let vocab = self.vocab();
        if let Some(&token) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::Token { token, vocab });
        }
        match &self.0 {
            Inner::Char(characters) => Ok(ids.iter().map(|&id| characters.list[id as usize]).collect()),
            Inner::Library(tokenizer) => guarded(|| tokenizer.decode(ids, false)).map_err(refused),
        }
    }

    /// The text of `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn to_json(&self) -> Result<String> {
        match &self.0 {
            Inner::Char(characters) => Ok(format!("{:#}\n", characters.to_json())),
            Inner::Library(tokenizer) => tokenizer.to_string(true).map_err(refused),
        }
    }

    /// Read `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Files`], [`Error::Tokenizer`].
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = regard_files::read_bytes(path, regard_files::limits::TOKENIZER_BYTES.max)?;
        Self::from_bytes(path, &bytes)
    }

    /// The bytes of a `tokenizer.json`; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        let unreadable = |e: &dyn std::fmt::Display| refused(format!("{} is not a tokenizer.json ({e})", path.display()));
        let json: Value = serde_json::from_slice(bytes).map_err(|e| unreadable(&e))?;
        if let Some(characters) = Characters::from_json(&json) {
            return Ok(Self(Inner::Char(characters)));
        }
        guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map(|t| Self(Inner::Library(Box::new(t)))).map_err(|e| unreadable(&e))
    }
}
