//! From a string to edits.

use super::{Action, Edit, Edits, MOST_BYTES, MaskExpr, Part, Patch, Pattern, Rows, Set, canonical};
use crate::error::{Error, Result};
use crate::hooks::Site;

/// Layers and heads are below this number, and a set lists at most this many: no model has more.
const MOST_NUMBER: usize = 1 << 12;

pub(super) fn edits(text: &str) -> Result<Edits> {
    if text.len() > MOST_BYTES {
        let start: String = text.chars().take(40).collect();
        return Err(Error::Edit {
            edit: format!("{start}..."),
            reason: format!("it has {} bytes, at most {MOST_BYTES} are possible", text.len()),
        });
    }
    let mut list = Vec::new();
    for text in text.split('/').filter(|_| !text.is_empty()) {
        list.push(edit(text).map_err(|reason| Error::Edit { edit: text.to_owned(), reason })?);
    }
    let edits = Edits { edits: canonical::merged(list) };
    edits.check_clashes(None)?;
    Ok(edits)
}

fn edit(text: &str) -> std::result::Result<Edit, String> {
    let (target, rest) = text.split_once('=').ok_or("an edit is TARGET=ACTION, as in L3.H1=zero")?;
    let (action, rows) = match rest.split_once('@') {
        Some((action, rows)) => (action, self::rows(rows)?),
        None => (rest, Rows::All),
    };
    let all = |action| Ok(Edit { layers: None, part: Part::AllHeads, action, rows });
    match target {
        "scale" => return all(scale(action)?),
        "temp" => return all(temp(action)?),
        "mask" => return all(Action::Mask(MaskExpr::parse(action)?)),
        "heads" => return all(self::action(action)?),
        _ => {}
    }
    let place = target
        .strip_prefix('L')
        .ok_or_else(|| format!("{target:?} is no target: scale, temp, mask, heads, L3, L3.H1, L3.KV0, L3.mlp and L3.resid_pre are"))?;
    let (layers, part) = match place.split_once('.') {
        None => (place, Part::AllHeads),
        Some((layers, "attn")) => (layers, Part::AllHeads),
        Some((layers, "mlp" | "mlp_out")) => (layers, Part::Mlp),
        Some((layers, "resid" | "resid_pre")) => (layers, Part::Rows(Site::ResidPre)),
        Some((layers, "resid_mid")) => (layers, Part::Rows(Site::ResidMid)),
        Some((layers, "resid_post")) => (layers, Part::Rows(Site::ResidPost)),
        Some((layers, "attn_out")) => (layers, Part::Rows(Site::AttnOut)),
        Some((layers, part)) => match (part.strip_prefix("KV"), part.strip_prefix('H')) {
            (Some(heads), _) => (layers, Part::KvHeads(set(heads)?)),
            (_, Some(heads)) => (layers, Part::Heads(set(heads)?)),
            _ => {
                return Err(format!(
                    "{part:?} is no part of a layer: H1, KV0, attn, mlp, resid_pre, resid_mid, resid_post, attn_out and mlp_out are"
                ));
            }
        },
    };
    let action = self::action(action)?;
    let of_rows = matches!(action, Action::Zero | Action::Gain(_) | Action::Add(..) | Action::Patch(_, Patch::Z));
    let of_mlp = of_rows || matches!(action, Action::Mean | Action::Resample(_));
    match part {
        Part::Mlp if !of_mlp => {
            Err("a network has no scores or weights: zero, mean, resample, gain, add and patch:NAME are possible".to_owned())
        }
        Part::Rows(site) if !of_rows => Err(format!("of {} only zero, gain, add and patch:NAME are possible", site.name())),
        _ => Ok(()),
    }?;
    Ok(Edit { layers: Some(set(layers)?), part, action, rows })
}

fn number(text: &str) -> std::result::Result<usize, String> {
    match text.parse::<usize>() {
        Ok(x) if x < MOST_NUMBER && !text.starts_with('+') => Ok(x),
        _ => Err(format!("{text:?} is no number of a layer, a head or a row")),
    }
}

fn set(text: &str) -> std::result::Result<Set, String> {
    let (mut all, mut listed) = (Set::new(), 0);
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("{part:?} goes backwards"));
        }
        listed += last - first + 1;
        if listed > MOST_NUMBER {
            return Err(format!("a set lists {listed} layers or heads and more; at most {MOST_NUMBER} are possible"));
        }
        all.extend(first..=last);
    }
    Ok(all)
}

fn rows(text: &str) -> std::result::Result<Rows, String> {
    match text {
        "all" => Ok(Rows::All),
        "last" => Ok(Rows::Last),
        _ => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            // Rows may be many: texts are long.
            let row = |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is no row: 5, 5-9, last and all are"));
            let (first, last) = (row(first)?, row(last)?);
            if first > last { Err(format!("rows {text:?} go backwards")) } else { Ok(Rows::Span(first, last)) }
        }
    }
}

fn real(text: &str, what: &str) -> std::result::Result<f64, String> {
    // Only what can be written again: no `inf`, no `nan`.
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b".-eE".contains(&b));
    match text.parse::<f64>() {
        Ok(x) if plain && x.is_finite() => Ok(if x == 0.0 { 0.0 } else { x }),
        _ => Err(format!("{text:?} is no number for {what}")),
    }
}

fn scale(text: &str) -> std::result::Result<Action, String> {
    Ok(Action::Scale(if text == "off" { None } else { Some(real(text, "a scale (or off)")?) }))
}

fn temp(text: &str) -> std::result::Result<Action, String> {
    match real(text, "a temperature")? {
        x if x > 0.0 => Ok(Action::Temp(x)),
        x => Err(format!("a temperature is positive, and {x} is not")),
    }
}

fn action(text: &str) -> std::result::Result<Action, String> {
    let (word, value) = match text.split_once(':') {
        Some((word, value)) => (word, Some(value)),
        None => (text, None),
    };
    match (word, value) {
        ("zero", None) => Ok(Action::Zero),
        ("mean", None) => Ok(Action::Mean),
        ("uniform", None) => Ok(Action::Weights(Pattern::Uniform)),
        ("self", None) => Ok(Action::Weights(Pattern::Own)),
        ("previous", None) => Ok(Action::Weights(Pattern::Previous)),
        ("first", None) => Ok(Action::Weights(Pattern::First)),
        ("resample", Some(seed)) => seed.parse().map(Action::Resample).map_err(|_| format!("{seed:?} is no seed")),
        ("gain", Some(x)) => real(x, "a gain").map(Action::Gain),
        ("add", Some(vector)) => {
            let (name, factor) = vector.split_once('*').unwrap_or((vector, "1"));
            Ok(Action::Add(self::name(name, "a vector")?, real(factor, "a factor")?))
        }
        ("scale", Some(x)) => scale(x),
        ("temp", Some(x)) => temp(x),
        ("mask", Some(mask)) => MaskExpr::parse(mask).map(Action::Mask),
        ("hide", Some("first")) => Ok(Action::HideFirst),
        ("patch", Some(patch)) => self::patch(patch),
        _ => Err(format!(
            "{text:?} is no action: zero, mean, resample:SEED, gain:0.5, add:NAME*2, patch:B, uniform, self, previous, first, scale:off, \
                temp:2, mask:full and hide:first are"
        )),
    }
}

fn patch(text: &str) -> std::result::Result<Action, String> {
    let (name, what) = match text.split_once('.') {
        None => (text, Patch::Z),
        Some((name, what)) => {
            let what = match what {
                "z" => Patch::Z,
                "q" => Patch::Q,
                "k" => Patch::K,
                "v" => Patch::V,
                "weights" => Patch::Weights,
                _ => return Err(format!("{what:?} cannot be patched: z, q, k, v and weights can")),
            };
            (name, what)
        }
    };
    Ok(Action::Patch(self::name(name, "a text")?, what))
}

fn name(name: &str, of: &str) -> std::result::Result<String, String> {
    let plain = !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if plain { Ok(name.to_owned()) } else { Err(format!("{name:?} is no name of {of}: letters, digits, - and _ are")) }
}
