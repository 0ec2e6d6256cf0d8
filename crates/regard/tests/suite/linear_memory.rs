//! Linear memory: what a call needs beside its inputs and results. It is measured in a process of its own, since a peak is never unlearnt.

use crate::common::normal;
use ndarray::Array4;
use regard::{Attention, Bias, alibi_slopes};
use std::process::Command;

const TOKENS: usize = 32_768;
const DIMS: usize = 64;
/// Set in the process that measures: which of the cases.
const CASE: &str = "REGARD_TEST_MEMORY_CASE";

fn cases() -> Vec<(&'static str, Attention<'static>)> {
    // The window makes it quick; what is kept for a row does not depend on how many keys it sees.
    let short = || Attention::new().window(700, 0);
    vec![
        ("one thread", short().threads(1)),
        ("two threads", short().threads(2)),
        ("dropout and sink", short().threads(2).dropout(0.1, 1).sink(vec![0.0])),
        ("alibi", short().threads(2).bias(Bias::Alibi(alibi_slopes(1)))),
        ("bias of the keys", short().threads(2).bias(Bias::Dense(Array4::zeros([1, 1, 1, TOKENS]).into()))),
        ("top k", Attention::new().window(200, 0).threads(2).top_k(50)),
    ]
}

/// The highest that the resident memory of this process ever was, in bytes. Linux says so.
fn peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok().map(|kib| kib * 1024)
}

/// Forward and backward; the bytes beside inputs and results.
fn measure(a: &Attention<'_>) -> usize {
    let shape = [1, 1, TOKENS, DIMS];
    let [q, k, v, d_out] = [1, 2, 3, 4].map(|seed| normal::<f32>(shape, seed));
    let before = peak().expect("it was there");
    let saved = a.forward_saved(&q, &k, &v).expect("fits");
    let gradients = a.backward(&q, &k, &v, &saved, &d_out).expect("fits");
    let numbers =
        saved.out.len() + saved.row_max.len() + saved.row_sum.len() + gradients.dq.len() + gradients.dk.len() + gradients.dv.len();
    peak().expect("it was there").saturating_sub(before + numbers * size_of::<f32>())
}

/// In a process of its own only, where the other tests do not allocate at the same time.
#[test]
#[ignore = "started by the test below"]
fn measured_case() {
    let Ok(name) = std::env::var(CASE) else { return };
    let (_, a) = cases().into_iter().find(|(n, _)| *n == name).expect("a case");
    println!("beside: {}", measure(&a));
}

#[test]
fn forward_and_backward_of_32768_tokens_need_less_than_64_mb_beside_inputs_and_results() {
    if peak().is_none() {
        println!("not measured: this system does not say how much memory a process has");
        return;
    }
    let program = std::env::current_exe().expect("a program");
    for (name, _) in cases() {
        let mut child = Command::new(&program);
        child.args(["--exact", "linear_memory::measured_case", "--ignored", "--nocapture"]).env(CASE, name);
        let output = child.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {text}");
        let number = text.split("beside: ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("it says");
        let megabytes = number.parse::<f64>().expect("a number") / 1e6;
        println!("{name}: {megabytes:.1} MB");
        // A matrix of that many tokens is 4295 MB.
        assert!(megabytes < 64.0, "{name}: {megabytes:.1} MB");
    }
}
