//! The report held to its own standard: every mean has an interval, every title its check, and no verdict hangs on the number of draws.

use super::report;
use regard_lab::experiments::Unwatched;
use regard_lab::report::{ReportConfig, checks};
use regard_lab::{EXPERIMENTS, Table, Tables, Value, judging};
use std::collections::BTreeMap;

fn run(seeds: usize, seed: u64) -> Tables {
    ReportConfig { seeds, seed, timing: false, ..ReportConfig::default() }.run(&Unwatched).expect("the report runs")
}

/// One draw, shown as one draw: no mean, and said to be none.
const ONE_DRAW: [&str; 7] = [
    "attention_sweep_weights",
    "attention_entropy_row",
    "attention_patterns_maps",
    "attention_empty_rows",
    "head_maps",
    "flat_map_weights",
    "scale_place_maps",
];

/// Functions of numbers that have an interval, and smallest values, which are no means.
const DERIVED: [(&str, &str); 6] = [
    ("attention_robustness_summary", "deviation"),
    ("attention_entropy", "deviation"),
    ("check_masking", "least_row_sum"),
    ("check_masking", "leak"),
    ("check_gradient_test", "smallest"),
    ("check_gradient_test", "scores_only"),
];

#[test]
fn every_number_that_changes_with_the_seed_has_an_interval() {
    let (one, other) = (run(200, 1), run(200, 2));
    let mut found = 0;
    for table in one.all().iter().filter(|table| !ONE_DRAW.contains(&table.name.as_str()) && table.name != judging::CLAIMS) {
        let again = other.get(&table.name).expect("the same tables");
        for (at, column) in table.columns.iter().enumerate().filter(|(_, column)| !table.is_end(&column.name)) {
            let changes =
                table.rows.iter().zip(&again.rows).any(|(a, b)| matches!(a[at], Value::Number(_)) && a[at].to_field() != b[at].to_field());
            let name = column.name.as_str();
            if changes && !DERIVED.contains(&(table.name.as_str(), name)) && !(table.name == "check_rank" && name == "smallest") {
                assert!(table.position(&format!("{name}_low")).is_some(), "{}.{name} is random and has no interval", table.name);
                found += 1;
            }
        }
    }
    assert!(found > 40, "{found} columns are random");
    // Trainings do not change with the report's seed: every number of their tables that is a mean over seeds has an interval.
    for table in one.all().iter().filter(|table| table.position("seeds").is_some()) {
        let estimates = table.columns.iter().filter(|column| table.position(&format!("{}_low", column.name)).is_some()).count();
        assert!(estimates > 0, "{}", table.name);
    }
}

#[test]
fn an_interval_has_its_number_between_its_ends() {
    for table in report().all() {
        for row in &table.rows {
            for column in &table.columns {
                if let (Some((low, high)), Some(x)) = (table.interval(row, &column.name), table.value(row, &column.name).number()) {
                    assert!(low <= x + 1e-9 && x <= high + 1e-9, "{}.{}: {low} <= {x} <= {high}", table.name, column.name);
                }
            }
        }
    }
}

#[test]
fn a_verdict_is_the_same_or_undecided_for_any_number_of_draws_and_any_seed() {
    let verdicts = |tables: &Tables| -> BTreeMap<String, String> {
        let judged = judging::judge(tables).expect("the tables are there");
        judged.into_iter().map(|(_, j)| (format!("{}: {}", j.document, j.claim), j.verdict.words().to_owned())).collect()
    };
    let known = verdicts(report());
    let others = [(5, 1), (200, 1), (500, 2), (500, 3), (500, 4), (2000, 5)];
    for (seeds, seed) in others {
        let here = verdicts(&run(seeds, seed));
        assert_eq!(here.len(), known.len());
        let mut undecided = 0;
        for (claim, verdict) in &here {
            undecided += usize::from(verdict == "undecided");
            assert!(
                verdict == "undecided" || *verdict == known[claim],
                "{seeds} draws, seed {seed}: {claim} {verdict} instead of {}",
                known[claim]
            );
        }
        assert!(seeds < 2000 || undecided < 4, "{undecided} are undecided with {seeds} draws");
    }
}

#[test]
fn every_title_and_caption_holds_of_its_table() {
    for (figure, checks) in checks(report()).unwrap() {
        assert!(!checks.is_empty(), "{figure} says nothing that could be wrong");
        for check in checks {
            assert!(check.holds, "{figure} says: {}", check.says);
        }
    }
}

/// The table with every number made another one.
fn changed(table: &Table, by: fn(f64) -> f64) -> Table {
    let mut other = table.clone();
    for value in other.rows.iter_mut().flatten() {
        if let Value::Number(x) = value {
            *x = by(*x);
        }
    }
    other
}

#[test]
fn a_title_that_its_table_does_not_bear_out_is_not_set() {
    // What was large is small and what rose falls; everything is alike, or nothing; everything is large.
    let ways: [fn(f64) -> f64; 4] = [|x| 1.0 - 3.0 * x, |_| 0.5, |_| 0.0, |x| x + 100.0];
    let mut caught: BTreeMap<String, bool> = BTreeMap::new();
    for by in ways {
        let mut broken = report().clone();
        report().all().iter().for_each(|table| broken.put(changed(table, by)));
        for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.is_in(report())) {
            let before = experiment.figures(report()).unwrap();
            let names: Vec<String> = before.iter().map(|drawn| drawn.figure.name.clone()).collect();
            // A table that cannot be drawn at all is refused, which is as good.
            let Ok(after) = experiment.figures(&broken) else {
                caught.extend(names.into_iter().map(|name| (name, true)));
                continue;
            };
            for (drawn, before) in after.into_iter().zip(before) {
                let title = &drawn.checks[0];
                assert!(title.holds || drawn.figure.title != title.says, "{} says what does not hold", drawn.figure.name);
                // A title that counts says another number.
                *caught.entry(drawn.figure.name).or_default() |= !title.holds || title.says != before.checks[0].says;
            }
        }
    }
    let blind: Vec<&String> = caught.iter().filter(|(_, caught)| !**caught).map(|(name, _)| name).collect();
    assert!(blind.is_empty(), "titles that hold of any table: {blind:?}");
    assert!(caught.len() > 25);
}
