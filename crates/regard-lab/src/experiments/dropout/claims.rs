//! The bonus challenge on dropout.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate, short};
use crate::published::Document;
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("dropout_training") else { return Ok(Vec::new()) };
    let (Some(first), Some(last)) = (table.rows.first(), table.rows.last()) else { return Ok(Vec::new()) };
    let (none, most) = (table.value(first, "rate").clone(), table.value(last, "rate").clone());
    let of = |rate: &regard_plot::Value, column| estimate(tables, "dropout_training", &[("rate", rate.clone())], column);
    let difference = of(&most, "difference")?;
    // What the document asks for is that it can be added: every weight is still right on average, to a hundredth, at every rate.
    let weights = tables.get("dropout_weights")?;
    let mut unbiased = Some(true);
    for row in &weights.rows {
        unbiased = all([unbiased, crate::rows::estimate(weights, row, "bias").within(-0.01, 0.01)]);
    }
    // What this training was made for, and what came of it.
    let (before, after) = (of(&none, "gap")?, of(&most, "gap")?);
    let gap = match before.exceeds(after) {
        Some(true) => "narrows it",
        Some(false) => "widens it",
        None => "does neither narrow nor widen it for certain",
    };
    Ok(vec![Judged {
        document: Document::Surgeon,
        claim: "dropout can be added to attention weights",
        verdict: decided(unbiased, Verdict::Holds, Verdict::Wrong),
        because: format!(
            "It leaves every weight right on average. Whether it helps is another question. The training was set up with a short text, for dropout to narrow the gap between held-out loss and loss on the text learnt; the gap is {} without dropout and {} with {} of the weights dropped, which {gap}. The held-out loss itself changes by {} nats.",
            before.words(),
            after.words(),
            short(table.number(last, "rate")),
            difference.words()
        ),
    }])
}
