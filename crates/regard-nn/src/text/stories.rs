//! The text that models learn when no other is given: small stories in a small English, written by a grammar of ours.
//!
//! A story chooses two people and a place and comes back to them: names, pronouns that fit, verbs that agree with their subject,
//! quotes within quotes. There is something to attend to, and every loss has a floor that is known: each text has one
//! derivation, so the entropy per character follows exactly from the grammar.
//!
//! ```text
//! Iris and Leo went to the harbour. She likes the old boats. Leo said, "Iris said, 'the dog sleeps.'" They wait at the harbour.
//! ```

use crate::pcfg::{Alternative, Expectation, Pcfg, Symbol};
use crate::random::Draws;

const PEOPLE: [(&str, &str); 12] = [
    ("Anna", "She"),
    ("Ben", "He"),
    ("Clara", "She"),
    ("David", "He"),
    ("Emma", "She"),
    ("Frank", "He"),
    ("Grace", "She"),
    ("Henry", "He"),
    ("Iris", "She"),
    ("Jack", "He"),
    ("Kate", "She"),
    ("Leo", "He"),
];
const PLACES: [&str; 8] = ["market", "river", "forest", "station", "library", "harbour", "garden", "castle"];
/// Singular and plural.
const THINGS: [(&str, &str); 12] = [
    ("cat", "cats"),
    ("dog", "dogs"),
    ("child", "children"),
    ("bird", "birds"),
    ("horse", "horses"),
    ("boat", "boats"),
    ("woman", "women"),
    ("king", "kings"),
    ("fox", "foxes"),
    ("sailor", "sailors"),
    ("mouse", "mice"),
    ("teacher", "teachers"),
];
/// With one, with many.
const DOING: [(&str, &str); 8] = [
    ("sleeps", "sleep"),
    ("sings", "sing"),
    ("waits", "wait"),
    ("laughs", "laugh"),
    ("runs", "run"),
    ("works", "work"),
    ("dances", "dance"),
    ("cries", "cry"),
];
const DOING_TO: [(&str, &str); 8] = [
    ("sees", "see"),
    ("likes", "like"),
    ("finds", "find"),
    ("follows", "follow"),
    ("calls", "call"),
    ("helps", "help"),
    ("loves", "love"),
    ("watches", "watch"),
];
const LOOKS: [&str; 8] = ["old", "small", "red", "quiet", "happy", "tall", "brave", "lazy"];

/// Another sentence follows with this probability.
const GO_ON: f64 = 0.85;

/// Rules of a story's grammar, by name.
mod rule {
    pub(super) const STORY: usize = 0;
    /// What follows when the last person that acted was the first, or the second.
    pub(super) const REST: [usize; 2] = [1, 2];
    /// What one, or many, do.
    pub(super) const ACT: [usize; 2] = [3, 4];
    pub(super) const DOING: [usize; 2] = [5, 6];
    pub(super) const DOING_TO: [usize; 2] = [7, 8];
    pub(super) const LOOK: usize = 9;
    /// A thing, things.
    pub(super) const THING: [usize; 2] = [10, 11];
    pub(super) const OBJECT: usize = 12;
    pub(super) const WHERE: usize = 13;
    /// What is said between double, or single, quotes.
    pub(super) const SAID: [usize; 2] = [14, 15];
    pub(super) const COUNT: usize = 16;
}

fn text(t: impl Into<String>) -> Symbol {
    Symbol::Text(t.into())
}

const fn call(rule: usize) -> Symbol {
    Symbol::Rule(rule)
}

/// Alternatives whose weights fall like 1 / (i + 2), as words of a language do.
fn falling(alternatives: impl ExactSizeIterator<Item = Vec<Symbol>>) -> Vec<Alternative> {
    let weight = |i: usize| 1.0 / (i + 2) as f64;
    let sum: f64 = (0..alternatives.len()).map(weight).sum();
    alternatives.enumerate().map(|(i, symbols)| Alternative { probability: weight(i) / sum, symbols }).collect()
}

fn weighted<const N: usize>(alternatives: [(f64, Vec<Symbol>); N]) -> Vec<Alternative> {
    alternatives.into_iter().map(|(probability, symbols)| Alternative { probability, symbols }).collect()
}

/// The grammar of stories about two people at a place.
fn story(people: [usize; 2], place: usize) -> Pcfg {
    use rule::*;
    let names = people.map(|p| PEOPLE[p].0);
    let place = PLACES[place];
    let mut rules = vec![Vec::new(); COUNT];
    rules[STORY] = weighted([(1.0, vec![text(format!("{} and {} went to the {place}.", names[0], names[1])), call(REST[0])])]);
    for last in 0..2 {
        let pronoun = PEOPLE[people[last]].1;
        let mut alternatives = weighted([
            (1.0 - GO_ON, vec![text("\n")]),
            (GO_ON * 0.12, vec![text(format!(" {pronoun} ")), call(ACT[0]), text("."), call(REST[last])]),
            (GO_ON * 0.08, vec![text(format!(" {pronoun} said, ")), call(SAID[0]), call(REST[last])]),
            (GO_ON * 0.10, vec![text(" They "), call(ACT[1]), text("."), call(REST[last])]),
            (GO_ON * 0.08, vec![text(" The "), call(LOOK), call(THING[0]), text(" "), call(ACT[0]), text("."), call(REST[last])]),
            (GO_ON * 0.08, vec![text(" The "), call(LOOK), call(THING[1]), text(" "), call(ACT[1]), text("."), call(REST[last])]),
        ]);
        for (who, name) in names.iter().enumerate() {
            // People take turns more often than not.
            let share = if who == last { 0.2 } else { 0.34 };
            alternatives.extend(weighted([
                (GO_ON * share * 0.6, vec![text(format!(" {name} ")), call(ACT[0]), text("."), call(REST[who])]),
                (GO_ON * share * 0.4, vec![text(format!(" {name} said, ")), call(SAID[0]), call(REST[who])]),
            ]));
        }
        rules[REST[last]] = alternatives;
    }
    for many in 0..2 {
        rules[ACT[many]] = weighted([
            (0.45, vec![call(DOING[many]), call(WHERE)]),
            (0.55, vec![call(DOING_TO[many]), text(" "), call(OBJECT), call(WHERE)]),
        ]);
        let form = move |(one, more): &(&str, &str)| vec![text(if many == 0 { *one } else { *more })];
        rules[DOING[many]] = falling(self::DOING.iter().map(form));
        rules[DOING_TO[many]] = falling(self::DOING_TO.iter().map(form));
        rules[THING[many]] = falling(THINGS.iter().map(form));
        let quote = ["\"", "'"][many];
        rules[SAID[many]] = weighted([
            (0.22, vec![text(format!("{quote}the ")), call(LOOK), call(THING[0]), text(" "), call(ACT[0]), text(format!(".{quote}"))]),
            (0.22, vec![text(format!("{quote}the ")), call(LOOK), call(THING[1]), text(" "), call(ACT[1]), text(format!(".{quote}"))]),
            (0.18, vec![text(format!("{quote}{} ", names[0])), call(ACT[0]), text(format!(".{quote}"))]),
            (0.18, vec![text(format!("{quote}{} ", names[1])), call(ACT[0]), text(format!(".{quote}"))]),
            (0.10, vec![text(format!("{quote}{} said, ", names[0])), call(SAID[1 - many]), text(quote)]),
            (0.10, vec![text(format!("{quote}{} said, ", names[1])), call(SAID[1 - many]), text(quote)]),
        ]);
    }
    let mut looks = falling(LOOKS.iter().map(|l| vec![text(format!("{l} "))]));
    looks.iter_mut().for_each(|a| a.probability *= 0.5);
    looks.push(Alternative { probability: 0.5, symbols: Vec::new() });
    rules[LOOK] = looks;
    rules[OBJECT] = weighted([
        (0.2, vec![text(names[0])]),
        (0.2, vec![text(names[1])]),
        (0.3, vec![text("the "), call(LOOK), call(THING[0])]),
        (0.3, vec![text("the "), call(LOOK), call(THING[1])]),
    ]);
    rules[WHERE] = weighted([(0.25, vec![text(format!(" at the {place}"))]), (0.75, Vec::new())]);
    Pcfg { rules }
}

/// Every choice of two people, in order, and a place; all are equally likely.
fn casts() -> impl Iterator<Item = ([usize; 2], usize)> {
    let pairs = (0..PEOPLE.len()).flat_map(|a| (0..PEOPLE.len()).filter(move |&b| b != a).map(move |b| [a, b]));
    pairs.flat_map(|people| (0..PLACES.len()).map(move |place| (people, place)))
}

/// Stories of at least this number of characters in all, one per line; the same seed writes the same.
pub fn write(characters: usize, seed: u64) -> String {
    let casts: Vec<_> = casts().collect();
    let mut text = String::with_capacity(characters + 4096);
    let mut draws = Draws::at(seed, &[0x5702]);
    while text.len() < characters {
        let (people, place) = casts[draws.below(casts.len())];
        story(people, place).write(&mut draws, &mut text);
    }
    text
}

/// Entropy and length of a story, in expectation.
pub fn expectation() -> Expectation {
    let (mut sum, mut count) = (Expectation::default(), 0.0);
    for (people, place) in casts() {
        let one = story(people, place).expectation();
        sum.entropy += one.entropy;
        sum.characters += one.characters;
        count += 1.0;
    }
    Expectation { entropy: sum.entropy / count + f64::ln(count), characters: sum.characters / count }
}

/// The entropy per character, in nats, of endless stories: no model's loss per character can be lower in the long run.
pub fn entropy_rate() -> f64 {
    let story = expectation();
    story.entropy / story.characters
}

/// The number of derivations of a story (a line with its end) and its probability.
pub fn derivations(line: &str) -> (usize, f64) {
    let casts: Vec<_> = casts().collect();
    let mut found = (0, 0.0);
    for &(people, place) in &casts {
        let (count, probability) = story(people, place).derivations(line);
        found.0 += count;
        found.1 += probability / casts.len() as f64;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_every_rule_sum_to_one() {
        for (people, place) in casts().step_by(97) {
            for (i, rule) in story(people, place).rules.iter().enumerate() {
                let sum: f64 = rule.iter().map(|a| a.probability).sum();
                assert!((sum - 1.0).abs() < 1e-12, "rule {i}: {sum}");
            }
        }
    }

    #[test]
    fn every_story_has_one_derivation_and_the_entropy_is_that_of_many_stories() {
        let text = write(120_000, 5);
        assert_eq!(text, write(120_000, 5));
        let (mut nats, mut stories) = (0.0, 0);
        for line in text.split_inclusive('\n').take(400) {
            let (count, probability) = derivations(line);
            assert_eq!(count, 1, "{line}");
            nats -= probability.ln();
            stories += 1;
        }
        let characters: usize = text.split_inclusive('\n').take(400).map(str::len).sum();
        let (measured, exact) = (nats / characters as f64, entropy_rate());
        assert!(stories == 400 && (measured / exact - 1.0).abs() < 0.03, "measured {measured}, exact {exact}");
        let mean = characters as f64 / 400.0;
        assert!((mean / expectation().characters - 1.0).abs() < 0.15, "{mean} characters, expected {}", expectation().characters);
    }
}
