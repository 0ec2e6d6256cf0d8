//! `regard learn`.

use crate::options::{Outcome, Unusable};
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use regard_learn::app::{self, Action, Options};
use regard_learn::exercise;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Lang {
    /// NumPy
    Python,
    Rust,
    /// PyTorch
    #[value(alias = "pytorch")]
    Torch,
}

#[derive(Subcommand, Debug)]
enum What {
    /// List the exercises and their state
    List,
    /// Print the text of an exercise and create its file
    Show { exercise: String },
    /// Judge exercises [default: the first that has not passed]
    Check {
        /// Numbers or names
        exercises: Vec<String>,
        /// Judge all exercises
        #[arg(long)]
        all: bool,
    },
    /// Print one more hint
    Hint { exercise: String },
    /// Print a solution: after a pass, or after three hints and a confirmation
    Solution { exercise: String },
    /// Move your file aside and start again from the stub
    Reset { exercise: String },
    /// For authors of exercises
    Dev {
        #[command(subcommand)]
        what: Dev,
    },
}

#[derive(Subcommand, Debug)]
enum Dev {
    /// Prove a set: solutions pass, stubs are not begun, every listed mistake is named
    Check {
        /// Folder of the set [default: the built-in exercises]
        folder: Option<PathBuf>,
    },
}

/// Learn attention by writing it: sixteen exercises, and a judge that names the mistake
///
/// Without a sub-command: creates the file of the next exercise in regard-learn/python (or regard-learn/rust) and judges it at every save.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard learn                                   start, or continue\n  regard learn \
        12                                go to exercise 12\n  regard learn check 3 --file mine.py            judge any file\n  regard \
        learn check --all --csv --dir ann --dir ben   judge a class")]
pub(crate) struct Learn {
    #[command(subcommand)]
    what: Option<What>,
    /// Exercise to go to, by number or name [default: the first that has not passed]
    exercise: Option<String>,
    /// Language of the answers; remembered
    #[arg(long, value_enum, global = true, alias = "language")]
    lang: Option<Lang>,
    /// Folder of a learner; several for a class [default: regard-learn]
    #[arg(long = "dir", value_name = "DIR", global = true)]
    dirs: Vec<PathBuf>,
    /// File to judge
    #[arg(long, value_name = "PATH", global = true)]
    file: Option<PathBuf>,
    /// Python interpreter [default: that of $VIRTUAL_ENV, then python3]
    #[arg(long, value_name = "PATH", global = true)]
    python: Option<PathBuf>,
    /// Seed of the random cases
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
    /// Print verdicts, or the list, as JSON
    #[arg(long, global = true)]
    json: bool,
    /// check: print nothing; the exit code is 0 if all pass
    #[arg(long, global = true)]
    quiet: bool,
    /// Print verdicts as CSV
    #[arg(long, global = true, conflicts_with = "json")]
    csv: bool,
    /// No colours, no watch mode
    #[arg(long, global = true)]
    plain: bool,
    /// Folder of a set of exercises by others
    #[arg(long, value_name = "DIR", global = true)]
    set: Option<PathBuf>,
    /// check: points of an exercise, in CSV, JSON and result.json
    #[arg(long, default_value_t = 1, value_name = "N", global = true)]
    points: u64,
    /// check: write JUnit XML, a suite per folder
    #[arg(long, value_name = "FILE", global = true)]
    junit: Option<PathBuf>,
    /// check: write the result.json that Classroom 50 reads
    #[arg(long, value_name = "FILE", global = true)]
    result_json: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long, global = true)]
    overwrite: bool,
    /// File for the JSON verdict, for the Python package
    #[arg(long, hide = true, value_name = "FILE", global = true)]
    record: Option<PathBuf>,
}

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

impl Learn {
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut set = self.set;
        let action = match self.what {
            None => Action::Watch(self.exercise),
            Some(What::List) => Action::List,
            Some(What::Show { exercise }) => Action::Show(exercise),
            Some(What::Check { exercises, all }) => Action::Check { which: exercises, all },
            Some(What::Hint { exercise }) => Action::Hint(exercise),
            Some(What::Solution { exercise }) => Action::Solution(exercise),
            Some(What::Reset { exercise }) => Action::Reset(exercise),
            Some(What::Dev { what: Dev::Check { folder } }) => {
                set = folder.or(set);
                Action::Prove
            }
        };
        let lang = self.lang.map(|lang| match lang {
            Lang::Python => exercise::Lang::Python,
            Lang::Rust => exercise::Lang::Rust,
            Lang::Torch => exercise::Lang::Torch,
        });
        let Learn { dirs, file, python, seed, json, csv, quiet, plain, points, junit, result_json, overwrite, record, .. } = self;
        let of_python = record.is_some();
        let files = app::Files { junit, result: result_json, record, overwrite };
        let options = Options { lang, dirs, file, python, seed, json, csv, quiet, plain, set, points, files };
        // A check on behalf of Python leaves Python its own handler.
        if !of_python {
            let _ = ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed));
        }
        match app::run(&action, &options, &STOP) {
            Ok(app::Outcome::Done) => Ok(Outcome::Done),
            Ok(app::Outcome::NotPassed) => Ok(Outcome::Disagrees),
            Ok(app::Outcome::Stopped) => Ok(Outcome::Interrupted),
            Err(error) => Err(Unusable(error.to_string()).into()),
        }
    }
}
