//! `regard report`.

use crate::options::{Common, Outcome, figure_files, table_files};
use crate::output::{line_width, note};
use anyhow::Result;
use clap::Args;
use regard_files::names::{HANDOUT, PAGE};
use regard_lab::experiments::Progress;
use regard_lab::report::{self, ReportConfig, render_with};
use regard_lab::{Folder, Tables};
use std::path::PathBuf;

/// Run every experiment, check every claim, and write one page: report/index.html
///
/// The page works offline, from a file. Its tables (CSV) and figures (SVG and PNG) are beside it.
/// A later run replaces the files of an earlier one and no others.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard report                                 all experiments, 20000 draws per cell\n  regard report \
        --seeds 2000 --out quick        faster\n  regard report --from report                   render the page again from its tables\n  \
        regard report --train                         repeat every training\n  regard report --text book.txt --out book      language \
        models on your own text\n  regard report --handout                       four pages to print, with questions, and their answers"
)]
pub(crate) struct Report {
    /// Draws per cell
    #[arg(long, default_value_t = ReportConfig::default().seeds, value_name = "N")]
    seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = ReportConfig::default().seed)]
    seed: u64,
    /// Directory for the page, its tables and figures [default: report, or the directory of --from]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Render the page from the tables in this directory without running anything
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// A Python with PyTorch, for the comparison with it
    #[arg(long, value_name = "PATH", conflicts_with = "from")]
    python: Option<PathBuf>,
    /// Measure no times: reports with the same settings have the same bytes
    #[arg(long, conflicts_with = "from")]
    no_timing: bool,
    /// Train all models again instead of using the stored results: minutes instead of seconds. A stopped run resumes when it is started
    /// again
    #[arg(long, conflicts_with = "from")]
    train: bool,
    /// Train the language models on this text (UTF-8), and judge the claims by them
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    text: Option<PathBuf>,
    /// Judge the claims of the *.toml files in this directory too
    #[arg(long, value_name = "DIR")]
    claims: Option<PathBuf>,
    /// Write a four-page handout for a class too: handout.html with questions, handout_answers.html with their answers
    #[arg(long)]
    handout: bool,
    #[command(flatten)]
    common: Common,
}

impl Report {
    pub(crate) fn run(self) -> Result<Outcome> {
        let out = self.out.as_ref().or(self.from.as_ref()).cloned().unwrap_or_else(|| PathBuf::from("report"));
        let bar = self.common.start("report")?;
        let in_place = self.from.as_ref() == Some(&out);
        let tables = match &self.from {
            Some(from) => Tables::read(from)?,
            None => Tables::default(),
        };
        if let (Some(from), false) = (&self.from, tables.verified() || tables.all().is_empty()) {
            bar.warn(&format!("warning: {} has no .regard.json: its tables are read unchecked", from.display()));
        }
        let config = ReportConfig {
            seeds: self.seeds,
            seed: self.seed,
            python: self.python.clone(),
            timing: !self.no_timing,
            train: self.train,
            text: self.text.clone(),
            claims: self.claims.clone(),
        };
        let claims = config.more_claims()?;
        let mut folder = Folder::open(&out, "report")?;
        // Files are reserved before the work; with --from in place the tables are not written.
        let written = report::files().into_iter().filter(|name| !(in_place && name.ends_with(".csv")));
        let handouts: &[&str] = if self.handout { &HANDOUT } else { &[] };
        let pages = handouts.iter().copied().chain([PAGE]).map(str::to_owned);
        folder.reserve(&written.chain(pages).collect::<Vec<_>>())?;
        let bar = bar.resuming(&out)?;
        let tables = match &self.from {
            Some(_) => tables,
            None => config.run(&bar)?,
        };
        bar.hide();
        let (page, figures) = render_with(&tables, &claims)?;
        let mut files = figure_files(&figures)?;
        files.push((PAGE.to_owned(), page.html()?.into_bytes()));
        for (name, answers) in handouts.iter().zip([false, true]) {
            files.push(((*name).to_owned(), page.handout(answers)?.into_bytes()));
        }
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
        } else if let (false, Some(claims)) = (self.common.quiet, tables.find(regard_lab::judging::CLAIMS)) {
            let narrow = line_width().is_some() && !self.common.wide;
            self.common.show(&[if narrow { claims.select(&["section", "claim", "verdict"]) } else { claims.clone() }])?;
        }
        let mut written = vec![format!("{} tables", tables.all().len()), format!("{} figures", figures.len()), PAGE.to_owned()];
        written.extend(handouts.iter().map(|name| (*name).to_owned()));
        self.common.wrote(&out, &written);
        self.common.removed(&out, &removed);
        if !self.common.quiet {
            note(format_args!("open {}", out.join(PAGE).display()));
        }
        Ok(Outcome::Done)
    }
}
