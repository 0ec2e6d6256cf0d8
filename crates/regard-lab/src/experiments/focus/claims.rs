//! Whether attention finds what fixed operations do not, and what a window loses.

use super::run::WINDOW;
use crate::error::Result;
use crate::judging::{Answer, decided, estimate, percent};
use crate::rules::COPIES;
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    if tables.find("focus").is_none() {
        return Ok(Vec::new());
    }
    let of = |task: &str, model: &str, length: usize| {
        estimate(tables, "focus", &[("task", task.into()), ("model", model.into()), ("length", length.into())], "right")
    };
    let (attention, gru, convolution) = (of("recall", "attention", 16)?, of("recall", "GRU", 16)?, of("recall", "convolution", 16)?);
    let better = all([attention.exceeds(gru), attention.exceeds(convolution)]);
    // The gates of a GRU depend on the input: copying shows whether that suffices to pick a position.
    let copies = of("copy", "GRU", 16)?.above(COPIES);
    let words = |task: &str, model: &str| -> Result<String> {
        let shares = [16, 32, 64].map(|length| of(task, model, length).map(percent));
        let [a, b, c] = shares;
        Ok(format!("{}, {} and {}", a?, b?, c?))
    };
    let near = |distance: usize| {
        let at = [("task", "recall".into()), ("model", "local attention".into()), ("distance", distance.into())];
        estimate(tables, "focus_distance", &at, "right")
    };
    let (inside, outside) = (near(WINDOW)?, near(WINDOW + 1)?);
    Ok(vec![
        Answer {
            id: "fixed-operations",
            verdict: match (better, copies) {
                (Some(true), Some(true)) => Verdict::HoldsInPart,
                (Some(true), Some(false)) => Verdict::Holds,
                (Some(false), _) => Verdict::Wrong,
                _ => Verdict::Undecided,
            },
            because: format!(
                "Recall of a pair among 16, 32 and 64 after training with up to 16: attention {}, GRU {}, convolution {}. Copying a \
                 marked symbol: attention {}, GRU {}, convolution {}. A GRU's weights are the same at every step, but its gates depend \
                 on the input.",
                words("recall", "attention")?,
                words("recall", "GRU")?,
                words("recall", "convolution")?,
                words("copy", "attention")?,
                words("copy", "GRU")?,
                words("copy", "convolution")?
            ),
        },
        Answer {
            id: "local-loses-context",
            verdict: decided(inside.exceeds(outside), Verdict::Holds, Verdict::Wrong),
            because: format!(
                "With a window of {WINDOW}, recall of the pair {WINDOW} positions back is right in {} of cases, {} positions back in {}; \
                 chance is 6 %.",
                percent(inside),
                WINDOW + 1,
                percent(outside)
            ),
        },
    ])
}
