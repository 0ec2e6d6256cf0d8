//! The stored results of trainings: what they must show, and what the page makes of them.

use super::{report, table};
use regard_lab::report::render;
use regard_lab::{Table, Tables, Value};
use std::collections::BTreeMap;

fn number(name: &str, at: &[(&str, Value)], column: &str) -> f64 {
    let table = table(name);
    let here = |row: &&Vec<Value>| at.iter().all(|(column, value)| table.value(row, column) == value);
    table.number(table.rows.iter().find(here).unwrap_or_else(|| panic!("{name} has no row with {at:?}")), column)
}

fn mask(variant: &str, column: &str) -> f64 {
    number("mask_training", &[("variant", variant.into())], column)
}

/// The experiments that train.
const LEARNT: [&str; 8] = ["mask-training", "scale-training", "trained-heads", "pairs", "positions", "nearest", "multi-query", "dropout"];

#[test]
fn every_training_was_run_with_five_seeds_and_more() {
    for (name, column) in [
        ("mask_training", "seeds"),
        ("scale_training", "seeds"),
        ("scale_training_paired", "seeds"),
        ("trained_heads_likeness", "seeds"),
        ("pairs_results", "seeds"),
        ("positions", "seeds"),
        ("nearest", "seeds"),
        ("multi_query", "seeds"),
        ("dropout_training", "seeds"),
    ] {
        let table = table(name);
        assert!(!table.rows.is_empty() && table.rows.iter().all(|row| table.number(row, column) >= 5.0), "{name}");
    }
}

#[test]
fn an_honest_model_is_in_use_what_it_is_in_validation() {
    for honest in ["causal", "right to left"] {
        assert_eq!((mask(honest, "leak_before"), mask(honest, "leak")), (0.0, 0.0), "{honest}");
        assert!((mask(honest, "prefix_only_loss") - mask(honest, "validation_loss")).abs() < 1e-3, "{honest}");
    }
    assert_eq!(mask("causal", "causal_mask_loss"), mask("causal", "validation_loss"));
    let baseline = |name: &str| number("mask_training_baselines", &[("name", name.into())], "value");
    let loss = mask("causal", "validation_loss");
    assert!(baseline("entropy") < loss && loss < baseline("bigram"), "{loss}");
}

#[test]
fn a_cheater_is_perfect_in_training_and_in_validation_and_fails_in_use() {
    let causal = mask("causal", "prefix_only_loss");
    for cheater in ["reverse", "strictly future", "none"] {
        assert!(mask(cheater, "validation_loss") < 0.4 * mask("causal", "validation_loss"), "{cheater}");
        assert!(mask(cheater, "leak") > 0.5, "{cheater}");
        assert!(mask(cheater, "prefix_only_loss") > 1.5 * causal, "{cheater}");
        assert!(mask(cheater, "real_words") < mask("causal", "real_words"), "{cheater}");
    }
    assert!(mask("reverse", "placeholder_q") > 0.9);
}

#[test]
fn weights_are_not_what_the_answer_depends_on() {
    for task in ["reverse", "number-words"] {
        let get = |column: &str| number("pairs_results", &[("task", task.into())], column);
        assert!(get("right") > 0.9, "{task}: {}", get("right"));
        assert!(get("all_permuted") < 0.7 * get("right"), "{task}: shuffled weights still serve");
        assert!(get("influence") > 2.0 * get("even"), "{task}: the answer does not depend on its own token");
    }
    let maps = table("pairs_maps");
    let mut sums = BTreeMap::new();
    for row in &maps.rows {
        let place = ["block", "head", "query"].map(|column| maps.number(row, column) as usize);
        *sums.entry((maps.text(row, "task").to_owned(), place)).or_insert(0.0) += maps.number(row, "weight");
    }
    // Weights are rounded to three decimals.
    assert!(sums.values().all(|sum: &f64| (sum - 1.0).abs() < 0.01));
}

#[test]
fn heads_part_as_the_model_learns() {
    let likeness = table("trained_heads_likeness");
    let last = likeness.rows.iter().map(|row| likeness.number(row, "step")).fold(0.0, f64::max) as usize;
    for block in 0..2usize {
        let get = |step: usize, column: &str| {
            number("trained_heads_likeness", &[("order", "pre-norm".into()), ("step", step.into()), ("block", block.into())], column)
        };
        assert!(get(last, "loss") < 0.6 * get(0, "loss"));
        assert!(
            get(last, "centred_cosine") < get(0, "centred_cosine") && get(last, "jensen_shannon") > get(0, "jensen_shannon"),
            "block {block}"
        );
    }
}

#[test]
fn a_model_without_positions_writes_nothing_backwards() {
    let get = |kind: &str, column: &str| number("positions", &[("positions", kind.into())], column);
    assert!(get("none", "exact_match") < 0.02 && get("none", "moved") < 1e-5);
    for kind in ["learned", "sinusoidal", "rotary"] {
        assert!(get(kind, "moved") > 1e-3 && get(kind, "right") > get("none", "right"), "{kind}");
    }
}

#[test]
fn fewer_keys_cost_more() {
    let nearest = table("nearest");
    let added: Vec<f64> = nearest.rows.iter().map(|row| nearest.number(row, "added")).collect();
    assert!(added[0] > added[2] && added.last().unwrap().abs() < 1e-4, "{added:?}");
}

#[test]
fn the_page_says_what_is_stored_and_how_to_make_it_again() {
    let (page, figures) = render(report()).unwrap();
    for id in LEARNT {
        let section = page.sections.iter().find(|s| s.id == id).unwrap_or_else(|| panic!("no section {id}"));
        assert!(section.notes.iter().any(|n| n.contains("Stored result (regard ")), "{id}");
        assert!(!section.figures.is_empty() && section.figures.iter().all(|f| figures.contains(f)), "{id}");
        assert!(section.tables.iter().all(|t| !t.table.rows.is_empty()), "{id}");
    }
    assert!(page.html().unwrap().contains("<code>regard report --train</code>"), "the methods box says how to repeat trainings");
    // What was made of models that are not here names the command that made it, and nothing that a report could do.
    let section = page.sections.iter().find(|s| s.id == "real-heads").expect("a section");
    let note = section.notes.iter().find(|n| n.contains("Stored result")).expect("a note");
    assert!(note.contains("`regard lab real-heads --model ") && !note.contains("--train"), "{note}");
    // Names of heads are words: 4.10 as a number would be another head.
    for name in ["real_kinds", "real_relations", "real_screen"] {
        let table = table(name);
        assert!(table.rows.iter().all(|row| table.text(row, "head").starts_with('L')), "{name}");
    }
    // What was trained for the report is not called stored.
    let mut fresh = report().clone();
    for table in report().all() {
        let mut table = table.clone();
        table.origin.retain(|(key, _)| key != "stored");
        fresh.put(table);
    }
    let (page, _) = render(&fresh).unwrap();
    assert!(page.sections.iter().all(|s| s.notes.iter().all(|n| !n.contains("Stored result"))));
}

#[test]
fn a_report_of_a_version_that_did_not_train_is_still_drawn() {
    let learnt = ["mask_", "scale_", "trained_", "pairs_", "positions", "nearest", "multi_", "dropout_"];
    let older: Vec<Table> = report().all().iter().filter(|t| learnt.iter().all(|l| !t.name.starts_with(l))).cloned().collect();
    let (page, _) = render(&Tables::from(older)).unwrap();
    let has = |id: &str| page.sections.iter().any(|section| section.id == id);
    assert!(has("heads") && LEARNT.iter().all(|id| !has(id)));
}
