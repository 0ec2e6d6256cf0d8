//! Edits of a model's attention: one short string, the same in the command, in Python and in a link.
//!
//! ```text
//! edits  = edit *( "/" edit )
//! edit   = target "=" action [ "@" rows ]                    rows: 5-9, 7, last, all
//! target = scale | temp | mask | heads | L<set>[.H<set>|.KV<set>|.attn|.mlp|.SITE]        set: 3  0-5  1,4,7
//! SITE   = resid_pre | resid_mid | resid_post | attn_out | mlp_out         resid is resid_pre, mlp is mlp_out
//! action = zero | mean | resample:SEED | gain:0.5            of z, before W_O; of a SITE, of its rows
//!        | add:NAME[*2]                                      a named vector, to rows of a SITE or of z
//!        | patch:NAME[.z|q|k|v|weights]                      from a second text, by name; of a SITE without a letter
//!        | uniform | self | previous | first                 instead of the weights, over visible keys
//!        | scale:off|x | temp:x | mask:MASK | hide:first     of the scores
//! MASK   = causal full reverse window:15,0 first:4 with ~and~ ~or~ ~not~           instead of the model's own
//! ```
//!
//! `scale=off`, `temp=2` and `mask=full` are short for all heads. The order of things is scale, softcap, bias, temperature, mask, softmax,
//! weights, times v, z, W_O; biases of W_O are never touched. Two different edits of the same values are an error, but for several
//! additions. The [canonical form](Edits::canonical) is sorted and merged: two strings that mean the same have the same one. Edits of
//! `attn_out` and `mlp_out` add these to the stream in a step of its own, which may change the last bits.

mod apply;
mod canonical;
mod explain;
mod mask;
mod parse;
mod sources;

pub use apply::LayerActivations;
pub(crate) use apply::{EditProbe, Memory, Remember, head_changes, layer_change};
pub use mask::MaskExpr;
pub(crate) use sources::Dims;
pub use sources::{Arrays, Reference, Sources, Vectors};

use crate::error::{Error, Result};
use crate::hooks::Site;
use std::collections::BTreeSet;
use std::fmt;

/// Longer strings are refused.
pub const MOST_BYTES: usize = 4096;

/// Numbers of layers or heads.
pub type Set = BTreeSet<usize>;

/// What of a layer an edit is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// All heads.
    AllHeads,
    /// These query heads.
    Heads(Set),
    /// The query heads that read these key and value heads.
    KvHeads(Set),
    /// The network.
    Mlp,
    /// Rows of the residual stream, or what attention adds to it.
    Rows(Site),
}

/// Which rows (queries) an edit is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Rows {
    /// All.
    #[default]
    All,
    /// The last of the text; in writing, of each new token.
    Last,
    /// From the first to the second, both counted.
    Span(usize, usize),
}

impl Rows {
    /// Whether a row of a text of `len` rows is one of them.
    pub fn contains(self, row: usize, len: usize) -> bool {
        match self {
            Self::All => true,
            Self::Last => row + 1 == len,
            Self::Span(first, last) => (first..=last).contains(&row),
        }
    }

    fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Span(a, b), Self::Span(c, d)) => a <= d && c <= b,
            _ => true,
        }
    }
}

/// What of a second text is put in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Patch {
    /// The head's result.
    Z,
    /// Its queries.
    Q,
    /// Its keys.
    K,
    /// Its values.
    V,
    /// Its weights.
    Weights,
}

/// A pattern instead of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// All visible keys the same.
    Uniform,
    /// The query's own key.
    Own,
    /// The key before it; the first query has its own.
    Previous,
    /// The first key.
    First,
}

/// What an edit does.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Nothing is left.
    Zero,
    /// The mean over other texts.
    Mean,
    /// Rows of other texts, drawn by a seed.
    Resample(u64),
    /// Multiply by this factor.
    Gain(f64),
    /// Add a named vector times a factor.
    Add(String, f64),
    /// What a second text has there.
    Patch(String, Patch),
    /// A pattern instead of the weights.
    Weights(Pattern),
    /// Another scale; `None` for none.
    Scale(Option<f64>),
    /// Scores are divided by this.
    Temp(f64),
    /// Instead of the model's mask.
    Mask(MaskExpr),
    /// Only the first query sees the first key.
    HideFirst,
}

/// What an action changes: two edits of the same slot of the same place clash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Z,
    Q,
    K,
    V,
    Weights,
    Scale,
    Temp,
    Mask,
    Hide,
}

impl Action {
    fn slot(&self) -> Slot {
        match self {
            Self::Zero | Self::Mean | Self::Resample(_) | Self::Gain(_) | Self::Add(..) | Self::Patch(_, Patch::Z) => Slot::Z,
            Self::Patch(_, Patch::Q) => Slot::Q,
            Self::Patch(_, Patch::K) => Slot::K,
            Self::Patch(_, Patch::V) => Slot::V,
            Self::Patch(_, Patch::Weights) | Self::Weights(_) => Slot::Weights,
            Self::Scale(_) => Slot::Scale,
            Self::Temp(_) => Slot::Temp,
            Self::Mask(_) => Slot::Mask,
            Self::HideFirst => Slot::Hide,
        }
    }

    /// Together they would leave one without effect.
    fn clashes(&self, other: &Self) -> bool {
        let (a, b) = (self.slot(), other.slot());
        let scores = |slot| matches!(slot, Slot::Scale | Slot::Temp);
        let sum = matches!((self, other), (Self::Add(..), Self::Add(..)));
        (a == b && !sum) || (a == Slot::Weights && scores(b)) || (b == Slot::Weights && scores(a))
    }

    /// It replaces results of heads.
    pub(crate) fn is_of_results(&self) -> bool {
        self.slot() == Slot::Z
    }

    /// It leaves every number as it is.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Gain(x) | Self::Temp(x) if *x == 1.0) || matches!(self, Self::Add(_, x) if *x == 0.0)
    }
}

/// One edit.
#[derive(Debug, Clone, PartialEq)]
pub struct Edit {
    /// Which layers; `None` for all.
    pub layers: Option<Set>,
    /// What of them.
    pub part: Part,
    /// What is done.
    pub action: Action,
    /// To which rows.
    pub rows: Rows,
}

/// Several edits that do not clash.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Edits {
    edits: Vec<Edit>,
}

/// What of a model edits must fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Query heads of each.
    pub heads: usize,
    /// Key and value heads of each.
    pub kv_heads: usize,
}

impl Edits {
    /// Read a string; an empty one is no edits.
    ///
    /// # Errors
    /// [`Error::Edit`] with what is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Self> {
        parse::edits(text)
    }

    /// The edits, in canonical order.
    pub fn list(&self) -> &[Edit] {
        &self.edits
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The first of the layers of an edit, for their number.
    pub(crate) fn first_layer(&self, layers: usize) -> Option<usize> {
        (0..layers).find(|layer| self.edits.iter().any(|edit| edit.on_layer(*layer)))
    }

    /// The names of the second texts that are needed.
    pub fn texts(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.edits.iter().filter_map(|e| if let Action::Patch(name, _) = &e.action { Some(name.as_str()) } else { None }).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The names of the vectors that are added.
    pub fn vectors(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.edits.iter().filter_map(|e| if let Action::Add(name, _) = &e.action { Some(name.as_str()) } else { None }).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Other texts are needed, to take means or rows from.
    pub fn needs_reference(&self) -> bool {
        self.edits.iter().any(|e| matches!(e.action, Action::Mean | Action::Resample(_)))
    }

    /// The same edits as one string, sorted and merged: the key of caches and links.
    pub fn canonical(&self) -> String {
        self.to_string()
    }

    /// The edits in words, one sentence each.
    pub fn explain(&self) -> String {
        explain::explain(self)
    }

    /// Whether every edit finds what it names in a model.
    ///
    /// # Errors
    /// [`Error::Edit`] with the layer or head that is not there.
    pub fn check(&self, shape: Shape) -> Result<()> {
        for edit in &self.edits {
            let refused = |what: &str, number: usize, count: usize| {
                let reason = format!("it matches nothing: there is no {what} {number}, the model has {count}, counted from 0");
                Err(Error::Edit { edit: edit.to_string(), reason })
            };
            if let Some(layer) = edit.layers.iter().flatten().find(|layer| **layer >= shape.layers) {
                return refused("layer", *layer, shape.layers);
            }
            let (what, set, count) = match &edit.part {
                Part::Heads(set) => ("head", set, shape.heads),
                Part::KvHeads(set) => ("key and value head", set, shape.kv_heads),
                Part::AllHeads | Part::Mlp | Part::Rows(_) => continue,
            };
            if let Some(head) = set.iter().find(|head| **head >= count) {
                return refused(what, *head, count);
            }
        }
        self.check_clashes(Some(shape))
    }

    /// Whether rows that edits name are there.
    ///
    /// # Errors
    /// [`Error::Edit`] when a text of `len` tokens has none of them.
    pub fn check_rows(&self, len: usize) -> Result<()> {
        match self.edits.iter().find(|e| matches!(e.rows, Rows::Span(first, _) if first >= len)) {
            None => Ok(()),
            Some(edit) => {
                let reason = format!("it matches nothing: the text has {len} tokens, counted from 0");
                Err(Error::Edit { edit: edit.to_string(), reason })
            }
        }
    }

    fn check_clashes(&self, shape: Option<Shape>) -> Result<()> {
        for (i, a) in self.edits.iter().enumerate() {
            for b in &self.edits[i + 1..] {
                if a.meets(b, shape) && a.action.clashes(&b.action) {
                    let reason = format!("it clashes with {:?}: both change the same values, in no defined order", a.to_string());
                    return Err(Error::Edit { edit: b.to_string(), reason });
                }
            }
        }
        Ok(())
    }
}

impl Edit {
    /// Heads of a layer that it is about, of a model of this shape.
    pub(crate) fn heads(&self, shape: Shape) -> Vec<usize> {
        match &self.part {
            Part::AllHeads => (0..shape.heads).collect(),
            Part::Heads(set) => set.iter().copied().collect(),
            Part::KvHeads(set) => {
                let group = shape.heads / shape.kv_heads.max(1);
                set.iter().flat_map(|kv| kv * group..(kv + 1) * group).collect()
            }
            Part::Mlp | Part::Rows(_) => Vec::new(),
        }
    }

    pub(crate) fn on_layer(&self, layer: usize) -> bool {
        self.layers.as_ref().is_none_or(|layers| layers.contains(&layer))
    }

    /// Heads of a layer are changed, not only rows of the stream.
    pub(crate) fn on_heads(&self, layer: usize) -> bool {
        self.on_layer(layer) && !matches!(self.part, Part::Mlp | Part::Rows(_))
    }

    /// The rows of the stream's width that it changes in a layer.
    pub(crate) fn site(&self) -> Option<Site> {
        match self.part {
            Part::Mlp => Some(Site::MlpOut),
            Part::Rows(site) => Some(site),
            _ => None,
        }
    }

    /// Places of the residual stream, counted from the embedding, two to a layer; of other edits none.
    fn places(&self) -> Set {
        let offset = match self.part {
            Part::Rows(Site::ResidPre) => 0,
            Part::Rows(Site::ResidMid) => 1,
            Part::Rows(Site::ResidPost) => 2,
            _ => return Set::new(),
        };
        self.layers.iter().flatten().map(|layer| 2 * layer + offset).collect()
    }

    /// Some number may be changed by both.
    fn meets(&self, other: &Self, shape: Option<Shape>) -> bool {
        let layers = match (&self.layers, &other.layers) {
            (Some(a), Some(b)) => a.intersection(b).next().is_some(),
            _ => true,
        };
        let parts = match (&self.part, &other.part) {
            // The stream after a layer is the one before the next.
            (Part::Rows(a), Part::Rows(b)) if *a != Site::AttnOut && *b != Site::AttnOut => {
                let same = self.places().intersection(&other.places()).next().is_some();
                return same && self.rows.overlaps(other.rows);
            }
            (Part::Mlp | Part::Rows(_), _) | (_, Part::Mlp | Part::Rows(_)) => self.part == other.part,
            (Part::Heads(a), Part::Heads(b)) | (Part::KvHeads(a), Part::KvHeads(b)) => a.intersection(b).next().is_some(),
            (Part::AllHeads, _) | (_, Part::AllHeads) => true,
            // Which heads read which: only a model says that.
            _ => shape.is_some_and(|shape| {
                let heads = self.heads(shape);
                other.heads(shape).iter().any(|head| heads.contains(head))
            }),
        };
        layers && parts && self.rows.overlaps(other.rows)
    }
}

impl fmt::Display for Edits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, edit) in self.edits.iter().enumerate() {
            write!(f, "{}{edit}", if i == 0 { "" } else { "/" })?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Edits {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}
