//! Edits in words.

use super::{Action, Edit, Edits, Part, Patch, Pattern, Rows, Set};
use crate::hooks::Site;

pub(super) fn explain(edits: &Edits) -> String {
    if edits.is_empty() {
        return "Nothing is changed.".to_owned();
    }
    edits.list().iter().map(sentence).collect::<Vec<_>>().join("\n")
}

fn list(one: &str, many: &str, set: &Set) -> String {
    let numbers: Vec<String> = set.iter().map(usize::to_string).collect();
    match numbers.as_slice() {
        [only] => format!("{one} {only}"),
        [all @ .., last] => format!("{many} {} and {last}", all.join(", ")),
        [] => format!("no {one}"),
    }
}

fn sentence(edit: &Edit) -> String {
    let layers = edit.layers.as_ref().map_or("every layer".to_owned(), |set| list("layer", "layers", set));
    let place = match &edit.part {
        Part::AllHeads => format!("all heads of {layers}"),
        Part::Heads(set) => format!("{} of {layers}", list("head", "heads", set)),
        Part::KvHeads(set) => format!("the heads that read {} of {layers}", list("key and value head", "key and value heads", set)),
        Part::Mlp => format!("the network of {layers}"),
        Part::Rows(Site::AttnOut) => format!("the attention of {layers}"),
        Part::Rows(Site::ResidMid) => format!("the residual stream between attention and network of {layers}"),
        Part::Rows(Site::ResidPost) => format!("the residual stream after {layers}"),
        Part::Rows(_) => format!("the residual stream before {layers}"),
    };
    let (what, behind) = match edit.part {
        Part::Mlp | Part::Rows(Site::AttnOut) => ("its result", ""),
        Part::Rows(_) => ("it", ""),
        _ => ("z", ", before W_O"),
    };
    let done = match &edit.action {
        Action::Zero => format!("{what} becomes zero{behind}"),
        Action::Mean => format!("{what} becomes its mean over other texts{behind}"),
        Action::Resample(seed) => format!("{what} is taken from rows of other texts, drawn by seed {seed}{behind}"),
        Action::Gain(x) => format!("{what} is multiplied with {x}{behind}"),
        Action::Add(name, x) => format!("the vector {name} times {x} is added to {what}{behind}"),
        Action::Patch(name, patch) => match patch {
            Patch::Z => format!("{what} becomes that of text {name}{behind}"),
            Patch::Q => format!("queries are those of text {name}"),
            Patch::K => format!("keys are those of text {name}"),
            Patch::V => format!("values are those of text {name}"),
            Patch::Weights => format!("weights are those of text {name}"),
        },
        Action::Weights(pattern) => match pattern {
            Pattern::Uniform => "all visible keys weigh the same".to_owned(),
            Pattern::Own => "each query attends to its own key alone".to_owned(),
            Pattern::Previous => "each query attends to the key before it alone (the first to its own)".to_owned(),
            Pattern::First => "each query attends to the first key alone".to_owned(),
        },
        Action::Scale(None) => "scores are not scaled".to_owned(),
        Action::Scale(Some(x)) => format!("dot products are multiplied with {x} instead of the model's scale"),
        Action::Temp(x) => format!("scores are divided by {x}"),
        Action::Mask(mask) => format!("a query sees {} instead of what the model's mask allows", mask.words()),
        Action::HideFirst => "only the first query sees the first key".to_owned(),
    };
    let rows = match edit.rows {
        Rows::All => String::new(),
        Rows::Last => ", at the last row".to_owned(),
        Rows::Span(first, last) if first == last => format!(", at row {first}"),
        Rows::Span(first, last) => format!(", at rows {first} to {last}"),
    };
    let mut sentence = format!("{place}: {done}{rows}.");
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    sentence
}
