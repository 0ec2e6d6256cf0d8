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

#[test]
fn an_honest_model_is_in_use_what_it_is_in_validation() {
    for honest in ["causal", "right to left"] {
        assert_eq!((mask(honest, "leak_before"), mask(honest, "leak")), (0.0, 0.0), "{honest}");
        assert!((mask(honest, "prefix_only_loss") - mask(honest, "validation_loss")).abs() < 1e-4, "{honest}");
    }
    assert_eq!(mask("causal", "causal_mask_loss"), mask("causal", "validation_loss"));
    let entropy = number("mask_training_baselines", &[("name", "entropy".into())], "value");
    let five_gram = number("mask_training_baselines", &[("name", "five_gram".into())], "value");
    let loss = mask("causal", "validation_loss");
    assert!(entropy < loss && loss < five_gram, "{entropy} {loss} {five_gram}");
}

#[test]
fn a_cheater_is_perfect_in_training_and_in_validation_and_fails_in_use() {
    let causal = mask("causal", "prefix_only_loss");
    for cheater in ["reverse", "strictly future", "none"] {
        assert!(mask(cheater, "train_loss") < 0.1 && mask(cheater, "validation_loss") < 0.1, "{cheater}");
        assert!(mask(cheater, "leak") > 0.5, "{cheater}");
        assert!(mask(cheater, "prefix_only_loss") > 2.0 * causal, "{cheater}");
        assert!(mask(cheater, "real_words") < 0.8 * mask("causal", "real_words"), "{cheater}");
    }
    assert!(mask("reverse", "placeholder_q") > 0.99);
    // Sees the future but not the target: no copy, and of no use either.
    assert!(mask("future without target", "validation_loss") > 0.1 && mask("future without target", "prefix_only_loss") > 1.5 * causal);
}

#[test]
fn pairs_are_learnt_and_reversal_reads_the_anti_diagonal() {
    for task in ["reverse", "number-words"] {
        let right = number("pairs_results", &[("task", task.into())], "exact_match");
        assert!(right > 0.99, "{task}: {right}");
    }
    let tokens = |task: &str, side: &str| {
        let all = table("pairs_tokens");
        all.rows_where("task", task).filter(|row| all.text(row, "side") == side).count()
    };
    // Even weights would have one part in as many as are read.
    assert!(number("pairs_results", &[("task", "reverse".into())], "anti_diagonal") > 4.0 / tokens("reverse", "read") as f64);
    let maps = table("pairs_maps");
    for task in ["reverse", "number-words"] {
        let mut sums = BTreeMap::new();
        for row in maps.rows_where("task", task) {
            let (sum, keys) = sums.entry(["block", "head", "query"].map(|column| maps.number(row, column) as usize)).or_insert((0.0, 0));
            *sum += maps.number(row, "weight");
            *keys += 1;
        }
        assert_eq!(sums.len(), table("pairs_heads").rows_where("task", task).count() * tokens(task, "written"), "{task}");
        for (place, (sum, keys)) in sums {
            // Weights are rounded to three decimals.
            assert!((sum - 1.0f64).abs() < 0.01 && keys == tokens(task, "read"), "{task}, {place:?}: {keys} weights sum to {sum}");
        }
    }
}

#[test]
fn heads_part_as_the_model_learns() {
    let likeness = table("trained_heads_likeness");
    let last = likeness.rows.iter().map(|row| likeness.number(row, "step")).fold(0.0, f64::max) as usize;
    for block in 0..2usize {
        let get = |step: usize, column: &str| number("trained_heads_likeness", &[("step", step.into()), ("block", block.into())], column);
        assert!(get(last, "loss") < 0.3 * get(0, "loss"));
        assert!(get(0, "centred_cosine") > 0.8 && get(0, "jensen_shannon") < 0.05, "block {block}: untrained heads are alike");
        assert!(get(last, "centred_cosine") < get(0, "centred_cosine") - 0.1 && get(last, "jensen_shannon") > 0.05, "block {block}");
    }
}

#[test]
fn the_page_says_what_is_stored_and_how_to_make_it_again() {
    let (page, figures) = render(report()).unwrap();
    for id in ["mask-training", "scale-training", "trained-heads", "pairs"] {
        let section = page.sections.iter().find(|s| s.id == id).unwrap_or_else(|| panic!("no section {id}"));
        assert!(section.notes.iter().any(|n| n.contains("stored with the program") && n.contains("`regard report --train`")), "{id}");
        assert!(!section.figures.is_empty() && section.figures.iter().all(|f| figures.contains(f)), "{id}");
        assert!(section.tables.iter().all(|t| !t.table.rows.is_empty()), "{id}");
    }
    // What was trained for the report is not called stored.
    let mut fresh = report().clone();
    for table in report().all() {
        let mut table = table.clone();
        table.origin.retain(|(key, _)| key != "stored");
        fresh.put(table);
    }
    let (page, _) = render(&fresh).unwrap();
    assert!(page.sections.iter().all(|s| s.notes.iter().all(|n| !n.contains("stored with the program"))));
}

#[test]
fn a_report_of_a_version_that_did_not_train_is_still_drawn() {
    let learnt = ["mask_", "scale_", "trained_", "pairs_"];
    let older: Vec<Table> = report().all().iter().filter(|t| learnt.iter().all(|l| !t.name.starts_with(l))).cloned().collect();
    let (page, _) = render(&Tables::from(older)).unwrap();
    let has = |id: &str| page.sections.iter().any(|section| section.id == id);
    assert!(has("heads") && ["mask-training", "scale-training", "trained-heads", "pairs"].iter().all(|id| !has(id)));
}
