//! The matrices of the example.

use super::run::TOKENS;
use crate::drawing::{CheckedFigure, part};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::figure::HeatPlot;
use regard_plot::{Table, Tables};

/// Three rows of three numbers.
fn values(table: &Table, variant: &str, step: &str) -> Vec<f64> {
    let rows = part(table, &[("variant", variant.into()), ("step", step.into())]);
    rows.rows.iter().flat_map(|row| ["key_1", "key_2", "key_3"].map(|key| rows.number(row, key))).collect()
}

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("worked_example")?;
    let tokens = TOKENS.map(str::to_owned);
    let weights = |title: &str, variant: &str| -> Result<HeatPlot> {
        let plot = HeatPlot::new(title, 3, 3, values(table, variant, "4 softmax"))?;
        Ok(plot.tokens(&tokens, &tokens)?.limits(0.0, 1.0).show_values())
    };
    let maps =
        vec![weights("causal mask", "scaled, causal")?, weights("no mask", "scaled, no mask")?, weights("unscaled", "unscaled, no mask")?];
    let largest = |variant: &str| values(table, variant, "4 softmax").into_iter().fold(0.0, f64::max);
    let row_sums = values(table, "scaled, causal", "4 softmax").chunks(3).all(|row| (row.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    let sharper = row_sums && largest("unscaled, no mask") > largest("scaled, no mask");
    Ok(vec![
        CheckedFigure::grid("worked_example", "Attention weights of three tokens", maps, 3)
            .title("Three tokens: the mask hides the future, and without the scale the weights are sharper", sharper)
            .shows("The third map has neither scale nor mask.")
            .drawn(),
    ])
}
