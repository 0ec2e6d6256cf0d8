//! One way to write what edits mean.

use super::{Action, Edit, Part, Patch, Pattern, Rows, Set};
use std::fmt;

/// Edits that do the same in several places as one, in order.
pub(super) fn merged(edits: Vec<Edit>) -> Vec<Edit> {
    let mut heads: Vec<Edit> = Vec::new();
    for edit in edits {
        // The same action on the same layers: more heads.
        let same = heads.iter_mut().find(|known| known.action == edit.action && known.rows == edit.rows && known.layers == edit.layers);
        match same.map(|known| (&mut known.part, &edit.part)) {
            Some((Part::Heads(all), Part::Heads(more)) | (Part::KvHeads(all), Part::KvHeads(more))) => all.extend(more),
            Some((all, more)) if *all == *more => {}
            _ => heads.push(edit),
        }
    }
    let mut merged: Vec<Edit> = Vec::new();
    for edit in heads {
        let same = merged.iter_mut().find(|known| known.action == edit.action && known.rows == edit.rows && known.part == edit.part);
        match same.map(|known| (&mut known.layers, &edit.layers)) {
            Some((Some(all), Some(more))) => all.extend(more),
            Some((None, None)) => {}
            _ => merged.push(edit),
        }
    }
    merged.sort_by_cached_key(|edit| {
        let first = |set: &Set| set.first().copied().unwrap_or(0);
        let heads = match &edit.part {
            Part::Heads(set) | Part::KvHeads(set) => first(set) + 1,
            Part::AllHeads => 0,
            Part::Mlp | Part::Rows(_) => usize::MAX,
        };
        (edit.layers.as_ref().map_or(0, |set| first(set) + 1), heads, edit.to_string())
    });
    merged
}

/// `0-2,5`
struct Written<'s>(&'s Set);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut numbers, mut comma) = (self.0.iter().copied().peekable(), "");
        while let Some(first) = numbers.next() {
            let mut last = first;
            while numbers.peek() == Some(&(last + 1)) {
                last += 1;
                numbers.next();
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.layers, &self.part, &self.action) {
            (None, _, Action::Scale(None)) => write!(f, "scale=off")?,
            (None, _, Action::Scale(Some(x))) => write!(f, "scale={x}")?,
            (None, _, Action::Temp(x)) => write!(f, "temp={x}")?,
            (None, _, Action::Mask(mask)) => write!(f, "mask={mask}")?,
            (None, _, action) => write!(f, "heads={action}")?,
            (Some(layers), part, action) => {
                write!(f, "L{}", Written(layers))?;
                match part {
                    Part::AllHeads => {}
                    Part::Heads(set) => write!(f, ".H{}", Written(set))?,
                    Part::KvHeads(set) => write!(f, ".KV{}", Written(set))?,
                    Part::Mlp => write!(f, ".mlp")?,
                    Part::Rows(site) => write!(f, ".{}", site.name())?,
                }
                write!(f, "={action}")?;
            }
        }
        match self.rows {
            Rows::All => Ok(()),
            Rows::Last => write!(f, "@last"),
            Rows::Span(first, last) if first == last => write!(f, "@{first}"),
            Rows::Span(first, last) => write!(f, "@{first}-{last}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => write!(f, "zero"),
            Self::Mean => write!(f, "mean"),
            Self::Resample(seed) => write!(f, "resample:{seed}"),
            Self::Gain(x) => write!(f, "gain:{x}"),
            Self::Add(name, 1.0) => write!(f, "add:{name}"),
            Self::Add(name, x) => write!(f, "add:{name}*{x}"),
            Self::Patch(name, what) => {
                let what = match what {
                    Patch::Z => "",
                    Patch::Q => ".q",
                    Patch::K => ".k",
                    Patch::V => ".v",
                    Patch::Weights => ".weights",
                };
                write!(f, "patch:{name}{what}")
            }
            Self::Weights(Pattern::Uniform) => write!(f, "uniform"),
            Self::Weights(Pattern::Own) => write!(f, "self"),
            Self::Weights(Pattern::Previous) => write!(f, "previous"),
            Self::Weights(Pattern::First) => write!(f, "first"),
            Self::Scale(None) => write!(f, "scale:off"),
            Self::Scale(Some(x)) => write!(f, "scale:{x}"),
            Self::Temp(x) => write!(f, "temp:{x}"),
            Self::Mask(mask) => write!(f, "mask:{mask}"),
            Self::HideFirst => write!(f, "hide:first"),
        }
    }
}
