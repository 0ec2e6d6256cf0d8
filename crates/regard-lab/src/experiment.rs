//! The trait [`Experiment`], and [`Entry`], its type-erased form in the list of experiments.
//!
//! An experiment is one folder (`run.rs`, `figures.rs`, `claims.rs`, `section.md`, stored tables) and one line of
//! [`EXPERIMENTS`](crate::EXPERIMENTS). The command, its help, the report, figures and claims iterate over that list.

use crate::error::{Error, Result};
use crate::judging::Answer;
use crate::report::ReportConfig;
use crate::shards::Share;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use regard_files::shell_quoted;
use regard_plot::figure::Figure;
use regard_plot::{Table, Tables};
use serde::Serialize;
use serde_json::Value;

/// Progress callback.
pub trait Progress: Sync {
    /// Announces steps to come; may be called again for a further part.
    fn expect(&self, steps: u64);
    /// Reports finished steps.
    fn advance(&self, steps: u64);
    /// Describes the current stage.
    fn say(&self, _what: &str) {}
    /// A warning for the reader of the results.
    fn warn(&self, _what: &str) {}
    /// A result that an interrupted run stored under this name.
    fn recall(&self, _name: &str) -> Option<String> {
        None
    }
    /// Stores a partial result, so that an interrupted run can be resumed.
    ///
    /// # Errors
    /// When it cannot be stored.
    fn remember(&self, _name: &str, _what: &str) -> Result<()> {
        Ok(())
    }
    /// Source of the draws, when several machines share them.
    fn share(&self) -> Option<&dyn Share> {
        None
    }
}

/// No-op progress.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn expect(&self, _: u64) {}
    fn advance(&self, _: u64) {}
}

/// A table of an experiment, and the columns of it that the page shows: none of the table, or all where none are named.
pub type Shown = (&'static str, Option<&'static [&'static str]>);

/// On the page with every column.
pub const WHOLE: Option<&'static [&'static str]> = Some(&[]);
/// Not on the page.
pub const HIDDEN: Option<&'static [&'static str]> = None;

/// A statement of a figure, and whether it holds of the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The title, or a sentence of the caption.
    pub says: String,
    /// Whether it holds of the tables. A title that does not hold is replaced by a plain one.
    pub holds: bool,
}

/// A figure with its checked statements.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The figure.
    pub figure: Figure,
    /// What it says.
    pub checks: Vec<Check>,
}

/// A function from a configuration to tables, with the figures and claims made from them.
pub trait Experiment: Sync {
    /// Its fields are the command's options, its comments their help.
    type Config: Args + Serialize;
    /// Name of the command, the folder and the section.
    const ID: &'static str;
    /// Former names of the command.
    const ALIASES: &'static [&'static str] = &[];
    /// Title, introduction and notes of the section; see [`Text`].
    const SECTION: &'static str;
    /// Every table that a run may make.
    const TABLES: &'static [Shown];
    /// Every figure that may be drawn of them.
    const FIGURES: &'static [&'static str] = &[];
    /// Tables of a run with the defaults, where a run takes minutes: the report uses these without `--train`.
    const STORED: &'static [(&'static str, &'static [u8])] = &[];
    /// Whether the stored tables need models that are not part of the program: a report then never recomputes them.
    const FETCHED: bool = false;

    /// Whether it consists of draws, which several machines can share.
    const DRAWS: bool = false;

    /// Progress steps of a run.
    fn work(config: &Self::Config) -> u64;

    /// Checks the configuration before a report starts its work.
    ///
    /// # Errors
    /// When a requirement of the run is missing.
    fn check(_config: &Self::Config) -> Result<()> {
        Ok(())
    }

    /// The tables.
    ///
    /// # Errors
    /// When a setting is not possible.
    fn run(config: &Self::Config, progress: &dyn Progress) -> Result<Vec<Table>>;

    /// Whether the experiment learns the text of `report --text`: it then runs instead of using stored tables.
    const LEARNS_TEXT: bool = false;

    /// Figures in the order of the section.
    ///
    /// # Errors
    /// When a table lacks what its figure needs.
    fn figures(_tables: &Tables) -> Result<Vec<Drawn>> {
        Ok(Vec::new())
    }

    /// Verdicts on the claims that these tables decide.
    ///
    /// # Errors
    /// When a table is missing.
    fn claims(_tables: &Tables) -> Result<Vec<Answer>> {
        Ok(Vec::new())
    }

    /// Whether the comparisons of the tables hold; none where nothing is compared.
    fn agrees(_tables: &[Table]) -> Option<bool> {
        None
    }

    /// The configuration in a report; `None` where the report omits the experiment.
    fn in_report(report: &ReportConfig) -> Option<Self::Config>;
}

/// The parsed `section.md`: a title, an introduction, and a list of notes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The line after `# `.
    pub title: String,
    /// The paragraph below it.
    pub intro: String,
    /// Lines that begin with `- `.
    pub notes: Vec<String>,
}

impl Text {
    fn parse(markdown: &str) -> Self {
        let mut text = Self { title: String::new(), intro: String::new(), notes: Vec::new() };
        for line in markdown.lines().filter(|line| !line.trim().is_empty()) {
            // An indented line continues a note.
            if let (true, Some(note)) = (line.starts_with(' '), text.notes.last_mut()) {
                *note = format!("{note} {}", line.trim());
                continue;
            }
            let line = line.trim();
            if let Some(title) = line.strip_prefix("# ") {
                text.title = title.to_owned();
            } else if let Some(note) = line.strip_prefix("- ") {
                text.notes.push(note.to_owned());
            } else {
                text.intro = format!("{} {line}", text.intro).trim_start().to_owned();
            }
        }
        text
    }
}

/// An [`Experiment`] without its types.
pub trait Entry: Sync {
    /// Name of the command, the folder and the section.
    fn id(&self) -> &'static str;
    /// The clap command with the experiment's options.
    fn command(&self) -> Command;
    /// Title, introduction and notes of the section.
    fn text(&self) -> Text;
    /// Every table that a run may make.
    fn tables(&self) -> &'static [Shown];
    /// Every file that a run may write.
    fn files(&self) -> Vec<String>;
    /// Whether it consists of draws, which several machines can share.
    fn draws(&self) -> bool;
    /// Runs with the options of the command line.
    ///
    /// # Errors
    /// When a setting is not possible.
    fn run(&self, matches: &ArgMatches, progress: &dyn Progress) -> Result<Vec<Table>>;
    /// The arguments that reproduce the run, with every option spelled out.
    ///
    /// # Errors
    /// When a setting is not possible.
    fn words(&self, matches: &ArgMatches) -> Result<Vec<String>>;
    /// Whether the comparisons of the tables hold; none where nothing is compared.
    fn agrees(&self, tables: &[Table]) -> Option<bool>;
    /// Checks the report's configuration before any work.
    ///
    /// # Errors
    /// When a requirement of the run is missing.
    fn report_check(&self, report: &ReportConfig) -> Result<()>;
    /// Progress steps of a report.
    fn report_work(&self, report: &ReportConfig) -> u64;
    /// The tables of a report: stored ones, or those of a run.
    ///
    /// # Errors
    /// When a setting is not possible.
    fn report_tables(&self, report: &ReportConfig, progress: &dyn Progress) -> Result<Vec<Table>>;
    /// Figures, if its own tables are present.
    ///
    /// # Errors
    /// When a table lacks what its figure needs.
    fn figures(&self, tables: &Tables) -> Result<Vec<Drawn>>;
    /// Verdicts, if its own tables are present.
    ///
    /// # Errors
    /// When another table that a claim uses is missing.
    fn claims(&self, tables: &Tables) -> Result<Vec<Answer>>;
    /// Whether any of its tables is present.
    fn is_in(&self, tables: &Tables) -> bool;
}

/// The origin's key of a table that was not made for its report.
pub(crate) const STORED_KEY: &str = "stored";
/// Its value for tables of models that are not part of the program.
pub(crate) const FETCHED: &str = "with the program; its command makes it again, of models that cargo xtask microscope fetches";

/// The stored tables, marked as stored in their origin.
fn stored(files: &[(&str, &[u8])], fetched: bool) -> Result<Vec<Table>> {
    let again = if fetched { FETCHED } else { "with the program; regard report --train makes it again" };
    let read = |&(name, bytes): &(&str, &[u8])| {
        let mut table = Table::from_csv(name, bytes)
            .map_err(|reason| regard_plot::Error::NotATable { path: format!("stored/{name}.csv").into(), reason })?;
        table.origin.push((STORED_KEY.to_owned(), again.to_owned()));
        Ok(table)
    };
    files.iter().map(read).collect()
}

/// Whether a report runs the experiment instead of using the stored tables.
fn runs<E: Experiment>(report: &ReportConfig) -> bool {
    E::STORED.is_empty() || !E::FETCHED && report.train || (report.text.is_some() && E::LEARNS_TEXT)
}

impl<E: Experiment> Entry for E {
    fn id(&self) -> &'static str {
        E::ID
    }

    fn command(&self) -> Command {
        E::Config::augment_args(Command::new(E::ID)).aliases(E::ALIASES)
    }

    fn text(&self) -> Text {
        Text::parse(E::SECTION)
    }

    fn tables(&self) -> &'static [Shown] {
        E::TABLES
    }

    fn files(&self) -> Vec<String> {
        let tables = E::TABLES.iter().map(|(name, _)| format!("{name}.csv"));
        let figures = E::FIGURES.iter().flat_map(|name| ["svg", "png"].map(|ending| format!("{name}.{ending}")));
        tables.chain(figures).collect()
    }

    fn draws(&self) -> bool {
        E::DRAWS
    }

    fn words(&self, matches: &ArgMatches) -> Result<Vec<String>> {
        Ok(words::<E>(&E::Config::from_arg_matches(matches).map_err(|e| Error::Arguments { reason: e.to_string() })?))
    }

    fn run(&self, matches: &ArgMatches, progress: &dyn Progress) -> Result<Vec<Table>> {
        let config = E::Config::from_arg_matches(matches).map_err(|e| Error::Arguments { reason: e.to_string() })?;
        progress.expect(E::work(&config));
        E::run(&config, progress)
    }

    fn agrees(&self, tables: &[Table]) -> Option<bool> {
        E::agrees(tables)
    }

    fn report_check(&self, report: &ReportConfig) -> Result<()> {
        E::in_report(report).map_or(Ok(()), |config| E::check(&config))
    }

    fn report_work(&self, report: &ReportConfig) -> u64 {
        E::in_report(report).filter(|_| runs::<E>(report)).map_or(0, |config| E::work(&config))
    }

    fn report_tables(&self, report: &ReportConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        match E::in_report(report) {
            None => Ok(Vec::new()),
            Some(_) if !runs::<E>(report) => stored(E::STORED, E::FETCHED),
            Some(config) => {
                progress.say(E::ID);
                E::run(&config, progress)
            }
        }
    }

    fn figures(&self, tables: &Tables) -> Result<Vec<Drawn>> {
        if self.is_in(tables) { E::figures(tables) } else { Ok(Vec::new()) }
    }

    fn claims(&self, tables: &Tables) -> Result<Vec<Answer>> {
        if self.is_in(tables) { E::claims(tables) } else { Ok(Vec::new()) }
    }

    fn is_in(&self, tables: &Tables) -> bool {
        E::TABLES.iter().any(|(name, _)| tables.find(name).is_some())
    }
}

/// The default configuration.
///
/// # Panics
/// When an option has no default: a test runs every experiment without arguments.
pub(crate) fn defaults<C: Args>() -> C {
    let matches = C::augment_args(Command::new("regard")).no_binary_name(true).try_get_matches_from(std::iter::empty::<&str>());
    let matches = matches.unwrap_or_else(|e| panic!("an experiment runs without arguments: {e}"));
    C::from_arg_matches(&matches).unwrap_or_else(|e| panic!("defaults are possible: {e}"))
}

/// The arguments that reproduce the tables: every option with its value, except those that cannot change a result (they are not
/// serialised).
fn words<E: Experiment>(config: &E::Config) -> Vec<String> {
    let values = serde_json::to_value(config).expect("a configuration serialises");
    let mut words = Vec::new();
    for argument in E::Config::augment_args(Command::new(E::ID)).get_arguments() {
        let (Some(name), Some(value)) = (argument.get_long(), values.get(argument.get_id().as_str())) else { continue };
        match value {
            Value::Null | Value::Bool(false) => {}
            Value::Bool(true) => words.push(format!("--{name}")),
            other => words.extend([format!("--{name}"), word(other)]),
        }
    }
    words
}

/// The arguments as a shell command.
pub(crate) fn command_line<E: Experiment>(config: &E::Config) -> String {
    words::<E>(config).iter().fold(format!("regard lab {}", E::ID), |line, word| format!("{line} {}", shell_quoted(word)))
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Provenance of a table: version, command, seed, random numbers, SIMD level.
///
/// # Errors
/// When the requested SIMD level is not available.
pub(crate) fn origin<E: Experiment>(config: &E::Config, seed: u64, numbers: &str) -> Result<Vec<(String, String)>> {
    let level = regard::Level::preferred().map_err(regard::Error::from)?.name();
    Ok([
        ("regard", env!("CARGO_PKG_VERSION").to_owned()),
        ("command", command_line::<E>(config)),
        ("seed", seed.to_string()),
        ("numbers", numbers.to_owned()),
        ("simd", level.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .to_vec())
}

/// Sets the origin of all tables.
pub(crate) fn signed(mut tables: Vec<Table>, origin: &[(String, String)]) -> Vec<Table> {
    tables.iter_mut().for_each(|table| table.origin = origin.to_vec());
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_change_them() {
        let words = [
            ("a/b-c_1.txt", "a/b-c_1.txt"),
            ("my book.txt", "'my book.txt'"),
            ("$(rm x)", "'$(rm x)'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
        ];
        for (word, quoted) in words {
            assert_eq!(shell_quoted(word), quoted);
        }
    }

    #[test]
    fn a_section_is_a_title_an_introduction_and_notes() {
        let text = Text::parse("# Title\n\nOne\ntwo.\n\n- note\n  1\n- note 2\n");
        let notes = vec!["note 1".to_owned(), "note 2".to_owned()];
        assert_eq!(text, Text { title: "Title".to_owned(), intro: "One two.".to_owned(), notes });
    }
}
