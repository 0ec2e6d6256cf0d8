//! What the problem sheet says in words.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate, holds, percent, short};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("linear_region") else { return Ok(Vec::new()) };
    if [256usize, 1024].iter().any(|d_k| table.rows_where("d_k", *d_k).next().is_none()) {
        return Ok(Vec::new());
    }
    let exact = |d_k: usize, scaled: bool| tables.number("linear_region", &[("d_k", d_k.into()), ("scaled", scaled.into())], "max_weight");
    let error = estimate(tables, "linear_region", &[("d_k", 1024usize.into()), ("scaled", true.into())], "error")?;
    let negative = estimate(tables, "linear_region", &[("d_k", 1024usize.into()), ("scaled", true.into())], "negative")?;
    Ok(vec![
        Judged {
            document: Document::ProblemSheet,
            claim: "at d_{k} = 256 the scale helps noticeably, at 1024 it is essential",
            verdict: holds(exact(256, false)? - exact(256, true)? > 0.2 && exact(1024, false)? > 0.95),
            because: format!(
                "The largest of 8 weights is {} and {} without the scale, {} and {} with it (exact).{}",
                short(exact(256, false)?),
                short(exact(1024, false)?),
                short(exact(256, true)?),
                short(exact(1024, true)?),
                exact(64, false)
                    .and_then(|without| Ok(format!(" At 64 it is {} and {}.", short(without), short(exact(64, true)?))))
                    .unwrap_or_default()
            ),
        },
        Judged {
            document: Document::ProblemSheet,
            claim: "with the scale the softmax works in its linear region",
            verdict: decided(error.above(0.25), Verdict::WrongAsWorded, Verdict::Holds),
            because: format!(
                "Scaled scores have standard deviation 1: the weights are {} of their unevenness away from those of the tangent, of which one is negative in {} of rows. The largest of 8 weights is {} with the scale (exact): not saturated, and not linear.",
                error.words(),
                percent(negative),
                short(exact(1024, true)?)
            ),
        },
    ])
}
