//! What the mini-report says of sharpness.

use crate::error::Result;
use crate::judging::{Judged, ROBUSTNESS, cell, holds, short};
use crate::published::Document;
use regard_plot::Tables;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let exact = |d_k, scaled| tables.number(ROBUSTNESS, &cell(8, d_k, scaled, "max_weight"), "exact");
    let (unscaled, scaled) =
        ([exact(4, false)?, exact(16, false)?, exact(64, false)?, exact(256, false)?], [exact(4, true)?, exact(256, true)?]);
    Ok(vec![Judged {
        document: Document::MiniReport,
        claim: "the larger d_{k}, the sharper attention without the scale; with it the distributions stay alike",
        verdict: holds(unscaled.is_sorted() && (scaled[1] - scaled[0]).abs() < 0.05),
        because: format!(
            "The expected largest weight of 8 goes {} without the scale, and only from {} to {} with it; all are exact expectations.",
            unscaled.map(short).join(", "),
            short(scaled[0]),
            short(scaled[1])
        ),
    }])
}
