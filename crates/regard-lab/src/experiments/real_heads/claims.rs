//! What was said about heads and about the scale, asked of models that were trained on text.
//!
//! ```text
//! adjacent words    the head's lift on the token before is above the label's edge of `regard classify`
//! subject-verb      more weight on the subject than on the other noun, in both orders of the words; synonyms likewise
//! no scale          the loss rises
//! ```
//!
//! Each has to hold in every model that was asked, four standard errors clear of its edge.

use super::figures::models;
use super::relations::{ORDERS, RELATIONS};
use super::run::LABEL;
use crate::error::Result;
use crate::judging::{Judged, estimate};
use crate::published::Document;
use crate::statistics::estimate::Estimate;
use regard_plot::page::Verdict;
use regard_plot::{Tables, Value};

/// Of every model: it holds, holds in some, holds in none; undecided where one is.
fn verdict(answers: &[Option<bool>]) -> Verdict {
    let yes = answers.iter().filter(|answer| **answer == Some(true)).count();
    match () {
        () if answers.contains(&None) => Verdict::Undecided,
        () if yes == answers.len() => Verdict::Holds,
        () if yes > 0 => Verdict::HoldsInPart,
        () => Verdict::Wrong,
    }
}

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let names = models(tables.get("real_edits")?)?;
    let each = |of: &dyn Fn(&str) -> Result<Estimate>| names.iter().map(|name| of(name)).collect::<Result<Vec<Estimate>>>();
    let words =
        |values: &[Estimate]| names.iter().zip(values).map(|(name, e)| format!("{} in {name}", e.words())).collect::<Vec<_>>().join(", ");
    let edit = |edit: &str| each(&|model| estimate(tables, "real_edits", &[("model", model.into()), ("edit", edit.into())], "change"));
    let adjacent = each(&|model| estimate(tables, "real_kinds", &[("model", model.into()), ("kind", "previous".into())], "lift"))?;
    // The order in which it does worse, of each model.
    let related = |relation: &str| {
        each(&|model| {
            let at =
                |order: &str| -> [(&str, Value); 3] { [("model", model.into()), ("relation", relation.into()), ("order", order.into())] };
            let both = [
                estimate(tables, "real_relations", &at(ORDERS[0]), "excess")?,
                estimate(tables, "real_relations", &at(ORDERS[1]), "excess")?,
            ];
            Ok(if both[0].low < both[1].low { both[0] } else { both[1] })
        })
    };
    let (subject, synonym, scale, half) = (related(RELATIONS[0])?, related(RELATIONS[1])?, edit("scale=off")?, edit("temp=2")?);
    let above = |values: &[Estimate], edge: f64| verdict(&values.iter().map(|e| e.above(edge)).collect::<Vec<_>>());
    Ok(vec![
        Judged {
            document: Document::Insights,
            claim: "a head learns where words stand (\u{201c}adjacent words\u{201d})",
            verdict: above(&adjacent, LABEL),
            because: format!(
                "Asked of models that others trained: the head that looks at the token before it most on half of the texts has a lift over even weights of {}, on the other half. (A label asks for {LABEL}.)",
                words(&adjacent)
            ),
        },
        Judged {
            document: Document::Insights,
            claim: "a head learns syntax (\u{201c}subject-verb\u{201d})",
            verdict: above(&subject, 0.0),
            because: format!(
                "From the verb, the best head gives the subject's noun more weight than another noun by {}, in the order of the two nouns that it does worse in. It was chosen with other words. That it looks there does not say why.",
                words(&subject)
            ),
        },
        Judged {
            document: Document::Insights,
            claim: "a head learns what words mean (\u{201c}synonyms\u{201d})",
            verdict: above(&synonym, 0.0),
            because: format!(
                "From an adjective, the best head gives its synonym more weight than another adjective by {}, in the worse order.",
                words(&synonym)
            ),
        },
        Judged {
            document: Document::Surgeon,
            claim: "take the scale out of a model, and watch it fail",
            verdict: above(&scale, 0.0),
            because: format!(
                "Without the scale the loss of trained models changes by {} (nats a token). That is a matter of size, not of the scale as such: scores that are halved change it by {}.",
                words(&scale),
                words(&half)
            ),
        },
    ])
}
