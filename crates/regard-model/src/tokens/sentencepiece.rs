//! Pieces with scores, as sentencepiece has them: a text begins as its characters, and of all neighbours that are a piece together the best
//! is merged, until there are none. Characters that are no piece become bytes.

use super::Token;
use crate::error::{Error, Result};
use crate::formats::{Cursor, Gguf, map};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

/// Pieces by number, with scores.
#[derive(Debug)]
pub struct Pieces {
    /// With plain spaces.
    pieces: Vec<Vec<u8>>,
    scores: Vec<f32>,
    ids: HashMap<Vec<u8>, u32>,
    /// Numbers of the 256 bytes.
    bytes: Vec<Option<u32>>,
    /// Control tokens: never in a text, and left out of decoded text.
    special: Vec<bool>,
    unknown: u32,
}

/// A merge that could be made.
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    /// The best score; of equal ones the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl Pieces {
    fn new(pieces: Vec<Vec<u8>>, scores: Vec<f32>, byte_of: impl Fn(usize, &[u8]) -> Option<u8>, special: Vec<bool>) -> Self {
        let (mut ids, mut bytes) = (HashMap::new(), vec![None; 256]);
        for (number, piece) in pieces.iter().enumerate() {
            let id = number as u32;
            match byte_of(number, piece) {
                Some(byte) => bytes[usize::from(byte)] = Some(id),
                None if !special[number] => drop(ids.entry(piece.clone()).or_insert(id)),
                None => {}
            }
        }
        Self { pieces, scores, ids, bytes, special, unknown: 0 }
    }

    /// llama2.c's `tokenizer.bin`: the longest piece's length, then score, length and bytes of each.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Damaged`].
    pub fn of_llama2c(path: &Path, vocab: usize) -> Result<Self> {
        let file = map(path)?;
        let (mut pieces, mut scores) = (Vec::new(), Vec::new());
        let mut read = || {
            let mut cursor = Cursor::new(file.as_ref());
            cursor.i32()?;
            for _ in 0..vocab {
                scores.push(cursor.f32()?);
                let len = usize::try_from(cursor.i32()?).ok()?;
                pieces.push(cursor.take(len)?.to_vec());
            }
            Some(())
        };
        read().ok_or_else(|| Error::damaged(path, format!("it has fewer than the {vocab} pieces of the model")))?;
        let special = (0..vocab).map(|number| number < 3).collect();
        // Bytes are known by their number: what is written there may be a character.
        Ok(Self::new(pieces, scores, |number, _| u8::try_from(number.checked_sub(3)?).ok(), special))
    }

    /// Those of a GGUF file.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when a list is missing.
    pub fn of_gguf(file: &Gguf) -> Result<Self> {
        let missing = |key: &str| Error::Tokenizer { reason: format!("{} has no {key}", file.path().display()) };
        let tokens = file.texts("tokenizer.ggml.tokens").ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
        let scores = file.numbers("tokenizer.ggml.scores").ok_or_else(|| missing("tokenizer.ggml.scores"))?;
        if scores.len() != tokens.len() {
            return Err(missing("score for each token"));
        }
        let kinds = file.integers("tokenizer.ggml.token_type").unwrap_or_else(|| vec![1; tokens.len()]);
        // U+2581 stands for a space.
        let plain = |token: &&[u8]| String::from_utf8_lossy(token).replace('\u{2581}', " ").into_bytes();
        let byte = |number: usize, piece: &[u8]| {
            let hex = std::str::from_utf8(piece).ok()?.strip_prefix("<0x")?.strip_suffix('>')?;
            u8::from_str_radix(hex, 16).ok().filter(|_| kinds.get(number).is_none_or(|kind| *kind == 6))
        };
        let special = (0..tokens.len()).map(|number| matches!(kinds.get(number), Some(2 | 3))).collect();
        let scores = scores.into_iter().map(|x| x as f32).collect();
        let mut pieces = Self::new(tokens.iter().map(plain).collect(), scores, byte, special);
        pieces.unknown = file.integer("tokenizer.ggml.unknown_token_id").and_then(|id| u32::try_from(id).ok()).unwrap_or(0);
        Ok(pieces)
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn id(&self, piece: &[u8]) -> Option<u32> {
        self.ids.get(piece).copied()
    }

    /// The tokens of a text, which is read as if a space stood before it.
    pub(super) fn encode(&self, text: &str) -> Vec<Token> {
        if text.is_empty() {
            return Vec::new();
        }
        let padded = format!(" {text}").into_bytes();
        // Symbols are ranges of it, linked to their neighbours; a merged one has length zero.
        let mut starts: Vec<usize> = format!(" {text}").char_indices().map(|(at, _)| at).collect();
        let count = starts.len();
        starts.push(padded.len());
        let mut lens: Vec<usize> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mut next: Vec<usize> = (1..=count).collect();
        let mut before: Vec<usize> = (0..count).map(|i| i.wrapping_sub(1)).collect();
        let mut heap = BinaryHeap::new();
        let propose = |heap: &mut BinaryHeap<Candidate>, lens: &[usize], left: usize, right: usize| {
            if left < count && right < count {
                let len = lens[left] + lens[right];
                if let Some(id) = self.ids.get(&padded[starts[left]..starts[left] + len]) {
                    heap.push(Candidate { score: self.scores[*id as usize], left, right, len });
                }
            }
        };
        (1..count).for_each(|right| propose(&mut heap, &lens, right - 1, right));
        while let Some(Candidate { left, right, len, .. }) = heap.pop() {
            // One of the two has changed since.
            if lens[left] == 0 || lens[right] == 0 || lens[left] + lens[right] != len || next[left] != right {
                continue;
            }
            (lens[left], lens[right]) = (len, 0);
            next[left] = next[right];
            if next[left] < count {
                before[next[left]] = left;
            }
            propose(&mut heap, &lens, before[left], left);
            propose(&mut heap, &lens, left, next[left]);
        }
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < count {
            let range = starts[at]..starts[at] + lens[at];
            let place = range.start.saturating_sub(1)..range.end - 1;
            match self.ids.get(&padded[range.clone()]) {
                Some(id) => tokens.push(Token { id: *id, bytes: place, added: false }),
                None => tokens.extend(padded[range].iter().zip(place.start..).map(|(byte, at)| Token {
                    id: self.bytes[usize::from(*byte)].unwrap_or(self.unknown),
                    bytes: at..at + 1,
                    added: false,
                })),
            }
            at = next[at];
        }
        tokens
    }

    fn raw(&self, id: u32) -> Vec<u8> {
        match self.bytes.iter().position(|byte| *byte == Some(id)) {
            Some(byte) => vec![byte as u8],
            None => self.pieces.get(id as usize).cloned().unwrap_or_default(),
        }
    }

    pub(super) fn piece(&self, id: u32) -> String {
        let raw = self.raw(id);
        match std::str::from_utf8(&raw) {
            Ok(text) => text.to_owned(),
            Err(_) => raw.iter().map(|byte| format!("<0x{byte:02X}>")).collect(),
        }
    }

    pub(super) fn decode(&self, ids: &[u32]) -> String {
        let plain = ids.iter().filter(|id| !self.special.get(**id as usize).copied().unwrap_or(true));
        let bytes: Vec<u8> = plain.flat_map(|id| self.raw(*id)).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // The space that was put before it.
        text.strip_prefix(' ').map_or(text.clone(), str::to_owned)
    }
}
