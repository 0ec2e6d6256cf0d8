//! Two scores of every head of trained language models.

use super::Broadcast;
use crate::error::Result;
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Job, Jobs, LearningConfig, SeedsConfig};
use crate::rows::{self, Row};
use crate::rules::PATTERN_EXCESS;
use crate::statistics::estimate::Estimate;
use crate::trainings::heads::maps;
use crate::trainings::learn::learn;
use clap::Args;
use regard_nn::data::{Target, Windows};
use regard_nn::lm::LanguageModel;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_plot::Table;
use serde::{Deserialize, Serialize};

/// Which trained heads broadcast one letter to many queries, or stay within the word
///
/// Broadcast: the letter with the most weight in even rows; its weight in odd rows beyond even weights. Phrase: weight on letters of the
/// own word minus weight on letters of other words at the same distance. Writes broadcast.csv and broadcast_heads.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab broadcast --steps 2000 --text book.txt")]
pub struct BroadcastConfig {
    /// Steps of training
    #[arg(long, default_value_t = 400, value_name = "N")]
    pub steps: u64,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Validation windows that heads are looked at with
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub windows: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for BroadcastConfig {
    fn default() -> Self {
        defaults()
    }
}

pub(super) const PATTERNS: [&str; 2] = ["broadcast", "phrase"];
/// Queries after the letter, at least.
const LATER: usize = 6;
/// Distances that are compared: 1 is the diagonal of other experiments.
const DISTANCES: std::ops::RangeInclusive<usize> = 2..=6;

/// A head of one training: both scores with their intervals.
#[derive(Serialize, Deserialize)]
struct Head {
    layer: usize,
    head: usize,
    scores: [[f64; 3]; 2],
}

/// The weight of the most attended letter, chosen in even rows and measured in odd ones, beyond even weights.
fn broadcast(w: &dyn Fn(usize, usize) -> f64, separator: &[bool]) -> Option<f64> {
    let n = separator.len();
    let excess = |j: usize, odd: usize| {
        let rows: Vec<usize> = (j + 1..n).filter(|i| i % 2 == odd).collect();
        rows.iter().map(|&i| w(i, j) - 1.0 / (i + 1) as f64).sum::<f64>() / rows.len().max(1) as f64
    };
    let letters = (0..n.saturating_sub(LATER)).filter(|&j| !separator[j]);
    let best = letters.max_by(|&a, &b| excess(a, 0).total_cmp(&excess(b, 0)))?;
    Some(excess(best, 1))
}

/// Weight on letters of the own word minus that on letters of other words, at the same distances, summed over distances.
fn phrase(w: &dyn Fn(usize, usize) -> f64, separator: &[bool]) -> Option<f64> {
    let n = separator.len();
    let mut sum = None;
    for distance in DISTANCES {
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for i in distance..n {
            let j = i - distance;
            if separator[i] || separator[j] {
                continue;
            }
            let same = (j..i).all(|between| !separator[between]);
            if same { inside.push(w(i, j)) } else { outside.push(w(i, j)) }
        }
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
        if !inside.is_empty() && !outside.is_empty() {
            *sum.get_or_insert(0.0) += mean(&inside) - mean(&outside);
        }
    }
    sum
}

impl BroadcastConfig {
    /// `broadcast`, how many heads have which pattern; `broadcast_heads`, head by head.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        let learning = &self.learning;
        learning.check(self.steps, self.windows)?;
        self.seeds.check()?;
        let content = learning.content()?;
        let (text, vocab, described) = learning.tokens_of(&content)?;
        let tokenizer = Tokenizer::train(TokenizerKind::Char, &content)?;
        let separates = |id: u32| tokenizer.decode(&[id]).is_ok_and(|s| s.chars().all(|c| c.is_whitespace() || c.is_ascii_punctuation()));
        let windows = Windows::spread(&text.validation, self.windows, learning.context, Target::Next);
        let jobs: Vec<Job<u64>> =
            self.seeds.all().map(|seed| Job { name: format!("seed {seed}"), steps: self.steps, what: seed }).collect();
        let runs = Jobs::new(progress, Broadcast::ID, self, &content).run(&jobs, |&seed, watch| {
            let model = LanguageModel::new(learning.model(vocab))?;
            let (_, p) = learn("training", &model, &learning.train(self.steps, seed), &text, self.steps, self.windows, watch)?;
            // Per head and pattern: a score of each window.
            let mut scores: Vec<(usize, usize, [Vec<f64>; 2])> = Vec::new();
            for ids in windows.ids.chunks_exact(learning.context) {
                let separator: Vec<bool> = ids.iter().map(|id| separates(*id)).collect();
                for (at, map) in maps(&model, &p, ids)?.into_iter().enumerate() {
                    if at == scores.len() {
                        scores.push((map.layer, map.head, [Vec::new(), Vec::new()]));
                    }
                    let w = |i: usize, j: usize| f64::from(map.weights[i * map.cols + j]);
                    scores[at].2[0].extend(broadcast(&w, &separator));
                    scores[at].2[1].extend(phrase(&w, &separator));
                }
            }
            let interval = |sample: &Vec<f64>| {
                let e = Estimate::of_mean(sample);
                [e.value, e.low, e.high].map(|x| (x * 1e4).round() / 1e4)
            };
            Ok(scores.iter().map(|(layer, head, s)| Head { layer: *layer, head: *head, scores: [0, 1].map(|k| interval(&s[k])) }).collect())
        })?;
        let runs: Vec<(u64, Vec<Head>)> = jobs.iter().map(|job| job.what).zip(runs).collect();
        Ok(signed(vec![named(&runs), heads(&runs)], &origin::<Broadcast>(self, self.seeds.seed, &described)?))
    }
}

fn named(runs: &[(u64, Vec<Head>)]) -> Table {
    let columns = [
        ("pattern", "pattern"),
        ("heads", "heads of all trainings"),
        ("named", "heads with the pattern"),
        ("trainings", "trainings with such a head"),
        ("seeds", "trainings"),
        ("~largest", "largest excess of a head, mean over trainings"),
    ];
    let caption = format!("Heads whose excess has a lower end above {PATTERN_EXCESS}");
    let mut table = rows::table("broadcast", &caption, &columns);
    for (which, pattern) in PATTERNS.into_iter().enumerate() {
        let has = |head: &&Head| head.scores[which][1] > PATTERN_EXCESS;
        let count = |heads: &Vec<Head>| heads.iter().filter(has).count();
        let all: usize = runs.iter().map(|(_, heads)| heads.len()).sum();
        let largest: Vec<f64> =
            runs.iter().map(|(_, heads)| heads.iter().map(|h| h.scores[which][0]).fold(f64::NEG_INFINITY, f64::max)).collect();
        let row = Row::default().of(pattern).of(all).of(runs.iter().map(|(_, heads)| count(heads)).sum::<usize>());
        let row = row.of(runs.iter().filter(|(_, heads)| count(heads) > 0).count()).of(runs.len());
        row.mean(&largest).put(&mut table);
    }
    table
}

fn heads(runs: &[(u64, Vec<Head>)]) -> Table {
    let columns = [
        ("seed", "seed"),
        ("block", "block"),
        ("head", "head"),
        ("~broadcast", "broadcast: weight on one letter beyond even weights"),
        ("~phrase", "phrase: own word minus other words at the same distances"),
    ];
    let mut table = rows::table("broadcast_heads", "Every head, means over held-out windows", &columns);
    for (seed, heads) in runs {
        for head in heads {
            let row = Row::default().of(*seed as usize).of(head.layer).of(head.head);
            let of = |[value, low, high]: [f64; 3]| Estimate { value, low, high };
            row.estimate(of(head.scores[0])).estimate(of(head.scores[1])).put(&mut table);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_is_found_where_it_was_drawn() {
        let separator: Vec<bool> = (0..24).map(|j| j % 5 == 4).collect();
        let even = |i: usize, j: usize| if j <= i { 1.0 / (i + 1) as f64 } else { 0.0 };
        assert!(broadcast(&even, &separator).unwrap().abs() < 1e-12);
        let column = |i: usize, j: usize| if i >= 6 && j == 6 { 1.0 } else { 0.0 };
        assert!(broadcast(&column, &separator).unwrap() > 0.8);
        let stop = |i: usize, j: usize| if i >= 9 && j == 9 { 1.0 } else { 0.0 };
        assert!(broadcast(&stop, &separator).unwrap() < 0.0, "a separator is no letter");
        // The same weight at every distance, whatever the word: no phrase. Two places back within the word only: a phrase.
        let near = |i: usize, j: usize| if i - j == 2 { 1.0 } else { 0.0 };
        assert!(phrase(&near, &separator).unwrap().abs() < 1e-12);
        let own = |i: usize, j: usize| if i - j == 2 && i / 5 == j / 5 { 1.0 } else { 0.0 };
        assert!((phrase(&own, &separator).unwrap() - 1.0).abs() < 1e-12);
    }
}
