//! Whether trained heads are experts; undecided where nothing was learnt.

use crate::error::Result;
use crate::judging::{Judged, has_learnt, short};
use crate::published::Document;
use regard_plot::page::Verdict;
use regard_plot::{Tables, Value};

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
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
