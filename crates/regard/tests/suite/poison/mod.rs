//! Hidden means hidden, and visible means visible: one number that is not finite is put somewhere, and every pass is run before and after.
//! What does not see it keeps its bits; what sees it is not finite, wherever the judge says so.
//!
//! `REGARD_POISON_CASES` says how many trials are run, `REGARD_POISON_FIRST` the number of the first.

mod expected;
mod passes;
mod reproductions;
mod trial;

use crate::common::oracle::Number;
use expected::{Expected, Judgement};
use half::{bf16, f16};
use passes::{Numbers, passes, textbook};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use trial::Trial;

/// How many trials of all four element types, unless told otherwise.
const TRIALS: usize = 800;

fn setting(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|x| x.parse().unwrap_or_else(|_| panic!("{name} is {x:?}; it must be a whole number")))
}

/// Is this what was asked for?
fn fits(expected: Expected, clean: f64, got: f64, judgement: &Judgement, tolerance: f64) -> bool {
    let bits = |x: f64| if x.is_nan() { u64::MAX } else { x.to_bits() };
    match expected {
        Expected::SameBits => bits(clean) == bits(got),
        Expected::NotFinite => !got.is_finite(),
        Expected::Nan => got.is_nan(),
        Expected::Near(x) => (got - x).abs() <= tolerance * (1.0 + x.abs()),
        Expected::VisibleKey(row) => judgement.sees(row, got),
        Expected::Free => true,
    }
}

/// What is wrong with the passes over one trial: the result, and the first number of it that is.
fn faults<E: Number>(trial: &Trial<E>, clean: &[Numbers], bad: &[Numbers]) -> Vec<(&'static str, String)> {
    let judgement = Judgement::new(trial);
    let tolerance = if size_of::<E>() == 2 { 0.1 } else { 1e-2 };
    let mut faults = Vec::new();
    for ((name, clean), (_, got)) in clean.iter().zip(bad) {
        let expected = match *name {
            "d_bias" => judgement.expected_d_bias(&trial.options),
            "d_sink" if got.is_empty() => Vec::new(),
            _ => judgement.expected(name),
        };
        assert_eq!((clean.len(), got.len()), (expected.len(), expected.len()), "{name}");
        // Sums of many numbers are off by as many roundings.
        let size = clean.iter().filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
        let wrong = (0..got.len()).find(|&n| !fits(expected[n], clean[n], got[n], &judgement, tolerance * size));
        if let Some(n) = wrong {
            faults.push((*name, format!("number {n} of {}: {} became {}, expected {:?}", got.len(), clean[n], got[n], expected[n])));
        }
    }
    faults
}

/// Those of the library.
fn faults_of_the_library<E: Number>(trial: &Trial<E>) -> Vec<(&'static str, String)>
where
    <E as regard::Storage>::Real: Number,
{
    faults(trial, &passes(trial, &trial.clean_options, &trial.clean), &passes(trial, &trial.options, &trial.bad))
}

/// The expectations themselves: the textbook fulfils them, and a textbook that forgets the poison does not.
#[test]
fn the_textbook_keeps_the_promises_about_poisons() {
    let (mut seen, mut all) = (0, 0);
    for number in 0..setting("REGARD_POISON_CASES").unwrap_or(TRIALS) / 4 {
        let trial = Trial::<f64>::new(number);
        let clean = textbook(&trial, &trial.clean_options, &trial.clean);
        let bad = textbook(&trial, &trial.options, &trial.bad);
        let faults_now = faults(&trial, &clean, &bad);
        assert!(faults_now.is_empty(), "{}\n{faults_now:?}", trial.what);
        all += 1;
        seen += usize::from(!faults(&trial, &clean, &clean).is_empty());
    }
    // The others put it where no query sees it, or hide a pair by it.
    assert!(seen > all * 2 / 3, "only {seen} of {all} poisons are visible to a query");
}

/// Every fourth trial is of this element type.
fn run<E: Number>(element: usize)
where
    <E as regard::Storage>::Real: Number,
{
    let (first, count) = (setting("REGARD_POISON_FIRST").unwrap_or(0), setting("REGARD_POISON_CASES").unwrap_or(TRIALS));
    let mut by_result: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    let mut wrong = 0;
    for number in (first..first + count).filter(|number| number / trial::MASKS % 4 == element) {
        let trial = Trial::<E>::new(number);
        let faults = catch_unwind(AssertUnwindSafe(|| faults_of_the_library(&trial))).unwrap_or_else(|_| vec![("panic", String::new())]);
        wrong += usize::from(!faults.is_empty());
        for (name, fault) in faults {
            by_result.entry(name).or_insert_with(|| (0, format!("{}\n    {fault}", trial.what))).0 += 1;
        }
    }
    let lines: Vec<String> = by_result.iter().map(|(name, (count, first))| format!("{name}, in {count} trials: {first}")).collect();
    assert!(lines.is_empty(), "{wrong} of about {} trials are wrong:\n{}", count / 4, lines.join("\n"));
}

#[test]
fn what_does_not_see_a_poison_keeps_its_bits_and_what_sees_it_is_not_finite_in_f32() {
    run::<f32>(0);
}

#[test]
fn what_does_not_see_a_poison_keeps_its_bits_and_what_sees_it_is_not_finite_in_f64() {
    run::<f64>(1);
}

#[test]
fn what_does_not_see_a_poison_keeps_its_bits_and_what_sees_it_is_not_finite_in_f16() {
    run::<f16>(2);
}

#[test]
fn what_does_not_see_a_poison_keeps_its_bits_and_what_sees_it_is_not_finite_in_bf16() {
    run::<bf16>(3);
}
