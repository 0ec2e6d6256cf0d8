//! Tokens per word, words in one token, and what cannot be written back.

use super::Tokenizers;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin, signed};
use crate::learning::{brief, read_text};
use crate::options::{check_list, path_as_text, sizes};
use clap::Args;
use regard_nn::stories;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_plot::{Table, Value};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// BPE and WordPiece on a text, beside characters and a dictionary of words
///
/// Trained on the first nine tenths of the text, tested on the rest and on words that no text of it has. Writes tokenizers.csv and
/// tokenizers_words.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab tokenizers --text book.txt --sizes 300,1000,8000")]
pub struct TokenizersConfig {
    /// Text (UTF-8; - is the standard input) [default: 100000 characters of Regard's own stories]
    #[arg(long, value_name = "FILE")]
    #[serde(serialize_with = "path_as_text")]
    pub text: Option<PathBuf>,
    /// Vocabulary sizes, each at least 256
    #[arg(long, value_parser = sizes, default_value = "300,400,600", value_name = "LIST")]
    pub sizes: ::std::vec::Vec<usize>,
}

impl Default for TokenizersConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Words that the stories do not have.
const UNSEEN: [&str; 4] = ["attention", "softmax", "scaled", "Transformer"];

/// Tokens of a text, and whether decoding gives the text back.
fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<(usize, bool)> {
    let ids = tokenizer.encode(text)?;
    Ok((ids.len(), tokenizer.decode(&ids)? == text))
}

/// The pieces of a word, between bars.
fn pieces(tokenizer: &Tokenizer, word: &str) -> Result<String> {
    let library = tokenizer.library();
    let one = |id: &u32| -> Result<String> {
        Ok(match library.and_then(|library| library.id_to_token(*id)) {
            Some(token) => token,
            None => tokenizer.decode(&[*id])?,
        })
    };
    Ok(tokenizer.encode(word)?.iter().map(one).collect::<Result<Vec<_>>>()?.join(" | "))
}

impl TokenizersConfig {
    /// `tokenizers`, by kind and vocabulary; `tokenizers_words`, pieces of single words.
    ///
    /// # Errors
    /// When a setting is not possible or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_list("sizes", &self.sizes, "300,600")?;
        self.sizes.iter().try_for_each(|&n| require((256..=100_000).contains(&n), "sizes", n, "from 256 to 100000"))?;
        let text = self.text.as_deref().map_or_else(|| Ok(stories::write(100_000, 1)), read_text)?;
        let cut = text.char_indices().nth(text.chars().count() * 9 / 10).map_or(text.len(), |(at, _)| at);
        let cut = text[cut..].find('\n').or_else(|| text[cut..].find(' ')).map_or(cut, |more| cut + more + 1);
        let (train, test) = text.split_at(cut);
        require(test.split_whitespace().count() >= 10, "text", text.chars().count(), "at least 10 words in its last tenth")?;
        let words: Vec<&str> = test.split_whitespace().collect();
        let letters = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
        let columns = [
            ("tokenizer", "tokenizer"),
            ("size", "vocabulary, at most"),
            ("vocabulary", "tokens of the vocabulary"),
            ("per_word", "tokens per word"),
            ("whole", "share of words in one token"),
            ("unknown", "share of unknown words among those that the text does not have"),
            ("exact", "decoding gives the text back"),
        ];
        let caption = format!("Trained on {} characters, tested on the {} words that follow", train.chars().count(), words.len());
        let mut table = Table::new("tokenizers", &caption, &columns);
        let mut row = |cells: Vec<Value>| table.push(cells);
        // A toy dictionary: a token per word of the text.
        let known: BTreeSet<String> = train.split_whitespace().map(letters).collect();
        let share = |words: &[&str], f: &dyn Fn(&str) -> bool| words.iter().filter(|w| f(w)).count() as f64 / words.len() as f64;
        let whole = share(&words, &|w| known.contains(&letters(w)));
        row(vec!["dictionary of words".into(), Value::Missing, known.len().into(), 1.0.into(), brief(whole), 1.0.into(), false.into()]);
        progress.advance(1);
        let characters = Tokenizer::train(TokenizerKind::Char, &text)?;
        let (count, exact) = tokens(&characters, test)?;
        let unknown = share(&UNSEEN, &|w| characters.encode(w).is_err());
        let per_word = count as f64 / words.len() as f64;
        row(vec![
            "characters".into(),
            Value::Missing,
            characters.vocab().into(),
            brief(per_word),
            0.0.into(),
            brief(unknown),
            exact.into(),
        ]);
        progress.advance(1);
        let mut last = Vec::new();
        for &size in &self.sizes {
            last.clear();
            for (name, kind) in [("BPE", TokenizerKind::Bpe(size)), ("WordPiece", TokenizerKind::WordPiece(size))] {
                let tokenizer = Tokenizer::train(kind, train)?;
                let (count, exact) = tokens(&tokenizer, test)?;
                // In a text a word follows a space, which byte-level BPE makes part of the token.
                let alone = |w: &str| tokenizer.encode(&format!(" {}", letters(w))).is_ok_and(|ids| ids.len() == 1);
                let lost = |w: &str| pieces(&tokenizer, w).map_or(true, |text| text.contains("[UNK]"));
                let per_word = count as f64 / words.len() as f64;
                let shares = [share(&words, &alone), share(&UNSEEN, &lost)].map(brief);
                let mut cells = vec![name.into(), size.into(), tokenizer.vocab().into(), brief(per_word)];
                cells.extend(shares);
                cells.push(exact.into());
                row(cells);
                last.push(tokenizer);
                progress.advance(1);
            }
        }
        let columns = [("word", "word"), ("bpe", "BPE"), ("word_piece", "WordPiece")];
        let mut single = Table::new("tokenizers_words", "Words in pieces, largest vocabulary; the last four are not in the text", &columns);
        let mut seen: Vec<&str> = train.split_whitespace().filter(|w| w.chars().all(char::is_alphabetic) && w.len() > 4).collect();
        seen.dedup();
        for word in seen.into_iter().take(3).chain(UNSEEN) {
            let of = |tokenizer: &Tokenizer| pieces(tokenizer, word).unwrap_or_else(|_| "unknown".to_owned());
            single.push(vec![word.into(), of(&last[0]).into(), of(&last[1]).into()]);
        }
        let described = self.text.as_ref().map_or_else(|| "Regard's stories".to_owned(), |path| path.display().to_string());
        Ok(signed(vec![table, single], &origin::<Tokenizers>(self, 1, &described)?))
    }
}
