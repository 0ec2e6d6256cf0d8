//! What the documents claim, and what became of it: a function of the tables alone.
//!
//! A claim that rests on one draw is a *lucky draw* when fewer than one draw in ten is as extreme on that side; a claim that rests on several, when
//! more than a quarter of them lie outside the central 95 % of their distributions.

use crate::EXPERIMENTS;
use crate::error::Result;
use crate::published::Document;
use regard_plot::page::{Claim, Verdict};
use regard_plot::{Table, Tables, Value, prose_number};

/// A claim, and what became of it.
#[derive(Debug, Clone)]
pub struct Judged {
    /// Who says so.
    pub document: Document,
    /// What is said, in our words.
    pub claim: &'static str,
    /// What became of it.
    pub verdict: Verdict,
    /// Why.
    pub because: String,
}

impl Judged {
    /// For the page.
    pub fn on_page(&self) -> Claim {
        Claim { text: format!("{}: {}", self.document.short(), self.claim), verdict: self.verdict, because: self.because.clone() }
    }
}

/// Every claim, under the experiment that judges it. Experiments whose tables are not there judge nothing.
///
/// # Errors
/// When a table of the report is missing.
pub fn judge(tables: &Tables) -> Result<Vec<(&'static str, Judged)>> {
    let mut all = Vec::new();
    for experiment in EXPERIMENTS {
        all.extend(experiment.claims(tables)?.into_iter().map(|judged| (experiment.id(), judged)));
    }
    Ok(all)
}

/// The claims that these tables can judge.
pub fn judge_what_is_there(tables: &Tables) -> Vec<(&'static str, Judged)> {
    let mut all = Vec::new();
    for experiment in EXPERIMENTS {
        all.extend(experiment.claims(tables).unwrap_or_default().into_iter().map(|judged| (experiment.id(), judged)));
    }
    all
}

/// The name of the table of verdicts.
pub const CLAIMS: &str = "published_claims";

/// `published_claims`, for those who want the verdicts as data.
pub fn table(judged: &[(&'static str, Judged)]) -> Table {
    let columns = [("section", "section"), ("document", "document"), ("claim", "claim"), ("verdict", "verdict"), ("because", "why")];
    let mut table = Table::new(CLAIMS, "What was published, and what became of it", &columns);
    for (section, j) in judged {
        table.push(vec![(*section).into(), j.document.title().into(), j.claim.into(), j.verdict.words().into(), j.because.as_str().into()]);
    }
    table
}

/// The table that most claims rest on.
pub(crate) const ROBUSTNESS: &str = "attention_robustness_summary";

/// The columns that name a cell of the robustness table.
pub(crate) fn cell(seq: usize, d_k: usize, scaled: bool, statistic: &str) -> [(&'static str, Value); 4] {
    [("seq", seq.into()), ("d_k", d_k.into()), ("scaled", scaled.into()), ("statistic", statistic.into())]
}

/// The smaller tail of a percentile, in percent.
pub(crate) fn tail(percentile: f64) -> f64 {
    percentile.min(100.0 - percentile)
}

/// Whether the draws are lucky ones, by the percentiles of the numbers of each.
pub(crate) fn lucky(draws: &[&[f64]]) -> bool {
    let extreme = |limit: f64| draws.iter().filter(|numbers| numbers.iter().any(|&p| tail(p) < limit)).count();
    if draws.len() == 1 { extreme(10.0) == 1 } else { 4 * extreme(2.5) > draws.len() }
}

pub(crate) fn holds(ok: bool) -> Verdict {
    if ok { Verdict::Holds } else { Verdict::Wrong }
}

/// A number within a sentence.
pub(crate) fn short(x: f64) -> String {
    prose_number(x)
}

/// `93rd`.
pub(crate) fn ordinal(percentile: f64) -> String {
    let n = percentile.round() as i64;
    let ending = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

pub(crate) fn percent(share: f64) -> String {
    format!("{} %", short((1000.0 * share).round() / 10.0))
}

/// A training that has not taken off judges nobody.
pub(crate) fn has_learnt(first: f64, last: f64) -> bool {
    last < 0.6 * first
}
