//! A kernel in another process: a Python function, or a command that reads and writes .npz files, behind `harness.py`.

use super::diagnose::Failure;
use super::problem::{Memory, Plane, Problem, RESULTS, Results};
use super::program::Precision;
use crate::error::{Error, Result};
use crate::runner::{HarnessProcess, PythonHarness};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const HARNESS_TEXT: &str = concat!(include_str!("../runner/connect.py"), include_str!("arguments.py"), include_str!("harness.py"));
const LOAD_LIMIT: Duration = Duration::from_secs(120);

/// The Python part of the judge, for the Python package.
pub fn harness() -> &'static str {
    HARNESS_TEXT
}

/// How a kernel is found and called.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// `module:function`, `file.py:function`, or a command with `{in}` and `{out}`.
    pub name: String,
    pub command: bool,
    /// `module:function` of the gradient, where automatic differentiation has none.
    pub backward: Option<String>,
    pub python: Option<PathBuf>,
    /// Names of arguments, by what they mean: `mask=visible`.
    pub arguments: Vec<(String, String)>,
    /// Arguments that are always passed: `training=false`.
    pub fixed: Vec<(String, String)>,
    /// `bhsd`, `bshd`, `hsd`, `shd`, `sd`, `bsf` (heads and dim in one) or `bhd` (one query).
    pub layout: Option<String>,
    /// `numpy`, `torch` or `jax`.
    pub framework: Option<String>,
    /// Features of a command.
    pub takes: Vec<String>,
    /// Socket of a harness that runs already.
    pub attach: Option<PathBuf>,
    pub call_limit: Duration,
}

/// What the harness found out about a function.
#[derive(Clone, Debug, Default)]
pub struct Description {
    pub features: Vec<String>,
    pub frameworks: Vec<String>,
    pub layouts: Vec<String>,
    pub align: Option<String>,
    pub style: String,
    pub takes: Vec<String>,
    pub unknown: Vec<String>,
}

/// A running kernel.
pub struct Remote<'a> {
    process: HarnessProcess<'a>,
    pub framework: String,
    pub layout: String,
    pub precision: Precision,
    /// Whether a call only asks what the function can do.
    pub probing: bool,
    call_limit: Duration,
}

fn words(json: &Json) -> Vec<String> {
    json.as_array().into_iter().flatten().filter_map(Json::as_str).map(str::to_owned).collect()
}

impl<'a> Remote<'a> {
    /// Starts the harness and loads the function.
    pub fn start(target: &Target, stop: &'a AtomicBool) -> Result<(Self, Description)> {
        let mut process = match &target.attach {
            Some(socket) => HarnessProcess::attach(socket, stop)?,
            None => HarnessProcess::start(&PythonHarness { python: target.python.as_deref(), text: HARNESS_TEXT }, stop)?,
        };
        let pairs = |all: &[(String, String)]| all.iter().map(|(a, b)| (a.clone(), json!(b))).collect::<serde_json::Map<_, _>>();
        let header = json!({
            "call": "load", "target": target.name, "command": target.command, "backward": target.backward,
            "arguments": pairs(&target.arguments), "fixed": pairs(&target.fixed), "takes": target.takes,
            "layout": target.layout, "framework": target.framework,
        });
        let (reply, _) = process.request(header, &[], LOAD_LIMIT).map_err(|failure| match failure {
            Failure::Refused(text) | Failure::Raised(text) | Failure::Shape(text) | Failure::Gone(text) => {
                Error::Usage(format!("cannot load {}: {text}", target.name))
            }
        })?;
        let description = Description {
            features: words(&reply["features"]),
            frameworks: words(&reply["frameworks"]),
            layouts: words(&reply["layouts"]),
            align: reply["align"].as_str().map(str::to_owned),
            style: reply["style"].as_str().unwrap_or_default().to_owned(),
            takes: words(&reply["takes"]),
            unknown: words(&reply["unknown"]),
        };
        let remote = Self {
            process,
            framework: String::new(),
            layout: String::new(),
            precision: Precision::F32,
            probing: false,
            call_limit: target.call_limit,
        };
        Ok((remote, description))
    }

    /// Calls the function.
    pub fn call(&mut self, problem: &Problem) -> std::result::Result<Results, Failure> {
        let (header, payload) = self.pack(problem);
        let (reply, data) = self.process.request(header, &payload, self.call_limit)?;
        unpack(problem, &reply, &data)
    }

    /// The library that the last call used, if the harness knows it.
    pub fn library(&mut self) -> Option<String> {
        let (reply, _) = self.process.request(json!({"call": "library"}), &[], self.call_limit).ok()?;
        reply["library"].as_str().map(str::to_owned)
    }

    pub fn finish(&mut self) -> Vec<String> {
        self.process.finish()
    }

    fn pack(&self, p: &Problem) -> (Json, Vec<u8>) {
        let (mut specs, mut payload) = (Vec::new(), Vec::new());
        let mut add = |name: &str, shape: &[usize], data: &[f64], kind: &str| {
            specs.push(json!({"name": name, "shape": shape, "dtype": kind}));
            for x in data {
                match kind {
                    "i64" => payload.extend((*x as i64).to_le_bytes()),
                    "u8" => payload.push(u8::from(*x != 0.0)),
                    _ => payload.extend(x.to_le_bytes()),
                }
            }
        };
        let [h, hk] = p.heads;
        let [d, dv] = p.dims;
        let [tq, tk] = p.tokens();
        if let Some(parts) = &p.merge {
            for (side, name) in ["a", "b"].iter().enumerate() {
                add(&format!("out_{name}"), &[tq, h, dv], &parts.out[side], "f64");
                add(&format!("lse_{name}"), &[tq, h], &parts.lse[side], "f64");
            }
        } else {
            add("q", &[tq, h, d], &p.q, "f64");
            add("k", &[tk, hk, d], &p.k, "f64");
            add("v", &[tk, hk, dv], &p.v, "f64");
        }
        if let Some(d_out) = &p.d_out {
            add("d_out", &[tq, h, dv], d_out, "f64");
        }
        let plane = |plane: &Plane| plane.shape.to_vec();
        if let Some(mask) = &p.mask {
            add("mask", &plane(mask), &mask.data, "u8");
        }
        if let Some(bias) = &p.bias {
            add("bias", &plane(bias), &bias.data, "f64");
        }
        for (name, values) in [("alibi", &p.alibi), ("sinks", &p.sinks)] {
            if let Some(values) = values {
                add(name, &[h], values, "f64");
            }
        }
        if let Some(lengths) = &p.lengths {
            add("lengths", &[lengths.len()], &lengths.iter().map(|x| *x as f64).collect::<Vec<_>>(), "i64");
        }
        if let Some(scales) = &p.k_scale {
            add("k_scale", &[tk, hk], scales, "f64");
        }
        let mut scalars = json!({"causal": p.causal, "dropout": p.dropout, "gqa": h != hk});
        if p.packed {
            let ends = |of: fn(&super::problem::Segment) -> usize| {
                let mut at = 0;
                std::iter::once(0.0)
                    .chain(
                        p.segments
                            .iter()
                            .map(|s| {
                                at += of(s);
                                at as f64
                            })
                            .collect::<Vec<_>>(),
                    )
                    .collect::<Vec<f64>>()
            };
            let largest = |of: fn(&super::problem::Segment) -> usize| p.segments.iter().map(of).max().unwrap_or(0);
            let (queries, keys) = (ends(|s| s.n), ends(|s| s.m));
            add("cu_q", &[queries.len()], &queries, "i64");
            add("cu_k", &[keys.len()], &keys, "i64");
            scalars["max_q"] = json!(largest(|s| s.n));
            scalars["max_k"] = json!(largest(|s| s.m));
        }
        scalars["scale"] = json!(p.scale);
        scalars["softcap"] = json!(p.softcap);
        scalars["offset"] = json!(p.offset);
        scalars["window"] = json!(p.window.map(|sides| sides.map(|side| side.map_or(-1, |size| size as i64))));
        let header = json!({
            "call": "run", "framework": self.framework, "layout": self.layout, "dtype": self.precision.name(), "arrays": specs,
            "scalars": scalars, "batch": if p.packed { 0 } else { p.segments.len() }, "lse": p.lse, "probe": self.probing,
            "gradients": p.d_out.is_some(), "paged": p.paged,
            "memory": match p.memory {
                Memory::Contiguous => "contiguous",
                Memory::Transposed => "transposed",
                Memory::Strided => "strided",
            },
        });
        (header, payload)
    }
}

/// Results by tokens; the harness sends f64.
fn unpack(p: &Problem, reply: &Json, data: &[u8]) -> std::result::Result<Results, Failure> {
    let mut results = Results::default();
    let mut at = 0;
    let [h, hk] = p.heads;
    let [d, dv] = p.dims;
    let [tq, tk] = p.tokens();
    let sizes = [tq * h * dv, tq * h, tq * h * d, tk * hk * d, tk * hk * dv, p.bias.as_ref().map_or(0, |bias| bias.data.len())];
    for spec in reply["results"].as_array().into_iter().flatten() {
        let name = spec["name"].as_str().unwrap_or_default();
        let count = spec["count"].as_u64().unwrap_or(0) as usize;
        let end = count.checked_mul(8).and_then(|length| length.checked_add(at));
        let bytes = end.and_then(|end| data.get(at..end)).ok_or_else(|| Failure::Gone("fewer numbers than announced".to_owned()))?;
        at += bytes.len();
        let Some(which) = RESULTS.iter().position(|one| *one == name) else { continue };
        if count != sizes[which] {
            return Err(Failure::Shape(format!("{name} has {count} elements; {} are expected", sizes[which])));
        }
        let values = bytes.chunks_exact(8).map(|chunk| f64::from_le_bytes(chunk.try_into().unwrap_or_default())).collect();
        results.arrays[which] = Some(values);
    }
    if results.arrays.iter().all(Option::is_none) {
        return Err(Failure::Shape("no result".to_owned()));
    }
    Ok(results)
}

/// Whether a path names a Python file.
pub fn is_file(name: &str) -> bool {
    Path::new(name.rsplit_once(':').map_or(name, |(file, _)| file)).extension().is_some_and(|ending| ending == "py")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Align, Takes, cases};

    /// A kernel has the socket of its harness, and can answer in its place.
    #[test]
    fn sizes_that_no_answer_has_are_errors() {
        let takes = Takes { features: Vec::new(), rank: 4, align: Align::TopLeft, seq_major: false, precision: Precision::F32 };
        let problem = cases(&takes, 1).swap_remove(0);
        for count in [1, 1 << 60, 1 << 61, u64::MAX] {
            let reply = json!({"results": [{"name": "out", "count": count}]});
            let got = unpack(&problem, &reply, &[0; 4]);
            assert!(matches!(&got, Err(Failure::Gone(text)) if text == "fewer numbers than announced"), "{count}: {got:?}");
        }
    }
}
