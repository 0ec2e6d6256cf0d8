//! The report: every experiment, then the page, which is a function of the tables alone.

use crate::EXPERIMENTS;
use crate::drawing::{SCALED, UNSCALED, d_k_axis};
use crate::error::Result;
use crate::experiment::{Entry, Progress, STORED_KEY};
use crate::experiments::robustness::with_draws;
use crate::judging::{self, CLAIMS, Judged, ROBUSTNESS, cell, short};
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
}

impl Default for ReportConfig {
    fn default() -> Self {
        Self { seeds: 2000, seed: 1, python: None, timing: true, train: false }
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
}

impl ReportConfig {
    /// The command that makes the same report.
    pub fn command(&self) -> String {
        let (timing, train) = (if self.timing { "" } else { " --no-timing" }, if self.train { " --train" } else { "" });
        format!("regard report --seeds {} --seed {}{timing}{train}", self.seeds, self.seed)
    }

    /// Run every experiment.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Tables> {
        EXPERIMENTS.iter().try_for_each(|experiment| experiment.report_check(self))?;
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
        figures.extend(experiment.figures(tables)?);
    }
    Ok(figures)
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
        let drawn = experiment.figures(tables)?;
        figures.extend(drawn.iter().cloned());
        sections.push(section(*experiment, tables, &judged, drawn));
    }
    let origin = tables.get(CLAIMS)?.origin.iter().filter(|(key, _)| key != "numbers").cloned().collect();
    let page = Page {
        title: "Regard: attention, re-run and checked".to_owned(),
        subtitle: "Every experiment of five documents on scaled dot-product attention, run again over many draws, put against exact expectations, and judged claim by claim".to_owned(),
        lead,
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
    of(STORED_KEY)?;
    Some(format!(
        "These numbers were not computed for this page: training takes minutes, so its results are stored with the program. They were made by regard {} ({}, seed {}) with the command below and are the same on any number of threads; `regard report --train` trains again.",
        of("regard").unwrap_or("?"),
        of("simd").unwrap_or("?"),
        of("seed").unwrap_or("?")
    ))
}

fn lead(tables: &Tables) -> Result<Lead> {
    let exact = |d_k: usize, scaled: bool| tables.number(ROBUSTNESS, &cell(8, d_k, scaled, "max_weight"), "exact").map(short);
    let gradient = |scaled: bool, column| {
        tables.number("attention_gradients", &[("d_k", 1024usize.into()), ("scaled", scaled.into())], column).map(short)
    };
    let answer = vec![
        format!(
            "The dot product of two random vectors of d_{{k}} numbers has the standard deviation sqrt(d_{{k}}), so without the scale wide heads make scores that differ by dozens, and the softmax gives nearly everything to one key: of 8 weights the largest averages {} at d_{{k}} = 256.",
            exact(256, false)?
        ),
        format!(
            "Divided by sqrt(d_{{k}}) the scores have standard deviation 1 at every width, and the same weight averages {} at d_{{k}} = 16 and {} at 1024: how sharp attention is, is then left to learning.",
            exact(16, true)?,
            exact(1024, true)?
        ),
        format!(
            "The gradient does not vanish without the scale, as is often said, it concentrates: at d_{{k}} = 1024 its norm is {} instead of {}, while the median row gets {} instead of {}.",
            gradient(false, "grad_norm_q")?,
            gradient(true, "grad_norm_q")?,
            gradient(false, "row_dq_median")?,
            gradient(true, "row_dq_median")?
        ),
    ];
    Ok(Lead { question: "Why divide by sqrt(d_{k})?".to_owned(), answer, figure: Some(lead_figure(tables)?) })
}

/// The figure of the first answer.
const LEAD: &str = "why_the_scale";

/// Cause and effect: the scores spread, and the weights collapse.
fn lead_figure(tables: &Tables) -> Result<Figure> {
    let growth = tables.get("check_growth")?;
    let d_k = numbers(growth, "d_k")?;
    let cause = LinePlot::new("Cause: dot products spread", d_k_axis(), Axis::log2("standard deviation of the scores"))
        .series(Series::new("unscaled", &d_k, &numbers(growth, "std")?).colour(UNSCALED))
        .series(Series::new("scaled", &d_k, &numbers(growth, "scaled_std")?).colour(SCALED));
    let effect = with_draws(tables, 8, "max_weight", "Effect: one key takes everything", "largest of 8 weights", false)?;
    Ok(Figure::new(LEAD, "Without 1/sqrt(d_{k}) the scores spread and attention collapses onto one key").panel(cause).panel(effect).caption(
        "Left: the standard deviation of q.k is sqrt(d_{k}); divided by sqrt(d_{k}) it is 1. Right: the largest weight of a row of 8, averaged over a matrix; lines are exact expectations, bands hold 95 % of single matrices.",
    ))
}
