//! What a head does, in numbers with their baselines: with `a[i, j]` its weights and rows `i >= 1` that are no tokens of the tokenizer's
//! own (`[SEP]`, ...),
//!
//! ```text
//! previous     mean a[i, i-1]                     own          mean a[i, i]
//! first        mean a[i, 0]                       column       the largest mean column, and which
//! local        mass within 3 of the query         broad        entropy / ln(visible keys)
//! duplicate    rows with an earlier p, t_p = t_i: sum of a[i, p] over such p
//! induction    rows with an earlier p < i - 1, t_p = t_i, t_(p+1) another token: sum of a[i, p+1] over such p       (on text)
//! repeated     BOS and 50 random tokens twice: mean over the second half of a[i, i-49]
//! delimiter    mass on punctuation, less its share of the visible keys
//! positional   1 - mean total variation between the same rows on two texts, first column left out and the rest divided by what remains
//! writes       sum over keys of a[i, j] |v_j W_O|, as a share of the layer's heads
//! ```
//!
//! The baseline of a score is the same pairs under uniform weights over visible keys; lift is `(score - base) / (1 - base)`. A label needs
//! the lower end of its 95 % interval over texts above 0.4; several labels, or none ("mixed"), are possible. Runs of equal tokens do not
//! count as induction: what follows an earlier copy must be another token, else every head that looks nearby would have it. `positional`
//! and `broad` have no baseline: a head that looks at everything alike is positional too.

use crate::edits::{Edits, Sources};
use crate::error::{Error, Result};
use crate::model::{Input, Model};
use crate::paired_test::interval;
use crate::run::Run;
use ndarray::{Array2, ArrayView2, Axis, Slice};
use regard_nn::random::Draws;
use serde::Serialize;

/// Half width of `local`.
const NEAR: usize = 3;
/// A label's lower bound.
const CLEAR: f64 = 0.4;
/// Tokens of a random half, and draws of them.
const HALF: usize = 50;
const DRAWS: usize = 16;

/// The scores of one head on one text; NaN where the text has no such rows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Scores {
    values: [f64; COUNT],
    bases: [f64; COUNT],
}

const COUNT: usize = 8;
/// The scores that have a baseline, in order.
pub const NAMES: [&str; COUNT] = ["previous", "own", "first", "local", "duplicate", "induction", "repeated", "delimiter"];
const REPEATED: usize = 6;

/// One head over several texts.
#[derive(Debug, Clone, Serialize)]
pub struct HeadScores {
    /// Which layer.
    pub layer: usize,
    /// Which head.
    pub head: usize,
    /// Mean scores, in the order of [`NAMES`].
    pub scores: [f64; COUNT],
    /// Their baselines.
    pub baselines: [f64; COUNT],
    /// Lower and upper end of the 95 % interval of lift over texts.
    pub lift: [(f64, f64); COUNT],
    /// Entropy as a share of what is possible.
    pub broad: f64,
    /// The largest mean column: a sink need not be the first token.
    pub column: f64,
    /// How much its rows are the same on unrelated texts; NaN where there are not two texts to compare.
    pub positional: f64,
    /// Its share of what the layer's heads write, by the lengths of `v_j W_O`.
    pub writes: f64,
    /// What it is called.
    pub labels: Vec<&'static str>,
}

/// Properties of tokens besides their ids.
struct Marks {
    /// Punctuation.
    delimiters: Vec<bool>,
    /// Those that the tokenizer puts around texts.
    special: Vec<bool>,
}

/// Scores of a head's weights on tokens.
fn of_weights(weights: ArrayView2<'_, f32>, ids: &[u32], marks: &Marks, visible: impl Fn(usize) -> std::ops::Range<usize>) -> Scores {
    let mut sums = [[0.0; 2]; COUNT];
    let mut counts = [0usize; COUNT];
    for i in (1..ids.len()).filter(|i| !marks.special[*i]) {
        let keys = visible(i);
        let each = 1.0 / keys.len().max(1) as f64;
        let mut add = |score: usize, pairs: &mut dyn Iterator<Item = usize>| {
            let (mut mass, mut base, mut any) = (0.0, 0.0, false);
            for key in pairs {
                (mass, base, any) = (mass + f64::from(weights[[i, key]]), base + if keys.contains(&key) { each } else { 0.0 }, true);
            }
            if any {
                sums[score][0] += mass;
                sums[score][1] += base;
                counts[score] += 1;
            }
        };
        add(0, &mut [i - 1].into_iter());
        add(1, &mut [i].into_iter());
        add(2, &mut [0].into_iter());
        add(3, &mut (i.saturating_sub(NEAR)..(i + NEAR + 1).min(ids.len())).filter(|j| keys.contains(j)));
        add(4, &mut (0..i).filter(|p| ids[*p] == ids[i]));
        add(5, &mut (0..i.saturating_sub(1)).filter(|p| ids[*p] == ids[i] && ids[p + 1] != ids[i]).map(|p| p + 1));
        add(7, &mut keys.clone().filter(|j| marks.delimiters[*j]));
    }
    let mut scores = Scores { values: [f64::NAN; COUNT], bases: [f64::NAN; COUNT] };
    for score in 0..COUNT {
        if counts[score] > 0 {
            scores.values[score] = sums[score][0] / counts[score] as f64;
            scores.bases[score] = sums[score][1] / counts[score] as f64;
        }
    }
    scores
}

/// Less of a row than this, after its first key, is no pattern.
const REST: f64 = 0.01;

/// How much the same rows have in common on two texts, without their first keys: 1 where they are equal, 0 where they share nothing.
fn in_common(a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>) -> f64 {
    let rest = |row: ndarray::ArrayView1<'_, f32>| 1.0 - f64::from(row[0]);
    mean(a.outer_iter().zip(b.outer_iter()).skip(2).map(|(a, b)| {
        let (whole_a, whole_b) = (rest(a), rest(b));
        if whole_a < REST || whole_b < REST {
            return f64::NAN;
        }
        let shared = a.iter().zip(b).skip(1).map(|(a, b)| (f64::from(*a) / whole_a).min(f64::from(*b) / whole_b));
        shared.sum()
    }))
}

/// The first `n` rows of the first `n` keys.
fn corner(weights: &Array2<f32>, n: usize) -> ArrayView2<'_, f32> {
    weights.slice_axis(Axis(0), Slice::from(..n)).slice_axis_move(Axis(1), Slice::from(..n))
}

fn visible(model: &Model, len: usize) -> impl Fn(usize) -> std::ops::Range<usize> {
    let causal = model.is_causal();
    move |i| if causal { 0..i + 1 } else { 0..len }
}

/// Mean of what is there.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.filter(|x| !x.is_nan()).fold((0.0, 0usize), |(sum, count), x| (sum + x, count + 1));
    if count == 0 { f64::NAN } else { sum / count as f64 }
}

impl Run {
    /// How much each head of a layer writes: sums over rows and keys of `a[i, j] |v_j W_O|`, as shares.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn writes(&self, layer: usize) -> Result<Vec<f64>> {
        let (model, shape) = (self.model(), self.model().shape());
        let output = model.layer(layer).ok_or(Error::Outside { what: "layer", number: layer, count: shape.layers })?.output();
        let weights = model.weights()?;
        let (dim, v) = (model.head_dim(), self.v(layer)?);
        let mut amounts = Vec::with_capacity(shape.heads);
        for head in 0..shape.heads {
            let values = v.index_axis(ndarray::Axis(0), head / (shape.heads / shape.kv_heads));
            let mut lengths = Vec::with_capacity(self.len());
            for row in values.outer_iter() {
                let mut alone = vec![0f32; output.inputs()];
                alone[head * dim..(head + 1) * dim].iter_mut().zip(row).for_each(|(to, v)| *to = *v);
                let mut written = vec![0f32; model.width()];
                output.matrix(&weights).row_product(&alone, &mut written, regard_nn::linear::Write::Replace);
                lengths.push(written.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt());
            }
            let columns = self.weights(layer, head)?.sum_axis(ndarray::Axis(0));
            amounts.push(columns.iter().zip(&lengths).map(|(a, length)| f64::from(*a) * length).sum::<f64>());
        }
        let total: f64 = amounts.iter().sum();
        Ok(amounts.into_iter().map(|amount| if total > 0.0 { amount / total } else { 0.0 }).collect())
    }
}

impl Model {
    /// Tokens that are no letters, digits or spaces.
    fn delimiters(&self, ids: &[u32]) -> Vec<bool> {
        let plain = |piece: &str| piece.trim().is_empty() || piece.chars().any(char::is_alphanumeric);
        ids.iter().map(|id| self.tokenizer().is_ok_and(|tokenizer| !plain(&tokenizer.piece(*id)))).collect()
    }

    /// What tokens are: the tokenizer's own are those that an empty text has.
    fn marks(&self, ids: &[u32]) -> Marks {
        let own = self.tokenizer().and_then(|tokenizer| tokenizer.encode("")).unwrap_or_default();
        Marks { delimiters: self.delimiters(ids), special: ids.iter().map(|id| own.iter().any(|token| token.id == *id)).collect() }
    }

    /// BOS and random tokens, twice.
    fn repeated(&self, draw: usize) -> Vec<u32> {
        let mut draws = Draws::at(0x1DC7, &[draw as u64]);
        let special = |id: u32| self.tokenizer().is_ok_and(|t| t.eos_ids().contains(&id) || t.bos() == Some(id));
        let half: Vec<u32> = std::iter::repeat_with(|| draws.below(self.vocab()) as u32).filter(|id| !special(*id)).take(HALF).collect();
        let bos = self.tokenizer().ok().and_then(|tokenizer| tokenizer.bos()).filter(|bos| (*bos as usize) < self.vocab());
        bos.into_iter().chain(half.iter().copied()).chain(half.iter().copied()).collect()
    }

    /// Scores of every head on texts and on repeated random tokens; `watch` gets the number of finished runs and their total, and may
    /// stop it by returning false.
    ///
    /// # Errors
    /// As [`Model::run`], and when there are no texts.
    pub fn classify(&self, texts: &[Vec<u32>], mut watch: impl FnMut(usize, usize) -> bool) -> Result<Vec<HeadScores>> {
        if texts.is_empty() {
            return Err(Error::Tokens { reason: "there are no texts to look at".to_owned() });
        }
        let shape = self.shape();
        let heads = shape.layers * shape.heads;
        let (none, sources) = (Edits::default(), Sources::default());
        let total = texts.len() + DRAWS;
        let mut all: Vec<Vec<Scores>> = vec![Vec::new(); heads];
        let (mut broad, mut column, mut writes) = (vec![Vec::new(); heads], vec![Vec::new(); heads], vec![Vec::new(); heads]);
        let mut before: Vec<Option<Array2<f32>>> = vec![None; heads];
        let mut positional = vec![Vec::new(); heads];
        for (done, ids) in texts.iter().enumerate() {
            let run = self.run(ids, &none, &sources)?;
            let marks = self.marks(ids);
            for layer in 0..shape.layers {
                let shares = run.writes(layer)?;
                for (head, share) in shares.into_iter().enumerate() {
                    let weights = run.weights(layer, head)?;
                    let at = layer * shape.heads + head;
                    all[at].push(of_weights(weights.view(), ids, &marks, visible(self, ids.len())));
                    let seen = visible(self, ids.len());
                    let spread = |(i, row): (usize, ndarray::ArrayView1<'_, f32>)| {
                        let entropy: f64 = row.iter().filter(|w| **w > 0.0).map(|w| -f64::from(*w) * f64::from(*w).ln()).sum();
                        entropy / (seen(i).len() as f64).ln().max(f64::MIN_POSITIVE)
                    };
                    broad[at].push(mean(weights.outer_iter().enumerate().skip(1).map(spread)));
                    let columns = weights.slice_axis(ndarray::Axis(0), ndarray::Slice::from(1..)).mean_axis(ndarray::Axis(0));
                    column[at].push(columns.map_or(f64::NAN, |c| c.iter().copied().fold(0.0, f32::max).into()));
                    writes[at].push(share);
                    if let Some(other) = before[at].replace(weights)
                        && let Some(weights) = &before[at]
                    {
                        // What follows does not enter where tokens see only those before them.
                        let n = other.nrows().min(weights.nrows());
                        if self.is_causal() || other.nrows() == weights.nrows() {
                            positional[at].push(in_common(corner(&other, n), corner(weights, n)));
                        }
                    }
                }
            }
            if !watch(done + 1, total) {
                return Err(Error::Stopped);
            }
        }
        let mut repeated: Vec<Vec<f64>> = vec![Vec::new(); heads];
        let len = self.repeated(0).len();
        for draw in 0..DRAWS {
            let ids = self.repeated(draw);
            let run = self.run(&ids, &none, &sources)?;
            for (at, repeated) in repeated.iter_mut().enumerate() {
                let weights = run.weights(at / shape.heads, at % shape.heads)?;
                repeated.push(mean((len - HALF..len).map(|i| f64::from(weights[[i, i - (HALF - 1)]]))));
            }
            if !watch(texts.len() + draw + 1, total) {
                return Err(Error::Stopped);
            }
        }
        let seen = visible(self, len);
        let base = mean((len - HALF..len).map(|i| 1.0 / seen(i).len() as f64));
        Ok((0..heads)
            .map(|at| {
                let mut scores = HeadScores {
                    layer: at / shape.heads,
                    head: at % shape.heads,
                    scores: [f64::NAN; COUNT],
                    baselines: [f64::NAN; COUNT],
                    lift: [(f64::NAN, f64::NAN); COUNT],
                    broad: mean(broad[at].iter().copied()),
                    column: mean(column[at].iter().copied()),
                    positional: mean(positional[at].iter().copied()),
                    writes: mean(writes[at].iter().copied()),
                    labels: Vec::new(),
                };
                for score in 0..COUNT {
                    let pairs: Vec<(f64, f64)> = if score == REPEATED {
                        repeated[at].iter().map(|x| (*x, base)).collect()
                    } else {
                        all[at].iter().map(|s| (s.values[score], s.bases[score])).filter(|(value, _)| !value.is_nan()).collect()
                    };
                    let lifts: Vec<f64> = pairs.iter().map(|(value, base)| (value - base) / (1.0 - base)).collect();
                    scores.scores[score] = mean(pairs.iter().map(|(value, _)| *value));
                    scores.baselines[score] = mean(pairs.iter().map(|(_, base)| *base));
                    scores.lift[score] = interval(&lifts, at as u64);
                }
                let clear = (0..COUNT).filter(|score| scores.lift[*score].0 > CLEAR);
                scores.labels = clear.map(|score| if score == REPEATED { "induction" } else { NAMES[score] }).collect();
                scores.labels.dedup();
                scores
            })
            .collect())
    }

    /// Ids of texts, each cut to `tokens`, and to the model's context: beyond it heads are not what they were trained to be.
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn cut_texts(&self, texts: &[&str], tokens: usize) -> Result<Vec<Vec<u32>>> {
        let cut = |text: &&str| {
            let mut ids = self.ids(Input::Text(text))?;
            ids.truncate(tokens.min(self.context()));
            Ok(ids)
        };
        texts.iter().map(cut).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causal(i: usize) -> std::ops::Range<usize> {
        0..i + 1
    }

    fn pattern(ids: &[u32], key: impl Fn(usize) -> usize) -> Scores {
        let n = ids.len();
        let weights = Array2::from_shape_fn((n, n), |(i, j)| f32::from(j == key(i)));
        of_weights(weights.view(), ids, &Marks { delimiters: vec![false; n], special: vec![false; n] }, causal)
    }

    #[test]
    fn tokens_of_the_tokenizers_own_do_not_ask() {
        let ids: Vec<u32> = (0..10).collect();
        let weights = Array2::from_shape_fn((10, 10), |(i, j)| f32::from(j == if i == 9 { 0 } else { i.saturating_sub(1) }));
        let of =
            |special: Vec<bool>| of_weights(weights.view(), &ids, &Marks { delimiters: vec![false; 10], special }, |_| 0..10).values[0];
        assert_eq!(of((0..10).map(|i| i == 0 || i == 9).collect()), 1.0);
        assert!(of(vec![false; 10]) < 1.0, "the last row looks elsewhere");
    }

    #[test]
    fn heads_with_known_weights_have_known_scores() {
        let ids: Vec<u32> = (0..20).chain(0..20).collect();
        let previous = pattern(&ids, |i| i.saturating_sub(1));
        assert_eq!((previous.values[0], previous.values[1]), (1.0, 0.0));
        // Uniform: (i + 1)^-1 each.
        assert!((previous.bases[0] - (1..40).map(|i| 1.0 / f64::from(i + 1)).sum::<f64>() / 39.0).abs() < 1e-12);
        // The second half looks at what came after the same token before.
        let induction = pattern(&ids, |i| if i >= 20 { i - 19 } else { 0 });
        assert_eq!((induction.values[5], induction.values[4]), (1.0, 0.0));
        let duplicate = pattern(&ids, |i| i.saturating_sub(20));
        assert_eq!((duplicate.values[4], duplicate.values[5]), (1.0, 0.0));
    }

    #[test]
    fn rows_have_in_common_what_they_share_behind_the_first_key() {
        let previous = Array2::from_shape_fn((20, 20), |(i, j)| f32::from(j + 1 == i || i + j == 0));
        assert_eq!(in_common(previous.view(), previous.view()), 1.0);
        // Half of the weight on the first key is left out, in one and not in the other.
        let half = previous.mapv(|x| 0.5 * x) + Array2::from_shape_fn((20, 20), |(_, j)| if j == 0 { 0.5 } else { 0.0 });
        assert!((in_common(previous.view(), half.view()) - 1.0).abs() < 1e-7);
        let own = Array2::from_shape_fn((20, 20), |(i, j)| f32::from(j == i));
        assert_eq!(in_common(previous.view(), own.view()), 0.0);
        let sink = Array2::from_shape_fn((20, 20), |(_, j)| f32::from(j == 0));
        assert!(in_common(sink.view(), sink.view()).is_nan(), "nothing is left to compare");
    }

    #[test]
    fn runs_of_equal_tokens_are_no_induction() {
        // Whatever a head looks at: after an earlier copy comes the same token again, so there is nothing to copy.
        for back in 0..3 {
            assert!(pattern(&[7; 30], |i| i.saturating_sub(back)).values[5].is_nan(), "{back} back");
        }
        let pairs: Vec<u32> = (0..30).map(|i| i / 2).collect();
        assert!(pattern(&pairs, |i| i).values[5].is_nan(), "no rows count: equal neighbours are left out");
        // Runs that come twice: the last of a run follows the last of the first run, not its inside.
        let runs: Vec<u32> = (0..2).flat_map(|_| [1, 1, 1, 2, 2, 2]).collect();
        assert_eq!(pattern(&runs, |i| i.saturating_sub(1)).values[5], 0.0);
        assert_eq!(pattern(&runs, |i| if i >= 6 { if i < 9 { 3 } else { 6 } } else { 0 }).values[5], 1.0);
    }
}
