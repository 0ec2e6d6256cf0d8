//! Trainings that ranks of MPI share: the bytes of one process, also where ranks are killed and stopped on the way, and as many bytes
//! received as the formula says.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{WATCHDOG, mpirun};
use crate::command::{run_quietly, target_dir, text};
use crate::steps::Steps;

/// Parts of a step.
const PARTS: usize = 8;

/// Steps of a training.
const STEPS: u64 = 200;

/// Parameters that the sum of squares is made of at a time, where slices are cut.
const CHUNK: usize = 1 << 14;

pub(super) fn steps(steps: &mut Steps) {
    let folder = target_dir().join("cluster-training");
    let mut right = None;
    steps.step("a training of one process", || {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        run_quietly(train(program(), &["--out", "alone"], &folder))?;
        right = Some(files(&folder.join("alone"))?);
        Ok(())
    });
    let Some(right) = right else { return };
    steps.step("the same training on 1 to 4 ranks", || (1..=4).try_for_each(|ranks| shared(ranks, &folder, &right)));
    steps.step("the same training, ranks killed and stopped", || broken(&folder, &right));
    steps.step("the end of a training: panic", || {
        super::ends_of(mpirun(3, &target_dir().join("debug/examples/mpi_training")), "panic", Duration::from_secs(2))
    });
    let _ = std::fs::remove_dir_all(&folder);
}

fn program() -> Command {
    Command::new(regard())
}

fn regard() -> PathBuf {
    target_dir().join("debug/regard")
}

/// A small model in `folder`, changed by these words.
fn train(mut command: Command, more: &[&str], folder: &Path) -> Command {
    let (parts, steps) = (PARTS.to_string(), STEPS.to_string());
    let said =
        ["--parts", &parts, "--steps", &steps, "--characters", "30000", "--context", "32", "--batch", "8", "--checkpoint-every", "10"];
    let kept = said.chunks(2).filter(|option| !more.contains(&option[0]) && !more.contains(&"--resume")).flatten();
    command.arg("train").args(kept).args(more).current_dir(folder);
    command
}

/// All that a training writes, by name.
fn files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        all.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), std::fs::read(&path)?));
    }
    all.sort();
    ensure!(all.iter().any(|(name, _)| name == "model.safetensors"), "there is no checkpoint in {}", folder.display());
    Ok(all)
}

fn same(right: &[(String, Vec<u8>)], folder: &Path) -> Result<()> {
    let made = files(folder)?;
    let names = |all: &[(String, Vec<u8>)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    ensure!(names(&made) == names(right), "{} has {:?}", folder.display(), names(&made));
    for ((name, right), (_, made)) in right.iter().zip(&made) {
        ensure!(made == right, "{name} in {} is not that of one process", folder.display());
    }
    Ok(())
}

/// Files and bytes of a training on this number of ranks.
fn shared(ranks: usize, folder: &Path, right: &[(String, Vec<u8>)]) -> Result<()> {
    let out = format!("ranks-{ranks}");
    let run = |more: &[&str]| -> Result<(f64, Vec<f64>)> {
        let said = text(train(mpirun(ranks, &regard()), &[&["--json", "--quiet"], more].concat(), folder))?;
        let tables: Value = serde_json::from_str(&said).context("not JSON")?;
        let parameters = tables[0]["rows"][0]["parameters"].as_f64().context("no parameters")?;
        let rows = tables[1]["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok((parameters, rows.iter().map(|row| row["received_bytes"].as_f64().unwrap_or(f64::NAN)).collect()))
    };
    // No checkpoint on the way, so what is received more in more steps is received in steps.
    let fewer = STEPS / 2;
    let every = ["--checkpoint-every", "1000", "--out"];
    let (parameters, whole) = run(&[&every[..], &[&out]].concat())?;
    same(right, &folder.join(&out))?;
    println!("    {ranks} ranks: the same bytes after {STEPS} steps");
    if ranks == 1 {
        return Ok(());
    }
    let half = run(&[&every[..], &[&format!("{out}-half"), "--steps", &fewer.to_string()]].concat())?.1;
    ensure!(whole.len() == ranks && half.len() == ranks, "{} and {} ranks said what they received", whole.len(), half.len());
    for (rank, (whole, half)) in whole.iter().zip(&half).enumerate() {
        let got = (whole - half) / (STEPS - fewer) as f64;
        let formula = step_bytes(parameters as usize, ranks, rank);
        // The first rank says a word of eight bytes for each second in which it prepares, to each other.
        ensure!((got - formula as f64).abs() < 1.0, "rank {rank} of {ranks} received {got} bytes in a step, {formula} by the formula");
    }
    println!("    {ranks} ranks: bytes of a step as the formula says, {} on rank 0", step_bytes(parameters as usize, ranks, 0));
    Ok(())
}

/// `count` items over ranks, as evenly as possible, in order.
fn of(count: usize, ranks: usize, rank: usize) -> usize {
    (count * (rank + 1)).div_ceil(ranks) - (count * rank).div_ceil(ranks)
}

/// By docs/cluster.md, of 8 parts: a rank receives its slice of each node of the other ranks, 24 bytes of losses for each part, 8 bytes of
/// each chunk's squares and of the wish to stop, the other slices, and 8 bytes in front of each message.
fn step_bytes(parameters: usize, ranks: usize, rank: usize) -> u64 {
    // Of 3 ranks, the first has parts 0..2 and 2, the second 3 and 4..6.
    let nodes: &[usize] = match ranks {
        2 => &[1, 1],
        3 => &[2, 2, 1],
        _ => &[1, 1, 1, 1],
    };
    let chunks = parameters.div_ceil(CHUNK);
    let last = parameters - (chunks - 1) * CHUNK;
    let slice = |rank: usize| match of(chunks, ranks, rank) {
        0 => 0,
        // The last chunk is shorter.
        n if rank + 1 == ranks => (n - 1) * CHUNK + last,
        n => n * CHUNK,
    };
    let from = |other: usize| {
        let gradients = nodes[other] * (8 + 4 * slice(rank)) + 24 * of(PARTS, ranks, other);
        gradients + (8 + 8 + 8 * of(chunks, ranks, other)) + (8 + 4 * slice(other))
    };
    (0..ranks).filter(|other| *other != rank).map(|other| from(other) as u64).sum()
}

/// A job, and what it says on the standard error.
struct Job {
    mpirun: Child,
    errors: PathBuf,
}

impl Job {
    fn start(mut command: Command, errors: PathBuf) -> Result<Self> {
        let file = File::create(&errors).context("cannot write")?;
        let mpirun = command.stdout(std::process::Stdio::null()).stderr(file).spawn().context("cannot start mpirun")?;
        Ok(Self { mpirun, errors })
    }

    /// The process that is this rank.
    fn process(&self, rank: usize) -> Option<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.mpirun.id())).ok()?;
        let children = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<u32> =
            children.flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect();
        let word = format!("OMPI_COMM_WORLD_RANK={rank}");
        children.into_iter().find(|id| {
            let said = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            said.split(|byte| *byte == 0).any(|entry| entry == word.as_bytes())
        })
    }

    /// How it ended, and what it said.
    fn end(&mut self, within: Duration) -> Result<(ExitStatus, String)> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.mpirun.try_wait()? {
                return Ok((status, std::fs::read_to_string(&self.errors)?));
            }
            ensure!(begun.elapsed() < within, "it has not ended after {within:?}:\n{}", std::fs::read_to_string(&self.errors)?);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.mpirun.kill();
        let _ = self.mpirun.wait();
    }
}

/// Steps done, as the folder's summary says.
fn done(folder: &Path) -> u64 {
    let bytes = std::fs::read(folder.join("model.json")).unwrap_or_default();
    serde_json::from_slice::<Value>(&bytes).ok().and_then(|summary| summary["step"].as_u64()).unwrap_or(0)
}

/// Begun on two ranks, of which one is killed; taken up by three, one of which is stopped; by four, which are asked to end; and ended by
/// one, and by two.
fn broken(folder: &Path, right: &[(String, Vec<u8>)]) -> Result<()> {
    let out = folder.join("broken");
    let watchdog = WATCHDOG.to_string();
    let faults =
        [(2, "-KILL", Duration::from_secs(5)), (3, "-STOP", Duration::from_secs(WATCHDOG + 5)), (4, "-TERM", Duration::from_secs(10))];
    for (turn, (ranks, signal, within)) in faults.into_iter().enumerate() {
        let resume = if turn > 0 { &["--resume", "--checkpoint-every", "10"][..] } else { &[] };
        let words = [resume, &["--out", "broken", "--watchdog", &watchdog]].concat();
        let mut job = Job::start(train(mpirun(ranks, &regard()), &words, folder), folder.join("errors.txt"))?;
        let (before, begun) = (done(&out), Instant::now());
        // In the middle of a step after the next checkpoint.
        while done(&out) < before + 20 {
            ensure!(
                begun.elapsed() < Duration::from_secs(60),
                "no steps are made:\n{}",
                job.end(Duration::ZERO).map_or_else(|e| e.to_string(), |(_, said)| said)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let process = job.process(1).context("rank 1 is not to be found")?;
        run_quietly(crate::command::command("kill", &[signal, &process.to_string()]))?;
        let at = Instant::now();
        let (status, said) = job.end(within)?;
        let (took, steps) = (at.elapsed().as_secs_f64(), done(&out));
        ensure!(!status.success(), "it ended well after {signal}");
        ensure!(steps < STEPS, "all steps were done before {signal}");
        let named = match signal {
            "-STOP" => said.lines().find(|line| line.contains(&format!("waited {WATCHDOG} s for")) && line.contains("of rank 1")),
            "-KILL" => said.lines().find(|line| line.contains("rank 1 ")),
            _ => said.lines().find(|line| line.starts_with("saved after step")),
        };
        let Some(named) = named else { bail!("no rank reports an error after {signal}:\n{said}") };
        println!("    {ranks} ranks, kill {signal} of rank 1 after step {steps}: ended {took:.1} s later: {}", named.trim());
    }
    for (copy, ranks) in [("by-one", 1), ("by-two", 2)] {
        std::fs::create_dir_all(folder.join(copy))?;
        for entry in std::fs::read_dir(&out)? {
            let path = entry?.path();
            std::fs::copy(&path, folder.join(copy).join(path.file_name().unwrap_or_default()))?;
        }
        run_quietly(train(mpirun(ranks, &regard()), &["--resume", "--out", copy], folder))?;
        same(right, &folder.join(copy))?;
        println!("    ended on {ranks} ranks: the same bytes");
    }
    Ok(())
}
