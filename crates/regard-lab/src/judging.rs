//! Verdicts on the claims of the documents: a function of the tables alone. The rules are in `rules.rs`, the claims in
//! `claims/*.toml`.

use crate::EXPERIMENTS;
use crate::claims::{self, Claim, Source};
use crate::error::Result;
use crate::rules::{LUCKY, TAIL};
use crate::statistics::estimate::Estimate;
use regard_plot::page::Verdict;
use regard_plot::{Table, Tables, Value, prose_number};

/// Verdict of an experiment's code on the claim with this id.
#[derive(Debug, Clone)]
pub struct Answer {
    pub id: &'static str,
    pub verdict: Verdict,
    /// The reason, in one or a few sentences.
    pub because: String,
}

/// A claim with its source and verdict.
#[derive(Debug, Clone)]
pub struct Judged {
    /// Title of the document.
    pub title: String,
    /// Its short name.
    pub document: String,
    pub section: String,
    pub claim: String,
    pub verdict: Verdict,
    pub because: String,
    /// The rule of the verdict.
    pub edge: String,
}

impl Judged {
    fn new(source: &Source, claim: &Claim, verdict: Verdict, because: String) -> Self {
        Self {
            title: source.title.clone(),
            document: source.name.clone(),
            section: claim.section.clone(),
            claim: claim.statement.clone(),
            verdict,
            because,
            edge: claim.edge(),
        }
    }

    /// For the page.
    pub fn on_page(&self) -> regard_plot::page::Claim {
        regard_plot::page::Claim {
            document: self.document.clone(),
            section: self.section.clone(),
            text: self.claim.clone(),
            verdict: self.verdict,
            because: self.because.clone(),
            edge: self.edge.clone(),
        }
    }
}

/// Judges the claims of one experiment, by its code and by rules.
fn judge_one(id: &'static str, answers: &[Answer], sources: &[Source], tables: &Tables) -> Result<Vec<Judged>> {
    let mut judged = Vec::new();
    for source in sources {
        for claim in source.claims.iter().filter(|claim| claim.experiment == id) {
            if claim.lacks_optional_table(tables) {
                continue;
            }
            if claim.has_rules() {
                let (verdict, because) = claim.judge(tables)?;
                judged.push(Judged::new(source, claim, verdict, because));
            } else if !claim.reference.is_empty() {
                judged.push(Judged::new(source, claim, Verdict::ByReference, claim.reference.clone()));
            } else if let Some(answer) = answers.iter().find(|answer| answer.id == claim.id) {
                judged.push(Judged::new(source, claim, answer.verdict, answer.because.clone()));
            }
        }
    }
    Ok(judged)
}

/// Every claim of the five documents and of `more`, under the experiment that judges it. Experiments without tables judge nothing.
///
/// # Errors
/// When a table of the report is missing.
pub fn judge_with(tables: &Tables, more: &[Source]) -> Result<Vec<(&'static str, Judged)>> {
    let mut all = Vec::new();
    for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.is_in(tables)) {
        let answers = experiment.claims(tables)?;
        for sources in [claims::embedded(), more] {
            all.extend(judge_one(experiment.id(), &answers, sources, tables)?.into_iter().map(|judged| (experiment.id(), judged)));
        }
    }
    Ok(all)
}

/// Every claim of the five documents.
///
/// # Errors
/// When a table of the report is missing.
pub fn judge(tables: &Tables) -> Result<Vec<(&'static str, Judged)>> {
    judge_with(tables, &[])
}

/// The claims that these tables can judge.
pub fn judge_available(tables: &Tables) -> Vec<(&'static str, Judged)> {
    let mut all = Vec::new();
    for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.is_in(tables)) {
        let answers = experiment.claims(tables).unwrap_or_default();
        for source in claims::embedded() {
            for claim in &source.claims {
                let mut one = source.clone();
                one.claims = vec![claim.clone()];
                let judged = judge_one(experiment.id(), &answers, &[one], tables).unwrap_or_default();
                all.extend(judged.into_iter().map(|judged| (experiment.id(), judged)));
            }
        }
    }
    all
}

/// The name of the table of verdicts.
pub const CLAIMS: &str = "published_claims";

/// `published_claims`, the verdicts as data.
pub fn table(judged: &[(&'static str, Judged)]) -> Table {
    let columns = [
        ("section", "section"),
        ("document", "document"),
        ("place", "section of the document"),
        ("claim", "claim"),
        ("verdict", "verdict"),
        ("because", "reason"),
        ("edge", "rule"),
    ];
    let mut table = Table::new(CLAIMS, "Published claims and their verdicts", &columns);
    for (section, j) in judged {
        let texts = [*section, &j.title, &j.section, &j.claim, j.verdict.words(), &j.because, &j.edge];
        table.push(texts.map(Value::from).to_vec());
    }
    table
}

/// Judges what the tables allow, and adds the verdicts to them, with the origin of the first table.
pub fn put_verdicts(tables: &mut Tables) {
    let judged = judge_available(tables);
    if !judged.is_empty() {
        let mut verdicts = table(&judged);
        verdicts.origin.clone_from(&tables.all()[0].origin);
        tables.put(verdicts);
    }
}

/// The table that most claims use.
pub(crate) const ROBUSTNESS: &str = "attention_robustness_summary";

/// The columns that identify a cell of the robustness table.
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

/// Disjunction: true as soon as one is true, undecided if one is undecided.
fn any(answers: &[Option<bool>]) -> Option<bool> {
    if answers.contains(&Some(true)) {
        Some(true)
    } else if answers.contains(&None) {
        None
    } else {
        Some(false)
    }
}

/// Whether several draws are lucky: for each, the percentiles of its numbers and the probability that one of them is unusual by chance.
pub(crate) fn lucky_draws(draws: &[(Vec<Estimate>, f64)]) -> Option<bool> {
    let outside: Vec<Option<bool>> =
        draws.iter().map(|(numbers, _)| any(&numbers.iter().map(|p| tail(*p).below(TAIL)).collect::<Vec<_>>())).collect();
    let least = outside.iter().filter(|o| **o == Some(true)).count();
    let most = least + outside.iter().filter(|o| o.is_none()).count();
    let chance: Vec<f64> = draws.iter().map(|(_, share)| *share).collect();
    let rare = |count: usize| at_least(&chance, count) < LUCKY;
    (rare(least) == rare(most)).then(|| rare(least))
}

/// The probability of at least `count` of independent events.
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

/// A verdict for an answer; *undecided* for none.
pub(crate) fn decided(answer: Option<bool>, yes: Verdict, no: Verdict) -> Verdict {
    match answer {
        Some(true) => yes,
        Some(false) => no,
        None => Verdict::Undecided,
    }
}

/// Verdict on an exact statement.
pub(crate) fn holds(ok: bool) -> Verdict {
    if ok { Verdict::Holds } else { Verdict::Wrong }
}

/// A number within a sentence.
pub(crate) fn short(x: f64) -> String {
    prose_number(x)
}

/// A share in percent, with the digits that its interval supports.
pub(crate) fn percent(share: Estimate) -> String {
    format!("{} %", share.map(|x| 100.0 * x).words())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percentile(value: f64, half: f64) -> Estimate {
        Estimate::around(value, half)
    }

    #[test]
    fn several_draws_are_lucky_when_chance_rarely_gives_as_many_outliers() {
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
