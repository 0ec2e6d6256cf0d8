//! `cargo xtask cluster`: ranks of MPI and of torch.distributed against one process, bit for bit, and how a job ends when one of its ranks
//! goes.

mod gloo;
mod links;
mod tags;
mod training;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::command::{cargo, command, run, target_dir, text, works};
use crate::parity::TorchPython;
use crate::steps::Steps;

/// Of Debian and its kin.
const PACKAGES: [&str; 3] = ["openmpi-bin", "libopenmpi-dev", "libclang-dev"];

/// Seconds that a rank waits for another, where one is stopped.
const WATCHDOG: u64 = 4;

/// Of the files: heads of queries and of keys, tokens, dimensions.
const SIZES: [usize; 4] = [4, 2, 5000, 32];

#[derive(Args)]
pub(crate) struct Options {
    /// Only processes of torch.distributed (gloo), without MPI
    #[arg(long, conflicts_with = "only_mpi")]
    only_torch: bool,
    /// Only processes of MPI, without PyTorch
    #[arg(long)]
    only_mpi: bool,
    #[command(flatten)]
    torch: TorchPython,
}

pub(crate) fn run_all(options: &Options) -> Result<ExitCode> {
    let mut steps = Steps::default();
    if !options.only_torch {
        add_mpi(&mut steps)?;
    }
    if !options.only_mpi {
        gloo::add_steps(&mut steps, &options.torch);
    }
    Ok(steps.finish())
}

fn add_mpi(steps: &mut Steps) -> Result<()> {
    if !works(command("mpirun", &["--version"])) {
        let mut install = command("apt-get", &["install", "--yes"]);
        install.args(PACKAGES);
        run(install).with_context(|| format!("MPI is needed: install {}", PACKAGES.join(", ")))?;
    }
    steps.step("programs with MPI", || {
        let build = |package, more: &[&str]| {
            run(cargo(&[&["build", "--quiet", "--package", package, "--features", "mpi", "--examples"], more].concat()))
        };
        build("regard-dist", &[])
            .and_then(|()| build("regard-cli", &["--bins"]))
            .with_context(|| format!("these must be installed: {}", PACKAGES.join(", ")))
    });
    steps.step("an MPI library with the smallest bound of tags", tags::build);
    for ranks in 1..=4 {
        steps.step(&format!("bits of one process on {ranks} ranks"), || compare(ranks));
    }
    for (fault, within) in [("kill", 5), ("panic", 2), ("stop", WATCHDOG + 5)] {
        steps.step(&format!("the end of a job: {fault}"), || ends(fault, Duration::from_secs(within)));
    }
    steps.step("files of one process on 2 to 4 ranks", files);
    training::steps(steps);
    links::steps(steps);
    Ok(())
}

/// Ranks share the cores that there are: none is bound to one, and those that wait let others work.
fn mpirun(ranks: usize, program: &Path) -> Command {
    mpirun_with(Some(&tags::layer()), ranks, program)
}

fn mpirun_with(layer: Option<&Path>, ranks: usize, program: &Path) -> Command {
    let mut mpirun =
        command("mpirun", &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
    if let Some(layer) = layer {
        mpirun.arg("-x").arg(format!("LD_PRELOAD={}", layer.display()));
    }
    mpirun.args(["-x", "RAYON_NUM_THREADS=1", "-n", &ranks.to_string()]).arg(program);
    mpirun
}

fn example() -> PathBuf {
    target_dir().join("debug/examples/mpi_compare")
}

fn compare(ranks: usize) -> Result<()> {
    let said = text(mpirun(ranks, &example()))?;
    let lines: Vec<_> = said.lines().filter(|line| line.ends_with("numbers differ")).collect();
    ensure!(lines.len() == ranks, "{} of {ranks} ranks said how many numbers differ:\n{said}", lines.len());
    for line in lines {
        ensure!(line.contains(": 0 of ") && !line.contains(": 0 of 0 "), "{line}");
        println!("    {line}");
    }
    Ok(())
}

fn ends(fault: &str, within: Duration) -> Result<()> {
    ends_of(mpirun(3, &example()), fault, within)
}

/// Of a job that does that to itself, and says when.
fn ends_of(mut job: Command, fault: &str, within: Duration) -> Result<()> {
    job.args([fault, &WATCHDOG.to_string()]);
    let output = job.output().context("cannot start mpirun")?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    let [said, complained] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let at = said.lines().find_map(|line| line.strip_prefix("fault at ")?.parse::<f64>().ok());
    let took = now - at.with_context(|| format!("there was no fault:\n{said}{complained}"))?;
    ensure!(!output.status.success(), "the job ended well");
    ensure!(took < within.as_secs_f64(), "it ended {took:.1} s after the fault; {within:?} are allowed");
    if fault == "stop" {
        ensure!(
            complained.contains(&format!("waited {WATCHDOG} s for")) && complained.contains("of rank"),
            "no message names the rank:\n{complained}"
        );
    }
    println!("    ended {took:.1} s after the fault");
    complained.lines().filter(|line| line.contains("rank") && line.starts_with("error")).for_each(|line| println!("    {line}"));
    Ok(())
}

/// A file of numbers that are not equal.
fn write(path: &Path, heads: usize, [_, _, tokens, dims]: [usize; 4]) -> Result<()> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (1, {heads}, {tokens}, {dims}), }}");
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = [b"\x93NUMPY\x01\x00", &u16::try_from(length)?.to_le_bytes()[..], text.as_bytes()].concat();
    bytes.resize(10 + length - 1, b' ');
    bytes.push(b'\n');
    bytes.extend((0..heads * tokens * dims).flat_map(|i| ((i as f32 * 0.7).sin() * 2.0).to_le_bytes()));
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn files() -> Result<()> {
    let folder = target_dir().join("cluster");
    std::fs::create_dir_all(&folder)?;
    let [heads_q, heads_kv, tokens, dims] = SIZES;
    for (name, heads) in [("q.npy", heads_q), ("k.npy", heads_kv), ("v.npy", heads_kv)] {
        write(&folder.join(name), heads, SIZES)?;
    }
    let program = target_dir().join("debug/regard");
    let words = ["attend", "q.npy", "k.npy", "v.npy", "--causal", "--stats", "--json", "--overwrite"];
    let mut alone = Command::new(&program);
    alone.args(words).args(["--out", "alone.npy"]).current_dir(&folder);
    text(alone)?;
    for (ranks, groups) in [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2)] {
        let mut job = mpirun(ranks, &program);
        job.args(words).args(["--out", "ranks.npy", "--head-groups", &groups.to_string()]).current_dir(&folder);
        let tables: Value = serde_json::from_str(&text(job)?).context("not JSON")?;
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(rest) = name.strip_prefix("alone") else { continue };
            ensure!(std::fs::read(&path)? == std::fs::read(folder.join(format!("ranks{rest}")))?, "{ranks} ranks: ranks{rest} differs");
        }
        let rows = tables[0]["rows"].as_array().context("no table")?;
        ensure!(rows.len() == ranks, "{} rows for {ranks} ranks", rows.len());
        // Every rank receives the keys and values that it does not have, of its own heads, but for those after its last row.
        let of_token = (2 * heads_kv / groups * dims * 4) as f64;
        for row in rows {
            let number = |name: &str| row[name].as_f64().with_context(|| format!("no {name} in {row}"));
            let own = number("rows")? / (heads_q / groups) as f64;
            let expected = if ranks == groups { 0.0 } else { (tokens as f64 - own) * of_token };
            let got = number("received_bytes")?;
            ensure!(got >= expected * 0.5 && got <= expected * 1.01 + 4096.0, "{ranks} ranks: {got} bytes, {expected} by the formula");
        }
        println!("    {ranks} ranks, {groups} groups of heads: the same bytes");
    }
    std::fs::remove_dir_all(&folder).context("cannot tidy up")
}
