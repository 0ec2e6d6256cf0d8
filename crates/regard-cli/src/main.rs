//! The command `regard`: arguments, progress, exit codes. What is computed and written is the laboratory's business.
//!
//! Exit codes: 0 done, 1 something failed or does not agree, 2 the arguments or the input cannot be used, 130 stopped by Ctrl-C.

#![forbid(unsafe_code)]

mod common;
mod eval;
mod experiments;
mod generate;
mod learn;
mod output;
mod plot;
mod progress;
mod report;
mod train;
mod train_settings;
mod training_log;

use clap::{Parser, Subcommand};
use common::Outcome;
use std::process::ExitCode;

/// Experiments call attention in loops: large blocks go round.
#[global_allocator]
static MEMORY: regard::CachingAllocator = regard::CachingAllocator::new();

/// Attention you can run, see, break and trust.
#[derive(Parser)]
#[command(name = "regard", version, arg_required_else_help = true)]
#[command(
    after_help = "Start with:\n  regard report          every experiment, checked and drawn: report/index.html\n  regard sweep --help    one of them"
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
    Plot(plot::Plot),
    Train(train::Train),
    Eval(eval::Eval),
    Generate(generate::Generate),
    Learn(learn::Learn),
}

fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Report(options) => options.run(),
        Command::Experiment(experiment) => experiment.run(),
        Command::Plot(options) => options.run(),
        Command::Train(options) => options.run(),
        Command::Eval(options) => options.run(),
        Command::Generate(options) => options.run(),
        Command::Learn(options) => options.run(),
    }
}

/// Arguments that cannot be used: exit code 2.
const UNUSABLE: u8 = 2;
/// Stopped by Ctrl-C, as shells count it: 128 and the signal's number.
const INTERRUPTED: u8 = 130;

/// The words of the command line; `help --help` asks for help on help, which is help.
fn words() -> Vec<std::ffi::OsString> {
    let mut words: Vec<_> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.retain(|word| word != "--help" && word != "-h");
    }
    words
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse_from(words()) {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() => {
            return match output::forgiven(error.print()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(reason) => {
                    output::note(format_args!("error: cannot write to the standard output: {reason}"));
                    ExitCode::FAILURE
                }
            };
        }
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(UNUSABLE);
        }
        Err(error) => {
            output::note(common::one_line(&error.render().to_string()));
            return ExitCode::from(UNUSABLE);
        }
    };
    match common::check_thread_variable().and_then(|()| run(arguments.command)) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Disagrees) => ExitCode::FAILURE,
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            output::note(format_args!("error: {}", common::causes(&error)));
            if common::is_unusable(&error) { ExitCode::from(UNUSABLE) } else { ExitCode::FAILURE }
        }
    }
}
