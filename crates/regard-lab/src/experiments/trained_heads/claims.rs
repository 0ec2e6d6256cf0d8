//! Whether trained heads are experts, and which patterns they have; undecided where nothing was learnt.

use super::run::NONE;
use crate::error::Result;
use crate::judging::{Judged, decided, estimate, has_learnt};
use crate::published::Document;
use crate::statistics::estimate::{Estimate, all};
use regard_plot::Tables;
use regard_plot::page::Verdict;

/// The table of the first claim.
const LIKENESS: &str = "trained_heads_likeness";

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let Some(table) = tables.find(LIKENESS) else { return Ok(Vec::new()) };
    let of = |step: usize, block: usize, column| {
        estimate(tables, LIKENESS, &[("order", "pre-norm".into()), ("step", step.into()), ("block", block.into())], column)
    };
    let largest = |column: &str| table.rows.iter().map(|row| table.number(row, column)).fold(0.0, f64::max) as usize;
    let (last, blocks) = (largest("step"), 0..=largest("block"));
    if !has_learnt(of(0, 0, "loss")?.value, of(last, 0, "loss")?.value) {
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
    let differ = all([each(cosine.iter().map(|c| c.below(0.5)).collect()), each(divergence.iter().map(|d| d.above(0.1)).collect())]);
    let named = tables.get("trained_heads_named")?;
    let count = |pattern: &str, column: &str| -> f64 { named.rows_where("pattern", pattern).map(|row| named.number(row, column)).sum() };
    let patterns = ["diagonal", "vertical", "horizontal", "block"];
    let found: Vec<String> = patterns.iter().map(|p| format!("{p} {}", count(p, "named"))).collect();
    let seen = patterns.iter().filter(|p| count(p, "named") > 0.0).count();
    Ok(vec![
        Judged {
            document: Document::Insights,
            claim: "several heads are several experts: each learns different patterns",
            verdict: decided(differ, Verdict::Holds, Verdict::HoldsInPart),
            because: format!(
                "Asked of heads that were trained. Before training the heads of a block have a centred cosine of {} and a divergence of {} nats, block by block; after {last} steps the cosine is {} and the divergence {}, of at most 0.693. (Different is a cosine below 0.5 and a divergence above 0.1, in every block.)",
                words(at(0, "centred_cosine")?),
                words(at(0, "jensen_shannon")?),
                words(cosine),
                words(divergence)
            ),
        },
        Judged {
            document: Document::Surgeon,
            claim: "look for four patterns: diagonal, vertical lines, horizontal lines, blocks",
            verdict: if seen == 4 {
                Verdict::Holds
            } else if seen > 0 {
                Verdict::HoldsInPart
            } else {
                Verdict::Wrong
            },
            because: format!(
                "Of {} trained heads, in both orders of layers: {}; {} have none of the four for certain. The maps carry the names.",
                count("diagonal", "heads"),
                found.join(", "),
                count(NONE, "named")
            ),
        },
    ])
}
