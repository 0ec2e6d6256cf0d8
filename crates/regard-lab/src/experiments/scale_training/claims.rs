//! Claims about the scale in training; none where nothing was learnt.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate, has_learnt, percent};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("scale_training") else { return Ok(Vec::new()) };
    let widest = table.rows.iter().map(|row| table.number(row, "head_dim")).fold(0.0, f64::max) as usize;
    let at = |scaled: bool| [("head_dim", widest.into()), ("scaled", scaled.into())];
    let get = |scaled: bool, column| estimate(tables, "scale_training", &at(scaled), column);
    let (first, with, without) = (get(true, "first_loss")?, get(true, "validation_loss")?, get(false, "validation_loss")?);
    if !has_learnt(first.value, with.value) {
        return Ok(Vec::new());
    }
    let paired = |column| estimate(tables, "scale_training_paired", &[("head_dim", widest.into())], column);
    let (difference, ratio) = (paired("difference")?, paired("excess_ratio")?);
    let excess = if ratio.value.is_nan() {
        String::new()
    } else {
        let (with, without) = (paired("excess_with")?, paired("excess_without")?);
        format!(
            " What is left to learn, the loss above the entropy of the text, is {} without the scale and {} with it, {} times as much.",
            without.words(),
            with.words(),
            ratio.words()
        )
    };
    let one = |claim, verdict, because| Judged { document: Document::Insights, claim, verdict, because };
    // A model that gets below six tenths of its first loss has learnt.
    let learns = without.below(0.6 * first.value);
    let collapsed = get(false, "last_saturated")?;
    let collapses = match (collapsed.above(0.9), collapsed.exceeds(get(true, "last_saturated")?)) {
        (Some(true), _) => Verdict::Holds,
        (Some(false), Some(true)) => Verdict::HoldsInPart,
        (Some(false), Some(false)) => Verdict::Wrong,
        _ => Verdict::Undecided,
    };
    Ok(vec![
        one(
            "without the scale the model cannot learn",
            decided(learns, Verdict::Wrong, Verdict::Holds),
            format!(
                "With heads of {widest} the loss falls from {} to {} without the scale and to {} with it; the same seeds differ by {}.{excess}",
                first.words(),
                without.words(),
                with.words(),
                difference.words()
            ),
        ),
        one(
            "scaling is essential: without it attention collapses to a one-hot choice",
            collapses,
            format!(
                "In this model at d_{{k}} = {widest}, {} of the rows have a weight above 0.99 before training and {} after it; with the scale {} and {}. The relative entropy ends at {} without and {} with the scale.",
                percent(get(false, "first_saturated")?),
                percent(collapsed),
                percent(get(true, "first_saturated")?),
                percent(get(true, "last_saturated")?),
                get(false, "last_entropy")?.words(),
                get(true, "last_entropy")?.words()
            ),
        ),
    ])
}
