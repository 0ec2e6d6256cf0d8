//! Numerical stability.

use crate::error::Result;
use crate::judging::{Answer, decided, estimate, percent};
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let Some(table) = tables.find("overflow_shares") else { return Ok(Vec::new()) };
    let widest = table.rows.iter().map(|row| table.number(row, "d_k")).fold(0.0, f64::max) as usize;
    let of = |column| estimate(tables, "overflow_shares", &[("d_k", widest.into()), ("scaled", false.into())], column);
    let never = table.rows.iter().all(|row| table.number(row, "lost_stable") == 0.0);
    Ok(vec![Answer {
        id: "overflow",
        verdict: if never { decided(of("lost")?.above(0.0), Verdict::Holds, Verdict::Wrong) } else { Verdict::Wrong },
        because: format!(
            "At d_{{k}} = {widest} without the scale {} of rows are NaN in single precision and {} in half precision; with the maximum \
             subtracted none, at any width.",
            percent(of("lost")?),
            percent(of("lost_half")?)
        ),
    }])
}
