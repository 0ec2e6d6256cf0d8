//! Claims about the scale in training; none without the baselines of the same text, or where the scaled model is not better than a bigram
//! model.

use crate::error::Result;
use crate::judging::{Answer, estimate, percent, short};
use crate::rules::COLLAPSED;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let Some(table) = tables.find("scale_training") else { return Ok(Vec::new()) };
    let widest = table.rows.iter().map(|row| table.number(row, "head_dim")).fold(0.0, f64::max) as usize;
    let at = |scaled: bool| [("head_dim", widest.into()), ("scaled", scaled.into())];
    let get = |scaled: bool, column| estimate(tables, "scale_training", &at(scaled), column);
    let (first, with, without) = (get(true, "first_loss")?, get(true, "validation_loss")?, get(false, "validation_loss")?);
    let baseline = |name: &str| tables.number("mask_training_baselines", &[("name", name.into())], "value");
    let (Ok(bigram), Ok(unigram)) = (baseline("bigram"), baseline("unigram")) else { return Ok(Vec::new()) };
    if with.value >= bigram {
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
    let one = |id, verdict, because| Answer { id, verdict, because };
    // Below a bigram model it uses more than the previous character; below a unigram model it has learnt frequencies.
    let learns = match (without.below(bigram), without.below(unigram)) {
        (Some(true), _) => Verdict::Wrong,
        (Some(false), Some(true)) => Verdict::HoldsInPart,
        (Some(false), Some(false)) => Verdict::Holds,
        _ => Verdict::Undecided,
    };
    let collapsed = get(false, "last_saturated")?;
    let collapses = match (collapsed.above(COLLAPSED), collapsed.exceeds(get(true, "last_saturated")?)) {
        (Some(true), _) => Verdict::Holds,
        (Some(false), Some(true)) => Verdict::HoldsInPart,
        (Some(false), Some(false)) => Verdict::Wrong,
        _ => Verdict::Undecided,
    };
    Ok(vec![
        one(
            "cannot-learn",
            learns,
            format!(
                "With heads of {widest} the loss falls from {} to {} without the scale and to {} with it; the same seeds differ by {}. \
                 A bigram model, without attention, has {}, a unigram model {}.{excess}",
                first.words(),
                without.words(),
                with.words(),
                difference.words(),
                short(bigram),
                short(unigram)
            ),
        ),
        one(
            "collapses",
            collapses,
            format!(
                "In this model at d_{{k}} = {widest}, {} of the rows have a weight above 0.99 before training and {} after it; with the \
                 scale {} and {}. The relative entropy ends at {} without and {} with the scale.",
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
