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
        // It can always be added; what is judged is whether it is worth it here.
        verdict: decided(difference.above(0.0), Verdict::HoldsInPart, Verdict::Holds),
        because: format!(
            "It can, and leaves weights right on average. Whether it helps depends on what is learnt by heart: here held-out loss is only {} above that on the text learnt without dropout and {} with {} of the weights dropped, while the held-out loss itself changes by {} nats.",
            of(&none, "gap")?.words(),
            of(&most, "gap")?.words(),
            short(table.number(last, "rate")),
            difference.words()
        ),
    }])
}
