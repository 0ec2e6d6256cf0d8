//! The one list: what is in it is everywhere, and what is everywhere is in it.

use super::report;
use regard_lab::report::{files, render};
use regard_lab::{EXPERIMENTS, Table};
use std::collections::BTreeSet;
use std::path::Path;

fn experiments() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/experiments")
}

#[test]
fn every_experiment_is_one_folder_and_one_line_of_the_list() {
    let listed: BTreeSet<String> = EXPERIMENTS.iter().map(|experiment| experiment.id().replace('-', "_")).collect();
    let folders: BTreeSet<String> = std::fs::read_dir(experiments())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed, folders);
    assert_eq!(listed.len(), EXPERIMENTS.len(), "each once");
    // One line each: the module itself. The list of experiments is made of these lines.
    let source = std::fs::read_to_string(experiments().join("mod.rs")).unwrap();
    let word = |line: &str, folder: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == folder);
    let naming = |folder: &str| source.lines().filter(|line| word(line, folder)).map(str::to_owned).collect::<Vec<_>>();
    for folder in &folders {
        assert_eq!(naming(folder), [format!("pub mod {folder};")], "{folder}");
    }
    for folder in folders {
        let home = experiments().join(&folder);
        assert!(home.join("run.rs").is_file() && home.join("section.md").is_file(), "{folder}");
    }
}

#[test]
fn nothing_outside_of_its_folder_and_the_list_names_an_experiment() {
    // The opening of the page is the one place that speaks of two of them.
    let spared = ["experiments/mod.rs", "report.rs"];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let types: Vec<String> = EXPERIMENTS
        .iter()
        .map(|experiment| experiment.id().split('-').map(|word| word[..1].to_uppercase() + &word[1..]).collect::<String>() + "Config")
        .collect();
    for entry in std::fs::read_dir(&source).unwrap().chain(std::fs::read_dir(source.join("statistics")).unwrap()) {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(&source).unwrap().to_string_lossy().into_owned();
        if path.is_file() && !spared.contains(&name.as_str()) {
            let text = std::fs::read_to_string(&path).unwrap();
            for name in &types {
                assert!(!text.contains(name.as_str()), "{} names {name}", path.display());
            }
        }
    }
}

#[test]
fn an_experiment_declares_every_file_that_it_writes() {
    let declared: BTreeSet<String> = files().into_iter().collect();
    let (_, figures) = render(report()).unwrap();
    for table in report().all() {
        assert!(declared.contains(&format!("{}.csv", table.name)), "{}", table.name);
    }
    for figure in figures {
        assert!(
            declared.contains(&format!("{}.svg", figure.name)) && declared.contains(&format!("{}.png", figure.name)),
            "{}",
            figure.name
        );
    }
}

#[test]
fn a_table_is_made_by_one_experiment() {
    let mut seen = BTreeSet::new();
    for experiment in EXPERIMENTS {
        for (name, _) in experiment.tables() {
            assert!(seen.insert(*name), "{name}");
        }
    }
}

#[test]
fn every_section_has_a_title_an_introduction_and_a_command() {
    let (page, _) = render(report()).unwrap();
    for (section, experiment) in page.sections.iter().zip(EXPERIMENTS.iter().filter(|experiment| experiment.is_in(report()))) {
        assert_eq!(section.id, experiment.id());
        assert!(!section.title.is_empty() && !section.intro.is_empty() && !section.tables.is_empty(), "{}", section.id);
        assert_eq!(section.command, format!("regard lab {}", section.id));
    }
}

#[test]
fn stored_tables_are_small_and_what_the_default_commands_write() {
    let mut size = 0;
    let mut checked = 0;
    for experiment in EXPERIMENTS {
        let home = experiments().join(experiment.id().replace('-', "_")).join("stored");
        for (name, _) in experiment.tables() {
            let Some(table) = report().find(name).filter(|table| table.origin.iter().any(|(key, _)| key == "stored")) else { continue };
            let bytes = std::fs::read(home.join(format!("{name}.csv"))).unwrap();
            let mut table: Table = table.clone();
            table.origin.pop();
            assert!(table.to_csv() == bytes, "{name} changes when it is read");
            let command = table.origin.iter().find(|(key, _)| key == "command").map(|(_, value)| value.clone()).unwrap();
            let words: Vec<&str> = command.split(' ').skip(3).collect();
            assert!(command.starts_with(&format!("regard lab {} --", experiment.id())), "{command}");
            // Its options are the defaults, and it names each of them that has one.
            let matches = experiment.command().no_binary_name(true).try_get_matches_from(&words).unwrap();
            let defaults = experiment.command().no_binary_name(true).try_get_matches_from(std::iter::empty::<&str>()).unwrap();
            for id in defaults.ids() {
                let raw = |m: &clap::ArgMatches| m.get_raw(id.as_str()).map(|v| v.map(|x| x.to_owned()).collect::<Vec<_>>());
                if matches.try_contains_id(id.as_str()).is_ok() && !["task", "rates"].contains(&id.as_str()) && raw(&defaults).is_some() {
                    assert_eq!(raw(&matches), raw(&defaults), "{command}: {id}");
                }
            }
            size += bytes.len();
            checked += 1;
        }
    }
    assert!(checked == 47 && size < 340_000, "{checked} tables of {size} bytes");
}

#[test]
fn the_stored_answers_of_pytorch_are_those_of_the_library() {
    let ours = experiments().join("parity/stored/attention.json");
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../regard/tests/golden/attention.json");
    if library.exists() {
        assert!(std::fs::read(ours).unwrap() == std::fs::read(library).unwrap(), "cargo xtask parity --write-golden writes both");
    }
}
