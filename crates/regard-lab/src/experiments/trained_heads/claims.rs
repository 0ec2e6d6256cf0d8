//! Whether trained heads differ, and which patterns they have; no verdict where the model is not better than a bigram model.

use super::run::NONE;
use crate::error::Result;
use crate::judging::{Answer, decided, estimate};
use crate::rules::DIFFERENT;
use crate::statistics::estimate::{Estimate, all};
use regard_plot::Tables;
use regard_plot::page::Verdict;

/// The table of the first claim.
const LIKENESS: &str = "trained_heads_likeness";

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let Some(table) = tables.find(LIKENESS) else { return Ok(Vec::new()) };
    let of = |step: usize, block: usize, column| {
        estimate(tables, LIKENESS, &[("order", "pre-norm".into()), ("step", step.into()), ("block", block.into())], column)
    };
    let largest = |column: &str| table.rows.iter().map(|row| table.number(row, column)).fold(0.0, f64::max) as usize;
    let (last, blocks) = (largest("step"), 0..=largest("block"));
    // A model that is not better than a bigram model gives no verdict.
    let bigram = tables.number("mask_training_baselines", &[("name", "bigram".into())], "value");
    let Ok(bigram) = bigram else { return Ok(Vec::new()) };
    if of(last, 0, "loss")?.value >= bigram {
        return Ok(Vec::new());
    }
    let at = |step: usize, column| -> Result<Vec<Estimate>> { blocks.clone().map(|block| of(step, block, column)).collect() };
    let words = |values: Vec<Estimate>| values.into_iter().map(Estimate::words).collect::<Vec<_>>().join(" and ");
    let (cosine, divergence) = (at(last, "centred_cosine")?, at(last, "jensen_shannon")?);
    let each = |answers: Vec<Option<bool>>| {
        let mut every = Some(true);
        answers.into_iter().for_each(|one| every = all([every, one]));
        every
    };
    let differ =
        all([each(cosine.iter().map(|c| c.below(DIFFERENT.0)).collect()), each(divergence.iter().map(|d| d.above(DIFFERENT.1)).collect())]);
    let named = tables.get("trained_heads_named")?;
    let count = |pattern: &str, column: &str| -> f64 { named.rows_where("pattern", pattern).map(|row| named.number(row, column)).sum() };
    let patterns = ["diagonal", "vertical", "horizontal", "block"];
    let found = |p: &&str| format!("{p} {} ({} of {} trainings)", count(p, "named"), count(p, "trainings"), count(p, "seeds"));
    let found: Vec<String> = patterns.iter().map(found).collect();
    // A pattern is present where at least half of the trainings of one order of layers have such a head.
    let half = |row: &Vec<regard_plot::Value>| 2.0 * named.number(row, "trainings") >= named.number(row, "seeds");
    let present = |pattern: &str| named.rows_where("pattern", pattern).any(half);
    let seen = patterns.iter().filter(|p| present(p)).count();
    Ok(vec![
        Answer {
            id: "several-experts",
            verdict: decided(differ, Verdict::Holds, Verdict::HoldsInPart),
            because: format!(
                "Before training the heads of a block have a centred cosine of {} and a divergence of {} nats, block by block; after \
                 {last} steps the cosine is {} and the divergence {}, of at most 0.693. (Different is a cosine below 0.5 and a \
                 divergence above 0.1, in every block.)",
                words(at(0, "centred_cosine")?),
                words(at(0, "jensen_shannon")?),
                words(cosine),
                words(divergence)
            ),
        },
        Answer {
            id: "four-patterns",
            verdict: if seen == 4 {
                Verdict::Holds
            } else if seen > 0 {
                Verdict::HoldsInPart
            } else {
                Verdict::Wrong
            },
            because: format!(
                "Of {} trained heads, in both orders of layers: {}; {} have none of the four. A pattern is present where half of the \
                 trainings of an order have such a head; heads with even weights have no pattern.",
                count("diagonal", "heads"),
                found.join(", "),
                count(NONE, "named")
            ),
        },
    ])
}
