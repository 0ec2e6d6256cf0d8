//! What the documents claim, and what became of it: a function of the tables alone.
//!
//! Each verdict has a rule with an edge, and is given only where the evidence is four standard errors clear of that edge; it is *undecided* otherwise.
//!
//! A claim that rests on one draw is a *lucky draw* when fewer than one draw in ten is as extreme on that side: a rule that brands one honest draw
//! in five, and the section says so. A claim that rests on several draws is one when so many of them have a number outside of the central 95 % of
//! its distribution as honest ones have in fewer than one case in twenty.

use crate::EXPERIMENTS;
use crate::error::Result;
use crate::published::Document;
use crate::statistics::estimate::Estimate;
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
        Claim {
            document: self.document.short().to_owned(),
            text: self.claim.to_owned(),
            verdict: self.verdict,
            because: self.because.clone(),
        }
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

/// Judge what the tables allow, and put the verdicts among them, with the origin of the first.
pub fn put_verdicts(tables: &mut Tables) {
    let judged = judge_what_is_there(tables);
    if !judged.is_empty() {
        let mut verdicts = table(&judged);
        verdicts.origin.clone_from(&tables.all()[0].origin);
        tables.put(verdicts);
    }
}

/// The table that most claims rest on.
pub(crate) const ROBUSTNESS: &str = "attention_robustness_summary";

/// The columns that name a cell of the robustness table.
pub(crate) fn cell(seq: usize, d_k: usize, scaled: bool, statistic: &str) -> [(&'static str, Value); 4] {
    [("seq", seq.into()), ("d_k", d_k.into()), ("scaled", scaled.into()), ("statistic", statistic.into())]
}

/// The estimate of a column in the row where the columns have these values.
pub(crate) fn estimate(tables: &Tables, table: &str, at: &[(&str, Value)], column: &str) -> Result<Estimate> {
    let end = |which: &str| tables.number(table, at, &format!("{column}_{which}"));
    Ok(Estimate { value: tables.number(table, at, column)?, low: end("low")?, high: end("high")? })
}

/// The smaller tail of a percentile, in percent.
pub(crate) fn tail(percentile: Estimate) -> Estimate {
    let Estimate { value, low, high } = percentile;
    if value <= 50.0 { percentile } else { Estimate { value: 100.0 - value, low: 100.0 - high, high: 100.0 - low } }
}

/// Whether one draw is a lucky one, by the percentiles of its numbers.
pub(crate) fn lucky_draw(percentiles: &[Estimate]) -> Option<bool> {
    let extreme: Vec<_> = percentiles.iter().map(|p| tail(*p).below(10.0)).collect();
    any(&extreme)
}

/// Does any hold? Yes as soon as one does; nothing where one that might is undecided.
fn any(answers: &[Option<bool>]) -> Option<bool> {
    if answers.contains(&Some(true)) {
        Some(true)
    } else if answers.contains(&None) {
        None
    } else {
        Some(false)
    }
}

/// Whether several draws are lucky ones: the percentiles of the numbers of each, and how often an honest draw has one of them outside.
pub(crate) fn lucky_draws(draws: &[(Vec<Estimate>, f64)]) -> Option<bool> {
    let outside: Vec<Option<bool>> =
        draws.iter().map(|(numbers, _)| any(&numbers.iter().map(|p| tail(*p).below(2.5)).collect::<Vec<_>>())).collect();
    let least = outside.iter().filter(|o| **o == Some(true)).count();
    let most = least + outside.iter().filter(|o| o.is_none()).count();
    let honest: Vec<f64> = draws.iter().map(|(_, share)| *share).collect();
    let rare = |count: usize| at_least(&honest, count) < 0.05;
    (rare(least) == rare(most)).then(|| rare(least))
}

/// The probability that at least so many of independent events happen.
fn at_least(probabilities: &[f64], count: usize) -> f64 {
    let mut exactly = vec![1.0];
    for p in probabilities {
        let mut next = vec![0.0; exactly.len() + 1];
        for (k, x) in exactly.iter().enumerate() {
            next[k] += x * (1.0 - p);
            next[k + 1] += x * p;
        }
        exactly = next;
    }
    exactly[count.min(exactly.len())..].iter().sum()
}

/// A verdict for an answer, and *undecided* for none.
pub(crate) fn decided(answer: Option<bool>, yes: Verdict, no: Verdict) -> Verdict {
    match answer {
        Some(true) => yes,
        Some(false) => no,
        None => Verdict::Undecided,
    }
}

/// Of what is exact.
pub(crate) fn holds(ok: bool) -> Verdict {
    if ok { Verdict::Holds } else { Verdict::Wrong }
}

/// A number within a sentence.
pub(crate) fn short(x: f64) -> String {
    prose_number(x)
}

/// A share in percent, with the digits that its interval holds.
pub(crate) fn percent(share: Estimate) -> String {
    format!("{} %", share.map(|x| 100.0 * x).words())
}

/// A training that has not taken off judges nobody.
pub(crate) fn has_learnt(first: f64, last: f64) -> bool {
    last < 0.6 * first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percentile(value: f64, half: f64) -> Estimate {
        Estimate::around(value, half)
    }

    #[test]
    fn a_rule_is_applied_only_where_the_evidence_reaches() {
        assert_eq!(lucky_draw(&[percentile(93.4, 0.3), percentile(50.0, 0.5)]), Some(true));
        assert_eq!(lucky_draw(&[percentile(93.4, 3.0), percentile(50.0, 0.5)]), None);
        assert_eq!(lucky_draw(&[percentile(60.0, 3.0), percentile(50.0, 0.5)]), Some(false));
    }

    #[test]
    fn several_draws_are_lucky_when_honest_ones_would_rarely_be_like_them() {
        // Four draws, each with a number outside in one case of five: at least three of them in 0.0272 of cases, two in 0.1808.
        assert!((at_least(&[0.2; 4], 3) - 0.0272).abs() < 1e-12 && (at_least(&[0.2; 4], 2) - 0.1808).abs() < 1e-12);
        let draw = |p: f64, half: f64| (vec![percentile(p, half)], 0.2);
        assert_eq!(lucky_draws(&[draw(1.0, 0.1), draw(1.0, 0.1), draw(1.0, 0.1), draw(50.0, 0.1)]), Some(true));
        assert_eq!(lucky_draws(&[draw(1.0, 0.1), draw(2.4, 0.2), draw(50.0, 0.1), draw(50.0, 0.1)]), Some(false));
        assert_eq!(lucky_draws(&[draw(1.0, 0.1), draw(1.0, 0.1), draw(2.4, 0.2), draw(50.0, 0.1)]), None, "it may be two or three");
    }

    #[test]
    fn a_tail_is_on_either_side() {
        assert_eq!(tail(Estimate { value: 98.0, low: 97.0, high: 98.5 }), Estimate { value: 2.0, low: 1.5, high: 3.0 });
    }
}
