//! Do heads come to differ, and what do they look at? Likeness while a language model learns, maps with tokens, and patterns that have a
//! name.

use super::TrainedHeads;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, LearningConfig, SeedsConfig, every};
use crate::rows::{self, Row};
use crate::rules::{PATTERN_EXCESS, UNIFORM_HEAD};
use crate::statistics::estimate::{Estimate, Z};
use crate::trainings::ablate_scale::{AblateConfig, AblateRun, trained};
use crate::trainings::heads::{HeadMap, HeadPatterns, Pattern, maps, patterns};
use clap::Args;
use regard_nn::config::ModelConfig;
use regard_nn::data::{Target, Text, Windows};
use regard_nn::lm::LanguageModel;
use regard_nn::sublayer::NormPlace;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_plot::{Table, Value};
use serde::{Deserialize, Serialize};

/// What heads look at, and how alike they are, while a language model learns
///
/// For every block over time: how alike its heads are, by centred cosine and Jensen-Shannon divergence. For every head at the end: its
/// map, token by token, and which of four patterns it has: diagonal, vertical, horizontal, block. Both orders of layers are trained: the
/// norm before each layer, and after it. (`regard lab heads` does the same for untrained heads.) Writes trained_heads_named.csv and four
/// tables that it rests on.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(
    after_help = "Examples:\n  regard lab trained-heads\n  regard lab trained-heads --heads 8 --layers 4 --steps 3000 --text book.txt"
)]
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
    /// Trainings
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

/// A training with its order of layers and seed.
struct NamedRun {
    order: &'static str,
    seed: u64,
    run: Run,
}

/// The first characters of the held-out text that begin after a full stop or a line end.
fn shown(text: &Text, tokenizer: &Tokenizer, most: usize) -> Result<Vec<u32>> {
    let ids = &text.validation;
    let ends: Vec<u32> = [". ", "\n"].iter().filter_map(|end| tokenizer.encode(end).ok()).filter_map(|ids| ids.last().copied()).collect();
    let ending =
        |i: usize| ends.contains(&ids[i]) && (i == 0 || tokenizer.decode(&ids[i - 1..=i]).is_ok_and(|s| s == ". " || s.ends_with('\n')));
    let from = (0..ids.len().saturating_sub(most + 1)).find(|&i| ending(i)).map_or(0, |i| i + 1);
    Ok(ids[from..ids.len().min(from + most)].to_vec())
}

impl TrainedHeadsConfig {
    /// `trained_heads_named`, how many heads have which pattern; `trained_heads_patterns`, head by head; `trained_heads_likeness`, every
    /// block over time; `trained_heads_tokens` and `trained_heads_maps`, all heads of the first seed on one text.
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
        let runs: Vec<NamedRun> =
            jobs.iter().zip(results).map(|(job, run)| NamedRun { order: job.what.0.0, seed: job.what.1, run }).collect();
        let tokens: Vec<String> = shown.iter().map(|id| tokenizer.decode(&[*id])).collect::<std::result::Result<_, _>>()?;
        let heads = named_heads(&runs);
        let tables = vec![named(&heads), head_patterns(&heads, &runs), likeness(&runs), token_table(&tokens), map_table(&runs)];
        Ok(signed(tables, &origin::<TrainedHeads>(self, self.seeds.seed, &described)?))
    }
}

pub(super) const NONE: &str = "none of the four";

fn excess(p: &HeadPatterns, which: usize) -> Estimate {
    let brief = |x: f64| (x * 1e4).round() / 1e4;
    let e = Estimate::around(p.excess[which], Z * p.standard_error[which]);
    Estimate { value: brief(e.value), low: brief(e.low), high: brief(e.high) }
}

/// The pattern of a head. Diagonal, vertical and block are weights beyond even weights and compete with each other. Horizontal is a share
/// of even rows: it counts only where no weight pattern is reached and the head is not uniform.
pub(super) fn name(excess: &[Estimate; 4]) -> &'static str {
    let horizontal = excess[2];
    if horizontal.low >= UNIFORM_HEAD {
        return NONE;
    }
    let reached = [0, 1, 3].into_iter().filter(|&which| excess[which].low > PATTERN_EXCESS);
    match reached.max_by(|&a, &b| excess[a].value.total_cmp(&excess[b].value)) {
        Some(which) => Pattern::ALL[which].name(),
        None if horizontal.low > PATTERN_EXCESS => Pattern::Horizontal.name(),
        None => NONE,
    }
}

/// A head of one training with its pattern.
pub(super) struct NamedHead {
    pub(super) order: String,
    pub(super) seed: u64,
    pub(super) layer: usize,
    pub(super) head: usize,
    pub(super) excess: [Estimate; 4],
}

fn named_heads(runs: &[NamedRun]) -> Vec<NamedHead> {
    let of = |run: &NamedRun, p: &HeadPatterns| NamedHead {
        order: run.order.to_owned(),
        seed: run.seed,
        layer: p.layer,
        head: p.head,
        excess: [0, 1, 2, 3].map(|which| excess(p, which)),
    };
    runs.iter().flat_map(|run| run.run.patterns.iter().map(move |p| of(run, p))).collect()
}

/// How many heads have which pattern; the share is a mean over trainings.
pub(super) fn named(heads: &[NamedHead]) -> Table {
    let columns = [
        ("order", "order of layers"),
        ("pattern", "pattern"),
        ("heads", "heads of all trainings"),
        ("named", "heads with the pattern"),
        ("trainings", "trainings with such a head"),
        ("seeds", "trainings"),
        ("~share", "share of heads, mean over trainings"),
        ("example", "head with the largest value"),
    ];
    let caption = "Heads by pattern";
    let mut table = rows::table("trained_heads_named", caption, &columns);
    for (order, _) in ORDERS {
        let heads: Vec<&NamedHead> = heads.iter().filter(|head| head.order == order).collect();
        let mut seeds: Vec<u64> = heads.iter().map(|head| head.seed).collect();
        seeds.dedup();
        for (which, pattern) in Pattern::ALL.iter().map(|p| p.name()).chain([NONE]).enumerate() {
            let here: Vec<&NamedHead> = heads.iter().copied().filter(|head| name(&head.excess) == pattern).collect();
            let of_seed = |seed: u64| here.iter().filter(|head| head.seed == seed).count();
            let per_training = (heads.len() / seeds.len().max(1)) as f64;
            let shares: Vec<f64> = seeds.iter().map(|&seed| of_seed(seed) as f64 / per_training).collect();
            let best = here.iter().max_by(|a, b| a.excess[which.min(3)].value.total_cmp(&b.excess[which.min(3)].value));
            let example = best.filter(|_| pattern != NONE).map(|h| format!("seed {}, block {}, head {}", h.seed, h.layer, h.head));
            let trainings = seeds.iter().filter(|&&seed| of_seed(seed) > 0).count();
            let row = Row::default().of(order).of(pattern).of(heads.len()).of(here.len()).of(trainings).of(seeds.len());
            row.share(&shares).of(example).put(&mut table);
        }
    }
    table
}

fn head_patterns(heads: &[NamedHead], runs: &[NamedRun]) -> Table {
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
    let caption = "Every head: excess of each pattern over even weights, means over held-out windows";
    let mut table = rows::table("trained_heads_patterns", caption, &columns);
    let steps = runs.iter().flat_map(|run| run.run.patterns.iter().map(|p| p.step));
    for (head, step) in heads.iter().zip(steps) {
        let place = [head.seed as usize, head.layer, head.head];
        let row = Row::default().of(head.order.as_str()).all(place).of(name(&head.excess)).of(step);
        head.excess.iter().fold(row, |row, e| row.estimate(*e)).put(&mut table);
    }
    table
}

fn likeness(runs: &[NamedRun]) -> Table {
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
        let runs: Vec<&NamedRun> = runs.iter().filter(|run| run.order == order).collect();
        let Some(first) = runs.first() else { continue };
        for (at, moment) in first.run.run.moments.iter().enumerate() {
            for (block, _) in moment.inside.layers.iter().enumerate() {
                let of = |f: &dyn Fn(&crate::trainings::ablate_scale::Moment) -> f64| -> Vec<f64> {
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

fn map_table(runs: &[NamedRun]) -> Table {
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
    use crate::trainings::CurvePoint;
    use crate::trainings::ablate_scale::Moment;
    use crate::trainings::attention_stats::{AttentionStats, HeadView, LayerView};
    use regard_nn::attention::ScaleKind;

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
            Moment { step, inside: AttentionStats { loss: 16.0 * x, heads: vec![head], layers: vec![layer] } }
        };
        let curve = vec![CurvePoint { step: 1, loss: 17.0 }, CurvePoint { step: 8, loss: 18.0 }];
        AblateRun { head_dim: 64, scale, curve, validation: 19.0, moments: vec![moment(0, 1.0), moment(8, 100.0)] }
    }

    fn head(excess: [f64; 4], standard_error: f64) -> HeadPatterns {
        HeadPatterns { layer: 1, head: 2, step: 1, excess, standard_error: [standard_error; 4] }
    }

    #[test]
    fn a_head_has_its_largest_weight_pattern_and_a_uniform_head_has_none() {
        let of = |values: [f64; 4], half: f64| name(&values.map(|x| Estimate::around(x, half)));
        assert_eq!(of([0.4, 0.2, 0.1, 0.0], 0.02), "diagonal");
        assert_eq!(of([0.0, 0.2, 0.1, 0.3], 0.02), "block");
        assert_eq!(of([0.12, 0.0, 0.0, 0.0], 0.04), NONE, "the lower end is below the edge");
        assert_eq!(of([0.15, 0.0, 0.6, 0.0], 0.02), "diagonal", "a share of rows does not compete with weights");
        assert_eq!(of([0.05, 0.0, 0.6, 0.0], 0.02), "horizontal");
        assert_eq!(of([0.0, 0.0, 1.0, 0.0], 0.0), NONE, "even weights score 1: no pattern");
    }

    #[test]
    fn stored_names_are_those_of_the_stored_scores_and_intervals_are_over_trainings() {
        let read = |name: &str, bytes: &[u8]| Table::from_csv(name, bytes).unwrap();
        let patterns = read("trained_heads_patterns", include_bytes!("stored/trained_heads_patterns.csv"));
        let stored = read("trained_heads_named", include_bytes!("stored/trained_heads_named.csv"));
        let heads: Vec<NamedHead> = patterns
            .rows
            .iter()
            .map(|row| NamedHead {
                order: patterns.text(row, "order").to_owned(),
                seed: patterns.number(row, "seed") as u64,
                layer: patterns.number(row, "block") as usize,
                head: patterns.number(row, "head") as usize,
                excess: ["diagonal", "vertical", "horizontal", "block_weight"].map(|c| crate::rows::estimate(&patterns, row, c)),
            })
            .collect();
        for (head, row) in heads.iter().zip(&patterns.rows) {
            assert_eq!(name(&head.excess), patterns.text(row, "pattern"), "seed {} {}.{}", head.seed, head.layer, head.head);
        }
        let mut again = named(&heads);
        again.origin.clone_from(&stored.origin);
        assert_eq!(String::from_utf8(again.to_csv()).unwrap(), String::from_utf8(stored.to_csv()).unwrap());
        // Half of the heads in each of five trainings: no scatter, no interval.
        let of = |pattern: &str| {
            let here = |row: &&Vec<Value>| stored.text(row, "order") == "post-norm" && stored.text(row, "pattern") == pattern;
            stored.rows.iter().find(here).unwrap()
        };
        let row = of("diagonal");
        assert_eq!(crate::rows::estimate(&stored, row, "share"), Estimate::exact(0.5));
        // Every post-norm head that was called horizontal has even weights.
        assert_eq!(stored.number(of("horizontal"), "named"), 0.0);
    }

    #[test]
    fn every_number_of_a_head_stands_in_its_column() {
        let map = HeadMap { layer: 0, head: 3, rows: 2, cols: 2, weights: vec![1.0, 0.0, 0.25, 0.75] };
        let run = Run { run: run(ScaleKind::InvSqrtDim), patterns: vec![head([0.4, 0.2, 0.1, 0.05], 0.01)], maps: vec![map] };
        let runs = [NamedRun { order: "pre-norm", seed: 7, run }];
        let heads = named_heads(&runs);
        let table = head_patterns(&heads, &runs);
        let got = ["seed", "block", "head", "step", "diagonal", "vertical", "horizontal", "block_weight"]
            .map(|c| table.number(&table.rows[0], c));
        assert_eq!(got, [7.0, 1.0, 2.0, 1.0, 0.4, 0.2, 0.1, 0.05]);
        let table = likeness(&runs);
        let got = ["step", "block", "loss", "centred_cosine", "jensen_shannon"].map(|c| table.number(&table.rows[1], c));
        assert_eq!(got, [8.0, 0.0, 1600.0, 1100.0, 1200.0]);
        let table = map_table(&runs);
        let got = ["block", "head", "query", "key", "weight"].map(|c| table.number(&table.rows[1], c));
        assert_eq!((got, table.rows.len()), ([0.0, 3.0, 1.0, 0.0, 0.25], 3), "the hidden key is left out");
        let table = named(&heads);
        assert_eq!((table.number(&table.rows[0], "named"), table.text(&table.rows[0], "example")), (1.0, "seed 7, block 1, head 2"));
    }
}
