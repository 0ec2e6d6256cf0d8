//! What the notebook's map was said to show.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    if tables.find("flat_map").is_none() {
        return Ok(Vec::new());
    }
    let of = |size: f64| estimate(tables, "flat_map", &[("size", size.into())], "deviation");
    Ok(vec![Judged {
        document: Document::Notebook,
        claim: "the unmasked heat map shows global attention",
        verdict: decided(of(0.01)?.below(1e-3), Verdict::WrongAsWorded, Verdict::Holds),
        because: format!(
            "It shows the size of the first values: with projections of 0.01 the weight farthest from 1/3 is {} away from it, on average over random tokens. With projections of 0.5, which keep the variance, it is {} away.",
            of(0.01)?.words(),
            of(0.5)?.words()
        ),
    }])
}
