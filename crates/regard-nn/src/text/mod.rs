//! Texts: tokenizers, characters as they are written, and stories of known entropy.

mod guarded;
pub mod ngram;
pub mod pcfg;
pub mod stories;
pub mod streaming;
pub mod tokenizer;
