//! Every "by the command" of the page gives the numbers that the page shows.

use crate::first_look::{number, words};
use crate::views::{and_drawn, is_quiet, opened};
use serde_json::{Value, json};
use std::process::Command;

/// What a command line of the page prints as JSON, run by a shell in a folder of its own.
fn run(line: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_regard")).parent().expect("a folder");
    let out = if line.starts_with("regard lens") { "" } else { " --out ." };
    let output = Command::new("/bin/sh")
        .args(["-c", &format!("{line} --json --quiet{out}")])
        .current_dir(folder.path())
        .env("PATH", program)
        .output()
        .expect("a shell");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * (1.0 + b.abs())
}

#[test]
fn each_view_names_the_command_that_gives_its_numbers() {
    let Some((served, chrome)) = opened(&[("l", "1"), ("h", "2"), ("e", "L0.H1=zero"), ("q", "9"), ("k", "4")]) else { return };
    let line = || words(&chrome, "#same-command");
    let ask = |path: &str| {
        chrome.eval(&format!(
            "Promise.all([import('/state.js'), import('/api.js')])
                .then(([{{ runs }}, {{ ask }}]) => ask(`/api/run/${{runs.B.run}}/{path}`))"
        ))
    };
    let weights = || {
        chrome.eval(
            "Promise.all([import('/state.js'), import('/draw.js')])
                .then(([{ runs }, { rowsOfHead }]) => rowsOfHead(1, 2, 9, 1, runs.B.tokens.length))
                .then((row) => Array.from(row))",
        )
    };
    for (key, view) in [("1", "heads"), ("2", "head"), ("3", "map"), ("4", "neuron"), ("5", "lens"), ("6", "lesson")] {
        chrome.eval("document.activeElement.blur()");
        if view != "heads" {
            and_drawn(&chrome, |chrome| chrome.key(key));
        }
        if view == "lens" {
            // Around a token in the middle the last column is not the end of the text.
            assert_eq!(chrome.eval("document.getElementById('same').hidden"), json!(true));
            and_drawn(&chrome, |chrome| {
                chrome.eval("import('/state.js').then(({ go }) => go({ queries: '' }))");
            });
        }
        let line = line();
        assert!(line.contains("--edits L0.H1=zero"), "{view}: {line}");
        let tables = run(&line);
        let rows = |name: &str| {
            let table = tables.as_array().expect("tables").iter().find(|table| table["name"] == name);
            table.unwrap_or_else(|| panic!("{line} has no table {name}"))["rows"].as_array().expect("rows").clone()
        };
        let row_of = |query: u64| -> Vec<f64> {
            let weights = rows("head_1_2").into_iter().filter(|row| row["query"] == query).map(|row| number(&row["weight"]));
            weights.filter(|x| *x != 0.0).collect()
        };
        match view {
            "heads" => {
                let shown = ask("heads?layer=1");
                let rows = rows("look");
                let of_layer = rows.iter().filter(|row| row["layer"] == 1);
                for (row, shown) in of_layer.zip(shown.as_array().expect("heads")) {
                    assert!(near(number(&row["entropy"]), number(&shown["entropy"])), "{line}: {row} is not {shown}");
                }
            }
            "head" | "map" => {
                let shown: Vec<f64> = weights().as_array().expect("weights").iter().map(number).filter(|x| *x != 0.0).collect();
                let printed: Vec<f64> = row_of(9);
                assert_eq!(shown.len(), printed.len(), "{line}: {shown:?}, {printed:?}");
                assert!(shown.iter().zip(&printed).all(|(a, b)| near(*a, *b)), "{line}: {shown:?} is not {printed:?}");
            }
            "neuron" => {
                assert!(line.ends_with("--neuron 9,4"), "{line}");
                let shown = ask("neuron?layer=1&head=2&query=9&key=4");
                let sum = rows("neuron").last().expect("a coordinate")["sum"].clone();
                assert!(near(number(&sum), number(shown["sums"].as_array().and_then(|sums| sums.last()).expect("a sum"))), "{line}");
            }
            "lens" => {
                let shown = chrome.eval(
                    "Array.from(document.querySelectorAll('table.lens tbody tr'),
                        (row) => Number([...row.querySelectorAll('td button')].at(-1).dataset.value))",
                );
                let rows = tables[0]["rows"].as_array().expect("rows").clone();
                let printed: Vec<f64> = rows.iter().rev().map(|row| number(&row["probability"])).collect();
                let shown: Vec<f64> = shown.as_array().expect("probabilities").iter().map(number).collect();
                assert!(shown.len() == printed.len() && shown.iter().zip(&printed).all(|(a, b)| near(*a, *b)), "{line}: {shown:?}");
            }
            _ => {
                let steps = ask("steps?layer=1&head=2");
                let last = steps["steps"]["weights"].as_array().and_then(|rows| rows.last()).expect("a row").clone();
                let shown: Vec<f64> = last.as_array().expect("weights").iter().map(number).filter(|x| *x != 0.0).collect();
                let printed: Vec<f64> = row_of(11);
                assert!(
                    shown.len() == printed.len() && shown.iter().zip(&printed).all(|(a, b)| near(*a, *b)),
                    "{line}: {shown:?}, {printed:?}"
                );
            }
        }
    }
    // A, the model as it is, has no edits in its command.
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.getElementById('side-A').click()");
    });
    assert!(!line().contains("--edits"), "{}", line());
    assert_eq!(chrome.eval("document.getElementById('same').hidden"), json!(false));
    is_quiet(&served, &chrome);
}
