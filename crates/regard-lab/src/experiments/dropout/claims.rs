//! The bonus challenge on dropout.

use crate::error::Result;
use crate::judging::{Answer, decided, estimate, short};
use crate::rules::UNBIASED;
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let Some(table) = tables.find("dropout_training") else { return Ok(Vec::new()) };
    let (Some(first), Some(last)) = (table.rows.first(), table.rows.last()) else { return Ok(Vec::new()) };
    let (none, most) = (table.value(first, "rate").clone(), table.value(last, "rate").clone());
    let of = |rate: &regard_plot::Value, column| estimate(tables, "dropout_training", &[("rate", rate.clone())], column);
    let difference = of(&most, "difference")?;
    // Dropout can be added if every weight is unbiased at every rate.
    let weights = tables.get("dropout_weights")?;
    let mut unbiased = Some(true);
    for row in &weights.rows {
        unbiased = all([unbiased, crate::rows::estimate(weights, row, "bias").within(-UNBIASED, UNBIASED)]);
    }
    let (before, after) = (of(&none, "gap")?, of(&most, "gap")?);
    let gap = match before.exceeds(after) {
        Some(true) => "narrows it",
        Some(false) => "widens it",
        None => "does not change it measurably",
    };
    Ok(vec![Answer {
        id: "dropout",
        verdict: decided(unbiased, Verdict::Holds, Verdict::Wrong),
        because: format!(
            "Every weight is right on average. Whether dropout helps is another question: {}the gap between held-out and training loss \
             is {} without dropout and {} with {} of the weights dropped, which {gap}. The held-out loss changes by {} nats.",
            if before.value < 0.05 { "the model did not overfit, so this training cannot show it; " } else { "" },
            before.words(),
            after.words(),
            short(table.number(last, "rate")),
            difference.words()
        ),
    }])
}
