//! What the sub-commands share: options, lists, output, and which errors are the arguments' fault.

use crate::output::{line_width, note, print};
use crate::progress::Bar;
use anyhow::{Context, Result};
use clap::Args;
use rayon::prelude::*;
use regard_lab::figure::{Figure, FigureError};
use regard_lab::{Error, Folder, Table};
use std::path::PathBuf;
use std::str::FromStr;

/// How a command ended that did not fail.
pub(crate) enum Outcome {
    Done,
    /// A comparison was made, and does not hold.
    Disagrees,
    /// Ctrl-C, and what was done until then is saved.
    Interrupted,
}

/// More threads than any machine has cores for.
const MAX_THREADS: usize = 4096;

/// `RAYON_NUM_THREADS` is obeyed by the thread pool itself, whatever it says: a slip of the finger would never end.
pub(crate) fn check_thread_variable() -> Result<()> {
    let Some(value) = std::env::var_os("RAYON_NUM_THREADS") else { return Ok(()) };
    match value.to_str().map(str::parse::<usize>) {
        Some(Ok(threads)) if threads > MAX_THREADS => {
            Err(Unusable(format!("RAYON_NUM_THREADS = {threads} is not possible: it must be at most {MAX_THREADS}")).into())
        }
        _ => Ok(()),
    }
}

#[derive(Args, Debug, Clone)]
pub(crate) struct Common {
    /// Print the tables as JSON on the standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress bar, no tables, no list of files
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Use so many threads; results are the same for any number [default: all cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct Out {
    /// Directory for tables and figures; files of an earlier run are replaced, other files are left alone
    #[arg(long, default_value = "results", value_name = "DIR")]
    pub(crate) out: PathBuf,
}

impl Common {
    /// The bar, and as many threads as were asked for.
    pub(crate) fn start(&self, what: &'static str) -> Result<Bar> {
        if let Some(threads) = self.threads {
            if !(1..=MAX_THREADS).contains(&threads) {
                return Err(Unusable(format!("threads = {threads} is not possible: it must be from 1 to {MAX_THREADS}")).into());
            }
            rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().context("cannot start the threads")?;
        }
        Ok(Bar::new(what, self.quiet))
    }

    /// On the standard output, for people or as JSON. What is longer than a screen is in the command's files, and not said here.
    pub(crate) fn show(&self, tables: &[Table]) -> Result<()> {
        self.show_up_to(100, tables)
    }

    /// The same, of any length: for commands that write no files.
    pub(crate) fn show_whole(&self, tables: &[Table]) -> Result<()> {
        self.show_up_to(usize::MAX, tables)
    }

    fn show_up_to(&self, most: usize, tables: &[Table]) -> Result<()> {
        if self.json {
            let all: Vec<_> = tables.iter().map(Table::to_json).collect();
            print(serde_json::to_string_pretty(&all)?)?;
        } else if !self.quiet {
            for table in tables.iter().filter(|table| table.rows.len() <= most) {
                print(table.to_text(most, line_width()))?;
            }
        }
        Ok(())
    }

    /// Tell what an earlier run wrote and this one did not.
    pub(crate) fn removed(&self, folder: &std::path::Path, names: &[String]) {
        if !self.quiet && !names.is_empty() {
            note(format_args!("removed {} of an earlier run from {}", names.join(", "), folder.display()));
        }
    }

    /// Tell where the files are; on the standard error, so that JSON stays alone.
    pub(crate) fn wrote(&self, folder: &std::path::Path, names: &[String]) {
        if !self.quiet {
            note(format_args!("wrote {} in {}", names.join(", "), folder.display()));
        }
    }
}

/// The tables as files.
pub(crate) fn table_files(tables: &[Table]) -> Vec<(String, Vec<u8>)> {
    tables.iter().map(|table| (format!("{}.csv", table.name), table.to_csv())).collect()
}

/// Each figure as SVG and PNG; drawn on all threads.
pub(crate) fn figure_files(figures: &[Figure]) -> Result<Vec<(String, Vec<u8>)>> {
    let drawn: Vec<_> = figures.par_iter().map(Figure::files).collect::<Result<_, FigureError>>()?;
    let mut files = Vec::new();
    for (figure, (svg, png)) in figures.iter().zip(drawn) {
        files.push((format!("{}.svg", figure.name), svg.into_bytes()));
        files.push((format!("{}.png", figure.name), png));
    }
    Ok(files)
}

/// Put the files into the folder, and say which, and what went because of them.
pub(crate) fn write_files(mut folder: Folder, files: &[(String, Vec<u8>)], common: &Common) -> Result<()> {
    folder.write_all(files)?;
    let path = folder.path().to_owned();
    let removed = folder.finish()?;
    let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
    common.wrote(&path, &names);
    common.removed(&path, &removed);
    Ok(())
}

/// Arguments or inputs that cannot be used, found outside of the laboratory.
#[derive(Debug)]
pub(crate) struct Unusable(pub(crate) String);

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// Of the networks' errors, those that other arguments or another input mend: not a full disk, not a training that diverges, and not a rank that is gone.
fn networks(error: &regard_nn::Error) -> bool {
    use regard_nn::Error;
    !matches!(
        error,
        Error::File { action: "write", .. }
            | Error::Diverged { .. }
            | Error::Gradient { .. }
            | Error::Ranks { .. }
            | Error::Logits
            | Error::BackwardFirst
    )
}

/// Of the folders' and tables' errors, the same: not a file that cannot be written.
fn files(error: &regard_plot::Error) -> bool {
    use regard_plot::Error;
    !matches!(error, Error::File { action: "write" | "remove", .. } | Error::Figure(_))
}

/// Whether the user can mend it by other arguments.
pub(crate) fn is_unusable(error: &anyhow::Error) -> bool {
    // What the laboratory passes on is asked itself: it stands in for its cause.
    let laboratory = |e: &Error| match e {
        Error::Plot(inner) => files(inner),
        Error::Learning(inner) => networks(inner),
        other => !matches!(other, Error::Peer { .. } | Error::Figure(_)),
    };
    error.chain().any(|e| {
        e.is::<Unusable>()
            || e.is::<regard_model::Error>()
            || e.downcast_ref().is_some_and(laboratory)
            || e.downcast_ref().is_some_and(files)
            || e.downcast_ref().is_some_and(networks)
    })
}

/// A list of sizes: `4,16,64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items
            .map(|item| item.parse().map_err(|_| format!("{item:?} is not a whole number; give a list such as 4,16,64")))
            .collect::<std::result::Result<_, _>>()
            .map(Self)
    }
}

/// An error and its causes, each said once: many errors quote their cause themselves.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    tidy(&line)
}

/// Characters of a message, at most: whoever says more quotes an argument.
const LONGEST: usize = 2000;

/// One line that a terminal can show, whatever names and words of the user it quotes.
fn tidy(line: &str) -> String {
    let line: String = line.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect();
    let length = line.chars().count();
    if length <= LONGEST {
        return line;
    }
    let cut = |from: usize| line.chars().skip(from).take(LONGEST / 2).collect::<String>();
    format!("{} ... {}", cut(0), cut(length - LONGEST / 2))
}

/// The first paragraph of a message, on one line.
pub(crate) fn one_line(message: &str) -> String {
    let first = message.split("\n\n").next().unwrap_or(message);
    tidy(&first.lines().map(str::trim).collect::<Vec<_>>().join(" "))
}
