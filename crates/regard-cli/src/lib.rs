//! The command `regard`: arguments, progress, exit codes. What is computed and written is the laboratory's business.
//!
//! A library, so that the Python package can bring the same command, by [`run`], and draw the same pictures, by [`microscope::picture`].
//!
//! Exit codes: 0 done, 1 something failed or does not agree, 2 the arguments or the input cannot be used, 130 stopped by Ctrl-C.

#![forbid(unsafe_code)]

mod attend;
mod cluster;
mod common;
mod eval;
mod experiments;
mod generate;
mod learn;
mod merge;
pub mod microscope;
mod output;
mod plot;
mod progress;
mod ranks;
mod report;
mod serve;
mod train;
mod train_settings;

use clap::{Parser, Subcommand};
use common::Outcome;
use std::ffi::OsString;
use std::io::Write;

/// Attention you can run, see, break and trust.
#[derive(Parser)]
#[command(name = "regard", version, arg_required_else_help = true)]
#[command(
    after_help = "Start with:\n  regard report          every experiment, checked and drawn: report/index.html\n  regard sweep --help    one of them\n  regard look            every head of a small model, drawn; regard look MODEL for yours"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Report(report::Report),
    #[command(flatten)]
    Experiment(experiments::Experiment),
    Merge(merge::Merge),
    Plot(plot::Plot),
    Attend(attend::Attend),
    Cluster(cluster::Cluster),
    Train(train::Train),
    Eval(eval::Eval),
    Generate(generate::Generate),
    Learn(learn::Learn),
    Serve(serve::Serve),
    #[command(flatten)]
    Microscope(microscope::Microscope),
}

/// The words are recorded beside what is drawn.
fn obey(command: Command, words: &[OsString]) -> anyhow::Result<Outcome> {
    match command {
        Command::Report(options) => options.run(),
        Command::Experiment(experiment) => experiment.run(),
        Command::Merge(options) => options.run(),
        Command::Plot(options) => options.run(words),
        Command::Attend(options) => options.run(),
        Command::Cluster(options) => options.run(),
        Command::Train(options) => options.run(),
        Command::Eval(options) => options.run(),
        Command::Generate(options) => options.run(),
        Command::Learn(options) => options.run(),
        Command::Serve(options) => options.run(),
        Command::Microscope(command) => command.run(),
    }
}

/// Exit codes; the last one as shells count it: 128 and the signal's number.
const DONE: u8 = 0;
const FAILED: u8 = 1;
const UNUSABLE: u8 = 2;
const INTERRUPTED: u8 = 130;

/// `help --help` asks for help on help, which is help.
fn tidied(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = words.into_iter().collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.retain(|word| word != "--help" && word != "-h");
    }
    words
}

/// Does what the words of a command line say, the first of which is the program's name. Returns the exit code.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let code = parse_and_obey(&tidied(words));
    // A program that is not written in Rust does not do this at its end.
    let _ = std::io::stdout().flush();
    code
}

fn parse_and_obey(words: &[OsString]) -> u8 {
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() => {
            return match output::forgiven(error.print()) {
                Ok(()) => DONE,
                Err(reason) => {
                    output::note(format_args!("error: cannot write to the standard output: {reason}"));
                    FAILED
                }
            };
        }
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return UNUSABLE;
        }
        Err(error) => {
            output::note(common::one_line(&error.render().to_string()));
            return UNUSABLE;
        }
    };
    match common::check_thread_variable().and_then(|()| obey(arguments.command, words)) {
        Ok(Outcome::Done) => DONE,
        Ok(Outcome::Disagrees) => FAILED,
        Ok(Outcome::Interrupted) => INTERRUPTED,
        Err(error) => {
            output::note(format_args!("error: {}", common::causes(&error)));
            code_of(&error)
        }
    }
}

fn code_of(error: &anyhow::Error) -> u8 {
    if common::is_unusable(error) { UNUSABLE } else { FAILED }
}
