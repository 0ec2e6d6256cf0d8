//! The bonus challenge on sparse attention.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate};
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
        verdict: decided(of("added")?.below(0.05), Verdict::HoldsInPart, Verdict::Wrong),
        because: format!(
            "For a model that was trained: with the {kept} nearest keys its loss rises by {} nats, with the {kept} latest by {}. For random vectors of 64 tokens not: their output is wrong by {} of its length.",
            of("added")?.words(),
            of("latest_added")?.words(),
            random.words()
        ),
    }])
}
