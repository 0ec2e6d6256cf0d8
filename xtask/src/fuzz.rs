//! `cargo xtask fuzz`: the fuzz target for a limited time.

use anyhow::{Result, bail};
use clap::Args;

use crate::command::{cargo, root, run as start, works};

#[derive(Args)]
pub(crate) struct Options {
    /// How long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !works(cargo(&["+nightly", "--version"])) {
        bail!("fuzzing needs a nightly toolchain: rustup toolchain install nightly");
    }
    if !works(cargo(&["+nightly", "fuzz", "--version"])) {
        bail!("cargo-fuzz is not installed: cargo install cargo-fuzz");
    }
    let home = root().join("crates/regard");
    if !home.join("fuzz").is_dir() {
        bail!("there is no fuzz target in crates/regard/fuzz");
    }
    let limit = format!("-max_total_time={}", options.seconds);
    // A call is some hundred bytes: a start from short inputs would take hours to get there.
    let mut fuzz = cargo(&["+nightly", "fuzz", "run", "attention", "--", &limit, "-len_control=0", "-max_len=600"]);
    fuzz.current_dir(home);
    start(fuzz)
}
