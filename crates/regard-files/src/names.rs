//! The table of names: every file that a command writes, with its hidden state, temporary files and probes.

use crate::digest::digest;

/// The record of a [`Folder`](crate::Folder).
pub const MANIFEST: &str = ".regard.json";
/// The directory of a [`ResumeStore`](crate::ResumeStore), below a directory of results.
pub const UNFINISHED: &str = ".regard-unfinished";

/// Files of a training, in the model's folder.
pub mod model {
    /// The checkpoint: everything that resuming needs.
    pub const WEIGHTS: &str = "model.safetensors";
    /// Settings in JSON, with the checkpoint's SHA-256.
    pub const SUMMARY: &str = "model.json";
    /// The tokenizer.
    pub const TOKENIZER: &str = "tokenizer.json";
    /// One row per step.
    pub const LOG: &str = "training.csv";
    /// Loss and gradient norm, drawn at the end.
    pub const FIGURES: [&str; 2] = ["training.svg", "training.png"];
    /// All of them.
    pub const FILES: [&str; 6] = [WEIGHTS, SUMMARY, TOKENIZER, LOG, FIGURES[0], FIGURES[1]];
}

/// Files of `regard plot`.
pub const PLOT: [&str; 3] = ["attention_plot.csv", "attention_plot.svg", "attention_plot.png"];
/// Files of `regard screen`.
pub const SCREEN: [&str; 3] = ["screen.csv", "screen.svg", "screen.png"];
/// Files of `regard diff`.
pub const DIFF: [&str; 5] = ["diff.csv", "diff_heads.csv", "diff_causes.csv", "diff.svg", "diff.png"];
/// Files of `regard circuit`.
pub const CIRCUIT: [&str; 5] = ["circuit.csv", "circuit_nodes.csv", "circuit_faithfulness.csv", "circuit.svg", "circuit.png"];
/// The page of `regard report`.
pub const PAGE: &str = "index.html";
/// The handout of `regard report --handout`, without answers and with them.
pub const HANDOUT: [&str; 2] = ["handout.html", "handout_answers.html"];
/// The state of `regard learn`, in the learner's folder.
pub const LEARN_PROGRESS: &str = "progress.json";

/// Which names a command writes. `*` stands for letters, digits, `_` and `-`.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    /// The sub-command; experiments have one row for all.
    pub command: &'static str,
    /// Names below the directory of results, the model's folder or the learner's folder.
    pub names: &'static [&'static str],
    /// Whether the directory has a record, a lock and temporary files.
    pub folder: bool,
    /// Whether finished steps are stored below [`UNFINISHED`].
    pub resumes: bool,
}

/// Any experiment: its own list has its tables and figures.
pub const EXPERIMENT: &str = "an experiment";

/// Every command that writes files.
pub const WRITERS: &[Writer] = &[
    Writer { command: "train", names: &model::FILES, folder: true, resumes: false },
    Writer { command: "plot", names: &PLOT, folder: true, resumes: false },
    Writer { command: "screen", names: &SCREEN, folder: true, resumes: true },
    Writer { command: "diff", names: &DIFF, folder: true, resumes: false },
    Writer { command: "circuit", names: &CIRCUIT, folder: true, resumes: true },
    Writer {
        command: "look",
        names: &[
            "look.csv",
            "heads.svg",
            "heads.png",
            "head_*.csv",
            "head_*.svg",
            "head_*.png",
            "neuron.csv",
            "neuron_keys.csv",
            "keys.csv",
            "keys.svg",
            "keys.png",
            "neuron_*.svg",
            "neuron_*.png",
        ],
        folder: true,
        resumes: false,
    },
    Writer { command: "report", names: &[PAGE, HANDOUT[0], HANDOUT[1], "*.csv", "*.svg", "*.png"], folder: true, resumes: true },
    Writer { command: EXPERIMENT, names: &["*.csv", "*.svg", "*.png", "*.*-of-*.shard"], folder: true, resumes: true },
    // Below the folder of each language, in the learner's folder and in those of sets within it.
    Writer {
        command: "learn",
        names: &[
            LEARN_PROGRESS,
            "progress.*.json",
            "*/*.py",
            "*/*.*.py",
            "*/*.py.new",
            "*/*.rs",
            "*/*.*.rs",
            "*/*.rs.new",
            "*/*.png",
            "*/*.*.png",
        ],
        folder: true,
        resumes: false,
    },
    // What `--junit`, `--result-json` and, for the Python package, `--record` name.
    Writer { command: "learn check", names: &["*.xml", "*.json"], folder: false, resumes: false },
    // The paths are the user's; `--out o.npy` also names what lies beside it.
    Writer {
        command: "attend",
        names: &["*.npy", "*.*.npy", "*.heat_map.png", ".*.npy.*.regard-unfinished", ".*.*.npy.*.regard-unfinished"],
        folder: false,
        resumes: false,
    },
    Writer { command: "look --html", names: &["*.html"], folder: false, resumes: false },
    Writer { command: "judge", names: &["*.xml", "*.md", "*.json"], folder: false, resumes: false },
];

/// Commands that write the files of experiments.
pub const AS_EXPERIMENTS: &[&str] = &["lab", "merge"];

/// Every command that writes no file of the user's.
pub const READERS: &[&str] = &["serve", "inspect", "surgery", "patch", "classify", "lens", "tokens", "eval", "generate", "cluster"];

/// Options whose path is written to; every other path is read.
pub const OUTPUT_OPTIONS: &[&str] = &["out", "html", "junit", "markdown", "result-json", "record", "dir"];

/// The row of a command; that of [`EXPERIMENT`] for any other name.
pub fn writer(command: &str) -> &'static Writer {
    let of = |name: &str| WRITERS.iter().find(|writer| writer.command == name);
    of(command).or_else(|| of(EXPERIMENT)).unwrap_or(&WRITERS[0])
}

/// Whether a name fits a pattern of the table.
pub fn fits(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(before) else { return false };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let ends = rest.char_indices().take_while(|(_, c)| word(*c)).map(|(at, c)| at + c.len_utf8());
    ends.into_iter().any(|end| fits(after, &rest[end..]))
}

const PART: (&str, &str) = (".regard-", ".part");

fn check_digits(random: &str) -> String {
    digest(format!("regard part {random}"))[..8].to_owned()
}

/// The name of a temporary file: random digits and a checksum of them, so that a file that only looks similar is not taken for one.
pub fn part(random: u64) -> String {
    let random = format!("{random:016x}");
    format!("{}{random}{}{}", PART.0, check_digits(&random), PART.1)
}

/// Whether a name was made by [`part`].
pub fn is_part(name: &str) -> bool {
    let digits = name.strip_prefix(PART.0).and_then(|rest| rest.strip_suffix(PART.1));
    digits.is_some_and(|digits| digits.len() == 24 && digits.is_ascii() && check_digits(&digits[..16]) == digits[16..])
}

/// Whether a name is that of a stored step: 64 hexadecimal digits and `.json`.
pub(crate) fn is_step(name: &str) -> bool {
    name.strip_suffix(".json").is_some_and(|d| d.len() == 64 && d.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name, expected) in [
            ("a.csv", "a.csv", true),
            ("a.csv", "b.csv", false),
            ("head_*.csv", "head_0_12.csv", true),
            ("head_*.csv", "head_.csv", false),
            ("head_*.csv", "head_0/../x.csv", false),
            ("*.csv", "a.b.csv", false),
            ("*.*-of-*.shard", "sweep.3-of-64.shard", true),
            ("*.csv", "a.csvx", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
        assert_eq!(writer("look").command, "look");
        assert_eq!(writer("sweep").command, EXPERIMENT);
    }

    #[test]
    fn names_of_temporary_files_have_a_checksum() {
        assert!(is_part(&part(0)) && is_part(&part(u64::MAX)) && part(1) != part(2));
        for other in [".regard-Ab12Cd.part", ".regard-.part", "x.part", &part(3).replace(".regard-0", ".regard-1")] {
            assert!(!is_part(other), "{other}");
        }
    }
}
