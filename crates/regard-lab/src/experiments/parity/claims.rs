//! Whether attention from scratch is PyTorch's.

use crate::error::Result;
use crate::judging::{Judged, holds, short};
use crate::published::Document;
use regard_plot::Tables;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let golden = tables.get("parity_golden")?;
    let all_agree = golden.rows.iter().all(|row| *golden.value(row, "agrees") == true.into());
    let worst = golden.rows_where("type", "float32").map(|row| golden.number(row, "out_error")).fold(0.0, f64::max);
    Ok(vec![Judged {
        document: Document::MiniReport,
        claim: "attention from scratch differs very little from PyTorch's",
        verdict: holds(all_agree),
        because: format!(
            "Ours differs by at most {} in float32 over {} stored cases.",
            short(worst),
            golden.rows_where("type", "float32").count()
        ),
    }])
}
