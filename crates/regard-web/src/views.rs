//! Views of a run as JSON or as arrays of f32, for the server and for the standalone page.

use crate::api::{ApiError, ApiResult};
use crate::examples;
use crate::run_cache::{Attending, View, hash};
use regard::Rectangle;
use regard_lab::theory;
use regard_model::edits::{Action, Part, Rows};
use regard_model::{Edits, Model, Pool, Sink, Unusual, UnusualRow};
use regard_nn::attention::ScaleKind;
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;

/// Cells of one response, at most: a tile of 512 x 512, or a row of a long text.
const CELLS: usize = 1 << 18;
/// Cells on a side of a thumbnail.
const THUMBNAIL: usize = 32;
/// Tokens of the lesson.
pub(crate) const LESSON: usize = 12;
/// Next tokens of a prediction, and tokens of one answer of the lens.
const NEXT: usize = 10;
const LENS_ROWS: usize = 64;

/// JSON has no NaN: null instead.
fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { Value::Null }
}

/// Description of a model, for the page's header.
pub(crate) fn model(number: usize, model: &Model) -> Value {
    let shape = model.shape();
    // Many files are called model.bin: the folder distinguishes them.
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
        "scale": scale(model),
        "width": model.width(),
        "vocab": model.vocab(),
        "context": model.context(),
        "causal": model.is_causal(),
        "writes": writes(model),
        "has_head": model.has_head(),
        "rotary": model.attention().rotary.is_some(),
        "parameters": model.parameters(),
        // The argument that names it in the command; none for the built-in model.
        "argument": if examples::is_built_in(model) { String::new() } else { model.path().display().to_string() },
        "begin": examples::first_text(model),
        "examples": examples::of(model),
        // Of an encoder-decoder: what its encoder reads, a source to begin with, and the encoder as a model of its own.
        "reads": model.encoder().map(|encoder| if encoder.front_kind().is_some() { "sound" } else { "text" }),
        "source": examples::first_source(model),
        "encoder": model.encoder().map(encoder),
    })
}

/// What scores are multiplied by.
fn scale(model: &Model) -> f64 {
    match model.attention().scale {
        ScaleKind::InvSqrtDim => (model.head_dim() as f64).powf(-0.5),
        ScaleKind::Off => 1.0,
        ScaleKind::Value(x) => x,
    }
}

/// What differs between an encoder and its decoder.
fn encoder(model: &Model) -> Value {
    let shape = model.shape();
    json!({
        "layers": shape.layers, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": model.head_dim(), "causal": false,
        "writes": false, "has_head": false, "rotary": model.attention().rotary.is_some(),
    })
}

/// The tokens of a text; of a decoder, after those that it begins with.
fn pieces(model: &Model, text: &str) -> ApiResult<Vec<Value>> {
    let described = |token: &regard_model::tokens::Token| {
        let piece = model.piece(token.id);
        json!({ "id": token.id, "piece": piece, "from": token.bytes.start, "to": token.bytes.end, "added": token.added })
    };
    let tokens = model.tokens(text)?;
    if model.encoder().is_none() {
        return Ok(tokens.iter().map(described).collect());
    }
    let begin = |id: &u32| json!({ "id": id, "piece": model.piece(*id), "from": 0, "to": 0, "added": true });
    let own = tokens.iter().filter(|token| !token.added);
    Ok(model.start_ids().iter().map(begin).chain(own.map(described)).collect())
}

/// The tokens that are looked at, where these are not the tokens that look.
fn keys(run: &View<'_>) -> ApiResult<Value> {
    match run.model.encoder() {
        Some(encoder) if run.of.part == Attending::Cross => pieces(encoder, &run.of.source).map(Value::Array),
        _ => Ok(Value::Null),
    }
}

/// Tokens, losses and edits of a run.
pub(crate) fn summary(run: &View<'_>) -> ApiResult<Value> {
    let (pieces, edits) = (pieces(&run.model, run.text())?, &run.of.edits);
    let loss = number(run.losses.iter().sum::<f64>() / run.losses.len() as f64);
    Ok(json!({
        "run": run.id,
        "model": run.number,
        "text": hash(&[run.of.text.as_bytes()]),
        "edits": edits.canonical(),
        "explained": if edits.is_empty() { String::new() } else { edits.explain() },
        "controls": controls(edits),
        "each": edits.list().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "tokens": pieces,
        "keys": keys(run)?,
        "losses": run.losses.iter().copied().map(number).collect::<Vec<_>>(),
        "loss": loss,
        "next": if !writes(&run.model) { Value::Null } else { next(run, run.ids.len() - 1)? },
        "warning": run.model.warning(run.ids.len()),
    }))
}

/// Whether the model predicts the next token.
fn writes(model: &Model) -> bool {
    model.has_head() && model.is_causal()
}

fn predicted(model: &Model, top: &[(u32, f64)]) -> Value {
    top.iter().map(|(id, probability)| json!({ "id": id, "piece": model.piece(*id), "probability": probability })).collect()
}

/// The most likely tokens after a token.
pub(crate) fn next(run: &View<'_>, row: usize) -> ApiResult<Value> {
    Ok(predicted(&run.model, &run.with(|run| run.next_tokens(row, NEXT))?))
}

/// Unusual rows of a head, each with its text and tokens.
pub(crate) fn examples(model: &Model, texts: &[String], found: &Unusual) -> ApiResult<Value> {
    let example = |row: &UnusualRow| {
        let text = &texts[row.text];
        Ok(json!({ "text": text, "tokens": pieces(model, text)?, "row": row.row, "surprise": number(row.surprise), "keys": row.keys }))
    };
    let examples = found.examples.iter().map(example).collect::<ApiResult<Vec<_>>>()?;
    Ok(json!({ "texts": texts.len(), "rows": found.rows, "usual": found.usual, "examples": examples }))
}

/// Means of the heads of a layer.
pub(crate) fn heads(run: &View<'_>, layer: usize) -> ApiResult<Value> {
    let heads = run.with(|run| run.layer_summary(layer))?;
    Ok(serde_json::to_value(heads).unwrap_or_default())
}

/// How weights become cells.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Look {
    #[serde(default)]
    pub(crate) pool: Pool,
    #[serde(default)]
    pub(crate) sink: Sink,
}

/// A rectangle of a head's weights in cells of `step x step`.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Tile {
    pub(crate) layer: usize,
    pub(crate) head: usize,
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) key: usize,
    pub(crate) keys: usize,
    pub(crate) step: usize,
}

fn range(start: usize, len: usize, n: usize) -> ApiResult<Range<usize>> {
    match start.checked_add(len) {
        Some(end) if len > 0 && end <= n => Ok(start..end),
        _ => Err(ApiError::unprocessable(format!("tokens outside of the text: {len} from {start}; it has {n}"))),
    }
}

/// A tile of a head's weights.
pub(crate) fn tile(run: &View<'_>, tile: Tile, look: Look) -> ApiResult<Vec<f32>> {
    let (n, keys) = (run.ids.len(), run.with(regard_model::Run::keys));
    let of = Rectangle { rows: range(tile.row, tile.rows, n)?, keys: range(tile.key, tile.keys, keys)? };
    let step = tile.step.clamp(1, n.max(keys));
    if of.rows.len().div_ceil(step) * of.keys.len().div_ceil(step) > CELLS {
        return Err(ApiError::unprocessable(format!("too many cells: at most {CELLS}; use a larger step")));
    }
    let states = run.states(tile.layer, tile.head, look.sink)?;
    Ok(run.with(|run| run.tile(&states, of, step, look.pool))?.into_iter().collect())
}

/// Thumbnails of all heads of a layer in cells of [`thumbnail_step`], one after the other.
pub(crate) fn thumbnails(run: &View<'_>, layer: usize, look: Look) -> ApiResult<Vec<f32>> {
    let (n, keys) = (run.ids.len(), run.with(regard_model::Run::keys));
    let mut all = Vec::new();
    for head in 0..run.model.shape().heads {
        let whole = Tile { layer, head, row: 0, rows: n, key: 0, keys, step: thumbnail_step(n.max(keys)) };
        all.extend(tile(run, whole, look)?);
    }
    Ok(all)
}

/// What each key gets from all rows of each head of a layer, one head after the other.
pub(crate) fn columns(run: &View<'_>, layer: usize) -> ApiResult<Vec<f32>> {
    Ok(run.with(|run| run.layer_column_sums(layer))?.into_iter().collect())
}

/// Tokens on a side of a thumbnail's cell.
pub(crate) fn thumbnail_step(n: usize) -> usize {
    n.div_ceil(THUMBNAIL).max(1)
}

/// Logit lens: predictions at some tokens after each layer, `[layer][token]`.
pub(crate) fn lens(run: &View<'_>, row: usize, rows: usize) -> ApiResult<Value> {
    let of = range(row, rows, run.ids.len())?;
    if rows > LENS_ROWS {
        return Err(ApiError::unprocessable(format!("too many tokens: {rows}; use at most {LENS_ROWS}")));
    }
    let sources = run.model.sources_of(&run.of.edits)?;
    let lens = run.model.lens_of(&run.ids, &run.of.edits, &sources, NEXT, of)?;
    let cell = |layer: usize, row: usize| {
        let top: Vec<_> =
            (0..lens.top.dim().2).map(|i| (lens.top[[layer, row, i]], f64::from(lens.probability[[layer, row, i]]))).collect();
        let (entropy, loss) = (number(lens.entropy[[layer, row]]), number(lens.loss[[layer, row]]));
        json!({ "top": predicted(&run.model, &top), "entropy": entropy, "loss": loss })
    };
    Ok((0..=run.model.shape().layers).map(|layer| (0..rows).map(|row| cell(layer, row)).collect::<Value>()).collect())
}

/// The score of one pair of tokens in a head, coordinate by coordinate.
pub(crate) fn neuron(run: &View<'_>, layer: usize, head: usize, query: usize, key: usize) -> ApiResult<Value> {
    let (query, key) = (range(query, 1, run.ids.len())?, range(key, 1, run.with(regard_model::Run::keys))?);
    let neuron = run.with(|run| run.neuron(layer, head, query.start, key.start))?;
    Ok(serde_json::to_value(neuron).unwrap_or_default())
}

/// Every step of a head on a short text, the first tokens of the run: until the prediction, and what each part of the model writes to the
/// logit of the most likely token.
pub(crate) fn steps(run: &View<'_>, layer: usize, head: usize) -> ApiResult<Value> {
    let (ids, model) = (&run.ids[..run.ids.len().min(LESSON)], &run.model);
    let sources = model.sources_of(&run.of.edits)?;
    let short = model.run(ids, &run.of.edits, &sources)?;
    let steps = short.steps(layer, head)?;
    let pieces: Vec<String> = ids.iter().map(|id| model.piece(*id)).collect();
    let (mut next, mut attribution) = (Value::Null, Value::Null);
    if writes(model) {
        let top = short.next_tokens(ids.len() - 1, NEXT)?;
        next = predicted(model, &top);
        // Models whose norms or head are not linear have no parts of a logit.
        if let Ok(parts) = model.attribute(ids, &run.of.edits, &sources, ids.len() - 1, top[0].0) {
            attribution = json!({ "parts": parts.parts, "writes": parts.writes, "logit": parts.logit });
        }
    }
    Ok(json!({ "tokens": pieces, "steps": steps, "next": next, "attribution": attribution }))
}

/// Exact expectations of a row's statistics over random queries and keys.
pub(crate) fn expectation(d_k: usize, seq: usize, scale: f64) -> Value {
    let row = theory::row_at_scale(seq, d_k, scale);
    let spread = scale * theory::dot_product_deviation(d_k);
    json!({ "score_std": spread, "mean_entropy": row.entropy, "mean_max_weight": row.max_weight })
}

/// Edits as the page's controls show them. Scale, temperature, mask and the first key of all heads have one entry each; heads that are
/// zeroed or replaced by their mean are listed one by one; other edits stay strings.
fn controls(edits: &Edits) -> Value {
    let mut all = json!({ "scale": "", "temp": "", "mask": "", "hide": false, "heads": [], "rest": [] });
    let mut push = |key: &str, value: Value| {
        if let Some(list) = all[key].as_array_mut() {
            list.push(value);
        } else {
            all[key] = value;
        }
    };
    for edit in edits.list() {
        match (&edit.layers, &edit.part, &edit.action, edit.rows) {
            (None, _, Action::Scale(scale), Rows::All) => push("scale", json!(scale.map_or("off".to_owned(), |x| x.to_string()))),
            (None, _, Action::Temp(x), Rows::All) => push("temp", json!(x.to_string())),
            (None, _, Action::Mask(mask), Rows::All) => push("mask", json!(mask.to_string())),
            (None, _, Action::HideFirst, Rows::All) => push("hide", json!(true)),
            (Some(layers), Part::Heads(heads), action @ (Action::Zero | Action::Mean), Rows::All) => {
                for layer in layers {
                    heads.iter().for_each(|head| push("heads", json!([layer, head, action.to_string()])));
                }
            }
            _ => push("rest", json!(edit.to_string())),
        }
    }
    all
}

/// Edits that fit the model, and their JSON: canonical string, explanation, controls.
pub(crate) fn edits(model: &Model, text: &str) -> ApiResult<(Edits, Value)> {
    let edits = Edits::parse(text)?;
    edits.check(model.shape())?;
    let explained = if edits.is_empty() { String::new() } else { edits.explain() };
    let value = json!({ "edits": edits.canonical(), "explained": explained, "controls": controls(&edits) });
    Ok((edits, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_the_parsed_edits() {
        let text = "scale=off/temp=2/mask=window:7,0/heads=hide:first/L0-1.H1,2=zero/L0.H0=mean/L1.H0=zero@3/L1.mlp=zero";
        let edits = Edits::parse(text).expect("edits");
        let expected = json!({
            "scale": "off", "temp": "2", "mask": "window:7,0", "hide": true,
            "heads": [[0, 0, "mean"], [0, 1, "zero"], [0, 2, "zero"], [1, 1, "zero"], [1, 2, "zero"]],
            "rest": ["L1.H0=zero@3", "L1.mlp=zero"],
        });
        assert_eq!(controls(&edits), expected);
    }
}
