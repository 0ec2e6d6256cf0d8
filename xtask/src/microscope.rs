//! `cargo xtask microscope`: real models out of package registries, against transformers.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::command::{command, run as start, target_dir};
use crate::python::Environment;

#[derive(Args)]
pub(crate) struct Options {
    /// A Python that has what bench/microscope/requirements.txt names, instead of target/venv-microscope
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Take the regard that is installed there instead of building and installing this one
    #[arg(long)]
    no_install: bool,
    /// Where the models are kept [default: target/models]
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let environment = match &options.python {
        Some(python) => Environment::existing(python),
        None => Environment::make("venv-microscope", &["bench/microscope/requirements.txt"])?,
    };
    if !options.no_install {
        environment.install_regard()?;
    }
    let mut compare = command(environment.python(), &["bench/microscope/compare.py"]);
    compare.arg(options.models.clone().unwrap_or_else(|| target_dir().join("models")));
    // Nothing but the two registries is asked.
    compare.env("HF_HUB_OFFLINE", "1");
    start(compare)
}
