//! Do heads come to differ, and what do they look at? Likeness while a language model learns, maps with tokens, and patterns that have a name.

use super::TrainedHeads;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, LearningConfig, SeedsConfig, every};
use crate::rows::{self, Row};
use crate::statistics::estimate::{Estimate, Z};
use clap::Args;
use regard_nn::config::ModelConfig;
use regard_nn::data::{Target, Text, Windows};
use regard_nn::experiments::ablate_scale::{AblateConfig, AblateRun, trained};
use regard_nn::experiments::heads::{HeadMap, HeadPatterns, Pattern, maps, patterns};
use regard_nn::lm::LanguageModel;
use regard_nn::sublayer::NormPlace;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_plot::{Table, Value};
use serde::{Deserialize, Serialize};

/// What heads look at, and how alike they are, while a language model learns
///
/// For every block over time: how alike its heads are, by centred cosine and Jensen-Shannon divergence. For every head at the end: its map, token
/// by token, and which of four patterns it has: diagonal, vertical, horizontal, block. Both orders of layers are trained: the norm before each
/// layer, and behind it. (`regard heads` asks the same of untrained heads.) Writes trained_heads_named.csv and four tables that it rests on.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Examples:\n  regard trained-heads\n  regard trained-heads --heads 8 --layers 4 --steps 3000 --text book.txt")]
pub struct TrainedHeadsConfig {
    /// Steps of training
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub steps: u64,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Validation windows that heads are looked at with
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub windows: usize,
    /// Characters of the held-out text that maps are drawn of, at most the context
    #[arg(long, default_value_t = 18, value_name = "N")]
    pub shown: usize,
    /// How often
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for TrainedHeadsConfig {
    fn default() -> Self {
        defaults()
    }
}

/// The two orders of layers, as tables name them.
pub(super) const ORDERS: [(&str, NormPlace); 2] = [("pre-norm", NormPlace::Pre), ("post-norm", NormPlace::Post)];

/// One training.
#[derive(Serialize, Deserialize)]
struct Run {
    run: AblateRun,
    patterns: Vec<HeadPatterns>,
    maps: Vec<HeadMap>,
}

/// A training with what it was.
struct Named {
    order: &'static str,
    seed: u64,
    run: Run,
}

/// The first characters of the held-out text that begin behind a full stop or a line end.
fn shown(text: &Text, tokenizer: &Tokenizer, most: usize) -> Result<Vec<u32>> {
    let ids = &text.validation;
    let ends: Vec<u32> = [". ", "\n"].iter().filter_map(|end| tokenizer.encode(end).ok()).filter_map(|ids| ids.last().copied()).collect();
    let ending =
        |i: usize| ends.contains(&ids[i]) && (i == 0 || tokenizer.decode(&ids[i - 1..=i]).is_ok_and(|s| s == ". " || s.ends_with('\n')));
    let from = (0..ids.len().saturating_sub(most + 1)).find(|&i| ending(i)).map_or(0, |i| i + 1);
    Ok(ids[from..ids.len().min(from + most)].to_vec())
}

impl TrainedHeadsConfig {
    /// `trained_heads_named`, how many heads have which pattern; `trained_heads_patterns`, head by head; `trained_heads_likeness`, every block over
    /// time; `trained_heads_tokens` and `trained_heads_maps`, all heads of the first seed on one text.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        let learning = &self.learning;
        learning.check(self.steps, self.windows)?;
        self.seeds.check()?;
        require(learning.heads > 1, "heads", learning.heads, "at least 2, to be compared")?;
        require(self.shown >= 2, "shown", self.shown, "at least 2")?;
        let content = learning.content()?;
        let (text, vocab, described) = learning.tokens_of(&content)?;
        let tokenizer = Tokenizer::train(TokenizerKind::Char, &content)?;
        let separator: Vec<bool> = (0..vocab)
            .map(|id| tokenizer.decode(&[id as u32]).is_ok_and(|s| s.chars().all(|c| c.is_whitespace() || c.is_ascii_punctuation())))
            .collect();
        let shown = shown(&text, &tokenizer, self.shown.min(learning.context))?;
        let windows = Windows::spread(&text.validation, self.windows, learning.context, Target::Next);
        let jobs = self.seeds.jobs(&ORDERS, self.steps, |(order, _)| order.to_owned());
        let results = Jobs::new(progress, TrainedHeads::ID, self, &content).run(&jobs, |&((_, norm_place), seed), watch| {
            let config = AblateConfig {
                model: learning.model(vocab),
                train: learning.train(self.steps, seed),
                head_dims: Vec::new(),
                every: every(self.steps, 20),
                windows: self.windows,
            };
            let model = LanguageModel::new(ModelConfig { norm_place, ..config.model.clone() })?;
            let (run, p) = trained(&config, &model, &text, watch)?;
            Ok(Run { run, patterns: patterns(&model, &p, &windows, &separator)?, maps: maps(&model, &p, &shown)? })
        })?;
        let runs: Vec<Named> = jobs.iter().zip(results).map(|(job, run)| Named { order: job.what.0.0, seed: job.what.1, run }).collect();
        let tokens: Vec<String> = shown.iter().map(|id| tokenizer.decode(&[*id])).collect::<std::result::Result<_, _>>()?;
        let tables = vec![named(&runs), head_patterns(&runs), likeness(&runs), token_table(&tokens), map_table(&runs)];
        Ok(signed(tables, &origin::<TrainedHeads>(self, self.seeds.seed, &described)?))
    }
}

/// A head has the pattern that it has most of beyond even weights, where that is at least this much for certain.
pub(super) const ENOUGH: f64 = 0.1;

/// No pattern of the four.
pub(super) const NONE: &str = "none of the four";

fn excess(p: &HeadPatterns, which: usize) -> Estimate {
    Estimate::around(p.excess[which], Z * p.standard_error[which])
}

fn name(p: &HeadPatterns) -> &'static str {
    let most = (0..4).max_by(|&a, &b| p.excess[a].total_cmp(&p.excess[b])).unwrap_or(0);
    if excess(p, most).low > ENOUGH { Pattern::ALL[most].name() } else { NONE }
}

fn named(runs: &[Named]) -> Table {
    let columns = [
        ("order", "order of layers"),
        ("pattern", "pattern"),
        ("heads", "heads of all trainings"),
        ("named", "that have it"),
        ("~share", "share"),
        ("example", "the head that has most of it"),
    ];
    let caption =
        "Which of the four patterns trained heads have: the one that they have most of beyond even weights, at least 0.1 for certain";
    let mut table = rows::table("trained_heads_named", caption, &columns);
    for (order, _) in ORDERS {
        let heads: Vec<(u64, &HeadPatterns)> =
            runs.iter().filter(|run| run.order == order).flat_map(|run| run.run.patterns.iter().map(move |p| (run.seed, p))).collect();
        for (which, pattern) in Pattern::ALL.iter().map(|p| p.name()).chain([NONE]).enumerate() {
            let here: Vec<_> = heads.iter().filter(|(_, p)| name(p) == pattern).collect();
            let best = here.iter().max_by(|a, b| a.1.excess[which.min(3)].total_cmp(&b.1.excess[which.min(3)]));
            let example = best.map(|(seed, p)| format!("seed {seed}, block {}, head {}", p.layer, p.head));
            let row = Row::default().of(order).of(pattern).of(heads.len()).of(here.len());
            row.estimate(Estimate::of_share(here.len(), heads.len())).of(example).put(&mut table);
        }
    }
    table
}

fn head_patterns(runs: &[Named]) -> Table {
    let columns = [
        ("order", "order of layers"),
        ("seed", "seed"),
        ("block", "block"),
        ("head", "head"),
        ("pattern", "pattern"),
        ("step", "step of the diagonal"),
        ("~diagonal", "diagonal: weight a fixed step back"),
        ("~vertical", "vertical: weight on spaces and marks"),
        ("~horizontal", "horizontal: share of even rows"),
        ("~block_weight", "block: weight on the other letters of the word"),
    ];
    let caption = "Every head: how much of each pattern it has beyond what even weights have, means over held-out windows";
    let mut table = rows::table("trained_heads_patterns", caption, &columns);
    for run in runs {
        for p in &run.run.patterns {
            let place = [run.seed as usize, p.layer, p.head];
            let mut row = Row::default().of(run.order).all(place).of(name(p)).of(p.step);
            for which in 0..4 {
                let e = excess(p, which);
                let brief = |x: f64| (x * 1e4).round() / 1e4;
                row = row.estimate(Estimate { value: brief(e.value), low: brief(e.low), high: brief(e.high) });
            }
            row.put(&mut table);
        }
    }
    table
}

fn likeness(runs: &[Named]) -> Table {
    let columns = [
        ("order", "order of layers"),
        ("step", "step"),
        ("block", "block"),
        ("seeds", "trainings"),
        ("~loss", "validation loss"),
        ("~centred_cosine", "centred cosine, mean over pairs of heads"),
        ("~jensen_shannon", "Jensen-Shannon divergence (nats)"),
    ];
    let caption = "How alike the heads of a block are as the model learns: 1 and 0 alike, 0 and ln 2 = 0.693 as different as can be";
    let mut table = rows::table("trained_heads_likeness", caption, &columns);
    for (order, _) in ORDERS {
        let runs: Vec<&Named> = runs.iter().filter(|run| run.order == order).collect();
        let Some(first) = runs.first() else { continue };
        for (at, moment) in first.run.run.moments.iter().enumerate() {
            for (block, _) in moment.inside.layers.iter().enumerate() {
                let of = |f: &dyn Fn(&regard_nn::experiments::ablate_scale::Moment) -> f64| -> Vec<f64> {
                    runs.iter().filter_map(|run| run.run.run.moments.get(at)).map(f).collect()
                };
                let row = Row::default().of(order).of(moment.step as usize).of(block).of(runs.len());
                let row = row.mean(&of(&|m| m.inside.loss)).mean(&of(&|m| m.inside.layers[block].centred_cosine));
                row.mean(&of(&|m| m.inside.layers[block].jensen_shannon)).put(&mut table);
            }
        }
    }
    table
}

/// A token as a map shows it.
fn visible(token: &str) -> String {
    token.replace(' ', "\u{2423}").replace('\n', "\u{21b5}")
}

fn token_table(tokens: &[String]) -> Table {
    let mut table = Table::new("trained_heads_tokens", "The text that the maps are of", &[("place", "place"), ("token", "token")]);
    for (place, token) in tokens.iter().enumerate() {
        // Between quotes: a digit stays a text.
        table.push(vec![place.into(), format!("\u{201c}{}\u{201d}", visible(token)).into()]);
    }
    table
}

fn map_table(runs: &[Named]) -> Table {
    let columns =
        [("order", "order of layers"), ("block", "block"), ("head", "head"), ("query", "query"), ("key", "key"), ("weight", "weight")];
    let caption = "Weights of every head of the first seed on that text; keys that the causal mask hides are left out";
    let mut table = Table::new("trained_heads_maps", caption, &columns);
    for (order, _) in ORDERS {
        let Some(run) = runs.iter().find(|run| run.order == order) else { continue };
        for map in &run.run.maps {
            for (at, &weight) in map.weights.iter().enumerate().filter(|(at, _)| at % map.cols <= at / map.cols) {
                // Three decimals are more than a colour can say.
                let weight = Value::Number((f64::from(weight) * 1e3).round() / 1e3);
                Row::default().of(order).all([map.layer, map.head, at / map.cols, at % map.cols]).of(weight).put(&mut table);
            }
        }
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use regard_nn::attention::ScaleKind;
    use regard_nn::experiments::CurvePoint;
    use regard_nn::experiments::ablate_scale::Moment;
    use regard_nn::experiments::inside::{HeadView, Inside, LayerView};

    /// A training of which no two numbers are the same: those of step 8 are 100 times those of step 0.
    pub(in crate::experiments) fn run(scale: ScaleKind) -> AblateRun {
        let moment = |step: u64, x: f64| {
            let head = HeadView {
                layer: 1,
                head: 2,
                entropy: 3.0 * x,
                relative_entropy: 4.0 * x,
                max_weight: 5.0 * x,
                saturated: 6.0 * x,
                diagonal_mass: 7.0 * x,
                previous_token_mass: 8.0 * x,
                first_token_mass: 9.0 * x,
                mean_distance: 10.0 * x,
            };
            let layer = LayerView {
                layer: 1,
                centred_cosine: 11.0 * x,
                jensen_shannon: 12.0 * x,
                query_gradient: 13.0 * x,
                key_gradient: 14.0 * x,
                value_gradient: 15.0 * x,
            };
            Moment { step, inside: Inside { loss: 16.0 * x, heads: vec![head], layers: vec![layer] } }
        };
        let curve = vec![CurvePoint { step: 1, loss: 17.0 }, CurvePoint { step: 8, loss: 18.0 }];
        AblateRun { head_dim: 64, scale, curve, validation: 19.0, moments: vec![moment(0, 1.0), moment(8, 100.0)] }
    }

    fn head(excess: [f64; 4], standard_error: f64) -> HeadPatterns {
        HeadPatterns { layer: 1, head: 2, step: 1, excess, standard_error: [standard_error; 4] }
    }

    #[test]
    fn a_head_is_named_by_what_it_has_most_of_for_certain() {
        assert_eq!(name(&head([0.4, 0.2, 0.1, 0.0], 0.01)), "diagonal");
        assert_eq!(name(&head([0.0, 0.2, 0.1, 0.3], 0.01)), "block");
        assert_eq!(name(&head([0.12, 0.0, 0.0, 0.0], 0.02)), NONE, "it may be less than a tenth");
    }

    #[test]
    fn every_number_of_a_head_stands_in_its_column() {
        let map = HeadMap { layer: 0, head: 3, rows: 2, cols: 2, weights: vec![1.0, 0.0, 0.25, 0.75] };
        let run = Run { run: run(ScaleKind::InvSqrtDim), patterns: vec![head([0.4, 0.2, 0.1, 0.05], 0.01)], maps: vec![map] };
        let runs = [Named { order: "pre-norm", seed: 7, run }];
        let table = head_patterns(&runs);
        let got = ["seed", "block", "head", "step", "diagonal", "vertical", "horizontal", "block_weight"]
            .map(|c| table.number(&table.rows[0], c));
        assert_eq!(got, [7.0, 1.0, 2.0, 1.0, 0.4, 0.2, 0.1, 0.05]);
        let table = likeness(&runs);
        let got = ["step", "block", "loss", "centred_cosine", "jensen_shannon"].map(|c| table.number(&table.rows[1], c));
        assert_eq!(got, [8.0, 0.0, 1600.0, 1100.0, 1200.0]);
        let table = map_table(&runs);
        let got = ["block", "head", "query", "key", "weight"].map(|c| table.number(&table.rows[1], c));
        assert_eq!((got, table.rows.len()), ([0.0, 3.0, 1.0, 0.0, 0.25], 3), "the hidden key is left out");
        let table = named(&runs);
        assert_eq!((table.number(&table.rows[0], "named"), table.text(&table.rows[0], "example")), (1.0, "seed 7, block 1, head 2"));
    }
}
