//! Calls of the fuzz target's generator, from seeds. `REGARD_RANDOM_CALLS` says how many, `REGARD_RANDOM_FIRST` the first seed.

use crate::common::random_call::{describe, judge};
use std::collections::BTreeMap;
use std::panic::catch_unwind;

/// How many, unless told otherwise.
const CALLS: u64 = 2000;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|x| x.parse().unwrap_or_else(|_| panic!("{name} is {x:?}; it must be a whole number")))
}

/// Bytes enough for any call (splitmix64).
fn bytes(seed: u64) -> Vec<u8> {
    let word = |n: u64| {
        let mut z = (seed * 64 + n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..64).flat_map(|n| word(n).to_le_bytes()).collect()
}

/// Seeds of one kind, so that several run at the same time.
fn run(part: u64) {
    let (first, count) = (setting("REGARD_RANDOM_FIRST").unwrap_or(0), setting("REGARD_RANDOM_CALLS").unwrap_or(CALLS));
    let mut wrong: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for seed in (first..first + count).filter(|seed| seed % 2 == part) {
        if let Err(reason) = catch_unwind(|| judge(&bytes(seed))) {
            let text = reason.downcast_ref::<String>().cloned().or_else(|| reason.downcast_ref::<&str>().map(|&x| x.to_owned()));
            let text = text.unwrap_or_else(|| "a panic without words".to_owned());
            // What it is about comes first.
            let about = text.split(':').next().unwrap_or_default().to_owned();
            wrong.entry(about).or_insert((0, seed)).0 += 1;
        }
    }
    // One call alone is being looked into.
    if count == 1 && !wrong.is_empty() {
        println!("{}", describe(&bytes(first)));
    }
    let lines: Vec<String> =
        wrong.iter().map(|(about, (count, seed))| format!("{about}: {count} calls, the first is seed {seed}")).collect();
    assert!(lines.is_empty(), "calls are wrong:\n{}", lines.join("\n"));
}

#[test]
fn calls_of_even_seeds_are_refused_or_right() {
    run(0);
}

#[test]
fn calls_of_odd_seeds_are_refused_or_right() {
    run(1);
}
