//! Where a head attends unlike itself: rows of texts whose weights are far from the head's usual ones.
//!
//! The usual weights are a mean over all rows, by the place of a key: the first token of the text, the token itself, and distances in
//! classes that double (1, 2, 3 to 4, 5 to 8 ...). A row is as unusual as its relative entropy to them: the sum of `w ln(w / usual)`, in
//! nats.

use crate::{Edits, Error, Input, Model, Result, Sources};
use ndarray::ArrayView1;
use std::ops::Range;

/// Places: the first token, the token itself, and classes of distances before and after it.
const PLACES: usize = 2 + 2 * CLASSES;
const CLASSES: usize = 40;
/// Keys of an example that are named.
const KEYS: usize = 3;
/// Tokens by which a passage may grow when it is tokenised alone.
const SPARE: usize = 8;

/// The place of a key as seen from a query.
fn place(query: usize, key: usize) -> usize {
    let class = |distance: usize| distance.next_power_of_two().trailing_zeros() as usize;
    match query.cmp(&key) {
        std::cmp::Ordering::Greater if key == 0 && query > 1 => 0,
        std::cmp::Ordering::Equal => 1,
        std::cmp::Ordering::Greater => 2 + class(query - key),
        std::cmp::Ordering::Less => 2 + CLASSES + class(key - query),
    }
}

/// A place in words.
fn place_name(place: usize) -> String {
    let distances = |class: usize| match class {
        0 => "1".to_owned(),
        1 => "2".to_owned(),
        _ => format!("{} to {}", (1usize << (class - 1)) + 1, 1usize << class),
    };
    match place {
        0 => "first token".to_owned(),
        1 => "own token".to_owned(),
        2 => "previous token".to_owned(),
        _ if place < 2 + CLASSES => format!("{} tokens before", distances(place - 2)),
        _ => format!("{} tokens after", distances(place - 2 - CLASSES)),
    }
}

/// What is needed of a row when its text is gone.
struct Row {
    text: usize,
    row: usize,
    visible: Range<usize>,
    /// Weight by place.
    mass: Vec<(usize, f64)>,
    /// Sum of `w ln w`.
    sharpness: f64,
    /// The keys with the largest weights.
    keys: Vec<(usize, f32)>,
    /// Tokens of the query and of its first key.
    pair: [u32; 2],
}

impl Row {
    fn of(text: usize, row: usize, weights: ArrayView1<'_, f32>, ids: &[u32], visible: Range<usize>) -> Self {
        let mut mass = [0.0; PLACES];
        let mut sharpness = 0.0;
        for (key, w) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
            mass[place(row, key)] += f64::from(*w);
            sharpness += f64::from(*w) * f64::from(*w).ln();
        }
        let mut keys: Vec<(usize, f32)> = weights.iter().copied().enumerate().collect();
        keys.sort_by(|a, b| b.1.total_cmp(&a.1));
        keys.truncate(KEYS);
        let pair = [ids[row], ids[keys[0].0]];
        Self { text, row, visible, mass: mass.into_iter().enumerate().filter(|(_, m)| *m > 0.0).collect(), sharpness, keys, pair }
    }

    /// Relative entropy to the usual weights, by the mean weight of a key at each place.
    fn surprise(&self, usual: &[f64; PLACES]) -> f64 {
        let total: f64 = self.visible.clone().map(|key| usual[place(self.row, key)]).sum();
        let expected: f64 = self.mass.iter().map(|(place, mass)| mass * (usual[*place] / total).ln()).sum();
        self.sharpness - expected
    }
}

/// A row of a text in which a head attends unlike itself.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct UnusualRow {
    pub text: usize,
    pub row: usize,
    /// Relative entropy to the head's usual weights, in nats.
    pub surprise: f64,
    /// The largest weights with their keys.
    pub keys: Vec<(usize, f32)>,
}

/// What a head usually attends to, and where it does not.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Unusual {
    /// Rows that were looked at.
    pub rows: usize,
    /// Places with their share of all weight, the largest first.
    pub usual: Vec<(String, f64)>,
    /// The most unusual rows; one for each pair of a query's and a key's token.
    pub examples: Vec<UnusualRow>,
}

impl Model {
    /// A text in passages of at most `tokens` tokens, between words where there are any; at most `count` of them.
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn passages(&self, text: &str, tokens: usize, count: usize) -> Result<Vec<String>> {
        let limit = tokens.min(self.context()).saturating_sub(SPARE).max(1);
        let mut all = self.tokens(text)?;
        all.retain(|token| !token.added);
        let (mut passages, mut from) = (Vec::new(), 0);
        let boundary = |at: &usize| text.is_char_boundary(*at);
        let before = |at: usize| (0..=at).rev().find(boundary).unwrap_or(0);
        while from < text.len() && passages.len() < count {
            let first = all.partition_point(|token| token.bytes.start < from);
            let mut end = all.get(first + limit).map_or(text.len(), |token| before(token.bytes.start));
            if end < text.len()
                && let Some(space) = text[from..end.max(from)].rfind(char::is_whitespace)
            {
                end = from + space + 1;
            }
            // A character of many tokens is longer than the limit.
            end = if end > from { end } else { (from + 1..).find(boundary).unwrap_or(text.len()) };
            let passage = text[from..end].trim();
            if !passage.is_empty() {
                passages.push(passage.to_owned());
            }
            from = end;
        }
        Ok(passages)
    }

    /// The rows of texts in which a head attends most unusually, at most `count`. `watch` gets the number of finished texts and their
    /// total, and stops it by returning false.
    ///
    /// # Errors
    /// As [`Model::run`], and when there are no texts.
    pub fn unusual(
        &self,
        texts: &[String],
        [layer, head]: [usize; 2],
        count: usize,
        mut watch: impl FnMut(usize, usize) -> bool,
    ) -> Result<Unusual> {
        let mut rows = Vec::new();
        let (mut mass, mut keys) = ([0.0; PLACES], [0.0; PLACES]);
        for (text, words) in texts.iter().enumerate() {
            let mut ids = self.ids(Input::Text(words))?;
            ids.truncate(self.context());
            let run = self.run(&ids, &Edits::default(), &Sources::default())?;
            let weights = run.weights(layer, head)?;
            for (i, of_row) in weights.outer_iter().enumerate() {
                let row = Row::of(text, i, of_row, &ids, 0..if self.is_causal() { i + 1 } else { ids.len() });
                row.mass.iter().for_each(|(place, m)| mass[*place] += m);
                row.visible.clone().for_each(|key| keys[place(i, key)] += 1.0);
                rows.push(row);
            }
            if !watch(text + 1, texts.len()) {
                return Err(Error::Stopped);
            }
        }
        if rows.is_empty() {
            return Err(Error::Tokens { reason: "there are no texts to look at".to_owned() });
        }
        let usual: [f64; PLACES] = std::array::from_fn(|place| if keys[place] > 0.0 { mass[place] / keys[place] } else { 0.0 });
        let all: f64 = mass.iter().sum();
        let mut shares: Vec<(String, f64)> =
            mass.iter().enumerate().filter(|(_, m)| **m > 0.0).map(|(place, m)| (place_name(place), m / all)).collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut order: Vec<(f64, &Row)> = rows.iter().map(|row| (row.surprise(&usual), row)).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut pairs = std::collections::HashSet::new();
        let different = order.iter().filter(|(_, row)| pairs.insert(row.pair)).take(count);
        let examples = different
            .map(|(surprise, row)| UnusualRow { text: row.text, row: row.row, surprise: *surprise, keys: row.keys.clone() })
            .collect();
        Ok(Unusual { rows: rows.len(), usual: shares, examples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_cover_every_key_once() {
        assert_eq!([place(9, 0), place(0, 0), place(9, 9), place(9, 8), place(9, 7), place(9, 6), place(9, 5)], [0, 1, 1, 2, 3, 4, 4]);
        assert_eq!(place(3, 4), 2 + CLASSES);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 2 + CLASSES].map(place_name),
            [
                "first token",
                "own token",
                "previous token",
                "2 tokens before",
                "3 to 4 tokens before",
                "5 to 8 tokens before",
                "1 tokens after"
            ]
        );
    }

    /// The relative entropy once more, key by key, and the order of the examples.
    #[test]
    fn surprise_is_the_relative_entropy_to_the_mean_by_place() {
        let model = Model::built_in().expect("it is in the crate");
        let texts = model.passages(&regard_nn::stories::write(2000, 7), 96, 6).expect("passages");
        let found = model.unusual(&texts, [1, 2], 500, |_, _| true).expect("a head");
        let weights: Vec<_> = texts
            .iter()
            .map(|text| {
                let ids = model.ids(Input::Text(text)).expect("ids");
                assert!(ids.len() <= 96);
                model.run(&ids, &Edits::default(), &Sources::default()).expect("a run").weights(1, 2).expect("weights")
            })
            .collect();
        let mean = |wanted: usize| {
            let (mut sum, mut count) = (0.0, 0.0);
            for weights in &weights {
                for i in 0..weights.nrows() {
                    for j in (0..=i).filter(|j| place(i, *j) == wanted) {
                        sum += f64::from(weights[[i, j]]);
                        count += 1.0;
                    }
                }
            }
            sum / count
        };
        let usual: Vec<f64> = (0..2 + CLASSES).map(mean).collect();
        assert!(found.examples.len() > 20 && found.examples.windows(2).all(|pair| pair[0].surprise >= pair[1].surprise));
        assert_eq!(found.rows, weights.iter().map(ndarray::Array2::nrows).sum::<usize>());
        assert_eq!(found.usual[0].0, "previous token", "{:?}", found.usual);
        assert!((found.usual.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
        for example in &found.examples {
            let row = weights[example.text].row(example.row);
            let expected: f64 = (0..=example.row).map(|j| usual[place(example.row, j)]).sum();
            let entropy: f64 = (0..=example.row)
                .filter(|j| row[*j] > 0.0)
                .map(|j| f64::from(row[j]) * (f64::from(row[j]) * expected / usual[place(example.row, j)]).ln())
                .sum();
            assert!((entropy - example.surprise).abs() < 1e-9, "{entropy} is not {}", example.surprise);
            let largest = row.iter().copied().fold(0.0, f32::max);
            assert_eq!(example.keys[0].1, largest);
        }
        // It does what it says: the first example does not attend to the previous token.
        let first = &found.examples[0];
        assert!(first.surprise > 1.0 && first.keys[0].0 + 1 != first.row, "{first:?}");
        assert!(model.unusual(&[], [1, 2], 1, |_, _| true).is_err());
        assert!(matches!(model.unusual(&texts, [1, 2], 1, |_, _| false), Err(Error::Stopped)));
    }

    #[test]
    fn passages_are_short_and_lose_no_word() {
        let model = Model::built_in().expect("it is in the crate");
        let text = format!("{} {} \u{1f600}\u{4e2d}\u{6587}", regard_nn::stories::write(900, 3), "x".repeat(300));
        let passages = model.passages(&text, 64, 1000).expect("passages");
        for passage in &passages {
            assert!(model.ids(Input::Text(passage)).expect("ids").len() <= 64, "{passage}");
        }
        let letters = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(letters(&passages.concat()), letters(&text));
    }
}
