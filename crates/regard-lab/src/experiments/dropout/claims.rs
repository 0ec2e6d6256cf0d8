//! The bonus challenge on dropout.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate, short};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("dropout_training") else { return Ok(Vec::new()) };
    let (Some(first), Some(last)) = (table.rows.first(), table.rows.last()) else { return Ok(Vec::new()) };
    let (none, most) = (table.value(first, "rate").clone(), table.value(last, "rate").clone());
    let of = |rate: &regard_plot::Value, column| estimate(tables, "dropout_training", &[("rate", rate.clone())], column);
    let difference = of(&most, "difference")?;
    Ok(vec![Judged {
        document: Document::Surgeon,
        claim: "dropout can be added to attention weights",
        verdict: decided(of(&none, "gap")?.exceeds(of(&most, "gap")?), Verdict::Holds, Verdict::Wrong),
        because: format!(
            "On a text that is short enough to be learnt by heart, held-out loss is {} above that on the text learnt without dropout, and {} with {} of the weights dropped; the held-out loss itself changes by {} nats.",
            of(&none, "gap")?.words(),
            of(&most, "gap")?.words(),
            short(table.number(last, "rate")),
            difference.words()
        ),
    }])
}
