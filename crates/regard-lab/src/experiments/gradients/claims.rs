//! "Gradients vanish": the whole, the median row, and who says so.

use crate::error::Result;
use crate::judging::{Judged, ROBUSTNESS, cell, holds, short};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

/// The table.
const GRADIENTS: &str = "attention_gradients";

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let get = |d_k: usize, scaled: bool, column| tables.number(GRADIENTS, &[("d_k", d_k.into()), ("scaled", scaled.into())], column);
    let because = format!(
        "The norm of all of dQ grows without the scale, {} at d_{{k}} = 16 and {} at 1024, against {} and {} with it. What vanishes is the median row: {} at 16, {} at 1024 ({} with the scale). {} % of the rows then hold 90 % of the squared norm: the gradient is not small, it is in few places.",
        short(get(16, false, "grad_norm_q")?),
        short(get(1024, false, "grad_norm_q")?),
        short(get(16, true, "grad_norm_q")?),
        short(get(1024, true, "grad_norm_q")?),
        short(get(16, false, "row_dq_median")?),
        short(get(1024, false, "row_dq_median")?),
        short(get(1024, true, "row_dq_median")?),
        short(100.0 * get(1024, false, "rows_holding_90_percent")?)
    );
    let grows = get(1024, false, "grad_norm_q")? > get(16, false, "grad_norm_q")?
        && get(1024, false, "grad_norm_q")? > get(1024, true, "grad_norm_q")?;
    let median_vanishes = get(1024, false, "row_dq_median")? < 1e-3 * get(1024, true, "row_dq_median")?;
    let verdict = if grows && median_vanishes { Verdict::WrongAsWorded } else { Verdict::Holds };
    let claims = [
        (Document::Surgeon, "without 1/sqrt(d_{k}) the gradients vanish for large d_{k}"),
        (Document::ProblemSheet, "at d_{k} = 512 without the scale the gradients are about 0, so nothing can be learned"),
        (Document::Insights, "without the scale the gradients vanish for all but the dominant positions, so the model cannot learn"),
    ];
    let briefly = format!(
        "The whole gradient is larger than with the scale at every width; it sits in the rows where two keys nearly tie, and only the typical row gets next to nothing (median {} at d_{{k}} = 256, {} with the scale).",
        short(get(256, false, "row_dq_median")?),
        short(get(256, true, "row_dq_median")?)
    );
    let mut all = Vec::new();
    for (place, (document, claim)) in claims.into_iter().enumerate() {
        let because = if place == 0 { because.clone() } else { briefly.clone() };
        all.push(Judged { document, claim, verdict, because });
    }
    let norm = |scaled| tables.number(ROBUSTNESS, &cell(8, 256, scaled, "norm_dq"), "mean");
    all.push(Judged {
        document: Document::MiniReport,
        claim: "its plot: the gradient norms of Q and K are larger without the scale",
        verdict: holds(norm(false)? > norm(true)?),
        because: format!(
            "At d_{{k}} = 256 and loss mean(out^{{2}}) the norm of dQ averages {} without and {} with the scale.",
            short(norm(false)?),
            short(norm(true)?)
        ),
    });
    Ok(all)
}
