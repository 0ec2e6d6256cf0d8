//! Claims about masks in training; none where the causal model has not learnt.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate, percent, short};
use crate::published::Document;
use crate::statistics::estimate::{Estimate, all};
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    if tables.find("mask_training").is_none() {
        return Ok(Vec::new());
    }
    let get = |variant: &str, column| estimate(tables, "mask_training", &[("variant", variant.into())], column);
    let words = |variant: &str, column| get(variant, column).map(Estimate::words);
    let baseline = |name: &str| tables.number("mask_training_baselines", &[("name", name.into())], "value");
    if get("causal", "validation_loss")?.value > baseline("bigram")? {
        // It has not learnt more than pairs of characters: too short a training to judge anybody by.
        return Ok(Vec::new());
    }
    let one = |document, claim, verdict, because| Judged { document, claim, verdict, because };
    let (causal, reverse) = (get("causal", "prefix_only_loss")?, get("reverse", "prefix_only_loss")?);
    let apart = (get("causal", "validation_loss")?.value - causal.value).abs();
    let right_to_left = get("right to left", "prefix_only_loss")?;
    let honest = all([Some(get("right to left", "leak")?.value == 0.0), right_to_left.below(1.25 * causal.value)]);
    Ok(vec![
        one(
            Document::Surgeon,
            "a model with a reverse mask reaches a near-perfect training loss: it cheats",
            yes_or_no(all([get("reverse", "train_loss")?.below(0.2), get("reverse", "validation_loss")?.below(0.2)])),
            format!(
                "Training loss {} against {} with the causal mask. Validation says the same, {} against {}: held-out windows hand over the future as well. Change the future, and {} of its prediction moves.",
                words("reverse", "train_loss")?,
                words("causal", "train_loss")?,
                words("reverse", "validation_loss")?,
                words("causal", "validation_loss")?,
                percent(get("reverse", "leak")?)
            ),
        ),
        one(
            Document::Surgeon,
            "it fails at inference, where there are no future tokens",
            yes_or_no(all([reverse.above(2.0 * causal.value), get("causal", "real_words")?.exceeds(get("reverse", "real_words")?)])),
            format!(
                "From the prefix alone its loss is {}, where knowing nothing costs {} and the causal model {}. Of the words that it writes {} are real, of the causal model's {}.",
                reverse.words(),
                short(baseline("uniform")?),
                causal.words(),
                percent(get("reverse", "real_words")?),
                percent(get("causal", "real_words")?)
            ),
        ),
        one(
            Document::Surgeon,
            "a reverse mask, which sees only the future, is broken",
            decided(honest, Verdict::HoldsInPart, Verdict::Holds),
            format!(
                "With the next token as target it is. With the previous one the same mask is an honest model that writes from right to left: loss {}, {} for the causal model, and no leak. What is wrong is a mask that shows the target.",
                right_to_left.words(),
                causal.words()
            ),
        ),
        one(
            Document::Insights,
            "causal masking is essential, so that a model does not peek at the future",
            yes_or_no(all([
                Some(get("causal", "leak")?.value == 0.0 && apart < 1e-3),
                get("none", "prefix_only_loss")?.above(1.5 * causal.value),
            ])),
            format!(
                "Causal: the leak is exactly 0, and the loss from the prefix alone is the validation loss, to {}. Without a mask {} of a prediction follows the future, and the loss goes from {} in validation to {} in use.",
                short(apart.max(1e-7)),
                percent(get("none", "leak")?),
                words("none", "validation_loss")?,
                words("none", "prefix_only_loss")?
            ),
        ),
    ])
}

fn yes_or_no(answer: Option<bool>) -> Verdict {
    decided(answer, Verdict::Holds, Verdict::Wrong)
}
