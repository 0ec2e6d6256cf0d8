//! The map of each head.

use crate::drawing::{CheckedFigure, map, part};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::numbers;

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (maps, table) = (tables.get("multi_head_maps")?, tables.get("multi_head")?);
    let heads = numbers(maps, "head")?.into_iter().fold(0.0, f64::max) as usize + 1;
    let one = |h: usize| Ok(map(&format!("head {}", h + 1), &part(maps, &[("head", h.into())]), "weight")?.limits(0.0, 1.0));
    let plots = (0..heads).map(one).collect::<Result<Vec<_>>>()?;
    let same = numbers(table, "by_head")?.iter().chain(&numbers(table, "undone")?).all(|x| *x < 1e-12);
    Ok(vec![
        CheckedFigure::grid("multi_head", "Weights of four heads", plots, 4)
            .title("Four heads weigh the same tokens four ways; W_{O} adds them up", same)
            .shows("Six tokens; each head has a quarter of the width.")
            .drawn(),
    ])
}
