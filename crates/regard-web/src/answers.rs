//! What is answered: functions from a run to JSON and to numbers, for the server and for the page in one file.

use crate::runs::{Kept, hash};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use regard::Rectangle;
use regard_model::{Edits, Model, Pool, Sink};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;

/// Numbers of one answer, at most: a tile of 512 x 512, or a row of a long text.
const NUMBERS: usize = 1 << 18;
/// Cells of a side of a thumbnail.
const THUMBNAIL: usize = 32;
/// Tokens that a lesson is about.
pub(crate) const LESSON: usize = 12;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) StatusCode, pub(crate) String);

impl Refusal {
    pub(crate) fn unusable(message: impl Into<String>) -> Self {
        Self(StatusCode::UNPROCESSABLE_ENTITY, message.into())
    }
}

impl From<regard_model::Error> for Refusal {
    fn from(error: regard_model::Error) -> Self {
        Self::unusable(error.to_string())
    }
}

impl From<regard_lab::Error> for Refusal {
    fn from(error: regard_lab::Error) -> Self {
        Self::unusable(error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, axum::Json(json!({ "error": self.1 }))).into_response()
    }
}

pub(crate) type Answer<T> = Result<T, Refusal>;

/// A number for JSON, which has no NaN.
fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { Value::Null }
}

/// What a model is, for the page's head.
pub(crate) fn model(number: usize, model: &Model) -> Value {
    let shape = model.shape();
    // Many files are called model.bin: the folder tells them apart.
    let parts: Vec<_> = model.path().components().map(|part| part.as_os_str().to_string_lossy()).collect();
    let name = parts[parts.len().saturating_sub(2)..].join("/");
    json!({
        "number": number,
        "name": name,
        "family": model.family(),
        "format": model.format(),
        "layers": shape.layers,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": model.head_dim(),
        "width": model.width(),
        "vocab": model.vocab(),
        "context": model.context(),
        "causal": model.is_causal(),
        "writes": model.has_head() && model.is_causal(),
        "has_head": model.has_head(),
        "rotary": model.attention().rotary.is_some(),
        "parameters": model.parameters(),
    })
}

/// A run: its tokens, and the loss of each.
pub(crate) fn summary(kept: &Kept) -> Answer<Value> {
    let tokens = kept.model.tokens(&kept.text)?;
    let pieces = tokens.iter().map(|token| {
        json!({ "id": token.id, "piece": kept.model.piece(token.id), "from": token.bytes.start, "to": token.bytes.end, "added": token.added })
    });
    let (mut losses, mut loss) = (Vec::new(), Value::Null);
    if kept.model.has_head() && kept.model.is_causal() && kept.ids.len() > 1 {
        losses = kept.with(|run| run.losses())?;
        loss = number(losses.iter().sum::<f64>() / losses.len() as f64);
    }
    Ok(json!({
        "run": kept.id,
        "model": kept.number,
        "text": hash(&[kept.text.as_bytes()]),
        "edits": kept.edits.canonical(),
        "explained": if kept.edits.is_empty() { String::new() } else { kept.edits.explain() },
        "tokens": pieces.collect::<Vec<_>>(),
        "losses": losses.into_iter().map(number).collect::<Vec<_>>(),
        "loss": loss,
        "warning": kept.model.warning(kept.ids.len()),
    }))
}

/// Means of the heads of a layer.
pub(crate) fn heads(kept: &Kept, layer: usize) -> Answer<Value> {
    let heads = kept.with(|run| run.layer_summary(layer))?;
    Ok(serde_json::to_value(heads).unwrap_or_default())
}

/// How cells are made.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Look {
    #[serde(default)]
    pub(crate) pool: Pool,
    #[serde(default)]
    pub(crate) sink: Sink,
}

/// Which tile of a head.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Tile {
    pub(crate) layer: usize,
    pub(crate) head: usize,
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) key: usize,
    pub(crate) keys: usize,
    pub(crate) step: usize,
}

fn range(start: usize, len: usize, n: usize) -> Answer<Range<usize>> {
    match start.checked_add(len) {
        Some(end) if len > 0 && end <= n => Ok(start..end),
        _ => Err(Refusal::unusable(format!("{len} tokens from {start} on are not within the {n} of the text"))),
    }
}

/// A tile of a head's weights.
pub(crate) fn tile(kept: &Kept, tile: Tile, look: Look) -> Answer<Vec<f32>> {
    let n = kept.ids.len();
    let of = Rectangle { rows: range(tile.row, tile.rows, n)?, keys: range(tile.key, tile.keys, n)? };
    let step = tile.step.clamp(1, n);
    if of.rows.len().div_ceil(step) * of.keys.len().div_ceil(step) > NUMBERS {
        return Err(Refusal::unusable(format!("a tile has at most {NUMBERS} cells: ask for a larger step")));
    }
    kept.with(|run| {
        let states = kept.states(run, tile.layer, tile.head, look.sink)?;
        Ok(run.tile(&states, of, step, look.pool)?.into_iter().collect())
    })
}

/// Thumbnails of all heads of a layer, one behind the other, each as [`thumbnail_step`] says.
pub(crate) fn thumbnails(kept: &Kept, layer: usize, look: Look) -> Answer<Vec<f32>> {
    let n = kept.ids.len();
    let mut all = Vec::new();
    for head in 0..kept.model.shape().heads {
        let whole = Tile { layer, head, row: 0, rows: n, key: 0, keys: n, step: thumbnail_step(n) };
        all.extend(tile(kept, whole, look)?);
    }
    Ok(all)
}

/// Tokens of a side of a thumbnail's cells.
pub(crate) fn thumbnail_step(n: usize) -> usize {
    n.div_ceil(THUMBNAIL).max(1)
}

/// What the model would say at a token if it stopped behind each layer.
pub(crate) fn lens(kept: &Kept, row: usize) -> Answer<Value> {
    range(row, 1, kept.ids.len())?;
    let sources = kept.model.sources_of(&kept.edits)?;
    let lens = kept.model.lens_of(&kept.ids, &kept.edits, &sources, 5, row..row + 1)?;
    let layers = (0..=kept.model.shape().layers).map(|layer| {
        let top = (0..lens.top.dim().2).map(|place| {
            let id = lens.top[[layer, 0, place]];
            json!({ "id": id, "piece": kept.model.piece(id), "probability": lens.probability[[layer, 0, place]] })
        });
        json!({ "layer": layer, "top": top.collect::<Vec<_>>(), "entropy": number(lens.entropy[[layer, 0]]), "loss": number(lens.loss[[layer, 0]]) })
    });
    Ok(Value::Array(layers.collect()))
}

/// One pair of tokens in a head, number by number.
pub(crate) fn neuron(kept: &Kept, layer: usize, head: usize, query: usize, key: usize) -> Answer<Value> {
    let n = kept.ids.len();
    let (query, key) = (range(query, 1, n)?, range(key, 1, n)?);
    kept.with(|run| {
        let neuron = run.neuron(layer, head, query.start, key.start)?;
        Ok(serde_json::to_value(neuron).unwrap_or_default())
    })
}

/// Every step of a head on a short text: the kept run's first tokens.
pub(crate) fn steps(kept: &Kept, layer: usize, head: usize) -> Answer<Value> {
    let ids = &kept.ids[..kept.ids.len().min(LESSON)];
    let run = kept.model.run(ids, &kept.edits, &kept.model.sources_of(&kept.edits)?)?;
    let steps = run.steps(layer, head)?;
    let pieces: Vec<String> = ids.iter().map(|id| kept.model.piece(*id)).collect();
    Ok(json!({ "tokens": pieces, "steps": steps }))
}

/// Edits in their one form and in words.
pub(crate) fn edits(model: &Model, text: &str) -> Answer<(Edits, Value)> {
    let edits = Edits::parse(text)?;
    edits.check(model.shape())?;
    let said = json!({ "edits": edits.canonical(), "explained": if edits.is_empty() { String::new() } else { edits.explain() } });
    Ok((edits, said))
}
