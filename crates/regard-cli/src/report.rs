//! `regard report`.

use crate::common::{Common, Outcome, figure_files, table_files};
use crate::output::note;
use anyhow::Result;
use clap::Args;
use regard_lab::report::{self, ReportConfig, render};
use regard_lab::{Folder, Tables};
use std::path::PathBuf;

/// Run every experiment, check every claim, and write one page: report/index.html
///
/// The page works from a file, offline. Beside it lie the tables (CSV) and the figures (SVG and PNG) that it is made of.
/// A later run replaces what an earlier one wrote and touches nothing else in the directory.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard report                                 everything, 20000 draws per cell\n  regard report --seeds 2000 --out quick        faster\n  regard report --from report                   draw the page again from its tables, without running anything\n  regard report --train                         with every training run again\n  regard report --text book.txt --out book      what models make of your own text"
)]
pub(crate) struct Report {
    /// Draws per cell
    #[arg(long, default_value_t = ReportConfig::default().seeds, value_name = "N")]
    seeds: usize,
    /// Which draws
    #[arg(long, default_value_t = ReportConfig::default().seed)]
    seed: u64,
    /// Directory for the page, its tables and figures [default: report, or the directory of --from]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Do not run anything: draw the page from the tables in this directory
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// A Python that has PyTorch, to compare with it too
    #[arg(long, value_name = "PATH", conflicts_with = "from")]
    python: Option<PathBuf>,
    /// Measure no times: two reports with the same settings are then the same, byte for byte
    #[arg(long, conflicts_with = "from")]
    no_timing: bool,
    /// Train all models again, instead of taking the results that are stored with the program: minutes instead of seconds. A run that is stopped
    /// goes on where it was when it is started again
    #[arg(long, conflicts_with = "from")]
    train: bool,
    /// Let the language models learn this text (UTF-8), and judge by that; trains them
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    text: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// The page.
const PAGE: &str = "index.html";

impl Report {
    pub(crate) fn run(self) -> Result<Outcome> {
        let out = self.out.as_ref().or(self.from.as_ref()).cloned().unwrap_or_else(|| PathBuf::from("report"));
        let bar = self.common.start("report")?.keeping(&out);
        let in_place = self.from.as_ref() == Some(&out);
        let tables = match &self.from {
            Some(from) => Tables::read(from)?,
            None => Tables::default(),
        };
        let mut folder = Folder::open(&out, "report")?;
        // What is in the way is found before any work: with --from in place the tables are not written.
        let written = report::files().into_iter().filter(|name| !(in_place && name.ends_with(".csv")));
        folder.reserve(&written.chain([PAGE.to_owned()]).collect::<Vec<_>>())?;
        let tables = match &self.from {
            Some(_) => tables,
            None => {
                let (seeds, seed, python) = (self.seeds, self.seed, self.python.clone());
                let text = self.text.clone();
                ReportConfig { seeds, seed, python, timing: !self.no_timing, train: self.train, text }.run(&bar)?
            }
        };
        bar.hide();
        let (page, figures) = render(&tables)?;
        let mut files = figure_files(&figures)?;
        files.push((PAGE.to_owned(), page.html()?.into_bytes()));
        if in_place {
            tables.all().iter().for_each(|table| folder.keep(&format!("{}.csv", table.name)));
        } else {
            files.extend(table_files(tables.all()));
        }
        folder.write_all(&files)?;
        let removed = folder.finish()?;
        bar.ended();
        if self.common.json {
            self.common.show(tables.all())?;
        } else if !self.common.quiet {
            self.common.show(tables.find(regard_lab::judging::CLAIMS).map(std::slice::from_ref).unwrap_or_default())?;
        }
        self.common.wrote(&out, &[format!("{} tables", tables.all().len()), format!("{} figures", figures.len()), PAGE.to_owned()]);
        self.common.removed(&out, &removed);
        if !self.common.quiet {
            note(format_args!("open {}", out.join(PAGE).display()));
        }
        Ok(Outcome::Done)
    }
}
