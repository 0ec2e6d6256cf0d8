//! Options and output that commands share, and which errors other arguments would avoid.

use crate::output::{line_width, note, print};
use crate::progress::Bar;
use crate::threads::start_pool;
use anyhow::Result;
use clap::Args;
use rayon::prelude::*;
use regard_lab::figure::{Figure, FigureError};
use regard_lab::{Error, Folder, Table};
use std::path::PathBuf;
use std::str::FromStr;

/// How a command without an error ended.
pub(crate) enum Outcome {
    Done,
    /// A comparison does not hold.
    Disagrees,
    /// Stopped by Ctrl-C; the work until then is saved.
    Interrupted,
}

/// Most threads that may be requested.
const MAX_THREADS: usize = regard_files::limits::THREADS.max as usize;

/// The thread pool reads `RAYON_NUM_THREADS` without an upper bound.
pub(crate) fn check_thread_variable() -> Result<()> {
    let Some(value) = std::env::var_os("RAYON_NUM_THREADS") else { return Ok(()) };
    match value.to_str().map(str::parse::<usize>) {
        Some(Ok(threads)) if threads > MAX_THREADS => {
            Err(Unusable(format!("too many threads: RAYON_NUM_THREADS = {threads}; use at most {MAX_THREADS}")).into())
        }
        _ => Ok(()),
    }
}

/// Columns of a table on a terminal.
const COLUMNS: usize = 8;

#[derive(Args, Debug, Clone)]
pub(crate) struct Common {
    /// Print the tables as JSON on the standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress, no tables, no list of files
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print all columns of tables; the terminal shows the first eight otherwise
    #[arg(long)]
    pub(crate) wide: bool,
    /// Threads; results do not depend on their number [default: all cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct Out {
    /// Directory for tables and figures; files of an earlier run are replaced, other files stay
    #[arg(long, default_value = "results", value_name = "DIR")]
    pub(crate) out: PathBuf,
}

impl Common {
    /// Starts the threads and the progress bar.
    pub(crate) fn start(&self, what: &'static str) -> Result<Bar> {
        if let Some(threads) = self.threads.filter(|threads| !(1..=MAX_THREADS).contains(threads)) {
            return Err(Unusable(format!("threads = {threads} is not possible: it must be from 1 to {MAX_THREADS}")).into());
        }
        if let Some(missing) = start_pool(self.threads)?.filter(|_| !self.quiet) {
            note(missing);
        }
        Ok(Bar::new(what, self.quiet))
    }

    /// Prints tables of up to 100 rows, as text or JSON; longer ones are in the command's files.
    pub(crate) fn show(&self, tables: &[Table]) -> Result<()> {
        self.show_up_to(100, tables)
    }

    /// Prints tables of any length: for commands that write no files.
    pub(crate) fn show_whole(&self, tables: &[Table]) -> Result<()> {
        self.show_up_to(usize::MAX, tables)
    }

    fn show_up_to(&self, most: usize, tables: &[Table]) -> Result<()> {
        if self.json {
            let all: Vec<_> = tables.iter().map(Table::to_json).collect();
            print(serde_json::to_string_pretty(&all)?)?;
        } else if !self.quiet {
            for table in tables.iter().filter(|table| table.rows.len() <= most) {
                let columns = if self.wide || line_width().is_none() { usize::MAX } else { COLUMNS };
                print(table.to_text_of(columns, most, line_width()))?;
            }
        }
        Ok(())
    }

    /// Lists files of an earlier run that were removed.
    pub(crate) fn removed(&self, folder: &std::path::Path, names: &[String]) {
        if !self.quiet && !names.is_empty() {
            note(format_args!("removed {} of an earlier run from {}", names.join(", "), folder.display()));
        }
    }

    /// Lists the files, on the standard error: the standard output has only tables or JSON.
    pub(crate) fn wrote(&self, folder: &std::path::Path, names: &[String]) {
        if !self.quiet {
            note(format_args!("wrote {} in {}", names.join(", "), folder.display()));
        }
    }
}

/// Tables as CSV files.
pub(crate) fn table_files(tables: &[Table]) -> Vec<(String, Vec<u8>)> {
    tables.iter().map(|table| (format!("{}.csv", table.name), table.to_csv())).collect()
}

/// Figures as SVG and PNG files; drawn on all threads.
pub(crate) fn figure_files(figures: &[Figure]) -> Result<Vec<(String, Vec<u8>)>> {
    let drawn: Vec<_> = figures.par_iter().map(Figure::files).collect::<Result<_, FigureError>>()?;
    let mut files = Vec::new();
    for (figure, (svg, png)) in figures.iter().zip(drawn) {
        files.push((format!("{}.svg", figure.name), svg.into_bytes()));
        files.push((format!("{}.png", figure.name), png));
    }
    Ok(files)
}

/// Writes the files into the folder and lists them, with those that were removed.
pub(crate) fn write_files(mut folder: Folder, files: &[(String, Vec<u8>)], common: &Common) -> Result<()> {
    folder.write_all(files)?;
    let path = folder.path().to_owned();
    let removed = folder.finish()?;
    let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
    common.wrote(&path, &names);
    common.removed(&path, &removed);
    Ok(())
}

/// Unusable arguments or input: exit code 2.
#[derive(Debug)]
pub(crate) struct Unusable(pub(crate) String);

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// Whether other arguments or input avoid the error: not a full disk, a diverged training or a lost rank.
fn networks(error: &regard_nn::Error) -> bool {
    use regard_nn::Error;
    if let Error::Files(inner) = error {
        return inner.is_usage();
    }
    !matches!(error, Error::Diverged { .. } | Error::Gradient { .. } | Error::Ranks { .. } | Error::Logits | Error::BackwardFirst)
}

/// Of the errors of tables and folders, those that other arguments avoid.
fn tables(error: &regard_plot::Error) -> bool {
    match error {
        regard_plot::Error::Files(inner) => inner.is_usage(),
        other => !matches!(other, regard_plot::Error::Figure(_)),
    }
}

/// Whether other arguments or input avoid the error: exit code 2.
pub(crate) fn is_unusable(error: &anyhow::Error) -> bool {
    // Transparent errors of the laboratory stand for their cause.
    let laboratory = |e: &Error| match e {
        Error::Plot(inner) => tables(inner),
        Error::Files(inner) => inner.is_usage(),
        Error::Learning(inner) => networks(inner),
        other => !matches!(other, Error::Peer { .. } | Error::Figure(_)),
    };
    error.chain().any(|e| {
        e.is::<Unusable>()
            || e.is::<regard_model::Error>()
            || e.downcast_ref().is_some_and(laboratory)
            || e.downcast_ref().is_some_and(tables)
            || e.downcast_ref().is_some_and(regard_files::Error::is_usage)
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

/// An error and its causes, without those that are quoted already.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    tidy(&line)
}

/// Characters of a message, at most: longer ones quote an argument.
const LONGEST: usize = 2000;

/// One line without control characters, whatever it quotes.
fn tidy(line: &str) -> String {
    let line: String = line.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect();
    let length = line.chars().count();
    if length <= LONGEST {
        return line;
    }
    let cut = |from: usize| line.chars().skip(from).take(LONGEST / 2).collect::<String>();
    format!("{} ... {}", cut(0), cut(length - LONGEST / 2))
}

/// What is wrong and what to do, of a message in paragraphs, on one line; usage and pointers to the help are left out.
pub(crate) fn one_line(message: &str) -> String {
    let joined = |paragraph: &str| paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let paragraphs = message.split("\n\n").map(joined).take_while(|text| !text.starts_with("Usage:") && !text.starts_with("For more"));
    let parts: Vec<String> = paragraphs.map(|text| text.strip_prefix("tip: ").unwrap_or(&text).trim_end().to_owned()).collect();
    tidy(&parts.join("; "))
}
