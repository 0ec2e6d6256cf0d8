//! The bonus challenge on sparse attention.

use crate::error::Result;
use crate::judging::{Judged, estimate};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("nearest") else { return Ok(Vec::new()) };
    let kept = 8usize;
    if table.rows_where("keys", kept).next().is_none() {
        return Ok(Vec::new());
    }
    let of = |column| estimate(tables, "nearest", &[("keys", kept.into())], column);
    let random = estimate(tables, "nearest_random", &[("keys", kept.into())], "error")?;
    Ok(vec![Judged {
        document: Document::Surgeon,
        claim: "sparse attention: it is enough to attend to the k nearest neighbours",
        verdict: match (of("added")?.below(0.05), random.below(0.05)) {
            (Some(true), Some(true)) => Verdict::Holds,
            (Some(true), Some(false)) => Verdict::HoldsInPart,
            (Some(false), Some(false)) => Verdict::Wrong,
            _ => Verdict::Undecided,
        },
        because: format!(
            "With the {kept} nearest keys the loss of a model that was trained rises by {} nats, with the {kept} latest by {}. The output for random vectors of 64 tokens is wrong by {} of its length. (Enough is what costs less than 0.05.)",
            of("added")?.words(),
            of("latest_added")?.words(),
            random.words()
        ),
    }])
}
