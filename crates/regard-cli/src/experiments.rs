//! The experiments as sub-commands: one per line of the laboratory's list, each with the options of its own configuration.

use crate::common::{Common, Out, Outcome, figure_files, table_files, write_files};
use crate::output::note;
use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use regard_lab::{EXPERIMENTS, Entry, Folder, Tables, judging, report};

/// An experiment of the list, and what the command line says of it.
pub(crate) struct Experiment {
    entry: &'static dyn Entry,
    matches: ArgMatches,
    shared: Shared,
}

/// The options that every experiment has.
#[derive(Args, Debug, Clone)]
struct Shared {
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

fn find(name: &str) -> Option<&'static dyn Entry> {
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
        let (entry, Shared { out, common }) = (self.entry, self.shared);
        let bar = common.start(entry.id())?.keeping(&out.out);
        let folder = Folder::open(&out.out, entry.id())?;
        folder.reserve(&entry.files())?;
        folder.reserve(&[format!("{}.csv", judging::CLAIMS)])?;
        let mut tables = Tables::from(entry.run(&self.matches, &bar)?);
        bar.hide();
        let agrees = entry.agrees(tables.all());
        let judged = judging::judge_what_is_there(&tables);
        if !judged.is_empty() {
            let mut verdicts = judging::table(&judged);
            verdicts.origin.clone_from(&tables.all()[0].origin);
            tables.put(verdicts);
        }
        // Everything is drawn before anything is written.
        let mut files = table_files(tables.all());
        files.extend(figure_files(&report::draw(&tables)?)?);
        write_files(folder, &files, &common)?;
        bar.ended();
        common.show(tables.all())?;
        if let (Some(agrees), false) = (agrees, common.quiet) {
            note(if agrees { "every comparison holds" } else { "a comparison does not hold: see the column `agrees`" });
        }
        Ok(if agrees == Some(false) { Outcome::Disagrees } else { Outcome::Done })
    }
}
