//! Claims about masks in training; none where the causal model has not learnt.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate, percent, short};
use crate::published::Document;
use crate::statistics::estimate::{Estimate, all};
use regard_plot::Tables;
use regard_plot::page::Verdict;

/// Two losses are the same that differ by no more than this: sums over windows, in another order.
pub(super) const SAME: f64 = 1e-4;

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
    let apart = |variant| -> Result<f64> { Ok((get(variant, "validation_loss")?.value - get(variant, "prefix_only_loss")?.value).abs()) };
    // Near-perfect is what a model pays that reads its targets off the window: for the one position whose target lies outside, and there no more
    // than who knows nothing but how frequent characters are.
    let lengths = tables.get("mask_training_prefix")?;
    let context = lengths.rows.iter().map(|row| lengths.number(row, "length")).fold(1.0, f64::max);
    let near_perfect = baseline("unigram")? / context;
    // Honest: nothing leaks, use costs what validation promised, and it has learnt more than pairs, as the causal model must have.
    let right_to_left = get("right to left", "prefix_only_loss")?;
    let no_leak = get("right to left", "leak")?.value == 0.0 && apart("right to left")? < SAME;
    let honest = all([Some(no_leak), right_to_left.below(baseline("bigram")?)]);
    Ok(vec![
        one(
            Document::Surgeon,
            "a model with a reverse mask reaches a near-perfect training loss: it cheats",
            yes_or_no(all([get("reverse", "train_loss")?.below(near_perfect), get("reverse", "validation_loss")?.below(near_perfect)])),
            format!(
                "Training loss {} against {} with the causal mask, in validation {} against {}. (Near-perfect is below {}: one position in {context} has its target outside of the window, where knowing only how frequent characters are costs {}.) Change the future, and {} of its prediction moves.",
                words("reverse", "train_loss")?,
                words("causal", "train_loss")?,
                words("reverse", "validation_loss")?,
                words("causal", "validation_loss")?,
                short(near_perfect),
                short(baseline("unigram")?),
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
                "With the next token as target its loss in use is {}. With the previous one the same mask makes a model that writes from right to left: loss {}, {} for the causal model, {} for knowing one neighbour.{}",
                reverse.words(),
                right_to_left.words(),
                causal.words(),
                short(baseline("bigram")?),
                if honest == Some(true) { " Nothing leaks there: what is wrong is a mask that shows the target." } else { "" }
            ),
        ),
        one(
            Document::Insights,
            "causal masking is essential, so that a model does not peek at the future",
            yes_or_no(all([
                Some(get("causal", "leak")?.value == 0.0 && apart("causal")? < SAME),
                get("none", "prefix_only_loss")?.above(1.5 * causal.value),
            ])),
            format!(
                "Causal: the leak is {}, and the loss from the prefix alone differs from the validation loss by {}. Without a mask {} of a prediction follows the future, and the loss goes from {} in validation to {} in use.",
                short(get("causal", "leak")?.value),
                short(apart("causal")?),
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
