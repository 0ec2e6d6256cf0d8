//! "Gradients vanish": the whole, the median row, and who says so.

use crate::error::Result;
use crate::judging::{Judged, ROBUSTNESS, cell, decided, estimate, percent};
use crate::published::Document;
use crate::statistics::estimate::{Estimate, all};
use regard_plot::Tables;
use regard_plot::page::Verdict;

/// The table.
const GRADIENTS: &str = "attention_gradients";

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let of = |d_k: usize, scaled: bool, column| estimate(tables, GRADIENTS, &[("d_k", d_k.into()), ("scaled", scaled.into())], column);
    let get = |d_k: usize, scaled: bool, column| of(d_k, scaled, column).map(Estimate::words);
    let because = format!(
        "The norm of all of dQ is {} at d_{{k}} = 16 and {} at 1024 without the scale, {} and {} with it. The median row of dQ is {} at 16, {} at 1024 ({} with the scale); {} of the rows then hold 90 % of the squared norm.",
        get(16, false, "grad_norm_q")?,
        get(1024, false, "grad_norm_q")?,
        get(16, true, "grad_norm_q")?,
        get(1024, true, "grad_norm_q")?,
        get(16, false, "row_dq_median")?,
        get(1024, false, "row_dq_median")?,
        get(1024, true, "row_dq_median")?,
        percent(of(1024, false, "rows_holding_90_percent")?)
    );
    let grows = all([
        of(1024, false, "grad_norm_q")?.exceeds(of(16, false, "grad_norm_q")?),
        of(1024, false, "grad_norm_q")?.exceeds(of(1024, true, "grad_norm_q")?),
    ]);
    let median_vanishes = of(1024, false, "row_dq_median")?.below(1e-2 * of(1024, true, "row_dq_median")?.value);
    let verdict = decided(all([grows, median_vanishes]), Verdict::WrongAsWorded, Verdict::Holds);
    let table = tables.get(GRADIENTS)?;
    let mut larger = Some(true);
    for row in table.rows_where("scaled", false) {
        let d_k = table.number(row, "d_k") as usize;
        larger = all([larger, of(d_k, false, "grad_norm_q")?.exceeds(of(d_k, true, "grad_norm_q")?)]);
    }
    let more = |yes: &str| if verdict == Verdict::WrongAsWorded && larger == Some(true) { yes.to_owned() } else { String::new() };
    let because = because + &more(" The gradient is not small, it is in few places.");
    let claims = [
        (Document::Surgeon, "without 1/sqrt(d_{k}) the gradients vanish for large d_{k}"),
        (Document::ProblemSheet, "at d_{k} = 512 without the scale the gradients are about 0, so nothing can be learned"),
        (Document::Insights, "without the scale the gradients vanish for all but the dominant positions, so the model cannot learn"),
    ];
    let briefly = format!(
        "{}The median row gets {} at d_{{k}} = 256, {} with the scale; all of dQ {} and {}.",
        more("The whole gradient is larger than with the scale at every width, and only the typical row gets next to nothing. "),
        get(256, false, "row_dq_median")?,
        get(256, true, "row_dq_median")?,
        get(256, false, "grad_norm_q")?,
        get(256, true, "grad_norm_q")?
    );
    let mut judged = Vec::new();
    for (place, (document, claim)) in claims.into_iter().enumerate() {
        let because = if place == 0 { because.clone() } else { briefly.clone() };
        judged.push(Judged { document, claim, verdict, because });
    }
    let norm = |scaled| estimate(tables, ROBUSTNESS, &cell(8, 256, scaled, "norm_dq"), "mean");
    judged.push(Judged {
        document: Document::MiniReport,
        claim: "its plot: the gradient norms of Q and K are larger without the scale",
        verdict: decided(norm(false)?.exceeds(norm(true)?), Verdict::Holds, Verdict::Wrong),
        because: format!(
            "At d_{{k}} = 256 and loss mean(out^{{2}}) the norm of dQ averages {} without and {} with the scale.",
            norm(false)?.words(),
            norm(true)?.words()
        ),
    });
    Ok(judged)
}
