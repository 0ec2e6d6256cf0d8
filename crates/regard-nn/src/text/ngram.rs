//! A small judge of written text that is not a neural network: counts of up to five tokens in a row.
//!
//! ```text
//! p_0 = 1 / vocab        p_{k+1}(t | last k tokens) = (count(last k, t) + 5 p_k) / (count(last k) + 5)
//! ```

use std::collections::HashMap;

/// Tokens that are looked at together.
pub const ORDER: usize = 5;
/// How many counts the shorter context is worth.
const TRUST: f64 = 5.0;

/// Counts of a text.
#[derive(Debug, Clone)]
pub struct NGram {
    vocab: usize,
    /// By context length: how often each context was followed by anything.
    contexts: Vec<HashMap<u128, u32>>,
    /// By context length: how often each context was followed by a token.
    pairs: Vec<HashMap<(u128, u32), u32>>,
}

/// Up to four tokens as one number.
fn key(context: &[u32]) -> u128 {
    context.iter().fold(0, |key, &t| (key << 32) | u128::from(t))
}

impl NGram {
    /// Count a text.
    pub fn new(tokens: &[u32], vocab: usize) -> Self {
        let (mut contexts, mut pairs) = (vec![HashMap::new(); ORDER], vec![HashMap::new(); ORDER]);
        for k in 0..ORDER {
            for i in k..tokens.len() {
                let context = key(&tokens[i - k..i]);
                *contexts[k].entry(context).or_insert(0) += 1;
                *pairs[k].entry((context, tokens[i])).or_insert(0) += 1;
            }
        }
        Self { vocab, contexts, pairs }
    }

    /// The probability of a token after others.
    pub fn probability(&self, before: &[u32], token: u32) -> f64 {
        let mut p = 1.0 / self.vocab as f64;
        for k in 0..ORDER.min(before.len() + 1) {
            let context = key(&before[before.len() - k..]);
            if let Some(&total) = self.contexts[k].get(&context) {
                let count = self.pairs[k].get(&(context, token)).copied().unwrap_or(0);
                p = (f64::from(count) + TRUST * p) / (f64::from(total) + TRUST);
            }
        }
        p
    }

    /// Mean surprise per token, in nats, from token `first` on.
    pub fn surprise(&self, tokens: &[u32], first: usize) -> f64 {
        let sum: f64 = (first..tokens.len()).map(|i| -self.probability(&tokens[i.saturating_sub(ORDER - 1)..i], tokens[i]).ln()).sum();
        sum / tokens.len().saturating_sub(first).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_follow_the_counts() {
        let tokens = [0, 1, 2, 0, 1, 2, 0, 1, 3];
        let ngram = NGram::new(&tokens, 4);
        for before in [&[][..], &[0], &[0, 1], &[3, 3, 3], &[2, 0, 1, 2, 0, 1]] {
            let sum: f64 = (0..4).map(|t| ngram.probability(before, t)).sum();
            assert!((sum - 1.0).abs() < 1e-12);
        }
        assert!(ngram.probability(&[0], 1) > 0.5);
        // Without a context: (3 + 5/4) / (9 + 5).
        assert!((ngram.probability(&[], 0) - (3.0 + 1.25) / 14.0).abs() < 1e-15);
        assert!(ngram.surprise(&tokens, 0) < 4f64.ln());
    }
}
