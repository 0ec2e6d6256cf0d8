//! Claims about masks in training; none where the causal model is not better than a bigram model.

use crate::error::Result;
use crate::judging::{Answer, decided, estimate, percent, short};
use crate::rules::{FAILING_LOSS, LEAKING_LOSS, SAME_LOSS};
use crate::statistics::estimate::{Estimate, all};
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    if tables.find("mask_training").is_none() {
        return Ok(Vec::new());
    }
    let get = |variant: &str, column| estimate(tables, "mask_training", &[("variant", variant.into())], column);
    let words = |variant: &str, column| get(variant, column).map(Estimate::words);
    let baseline = |name: &str| tables.number("mask_training_baselines", &[("name", name.into())], "value");
    if get("causal", "validation_loss")?.value > baseline("bigram")? {
        // Too short a training for any verdict.
        return Ok(Vec::new());
    }
    let one = |id, verdict, because| Answer { id, verdict, because };
    let (causal, reverse) = (get("causal", "prefix_only_loss")?, get("reverse", "prefix_only_loss")?);
    let apart = |variant| -> Result<f64> { Ok((get(variant, "validation_loss")?.value - get(variant, "prefix_only_loss")?.value).abs()) };
    // Near-perfect: all targets copied from the window but the last, which costs the unigram loss.
    let lengths = tables.get("mask_training_prefix")?;
    let context = lengths.rows.iter().map(|row| lengths.number(row, "length")).fold(1.0, f64::max);
    let near_perfect = baseline("unigram")? / context;
    // Sound: no leak, the same loss in use as in validation, and better than a bigram model.
    let right_to_left = get("right to left", "prefix_only_loss")?;
    let no_leak = get("right to left", "leak")?.value == 0.0 && apart("right to left")? < SAME_LOSS;
    let sound = all([Some(no_leak), right_to_left.below(baseline("bigram")?)]);
    // Above uniform guessing decides alone; otherwise the loss is compared with the causal model's.
    let fails = match reverse.above(baseline("uniform")?) {
        Some(true) => Some(true),
        _ => reverse.above(FAILING_LOSS * causal.value),
    };
    Ok(vec![
        one(
            "mask-near-perfect",
            yes_or_no(all([get("reverse", "train_loss")?.below(near_perfect), get("reverse", "validation_loss")?.below(near_perfect)])),
            format!(
                "Training loss {} against {} with the causal mask, in validation {} against {}. (Perfect copying would cost {}: all but \
                 one of {context} targets can be copied from the window; guessing the last from letter frequencies costs {}.) When \
                 the future is changed, {} of its prediction moves.",
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
            "mask-fails-in-use",
            yes_or_no(fails),
            format!(
                "From the prefix alone its loss is {}, where uniform guessing costs {} and the causal model {}. Of the words that it \
                 writes {} are real, of the causal model's {}.",
                reverse.words(),
                short(baseline("uniform")?),
                causal.words(),
                percent(get("reverse", "real_words")?),
                percent(get("causal", "real_words")?)
            ),
        ),
        one(
            "reverse-mask-broken",
            decided(sound, Verdict::HoldsInPart, Verdict::Holds),
            format!(
                "With the next token as target its loss in use is {}. With the previous one the same mask makes a model that writes \
                 from right to left: loss {}, {} for the causal model, {} for a bigram model.{}",
                reverse.words(),
                right_to_left.words(),
                causal.words(),
                short(baseline("bigram")?),
                if sound == Some(true) { " Nothing leaks there: the error is a mask that shows the target." } else { "" }
            ),
        ),
        one(
            "causal-mask",
            yes_or_no(all([
                Some(get("causal", "leak")?.value == 0.0 && apart("causal")? < SAME_LOSS),
                get("none", "prefix_only_loss")?.above(LEAKING_LOSS * causal.value),
            ])),
            format!(
                "Causal: the leak is {}, and the loss from the prefix alone differs from the validation loss by {}. Without a mask {} \
                 of a prediction depends on the future, and the loss goes from {} in validation to {} in use.",
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
