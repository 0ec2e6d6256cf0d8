//! The report: every experiment, then the page, which is a function of the tables alone.

use crate::EXPERIMENTS;
use crate::drawing::{SCALED, Told, UNSCALED, d_k_axis, rises};
use crate::error::{Error, Result};
use crate::experiment::{Check, Drawn, Entry, FETCHED, Progress, STORED_KEY, shell_word};
use crate::experiments::robustness::with_draws;
use crate::judging::{self, CLAIMS, Judged, ROBUSTNESS, cell, short};
use crate::learning::LearningConfig;
use crate::published::Document;
use regard_plot::figure::{Axis, Figure, LinePlot, Series, numbers};
use regard_plot::page::{Lead, Page, Section, Shown};
use regard_plot::{Table, Tables};
use std::path::PathBuf;

/// How large a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportConfig {
    /// Draws per cell.
    pub seeds: usize,
    /// Which draws.
    pub seed: u64,
    /// A Python with PyTorch to compare with, too.
    pub python: Option<PathBuf>,
    /// Measure times, too. Without them two reports with the same settings are the same, byte for byte.
    pub timing: bool,
    /// Train, too. Without it the results of trainings are those that are stored with the program.
    pub train: bool,
    /// The text that language models learn; they are trained then.
    pub text: Option<PathBuf>,
}

impl Default for ReportConfig {
    fn default() -> Self {
        Self { seeds: 20_000, seed: 1, python: None, timing: true, train: false, text: None }
    }
}

/// Swallows announcements: all of the work was announced before.
struct Announced<'p>(&'p dyn Progress);

impl Progress for Announced<'_> {
    fn expect(&self, _: u64) {}
    fn advance(&self, steps: u64) {
        self.0.advance(steps);
    }
    fn say(&self, what: &str) {
        self.0.say(what);
    }
    fn warn(&self, what: &str) {
        self.0.warn(what);
    }
    fn recall(&self, name: &str) -> Option<String> {
        self.0.recall(name)
    }
    fn remember(&self, name: &str, what: &str) -> Result<()> {
        self.0.remember(name, what)
    }
}

impl ReportConfig {
    /// What language models learn.
    pub(crate) fn learning(&self) -> LearningConfig {
        LearningConfig { text: self.text.clone(), ..LearningConfig::default() }
    }

    /// The command that makes the same report.
    pub fn command(&self) -> String {
        let (timing, train) = (if self.timing { "" } else { " --no-timing" }, if self.train { " --train" } else { "" });
        let text = self.text.as_ref().map_or_else(String::new, |path| format!(" --text {}", shell_word(&path.to_string_lossy())));
        format!("regard report --seeds {} --seed {}{timing}{train}{text}", self.seeds, self.seed)
    }

    /// Whether the text can be read and is long enough, before any work.
    fn check_text(&self) -> Result<()> {
        match &self.text {
            None => Ok(()),
            Some(path) if path.as_os_str() == "-" => Err(Error::Text {
                path: path.clone(),
                reason: "a report reads its text several times; write it to a file and give that".to_owned(),
            }),
            Some(_) => {
                let learning = self.learning();
                learning.tokens_of(&learning.content()?).map(drop)
            }
        }
    }

    /// Run every experiment.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Tables> {
        EXPERIMENTS.iter().try_for_each(|experiment| experiment.report_check(self))?;
        self.check_text()?;
        progress.expect(EXPERIMENTS.iter().map(|experiment| experiment.report_work(self)).sum());
        let mut tables = Vec::new();
        for experiment in EXPERIMENTS {
            tables.extend(experiment.report_tables(self, &Announced(progress))?);
        }
        let mut tables = Tables::from(tables);
        let mut verdicts = judging::table(&judging::judge(&tables)?);
        verdicts.origin = tables.get(ROBUSTNESS)?.origin.clone();
        verdicts.origin.iter_mut().filter(|(key, _)| key == "command").for_each(|(_, value)| *value = self.command());
        tables.put(verdicts);
        Ok(tables)
    }
}

/// Every file that a report may write, but for the page.
pub fn files() -> Vec<String> {
    let own = [format!("{CLAIMS}.csv"), format!("{LEAD}.svg"), format!("{LEAD}.png")];
    EXPERIMENTS.iter().flat_map(|experiment| experiment.files()).chain(own).collect()
}

/// Figures of the tables that are there.
///
/// # Errors
/// When a table lacks what its figure needs.
pub fn draw(tables: &Tables) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for experiment in EXPERIMENTS {
        figures.extend(experiment.figures(tables)?.into_iter().map(|drawn| drawn.figure));
    }
    Ok(figures)
}

/// What the words of every figure say, and whether the tables say so: the figure's name, and its checks.
///
/// # Errors
/// When a table lacks what a figure needs.
pub fn checks(tables: &Tables) -> Result<Vec<(String, Vec<Check>)>> {
    let mut all = vec![lead_figure(tables)?];
    for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.is_in(tables)) {
        all.extend(experiment.figures(tables)?);
    }
    Ok(all.into_iter().map(|drawn| (drawn.figure.name, drawn.checks)).collect())
}

/// The page and its figures, out of the tables.
///
/// # Errors
/// When a table is missing or lacks what a figure needs.
pub fn render(tables: &Tables) -> Result<(Page, Vec<Figure>)> {
    let judged = judging::judge(tables)?;
    let lead = lead(tables)?;
    let mut figures: Vec<Figure> = lead.figure.iter().cloned().collect();
    let mut sections = Vec::new();
    for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.is_in(tables)) {
        let drawn: Vec<Figure> = experiment.figures(tables)?.into_iter().map(|drawn| drawn.figure).collect();
        figures.extend(drawn.iter().cloned());
        sections.push(section(*experiment, tables, &judged, drawn));
    }
    let origin = tables.get(CLAIMS)?.origin.iter().filter(|(key, _)| key != "numbers").cloned().collect();
    let page = Page {
        title: "Regard: attention, re-run and checked".to_owned(),
        subtitle: "Every experiment of five documents on scaled dot-product attention, run again over many draws, put against exact expectations, and judged claim by claim".to_owned(),
        lead,
        documents: Document::ALL.map(|document| (document.short().to_owned(), document.title().to_owned())).to_vec(),
        sections,
        origin,
    };
    Ok((page, figures))
}

fn section(experiment: &dyn Entry, tables: &Tables, judged: &[(&'static str, Judged)], figures: Vec<Figure>) -> Section {
    let text = experiment.text();
    let shown = experiment.tables().iter().filter_map(|(name, columns)| {
        let columns = (*columns)?.iter().map(|column| (*column).to_owned()).collect();
        Some(Shown { table: tables.find(name)?.clone(), columns })
    });
    let mut notes = text.notes;
    notes.extend(experiment.tables().first().and_then(|(name, _)| tables.find(name)).and_then(stored_note));
    Section {
        id: experiment.id().to_owned(),
        title: text.title,
        intro: text.intro,
        claims: judged.iter().filter(|(id, _)| *id == experiment.id()).map(|(_, judged)| judged.on_page()).collect(),
        figures,
        tables: shown.collect(),
        notes,
        command: format!("regard {}", experiment.id()),
    }
}

/// What a section says of a table that is stored.
fn stored_note(table: &Table) -> Option<String> {
    let of = |key: &str| table.origin.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let (version, simd) = (of("regard").unwrap_or("?"), of("simd").unwrap_or("?"));
    if of(STORED_KEY)? == FETCHED {
        let command = of("command").unwrap_or("?");
        return Some(format!(
            "These numbers were not computed for this page: they are stored with the program, and were made by regard {version} ({simd}) with `{command}`."
        ));
    }
    Some(format!(
        "These numbers were not computed for this page: training takes minutes, so its results are stored with the program. They were made by regard {} ({}, seed {}) with the command below and are the same on any number of threads; `regard report --train` trains again.",
        version,
        simd,
        of("seed").unwrap_or("?")
    ))
}

fn lead(tables: &Tables) -> Result<Lead> {
    let exact = |d_k: usize, scaled: bool| tables.number(ROBUSTNESS, &cell(8, d_k, scaled, "max_weight"), "exact").map(short);
    let gradient = |scaled: bool, column| {
        judging::estimate(tables, "attention_gradients", &[("d_k", 1024usize.into()), ("scaled", scaled.into())], column).map(|e| e.words())
    };
    let answer = vec![
        format!(
            "Scores of random vectors spread as \u{221a}d_{{k}}: at d_{{k}} = 256 their standard deviation is {}.",
            short(crate::statistics::theory::dot_product_deviation(256))
        ),
        format!("Unscaled, one of 8 keys then gets {} of the weight on average; scaled it gets {}.", exact(256, false)?, exact(256, true)?),
        format!(
            "The gradient does not vanish without the scale: at d_{{k}} = 1024 its norm is {} instead of {}, but it sits in few rows.",
            gradient(false, "grad_norm_q")?,
            gradient(true, "grad_norm_q")?
        ),
    ];
    let formula = "softmax( Q K^{T} / \u{221a}d_{k} ) V".to_owned();
    let figure = Some(lead_figure(tables)?.figure);
    Ok(Lead { question: "Why divide by \u{221a}d_{k}?".to_owned(), formula, answer, figure })
}

/// The figure of the first answer.
const LEAD: &str = "why_the_scale";

/// Cause and effect: the scores spread, and the weights collapse.
fn lead_figure(tables: &Tables) -> Result<Drawn> {
    let growth = tables.get("check_growth")?;
    let d_k = numbers(growth, "d_k")?;
    let (std, scaled_std) = (numbers(growth, "std")?, numbers(growth, "scaled_std")?);
    let cause = LinePlot::new("Cause: dot products spread", d_k_axis(), Axis::log2("standard deviation of the scores"))
        .series(Series::new("unscaled", &d_k, &std).colour(UNSCALED))
        .series(Series::new("scaled", &d_k, &scaled_std).colour(SCALED));
    let effect = with_draws(tables, 8, "max_weight", "Effect: one key takes everything", "largest of 8 weights", false)?;
    let exact = |scaled: bool| tables.number(ROBUSTNESS, &cell(8, 1024, scaled, "max_weight"), "exact");
    let spreads = rises(&std) && scaled_std.iter().all(|s| (s - 1.0).abs() < 0.05);
    let collapses = exact(false)? > 0.95 && exact(true)? < 0.5;
    Ok(Told::new(LEAD, "Scores and the largest weight against the width of a head")
        .title("Without 1/\u{221a}d_{k} the scores spread and attention collapses onto one key", spreads && collapses)
        .panel(cause)
        .panel(effect)
        .says("a: the standard deviation of q.k is \u{221a}d_{k}; divided by \u{221a}d_{k} it is 1.", spreads)
        .shows("b: the largest weight of a row of 8, averaged over a matrix; lines are exact expectations, bands hold 95 % of single matrices.")
        .drawn())
}
