//! The bonus challenge on flash attention.

use crate::error::Result;
use crate::judging::{Answer, holds};
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let Some(table) = tables.find("flash_memory") else { return Ok(Vec::new()) };
    let longest = table.rows.iter().map(|row| table.number(row, "seq")).fold(0.0, f64::max) as usize;
    let of = |method: &str, column| tables.number("flash_memory", &[("seq", longest.into()), ("method", method.into())], column);
    let (tiled, whole) = (of("tiled", "measured")?, of("laid out", "measured")?);
    Ok(vec![Answer {
        id: "flash",
        // NaN where the system reports no memory.
        verdict: if tiled.is_nan() || whole.is_nan() { Verdict::NotChecked } else { holds(tiled < 0.5 * whole) },
        because: format!(
            "At {longest} tokens, one head: {:.0} MB beyond q, k and v with tiles, {:.0} MB with the weights laid out; the outputs \
             differ by at most {:.0e}.",
            tiled / 1e6,
            whole / 1e6,
            of("tiled", "apart")?
        ),
    }])
}
