//! What is learnt with which positions, and what shuffling does.

use super::run::SCALED;
use crate::drawing::{CheckedFigure, estimate_at, with_ends};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, BarPlot, numbers, texts};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("positions")?;
    let kinds = texts(table, "positions")?;
    let (exact, exact_ends) = with_ends(table, "exact_match")?;
    let (right, right_ends) = with_ends(table, "right")?;
    let learnt = BarPlot::new("Letters written backwards", "positions", kinds.clone(), Axis::linear("share").limits(0.0, 1.0))
        .bars_with_intervals("whole words right", exact, exact_ends)
        .bars_with_intervals("letters right", right, right_ends);
    // On a logarithmic axis bars have no beginning: dots.
    let floor = 1e-9;
    let moved: Vec<f64> = numbers(table, "moved")?.into_iter().map(|x| x.max(floor)).collect();
    let shuffled =
        BarPlot::new("Shuffled input", "positions", kinds, Axis::log10("relative change of the outputs")).bars("change", moved).as_dots();
    let of = |kind: &str, column: &str| estimate_at(table, &[("positions", kind.into())], column);
    let blind = of("none", "exact_match").high < 0.05 && of("none", "moved").value < 1e-5;
    let seeing = ["learned", SCALED, "rotary"].iter().any(|kind| of(kind, "exact_match").low > 0.5);
    Ok(vec![
        CheckedFigure::new("positions", "What is learnt with which positions")
            .title("Without positions a model sees a set: it cannot write a word backwards", blind && seeing)
            .panel(learnt)
            .panel(shuffled)
            .shows("a: held-out words written backwards. b: change of each token's output when the input is shuffled; untrained models.")
            .says("Without positions it is rounding.", of("none", "moved").value < 1e-5)
            .drawn(),
    ])
}
