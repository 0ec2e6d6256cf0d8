//! Probabilistic context-free grammars, with their entropy exactly.
//!
//! Expanding rule X picks alternative i with probability p_i. What a rule is expected to cost is linear in what the rules of its
//! alternatives cost, so entropy and length of all rules follow from one system of equations each:
//!
//! ```text
//! h(X) = -sum(p_i ln p_i) + sum(p_i sum over rules Y in alternative i of h(Y))
//! l(X) =                    sum(p_i (characters of alternative i + sum over rules Y in it of l(Y)))
//! ```
//!
//! `h` is the entropy of derivations. It is that of texts where every text has one derivation.

use crate::random::Draws;

/// A piece of an alternative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Symbol {
    /// These characters.
    Text(String),
    /// What this rule expands to.
    Rule(usize),
}

/// One way to expand a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Alternative {
    /// Its probability.
    pub probability: f64,
    /// What it expands to.
    pub symbols: Vec<Symbol>,
}

/// Rules by number; rule 0 is where a text begins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pcfg {
    /// The alternatives of each rule; their probabilities sum to one.
    pub rules: Vec<Vec<Alternative>>,
}

/// Expectations of a text.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Expectation {
    /// Nats.
    pub entropy: f64,
    /// Characters.
    pub characters: f64,
}

impl Pcfg {
    /// Entropy and length of what rule 0 expands to, exactly up to rounding.
    pub fn expectation(&self) -> Expectation {
        let n = self.rules.len();
        // calls[x][y]: how often y is expanded directly by x.
        let mut calls = vec![vec![0.0; n]; n];
        let mut own = vec![[0.0; 2]; n];
        for (x, alternatives) in self.rules.iter().enumerate() {
            for Alternative { probability: p, symbols } in alternatives {
                if *p > 0.0 {
                    own[x][0] -= p * p.ln();
                }
                for symbol in symbols {
                    match symbol {
                        Symbol::Text(text) => own[x][1] += p * text.chars().count() as f64,
                        Symbol::Rule(y) => calls[x][*y] += p,
                    }
                }
            }
        }
        let solved = solve(calls, own);
        Expectation { entropy: solved[0][0], characters: solved[0][1] }
    }

    /// A text.
    pub fn write(&self, draws: &mut Draws, text: &mut String) {
        let mut open = vec![Symbol::Rule(0)];
        while let Some(symbol) = open.pop() {
            match symbol {
                Symbol::Text(t) => text.push_str(&t),
                Symbol::Rule(rule) => {
                    let weights: Vec<f64> = self.rules[rule].iter().map(|a| a.probability).collect();
                    let chosen = &self.rules[rule][draws.weighted(&weights)];
                    open.extend(chosen.symbols.iter().rev().cloned());
                }
            }
        }
    }

    /// The derivations of a text: how many there are, and their probability together. Rules must not recurse on the left.
    pub fn derivations(&self, text: &str) -> (usize, f64) {
        let mut found = (0, 0.0);
        self.follow(text, &mut vec![Symbol::Rule(0)], 1.0, &mut found);
        found
    }

    /// `open` is what is still to be matched, the next symbol last.
    fn follow(&self, text: &str, open: &mut Vec<Symbol>, probability: f64, found: &mut (usize, f64)) {
        let Some(symbol) = open.pop() else {
            if text.is_empty() {
                found.0 += 1;
                found.1 += probability;
            }
            return;
        };
        match &symbol {
            Symbol::Text(t) => {
                if let Some(rest) = text.strip_prefix(t.as_str()) {
                    self.follow(rest, open, probability, found);
                }
            }
            Symbol::Rule(rule) => {
                for alternative in &self.rules[*rule] {
                    let fits = !matches!(alternative.symbols.first(), Some(Symbol::Text(t)) if !text.starts_with(t.as_str()));
                    if fits {
                        let mut rest = open.clone();
                        rest.extend(alternative.symbols.iter().rev().cloned());
                        self.follow(text, &mut rest, probability * alternative.probability, found);
                    }
                }
            }
        }
        open.push(symbol);
    }
}

/// Solve `z = own + calls z` for two right-hand sides, by elimination with pivots.
fn solve(calls: Vec<Vec<f64>>, own: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    let n = own.len();
    let mut a: Vec<Vec<f64>> = calls
        .iter()
        .zip(&own)
        .enumerate()
        .map(|(x, (row, own))| row.iter().enumerate().map(|(y, c)| f64::from(x == y) - c).chain(*own).collect())
        .collect();
    for column in 0..n {
        let pivot = (column..n).max_by(|&i, &j| a[i][column].abs().total_cmp(&a[j][column].abs())).unwrap_or(column);
        a.swap(column, pivot);
        let top = a[column].clone();
        for (i, row) in a.iter_mut().enumerate() {
            if i != column {
                let factor = row[column] / top[column];
                row.iter_mut().zip(&top).skip(column).for_each(|(x, t)| *x -= factor * t);
            }
        }
    }
    a.iter().enumerate().map(|(i, row)| [row[n] / row[i], row[n + 1] / row[i]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(t: &str) -> Symbol {
        Symbol::Text(t.to_owned())
    }

    #[test]
    fn recursive_rule_has_the_entropy_and_length_of_its_geometric_series() {
        // X -> "ab" X with 3/4, "." with 1/4: three pairs on average.
        let rules = vec![vec![
            Alternative { probability: 0.75, symbols: vec![text("ab"), Symbol::Rule(0)] },
            Alternative { probability: 0.25, symbols: vec![text(".")] },
        ]];
        let grammar = Pcfg { rules };
        let expectation = grammar.expectation();
        let per_choice = -(0.75f64 * 0.75f64.ln() + 0.25 * 0.25f64.ln());
        assert!((expectation.characters - 7.0).abs() < 1e-12, "{expectation:?}");
        assert!((expectation.entropy - 4.0 * per_choice).abs() < 1e-12, "{expectation:?}");
        let (count, probability) = grammar.derivations("abab.");
        assert_eq!(count, 1);
        assert!((probability - 0.75 * 0.75 * 0.25).abs() < 1e-15);
        assert_eq!(grammar.derivations("aba."), (0, 0.0));
    }

    #[test]
    fn two_derivations_of_one_text_are_counted() {
        let rule = |symbols| Alternative { probability: 0.5, symbols };
        let grammar = Pcfg { rules: vec![vec![rule(vec![text("a"), text("b")]), rule(vec![text("ab")])]] };
        assert_eq!(grammar.derivations("ab"), (2, 1.0));
    }
}
