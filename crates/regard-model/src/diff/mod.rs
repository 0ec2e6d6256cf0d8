//! Two models of the same shape, or one with two settings: where they differ first, in which heads, and why.
//!
//! ```text
//! parts     each layer of B reads what the same layer of A reads, so that a part that differs is itself the place
//! heads     total variation of the weights, and the change of what a head is worth, per text, with intervals over texts
//! causes    single changes of A's settings, and of its tensors, that give B's results
//! ```
//!
//! Both models read the tokens of A. Where the tokenizers differ, that is a cause of its own.

mod causes;
mod tensors;

pub use causes::Cause;
pub use tensors::TensorDifference;

use crate::edits::{EditProbe, Edits, Remember, Sources};
use crate::error::{Error, Result};
use crate::gradients::Objective;
use crate::hooks::{Hook, Site};
use crate::model::{Input, Model};
use crate::paired_test::Evidence;
use crate::run::Run;
use ndarray::{Array3, ArrayD, ArrayView2, ArrayViewMutD, Axis};
use regard_nn::layers::positions::Pairs;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Relative differences up to this are rounding: other orders of sums of the same numbers.
const ROUNDING: f64 = 2e-5;
/// The same after a softmax, which makes differences of scores larger.
const SOFTMAX_ROUNDING: f64 = 2e-4;

/// One of two models, with its edits.
#[derive(Debug, Clone, Copy)]
pub struct Side<'s> {
    /// The model.
    pub model: &'s Model,
    /// How it is run.
    pub edits: &'s Edits,
    /// What the edits take from other texts.
    pub sources: &'s Sources,
}

/// A part of the model, in the order of a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct PartDifference {
    /// Which layer; none for the embedding, the last norm and the logits.
    pub layer: Option<usize>,
    /// `embedding`, `q`, `k`, `v`, `pattern`, `z`, `attn_out`, `mlp_out`, `last_norm`, `logits`.
    pub part: &'static str,
    /// The largest difference over the largest number of A, where the layers read the same.
    pub relative: f64,
    /// Beyond rounding.
    pub differs: bool,
}

/// A head in both models.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadDifference {
    /// Which layer.
    pub layer: usize,
    /// Which head.
    pub head: usize,
    /// Mean total variation between its rows of weights, 0 to 1, over texts.
    pub pattern: Evidence,
    /// Its worth in B less that in A, in nats: what the loss would rise by without it, to first order; none without a loss or with edits.
    pub effect: Option<Evidence>,
}

/// Where tokens of a text differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenDifference {
    /// Which text.
    pub text: usize,
    /// Tokens of A and of B.
    pub tokens: [usize; 2],
    /// The first place that differs.
    pub place: usize,
    /// In words: `BOS` is added by one of them, or the pieces.
    pub what: String,
    /// The texts differ by the BOS token alone.
    pub bos: bool,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Texts that were compared.
    pub texts: usize,
    /// Where tokens differ.
    pub tokens: Option<TokenDifference>,
    /// Parts in the order of a pass.
    pub parts: Vec<PartDifference>,
    /// Heads by layer.
    pub heads: Vec<HeadDifference>,
    /// The loss of B less that of A over texts; none without a loss.
    pub loss: Option<Evidence>,
    /// The largest difference of final results over the largest of A.
    pub results: f64,
    /// No number differs in any bit.
    pub identical: bool,
    /// The most likely first.
    pub causes: Vec<Cause>,
}

impl Difference {
    /// The first part that differs beyond rounding.
    pub fn first(&self) -> Option<&PartDifference> {
        self.parts.iter().find(|part| part.differs)
    }
}

/// Keeps every activation but patterns.
#[derive(Default)]
struct Keeper(Mutex<BTreeMap<(usize, Site), ArrayD<f32>>>);

impl Hook for Keeper {
    fn wants(&self, _: usize, site: Site) -> bool {
        site != Site::Pattern
    }

    fn at(&self, layer: usize, site: Site, x: ArrayViewMutD<'_, f32>) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((layer, site), x.to_owned());
        false
    }
}

/// The largest difference over the largest number of `a`; infinite where a difference is no number.
fn relative<'n>(a: impl IntoIterator<Item = &'n f32>, b: impl IntoIterator<Item = &'n f32>) -> f64 {
    let (mut size, mut difference) = (0f64, 0f64);
    for (a, b) in a.into_iter().zip(b) {
        let d = f64::from((a - b).abs());
        size = size.max(f64::from(a.abs()));
        difference = if d <= difference {
            difference
        } else if d.is_nan() {
            f64::INFINITY
        } else {
            d
        };
    }
    if difference == 0.0 { 0.0 } else { difference / size.max(f64::MIN_POSITIVE) }
}

/// Queries or keys with rotated pairs in halves, whichever way the model has them: files of the same model differ in that.
fn in_halves(model: &Model, mut heads: ArrayD<f32>) -> ArrayD<f32> {
    let Some(rotary) = model.attention().rotary.filter(|rotary| rotary.pairs == Pairs::Interleaved) else { return heads };
    let dims = rotary.dims.unwrap_or(model.head_dim()).min(model.head_dim());
    for mut row in heads.rows_mut() {
        let old = row.to_vec();
        (0..dims).for_each(|i| row[i / 2 + i % 2 * (dims / 2)] = old[i]);
    }
    heads
}

/// Activations by layer and site.
type Activations = BTreeMap<(usize, Site), ArrayD<f32>>;

impl Side<'_> {
    fn run(&self, ids: &[u32]) -> Result<Run> {
        self.model.run(ids, self.edits, self.sources)
    }

    /// Activations of a layer that reads these rows, and the rows after it.
    fn layer(&self, layer: usize, rows: &[f32]) -> Result<(Activations, Vec<f32>)> {
        let keeper = Keeper::default();
        let weights = self.model.weights()?;
        let remember = Remember { streams: true, ..Remember::default() };
        let probe = EditProbe::new(self.edits, self.sources, self.model.shape(), remember, self.model.cancel()).with_hook(Some(&keeper));
        let last = layer + 1 == self.model.shape().layers;
        let (after, memory) = self.model.through(&weights, rows, 2 * layer..2 * layer + 2, probe)?;
        // After the last layer the rows went through the last norm.
        let after = if last { memory.streams.last().cloned().unwrap_or_default() } else { after };
        Ok((keeper.0.into_inner().unwrap_or_else(PoisonError::into_inner), after))
    }

    /// The last norm of rows of the stream.
    fn last_norm(&self, rows: &[f32]) -> Result<Vec<f32>> {
        let mut rows = rows.to_vec();
        self.model.transformer().stack().apply_last_norm(&self.model.weights()?, &mut rows);
        Ok(rows)
    }

    /// Logits, or without a head the rows themselves.
    fn results(&self, rows: &[f32]) -> Result<Vec<f32>> {
        if self.model.has_head() { self.model.logits(rows) } else { Ok(rows.to_vec()) }
    }
}

/// Whether two models can be compared part by part.
fn check_shapes(a: &Model, b: &Model) -> Result<()> {
    let of = |m: &Model| (m.shape(), m.head_dim(), m.width(), m.vocab(), m.has_head(), m.is_causal());
    if of(a) == of(b) {
        return Ok(());
    }
    let said = |m: &Model| {
        let shape = m.shape();
        format!(
            "{} layers of {} heads ({} of keys) of {}, width {}, {} tokens",
            shape.layers,
            shape.heads,
            shape.kv_heads,
            m.head_dim(),
            m.width(),
            m.vocab()
        )
    };
    let reason = format!("the models have other shapes: {}, and {}; compare two of one shape", said(a), said(b));
    Err(Error::NoModel { path: b.path().to_owned(), reason })
}

/// Parts of all texts, the largest differences.
fn parts(a: Side<'_>, b: Side<'_>, texts: &[Vec<u32>]) -> Result<(Vec<PartDifference>, bool)> {
    let mut found: Vec<PartDifference> = Vec::new();
    let mut identical = true;
    for ids in texts {
        let mut number = 0;
        let mut put = |layer: Option<usize>, part: &'static str, relative: f64, limit: f64| {
            identical &= relative == 0.0;
            let differs = relative > limit || relative.is_nan();
            match found.get_mut(number) {
                Some(known) => {
                    known.relative = known.relative.max(relative);
                    known.differs |= differs;
                }
                None => found.push(PartDifference { layer, part, relative, differs }),
            }
            number += 1;
        };
        let of = |side: Side<'_>| side.model.embedded(&side.model.weights()?, ids);
        let mut rows = of(a)?;
        put(None, "embedding", relative(&rows, &of(b)?), ROUNDING);
        for layer in 0..a.model.shape().layers {
            let ((mut at_a, after), (mut at_b, after_b)) = (a.layer(layer, &rows)?, b.layer(layer, &rows)?);
            let mut pair = |site: Site| {
                let take = |side: Side<'_>, at: &mut BTreeMap<(usize, Site), ArrayD<f32>>| {
                    let x = at.remove(&(layer, site)).unwrap_or_default();
                    if matches!(site, Site::Q | Site::K) { in_halves(side.model, x) } else { x }
                };
                let (x, y) = (take(a, &mut at_a), take(b, &mut at_b));
                relative(&x, &y)
            };
            let [q, k, v, z] = [Site::Q, Site::K, Site::V, Site::Z].map(&mut pair);
            let read_alike = [q, k, v].iter().all(|x| *x <= ROUNDING);
            put(Some(layer), "q", q, ROUNDING);
            put(Some(layer), "k", k, ROUNDING);
            put(Some(layer), "v", v, ROUNDING);
            // Of the same queries, keys and values, other results come from other weights.
            put(Some(layer), "pattern", if read_alike { z } else { 0.0 }, SOFTMAX_ROUNDING);
            put(Some(layer), "z", z, SOFTMAX_ROUNDING);
            put(Some(layer), "attn_out", pair(Site::AttnOut), SOFTMAX_ROUNDING);
            put(Some(layer), "mlp_out", pair(Site::MlpOut), SOFTMAX_ROUNDING);
            put(Some(layer), "resid_post", relative(&after, &after_b), SOFTMAX_ROUNDING);
            rows = after;
        }
        let (last, other) = (a.last_norm(&rows)?, b.last_norm(&rows)?);
        put(None, "last_norm", relative(&last, &other), ROUNDING);
        if a.model.has_head() {
            put(None, "logits", relative(&a.results(&last)?, &b.results(&last)?), ROUNDING);
        }
    }
    Ok((found, identical))
}

/// Mean total variation between the rows of two squares of weights; the first row is always the same.
fn variation(a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>) -> f64 {
    let rows = a.nrows().saturating_sub(1).max(1);
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum();
    0.5 * sum / rows as f64
}

/// What the loss rises by without each head, to first order: the gradient times what is taken away.
fn worths(model: &Model, ids: &[u32], run: &Run) -> Result<Vec<f64>> {
    let gradients = model.gradients(ids, &Objective::Loss, &|_, site| site == Site::Z)?;
    let mut worths = Vec::new();
    for layer in 0..model.shape().layers {
        let (z, d): (&Array3<f32>, _) = (run.z(layer)?, &gradients.at[&(layer, Site::Z)]);
        for head in 0..model.shape().heads {
            let pairs = z.index_axis(Axis(0), head).into_iter().zip(d.index_axis(Axis(0), head).into_iter().copied().collect::<Vec<_>>());
            worths.push(-pairs.map(|(z, d)| f64::from(*z) * f64::from(d)).sum::<f64>());
        }
    }
    Ok(worths)
}

/// The tokens of texts in both models; the first difference.
fn tokens(a: &Model, b: &Model, texts: &[String]) -> Option<TokenDifference> {
    let of = |model: &Model, text: &str| model.ids(Input::Text(text)).unwrap_or_default();
    for (text, string) in texts.iter().enumerate() {
        let (x, y) = (of(a, string), of(b, string));
        if x == y {
            continue;
        }
        let place = x.iter().zip(&y).take_while(|(x, y)| x == y).count();
        let added = |model: &Model| model.tokens(string).map(|all| all.into_iter().filter(|t| t.added).map(|t| t.id).collect::<Vec<_>>());
        let plain = |model: &Model, ids: &[u32]| {
            let added = added(model).unwrap_or_default();
            ids.iter().copied().filter(|id| !added.contains(id)).collect::<Vec<_>>()
        };
        let bos = plain(a, &x) == plain(b, &y);
        let piece = |model: &Model, ids: &[u32]| ids.get(place).map_or("nothing".to_owned(), |id| format!("{:?}", model.piece(*id)));
        let what = match (bos, x.len().cmp(&y.len())) {
            (true, std::cmp::Ordering::Less) => format!("B adds {} that A does not", piece(b, &y)),
            (true, std::cmp::Ordering::Greater) => format!("B does not add {}", piece(a, &x)),
            (true, _) => format!("B adds {} where A adds {}", piece(b, &y), piece(a, &x)),
            (false, _) => format!("token {place} is {} in A and {} in B", piece(a, &x), piece(b, &y)),
        };
        return Some(TokenDifference { text, tokens: [x.len(), y.len()], place, what, bos });
    }
    None
}

/// Compare two models on texts, of which both read the tokens of A; `watch` gets how much of the work is done, and may stop it by
/// returning false.
///
/// # Errors
/// [`Error::NoModel`] where the models have other shapes; as [`Model::run`].
pub fn compare(
    a: Side<'_>,
    b: Side<'_>,
    texts: &[Vec<u32>],
    strings: &[String],
    mut watch: impl FnMut(usize, usize) -> bool,
) -> Result<Difference> {
    check_shapes(a.model, b.model)?;
    a.model.check_plain("differences")?;
    if texts.is_empty() {
        return Err(Error::Tokens { reason: "there are no texts to compare on".to_owned() });
    }
    let work = texts.len() + 2;
    let mut step = |done: usize| if watch(done, work) { Ok(()) } else { Err(Error::Stopped) };
    let shape = a.model.shape();
    let count = shape.layers * shape.heads;
    let with_loss = a.model.is_causal() && a.model.has_head() && texts.iter().all(|ids| ids.len() > 1);
    let with_effects = with_loss && a.edits.is_empty() && b.edits.is_empty();
    let (mut patterns, mut effects) = (vec![Vec::new(); count], vec![Vec::new(); count]);
    let (mut losses, mut results) = (Vec::new(), 0f64);
    for (done, ids) in texts.iter().enumerate() {
        let (x, y) = (a.run(ids)?, b.run(ids)?);
        let both = |run: &Run, side: Side<'_>| side.results(run.hidden().as_slice().expect("standard layout"));
        results = results.max(relative(&both(&x, a)?, &both(&y, b)?));
        if with_loss {
            losses.push(y.loss()? - x.loss()?);
        }
        for (head, patterns) in patterns.iter_mut().enumerate() {
            let of = |run: &Run| run.weights(head / shape.heads, head % shape.heads);
            let (p, q) = (of(&x)?, of(&y)?);
            patterns.push(variation(p.view(), q.view()));
        }
        if with_effects {
            let (x, y) = (worths(a.model, ids, &x)?, worths(b.model, ids, &y)?);
            effects.iter_mut().zip(y.iter().zip(&x)).for_each(|(effects, (y, x))| effects.push(y - x));
        }
        step(done + 1)?;
    }
    let (parts, alike) = parts(a, b, texts)?;
    let same = alike && results == 0.0 && patterns.iter().flatten().all(|x| *x == 0.0);
    step(texts.len() + 1)?;
    let heads = (0..count).map(|head| HeadDifference {
        layer: head / shape.heads,
        head: head % shape.heads,
        pattern: Evidence::of(&patterns[head], head as u64),
        effect: with_effects.then(|| Evidence::of(&effects[head], head as u64)),
    });
    let mut difference = Difference {
        texts: texts.len(),
        tokens: tokens(a.model, b.model, strings),
        parts,
        heads: heads.collect(),
        loss: with_loss.then(|| Evidence::of(&losses, 1)),
        results,
        identical: false,
        causes: Vec::new(),
    };
    difference.identical = same && difference.tokens.is_none();
    difference.causes = causes::find(a, b, texts, &difference)?;
    step(work)?;
    Ok(difference)
}
