//! `regard learn`.

use crate::common::{Outcome, Unusable};
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use regard_learn::app::{self, Action, Options};
use regard_learn::exercise;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Lang {
    Python,
    Rust,
}

#[derive(Subcommand, Debug)]
enum What {
    /// All exercises, and which have passed
    List,
    /// What an exercise is about
    Show { exercise: String },
    /// Judge exercises, the next one by default
    Check {
        /// Numbers or names
        exercises: Vec<String>,
        /// All of them
        #[arg(long)]
        all: bool,
    },
    /// One more hint
    Hint { exercise: String },
    /// A right answer: free after a pass, or after three hints and a question
    Solution { exercise: String },
    /// Move your file aside and begin again
    Reset { exercise: String },
}

/// Write attention yourself, in fourteen exercises, with a judge that names the mistake
///
/// Without a sub-command: the next exercise, watched. Edit the file in regard-learn/python (or regard-learn/rust), save, and see.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard learn                                   start, or go on\n  regard learn check 3 --file mine.py            judge a file of yours\n  regard learn check --all --csv --dir ann --dir ben   a class"
)]
pub(crate) struct Learn {
    #[command(subcommand)]
    what: Option<What>,
    /// The language; remembered
    #[arg(long, value_enum, global = true)]
    lang: Option<Lang>,
    /// The learner's folder; several for a class [default: regard-learn]
    #[arg(long = "dir", value_name = "DIR", global = true)]
    dirs: Vec<PathBuf>,
    /// Judge this file
    #[arg(long, value_name = "PATH", global = true)]
    file: Option<PathBuf>,
    /// The Python that runs Python files [default: that of $VIRTUAL_ENV, then python3]
    #[arg(long, value_name = "PATH", global = true)]
    python: Option<PathBuf>,
    /// Which random cases
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
    /// Print verdicts as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Print verdicts as CSV
    #[arg(long, global = true, conflicts_with = "json")]
    csv: bool,
    /// No colours, no watching
    #[arg(long, global = true)]
    plain: bool,
}

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

impl Learn {
    pub(crate) fn run(self) -> Result<Outcome> {
        let action = match self.what {
            None => Action::Next,
            Some(What::List) => Action::List,
            Some(What::Show { exercise }) => Action::Show(exercise),
            Some(What::Check { exercises, all }) => Action::Check { which: exercises, all },
            Some(What::Hint { exercise }) => Action::Hint(exercise),
            Some(What::Solution { exercise }) => Action::Solution(exercise),
            Some(What::Reset { exercise }) => Action::Reset(exercise),
        };
        let lang = self.lang.map(|lang| match lang {
            Lang::Python => exercise::Lang::Python,
            Lang::Rust => exercise::Lang::Rust,
        });
        let Learn { dirs, file, python, seed, json, csv, plain, .. } = self;
        let options = Options { lang, dirs, file, python, seed, json, csv, plain };
        // A second handler cannot be set; there is none before this one.
        let _ = ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed));
        match app::run(&action, &options, &STOP) {
            Ok(app::Outcome::Done) => Ok(Outcome::Done),
            Ok(app::Outcome::NotPassed) => Ok(Outcome::Disagrees),
            Ok(app::Outcome::Stopped) => Ok(Outcome::Interrupted),
            // Whatever is missing, the user can mend it.
            Err(error) => Err(Unusable(error.to_string()).into()),
        }
    }
}
