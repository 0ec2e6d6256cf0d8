//! Linear memory: what a call needs beside its inputs and results. It is measured in a process of its own, since a peak is never unlearnt.

use crate::common::{normal, skip};
use ndarray::{Array2, Array4};
use regard::{Attention, Bias, alibi_slopes};
use std::process::Command;

const TOKENS: usize = 32_768;
/// Of all heads together.
const DIMS: usize = 64;
/// Set in the process that measures: which of the cases.
const CASE: &str = "REGARD_TEST_MEMORY_CASE";

/// Name, heads, options.
fn cases() -> Vec<(&'static str, usize, Attention<'static>)> {
    // The window makes it quick; what is kept for a row does not depend on how many keys it sees.
    let short = || Attention::new().window(300, 0).threads(2);
    let shorter = || Attention::new().window(100, 0).threads(2);
    let dense = |shape: [usize; 4]| Bias::Dense(Array4::zeros(shape).into());
    let distances = Array2::zeros((8, 2 * TOKENS - 1));
    vec![
        ("one thread", 1, short().threads(1)),
        ("two threads", 1, short()),
        ("dropout and sink", 1, short().dropout(0.1, 1).sink(vec![0.0])),
        ("alibi", 1, short().bias(Bias::Alibi(alibi_slopes(1)))),
        ("bias of the keys", 1, short().bias(dense([1, 1, 1, TOKENS]))),
        ("bias of the queries of each head", 8, shorter().bias(dense([1, 8, TOKENS, 1]))),
        ("bias of every distance of each head", 8, shorter().bias(Bias::Relative(distances.into()))),
        ("top k", 1, Attention::new().window(200, 0).threads(2).top_k(50)),
    ]
}

/// The highest that the resident memory of this process ever was, in bytes. Linux says so.
fn peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok().map(|kib| kib * 1024)
}

/// Forward and backward; the bytes beside inputs and results.
fn measure(heads: usize, a: &Attention<'_>) -> usize {
    let shape = [1, heads, TOKENS, DIMS / heads];
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
    let (_, heads, a) = cases().into_iter().find(|(n, _, _)| *n == name).expect("a case");
    println!("beside: {}", measure(heads, &a));
}

#[test]
fn forward_and_backward_of_32768_tokens_need_less_than_64_mb_beside_inputs_and_results() {
    if peak().is_none() {
        return skip("this system does not say how much memory a process has");
    }
    let program = std::env::current_exe().expect("a program");
    for (name, _, _) in cases() {
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
