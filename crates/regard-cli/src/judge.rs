//! `regard judge`.

use crate::help::wrapped;
use crate::options::{Outcome, Unusable};
use crate::output::{line_width, note, print};
use anyhow::Result;
use clap::{Args, ValueEnum};
use regard_files::Output;
use regard_learn::kernels::{self, Align, Precision, Target};
use regard_learn::show::Look;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Causal {
    TopLeft,
    BottomRight,
}

/// Judge an attention function: right within which tolerance, or which known mistake it makes
///
/// TARGET is module:function or file.py:function (NumPy, PyTorch, JAX), or with --command a program that reads and writes .npz files. The
/// judge finds out what the function takes by the names of its arguments, runs the cases that apply (forward, gradients, masks, windows,
/// decoding, packed sequences) and compares them with a reference in f64. A mistake is named only if a program with exactly this mistake
/// explains every case.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n\
                  \x20 regard judge torch.nn.functional:scaled_dot_product_attention\n\
                  \x20 regard judge kernel.py:attention --causal bottom-right --junit judge.xml\n\
                  \x20 regard judge kernel.py:attention --arg mask=visible --layout bshd\n\
                  \x20 regard judge --command 'my-kernel {in} {out}' --takes causal,scale\n\
                  \x20 regard judge --list\n\
                  \n\
                  Meanings for --arg: q k v mask bias causal scale window softcap alibi sinks lengths offset dropout cu_q cu_k\n\
                  \x20 max_q max_k k_scale qkv block_table heads heads_kv d_out\n\
                  \x20 out lse; for the merge of two states: out_a lse_a out_b lse_b\n\
                  \n\
                  The same in a file for --map:\n\
                  \x20 layout = \"bshd\"\n\
                  \x20 causal = \"bottom-right\"\n\
                  \x20 [arguments]\n\
                  \x20 mask = \"visible\"\n\
                  \n\
                  Exit code: 0 right, 1 wrong, 2 the target cannot be called")]
pub(crate) struct Judge {
    /// module:function, file.py:function, or with --command a program
    #[arg(required_unless_present = "list")]
    target: Option<String>,
    /// TARGET is a program: {in} and {out} are .npz files; it writes `out`
    #[arg(long)]
    command: bool,
    /// What a program takes besides q, k, v: causal, scale, mask, ...
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "command")]
    takes: Vec<String>,
    /// Function that returns dq, dk, dv; PyTorch and JAX differentiate by themselves
    #[arg(long, value_name = "MODULE:FUNCTION")]
    backward: Option<String>,
    /// Meaning of an argument: mask=visible
    #[arg(long = "arg", value_name = "MEANING=NAME")]
    arguments: Vec<String>,
    /// Value of an argument that is always passed: training=false
    #[arg(long = "set", value_name = "NAME=VALUE")]
    fixed: Vec<String>,
    /// TOML file with layout, causal, framework, [arguments] and [set]
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Order of dimensions [default: found by calls]
    #[arg(long, value_parser = ["bhsd", "bshd", "hsd", "shd", "sd", "bsf", "bhd"])]
    layout: Option<String>,
    /// Arrays that the function takes [default: found by calls]
    #[arg(long, value_parser = ["numpy", "torch", "jax"])]
    framework: Option<String>,
    /// Where the causal mask lies if lengths differ [default: by the names of the arguments]
    #[arg(long, value_enum)]
    causal: Option<Causal>,
    /// Number type of the inputs
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Dtype,
    /// Mistake to accept, by id: empty-nan
    #[arg(long, value_name = "ID")]
    allow: Vec<String>,
    /// Seed of the random inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds of processor time that one call may take; ten times as many without
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
    /// Python interpreter [default: that of $VIRTUAL_ENV, then python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Print the verdict as JSON
    #[arg(long)]
    json: bool,
    /// Write the verdict as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a summary as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Replace existing files of --junit and --markdown
    #[arg(long)]
    overwrite: bool,
    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
    /// No colours
    #[arg(long)]
    plain: bool,
    /// Print the catalogue of mistakes
    #[arg(long)]
    list: bool,
    /// Socket of a harness that runs already
    #[arg(long, hide = true, value_name = "SOCKET")]
    attach: Option<PathBuf>,
    /// File for the JSON verdict, for the Python package
    #[arg(long, hide = true, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// The file of `--map`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Map {
    layout: Option<String>,
    causal: Option<Causal>,
    framework: Option<String>,
    arguments: BTreeMap<String, String>,
    set: BTreeMap<String, toml::Value>,
}

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

fn unusable(text: impl std::fmt::Display) -> anyhow::Error {
    Unusable(text.to_string()).into()
}

fn pairs(list: &[String], option: &str) -> Result<Vec<(String, String)>> {
    let pair = |word: &String| {
        let (name, value) = word.split_once('=').ok_or_else(|| unusable(format_args!("no '=' in {option} {word}; write NAME=VALUE")))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    list.iter().map(pair).collect()
}

fn read_map(path: &Path) -> Result<Map> {
    const LIMIT: u64 = 1 << 20;
    let text = regard_files::read_text(path, LIMIT).map_err(unusable)?;
    toml::from_str(&text).map_err(|reason| unusable(format_args!("{} is not a map: {}", path.display(), reason.message())))
}

fn catalogue(json: bool) -> Result<Outcome> {
    let entries = kernels::catalogue::CATALOGUE;
    if json {
        let all: Vec<_> =
            entries.iter().map(|e| serde_json::json!({"id": e.id, "text": e.text, "formula": e.formula, "public": e.seen})).collect();
        print(serde_json::to_string_pretty(&all)?)?;
    } else {
        const NAME: usize = 28;
        let width = line_width().map_or(usize::MAX, |width| width.saturating_sub(NAME + 1).max(20));
        for entry in entries {
            print(format_args!("{:NAME$} {}", entry.id, wrapped(&entry.text.replace("{form}", "N"), width, NAME + 1)))?;
        }
    }
    Ok(Outcome::Done)
}

impl Judge {
    pub(crate) fn run(self) -> Result<Outcome> {
        if self.list {
            return catalogue(self.json);
        }
        let known = |id: &String| kernels::catalogue::CATALOGUE.iter().any(|entry| entry.id == id);
        if let Some(unknown) = self.allow.iter().find(|id| !known(id)) {
            return Err(unusable(format_args!("unknown mistake: {unknown}; `regard judge --list` has the ids")));
        }
        let map = self.map.as_deref().map(read_map).transpose()?.unwrap_or_default();
        let mut arguments = pairs(&self.arguments, "--arg")?;
        arguments.extend(map.arguments);
        let mut fixed = pairs(&self.fixed, "--set")?;
        fixed.extend(map.set.into_iter().map(|(name, value)| (name, toml_as_json(&value))));
        let reserve = |path: &Option<PathBuf>| path.as_deref().map(|path| Output::reserve_new(path, self.overwrite)).transpose();
        let (junit, markdown, record) = (reserve(&self.junit)?, reserve(&self.markdown)?, reserve(&self.record)?);
        let target = Target {
            name: self.target.clone().unwrap_or_default(),
            command: self.command,
            backward: self.backward.clone(),
            python: self.python.clone(),
            arguments,
            fixed,
            layout: self.layout.clone().or(map.layout),
            framework: self.framework.clone().or(map.framework),
            takes: self.takes.clone(),
            attach: self.attach.clone(),
            call_limit: Duration::from_secs(self.timeout.clamp(1, 86_400)),
        };
        let options = kernels::Options {
            seed: self.seed,
            precision: match self.dtype {
                Dtype::F64 => Precision::F64,
                Dtype::F32 => Precision::F32,
                Dtype::F16 => Precision::F16,
                Dtype::Bf16 => Precision::Bf16,
            },
            align: self.causal.or(map.causal).map(|causal| match causal {
                Causal::TopLeft => Align::TopLeft,
                Causal::BottomRight => Align::BottomRight,
            }),
            allow: self.allow.clone(),
        };
        if self.attach.is_none() {
            // Fails only if a handler is set already, which no caller does.
            let _ = ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed));
        }
        let report = match kernels::judge(&target, &options, &STOP) {
            Ok(report) => report,
            Err(_) if STOP.load(Ordering::Relaxed) => return Ok(Outcome::Interrupted),
            Err(error) => return Err(unusable(error)),
        };
        if STOP.load(Ordering::Relaxed) {
            note("stopped");
            return Ok(Outcome::Interrupted);
        }
        if let Some(output) = junit {
            output.write(kernels::junit(&report).as_bytes())?;
        }
        if let Some(output) = markdown {
            output.write(kernels::markdown(&report).as_bytes())?;
        }
        let look = Look { colour: !self.plain && std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() };
        let text = kernels::text(&report, look).join("\n");
        if let Some(output) = record {
            let mut json = kernels::json(&report);
            json["text"] = kernels::text(&report, Look::default()).join("\n").into();
            json["markdown"] = kernels::markdown(&report).into();
            output.write(json.to_string().as_bytes())?;
        }
        if self.json {
            print(serde_json::to_string_pretty(&kernels::json(&report))?)?;
        } else if !self.quiet {
            print(text)?;
        }
        Ok(if report.right { Outcome::Done } else { Outcome::Disagrees })
    }
}

/// A value of a TOML file as the harness reads it.
fn toml_as_json(value: &toml::Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
