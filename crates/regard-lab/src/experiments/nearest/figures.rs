//! What is lost with few keys.

use crate::drawing::{CheckedFigure, SCALED, UNSCALED, estimate_at, falls, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, LinePlot, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (trained, random) = (tables.get("nearest")?, tables.get("nearest_random")?);
    let loss = LinePlot::new("A trained model", Axis::log2("keys kept"), Axis::linear("validation loss (nats)"))
        .series(with_band("nearest", trained, "keys", "loss")?.colour(SCALED))
        .series(with_band("latest", trained, "keys", "latest_loss")?.colour(UNSCALED));
    let error = LinePlot::new("Random vectors", Axis::log2("keys kept"), Axis::linear("relative to the exact output"))
        .series(with_band("error of the output", random, "keys", "error")?.colour(3))
        .series(with_band("weight kept", random, "keys", "kept")?.colour(2));
    let of = |keys: usize, column: &str| estimate_at(trained, &[("keys", keys.into())], column);
    let enough = of(8, "added").high < 0.05 && of(1, "added").low > of(8, "added").high;
    let better = of(4, "loss").high < of(4, "latest_loss").low;
    Ok(vec![
        CheckedFigure::new("nearest", "What is lost when each query keeps few keys")
            .title("Eight nearest keys are nearly as good as all, for a trained model", enough)
            .panel(loss)
            .panel(error)
            .shows("a: trained with all keys, used with few. b: random vectors.")
            .says("a: the nearest keys beat as many latest ones.", better)
            .says(
                "b: at 16 of 64 keys the error is still above 0.1.",
                falls(&numbers(random, "error")?) && estimate_at(random, &[("keys", 16usize.into())], "error").low > 0.1,
            )
            .drawn(),
    ])
}
