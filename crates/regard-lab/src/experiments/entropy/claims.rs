//! Published entropies, and how entropy falls.

use crate::error::Result;
use crate::judging::{Judged, holds, lucky, short, tail};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let table = tables.get("attention_entropy")?;
    let published: Vec<f64> = table.rows.iter().map(|row| table.number(row, "percentile")).filter(|p| !p.is_nan()).collect();
    let outside = published.iter().filter(|p| tail(**p) < 2.5).count();
    let exact = |d_k: usize, scaled: bool| tables.number("attention_entropy", &[("d_k", d_k.into()), ("scaled", scaled.into())], "exact");
    let slope = (exact(512, false)? / exact(128, false)?).ln() / 4f64.ln();
    Ok(vec![
        Judged {
            document: Document::Insights,
            claim: "its table of entropies at d_{k} = 8 to 512, without and with the scale",
            verdict: if lucky(&published.chunks(1).collect::<Vec<_>>()) { Verdict::LuckyDraw } else { Verdict::Holds },
            because: format!(
                "{} of its {} numbers lie inside the central 95 % of their distributions (20 tokens, one matrix each); the draws were not seeded, so they cannot be had again digit for digit.",
                published.len() - outside,
                published.len()
            ),
        },
        Judged {
            document: Document::Insights,
            claim: "the entropy crashes without the scale, and attention becomes a one-hot choice; with the scale it is stable",
            verdict: holds(slope < -0.3 && (exact(512, true)? - exact(8, true)?).abs() < 0.05),
            because: format!(
                "Exact: from {} to {} nats without the scale, from {} to {} with it. The mean falls as a power, d_{{k}}^{{{}}}: rows in which two keys nearly tie keep it up.",
                short(exact(8, false)?),
                short(exact(512, false)?),
                short(exact(8, true)?),
                short(exact(512, true)?),
                format_args!("{slope:.2}")
            ),
        },
    ])
}
