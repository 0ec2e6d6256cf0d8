//! Whether trained heads broadcast, and whether blocks are phrases.

use super::run::PATTERNS;
use crate::error::Result;
use crate::judging::{Answer, estimate};
use crate::rules::PATTERN_EXCESS;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    if tables.find("broadcast").is_none() {
        return Ok(Vec::new());
    }
    let of = |pattern: &str, column| tables.number("broadcast", &[("pattern", pattern.into())], column);
    let mut answers = Vec::new();
    for (id, pattern) in ["broadcast-lines", "phrase-blocks"].into_iter().zip(PATTERNS) {
        let (trainings, seeds) = (of(pattern, "trainings")?, of(pattern, "seeds")?);
        // As for the four patterns: present where half of the trainings have such a head.
        let verdict = match () {
            () if 2.0 * trainings >= seeds => Verdict::Holds,
            () if trainings > 0.0 => Verdict::HoldsInPart,
            () => Verdict::Undecided,
        };
        let largest = estimate(tables, "broadcast", &[("pattern", pattern.into())], "largest")?.words();
        let heads = [of(pattern, "named")?, of(pattern, "heads")?];
        answers.push(Answer {
            id,
            verdict,
            because: format!(
                "{} of {} trained heads have an excess above {PATTERN_EXCESS}, in {trainings} of {seeds} trainings; the largest of a \
                 training averages {largest}. In a map with queries as rows {}",
                heads[0],
                heads[1],
                if pattern == "broadcast" {
                    "such a token is a column; it is a horizontal line only where keys are rows."
                } else {
                    "the own word is a block at the diagonal; compared are letters at the same distance."
                }
            ),
        });
    }
    Ok(answers)
}
