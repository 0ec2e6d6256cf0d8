//! Claims about heads and the scale, tested on models that were trained on text.
//!
//! ```text
//! adjacent words    more weight on the previous token than even weights have
//! subject-verb      more weight on the subject than on the other noun, in both word orders; synonyms likewise
//! no scale          the loss rises
//! ```
//!
//! One edge for every kind of head. Each claim has to hold in every model, with intervals widened to Student's for few texts.

use super::figures::models;
use super::relations::{ORDERS, RELATIONS};
use crate::error::Result;
use crate::judging::{Answer, estimate};
use crate::rules::{HEAD_EXCESS, few_texts, worse};
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

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let names = models(tables.get("real_edits")?)?;
    let each = |of: &dyn Fn(&str) -> Result<Estimate>| names.iter().map(|name| of(name)).collect::<Result<Vec<Estimate>>>();
    let words =
        |values: &[Estimate]| names.iter().zip(values).map(|(name, e)| format!("{} in {name}", e.words())).collect::<Vec<_>>().join(", ");
    // Intervals over texts are a bootstrap: widened to Student's.
    let texts = |model: &str| tables.number("real_edits", &[("model", model.into())], "texts").map(|n| n as usize);
    let edit = |edit: &str| {
        each(&|model| {
            let change = estimate(tables, "real_edits", &[("model", model.into()), ("edit", edit.into())], "change")?;
            Ok(few_texts(change, texts(model)?))
        })
    };
    let adjacent = each(&|model| {
        let lift = estimate(tables, "real_kinds", &[("model", model.into()), ("kind", "previous".into())], "lift")?;
        Ok(few_texts(lift, texts(model)? / 2))
    })?;
    // The worse word order of each model.
    let related = |relation: &str| {
        each(&|model| {
            let at =
                |order: &str| -> [(&str, Value); 3] { [("model", model.into()), ("relation", relation.into()), ("order", order.into())] };
            let both = [
                estimate(tables, "real_relations", &at(ORDERS[0]), "excess")?,
                estimate(tables, "real_relations", &at(ORDERS[1]), "excess")?,
            ];
            Ok(worse(both[0], both[1]))
        })
    };
    let (subject, synonym, scale, half) = (related(RELATIONS[0])?, related(RELATIONS[1])?, edit("scale=off")?, edit("temp=2")?);
    let above = |values: &[Estimate], edge: f64| verdict(&values.iter().map(|e| e.above(edge)).collect::<Vec<_>>());
    Ok(vec![
        Answer {
            id: "adjacent-words",
            verdict: above(&adjacent, HEAD_EXCESS),
            because: format!(
                "The head with most weight on the previous token, chosen on half of the texts, has an excess over even weights of {} on \
                 the other half.",
                words(&adjacent)
            ),
        },
        Answer {
            id: "subject-verb",
            verdict: above(&subject, HEAD_EXCESS),
            because: format!(
                "Reading the verb, one head looks at the subject rather than at the other noun (difference {}, in the worse word \
                 order). The head was chosen on one set of words and tested on another. Living beings and things, singular and plural \
                 are subject and other noun equally often.",
                words(&subject)
            ),
        },
        Answer {
            id: "synonyms",
            verdict: above(&synonym, HEAD_EXCESS),
            because: format!(
                "Reading an adjective, one head gives its synonym more weight than another adjective (difference {}, in the worse word \
                 order).",
                words(&synonym)
            ),
        },
        Answer {
            id: "remove-the-scale",
            verdict: above(&scale, 0.0),
            because: format!(
                "Without the scale the loss of trained models changes by {} nats per token; halving the scores instead changes it by {}.",
                words(&scale),
                words(&half)
            ),
        },
    ])
}
