//! The command as people use it: what it prints and writes, and how it refuses.

mod common;

use common::{assert_same, command, files, named, refused, regard, works};
use std::path::Path;

#[test]
fn sweep_writes_the_documents_files_and_prints_its_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let text = works(&["sweep"], dir.path());
    for number in ["0.9942", "0.3680", "0.02960", "1.726"] {
        assert!(text.contains(number), "{text}");
    }
    let results = dir.path().join("results");
    assert_eq!(named(&results, ".csv"), ["attention_sweep_results.csv", "attention_sweep_weights.csv"]);
    assert_eq!(named(&results, ".png"), ["attention_heatmap_gallery.png", "attention_sweep.png", "gradient_norms_vs_dk.png"]);
    assert_eq!(named(&results, ".svg").len(), 3);
    let csv = String::from_utf8(files(&results)["attention_sweep_results.csv"].clone()).unwrap();
    assert!(
        csv.contains("# command: regard lab sweep --d-k 4,16,64,256 --seq 8 --seeds 1 --seed 42 --numbers pytorch --loss mean-square\n")
    );
}

#[test]
fn robustness_judges_the_claims() {
    let dir = tempfile::tempdir().unwrap();
    let text = works(&["robustness", "--seeds", "500", "--out", "r"], dir.path());
    assert!(text.contains("attention_robustness_summary") && text.contains("one draw") && text.contains("illustrative"), "{text}");
    assert_eq!(
        named(&dir.path().join("r"), ".csv"),
        ["attention_robustness_rule.csv", "attention_robustness_summary.csv", "published_claims.csv"]
    );
    // Other cells than the documents': nothing to judge.
    works(&["robustness", "--seeds", "20", "--d-k", "8", "--seq", "6", "--out", "other", "--quiet"], dir.path());
    assert_eq!(named(&dir.path().join("other"), ".csv"), ["attention_robustness_rule.csv", "attention_robustness_summary.csv"]);
}

#[test]
fn the_other_experiments_write_their_tables_and_figures() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, tables, figures) in [
        (&["entropy", "--seeds", "20"][..], &["attention_entropy", "attention_entropy_row"][..], &["attention_entropy"][..]),
        (
            &["patterns", "--timed-seq", "64,128,256"],
            &["attention_empty_rows", "attention_patterns", "attention_patterns_maps", "patterns_exponents", "patterns_time"],
            &["attention_pattern_cost", "attention_patterns"],
        ),
        (&["heads", "--seeds", "20"], &["head_diversity", "head_maps", "head_sharpness"], &["head_maps", "head_similarity"]),
        (
            &["checks", "--seeds", "20"],
            &["check_gradient_test", "check_growth", "check_masking", "check_output_width", "check_rank"],
            &["attention_checks"],
        ),
        (&["overflow", "--seeds", "20"], &["overflow_rows", "overflow_shares"], &["overflow"]),
        (&["flat-map", "--seeds", "20"], &["flat_map", "flat_map_weights"], &["flat_map"]),
        (&["linear-region", "--seeds", "20"], &["linear_region", "linear_region_spread"], &["linear_region"]),
        (&["flash", "--seq", "64,128"], &["flash_memory"], &["flash_memory"]),
        (&["bench", "--seq", "64", "--seconds", "0.01"], &["bench"], &[]),
    ] {
        let out = arguments[0];
        let mut all = arguments.to_vec();
        all.extend(["--out", out]);
        let text = works(&all, dir.path());
        let folder = dir.path().join(out);
        let csv: Vec<String> = named(&folder, ".csv").into_iter().filter(|name| name != "published_claims.csv").collect();
        assert_eq!(csv, tables.iter().map(|t| format!("{t}.csv")).collect::<Vec<_>>());
        assert_eq!(named(&folder, ".svg"), figures.iter().map(|f| format!("{f}.svg")).collect::<Vec<_>>());
        assert!(text.contains(tables[0]), "{text}");
    }
}

#[test]
fn parity_says_when_pytorch_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(&["parity"], dir.path()).env("PATH", dir.path()).env_remove("VIRTUAL_ENV").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && message.contains("no Python with PyTorch was found") && message.contains("every comparison holds"),
        "{message}"
    );
    assert!(String::from_utf8(output.stdout).unwrap().contains("causal_square"));
    refused(&["parity", "--python", "/does/not/exist"], dir.path(), "cannot import torch");
}

/// Programs named `python` in the current directory, below `bin` and in it, which leave a file when they are started.
#[cfg(unix)]
fn planted_pythons(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir(folder.join("bin")).unwrap();
    for name in ["bin/python", "python", "python3"] {
        std::fs::write(folder.join(name), format!("#!/bin/sh\ntouch '{}'\n", folder.join("started").display())).unwrap();
        std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
#[cfg(unix)]
fn no_program_of_the_current_directory_is_started() {
    let dir = tempfile::tempdir().unwrap();
    planted_pythons(dir.path());
    for environment in ["", ".", "bin/.."] {
        let output =
            command(&["parity", "--quiet"], dir.path()).env("PATH", "/does/not/exist").env("VIRTUAL_ENV", environment).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let _ = command(&["learn", "check", "1", "--plain"], dir.path())
            .env("PATH", "/does/not/exist")
            .env("VIRTUAL_ENV", environment)
            .output()
            .unwrap();
        assert!(!dir.path().join("started").exists(), "VIRTUAL_ENV={environment:?} starts a program of the current directory");
    }
}

/// A user with this limit of processes and threads; `None` where that cannot be arranged.
#[cfg(target_os = "linux")]
fn with_few_threads(limit: usize, arguments: &[&str]) -> Option<std::process::Output> {
    let run = |arguments: &[&str]| {
        let script = format!("ulimit -u {limit} && cd / && exec timeout -s KILL 20 setpriv --reuid=65533 --clear-groups \"$@\"");
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_regard")]).args(arguments).output().ok()
    };
    if !run(&["--version"]).is_some_and(|output| output.status.success()) {
        eprintln!("SKIPPED: this needs root, bash, setpriv, and a program that every user can run");
        return None;
    }
    run(arguments)
}

#[test]
#[cfg(target_os = "linux")]
fn threads_that_cannot_be_started_are_an_error() {
    for (limit, arguments, words) in [
        (2, &["serve", "--no-open", "--threads", "8"][..], "cannot start 8 threads"),
        (2, &["serve", "--no-open", "--threads", "1"], "cannot "),
        (3, &["serve", "--no-open", "--threads", "1", "--quiet"], "cannot "),
        (2, &["look", "--out", "/tmp/does/not/exist", "--threads", "8"], "cannot start 8 threads"),
    ] {
        let Some(output) = with_few_threads(limit, arguments) else { return };
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{limit} {arguments:?}: {message}");
        assert!(message.contains(words) && !message.contains("panicked"), "{limit} {arguments:?}: {message}");
    }
}

#[test]
fn json_is_all_that_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let tables: serde_json::Value = serde_json::from_str(&works(&["sweep", "--json", "--d-k", "16"], dir.path())).unwrap();
    assert_eq!(tables[0]["name"], "attention_sweep_results");
    assert_eq!(tables[0]["rows"][1]["scaled"], true);
    assert!((tables[0]["rows"][1]["mean_entropy"].as_f64().unwrap() - 1.517427).abs() < 2e-6);
}

#[test]
fn quiet_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let output = regard(&["sweep", "--quiet"], dir.path());
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
}

#[test]
fn a_report_can_be_made_again_from_its_tables_and_leaves_other_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("report");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("notes.txt"), "mine").unwrap();
    std::fs::write(out.join("mine.csv"), "a,b\n1,2\n").unwrap();
    works(&["report", "--seeds", "200", "--no-timing", "--threads", "1"], dir.path());
    let first = files(&out);
    assert!(first.len() > 40 && first["notes.txt"] == b"mine");
    let page = String::from_utf8(first["index.html"].clone()).unwrap();
    let page = page.replace("<link rel=\"icon\" href=\"data:,\">", "");
    for request in ["src=\"http", "href=\"http", "@import", "url(http", "fetch(", "<link"] {
        assert!(!page.contains(request), "the page asks for something: {request}");
    }
    // The same from its tables, in place and elsewhere; and by running again on another number of threads.
    works(&["report", "--from", "report"], dir.path());
    assert_same(&first, &files(&out), "the report again");
    works(&["report", "--from", "report", "--out", "elsewhere"], dir.path());
    let elsewhere = files(&dir.path().join("elsewhere"));
    assert!(elsewhere.iter().all(|(name, bytes)| first[name] == *bytes) && elsewhere.len() == first.len() - 2);
    works(&["report", "--seeds", "200", "--no-timing", "--threads", "3"], dir.path());
    assert_same(&first, &files(&out), "the report again");
}

#[test]
fn bad_arguments_get_one_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        (&["sweep", "--d-k", "0"][..], "invalid d_k: 0; it must be from 1 to 4096"),
        (&["sweep", "--d-k", ""], "d_k is an empty list"),
        (&["sweep", "--d-k", ","], "d_k is an empty list"),
        (&["sweep", "--d-k", "4,x"], "\"x\" is not a whole number"),
        (&["sweep", "--seeds", "0"], "invalid seeds: 0"),
        (&["sweep", "--seeds", "-3"], "-3"),
        (&["sweep", "--loss", "nothing"], "nothing"),
        (&["sweep", "--threads", "0"], "threads = 0"),
        (&["robustness", "--seq", ""], "seq is an empty list"),
        (&["entropy", "--d-k", "5000"], "invalid d_k: 5000"),
        (&["heads", "--heads", "3"], "invalid heads: 3"),
        (&["patterns", "--block", "0"], "invalid block: 0"),
        (&["checks", "--d-k", "0"], "invalid d_k: 0"),
        (&["bench", "--heads", "0"], "invalid heads: 0"),
        (&["bench", "--heads", "8", "--kv-heads", "3"], "invalid kv_heads: 3"),
        (&["report", "--seeds", "1"], "invalid seeds: 1"),
        (&["report", "--from", "nowhere"], "cannot read nowhere"),
        (&["nonsense"], "nonsense"),
        (&["sweep", "--nonsense"], "--nonsense"),
    ] {
        refused(arguments, dir.path(), words);
    }
    std::fs::write(dir.path().join("file"), "").unwrap();
    refused(&["sweep", "--out", "file"], dir.path(), "cannot write into file");
    refused(&["report", "--out", "file/below"], dir.path(), "cannot write into file/below");
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    refused(&["report", "--from", "empty"], dir.path(), "empty has no");
}

#[test]
fn a_file_of_somebody_else_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("attention_sweep_results.csv"), "mine").unwrap();
    refused(&["sweep", "--out", "."], dir.path(), "was not written by regard");
    assert_eq!(files(dir.path())["attention_sweep_results.csv"], b"mine");
}

#[test]
fn a_damaged_table_is_named() {
    let dir = tempfile::tempdir().unwrap();
    works(&["sweep", "--quiet", "--out", "r"], dir.path());
    std::fs::write(dir.path().join("r/attention_sweep_results.csv"), "# caption: x\na,b\n1,2,3\n").unwrap();
    refused(&["report", "--from", "r"], dir.path(), "attention_sweep_results.csv was changed since regard wrote it");
}

#[test]
fn help_has_an_example_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["sweep", "robustness", "entropy", "patterns", "heads", "checks", "parity", "bench"] {
        let (help, old) = (works(&["lab", command, "--help"], dir.path()), works(&[command, "--help"], dir.path()));
        assert!(help.contains("Example") && help.contains(&format!("regard lab {command}")), "{help}");
        assert_eq!(help.replace("regard lab ", "regard "), old.replace("regard lab ", "regard "), "the old name is the same command");
    }
    for command in ["report", "plot", "serve", "judge", "look", "train", "merge", "attend", "eval", "generate"] {
        let help = works(&[command, "--help"], dir.path());
        assert!(help.contains("Example") && help.contains(&format!("regard {command}")), "{help}");
    }
}

#[test]
fn the_start_page_and_the_help_list_the_commands_in_groups() {
    let dir = tempfile::tempdir().unwrap();
    let start = works(&[], dir.path());
    for words in ["Start here:\n  report ", "  serve ", "  learn ", "  look ", "  train ", "Models: inspect, tokens", "regard --help"] {
        assert!(start.contains(words), "{words:?}: {start}");
    }
    assert!(start.lines().count() < 25, "{start}");
    let help = works(&["--help"], dir.path());
    for group in
        ["Start here:\n  report", "Models:\n  inspect", "Experiments:\n  lab", "Files and machines:\n  plot", "Options:\n  -h, --help"]
    {
        assert!(help.contains(group), "{group:?}: {help}");
    }
    // Every command is listed once, with what it does; experiments are below `lab`.
    let listed: Vec<&str> =
        help.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase())).collect();
    let names: Vec<&str> = listed.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names.len(), 23, "{names:?}");
    assert!(listed.iter().all(|line| line.split_whitespace().count() > 3), "{help}");
    assert!(!names.contains(&"sweep") && names.contains(&"bench"), "{names:?}");
    let experiments = works(&["lab"], dir.path());
    for name in ["sweep", "robustness", "trained-heads", "flash"] {
        assert!(experiments.contains(&format!("\n  {name} ")), "{name}: {experiments}");
    }
    // Hidden or not, every command has a help that names it.
    for name in names.iter().copied().chain(["sweep", "masks", "ablate-scale"]) {
        assert!(works(&[name, "--help"], dir.path()).contains("Usage: regard"), "{name}");
    }
}

#[test]
fn a_misspelt_command_gets_a_suggestion() {
    let dir = tempfile::tempdir().unwrap();
    refused(&["lok"], dir.path(), "unrecognized subcommand 'lok'; some similar subcommands exist: 'plot', 'look'");
    refused(&["look", "--edit", "x"], dir.path(), "'--edits'");
    refused(&["lab", "swep"], dir.path(), "'sweep'");
}

#[test]
fn old_names_of_options_still_work() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["surgery", "L0.H0=zero", "--texts", "2", "--tokens", "16", "--json"];
    let by = |name: &str| works(&[&words[..], &[name]].concat(), dir.path());
    assert_eq!(by("--ways"), by("--ablations"));
    assert!(!works(&["surgery", "--help"], dir.path()).contains("--ways"));
}

/// A NumPy file of float32.
fn write_npy(path: &Path, shape: &[usize], value: impl Fn(usize) -> f32) {
    let shape_text: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape_text}), }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend((0..shape.iter().product()).flat_map(|i| value(i).to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn plot_draws_weights_with_their_tokens_and_statistics() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("w.csv"), "1,0,0\n0.5,0.5,0\n0.25,0.25,0.5\n").unwrap();
    let text = works(&["plot", "w.csv", "--tokens", "the,cat,sat", "--out", "p"], dir.path());
    for column in ["max_weight", "entropy", "diagonal_mass", "local_vs_global"] {
        assert!(text.contains(column), "{text}");
    }
    let out = dir.path().join("p");
    assert_eq!(named(&out, "n"), [".regard.json"]);
    let svg = String::from_utf8(files(&out)["attention_plot.svg"].clone()).unwrap();
    assert!(svg.contains("cat") && svg.contains("sat"));
    assert!(files(&out)["attention_plot.png"].starts_with(b"\x89PNG"));
    let csv = String::from_utf8(files(&out)["attention_plot.csv"].clone()).unwrap();
    assert!(csv.contains("0.6666666666666"), "the mean diagonal and the mean maximum are 2/3: {csv}");
}

#[test]
fn plot_pools_a_long_pattern_made_of_queries_and_keys() {
    let dir = tempfile::tempdir().unwrap();
    let number = |i: usize| ((i * 7919) % 1013) as f32 / 506.0 - 1.0;
    write_npy(&dir.path().join("q.npy"), &[2, 300, 16], number);
    write_npy(&dir.path().join("k.npy"), &[2, 300, 16], |i| number(i + 5));
    works(&["plot", "q.npy", "--keys", "k.npy", "--causal", "--pool", "40", "--head", "1", "--quiet"], dir.path());
    assert_eq!(named(&dir.path().join("results"), "g"), ["attention_plot.png", "attention_plot.svg"]);
    let whole = works(&["plot", "q.npy", "--keys", "k.npy", "--causal", "--out", "both"], dir.path());
    assert_eq!(whole.lines().filter(|line| line.trim_start().starts_with(['0', '1'])).count(), 2, "one row per head: {whole}");
}

#[test]
fn plot_refuses_what_it_cannot_draw() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("w.csv"), "1,0\n0.5,0.5\n").unwrap();
    std::fs::write(dir.path().join("nan.csv"), "1,0\nNaN,0.5\n").unwrap();
    std::fs::write(dir.path().join("ragged.csv"), "1,0\n0.5\n").unwrap();
    write_npy(&dir.path().join("q.npy"), &[10, 8], |i| i as f32);
    write_npy(&dir.path().join("k.npy"), &[10, 6], |i| i as f32);
    write_npy(&dir.path().join("nan.npy"), &[4, 4], |_| f32::NAN);
    for (arguments, words) in [
        (&["plot", "w.csv", "--tokens", "a,b,c"][..], "3 tokens were given"),
        (&["plot", "w.csv", "--head", "4"], "no such head: 4"),
        (&["plot", "w.csv", "--pool", "0"], "pool"),
        (&["plot", "nan.csv"], "nan.csv"),
        (&["plot", "nan.npy"], "nan.npy"),
        (&["plot", "ragged.csv"], "ragged.csv"),
        (&["plot", "nowhere.npy"], "nowhere.npy"),
        (&["plot", "q.npy", "--keys", "k.npy"], "8"),
        (&["plot"], "FILE"),
    ] {
        refused(arguments, dir.path(), words);
    }
}
