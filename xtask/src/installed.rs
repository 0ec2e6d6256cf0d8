//! What `cargo xtask dist` made, tried as users have it: in a folder of its own, without Rust on the search path.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::command::{run, run_quietly, text, works};

/// Programs of the system, without those of the user.
const SYSTEM: &str = "/usr/bin:/bin";
/// Installation and the three commands, without the report's own time.
const SECONDS: f64 = 30.0;

/// A right and a wrong answer to the first exercise.
const RIGHT: &str = r"
import numpy as np

def unit(x):
    largest = np.abs(x).max(axis=1, keepdims=True)
    x = x / np.where(largest == 0, 1, largest)
    length = np.sqrt((x * x).sum(axis=1, keepdims=True))
    return x / np.where(length == 0, 1, length)

def similarity(q, k):
    return q @ k.T, unit(q) @ unit(k).T
";
const WRONG: &str = "def similarity(q, k):\n    return q @ k.T, q @ k.T\n";

/// An installed command: its path, the folder that it is run in, the programs that it finds.
struct Installed {
    program: PathBuf,
    folder: PathBuf,
    path: String,
}

impl Installed {
    fn new(program: PathBuf, folder: &Path, path: String) -> Result<Self> {
        for tool in ["rustc", "cargo"] {
            ensure!(!std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()), "{tool} is on the search path: {path}");
        }
        Ok(Self { program, folder: folder.to_owned(), path })
    }

    /// With an environment of nothing but a search path and a home.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(&self.folder).env_clear().env("PATH", &self.path).env("HOME", &self.folder);
        command
    }

    /// The page over HTTP, from the first line that the command prints to its last byte.
    fn serves(&self) -> Result<()> {
        let mut child = Ended(self.command(&["serve", "--no-open", "--json"]).stdout(Stdio::piped()).spawn().context("cannot start")?);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().context("no output")?).read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))?;
        let address = said["address"].as_str().and_then(|address| address.strip_prefix("http://")).context("no address")?;
        let host = address.split('/').next().unwrap_or_default();
        let mut stream = TcpStream::connect(host).with_context(|| format!("{host} does not answer"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        ensure!(page.starts_with("HTTP/1.1 200") && page.contains("</html>"), "the page is not served: {page}");
        Ok(())
    }

    /// Exercises are judged: the right answer passes, the wrong one does not.
    fn judges(&self) -> Result<()> {
        for (name, answer, passes) in [("right.py", RIGHT, true), ("wrong.py", WRONG, false)] {
            std::fs::write(self.folder.join(name), answer)?;
            let output = self.command(&["learn", "check", "1", "--file", name]).output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.code() == Some(if passes { 0 } else { 1 }), "{name}: {}: {said}", output.status);
        }
        Ok(())
    }
}

/// A child process that ends with its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An interpreter of the system, which a user without Rust has: that of the distribution where there is one.
fn interpreter() -> String {
    let system = ["/usr/bin/python3"].into_iter().find(|path| {
        let supported = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))";
        let mut probe = Command::new(path);
        probe.args(["-c", supported]);
        works(probe)
    });
    system.map_or_else(|| std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned()), str::to_owned)
}

/// Installs the wheel into a new environment, and runs what it brings.
pub(crate) fn wheel(wheel: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let environment = folder.path().join("venv");
    let mut venv = Command::new(interpreter());
    venv.args(["-m", "venv"]).arg(&environment);
    run(venv)?;
    let bin = environment.join("bin");
    let path = format!("{}:{SYSTEM}", bin.display());
    let begun = Instant::now();
    let installed = Installed::new(bin.join("regard"), folder.path(), path.clone())?;
    let mut pip = Command::new(bin.join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).arg(wheel);
    pip.env_clear().env("PATH", &path).envs(std::env::vars().filter(|(name, _)| name.starts_with("PIP_") || name.ends_with("_proxy")));
    run(pip)?;
    println!("    installed after {:.1} s", begun.elapsed().as_secs_f64());
    let code = "import numpy, regard; x = numpy.ones((1, 1, 3, 4), 'f'); assert (regard.attention(x, x, x, causal=True) == x).all()";
    let mut python = Command::new(bin.join("python"));
    python.args(["-c", code]).current_dir(folder.path()).env_clear().env("PATH", &path);
    run_quietly(python)?;
    run_quietly(installed.command(&["report", "--help"]))?;
    installed.serves()?;
    installed.judges()?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("    pip install, report --help, serve and learn: {seconds:.1} s without Rust");
    ensure!(seconds < SECONDS, "{seconds:.1} s are more than {SECONDS}");
    let begun = Instant::now();
    run_quietly(installed.command(&["report", "--no-timing", "--quiet"]))?;
    ensure!(folder.path().join("report/index.html").is_file(), "the report has no page");
    println!("    the report itself: {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Unpacks an archive of the command and runs it, under an emulator where there is one for its processor.
pub(crate) fn archive(archive: &Path, name: &str, emulator: Option<&[&str]>) -> Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(folder.path());
    run(tar)?;
    let program = folder.path().join(name).join("regard");
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "NOTICE"] {
        ensure!(folder.path().join(name).join(file).is_file(), "the archive has no {file}");
    }
    if let Some([emulator, words @ ..]) = emulator {
        let mut version = Command::new(emulator);
        version.args(words).arg(&program).arg("--version");
        let said = text(version)?;
        ensure!(said.contains(env!("CARGO_PKG_VERSION")), "another version: {said}");
        let mut look = Command::new(emulator);
        look.args(words).arg(&program).args(["look", "--text", "Leo and Ben went"]).current_dir(folder.path());
        let said = text(look)?;
        ensure!(said.contains("\nloss "), "no loss: {said}");
        return Ok(());
    }
    let installed = Installed::new(program, folder.path(), SYSTEM.to_owned())?;
    let begun = Instant::now();
    let said = text(installed.command(&["--version"]))?;
    ensure!(said.contains(env!("CARGO_PKG_VERSION")), "another version: {said}");
    run_quietly(installed.command(&["report", "--help"]))?;
    run_quietly(installed.command(&["look", "--text", "Leo and Ben went"]))?;
    run_quietly(installed.command(&["learn", "list"]))?;
    installed.serves()?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("    {name}: version, report --help, look, learn list and serve in {seconds:.1} s without Rust");
    if seconds > SECONDS {
        bail!("{seconds:.1} s are more than {SECONDS}");
    }
    Ok(())
}
