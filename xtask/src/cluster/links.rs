//! Ranks with a network between them, each in a network namespace of its own: bytes on the wire, as the system counts them, and a link that
//! is cut. Needs root and `ip`.
//!
//! ```text
//! hub    mpirun    control --- eth0 of every rank      mpirun's own connections
//!                  data    --- eth1 of every rank      messages of ranks; nothing else is counted
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::WATCHDOG;
use crate::command::{command, run_quietly, target_dir, text, works};
use crate::steps::{Steps, skipped};

const RANKS: usize = 3;

/// Heads of queries and of keys, tokens, dimensions: some seconds of work.
const SIZES: [usize; 4] = [2, 2, 20_000, 64];

/// Bytes of a packet at the most. 66 of them are Ethernet's, IP's and TCP's, a thousandth; each is acknowledged by another 66 at the most.
const MTU: &str = "65000";

/// Prefix of the network namespaces made here; the process id follows.
const PREFIX: &str = "regard-";

pub(super) fn steps(steps: &mut Steps) {
    if let Err(why) = possible() {
        skipped("bytes on the wire, and a link that is cut", &why);
        return;
    }
    let folder = target_dir().join("cluster-links");
    let mut network = None;
    steps.step("a network of namespaces", || {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        for (name, heads) in [("q.npy", SIZES[0]), ("k.npy", SIZES[1]), ("v.npy", SIZES[1])] {
            super::write(&folder.join(name), heads, SIZES)?;
        }
        let mut alone = Command::new(regard());
        alone.args(WORDS).args(["--out", "alone.npy"]).current_dir(&folder);
        text(alone)?;
        network = Some(Network::new(&folder)?);
        Ok(())
    });
    if let Some(network) = &network {
        steps.step("the end of a job: a link that is cut", || cut(network, &folder, &["eth1"]));
        steps.step("bytes on the wire", || bytes(network, &folder));
        steps.step("the end of all ranks: a machine that is cut off", || cut(network, &folder, &["eth0", "eth1"]));
    }
    drop(network);
    let _ = std::fs::remove_dir_all(&folder);
}

fn regard() -> PathBuf {
    target_dir().join("debug/regard")
}

/// Every query sees every key, so every rank receives all keys that it does not have.
const WORDS: [&str; 6] = ["attend", "q.npy", "k.npy", "v.npy", "--json", "--overwrite"];

/// Why there can be no namespaces, if so.
fn possible() -> Result<(), String> {
    if !works(command("ip", &["-Version"])) {
        return Err("there is no program `ip`; install iproute2".to_owned());
    }
    let trial = format!("{PREFIX}{}-trial", std::process::id());
    let made = works(command("ip", &["netns", "add", &trial]));
    let removed = works(command("ip", &["netns", "del", &trial]));
    if made && removed { Ok(()) } else { Err("namespaces cannot be made: it takes root, and a kernel that has them".to_owned()) }
}

/// Namespaces, which go with it.
struct Network {
    agent: PathBuf,
}

impl Network {
    fn new(folder: &Path) -> Result<Self> {
        remove(|process| !Path::new("/proc").join(process).exists());
        // By it mpirun starts something on another machine, whose address ends with its number.
        let agent = folder.join("agent.sh");
        let script = format!("#!/bin/sh\nmachine=${{1##*.}}; shift\nexec ip netns exec {} /bin/sh -c \"$*\"\n", name("$machine"));
        std::fs::write(&agent, script)?;
        let mut executable = command("chmod", &["755"]);
        executable.arg(&agent);
        run_quietly(executable)?;
        let network = Self { agent };
        let ip = |line: String| run_quietly(command("ip", &line.split_whitespace().collect::<Vec<_>>()));
        let hub = name("hub");
        ip(format!("netns add {hub}"))?;
        ip(format!("-n {hub} link set lo up"))?;
        for (bridge, device, address) in [("control", "eth0", "10.77.0"), ("data", "eth1", "10.78.0")] {
            ip(format!("-n {hub} link add {bridge} mtu {MTU} type bridge"))?;
            ip(format!("-n {hub} link set {bridge} up"))?;
            for rank in 0..RANKS {
                let (machine, port) = (name(&(rank + 1).to_string()), format!("{device}-{rank}"));
                if device == "eth0" {
                    ip(format!("netns add {machine}"))?;
                    ip(format!("-n {machine} link set lo up"))?;
                }
                ip(format!("-n {hub} link add {port} mtu {MTU} type veth peer name {device} mtu {MTU} netns {machine}"))?;
                ip(format!("-n {hub} link set {port} master {bridge} up"))?;
                ip(format!("-n {machine} addr add {address}.{}/24 dev {device}", rank + 1))?;
                ip(format!("-n {machine} link set {device} up"))?;
            }
        }
        ip(format!("-n {hub} addr add 10.77.0.254/24 dev control"))?;
        Ok(network)
    }

    /// A job whose ranks are in these namespaces.
    fn job(&self, folder: &Path, out: &str) -> Command {
        let hosts: Vec<_> = (1..=RANKS).map(|machine| format!("10.77.0.{machine}:1")).collect();
        let mut job = command("ip", &["netns", "exec", &name("hub"), "mpirun", "--allow-run-as-root", "--bind-to", "none"]);
        for (parameter, value) in [
            ("mpi_yield_when_idle", "1"),
            ("plm_rsh_agent", &self.agent.to_string_lossy()),
            ("plm_rsh_no_tree_spawn", "1"),
            ("pml", "ob1"),
            ("btl", "tcp,self"),
            ("oob_tcp_if_include", "10.77.0.0/24"),
            ("btl_tcp_if_include", "10.78.0.0/24"),
        ] {
            job.args(["--mca", parameter, value]);
        }
        job.args(["-x", "RAYON_NUM_THREADS=1", "--host", &hosts.join(","), "-n", &RANKS.to_string()]).arg(regard()).args(WORDS);
        job.args(["--out", out, "--head-groups", "1", "--watchdog", &WATCHDOG.to_string()]).current_dir(folder).stdin(Stdio::null());
        job
    }

    /// Bytes that came over a rank's data link.
    fn received(rank: usize) -> Result<u64> {
        let counter = "/sys/class/net/eth1/statistics/rx_bytes";
        text(command("ip", &["netns", "exec", &name(&(rank + 1).to_string()), "cat", counter]))?.trim().parse().context("not a number")
    }

    fn set(rank: usize, devices: &[&str], state: &str) -> Result<()> {
        let hub = name("hub");
        devices.iter().try_for_each(|device| run_quietly(command("ip", &["-n", &hub, "link", "set", &format!("{device}-{rank}"), state])))
    }

    /// Processes that are ranks: neither mpirun nor what it has on each machine.
    fn ranks_alive() -> usize {
        let ours = |id: &&str| std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|program| program.trim() == "regard");
        let of = |rank: usize| text(command("ip", &["netns", "pids", &name(&(rank + 1).to_string())])).unwrap_or_default();
        (0..RANKS).map(|rank| of(rank).split_whitespace().filter(ours).count()).sum()
    }

    /// End what runs in the namespaces.
    fn clear() {
        for machine in std::iter::once("hub".to_owned()).chain((1..=RANKS).map(|machine| machine.to_string())) {
            end_all(&name(&machine));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(|process| process == std::process::id().to_string());
    }
}

/// Of a namespace of this process.
fn name(of: &str) -> String {
    format!("{PREFIX}{}-{of}", std::process::id())
}

fn end_all(namespace: &str) {
    for process in text(command("ip", &["netns", "pids", namespace])).unwrap_or_default().split_whitespace() {
        let _ = works(command("kill", &["-KILL", process]));
    }
}

/// Namespaces of these processes, and whatever still runs in them.
fn remove(of: impl Fn(&str) -> bool) {
    let list = text(command("ip", &["netns", "list"])).unwrap_or_default();
    for namespace in list.lines().filter_map(|line| line.split_whitespace().next()) {
        let process = namespace.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(process, _)| process);
        if process.is_some_and(&of) {
            end_all(namespace);
            let _ = works(command("ip", &["netns", "del", namespace]));
        }
    }
}

/// Bytes that a rank with this number of rows receives by the formula.
fn formula(rows: f64) -> f64 {
    let [heads_q, heads_kv, tokens, dims] = SIZES.map(|size| size as f64);
    (tokens - rows / heads_q) * 2.0 * heads_kv * dims * 4.0
}

fn bytes(network: &Network, folder: &Path) -> Result<()> {
    let before = (0..RANKS).map(Network::received).collect::<Result<Vec<_>>>()?;
    let tables: Value = serde_json::from_str(&text(network.job(folder, "ranks.npy"))?).context("not JSON")?;
    let rows = tables[0]["rows"].as_array().context("no table")?;
    ensure!(rows.len() == RANKS, "{} rows for {RANKS} ranks", rows.len());
    for (rank, (row, before)) in rows.iter().zip(before).enumerate() {
        let expected = formula(row["rows"].as_f64().context("no rows")?);
        let wire = (Network::received(rank)? - before) as f64;
        let more = (wire / expected - 1.0) * 100.0;
        ensure!((0.0..=1.0).contains(&more), "rank {rank}: {wire} bytes on the wire, {expected} by the formula: {more:.2} % more");
        println!("    rank {rank}: {wire} bytes on the wire, {more:.2} % more than the formula's {expected}");
    }
    ensure!(
        std::fs::read(folder.join("ranks.npy"))? == std::fs::read(folder.join("alone.npy"))?,
        "the results are not those of one process"
    );
    Ok(())
}

/// Cut rank 1 off while keys travel. Where mpirun is cut off from it too, it cannot end: the ranks must.
fn cut(network: &Network, folder: &Path, devices: &[&str]) -> Result<()> {
    let (rank, out) = (1, folder.join("cut.npy"));
    let said = folder.join("said.txt");
    let before = Network::received(rank)?;
    let mut job = network.job(folder, "cut.npy");
    let mut mpirun = job.stdout(Stdio::null()).stderr(File::create(&said)?).spawn().context("cannot start mpirun")?;
    let ended = (|| {
        let begun = Instant::now();
        while ((Network::received(rank)? - before) as f64) < formula(0.0) * 0.15 {
            ensure!(mpirun.try_wait()?.is_none() && begun.elapsed() < Duration::from_secs(60), "no keys travel");
            std::thread::sleep(Duration::from_millis(10));
        }
        Network::set(rank, devices, "down")?;
        let (at, within) = (Instant::now(), Duration::from_secs(WATCHDOG + 5));
        let whole = devices.len() > 1;
        while Network::ranks_alive() > 0 || !whole && mpirun.try_wait()?.is_none() {
            ensure!(at.elapsed() < within, "{} ranks are there {within:?} after the cut", Network::ranks_alive());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(at.elapsed().as_secs_f64())
    })();
    let status = mpirun.try_wait()?;
    Network::clear();
    let _ = mpirun.wait();
    Network::set(rank, devices, "up")?;
    let (said, took) = (std::fs::read_to_string(&said)?, ended?);
    let named = said.lines().find(|line| line.contains(&format!("waited {WATCHDOG} s for keys ")) && line.contains(" of rank "));
    ensure!(!status.is_some_and(|status| status.success()) && !out.exists(), "the job ended well");
    println!("    ended {took:.1} s after the cut: {}", named.with_context(|| format!("no message names rank and keys:\n{said}"))?);
    Ok(())
}
