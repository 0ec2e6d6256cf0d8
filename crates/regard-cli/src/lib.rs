//! The command `regard`: arguments, progress, exit codes. Other crates compute and write.
//!
//! A library, for the Python package: [`run`] is the same command, [`microscope::picture`] draws the same pictures.
//!
//! Exit codes: 0 done, 1 failed or a comparison does not hold, 2 unusable arguments or input, 130 stopped by Ctrl-C.

#![forbid(unsafe_code)]
// Both panic where the stream cannot be written to: `output` does not.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod attend;
mod cluster;
mod eval;
mod experiments;
mod generate;
mod help;
mod judge;
mod learn;
mod merge;
pub mod microscope;
mod options;
mod output;
mod plot;
mod progress;
pub mod ranks;
mod report;
mod serve;
mod threads;
mod train;
mod train_settings;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use options::Outcome;
use std::ffi::OsString;
use std::io::Write;

/// Attention you can run, see, break and trust.
#[derive(Parser)]
#[command(name = "regard", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Report(report::Report),
    Serve(serve::Serve),
    Learn(learn::Learn),
    Judge(judge::Judge),
    Train(train::Train),
    #[command(flatten)]
    Microscope(microscope::Microscope),
    Eval(eval::Eval),
    Generate(generate::Generate),
    Lab(experiments::Lab),
    #[command(flatten)]
    Experiment(experiments::TopLevel),
    Plot(plot::Plot),
    Attend(attend::Attend),
    Merge(merge::Merge),
    Cluster(cluster::Cluster),
}

/// Runs a command; the words are recorded beside the figures.
fn execute(command: Command, words: &[OsString]) -> anyhow::Result<Outcome> {
    match command {
        Command::Report(options) => options.run(),
        Command::Serve(options) => options.run(),
        Command::Learn(options) => options.run(),
        Command::Judge(options) => options.run(),
        Command::Train(options) => options.run(),
        Command::Microscope(command) => command.run(),
        Command::Eval(options) => options.run(),
        Command::Generate(options) => options.run(),
        Command::Lab(options) => options.run(),
        Command::Experiment(experiment) => experiment.run(),
        Command::Plot(options) => options.run(words),
        Command::Attend(options) => options.run(),
        Command::Merge(options) => options.run(),
        Command::Cluster(options) => options.run(),
    }
}

/// Exit codes; the last one by the convention of shells: 128 and the number of the signal.
const DONE: u8 = 0;
const FAILED: u8 = 1;
const UNUSABLE: u8 = 2;
const INTERRUPTED: u8 = 130;

/// `help --help` is the same as `help`, and `lab list` as `lab`, which lists the experiments.
fn tidied(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = words.into_iter().collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.retain(|word| word != "--help" && word != "-h");
    }
    if words.len() >= 3 && words[1] == "lab" && words[2] == "list" {
        words.remove(2);
    }
    words
}

/// Runs a command line, the first word of which is the program's name. Returns the exit code.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let code = parse_and_execute(&tidied(words));
    // Programs in other languages do not flush Rust's standard output at their end.
    let _ = std::io::stdout().flush();
    code
}

/// Source of the Python harness of `regard judge`, for the Python package.
pub fn judge_harness() -> &'static str {
    regard_learn::kernels::harness()
}

/// Prints help; the exit code.
fn printed(text: impl std::fmt::Display) -> u8 {
    match output::print(text) {
        Ok(()) => DONE,
        Err(reason) => {
            output::note(format_args!("error: {}", options::causes(&reason)));
            FAILED
        }
    }
}

fn missing_argument(error: &clap::Error) -> bool {
    error.kind() == clap::error::ErrorKind::MissingRequiredArgument
}

fn parse_and_execute(words: &[OsString]) -> u8 {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion, UnknownArgument};
    let command = help::grouped(Arguments::command());
    if words.len() <= 1 {
        return printed(help::start_page(&command));
    }
    let listed = command.clone();
    let arguments = match command.try_get_matches_from(words).and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) if matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand) => {
            return printed(error.render().to_string().trim_end());
        }
        Err(error) => {
            let message = options::one_line(&error.render().to_string());
            let example = missing_argument(&error).then(|| help::first_example(&listed, words)).flatten();
            let hint = match example {
                Some(example) => format!("; for example: {example}"),
                None if error.kind() == UnknownArgument && !message.contains("similar") => {
                    format!("; `{} --help` lists the options", help::command_path(&listed, words))
                }
                None => String::new(),
            };
            output::note(format_args!("{message}{hint}"));
            return UNUSABLE;
        }
    };
    match options::check_thread_variable().and_then(|()| execute(arguments.command, words)) {
        Ok(Outcome::Done) => DONE,
        Ok(Outcome::Disagrees) => FAILED,
        Ok(Outcome::Interrupted) => INTERRUPTED,
        Err(error) => {
            output::note(format_args!("error: {}", options::causes(&error)));
            code_of(&error)
        }
    }
}

fn code_of(error: &anyhow::Error) -> u8 {
    if options::is_unusable(error) { UNUSABLE } else { FAILED }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard_files::names::{AS_EXPERIMENTS, OUTPUT_OPTIONS, READERS, WRITERS};

    /// Options and arguments whose path is read.
    const INPUTS: &[&str] = &[
        "q", "k", "v", "a", "b", "folder", "text", "map", "python", "attach", "file", "paths", "keys", "from", "claims", "models", "model",
        "set", "audio", "vectors", "image",
    ];

    /// Every sub-command below a command, with all above it.
    fn all<'c>(command: &'c clap::Command, above: &[&'c str], found: &mut Vec<(Vec<&'c str>, &'c clap::Command)>) {
        for below in command.get_subcommands() {
            let path = [above, &[below.get_name()]].concat();
            all(below, &path, found);
            found.push((path, below));
        }
    }

    #[test]
    fn the_table_of_names_has_every_command_and_path() {
        let command = Arguments::command();
        let mut found = Vec::new();
        all(&command, &[], &mut found);
        assert!(found.len() > 60, "{}", found.len());
        let is_experiment = |name: &str| regard_lab::EXPERIMENTS.iter().any(|experiment| experiment.id() == name);
        for (path, command) in &found {
            let name = path[0];
            let writes = WRITERS.iter().any(|writer| writer.command == name) || AS_EXPERIMENTS.contains(&name) || is_experiment(name);
            assert!(writes != READERS.contains(&name), "{path:?} is in no row of the table of names, or in two");
            let mut outputs = 0;
            for argument in command.get_arguments() {
                if argument.get_value_parser().type_id() != std::any::TypeId::of::<std::path::PathBuf>() {
                    continue;
                }
                let name = argument.get_long().unwrap_or(argument.get_id().as_str());
                let output = OUTPUT_OPTIONS.contains(&name);
                assert!(output != INPUTS.contains(&name), "is the path {name} of {path:?} read or written?");
                outputs += usize::from(output);
            }
            assert!(writes || outputs == 0, "{path:?} has a path that it writes to, but no row in the table of names");
        }
    }
}
