//! What the heads of a model do: statistics, likeness, gradients.

use regard::StatsOptions;
use regard_nn::Result;
use regard_nn::data::Windows;
use regard_nn::layers::pass::{MaskKind, Pass};
use regard_nn::layers::stack::Keep;
use regard_nn::lm::LanguageModel;
use serde::{Deserialize, Serialize};

/// A row whose largest weight is above this is saturated.
pub const SATURATED: f64 = 0.99;

/// One head, averaged over the rows of all windows that could choose: those that see more than one key.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeadView {
    /// Block.
    pub layer: usize,
    /// Head.
    pub head: usize,
    /// Entropy of the weights, in nats.
    pub entropy: f64,
    /// The same, divided by the logarithm of how many keys are visible.
    pub relative_entropy: f64,
    /// The largest weight.
    pub max_weight: f64,
    /// The share of rows whose largest weight is above [`SATURATED`].
    pub saturated: f64,
    /// Weight of the token itself.
    pub diagonal_mass: f64,
    /// Weight of the token before.
    pub previous_token_mass: f64,
    /// Weight of the first token.
    pub first_token_mass: f64,
    /// Mean distance looked.
    pub mean_distance: f64,
}

/// One block's attention.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LayerView {
    /// Block.
    pub layer: usize,
    /// Mean over pairs of heads of the centred cosine of their weights: 1 alike, 0 unrelated.
    pub centred_cosine: f64,
    /// Mean over pairs of heads of the Jensen-Shannon divergence of their weights, in nats: 0 alike.
    pub jensen_shannon: f64,
    /// Norm of the loss's gradient on the projection of queries.
    pub query_gradient: f64,
    /// On that of keys.
    pub key_gradient: f64,
    /// On that of values.
    pub value_gradient: f64,
}

/// A model's attention at one moment of its training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttentionStats {
    /// Loss of the windows it was looked at with.
    pub loss: f64,
    /// All heads, block by block.
    pub heads: Vec<HeadView>,
    /// All blocks.
    pub layers: Vec<LayerView>,
}

/// Look at a model with some windows of its context's length.
///
/// # Errors
/// When windows and model do not fit together.
pub fn inspect(model: &LanguageModel, p: &[f32], windows: &Windows, mask: MaskKind) -> Result<AttentionStats> {
    let seq = model.config().context;
    let batch = windows.ids.len() / seq;
    let pass = Pass::new(batch, seq, mask);
    let mut acts = model.plan(batch, seq, Keep::Tape);
    let mut g = vec![0.0; p.len()];
    let loss =
        model.loss_and_gradient(&model.weights(p), &mut g, &windows.ids, &windows.targets, &pass, (batch * seq) as f64, &mut acts)?;
    let visible = visible_keys(mask, seq);
    let (mut heads, mut layers) = (Vec::new(), Vec::new());
    for (layer, (attention, saved)) in model.stack().attentions(acts.stack()).enumerate() {
        let stats = attention.stats(&pass, saved, StatsOptions::default())?;
        for head in 0..attention.config().heads {
            heads.push(head_view(layer, head, batch, &visible, &stats));
        }
        let similarity = attention.similarity(&pass, saved)?;
        let [query_gradient, key_gradient, value_gradient] = projection_gradients(model, &g, layer);
        layers.push(LayerView {
            layer,
            centred_cosine: mean_of_pairs(&similarity.centred_cosine),
            jensen_shannon: mean_of_pairs(&similarity.jensen_shannon),
            query_gradient,
            key_gradient,
            value_gradient,
        });
    }
    Ok(AttentionStats { loss: loss.mean(), heads, layers })
}

/// How many keys each row sees.
pub(super) fn visible_keys(mask: MaskKind, seq: usize) -> Vec<usize> {
    let (mask, place) = (mask.mask(), regard::HeadPosition { batch: 0, head: 0, q_offset: 0 });
    (0..seq).map(|i| (0..seq).filter(|&j| mask.visible(&place, i, j)).count()).collect()
}

fn head_view(layer: usize, head: usize, batch: usize, visible: &[usize], stats: &regard::RowStats<f32>) -> HeadView {
    let rows: Vec<(usize, usize)> =
        (0..batch).flat_map(|b| visible.iter().enumerate().filter(|(_, n)| **n > 1).map(move |(i, _)| (b, i))).collect();
    let mean = |f: &dyn Fn(usize, usize) -> f64| rows.iter().map(|&(b, i)| f(b, i)).sum::<f64>() / rows.len().max(1) as f64;
    let of = |x: &ndarray::Array3<f32>| mean(&|b, i| f64::from(x[[b, head, i]]));
    HeadView {
        layer,
        head,
        entropy: of(&stats.entropy),
        relative_entropy: mean(&|b, i| f64::from(stats.entropy[[b, head, i]]) / (visible[i] as f64).ln()),
        max_weight: of(&stats.max_weight),
        saturated: mean(&|b, i| f64::from(u8::from(f64::from(stats.max_weight[[b, head, i]]) > SATURATED))),
        diagonal_mass: of(&stats.diagonal_mass),
        previous_token_mass: of(&stats.previous_token_mass),
        first_token_mass: of(&stats.first_token_mass),
        mean_distance: of(&stats.mean_distance),
    }
}

/// The mean over batch entries and pairs of different heads; NaN for a single head.
fn mean_of_pairs(matrix: &ndarray::Array3<f64>) -> f64 {
    let (batch, heads, _) = matrix.dim();
    let mut sum = 0.0;
    for b in 0..batch {
        for h in 0..heads {
            sum += (0..h).map(|other| matrix[[b, h, other]]).sum::<f64>();
        }
    }
    sum / (batch * heads * heads.saturating_sub(1) / 2) as f64
}

/// Norms of the gradients on the columns of queries, keys and values.
fn projection_gradients(model: &LanguageModel, g: &[f32], layer: usize) -> [f64; 3] {
    let config = model.config();
    let (q, kv) = (config.heads * config.head_dim(), config.kv_heads() * config.head_dim());
    let name = format!("blocks.{layer}.attention.qkv.weight");
    let Some(entry) = model.layout().entries().iter().find(|e| e.name == name) else { return [f64::NAN; 3] };
    let mut squares = [0.0; 3];
    for row in g[entry.range.clone()].chunks_exact(q + 2 * kv) {
        for (i, x) in row.iter().enumerate() {
            squares[if i < q { 0 } else { 1 + (i - q) / kv }] += f64::from(*x).powi(2);
        }
    }
    squares.map(f64::sqrt)
}
