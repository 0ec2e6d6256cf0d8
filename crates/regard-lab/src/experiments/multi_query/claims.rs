//! The bonus challenge on multi-query attention.

use crate::error::Result;
use crate::judging::{Answer, decided, estimate, short};
use crate::rules::SHARED;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let Some(table) = tables.find("multi_query") else { return Ok(Vec::new()) };
    let (Some(first), Some(last)) = (table.rows.first(), table.rows.last()) else { return Ok(Vec::new()) };
    let kv = table.number(last, "kv_heads") as usize;
    let difference = estimate(tables, "multi_query", &[("kv_heads", kv.into())], "difference")?;
    let loss = table.number(first, "validation_loss");
    Ok(vec![Answer {
        id: "multi-query",
        verdict: decided(difference.below(SHARED * loss), Verdict::Holds, Verdict::Wrong),
        because: format!(
            "With {kv} key/value head instead of {} the cache has {} bytes per token instead of {}, and the loss of {} nats changes by \
             {}, seed by seed.",
            short(table.number(first, "kv_heads")),
            short(table.number(last, "cache_bytes")),
            short(table.number(first, "cache_bytes")),
            short(loss),
            difference.words()
        ),
    }])
}
