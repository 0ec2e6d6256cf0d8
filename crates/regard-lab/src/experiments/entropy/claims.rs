//! Published entropies, and how entropy falls.

use crate::error::Result;
use crate::judging::{Answer, decided, estimate, holds, lucky_draws, short, tail};
use crate::published::INSIGHTS_ENTROPY;
use crate::rules::{ENTROPY_FALLS, TAIL};
use regard_plot::Tables;
use regard_plot::page::Verdict;

/// The table.
const TABLE: &str = "attention_entropy";

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let table = tables.get(TABLE)?;
    // Both numbers of a width are of one draw.
    let (mut draws, mut outside, mut count) = (Vec::new(), 0, 0);
    for (d_k, ..) in INSIGHTS_ENTROPY {
        let at = |scaled: bool| [("d_k", d_k.into()), ("scaled", scaled.into())];
        let numbers = vec![estimate(tables, TABLE, &at(false), "percentile")?, estimate(tables, TABLE, &at(true), "percentile")?];
        outside += numbers.iter().filter(|p| tail(**p).value < TAIL).count();
        count += numbers.len();
        draws.push((numbers, tables.number(TABLE, &at(false), "any_outside")?));
    }
    let exact = |d_k: usize, scaled: bool| tables.number(TABLE, &[("d_k", d_k.into()), ("scaled", scaled.into())], "exact");
    // The slope of a straight line through all points, on logarithmic axes.
    let points: Vec<(f64, f64)> =
        table.rows_where("scaled", false).map(|row| (table.number(row, "d_k").ln(), table.number(row, "exact").ln())).collect();
    let n = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let slope = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / points.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>();
    let last = (exact(512, false)? / exact(256, false)?).ln() / 2f64.ln();
    Ok(vec![
        Answer {
            id: "entropy-table",
            verdict: decided(lucky_draws(&draws), Verdict::LuckyDraw, Verdict::Holds),
            because: format!(
                "{} of its {count} numbers lie inside the central 95 % of their distributions (20 tokens, one matrix each); the draws \
                 were not seeded, so they cannot be reproduced digit for digit.",
                count - outside
            ),
        },
        Answer {
            id: "entropy-falls",
            verdict: holds(slope < ENTROPY_FALLS.0 && (exact(512, true)? - exact(8, true)?).abs() < ENTROPY_FALLS.1),
            because: format!(
                "Exact expectations: from {} to {} nats without the scale, from {} to {} with it. The mean falls as a power of the \
                 width, d_{{k}}^{{{slope:.3}}} fitted over 8 to 512, d_{{k}}^{{{last:.3}}} from 256 to 512, approaching -1/2: rows in \
                 which two keys nearly tie dominate the mean.",
                short(exact(8, false)?),
                short(exact(512, false)?),
                short(exact(8, true)?),
                short(exact(512, true)?),
            ),
        },
    ])
}
