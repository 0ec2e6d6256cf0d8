//! What cross-attention is for.

use crate::error::Result;
use crate::judging::{Judged, holds, percent};
use crate::published::Document;
use regard_plot::Tables;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("pairs_results") else { return Ok(Vec::new()) };
    let get = |task: &str, column| tables.number("pairs_results", &[("task", task.into())], column);
    let (reverse, words) = (get("reverse", "exact_match")?, get("number-words", "exact_match")?);
    if table.rows.iter().any(|row| table.number(row, "exact_match") < 0.5) {
        return Ok(Vec::new());
    }
    let anti_diagonal = get("reverse", "anti_diagonal")?;
    let tokens = tables.get("pairs_tokens")?;
    let read = tokens.rows_where("task", "reverse").filter(|row| tokens.text(row, "side") == "read").count();
    let even = 1.0 / read as f64;
    Ok(vec![Judged {
        document: Document::Insights,
        claim: "self-attention is for patterns within a sequence, cross-attention for patterns between two",
        verdict: holds(reverse > 0.99 && words > 0.99 && anti_diagonal > 3.0 * even),
        because: format!(
            "With cross-attention as the only way to the input, {} of held-out words are written backwards and {} of held-out numbers in words without a mistake, and the pattern is the one that the task asks for: a head has {} of its weight on the anti-diagonal, where even weights would have {}.",
            percent(reverse),
            percent(words),
            percent(anti_diagonal),
            percent(even)
        ),
    }])
}
