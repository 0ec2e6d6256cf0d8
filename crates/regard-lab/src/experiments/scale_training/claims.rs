//! Claims about the scale in training; none where nothing was learnt.

use crate::error::Result;
use crate::judging::{Judged, has_learnt, percent, short};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("scale_training") else { return Ok(Vec::new()) };
    let widest = table.rows.iter().map(|row| table.number(row, "head_dim")).fold(0.0, f64::max) as usize;
    let get = |scaled: bool, column| tables.number("scale_training", &[("head_dim", widest.into()), ("scaled", scaled.into())], column);
    let first =
        tables.number("scale_training_curves", &[("head_dim", widest.into()), ("scaled", true.into()), ("step", 1usize.into())], "loss")?;
    let (with, without) = (get(true, "validation_loss")?, get(false, "validation_loss")?);
    if !has_learnt(first, with) {
        return Ok(Vec::new());
    }
    let one = |claim, verdict, because| Judged { document: Document::Insights, claim, verdict, because };
    // How much of what is learnt with the scale is learnt without it.
    let learnt = (first - without) / (first - with);
    let cannot_learn = match learnt {
        _ if learnt > 0.9 => Verdict::Wrong,
        _ if learnt > 0.5 => Verdict::HoldsInPart,
        _ => Verdict::Holds,
    };
    let (before, after) = (get(false, "first_saturated")?, get(false, "last_saturated")?);
    let collapses = if before > 0.9 || after > 0.9 {
        Verdict::Holds
    } else if after > 2.0 * get(true, "last_saturated")? {
        Verdict::HoldsInPart
    } else {
        Verdict::Wrong
    };
    Ok(vec![
        one(
            "without the scale the model cannot learn",
            cannot_learn,
            format!(
                "With heads of {widest} the loss falls from {} to {} without the scale and to {} with it: {} of what is learnt with it. The gradient on the queries' weights begins {} times as large without it.",
                short(first),
                short(without),
                short(with),
                percent(learnt),
                short(get(false, "first_query_gradient")? / get(true, "first_query_gradient")?)
            ),
        ),
        one(
            "scaling is essential: without it attention collapses to a one-hot choice",
            collapses,
            format!(
                "In this model at d_{{k}} = {widest}, {} of the rows have a weight above 0.99 before training and {} after it; with the scale {} and {}. The relative entropy ends at {} without and {} with the scale.",
                percent(before),
                percent(after),
                percent(get(true, "first_saturated")?),
                percent(get(true, "last_saturated")?),
                short(get(false, "last_entropy")?),
                short(get(true, "last_entropy")?)
            ),
        ),
    ])
}
