//! The experiments as sub-commands of `regard lab`, each with the options of its own configuration. Their names alone are hidden commands.

use crate::options::{Common, Out, Outcome, figure_files, table_files, write_files};
use crate::output::note;
use crate::progress::Bar;
use anyhow::{Context, Result};
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use regard_lab::shards::{self, Maker, Part};
use regard_lab::{EXPERIMENTS, Entry, Folder, Table, Tables, judging, report};

/// Run one experiment: tables, figures, verdicts on the documents' claims
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = "Examples:\n  regard lab sweep\n  regard lab robustness --seeds 2000 --out results")]
pub(crate) struct Lab {
    #[command(subcommand)]
    experiment: Experiment,
}

impl Lab {
    pub(crate) fn run(self) -> Result<Outcome> {
        self.experiment.run()
    }
}

/// Experiments that are listed as commands of their own.
const LISTED: [&str; 1] = ["bench"];

/// `regard sweep` for `regard lab sweep`.
pub(crate) struct TopLevel(Experiment);

impl TopLevel {
    pub(crate) fn run(self) -> Result<Outcome> {
        self.0.run()
    }
}

impl FromArgMatches for TopLevel {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Experiment::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl Subcommand for TopLevel {
    fn augment_subcommands(command: Command) -> Command {
        let hidden = |command: Command| if LISTED.contains(&command.get_name()) { command } else { command.hide(true) };
        EXPERIMENTS.iter().fold(command, |command, entry| command.subcommand(hidden(command_of(*entry))))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        Experiment::has_subcommand(name)
    }
}

/// An experiment with its arguments.
pub(crate) struct Experiment {
    entry: &'static dyn Entry,
    matches: ArgMatches,
    shared: Shared,
}

/// Options of every experiment.
#[derive(Args, Debug, Clone)]
struct Shared {
    /// For sweep, robustness, gradients and entropy: compute one part of the draws, as in 3/64, into a file of its own; `regard merge`
    /// combines the parts of several machines to the same bytes
    #[arg(long, value_name = "PART")]
    shard: Option<Part>,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

/// Age of a temporary file after which its run was killed.
const ABANDONED: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

pub(crate) fn find(name: &str) -> Option<&'static dyn Entry> {
    EXPERIMENTS.iter().copied().find(|entry| entry.id() == name)
}

/// The sub-command of an experiment. Common options come last and leave its descriptions as they are.
fn command_of(entry: &dyn Entry) -> Command {
    let own = entry.command();
    let (about, long, after) = (own.get_about().cloned(), own.get_long_about().cloned(), own.get_after_help().cloned());
    let mut whole = Shared::augment_args(own);
    whole = about.into_iter().fold(whole, Command::about);
    whole = long.into_iter().fold(whole, Command::long_about);
    after.into_iter().fold(whole, Command::after_help)
}

impl FromArgMatches for Experiment {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (entry, matches) = matches
            .subcommand()
            .and_then(|(name, matches)| Some((find(name)?, matches)))
            .ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))?;
        Ok(Self { entry, matches: matches.clone(), shared: Shared::from_arg_matches(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Experiment {
    fn augment_subcommands(command: Command) -> Command {
        EXPERIMENTS.iter().fold(command, |command, entry| command.subcommand(command_of(*entry)))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        find(name).is_some()
    }
}

impl Experiment {
    /// Reserves the files first, so that nothing is computed in vain; then tables, figures and files.
    pub(crate) fn run(self) -> Result<Outcome> {
        let (entry, Shared { shard, out, common }) = (self.entry, self.shared);
        let bar = common.start(entry.id())?;
        if let Some(part) = shard {
            return make_part(entry, &self.matches, part, &out, &bar, &common);
        }
        let folder = reserved(entry, &out)?;
        let bar = bar.resuming(&out.out)?;
        let tables = entry.run(&self.matches, &bar)?;
        bar.hide();
        let done = finish(entry, tables, folder, &common)?;
        bar.ended();
        Ok(done)
    }
}

/// The folder of results with the experiment's files reserved.
pub(crate) fn reserved(entry: &dyn Entry, out: &Out) -> Result<Folder> {
    let folder = Folder::open(&out.out, entry.id())?;
    folder.reserve(&entry.files())?;
    folder.reserve(&[format!("{}.csv", judging::CLAIMS)])?;
    Ok(folder)
}

/// Writes tables, verdicts and figures.
pub(crate) fn finish(entry: &dyn Entry, tables: Vec<Table>, folder: Folder, common: &Common) -> Result<Outcome> {
    let mut tables = Tables::from(tables);
    let agrees = entry.agrees(tables.all());
    judging::put_verdicts(&mut tables);
    // All figures are drawn before the first file is written.
    let mut files = table_files(tables.all());
    files.extend(figure_files(&report::draw(&tables)?)?);
    common.show(tables.all())?;
    write_files(folder, &files, common)?;
    if let (Some(agrees), false) = (agrees, common.quiet) {
        note(if agrees { "every comparison holds" } else { "a comparison does not hold: see the column `agrees`" });
    }
    Ok(if agrees == Some(false) { Outcome::Disagrees } else { Outcome::Done })
}

/// Writes one part of the draws; a complete part of the same run is left as it is.
fn make_part(entry: &dyn Entry, matches: &ArgMatches, part: Part, out: &Out, bar: &Bar, common: &Common) -> Result<Outcome> {
    if !entry.draws() {
        return Err(shards::no_draws(entry.id()).into());
    }
    let words = entry.words(matches)?;
    let path = out.out.join(shards::file_name(entry.id(), part));
    if shards::is_of(&path, entry.id(), &words, part) {
        if !common.quiet {
            note(format_args!("{} exists already", path.display()));
        }
        return Ok(Outcome::Done);
    }
    std::fs::create_dir_all(&out.out).with_context(|| format!("cannot create {}", out.out.display()))?;
    // Other processes may be writing their parts to the same folder.
    regard_files::remove_abandoned(&out.out, ABANDONED);
    let output = shards::reserve(&path)?;
    let maker = Maker::new(part, bar);
    entry.run(matches, &maker)?;
    let (_, bytes) = maker.file(entry.id(), &words)?;
    bar.hide();
    output.write(&bytes)?;
    if !common.quiet {
        note(format_args!("wrote {}", path.display()));
    }
    Ok(Outcome::Done)
}
