//! Why two models differ: single changes of A's settings that give B's results, and what A's tensors are in B.

use super::tensors::{Change, TensorDifference, compare};
use super::{Difference, ROUNDING, Side};
use crate::error::Result;
use crate::families::Architecture;
use crate::model::Model;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, ScaleKind};
use regard_nn::layers::positions::{Pairs, Positions, Rotary, Scaling};
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use std::collections::BTreeMap;

/// Texts and tokens of each that a change is tried on.
const TRIAL_TEXTS: usize = 2;
const TRIAL_TOKENS: usize = 64;
/// A change that leaves more of the difference than this is no cause.
const LEFT: f64 = 0.5;

/// A single change that makes A more like B.
#[derive(Debug, Clone, PartialEq)]
pub struct Cause {
    /// `tokenizer`, `BOS`, `rotary pairing`, `theta`, `eps`, `softcap`, `scale`, `window`, `tied embeddings`, `norm placement`,
    /// `quantisation type` and others.
    pub name: &'static str,
    /// What A has and B has.
    pub what: String,
    /// The share of the difference of results that is left when A is changed so: 0 explains all of it. None where it cannot be tried.
    pub left: Option<f64>,
}

/// A change of settings to be tried.
struct Trial {
    name: &'static str,
    what: String,
    /// B's file says so.
    stated: bool,
    apply: Box<dyn Fn(&mut Architecture)>,
}

fn trial(name: &'static str, what: String, stated: bool, apply: impl Fn(&mut Architecture) + 'static) -> Trial {
    Trial { name, what, stated, apply: Box::new(apply) }
}

/// The same change of each block.
fn blocks(of: impl Fn(&mut BlockConfig) + 'static) -> impl Fn(&mut Architecture) + 'static {
    move |architecture: &mut Architecture| architecture.parts.blocks.iter_mut().for_each(&of)
}

fn attention(of: impl Fn(&mut AttentionConfig) + 'static) -> impl Fn(&mut Architecture) + 'static {
    blocks(move |block| of(&mut block.attention))
}

fn rotary(of: impl Fn(&mut Rotary) + 'static) -> impl Fn(&mut Architecture) + 'static {
    attention(move |attention| attention.rotary.iter_mut().for_each(&of))
}

/// A setting as a table has it.
fn shown(setting: &impl std::fmt::Debug) -> String {
    let text = format!("{setting:?}");
    let inside = text.strip_prefix("Some(").and_then(|text| text.strip_suffix(')'));
    inside.map_or_else(|| text.replace("None", "none"), str::to_owned)
}

/// Settings of the files that differ, one at a time.
fn stated(a: &Architecture, b: &Architecture) -> Vec<Trial> {
    let mut trials = Vec::new();
    let (ours, theirs) = (a.parts.blocks.clone(), b.parts.blocks.clone());
    // A field of every block, by its name, what it reads as, and how it is copied.
    macro_rules! field {
        ($name:literal, $of:expr, $put:expr) => {{
            let of = $of;
            let values = |blocks: &[BlockConfig]| blocks.iter().map(&of).collect::<Vec<_>>();
            let (x, y) = (values(&ours), values(&theirs));
            if let Some(place) = x.iter().zip(&y).position(|(x, y)| x != y) {
                let what = format!("{} in A and {} in B", shown(&x[place]), shown(&y[place]));
                let what = if place == 0 { what } else { format!("{what} from layer {place} on") };
                trials.push(trial($name, what, true, move |architecture: &mut Architecture| {
                    let put = $put;
                    architecture.parts.blocks.iter_mut().zip(&y).for_each(|(block, y)| put(block, *y));
                }));
            }
        }};
    }
    field!("rotary pairing", |b: &BlockConfig| b.attention.rotary.map(|r| r.pairs), |block: &mut BlockConfig, y: Option<Pairs>| {
        if let (Some(r), Some(y)) = (&mut block.attention.rotary, y) {
            r.pairs = y;
        }
    });
    field!("theta", |b: &BlockConfig| b.attention.rotary.map(|r| r.base), |block: &mut BlockConfig, y: Option<f64>| {
        if let (Some(r), Some(y)) = (&mut block.attention.rotary, y) {
            r.base = y;
        }
    });
    field!("rotary scaling", |b: &BlockConfig| b.attention.rotary.map(|r| r.scaling), |block: &mut BlockConfig, y: Option<Scaling>| {
        if let (Some(r), Some(y)) = (&mut block.attention.rotary, y) {
            r.scaling = y;
        }
    });
    field!("rotated share of a head", |b: &BlockConfig| b.attention.rotary.map(|r| r.dims), |block: &mut BlockConfig, y| {
        if let (Some(r), Some(y)) = (&mut block.attention.rotary, y) {
            r.dims = y;
        }
    });
    let eps = |x: &Architecture| {
        let blocks: Vec<_> = x.parts.blocks.iter().map(|block| (block.eps, block.attention.head_norms)).collect();
        (blocks, x.parts.last_norm.map(|norm| norm.1), x.parts.embedding.norm.map(|norm| norm.1))
    };
    if eps(a) != eps(b) {
        let (blocks, last, embedding) = eps(b);
        let said = |x: &Architecture| x.parts.blocks.first().map_or(0.0, |block| block.eps);
        trials.push(trial("eps", format!("{:e} in A and {:e} in B", said(a), said(b)), true, move |x: &mut Architecture| {
            for (block, (eps, of_heads)) in x.parts.blocks.iter_mut().zip(&blocks) {
                block.eps = *eps;
                block.attention.head_norms = block.attention.head_norms.and(*of_heads);
            }
            x.parts.last_norm = x.parts.last_norm.map(|(kind, old)| (kind, last.unwrap_or(old)));
            x.parts.embedding.norm = x.parts.embedding.norm.map(|(kind, old)| (kind, embedding.unwrap_or(old)));
        }));
    }
    field!("softcap", |b: &BlockConfig| b.attention.softcap, |block: &mut BlockConfig, y| block.attention.softcap = y);
    field!("scale", |b: &BlockConfig| b.attention.scale, |block: &mut BlockConfig, y| block.attention.scale = y);
    field!("window", |b: &BlockConfig| b.attention.window, |block: &mut BlockConfig, y| block.attention.window = y);
    let places = |x: &Architecture| {
        let wiring: Vec<_> = x.parts.blocks.iter().map(|block| block.wiring).collect();
        (wiring, x.parts.last_norm.is_some(), x.parts.embedding.norm.is_some())
    };
    if places(a) != places(b) {
        let (wiring, last, embedding) = (places(b).0, b.parts.last_norm, b.parts.embedding.norm);
        let said = |x: &Architecture| format!("{:?}", x.parts.blocks.first().map(|block| block.wiring).unwrap_or_default());
        let what = format!("{} in A and {} in B", said(a), said(b));
        trials.push(trial("norm placement", what, true, move |x: &mut Architecture| {
            x.parts.blocks.iter_mut().zip(&wiring).for_each(|(block, wiring)| block.wiring = *wiring);
            (x.parts.last_norm, x.parts.embedding.norm) = (last, embedding);
        }));
    }
    field!("kind of norm", |b: &BlockConfig| b.norm, |block: &mut BlockConfig, y| block.norm = y);
    field!("activation", |b: &BlockConfig| b.mlp.activation, |block: &mut BlockConfig, y| block.mlp.activation = y);
    field!(
        "biases of attention",
        |b: &BlockConfig| (b.attention.bias, b.attention.out_bias),
        |block: &mut BlockConfig, y: (bool, bool)| {
            (block.attention.bias, block.attention.out_bias) = y;
        }
    );
    field!("norms of queries and keys", |b: &BlockConfig| b.attention.head_norms.is_some(), |block: &mut BlockConfig, y: bool| {
        block.attention.head_norms = y.then_some(block.eps);
    });
    let embedding = |x: &Architecture| x.parts.embedding.clone();
    let (x, y) = (embedding(a), embedding(b));
    if x.scale != y.scale {
        let to = y.scale;
        trials.push(trial("scale of the embedding", format!("{:?} in A and {to:?} in B", x.scale), true, move |a| {
            a.parts.embedding.scale = to
        }));
    }
    let kind = |positions: Positions| std::mem::discriminant(&positions);
    if (kind(x.positions), x.first_position) != (kind(y.positions), y.first_position) {
        let (to, first) = (y.positions, y.first_position);
        let what = format!("{:?} from {} in A and {to:?} from {first} in B", x.positions, x.first_position);
        trials.push(trial("positions", what, true, move |a| {
            (a.parts.embedding.positions, a.parts.embedding.first_position) = (to, first);
        }));
    }
    if let (Some(x), Some(y)) = (a.parts.head.clone(), b.parts.head.clone()) {
        if x.tied != y.tied {
            let said = |tied: bool| if tied { "the embedding's table" } else { "its own" };
            let (what, tied) = (format!("the last matrix is {} in A and {} in B", said(x.tied), said(y.tied)), y.tied);
            trials.push(trial("tied embeddings", what, true, move |a| a.parts.head.iter_mut().for_each(|head| head.tied = tied)));
        }
        if x.softcap != y.softcap {
            let (what, cap) = (format!("of logits {:?} in A and {:?} in B", x.softcap, y.softcap), y.softcap);
            trials.push(trial("softcap", what, true, move |a| a.parts.head.iter_mut().for_each(|head| head.softcap = cap)));
        }
    }
    if a.gains_plus_one != b.gains_plus_one && a.family == b.family {
        let to = b.gains_plus_one;
        trials.push(trial("gains of norms less one", format!("{} in A and {to} in B", a.gains_plus_one), true, move |a| {
            a.gains_plus_one = to
        }));
    }
    trials
}

/// Usual mistakes that no file says.
fn unstated(a: &Architecture) -> Vec<Trial> {
    let mut trials = Vec::new();
    let Some(first) = a.parts.blocks.first().cloned() else { return trials };
    if let Some(own) = first.attention.rotary {
        let other = if own.pairs == Pairs::Halves { Pairs::Interleaved } else { Pairs::Halves };
        trials.push(trial(
            "rotary pairing",
            format!("{:?} in A, as if {other:?} in B", own.pairs),
            false,
            rotary(move |r| r.pairs = other),
        ));
        for base in [1e3, 1e4, 1e5, 5e5, 1e6].into_iter().filter(|base| *base != own.base) {
            trials.push(trial("theta", format!("{} in A, as if {base} in B", own.base), false, rotary(move |r| r.base = base)));
        }
        if own.scaling != Scaling::None {
            trials.push(trial("rotary scaling", "not applied in B".to_owned(), false, rotary(|r| r.scaling = Scaling::None)));
        }
        trials.push(trial("rotary positions", "none in B".to_owned(), false, attention(|attention| attention.rotary = None)));
    }
    for eps in [1e-12, 1e-8, 1e-6, 1e-5, 1e-3].into_iter().filter(|eps| *eps != first.eps) {
        trials.push(trial("eps", format!("{} in A, as if {eps} in B", first.eps), false, move |a: &mut Architecture| {
            a.parts.blocks.iter_mut().for_each(|block| {
                block.eps = eps;
                block.attention.head_norms = block.attention.head_norms.map(|_| eps);
            });
            a.parts.last_norm.iter_mut().for_each(|norm| norm.1 = eps);
        }));
    }
    if first.attention.softcap.is_some() {
        trials.push(trial("softcap", "of scores: none in B".to_owned(), false, attention(|attention| attention.softcap = None)));
    }
    if let Some(cap) = a.parts.head.as_ref().and_then(|head| head.softcap) {
        trials.push(trial("softcap", format!("of logits: {cap} in A, none in B"), false, |a| {
            a.parts.head.iter_mut().for_each(|head| head.softcap = None);
        }));
    }
    let inverse_width = ScaleKind::Value(1.0 / (a.parts.width as f64).sqrt());
    for (what, scale) in [("off", ScaleKind::Off), ("1 / sqrt(head_dim)", ScaleKind::InvSqrtDim), ("1 / sqrt(width)", inverse_width)] {
        if scale != first.attention.scale {
            let what = format!("{:?} in A, as if {what} in B", first.attention.scale);
            trials.push(trial("scale", what, false, attention(move |attention| attention.scale = scale)));
        }
    }
    let windows: Vec<_> = a.parts.blocks.iter().map(|block| block.attention.window).collect();
    if let Some(Some(window)) = windows.iter().find(|window| window.is_some()).copied() {
        trials.push(trial("window", format!("{window} in A, none in B"), false, attention(|attention| attention.window = None)));
        for (near, what) in [(window + 1, "one more"), (window.saturating_sub(1), "one less")] {
            trials.push(trial(
                "window",
                format!("{window} in A, {what} in B"),
                false,
                attention(move |attention| {
                    attention.window = attention.window.map(|_| near);
                }),
            ));
        }
        if windows.iter().any(Option::is_none) {
            trials.push(trial(
                "window",
                "in some layers of A, in all of B".to_owned(),
                false,
                attention(move |attention| {
                    attention.window = Some(window);
                }),
            ));
            let moved: Vec<_> = windows.iter().map(|own| if own.is_some() { None } else { Some(window) }).collect();
            trials.push(trial("window", "in the other layers of B".to_owned(), false, move |a: &mut Architecture| {
                a.parts.blocks.iter_mut().zip(&moved).for_each(|(block, window)| block.attention.window = *window);
            }));
        }
    }
    for wiring in [BlockWiring::PreNorm, BlockWiring::Parallel, BlockWiring::PostNorm].into_iter().filter(|w| *w != first.wiring) {
        trials.push(trial(
            "norm placement",
            format!("{:?} in A, as if {wiring:?} in B", first.wiring),
            false,
            blocks(move |b| b.wiring = wiring),
        ));
    }
    for kind in [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu] {
        if kind != first.mlp.activation {
            let what = format!("{:?} in A, as if {kind:?} in B", first.mlp.activation);
            trials.push(trial("activation", what, false, blocks(move |block| block.mlp.activation = kind)));
        }
    }
    let (scale, root) = (a.parts.embedding.scale, (a.parts.width as f64).sqrt());
    for to in [None, Some(root)].into_iter().filter(|to| *to != scale) {
        let what = format!("{scale:?} in A, as if {to:?} in B");
        trials.push(trial("scale of the embedding", what, false, move |a| a.parts.embedding.scale = to));
    }
    if let Some(tied) = a.parts.head.as_ref().map(|head| head.tied) {
        trials.push(trial("tied embeddings", format!("{tied} in A, {} in B", !tied), false, move |a| {
            a.parts.head.iter_mut().for_each(|head| head.tied = !tied);
        }));
    }
    let plus = a.gains_plus_one;
    trials.push(trial("gains of norms less one", format!("{plus} in A, {} in B", !plus), false, move |a| a.gains_plus_one = !plus));
    trials
}

/// Results of a side on the trial's texts: logits, or hidden states where there is no head.
fn results(side: Side<'_>, texts: &[Vec<u32>]) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    for ids in texts {
        let run = side.model.run(ids, side.edits, side.sources)?;
        let rows = run.hidden().to_owned();
        all.extend(side.results(rows.as_slice().expect("standard layout"))?);
    }
    Ok(all)
}

/// The root mean square of the difference over that of `b`.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let (difference, size) = a.iter().zip(b).fold((0.0, 0.0), |(d, s), (a, b)| (d + square(a - b), s + square(*b)));
    if difference == 0.0 { 0.0 } else { (difference / size.max(f64::MIN_POSITIVE)).sqrt() }
}

/// What tensors say.
fn of_tensors(differences: &[TensorDifference], a: &Model) -> Vec<Cause> {
    let mut found: BTreeMap<(usize, &'static str), (usize, String)> = BTreeMap::new();
    let mut put = |rank: usize, name: &'static str, what: String| {
        let entry = found.entry((rank, name)).or_insert((0, what));
        entry.0 += 1;
    };
    for d in differences {
        match &d.change {
            Change::Pairing => put(0, "rotary pairing", format!("rows of {} are in the order of the other pairing", d.name)),
            Change::Exchanged(other) if other == "tokens.table" => {
                put(0, "tied embeddings", format!("{} is the embedding's table in B", d.name))
            }
            Change::Exchanged(other) => put(1, "exchanged tensors", format!("{} of B is {other} of A", d.name)),
            Change::Heads => put(1, "order of heads", format!("{} has A's heads in another order", d.name)),
            Change::Transposed => put(1, "transposed tensors", format!("{} is transposed in B", d.name)),
            Change::One => put(1, "missing tensors", format!("{} is all one in B", d.name)),
            Change::Zero => put(1, "missing tensors", format!("{} is all zero in B", d.name)),
            Change::Shifted(by) => put(1, "gains of norms less one", format!("{} has {by:+} in B", d.name)),
            Change::Scaled(by) if d.name.contains(".attention.q.") || d.name.contains(".attention.k.") => {
                put(0, "scale", format!("{} is {by:.6} times A's", d.name));
            }
            Change::Scaled(by) => put(1, "scaled tensors", format!("{} is {by:.6} times A's", d.name)),
            Change::Rounded(kind) => {
                put(2, "quantisation type", format!("{} is {} in A and rounded to {kind} in B ({})", d.name, d.kinds[0], d.kinds[1]))
            }
            Change::Other if d.kinds[0] != d.kinds[1] => {
                put(
                    2,
                    "quantisation type",
                    format!("{} is {} in A and {} in B, off by {:.1e}", d.name, d.kinds[0], d.kinds[1], d.relative),
                );
            }
            Change::Other => put(3, "other weights", format!("{} differs by {:.1e} of its size", d.name, d.relative)),
        }
    }
    let all = a.transformer().layout().entries().len();
    let named = |((_, name), (count, what)): ((usize, &'static str), (usize, String))| {
        let more = if count > 1 { format!("; {count} of {all} tensors") } else { String::new() };
        // All that differs is of this kind: nothing else is left.
        let left = (count == differences.len()).then_some(0.0);
        Cause { name, what: format!("{what}{more}"), left }
    };
    found.into_iter().map(named).collect()
}

/// Causes, the most likely first.
pub(super) fn find(a: Side<'_>, b: Side<'_>, texts: &[Vec<u32>], difference: &Difference) -> Result<Vec<Cause>> {
    let mut causes = Vec::new();
    if let Some(tokens) = &difference.tokens {
        let name = if tokens.bos { "BOS" } else { "tokenizer" };
        causes.push(Cause { name, what: format!("of text {}: {}", tokens.text, tokens.what), left: None });
    }
    if difference.results <= ROUNDING && difference.first().is_none() {
        return Ok(causes);
    }
    let texts: Vec<Vec<u32>> = texts.iter().take(TRIAL_TEXTS).map(|ids| ids[..ids.len().min(TRIAL_TOKENS)].to_vec()).collect();
    let right = results(b, &texts)?;
    let whole = distance(&results(a, &texts)?, &right);
    let (ours, theirs) = (a.model.architecture(), b.model.architecture());
    let listed = stated(ours, theirs);
    let names: Vec<&str> = listed.iter().map(|trial| trial.name).collect();
    let mut tried: Vec<(Cause, bool)> = Vec::new();
    let others = unstated(ours);
    // What a file says is not guessed.
    let guessed = others.into_iter().filter(|trial| !names.contains(&trial.name));
    let mut attempt = |name: &'static str, what: String, stated: bool, apply: &dyn Fn(&mut Architecture)| {
        a.model.cancel().check()?;
        // A change that the tensors do not allow, or that gives no numbers, explains nothing.
        let made = a.model.changed(apply).and_then(|model| results(Side { model: &model, ..a }, &texts));
        let left = made.ok().map(|made| distance(&made, &right) / whole.max(f64::MIN_POSITIVE));
        if stated || left.is_some_and(|left| left < LEFT) {
            tried.push((Cause { name, what, left: left.map(|left| if left < 1e-3 { 0.0 } else { left }) }, stated));
        }
        Ok::<_, crate::Error>(())
    };
    let mut all = Vec::new();
    for trial in listed.into_iter().chain(guessed) {
        attempt(trial.name, trial.what.clone(), trial.stated, &*trial.apply)?;
        all.push(trial);
    }
    // Settings that the files say together.
    if all.iter().filter(|trial| trial.stated).count() > 1 {
        let apply = |architecture: &mut Architecture| all.iter().filter(|trial| trial.stated).for_each(|trial| (trial.apply)(architecture));
        attempt("several settings", names.join(", "), true, &apply)?;
    }
    if a.edits.is_empty() != b.edits.is_empty() || a.edits.canonical() != b.edits.canonical() {
        let made = results(Side { edits: b.edits, sources: b.sources, ..a }, &texts)?;
        let left = distance(&made, &right) / whole.max(f64::MIN_POSITIVE);
        tried.push((
            Cause { name: "edits", what: format!("{:?} in A and {:?} in B", a.edits.canonical(), b.edits.canonical()), left: Some(left) },
            true,
        ));
    }
    let mut rest = of_tensors(&compare(a.model, b.model)?, a.model);
    if rest.iter().any(|cause| cause.left.is_some()) {
        // B's tensors under A's settings: what then still differs from B is not of the tensors. Pairs belong to the order of rows.
        let parts = ours.parts.clone();
        let settings = move |architecture: &mut Architecture| {
            let pairs: Vec<_> = architecture.parts.blocks.iter().map(|block| block.attention.rotary.map(|r| r.pairs)).collect();
            architecture.parts = parts.clone();
            for (block, pairs) in architecture.parts.blocks.iter_mut().zip(pairs) {
                if let (Some(rotary), Some(pairs)) = (&mut block.attention.rotary, pairs) {
                    rotary.pairs = pairs;
                }
            }
        };
        let made = b.model.changed(&settings).and_then(|model| results(Side { model: &model, ..b }, &texts));
        if let Ok(made) = made {
            let left = distance(&made, &right) / whole.max(f64::MIN_POSITIVE);
            rest.iter_mut().for_each(|cause| cause.left = cause.left.map(|_| if left < 1e-3 { 0.0 } else { left }));
        }
    }
    rest.extend(tried.into_iter().map(|(cause, _)| cause));
    let rank = |cause: &Cause| match cause.name {
        // Several at once, and edits, only where no single cause does as well; other weights explain anything.
        "several settings" | "edits" => 1,
        "other weights" => 2,
        _ => 0,
    };
    let order = |cause: &Cause| {
        let left = cause.left.unwrap_or(0.4);
        (if left < 0.02 { 0 } else { 1 }, rank(cause), (left * 1e6) as u64)
    };
    rest.sort_by_key(order);
    let mut seen = Vec::new();
    rest.retain(|cause| {
        let new = !seen.contains(&cause.name);
        seen.push(cause.name);
        new
    });
    causes.extend(rest);
    Ok(causes)
}

/// The same model with other settings.
impl Model {
    pub(crate) fn changed(&self, change: &dyn Fn(&mut Architecture)) -> Result<Self> {
        let mut opened =
            if self.path() == std::path::Path::new(Self::BUILT_IN) { crate::open::built_in()? } else { crate::open::open(self.path())? };
        change(&mut opened.architecture);
        let model = Self::new(opened, self.path().to_owned())?;
        Ok(model.with_cancel(self.cancel()))
    }
}
