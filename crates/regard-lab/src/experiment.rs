//! What an experiment is: [`Experiment`], and [`Entry`], the same without its types, as the list of experiments has it.
//!
//! An experiment is one folder (`run.rs`, `figures.rs`, `claims.rs`, `section.md`, stored tables) and one line of
//! [`EXPERIMENTS`](crate::EXPERIMENTS). The command, its help, the report, drawing and judging all go over that list.

use crate::error::{Error, Result};
use crate::judging::Judged;
use crate::report::ReportConfig;
use crate::shards::Share;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use regard_plot::figure::Figure;
use regard_plot::{Table, Tables};
use serde::Serialize;
use serde_json::Value;

/// Somebody who wants to know how far an experiment has come.
pub trait Progress: Sync {
    /// So many steps are to come; may be called again for a further part.
    fn expect(&self, steps: u64);
    /// So many more steps are done.
    fn advance(&self, steps: u64);
    /// What is being done, in a few words.
    fn say(&self, _what: &str) {}
    /// Something that the reader of the results should know.
    fn warn(&self, _what: &str) {}
    /// What an earlier run, stopped before its end, kept under this name.
    fn recall(&self, _name: &str) -> Option<String> {
        None
    }
    /// Keep a part of the results, so that a run that is stopped can go on from here.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn remember(&self, _name: &str, _what: &str) -> Result<()> {
        Ok(())
    }
    /// Where draws come from, when not all of them are made here.
    fn share(&self) -> Option<&dyn Share> {
        None
    }
}

/// Nobody.
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

/// What the words of a figure say, and whether the tables say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The title, or a sentence of the caption.
    pub says: String,
    /// Whether it holds of these tables. A title that does not is not set; another one says what is drawn.
    pub holds: bool,
}

/// A figure with its words checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The figure.
    pub figure: Figure,
    /// What it says.
    pub checks: Vec<Check>,
}

/// An experiment: a function from a configuration to tables, and what is made of them.
pub trait Experiment: Sync {
    /// The configuration. Its fields are the command's options, its defaults theirs, its comments the help.
    type Config: Args + Serialize;
    /// Of the command, the folder and the section.
    const ID: &'static str;
    /// What the command was called before.
    const ALIASES: &'static [&'static str] = &[];
    /// Title, introduction and notes of the section; see [`Text`].
    const SECTION: &'static str;
    /// Every table that a run may make.
    const TABLES: &'static [Shown];
    /// Every figure that may be drawn of them.
    const FIGURES: &'static [&'static str] = &[];
    /// Tables of a run with the defaults, where a run takes minutes: the report takes these unless it is told to train.
    const STORED: &'static [(&'static str, &'static [u8])] = &[];
    /// Whether the stored tables are of models that are not part of the program: a report then never makes them again.
    const FETCHED: bool = false;

    /// Whether it is made of draws, which several machines can share.
    const DRAWS: bool = false;

    /// Steps that a run will tell of.
    fn work(config: &Self::Config) -> u64;

    /// What can be found out before any work, by a report that has much of it to do.
    ///
    /// # Errors
    /// When something that the run needs is not there.
    fn check(_config: &Self::Config) -> Result<()> {
        Ok(())
    }

    /// The tables.
    ///
    /// # Errors
    /// When a setting is not possible.
    fn run(config: &Self::Config, progress: &dyn Progress) -> Result<Vec<Table>>;

    /// Whether the experiment learns the text that a report may be given; it is then run, and not taken from what is stored.
    const LEARNS_TEXT: bool = false;

    /// Figures, in the order of the section, each with its words checked.
    ///
    /// # Errors
    /// When a table lacks what its figure needs.
    fn figures(_tables: &Tables) -> Result<Vec<Drawn>> {
        Ok(Vec::new())
    }

    /// What became of the claims that these tables can judge.
    ///
    /// # Errors
    /// When a table is missing.
    fn claims(_tables: &Tables) -> Result<Vec<Judged>> {
        Ok(Vec::new())
    }

    /// Whether the comparisons of the tables hold; none where nothing is compared.
    fn agrees(_tables: &[Table]) -> Option<bool> {
        None
    }

    /// The configuration of a report; none where the report leaves the experiment out.
    fn in_report(report: &ReportConfig) -> Option<Self::Config>;
}

/// What `section.md` says: a title, an introduction, and notes, which are a list at its end.
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
        for line in markdown.lines().map(str::trim).filter(|line| !line.is_empty()) {
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
    /// Of the command, the folder and the section.
    fn id(&self) -> &'static str;
    /// The command with its options, to which others may be added.
    fn command(&self) -> Command;
    /// Title, introduction and notes of the section.
    fn text(&self) -> Text;
    /// Every table that a run may make.
    fn tables(&self) -> &'static [Shown];
    /// Every file that a run may write.
    fn files(&self) -> Vec<String>;
    /// Whether it is made of draws, which several machines can share.
    fn draws(&self) -> bool;
    /// Run as the command line says.
    ///
    /// # Errors
    /// When a setting is not possible.
    fn run(&self, matches: &ArgMatches, progress: &dyn Progress) -> Result<Vec<Table>>;
    /// The words of a command line that ask for the same, in full.
    ///
    /// # Errors
    /// When a setting is not possible.
    fn words(&self, matches: &ArgMatches) -> Result<Vec<String>>;
    /// Whether the comparisons of the tables hold; none where nothing is compared.
    fn agrees(&self, tables: &[Table]) -> Option<bool>;
    /// What a report can find out before any work.
    ///
    /// # Errors
    /// When something that the run needs is not there.
    fn report_check(&self, report: &ReportConfig) -> Result<()>;
    /// Steps that a report will tell of.
    fn report_work(&self, report: &ReportConfig) -> u64;
    /// The tables of a report: stored ones, or those of a run.
    ///
    /// # Errors
    /// When a setting is not possible.
    fn report_tables(&self, report: &ReportConfig, progress: &dyn Progress) -> Result<Vec<Table>>;
    /// Figures of the tables, if its own are there.
    ///
    /// # Errors
    /// When a table lacks what its figure needs.
    fn figures(&self, tables: &Tables) -> Result<Vec<Drawn>>;
    /// What became of the claims, if its own tables are there.
    ///
    /// # Errors
    /// When another table that a claim rests on is missing.
    fn claims(&self, tables: &Tables) -> Result<Vec<Judged>>;
    /// Whether any of its tables is there.
    fn is_in(&self, tables: &Tables) -> bool;
}

/// The origin's key of a table that was not made for its report.
pub(crate) const STORED_KEY: &str = "stored";
/// What it says of tables of models that are not part of the program.
pub(crate) const FETCHED: &str = "with the program; its command makes it again, of models that cargo xtask microscope fetches";

/// The stored tables; their origin says that they are.
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

/// Whether a report runs the experiment, instead of taking what is stored.
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

    fn claims(&self, tables: &Tables) -> Result<Vec<Judged>> {
        if self.is_in(tables) { E::claims(tables) } else { Ok(Vec::new()) }
    }

    fn is_in(&self, tables: &Tables) -> bool {
        E::TABLES.iter().any(|(name, _)| tables.find(name).is_some())
    }
}

/// The configuration that no option changes.
///
/// # Panics
/// When an option has no default: every experiment runs without arguments, and is tested to.
pub(crate) fn defaults<C: Args>() -> C {
    let matches = C::augment_args(Command::new("regard")).no_binary_name(true).try_get_matches_from(std::iter::empty::<&str>());
    let matches = matches.unwrap_or_else(|e| panic!("an experiment runs without arguments: {e}"));
    C::from_arg_matches(&matches).unwrap_or_else(|e| panic!("defaults are possible: {e}"))
}

/// The words that make the same tables: every option with its value, in full, without those that cannot change a result (which the
/// configuration does not serialise).
fn words<E: Experiment>(config: &E::Config) -> Vec<String> {
    let values = serde_json::to_value(config).expect("a configuration is made of numbers and words");
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

/// The same as a line for a shell.
pub(crate) fn command_line<E: Experiment>(config: &E::Config) -> String {
    words::<E>(config).iter().fold(format!("regard {}", E::ID), |line, word| format!("{line} {}", shell_word(word)))
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// A word as a shell takes it: quoted where it holds anything that a shell would not leave alone.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./,:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Where a table came from: the version, the command, the seed, what the numbers are, and the SIMD level.
///
/// # Errors
/// When the SIMD level that the environment asks for is not there.
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

/// The tables with that origin.
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
            assert_eq!(shell_word(word), quoted);
        }
    }

    #[test]
    fn a_section_is_a_title_an_introduction_and_notes() {
        let text = Text::parse("# Title\n\nOne\ntwo.\n\n- note 1\n- note 2\n");
        let notes = vec!["note 1".to_owned(), "note 2".to_owned()];
        assert_eq!(text, Text { title: "Title".to_owned(), intro: "One two.".to_owned(), notes });
    }
}
