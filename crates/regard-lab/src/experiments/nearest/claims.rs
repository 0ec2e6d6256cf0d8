//! The bonus challenge on sparse attention.

use crate::error::Result;
use crate::judging::{Answer, estimate};
use crate::rules::CHEAP;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let Some(table) = tables.find("nearest") else { return Ok(Vec::new()) };
    let kept = 8usize;
    if table.rows_where("keys", kept).next().is_none() {
        return Ok(Vec::new());
    }
    let of = |column| estimate(tables, "nearest", &[("keys", kept.into())], column);
    let random = estimate(tables, "nearest_random", &[("keys", kept.into())], "error")?;
    Ok(vec![Answer {
        id: "nearest",
        verdict: match (of("added")?.below(CHEAP), random.below(CHEAP)) {
            (Some(true), Some(true)) => Verdict::Holds,
            (Some(true), Some(false)) => Verdict::HoldsInPart,
            (Some(false), Some(false)) => Verdict::Wrong,
            _ => Verdict::Undecided,
        },
        because: format!(
            "With the {kept} nearest keys the loss of a trained model rises by {} nats, with the {kept} latest keys by {}. The output \
             for random vectors of 64 tokens is off by {} of its length. (Edge: {CHEAP} for both.)",
            of("added")?.words(),
            of("latest_added")?.words(),
            random.words()
        ),
    }])
}
