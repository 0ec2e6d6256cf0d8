//! The experiments as sub-commands: one per line of the laboratory's list, each with the options of its own configuration.

use crate::common::{Common, Out, Outcome, figure_files, table_files, write_files};
use crate::output::note;
use crate::progress::Bar;
use anyhow::{Context, Result};
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use regard_lab::shards::{self, Maker, Part};
use regard_lab::{EXPERIMENTS, Entry, Folder, Table, Tables, judging, report};

/// An experiment of the list, and what the command line says of it.
pub(crate) struct Experiment {
    entry: &'static dyn Entry,
    matches: ArgMatches,
    shared: Shared,
}

/// The options that every experiment has.
#[derive(Args, Debug, Clone)]
struct Shared {
    /// Make only this part of the draws, as in 3/64, into a file of its own: `regard merge` puts the parts of any machines together to the same bytes
    #[arg(long, value_name = "PART")]
    shard: Option<Part>,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

/// A part that nobody has written to for so long was left by a run that was killed.
const ABANDONED: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

pub(crate) fn find(name: &str) -> Option<&'static dyn Entry> {
    EXPERIMENTS.iter().copied().find(|entry| entry.id() == name)
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
        EXPERIMENTS.iter().fold(command, |command, entry| {
            // The options that all have come last, and leave the experiment's own words about itself alone.
            let own = entry.command();
            let (about, long, after) = (own.get_about().cloned(), own.get_long_about().cloned(), own.get_after_help().cloned());
            let mut whole = Shared::augment_args(own);
            whole = about.into_iter().fold(whole, Command::about);
            whole = long.into_iter().fold(whole, Command::long_about);
            command.subcommand(after.into_iter().fold(whole, Command::after_help))
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        find(name).is_some()
    }
}

impl Experiment {
    /// The folder first, and what is in the way there, so that nothing is computed for nothing; then the tables, the figures, the files.
    pub(crate) fn run(self) -> Result<Outcome> {
        let (entry, Shared { shard, out, common }) = (self.entry, self.shared);
        let bar = common.start(entry.id())?.keeping(&out.out);
        if let Some(part) = shard {
            return make_part(entry, &self.matches, part, &out, &bar, &common);
        }
        let folder = reserved(entry, &out)?;
        let tables = entry.run(&self.matches, &bar)?;
        bar.hide();
        let done = finish(entry, tables, folder, &common)?;
        bar.ended();
        Ok(done)
    }
}

/// The folder, in which nothing of anybody else is in the way.
pub(crate) fn reserved(entry: &dyn Entry, out: &Out) -> Result<Folder> {
    let folder = Folder::open(&out.out, entry.id())?;
    folder.reserve(&entry.files())?;
    folder.reserve(&[format!("{}.csv", judging::CLAIMS)])?;
    Ok(folder)
}

/// Tables, verdicts and figures into the folder.
pub(crate) fn finish(entry: &dyn Entry, tables: Vec<Table>, folder: Folder, common: &Common) -> Result<Outcome> {
    let mut tables = Tables::from(tables);
    let agrees = entry.agrees(tables.all());
    judging::put_verdicts(&mut tables);
    // Everything is drawn before anything is written.
    let mut files = table_files(tables.all());
    files.extend(figure_files(&report::draw(&tables)?)?);
    write_files(folder, &files, common)?;
    common.show(tables.all())?;
    if let (Some(agrees), false) = (agrees, common.quiet) {
        note(if agrees { "every comparison holds" } else { "a comparison does not hold: see the column `agrees`" });
    }
    Ok(if agrees == Some(false) { Outcome::Disagrees } else { Outcome::Done })
}

/// One part of the draws, as a file; one that is there already, whole and of the same run, is left alone.
fn make_part(entry: &dyn Entry, matches: &ArgMatches, part: Part, out: &Out, bar: &Bar, common: &Common) -> Result<Outcome> {
    if !entry.draws() {
        return Err(shards::no_draws(entry.id()).into());
    }
    let words = entry.words(matches)?;
    let path = out.out.join(shards::file_name(entry.id(), part));
    if shards::is_of(&path, entry.id(), &words, part) {
        if !common.quiet {
            note(format_args!("{} is there already", path.display()));
        }
        return Ok(Outcome::Done);
    }
    shards::check_place(&path)?;
    std::fs::create_dir_all(&out.out).with_context(|| format!("cannot make {}", out.out.display()))?;
    // Others may be writing their parts to the same folder.
    regard_plot::remove_parts_unchanged_for(&out.out, ABANDONED);
    let maker = Maker::new(part, bar);
    entry.run(matches, &maker)?;
    let (_, bytes) = maker.file(entry.id(), &words)?;
    bar.hide();
    regard_lab::write_atomic(&path, &bytes)?;
    if !common.quiet {
        note(format_args!("wrote {}", path.display()));
    }
    Ok(Outcome::Done)
}
