//! Whether attention from scratch is PyTorch's.

use crate::error::Result;
use crate::judging::{Answer, holds, short};
use regard_plot::Tables;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let golden = tables.get("parity_golden")?;
    let all_agree = golden.rows.iter().all(|row| *golden.value(row, "agrees") == true.into());
    let worst = golden.rows_where("type", "float32").map(|row| golden.number(row, "out_error")).fold(0.0, f64::max);
    Ok(vec![Answer {
        id: "parity-with-pytorch",
        verdict: holds(all_agree),
        because: format!(
            "Ours differs by at most {} in float32 over {} stored cases.",
            short(worst),
            golden.rows_where("type", "float32").count()
        ),
    }])
}
