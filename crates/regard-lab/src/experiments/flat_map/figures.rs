//! The map as it is, and with larger projections.

use crate::drawing::{CheckedFigure, estimate_at, map, part};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::numbers;

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (table, weights) = (tables.get("flat_map")?, tables.get("flat_map_weights")?);
    let mut maps = Vec::new();
    for size in numbers(table, "size")? {
        maps.push(map(&format!("size {size}"), &part(weights, &[("size", size.into())]), "weight")?.limits(0.0, 1.0));
    }
    let deviation = estimate_at(table, &[("size", 0.01.into())], "deviation");
    Ok(vec![
        CheckedFigure::grid("flat_map", "3 tokens, with projections of four sizes", maps, 4)
            .title("Projections of 0.01 make every weight 1/3: there is nothing to see", deviation.high < 1e-3)
            .shows("One draw, by the size of the projections; the first map is the notebook's.")
            .drawn(),
    ])
}
