//! The commands that train, at sizes that take a moment: what they write, and how they refuse.

mod common;

use common::{files, refused, regard, works};
use std::collections::BTreeMap;
use std::path::Path;

/// The CSV files of a directory.
fn tables(folder: &Path) -> BTreeMap<String, String> {
    let csv = |(name, bytes): (String, Vec<u8>)| Some((name.strip_suffix(".csv")?.to_owned(), String::from_utf8(bytes).expect("UTF-8")));
    files(folder).into_iter().filter_map(csv).collect()
}

/// The names of the PNG files of a directory, in order.
fn figures(folder: &Path) -> Vec<String> {
    files(folder).into_keys().filter_map(|name| Some(name.strip_suffix(".png")?.to_owned())).collect()
}

/// A directory with a text that is just long enough for a context of 16.
fn with_text() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..200).map(|i| format!("the {} cat sees {} dogs. ", ["old", "red", "quiet"][i % 3], i % 7)).collect();
    std::fs::write(dir.path().join("text.txt"), text).unwrap();
    std::fs::write(dir.path().join("short.txt"), "a short text").unwrap();
    std::fs::write(dir.path().join("latin1.txt"), b"caf\xe9").unwrap();
    dir
}

const MODEL: [&str; 16] = [
    "--text",
    "text.txt",
    "--steps",
    "4",
    "--batch",
    "4",
    "--context",
    "16",
    "--width",
    "16",
    "--heads",
    "2",
    "--layers",
    "2",
    "--windows",
    "6",
];

/// The command with the small model.
fn small<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[command][..], &MODEL, more].concat()
}

#[test]
fn masks_writes_what_each_step_of_the_protocol_found() {
    let dir = with_text();
    let text =
        works(&small("mask-training", &["--variants", "causal,reverse,none,right-to-left", "--samples", "2", "--seeds", "2"]), dir.path());
    assert!(text.contains("mask_training: ") && text.contains("\u{201c}"), "{text}");
    let out = dir.path().join("results");
    let written = tables(&out);
    let names = ["", "_baselines", "_curves", "_paired", "_prefix", "_samples", "_seeds"].map(|part| format!("mask_training{part}"));
    // All variants that claims are about are there, but four steps teach nothing: no claim is judged by them.
    assert_eq!(written.keys().cloned().collect::<Vec<_>>(), names);
    assert_eq!(figures(&out), ["mask_training", "mask_training_use"]);
    let command = "# command: regard lab mask-training --variants causal,reverse,none,right-to-left --steps 4 --text text.txt --batch 4 \
        --context 16 \
                   --width 16 --heads 2 --layers 2 --windows 6 --seeds 2 --seed 1 --samples 2\n";
    for key in [command, "# seed: 1\n", "# simd: ", "# numbers: text.txt, "] {
        assert!(written["mask_training"].contains(key), "{}", written["mask_training"]);
    }
    assert!(!written["mask_training_baselines"].contains("entropy"), "the entropy of that text is unknown");
}

#[test]
fn an_honest_mask_leaks_nothing_and_json_says_so() {
    let dir = with_text();
    let json = works(
        &small("mask-training", &["--variants", "causal,none", "--samples", "1", "--json", "--seeds", "2", "--seed", "3"]),
        dir.path(),
    );
    let tables: serde_json::Value = serde_json::from_str(&json).expect("nothing but JSON");
    let origin = &tables[0]["origin"];
    assert!(origin["seed"] == "3" && origin["command"].as_str().unwrap().contains("--seed 3 "), "{origin}");
    let row = |i: usize| &tables[0]["rows"][i];
    assert_eq!((&row(0)["variant"], row(0)["leak"].as_f64()), (&"causal".into(), Some(0.0)));
    assert!(row(1)["variant"] == "none" && row(1)["leak"].as_f64().unwrap() > 0.0);
    let of = |column: &str| row(0)[column].as_f64().unwrap();
    assert!((of("validation_loss") - of("prefix_only_loss")).abs() < 1e-3, "{}", row(0));
}

#[test]
fn the_other_commands_write_their_tables_and_figures() {
    let dir = with_text();
    for (arguments, names, drawn) in [
        (
            small("ablate-scale", &["--head-dims", "4,8", "--seeds", "2", "--out", "o"]),
            &[
                "scale_training",
                "scale_training_curves",
                "scale_training_gradients",
                "scale_training_heads",
                "scale_training_paired",
                "scale_training_seeds",
            ][..],
            &["scale_training", "scale_training_entropy", "scale_training_saturation"][..],
        ),
        (
            small("trained-heads", &["--seeds", "2", "--out", "o"]),
            &["trained_heads_likeness", "trained_heads_maps", "trained_heads_named", "trained_heads_patterns", "trained_heads_tokens"],
            &["trained_heads", "trained_heads_one", "trained_heads_post_norm", "trained_heads_pre_norm"],
        ),
        (
            vec!["pairs", "--steps", "3", "--batch", "4", "--width", "16", "--heads", "2", "--held-out", "5", "--seeds", "2", "--out", "o"],
            &["pairs_curves", "pairs_examples", "pairs_heads", "pairs_influence", "pairs_maps", "pairs_results", "pairs_tokens"],
            &["pairs_explained", "pairs_learning", "pairs_number_words", "pairs_reverse"],
        ),
        (
            vec!["positions", "--steps", "2", "--batch", "2", "--held-out", "4", "--seeds", "2", "--out", "o"],
            &["positions", "positions_seeds"],
            &["positions"],
        ),
        (small("nearest", &["--keys", "1,4", "--draws", "3", "--seeds", "2", "--out", "o"]), &["nearest", "nearest_random"], &["nearest"]),
        (
            small("multi-query", &["--kv-heads", "2,1", "--seeds", "2", "--out", "o"]),
            &["multi_query", "multi_query_seeds"],
            &["multi_query"],
        ),
        (
            small("dropout", &["--rates", "0,0.5", "--draws", "9", "--characters", "3000", "--seeds", "2", "--out", "o"]),
            &["dropout_curves", "dropout_seeds", "dropout_training", "dropout_weights"],
            &["dropout_training", "dropout_weights"],
        ),
    ] {
        let text = works(&arguments, dir.path());
        let out = dir.path().join("o");
        let written: Vec<String> = tables(&out).into_keys().filter(|name| name != "published_claims").collect();
        assert_eq!(written, names, "{arguments:?}");
        assert_eq!(figures(&out), drawn, "{arguments:?}");
        assert!(names.iter().any(|name| text.contains(name)), "{text}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let dir = with_text();
    for command in [
        small("mask-training", &["--variants", "strictly-future,future-without-target", "--samples", "2", "--seeds", "2"]),
        small("ablate-scale", &["--head-dims", "16", "--seeds", "2"]),
        small("trained-heads", &["--seeds", "2"]),
        vec!["pairs", "--task", "number-words", "--steps", "3", "--batch", "8", "--width", "16", "--held-out", "5", "--seeds", "2"],
    ] {
        let run = |threads: &str, out: &str| {
            works(&[command.clone(), vec!["--threads", threads, "--out", out, "--quiet"]].concat(), dir.path());
            let found = tables(&dir.path().join(out));
            std::fs::remove_dir_all(dir.path().join(out)).unwrap();
            found
        };
        let alone = run("1", "a");
        assert!(!alone.is_empty() && alone == run("3", "b"), "{command:?}");
    }
}

/// Killed after its first training, and started again: what was finished is not trained again, and the tables are those of a run that was
/// never stopped.
#[test]
fn a_run_that_is_killed_goes_on_where_it_was() {
    let dir = with_text();
    let pairs = ["pairs", "--steps", "12", "--batch", "8", "--width", "32", "--heads", "2", "--held-out", "40"];
    for command in [
        small("mask-training", &["--variants", "causal,none", "--samples", "2"]),
        small("scale-training", &["--head-dims", "8,16"]),
        pairs.to_vec(),
    ] {
        let command = [command, vec!["--seeds", "3", "--threads", "1"]].concat();
        works(&[command.clone(), vec!["--out", "whole", "--quiet"]].concat(), dir.path());
        let unfinished = dir.path().join("stopped").join(".regard-unfinished");
        let mut process = common::command(&[command.clone(), vec!["--out", "stopped", "--quiet"]].concat(), dir.path()).spawn().unwrap();
        let parts = || {
            std::fs::read_dir(&unfinished)
                .map_or(0, |files| files.flatten().filter(|f| f.path().extension().is_some_and(|e| e == "json")).count())
        };
        while parts() == 0 && process.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        process.kill().unwrap();
        process.wait().unwrap();
        let kept = parts();
        assert!(kept > 0, "{command:?} ended before it could be killed");
        let output = regard(&[command.clone(), vec!["--out", "stopped"]].concat(), dir.path());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(&format!("resuming: {kept} finished steps")), "{said}");
        assert_eq!(tables(&dir.path().join("whole")), tables(&dir.path().join("stopped")), "{command:?}");
        assert!(!unfinished.exists(), "what is not needed any more is gone");
        for folder in ["whole", "stopped"] {
            std::fs::remove_dir_all(dir.path().join(folder)).unwrap();
        }
    }
}

#[test]
fn quiet_says_nothing() {
    let dir = with_text();
    let output = regard(&small("trained-heads", &["--quiet", "--seeds", "2"]), dir.path());
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
}

#[test]
fn bad_arguments_get_one_line_and_exit_code_2() {
    let dir = with_text();
    for (arguments, words) in [
        (&["masks", "--variants", "sideways"][..], "there is no variant \"sideways\"; there are causal, reverse, strictly-future, none"),
        (&["masks", "--variants", ""], "variants is an empty list"),
        (&["masks", "--text", "nowhere.txt"], "cannot read nowhere.txt"),
        (&["masks", "--text", "latin1.txt"], "latin1.txt is not UTF-8: invalid UTF-8 at byte 3"),
        (&["masks", "--text", "short.txt"], "give a longer text or a smaller context"),
        (&["masks", "--text", "."], ". is a directory"),
        (&["masks", "--steps", "0"], "invalid steps: 0"),
        (&["masks", "--steps", "many"], "many"),
        (&["masks", "--context", "1"], "invalid context: 1"),
        (&["masks", "--samples", "0"], "invalid samples: 0"),
        (&["masks", "--windows", "0"], "invalid windows: 0"),
        (&["masks", "--text", "text.txt", "--context", "16", "--heads", "3"], "width is 64; it must be a multiple of heads (3)"),
        (&["ablate-scale", "--head-dims", "0"], "invalid head_dims: 0"),
        (&["ablate-scale", "--head-dims", ""], "head_dims is an empty list"),
        (&["ablate-scale", "--head-dims", "4,x"], "\"x\" is not a whole number"),
        (&["ablate-scale", "--width", "0"], "invalid width: 0"),
        (&["ablate-scale", "--batch", "0"], "invalid batch: 0"),
        (&["trained-heads", "--heads", "1"], "invalid heads: 1"),
        (&["trained-heads", "--layers", "0"], "invalid layers: 0"),
        (&["pairs", "--task", "sort"], "there is no task \"sort\"; there are reverse, number-words"),
        (&["pairs", "--task", ","], "task is an empty list"),
        (&["pairs", "--held-out", "0"], "invalid held_out: 0"),
        (&["pairs", "--threads", "0", "--steps", "1", "--held-out", "1"], "threads = 0"),
        (&["report", "--train", "--from", "report"], "--train"),
    ] {
        refused(arguments, dir.path(), words);
    }
}

#[test]
fn help_teaches_with_examples() {
    let dir = tempfile::tempdir().unwrap();
    let general = works(&["lab"], dir.path());
    for command in ["mask-training", "scale-training", "trained-heads", "pairs"] {
        assert!(general.contains(command));
        let help = works(&[command, "--help"], dir.path());
        assert!(help.contains("Examples:") && help.contains(&format!("regard lab {command}")) && help.contains("--seed"), "{help}");
    }
}
