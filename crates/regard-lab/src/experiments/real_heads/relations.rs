//! Sentences with a known subject or synonym, for the attention of each head to it.
//!
//! ```text
//! subject    Today the dog near the boys often moves.        moves looks at dog, and not at boys
//!            Today near the boys the dog often moves.
//! synonym    It was big and old. It was very large.          large looks at big, and not at old
//!            It was old and big. It was very large.
//! ```
//!
//! Each in both orders: a head that looks at the nearest noun, or at the first, is wrong in one of them. The head whose worse order is
//! best is chosen with half of the words and judged with the others: the best of many is good by luck where it is chosen.

use super::run::named;
use crate::error::{Error, Result};
use crate::rows::Row;
use regard_model::{Edits, Model, Sources};
use regard_plot::Table;

/// Subject, verb, other noun. Both nouns are living beings or things, singular or plural, in every combination once, so that neither tells
/// which noun is the subject; each half has every combination of living beings and things, and every one of numbers, twice.
const SUBJECTS: [(&str, &str, &str); 16] = [
    ("dog", "moves", "boys"),
    ("cats", "wait", "girl"),
    ("bird", "rests", "rock"),
    ("horses", "stand", "gates"),
    ("boat", "stops", "men"),
    ("cars", "turn", "king"),
    ("tree", "shakes", "house"),
    ("flags", "fall", "walls"),
    ("mother", "stays", "child"),
    ("farmers", "return", "rabbits"),
    ("teacher", "appears", "doors"),
    ("ducks", "float", "table"),
    ("wheel", "spins", "woman"),
    ("lamps", "swing", "queens"),
    ("ship", "arrives", "hills"),
    ("boxes", "slide", "chair"),
];
const SYNONYMS: [(&str, &str, &str); 16] = [
    ("big", "large", "old"),
    ("happy", "glad", "tall"),
    ("pretty", "beautiful", "young"),
    ("smart", "clever", "rich"),
    ("silent", "quiet", "dark"),
    ("angry", "mad", "old"),
    ("hard", "difficult", "long"),
    ("tired", "sleepy", "wet"),
    ("small", "little", "new"),
    ("fast", "quick", "red"),
    ("kind", "nice", "round"),
    ("scary", "frightening", "green"),
    ("cold", "chilly", "big"),
    ("sad", "unhappy", "thin"),
    ("dirty", "messy", "blue"),
    ("funny", "silly", "short"),
];
/// The relations that are tested.
pub(super) const RELATIONS: [&str; 2] = ["subject", "synonym"];
/// The word that belongs there comes before the other one, or after it.
pub(super) const ORDERS: [&str; 2] = ["before", "behind"];

/// A sentence with three marked words: the query, the related word, and the distractor.
struct Marked {
    text: String,
    query: &'static str,
    right: &'static str,
    wrong: &'static str,
}

fn sentence(relation: &str, words: usize, order: &str) -> Marked {
    let first = order == ORDERS[0];
    if relation == RELATIONS[0] {
        let (right, query, wrong) = SUBJECTS[words];
        let text = match first {
            true => format!("Today the {right} near the {wrong} often {query}."),
            false => format!("Today near the {wrong} the {right} often {query}."),
        };
        return Marked { text, query, right, wrong };
    }
    let (right, query, wrong) = SYNONYMS[words];
    let (a, b) = if first { (right, wrong) } else { (wrong, right) };
    Marked { text: format!("It was {a} and {b}. It was very {query}."), query, right, wrong }
}

/// The tokens of a word where it is said first.
fn tokens_of(tokens: &[regard_model::tokens::Token], text: &str, word: &str) -> Option<std::ops::Range<usize>> {
    let start = text.find(&format!(" {word}"))? + 1;
    let within = |token: &regard_model::tokens::Token| token.bytes.end > start && token.bytes.start < start + word.len();
    Some(tokens.iter().position(within)?..tokens.iter().rposition(within)? + 1)
}

/// Weight on the right word and on the wrong one, of every head.
fn measured(model: &Model, marked: &Marked) -> Result<Vec<[f64; 2]>> {
    let (shape, tokens) = (model.shape(), model.tokens(&marked.text)?);
    let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
    let place = |word: &str| {
        tokens_of(&tokens, &marked.text, word).ok_or_else(|| Error::Setting {
            name: "model",
            value: format!("a tokenizer that has no place for {word:?}"),
            requirement: "one whose tokens stand somewhere in the text",
        })
    };
    let (row, right, wrong) = (place(marked.query)?.end - 1, place(marked.right)?, place(marked.wrong)?);
    let run = model.run(&ids, &Edits::default(), &Sources::default())?;
    let of = |at: usize| {
        let weights = run.weights_of(at / shape.heads, at % shape.heads, row..row + 1)?;
        let mass = |keys: &std::ops::Range<usize>| keys.clone().map(|key| f64::from(weights[[0, key]])).sum::<f64>();
        Ok([mass(&right), mass(&wrong)])
    };
    (0..shape.layers * shape.heads).map(of).collect()
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count().max(1) as f64
}

/// Rows of `real_relations`: one per order.
pub(super) fn relations(name: &str, model: &Model, table: &mut Table) -> Result<()> {
    let heads = model.shape().heads;
    for relation in RELATIONS {
        // Order, words, head.
        let mut all: Vec<Vec<Vec<[f64; 2]>>> = Vec::new();
        for order in ORDERS {
            all.push((0..SUBJECTS.len()).map(|words| measured(model, &sentence(relation, words, order))).collect::<Result<_>>()?);
        }
        let half = SUBJECTS.len() / 2;
        let worse = |head: usize| {
            let excess = |order: &Vec<Vec<[f64; 2]>>| mean(order[..half].iter().map(|words| words[head][0] - words[head][1]));
            all.iter().map(excess).fold(f64::INFINITY, f64::min)
        };
        let best = (0..model.shape().layers * heads).max_by(|a, b| worse(*a).total_cmp(&worse(*b))).unwrap_or(0);
        for (order, all) in ORDERS.iter().zip(&all) {
            let of = |what: fn(&[f64; 2]) -> f64| all[half..].iter().map(|words| what(&words[best])).collect::<Vec<_>>();
            let row = Row::default().of(name).of(relation).of(*order).of(named(best / heads, best % heads)).of(half);
            row.share(&of(|x| x[0])).share(&of(|x| x[1])).mean(&of(|x| x[0] - x[1])).put(table);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_among_tokens() {
        let model = Model::built_in().expect("the small model");
        for (relation, words) in RELATIONS.into_iter().flat_map(|relation| (0..16).map(move |words| (relation, words))) {
            for order in ORDERS {
                let marked = sentence(relation, words, order);
                let tokens = model.tokens(&marked.text).expect("tokens");
                let place = |word| tokens_of(&tokens, &marked.text, word).expect(word);
                for word in [marked.query, marked.right, marked.wrong] {
                    let said: String = tokens[place(word)].iter().map(|token| &marked.text[token.bytes.clone()]).collect();
                    assert_eq!(said.trim(), word, "{}", marked.text);
                }
                let (right, wrong, query) = (place(marked.right), place(marked.wrong), place(marked.query));
                assert_eq!(right.end <= wrong.start, order == "before", "{}", marked.text);
                assert!(right.end <= query.start && wrong.end <= query.start, "{}", marked.text);
            }
        }
    }

    #[test]
    fn living_beings_and_numbers_are_crossed_in_each_half() {
        let living = "dog boys cats girl bird horses men king mother child farmers rabbits teacher ducks woman queens";
        let plural = |noun: &str| noun == "men" || noun.ends_with('s');
        let mut all = std::collections::BTreeSet::new();
        for half in SUBJECTS.chunks(8) {
            let kinds = |kind: &dyn Fn(&str) -> bool| {
                let mut pairs: Vec<[bool; 2]> = half.iter().map(|(right, _, wrong)| [kind(right), kind(wrong)]).collect();
                pairs.sort_unstable();
                pairs
            };
            let twice = [[false, false], [false, true], [true, false], [true, true]].map(|pair| [pair; 2]).concat();
            let is_living = |noun: &str| living.split(' ').any(|word| word == noun);
            assert_eq!(kinds(&is_living), twice);
            assert_eq!(kinds(&plural), twice);
            all.extend(half.iter().map(|(right, _, wrong)| [right, wrong].map(|noun| (is_living(noun), plural(noun)))));
        }
        assert_eq!(all.len(), SUBJECTS.len());
    }

    #[test]
    fn words_of_one_half_are_not_in_the_other() {
        for words in [SUBJECTS, SYNONYMS] {
            let (chosen, judged) = words.split_at(8);
            assert!(chosen.iter().all(|(right, query, _)| judged.iter().all(|other| other.0 != *right && other.1 != *query)));
        }
    }
}
