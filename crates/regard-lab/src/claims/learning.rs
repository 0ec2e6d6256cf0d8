//! Claims about models that learn. Each group is empty where its experiment was not run, or not long enough to judge by.

use super::{Judged, holds};
use crate::error::Result;
use crate::page::Verdict;
use crate::published::Document;
use crate::table::Value;
use crate::table_text::prose_number as short;
use crate::tables::Tables;

pub(super) fn masks(tables: &Tables) -> Result<Vec<Judged>> {
    if tables.find("mask_training").is_none() {
        return Ok(Vec::new());
    }
    let get = |variant: &str, column| tables.number("mask_training", &[("variant", variant.into())], column);
    let baseline = |name: &str| tables.number("mask_training_baselines", &[("name", name.into())], "value");
    if get("causal", "validation_loss")? > baseline("bigram")? {
        // It has not learnt more than pairs of characters: too short a training to judge anybody by.
        return Ok(Vec::new());
    }
    let one = |document, claim, verdict, because| Judged { section: "masks", document, claim, verdict, because };
    let (causal, reverse) = (get("causal", "prefix_only_loss")?, get("reverse", "prefix_only_loss")?);
    let apart = (get("causal", "validation_loss")? - causal).abs();
    let right_to_left = get("right to left", "prefix_only_loss")?;
    let honest = get("right to left", "leak")? == 0.0 && right_to_left < 1.15 * causal;
    Ok(vec![
        one(
            Document::Surgeon,
            "a model with a reverse mask reaches a near-perfect training loss: it cheats",
            holds(get("reverse", "train_loss")? < 0.1 && get("reverse", "validation_loss")? < 0.1),
            format!(
                "Training loss {} against {} with the causal mask. Validation says the same, {} against {}: held-out windows hand over the future as well. Change the future, and {} of its prediction moves.",
                short(get("reverse", "train_loss")?),
                short(get("causal", "train_loss")?),
                short(get("reverse", "validation_loss")?),
                short(get("causal", "validation_loss")?),
                percent(get("reverse", "leak")?)
            ),
        ),
        one(
            Document::Surgeon,
            "it fails at inference, where there are no future tokens",
            holds(reverse > 2.0 * causal && get("reverse", "real_words")? < get("causal", "real_words")?),
            format!(
                "From the prefix alone its loss is {}, where knowing nothing costs {} and the causal model {}. Of the words that it writes {} are real, of the causal model's {}.",
                short(reverse),
                short(baseline("uniform")?),
                short(causal),
                percent(get("reverse", "real_words")?),
                percent(get("causal", "real_words")?)
            ),
        ),
        one(
            Document::Surgeon,
            "a reverse mask, which sees only the future, is broken",
            if honest { Verdict::HoldsInPart } else { Verdict::Holds },
            format!(
                "With the next token as target it is. With the previous one the same mask is an honest model that writes from right to left: loss {}, {} for the causal model, and no leak. What is wrong is a mask that shows the target.",
                short(right_to_left),
                short(causal)
            ),
        ),
        one(
            Document::Insights,
            "causal masking is essential, so that a model does not peek at the future",
            holds(get("causal", "leak")? == 0.0 && apart < 1e-4 && get("none", "prefix_only_loss")? > 1.5 * causal),
            format!(
                "Causal: the leak is exactly 0, and the loss from the prefix alone is the validation loss, to {}. Without a mask {} of a prediction follows the future, and the loss goes from {} in validation to {} in use.",
                short(apart.max(1e-7)),
                percent(get("none", "leak")?),
                short(get("none", "validation_loss")?),
                short(get("none", "prefix_only_loss")?)
            ),
        ),
    ])
}

/// A training that has not taken off judges nobody.
fn has_learnt(first: f64, last: f64) -> bool {
    last < 0.6 * first
}

pub(super) fn scale(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("scale_training") else { return Ok(Vec::new()) };
    let widest = table.rows.iter().map(|row| table.number(row, "head_dim")).fold(0.0, f64::max) as usize;
    let get = |scaled: bool, column| tables.number("scale_training", &[("head_dim", widest.into()), ("scaled", scaled.into())], column);
    let first =
        tables.number("scale_training_curves", &[("head_dim", widest.into()), ("scaled", true.into()), ("step", 1usize.into())], "loss")?;
    let (with, without) = (get(true, "validation_loss")?, get(false, "validation_loss")?);
    if !has_learnt(first, with) {
        return Ok(Vec::new());
    }
    let one = |claim, verdict, because| Judged { section: "scale-training", document: Document::Insights, claim, verdict, because };
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

pub(super) fn trained_heads(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("trained_heads_likeness") else { return Ok(Vec::new()) };
    let steps = |row: &&Vec<Value>| table.number(row, "step");
    let last = table.rows.iter().map(|row| steps(&row)).fold(0.0, f64::max);
    let at = |step: f64, column: &str| -> Vec<f64> {
        table.rows.iter().filter(|row| steps(row) == step).map(|row| table.number(row, column)).collect()
    };
    let (loss_before, loss_after) = (at(0.0, "loss"), at(last, "loss"));
    if !loss_before.iter().zip(&loss_after).any(|(a, b)| has_learnt(*a, *b)) {
        return Ok(Vec::new());
    }
    let all = |values: &[f64]| values.iter().map(|x| short(*x)).collect::<Vec<_>>().join(" and ");
    let (cosine, divergence) = (at(last, "centred_cosine"), at(last, "jensen_shannon"));
    let differ = cosine.iter().all(|c| *c < 0.5) && divergence.iter().all(|d| *d > 0.1);
    Ok(vec![Judged {
        section: "trained-heads",
        document: Document::Insights,
        claim: "several heads are several experts: each learns different patterns",
        verdict: if differ { Verdict::Holds } else { Verdict::HoldsInPart },
        because: format!(
            "Asked of heads that were trained. Before training the heads of a block are alike (centred cosine {}, divergence {} nats, block by block): all are nearly uniform. After {last} steps the cosine is {} and the divergence {}, of at most 0.693.",
            all(&at(0.0, "centred_cosine")),
            all(&at(0.0, "jensen_shannon")),
            all(&cosine),
            all(&divergence)
        ),
    }])
}

pub(super) fn pairs(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find("pairs_results") else { return Ok(Vec::new()) };
    let get = |task: &str, column| tables.number("pairs_results", &[("task", task.into())], column);
    let (reverse, words) = (get("reverse", "exact_match")?, get("number-words", "exact_match")?);
    if table.rows.iter().any(|row| table.number(row, "exact_match") < 0.5) {
        return Ok(Vec::new());
    }
    let anti_diagonal = get("reverse", "anti_diagonal")?;
    let tokens = tables.get("pairs_tokens")?;
    let read = tokens.rows_where("task", "reverse").filter(|row| tokens.text(row, "side") == "read").count();
    let even = 1.0 / read as f64;
    Ok(vec![Judged {
        section: "pairs",
        document: Document::Insights,
        claim: "self-attention is for patterns within a sequence, cross-attention for patterns between two",
        verdict: holds(reverse > 0.99 && words > 0.99 && anti_diagonal > 3.0 * even),
        because: format!(
            "With cross-attention as the only way to the input, {} of held-out words are written backwards and {} of held-out numbers in words without a mistake, and the pattern is the one that the task asks for: a head has {} of its weight on the anti-diagonal, where even weights would have {}.",
            percent(reverse),
            percent(words),
            percent(anti_diagonal),
            percent(even)
        ),
    }])
}

fn percent(share: f64) -> String {
    format!("{} %", short((1000.0 * share).round() / 10.0))
}
