//! Masks as patterns: their maps, their cost, and rows without visible keys.

use super::Patterns;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin};
use crate::options::{check_list, sizes};
use crate::rows::{self, Row};
use crate::statistics::cell::Numbers;
use crate::statistics::draws::{Draw, Purpose};
use crate::statistics::estimate::{Estimate, t_quantile};
use clap::Args;
use ndarray::{Array3, Array4};
use rayon::prelude::*;
use regard::{Attention, HeadPosition, Mask, MaskRule, Stage, StatsOptions};
use regard_plot::Table;
use serde::Serialize;
use std::time::Instant;

/// Masks as patterns: pictures, cost, statistics, and rows that see nothing
///
/// Full, causal, local, reverse, strictly future, dilated, block-sparse, sinks + window. Writes attention_patterns.csv, the weights,
/// rows without any visible key, and patterns_time.csv and patterns_exponents.csv, which differ from run to run.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab patterns --seq 48 --window 5 --dilation 3 --timed-seq 1024,4096,16384")]
pub struct PatternsConfig {
    /// Tokens of the pictures, up to 256
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub seq: usize,
    /// Reach of the local patterns to each side
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub window: usize,
    /// Step of the dilated pattern
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub dilation: usize,
    /// Side of a block of the block-sparse pattern
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub block: usize,
    /// Keys that every query sees in "sinks + window"
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub sinks: usize,
    /// Head dimension
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub d_k: usize,
    /// Draws that the statistics are means over; the first is the one in the pictures
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Numbers of tokens that are timed
    #[arg(long, value_parser = sizes, default_value = "512,1024,2048,4096,8192", value_name = "LIST")]
    pub timed_seq: ::std::vec::Vec<usize>,
    /// Leave the time measurement out
    #[arg(long)]
    pub no_timing: bool,
}

impl Default for PatternsConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Every `step`-th key; the window around it is another mask.
struct Dilated {
    step: usize,
}

impl MaskRule for Dilated {
    fn visible(&self, place: &HeadPosition, query: usize, key: usize) -> bool {
        (place.position(query) - key as i64).unsigned_abs().is_multiple_of(self.step as u64)
    }
}

/// The names, in the order of the tables.
pub const PATTERNS: [&str; 8] = ["full", "causal", "local", "reverse", "strictly future", "dilated", "block-sparse", "sinks + window"];

/// The longest sequence that is timed; nothing in a pattern needs to reach farther.
const MAX_TIMED_SEQ: usize = 65_536;

const HERE: HeadPosition = HeadPosition { batch: 0, head: 0, q_offset: 0 };

impl PatternsConfig {
    fn check(&self) -> Result<()> {
        require((2..=256).contains(&self.seq), "seq", self.seq, "from 2 to 256 tokens")?;
        for (name, value, least) in
            [("window", self.window, 0), ("dilation", self.dilation, 1), ("block", self.block, 1), ("sinks", self.sinks, 0)]
        {
            require((least..=MAX_TIMED_SEQ).contains(&value), name, value, if least == 0 { "from 0 to 65536" } else { "from 1 to 65536" })?;
        }
        crate::options::check_d_k(&[self.d_k])?;
        crate::options::check_seeds(self.seeds, 1)?;
        check_list("timed_seq", &self.timed_seq, "1024,4096")?;
        self.timed_seq.iter().try_for_each(|&n| require((2..=MAX_TIMED_SEQ).contains(&n), "timed_seq", n, "from 2 to 65536 tokens"))
    }

    /// The block-sparse table: blocks on the diagonal, and the first block of keys for all.
    fn block_table(&self, seq: usize) -> Array3<bool> {
        let blocks = seq.div_ceil(self.block);
        Array3::from_shape_fn((1, blocks, blocks), |(_, q, k)| q == k || k == 0)
    }

    fn mask<'m>(&self, pattern: &str, blocks: &'m Array3<bool>, dilated: &'m Dilated) -> Mask<'m> {
        let near = Mask::window(Some(self.window), Some(self.window));
        match pattern {
            "causal" => Mask::causal(),
            "local" => near,
            "reverse" => Mask::reverse(),
            "strictly future" => Mask::strictly_future(),
            "dilated" => {
                let reach = Some(self.window * self.dilation);
                Mask::window(reach, reach) & Mask::custom(dilated)
            }
            "block-sparse" => Mask::blocks(blocks.view(), self.block, self.block),
            "sinks + window" => Mask::causal() & (Mask::first_keys(self.sinks) | Mask::window(Some(self.window), Some(0))),
            _ => Mask::everything(),
        }
    }

    /// q, k, v of a draw, each `[1, 1, seq, d_k]`.
    fn draw(&self, seq: usize, index: usize) -> [Array4<f64>; 3] {
        let mut numbers = Draw::new(self.seed, Purpose::Patterns, [seq, self.d_k], index as u64);
        [(); 3].map(|()| {
            let mut x = Array4::zeros((1, 1, seq, self.d_k));
            numbers.normal(x.as_slice_mut().expect("a new array is contiguous"));
            x
        })
    }

    /// `attention_patterns` (cost and statistics), `attention_patterns_maps` (the weights), `attention_empty_rows`, and
    /// `patterns_time` unless the timing is left out: the one table that differs from run to run.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let origin = origin::<Patterns>(self, self.seed, Numbers::Regard.describe())?;
        let (mut statistics, mut maps) = self.statistics(progress)?;
        let mut empty = self.empty_rows()?;
        (statistics.origin, maps.origin, empty.origin) = (origin.clone(), origin.clone(), origin.clone());
        let mut tables = vec![statistics, maps, empty];
        if !self.no_timing {
            let times = self.times(progress)?;
            let exponents = exponents(&times);
            for mut table in [times, exponents] {
                table.origin.clone_from(&origin);
                let words = format!("{ROUNDS} rounds on {} threads; differs from run to run", rayon::current_num_threads());
                table.origin.push(("timing".to_owned(), words));
                tables.push(table);
            }
        }
        Ok(tables)
    }

    fn statistics(&self, progress: &dyn Progress) -> Result<(Table, Table)> {
        let caption = format!("Eight patterns: {} tokens, d_k = {}, means over {} draws", self.seq, self.d_k, self.seeds);
        let columns = [
            ("pattern", "pattern"),
            ("pairs", "pairs of query and key"),
            ("share", "share of all pairs"),
            ("empty_rows", "rows that see nothing"),
            ("~entropy", "mean entropy (nats)"),
            ("~max_weight", "mean largest weight"),
            ("~diagonal_mass", "weight on itself"),
            ("~local_mass", "weight within 3 tokens"),
            ("~mean_distance", "mean distance (tokens)"),
        ];
        let mut statistics = rows::table("attention_patterns", &caption, &columns);
        let columns = [("pattern", "pattern"), ("query", "query"), ("key", "key"), ("visible", "visible"), ("weight", "weight")];
        let mut maps = Table::new("attention_patterns_maps", "The weights of each pattern", &columns);
        let [q, k, _] = self.draw(self.seq, 0);
        let (blocks, dilated) = (self.block_table(self.seq), Dilated { step: self.dilation });
        for pattern in PATTERNS {
            let mask = self.mask(pattern, &blocks, &dilated);
            let draws = (0..self.seeds).into_par_iter().map(|index| self.means(&mask, index)).collect::<Result<Vec<_>>>()?;
            let pairs = visible_pairs(&mask, self.seq);
            let row = Row::default().of(pattern).of(pairs).of(pairs as f64 / (self.seq * self.seq) as f64).of(draws[0].0);
            let of = |which: usize| Estimate::of_mean(&draws.iter().map(|(_, means)| means[which]).collect::<Vec<_>>());
            (0..5).fold(row, |row, which| row.estimate(of(which))).put(&mut statistics);
            for ((_, _, query, key), &weight) in Attention::new().mask(mask.clone()).weights(&q, &k)?.indexed_iter() {
                maps.push(vec![pattern.into(), query.into(), key.into(), mask.visible(&HERE, query, key).into(), weight.into()]);
            }
            progress.advance(1);
        }
        Ok((statistics, maps))
    }

    /// Of one draw: rows that see nothing; entropy, largest weight, weight on itself and nearby, distance, means over the rows.
    fn means(&self, mask: &Mask<'_>, index: usize) -> Result<(usize, [f64; 5])> {
        let [q, k, v] = self.draw(self.seq, index);
        let (_, rows) = Attention::new().threads(1).mask(mask.clone()).forward_with_stats(&q, &k, &v, StatsOptions::default())?;
        let heads = rows.heads();
        let means = [&heads.entropy, &heads.max_weight, &heads.diagonal_mass, &heads.local_mass, &heads.mean_distance];
        Ok((rows.argmax.iter().filter(|&&key| key < 0).count(), means.map(|x| x[[0, 0]])))
    }

    /// What a textbook softmax makes of a row without any visible key, and what Regard does.
    fn empty_rows(&self) -> Result<Table> {
        let seq = self.seq.min(8);
        let columns = [
            ("query", "query"),
            ("visible_keys", "visible keys"),
            ("textbook_sum", "sum of the weights, textbook softmax"),
            ("regard_sum", "sum of the weights, Regard"),
            ("regard_out", "norm of the output, Regard"),
            ("lse", "log-sum-exp, Regard"),
            ("hidden_nan_ignored", "output unchanged when hidden keys are NaN"),
        ];
        let caption = "A strictly-future mask leaves the last query nothing: exp(-inf - -inf) is NaN, and zero here";
        let mut table = Table::new("attention_empty_rows", caption, &columns);
        let [q, k, v] = self.draw(seq, 0);
        let attention = Attention::new().strictly_future();
        let (result, weights) = (attention.forward(&q, &k, &v)?, attention.weights(&q, &k)?);
        let scores = attention.scores(&q, &k, Stage::Masked)?;
        // Key 0 is hidden from every query.
        let (mut broken_k, mut broken_v) = (k.clone(), v.clone());
        broken_k.row_mut_of(0).fill(f64::NAN);
        broken_v.row_mut_of(0).fill(f64::NAN);
        let broken = attention.forward(&q, &broken_k, &broken_v)?;
        for query in 0..seq {
            let line = |x: &Array4<f64>| -> Vec<f64> { (0..x.dim().3).map(|d| x[[0, 0, query, d]]).collect() };
            let (out, broken) = (line(&result.out), line(&broken.out));
            table.push(vec![
                query.into(),
                (seq - 1 - query).into(),
                textbook_softmax(&line(&scores)).iter().sum::<f64>().into(),
                line(&weights).iter().sum::<f64>().into(),
                out.iter().map(|x| x * x).sum::<f64>().sqrt().into(),
                result.lse[[0, 0, query]].into(),
                (out == broken).into(),
            ]);
        }
        Ok(table)
    }

    /// The pairs that a timed pattern lets through: by formula, since counting them would take longer than attending.
    fn pairs(&self, pattern: &str, n: usize) -> usize {
        match pattern {
            "causal" => n * (n + 1) / 2,
            "local" => (0..n).map(|i| self.window.min(i) + self.window.min(n - 1 - i) + 1).sum(),
            "block-sparse" => (0..n)
                .map(|i| {
                    let (own, first) = (i / self.block, self.block.min(n));
                    let size = self.block.min(n - own * self.block);
                    if own == 0 { first } else { first + size }
                })
                .sum(),
            _ => n * n,
        }
    }

    fn times(&self, progress: &dyn Progress) -> Result<Table> {
        let caption = format!("Time by length, one head, d_k = {}, float32: medians and range of {ROUNDS} rounds", self.d_k);
        let columns = [
            ("pattern", "pattern"),
            ("seq", "tokens"),
            ("pairs", "pairs of query and key"),
            ("share", "share of all pairs"),
            ("~milliseconds", "time (ms)"),
            ("~of_full", "time as a share of full attention, in the same round"),
        ];
        let mut table = rows::table("patterns_time", &caption, &columns);
        for &seq in &self.timed_seq {
            let [q, k, v] = self.draw(seq, 0).map(|x| x.mapv(|x| x as f32));
            let (blocks, dilated) = (self.block_table(seq), Dilated { step: self.dilation });
            // Round by round, so that whatever else the machine does meets all patterns.
            let mut times = vec![Vec::new(); TIMED.len()];
            for _ in 0..ROUNDS {
                for (pattern, times) in TIMED.into_iter().zip(&mut times) {
                    let attention = Attention::new().mask(self.mask(pattern, &blocks, &dilated));
                    let start = Instant::now();
                    std::hint::black_box(attention.forward(&q, &k, &v)?);
                    times.push(1e3 * start.elapsed().as_secs_f64());
                }
            }
            for (place, pattern) in TIMED.into_iter().enumerate() {
                let pairs = self.pairs(pattern, seq);
                let share = pairs as f64 / (seq as f64 * seq as f64);
                let of_full = times[place].iter().zip(&times[0]).map(|(time, full)| time / full).collect();
                let row = Row::default().of(pattern).of(seq).of(pairs).of(share);
                row.estimate(median(times[place].clone())).estimate(median(of_full)).put(&mut table);
                progress.advance(1);
            }
        }
        Ok(table)
    }
}

/// Rounds of the time measurement: that all seven lie on one side of the median has a probability of 2 / 2^7, so their range holds it
/// with 98 %.
const ROUNDS: usize = 7;

/// The median of the rounds, and their range.
fn median(mut rounds: Vec<f64>) -> Estimate {
    rounds.sort_by(f64::total_cmp);
    Estimate { value: rounds[rounds.len() / 2], low: rounds[0], high: rounds[rounds.len() - 1] }
}

/// The patterns that are timed.
pub(super) const TIMED: [&str; 4] = ["full", "causal", "local", "block-sparse"];

/// How pairs and times grow with the length: slopes of straight lines on logarithmic axes.
fn exponents(times: &Table) -> Table {
    let columns = [
        ("pattern", "pattern"),
        ("lengths", "lengths"),
        ("~pairs_exponent", "exponent of the pairs"),
        ("~time_exponent", "exponent of the time"),
    ];
    let caption = "Work and time: fitted exponents of the length n";
    let mut table = rows::table("patterns_exponents", caption, &columns);
    for pattern in TIMED {
        let points = |column: &str| -> Vec<(f64, f64)> {
            times.rows_where("pattern", pattern).map(|row| (times.number(row, "seq").ln(), times.number(row, column).ln())).collect()
        };
        let (pairs, time) = (slope(&points("pairs")), slope(&points("milliseconds")));
        Row::default().of(pattern).of(points("pairs").len()).estimate(pairs).estimate(time).put(&mut table);
    }
    table
}

/// The slope of a straight line, by least squares.
fn slope(points: &[(f64, f64)]) -> Estimate {
    let n = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let slope = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread;
    let rest: f64 = points.iter().map(|p| (p.1 - y - slope * (p.0 - x)).powi(2)).sum();
    let degrees = points.len().saturating_sub(2);
    Estimate::around(slope, t_quantile(degrees) * (rest / degrees as f64 / spread).sqrt())
}

/// The key or value of one token.
trait RowMut {
    fn row_mut_of(&mut self, token: usize) -> ndarray::ArrayViewMut1<'_, f64>;
}

impl RowMut for Array4<f64> {
    fn row_mut_of(&mut self, token: usize) -> ndarray::ArrayViewMut1<'_, f64> {
        use ndarray::Axis;
        self.index_axis_mut(Axis(0), 0).index_axis_move(Axis(0), 0).index_axis_move(Axis(0), token)
    }
}

fn visible_pairs(mask: &Mask<'_>, seq: usize) -> usize {
    let row = |query| {
        let range = mask.key_range(&HERE, query..query + 1, 0..seq);
        range.filter(|&key| mask.visible(&HERE, query, key)).count()
    };
    (0..seq).map(row).sum()
}

/// As it is usually written: NaN where every score is minus infinity.
pub(crate) fn textbook_softmax(scores: &[f64]) -> Vec<f64> {
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_by_formula_are_those_that_are_counted() {
        let config = PatternsConfig::default();
        for n in [5, 16, 37, 64] {
            let (blocks, dilated) = (config.block_table(n), Dilated { step: 2 });
            for pattern in TIMED {
                assert_eq!(config.pairs(pattern, n), visible_pairs(&config.mask(pattern, &blocks, &dilated), n), "{pattern}, {n}");
            }
        }
    }

    #[test]
    fn a_slope_is_that_of_the_textbook() {
        // y = 1, 3, 4 at x = 0, 1, 2: slope 1.5, residuals -1/6, 1/3, -1/6, t(1) = 12.706.
        let e = slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 4.0)]);
        assert!((e.value - 1.5).abs() < 1e-12 && (e.high - e.value - 12.706 * (1.0f64 / 6.0 / 2.0).sqrt()).abs() < 1e-9, "{e:?}");
    }
}
