//! The bonus challenge on multi-query attention.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate, short};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("multi_query") else { return Ok(Vec::new()) };
    let (Some(first), Some(last)) = (table.rows.first(), table.rows.last()) else { return Ok(Vec::new()) };
    let kv = table.number(last, "kv_heads") as usize;
    let difference = estimate(tables, "multi_query", &[("kv_heads", kv.into())], "difference")?;
    let loss = table.number(first, "validation_loss");
    Ok(vec![Judged {
        document: Document::Surgeon,
        claim: "multi-query attention: keys and values can be shared across heads",
        verdict: decided(difference.below(0.1 * loss), Verdict::Holds, Verdict::Wrong),
        because: format!(
            "With {kv} key/value head instead of {} the cache has {} bytes per token instead of {}, and the loss is {} higher, seed by seed, of {} nats.",
            short(table.number(first, "kv_heads")),
            short(table.number(last, "cache_bytes")),
            short(table.number(first, "cache_bytes")),
            difference.words(),
            short(loss)
        ),
    }])
}
