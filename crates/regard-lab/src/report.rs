//! The report: runs every experiment, then makes the page from the tables alone.

use crate::EXPERIMENTS;
use crate::claims::{self, Source};
use crate::drawing::{CheckedFigure, SCALED, UNSCALED, d_k_axis, rises};
use crate::error::{Error, Result};
use crate::experiment::{Check, Drawn, Entry, FETCHED, Progress, STORED_KEY};
use crate::experiments::robustness::with_draws;
use crate::experiments::worked::{TOKENS, example};
use crate::judging::{self, CLAIMS, Judged, ROBUSTNESS, cell, short};
use crate::learning::{LearningConfig, STORIES_NAME};
use crate::rules;
use regard_files::shell_quoted;
use regard_plot::figure::{Axis, Figure, LinePlot, Series, numbers};
use regard_plot::page::{Exercise, Lead, Page, Section, Shown, Topic};
use regard_plot::{Table, Tables, Value};
use std::path::PathBuf;

/// Options of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportConfig {
    /// Draws per cell.
    pub seeds: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// A Python with PyTorch to compare with, too.
    pub python: Option<PathBuf>,
    /// Measure times, too. Without them two reports with the same settings are the same, byte for byte.
    pub timing: bool,
    /// Train, too. Without it the results of trainings are those that are stored with the program.
    pub train: bool,
    /// The text that language models learn; they are trained then.
    pub text: Option<PathBuf>,
    /// A folder with more claims to judge.
    pub claims: Option<PathBuf>,
}

impl Default for ReportConfig {
    fn default() -> Self {
        Self { seeds: 20_000, seed: 1, python: None, timing: true, train: false, text: None, claims: None }
    }
}

/// Ignores `expect`: the whole work was announced before.
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
    /// Text and model of the trainings.
    pub(crate) fn learning(&self) -> LearningConfig {
        LearningConfig { text: self.text.clone(), ..LearningConfig::default() }
    }

    /// The command that makes the same report.
    pub fn command(&self) -> String {
        let (timing, train) = (if self.timing { "" } else { " --no-timing" }, if self.train { " --train" } else { "" });
        let text = self.text.as_ref().map_or_else(String::new, |path| format!(" --text {}", shell_quoted(&path.to_string_lossy())));
        let claims = self.claims.as_ref().map_or_else(String::new, |path| format!(" --claims {}", shell_quoted(&path.to_string_lossy())));
        format!("regard report --seeds {} --seed {}{timing}{train}{text}{claims}", self.seeds, self.seed)
    }

    /// The claims of the folder.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn more_claims(&self) -> Result<Vec<Source>> {
        self.claims.as_deref().map_or_else(|| Ok(Vec::new()), claims::read)
    }

    /// Checks that the text can be read and is long enough.
    fn check_text(&self) -> Result<()> {
        match &self.text {
            None => Ok(()),
            Some(path) if path.as_os_str() == "-" => Err(Error::Arguments {
                reason: "--text - is not possible: a report reads its text several times; write it to a file and give that".to_owned(),
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
        let more = self.more_claims()?;
        progress.expect(EXPERIMENTS.iter().map(|experiment| experiment.report_work(self)).sum());
        let mut tables = Vec::new();
        for experiment in EXPERIMENTS {
            tables.extend(experiment.report_tables(self, &Announced(progress))?);
        }
        let mut tables = Tables::from(tables);
        let mut verdicts = judging::table(&judging::judge_with(&tables, &more)?);
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

/// The checked statements of every figure, by the figure's name.
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

/// The page and its figures, from the tables alone.
///
/// # Errors
/// When a table is missing or lacks what a figure needs.
pub fn render(tables: &Tables) -> Result<(Page, Vec<Figure>)> {
    render_with(tables, &[])
}

/// The page with more claims than those of the five documents.
///
/// # Errors
/// When a table is missing or lacks what a figure or a claim needs.
pub fn render_with(tables: &Tables, more: &[Source]) -> Result<(Page, Vec<Figure>)> {
    let judged = judging::judge_with(tables, more)?;
    let lead = lead(tables)?;
    let mut core = core(tables)?;
    let mut figures: Vec<Figure> = lead.figure.iter().cloned().collect();
    let mut sections = Vec::new();
    for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.is_in(tables)) {
        let drawn: Vec<Figure> = experiment.figures(tables)?.into_iter().map(|drawn| drawn.figure).collect();
        figures.extend(drawn.iter().cloned());
        // A figure of the core is not shown twice.
        let (mut first, rest): (Vec<Figure>, Vec<Figure>) = drawn.into_iter().partition(|figure| figure.name == CORE_FIGURE);
        if let (Some(figure), Some(topic)) = (first.pop(), core.iter_mut().find(|topic| topic.id == GRADIENTS)) {
            topic.figure = Some(figure);
        }
        sections.push(section(*experiment, tables, &judged, rest));
    }
    let origin = tables.get(CLAIMS)?.origin.iter().filter(|(key, _)| key != "numbers").cloned().collect();
    let text = other_text(tables);
    let page = Page {
        title: format!("Regard: attention, re-run and checked{}", text.as_ref().map_or_else(String::new, |text| format!(" on {text}"))),
        subtitle: "The experiments of five documents on scaled dot-product attention, repeated over many draws, compared with exact \
             expectations, with a verdict on each claim"
            .to_owned(),
        lead,
        core,
        documents: claims::embedded().iter().chain(more).map(|source| (source.name.clone(), source.title.clone())).collect(),
        methods: rules::all().into_iter().map(|rule| [rule.decides.to_owned(), rule.edge, rule.false_rate]).collect(),
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
        command: format!("regard lab {}", experiment.id()),
    }
}

/// Note of a section whose tables are stored.
fn stored_note(table: &Table) -> Option<String> {
    let of = |key: &str| table.origin.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let (version, simd) = (of("regard").unwrap_or("?"), of("simd").unwrap_or("?"));
    if of(STORED_KEY)? == FETCHED {
        let command = of("command").unwrap_or("?");
        return Some(format!("Stored result of `{command}` (regard {version}, {simd})."));
    }
    let seed = of("seed").unwrap_or("?");
    Some(format!("Stored result (regard {version}, {simd}, seed {seed})."))
}

fn lead(tables: &Tables) -> Result<Lead> {
    let exact = |d_k: usize, scaled: bool| {
        tables.number(ROBUSTNESS, &cell(8, d_k, scaled, "max_weight"), "exact").map(|x| short((100.0 * x).round()))
    };
    let gradient = |scaled: bool, column| {
        judging::estimate(tables, "attention_gradients", &[("d_k", 1024usize.into()), ("scaled", scaled.into())], column)
    };
    let mut answer = vec![
        format!(
            "A score q.k, the dot product of a query and a key, is a sum of d_{{k}} products, so scores of random vectors spread as \
             \u{221a}d_{{k}}: at d_{{k}} = 256 their standard deviation is {}; divided by \u{221a}d_{{k}} it is 1.",
            short(crate::statistics::theory::dot_product_deviation(256))
        ),
        format!(
            "The softmax turns such differences into all or nothing: without the scale the favourite of 8 keys gets {} % of the weight; \
             with it, {} %.",
            exact(256, false)?,
            exact(256, true)?
        ),
        format!(
            "Without the scale most queries learn almost nothing: at d_{{k}} = 1024 the median query gets a gradient of {} instead of {}, \
             and one query in {} has 90 % of the squared norm. That is why we divide.",
            rough(gradient(false, "row_dq_median")?.value),
            rough(gradient(true, "row_dq_median")?.value),
            short((1.0 / gradient(false, "rows_holding_90_percent")?.value).round())
        ),
    ];
    if let Some(text) = other_text(tables) {
        answer.push(format!("Language models of this page learned {text}; what is said about random vectors does not depend on it."));
    }
    let exercise = Exercise {
        question: "At d_{k} = 256 the two largest scores of a row differ by 16, one standard deviation. What is the ratio of their \
                   weights without the scale, and with it?"
            .to_owned(),
        answer: format!(
            "Without the scale e^{{16}}, about {} million; with it e^{{16/16}} = e, about 2.7.",
            short((16f64.exp() / 1e5).round() / 10.0)
        ),
    };
    let formula = "softmax( Q K^{T} / \u{221a}d_{k} ) V".to_owned();
    let figure = Some(lead_figure(tables)?.figure);
    Ok(Lead { question: "Why divide by \u{221a}d_{k}?".to_owned(), formula, answer, figure, exercise })
}

/// Two digits that count; the tables have the intervals.
fn rough(x: f64) -> String {
    short(format!("{x:.1e}").parse().unwrap_or(x))
}

/// The text of the language models, where it is not the default one.
fn other_text(tables: &Tables) -> Option<String> {
    let table = tables.find("mask_training")?;
    let (_, text) = table.origin.iter().find(|(key, _)| key == "numbers")?;
    (!text.starts_with(STORIES_NAME)).then(|| text.clone())
}

const GRADIENTS: &str = "core-gradients";
/// The figure that the core shows instead of its section.
const CORE_FIGURE: &str = "attention_gradient_positions";

/// Rows of a table with a caption of their own.
fn rows_of(table: &Table, caption: &str, columns: &[&str], keep: impl Fn(&Table, &[Value]) -> bool) -> Shown {
    let mut part = table.filtered(|table, row| keep(table, row));
    part.caption = caption.to_owned();
    Shown { table: part, columns: columns.iter().map(|&column| column.to_owned()).collect() }
}

type MakeTopic = fn(&Tables) -> Result<Topic>;

/// Worked example, gradients, masks: what a lesson needs, from the tables. Reports of earlier versions lack some of them.
fn core(tables: &Tables) -> Result<Vec<Topic>> {
    let topics: [(&str, MakeTopic); 3] =
        [("worked_example", core_example), ("attention_gradient_positions", core_gradients), ("mask_training", core_masks)];
    topics.iter().filter(|(table, _)| tables.find(table).is_some()).map(|(_, topic)| topic(tables)).collect()
}

fn core_example(tables: &Tables) -> Result<Topic> {
    const VARIANT: &str = "scaled, causal";
    let (numbers, outputs) = (tables.get("worked_example")?, tables.get("worked_outputs")?);
    let here = |table: &Table, row: &[Value]| table.text(row, "variant") == VARIANT;
    let [q, k, v] = example().map(|matrix| {
        let row = |row: ndarray::ArrayView1<'_, f64>| row.iter().map(|x| short(*x)).collect::<Vec<_>>().join(" ");
        matrix.rows().into_iter().map(row).collect::<Vec<_>>().join("; ")
    });
    let unscaled: Vec<String> = {
        let at = [("variant", "unscaled, no mask".into()), ("step", "4 softmax".into()), ("query", TOKENS[2].into())];
        ["key_1", "key_2", "key_3"].iter().map(|key| Ok(short3(tables.number("worked_example", &at, key)?))).collect::<Result<_>>()?
    };
    Ok(Topic {
        id: "core-example".to_owned(),
        title: "Three tokens by hand".to_owned(),
        text: vec![
            format!("Rows of Q: {q}. Rows of K: {k}. Rows of V: {v}. d_{{k}} = 4, so the scale is 1/2."),
            "A score is the dot product of a query and a key. Divide by 2, hide the future with \u{2212}\u{221e}, apply the softmax to \
             each row, and mix the rows of V by the weights."
                .to_owned(),
        ],
        tables: vec![
            rows_of(numbers, "Every number, row by row", &["step", "query", "key_1", "key_2", "key_3"], here),
            rows_of(outputs, "Outputs", &["query", "first", "second"], here),
        ],
        figure: None,
        exercise: Exercise {
            question: "Leave out scale and mask and compute the weights of `sat` from its scores 2, 6, 1.".to_owned(),
            answer: format!(
                "e^{{-4}}, 1 and e^{{-5}}, divided by their sum: {}. The favourite gets nearly everything.",
                unscaled.join(", ")
            ),
        },
    })
}

/// Three decimals.
fn short3(x: f64) -> String {
    format!("{x:.3}")
}

fn core_gradients(tables: &Tables) -> Result<Topic> {
    let at = |scaled: bool| [("d_k", 1024usize.into()), ("scaled", scaled.into())];
    let of = |scaled: bool, column: &str| judging::estimate(tables, "attention_gradient_positions", &at(scaled), column);
    Ok(Topic {
        id: GRADIENTS.to_owned(),
        title: "What the gradient does".to_owned(),
        text: vec![
            "The gradient dP on a row of weights P reaches its scores S through the softmax: dS_{j} = P_{j} (dP_{j} - sum of P dP). Where \
             one weight is near 1 and the others near 0, every dS_{j} is near 0."
                .to_owned(),
            format!(
                "The dominant key has the largest weight of its row. At d_{{k}} = 1024 the median |dS| at the other keys is {} without \
                 the scale and {} with it; dS is smaller without the scale in {} of draws. The mean norm of dQ is larger without it: rare \
                 rows with a near tie carry it.",
                of(false, "ds_other")?.words(),
                of(true, "ds_other")?.words(),
                judging::percent(of(false, "ds_smaller")?)
            ),
        ],
        tables: Vec::new(),
        figure: None,
        exercise: Exercise {
            question: "Two keys have the weights 0.99 and 0.01, and dP = (1, 0). What is dS? What is it for weights of 0.5 and 0.5?"
                .to_owned(),
            answer: "0.99 (1 - 0.99) = 0.0099 and -0.0099; for even weights 0.25 and -0.25: 25 times as much.".to_owned(),
        },
    })
}

fn core_masks(tables: &Tables) -> Result<Topic> {
    let table = tables.get("mask_training")?;
    let loss = |variant: &str, column: &str| judging::estimate(tables, "mask_training", &[("variant", variant.into())], column);
    let uniform = tables.number("mask_training_baselines", &[("name", "uniform".into())], "value")?;
    let leak = judging::estimate(tables, "check_masking", &[("method", "0 before the softmax".into())], "hidden_weight")?;
    let kept = ["causal", "none", "reverse"];
    Ok(Topic {
        id: "core-masks".to_owned(),
        title: "What the mask does".to_owned(),
        text: vec![format!(
            "Language models that differ in their mask alone. With a reverse mask, which shows only the token and its future, the \
             validation loss is {}: the target is in view. From the prefix alone, as in use, it is {}, worse than guessing evenly ({}); \
             the causal model has {}.",
            loss("reverse", "validation_loss")?.words(),
            loss("reverse", "prefix_only_loss")?.words(),
            short(uniform),
            loss("causal", "prefix_only_loss")?.words()
        )],
        tables: vec![rows_of(
            table,
            "Losses in nats per character, means over trainings",
            &["variant", "sees", "validation_loss", "prefix_only_loss"],
            |table, row| kept.contains(&table.text(row, "variant")),
        )],
        figure: None,
        exercise: Exercise {
            question: "Why are hidden scores set to -inf and not to 0?".to_owned(),
            answer: format!(
                "exp(-inf) = 0, but exp(0) = 1: a score of 0 still gets weight. In our check each hidden key then gets {} of it.",
                judging::percent(leak)
            ),
        },
    })
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
    Ok(CheckedFigure::new(LEAD, "Scores and the largest weight against the width of a head")
        .title("Without 1/\u{221a}d_{k} the scores spread and attention collapses onto one key", spreads && collapses)
        .panel(cause)
        .panel(effect)
        .says("a: the standard deviation of q.k is \u{221a}d_{k}; divided by \u{221a}d_{k} it is 1.", spreads)
        .shows(
            "b: the largest weight of a row of 8, averaged over a matrix; lines are exact expectations, bands hold 95 % of single \
             matrices.",
        )
        .drawn())
}
