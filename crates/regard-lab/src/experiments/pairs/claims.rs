//! What cross-attention is for, and whether it explains itself.

use crate::error::Result;
use crate::judging::{Answer, decided, estimate, percent};
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let Some(table) = tables.find("pairs_results") else { return Ok(Vec::new()) };
    let get = |task: &str, column| estimate(tables, "pairs_results", &[("task", task.into())], column);
    if table.rows.iter().any(|row| table.number(row, "exact_match") < 0.5) || table.rows.len() < 2 {
        return Ok(Vec::new());
    }
    let (reverse, words) = (get("reverse", "exact_match")?, get("number-words", "exact_match")?);
    let needed = |task: &str| -> Result<Option<bool>> { Ok(get(task, "right")?.exceeds(get(task, "all_permuted")?)) };
    // Right more often than not, where guessing is right in fewer than one case in ten thousand; and not without the weights as they are.
    let carried = all([reverse.above(0.5), words.above(0.5), needed("reverse")?, needed("number-words")?]);
    let unexplained = get("number-words", "influence")?.exceeds(get("number-words", "weight")?) == Some(true);
    Ok(vec![Answer {
        id: "cross-attention",
        verdict: decided(carried, Verdict::Holds, Verdict::Wrong),
        because: format!(
            "With cross-attention as the only path to the input, {} of held-out words are written backwards and {} of held-out numbers \
             in words without a mistake; with its weights shuffled {} and {} of the tokens are right. {}he head that looks most at the \
             digit that a word is for has {} of its weight there; {} of the influence is that digit's.",
            percent(reverse),
            percent(words),
            percent(get("reverse", "all_permuted")?),
            percent(get("number-words", "all_permuted")?),
            if unexplained { "But its weights do not explain the answer: t" } else { "T" },
            percent(get("number-words", "weight")?),
            percent(get("number-words", "influence")?)
        ),
    }])
}
