//! Claims about masks in training; none where the causal model has not learnt.

use crate::error::Result;
use crate::judging::{Judged, holds, percent, short};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    if tables.find("mask_training").is_none() {
        return Ok(Vec::new());
    }
    let get = |variant: &str, column| tables.number("mask_training", &[("variant", variant.into())], column);
    let baseline = |name: &str| tables.number("mask_training_baselines", &[("name", name.into())], "value");
    if get("causal", "validation_loss")? > baseline("bigram")? {
        // It has not learnt more than pairs of characters: too short a training to judge anybody by.
        return Ok(Vec::new());
    }
    let one = |document, claim, verdict, because| Judged { document, claim, verdict, because };
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
