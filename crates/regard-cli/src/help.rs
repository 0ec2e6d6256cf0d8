//! The start page, the list of commands in groups, and examples that fit the terminal.

use clap::Command;
use std::ffi::OsString;

/// Groups of commands, in the order of `regard --help`; the first group is on the start page.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Start here", &["report", "serve", "learn", "judge", "look", "train"]),
    ("Models", &["inspect", "tokens", "classify", "lens", "surgery", "screen", "patch", "diff", "circuit", "eval", "generate"]),
    ("Experiments", &["lab"]),
    ("Files and machines", &["plot", "attend", "bench", "merge", "cluster"]),
];

/// Characters per line where the output is not a terminal.
const LINE: usize = 100;
/// Characters of the column of names.
const NAME: usize = 10;

/// Words on lines of at most `width` characters, all but the first indented.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let (mut out, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = 0;
        }
        if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
    }
    out
}

/// Width of help texts: the terminal's, else that of the variable COLUMNS.
fn line_width() -> usize {
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    crate::output::line_width().or_else(variable).unwrap_or(LINE).clamp(40, LINE)
}

/// First words of commands; other indented lines are terms with their meanings.
const PROGRAMS: [&str; 5] = ["regard", "mpirun", "for", "python", "cargo"];

/// One example: a command and, separated by two or more spaces, what it does.
fn example(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("  ")?;
    Some(line.split_once("  ").map_or((line, ""), |(command, comment)| (command, comment.trim_start())))
}

/// Examples on lines of at most `width` characters: comments go above their commands where they do not fit beside them, and long commands
/// continue on the next line as a shell reads them.
fn fitted_examples(text: &str, width: usize) -> String {
    if text.lines().all(|line| line.chars().count() <= width) {
        return text.to_owned();
    }
    let fitted = |line: &str| match example(line) {
        None => wrapped(line, width, 0),
        Some((term, meaning)) if !PROGRAMS.contains(&term.split(' ').next().unwrap_or_default()) => {
            let colon = if meaning.is_empty() { "" } else { ":" };
            format!("  {}", wrapped(&format!("{term}{colon} {meaning}"), width - 6, 4))
        }
        Some((command, comment)) => {
            let comment = if comment.is_empty() { String::new() } else { format!("  # {}\n", wrapped(comment, width - 4, 4)) };
            format!("{comment}  {}", wrapped(command, width - 8, 6).replace('\n', " \\\n"))
        }
    };
    text.lines().map(fitted).collect::<Vec<_>>().join("\n")
}

/// The first example in the help of the sub-command that the words name.
pub(crate) fn first_example(command: &Command, words: &[OsString]) -> Option<String> {
    let name = words.get(1)?.to_str()?;
    let help = command.find_subcommand(name)?.get_after_help()?.to_string();
    let mut lines = help.lines().skip_while(|line| !line.starts_with("  regard "));
    let mut words = example(lines.next()?)?.0.to_owned();
    // An example that was folded continues after a backslash.
    while let Some(begun) = words.strip_suffix(" \\") {
        words = format!("{begun} {}", lines.next().unwrap_or_default().trim());
    }
    Some(words)
}

/// The command that the words name: "regard lab sweep".
pub(crate) fn command_path(command: &Command, words: &[OsString]) -> String {
    let (mut at, mut path) = (command, "regard".to_owned());
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(next) = at.find_subcommand(word) else { break };
        path = format!("{path} {}", next.get_name());
        at = next;
    }
    path
}

/// The command with the examples of all its sub-commands fitted to the terminal.
fn with_fitted_examples(command: Command) -> Command {
    let examples = command.get_after_help().map(|text| fitted_examples(&text.to_string(), line_width()));
    let command = examples.into_iter().fold(command, Command::after_help);
    command.mut_subcommands(with_fitted_examples)
}

/// One line per command: its name and its first sentence.
fn listed(command: &Command, names: &[&str]) -> String {
    let width = line_width() - NAME;
    let line = |name: &&str| {
        let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string).unwrap_or_default();
        format!("  {name:<NAME$}{}\n", wrapped(&about, width - 2, NAME + 2))
    };
    names.iter().map(line).collect()
}

fn groups(command: &Command) -> String {
    let all = GROUPS.iter().map(|(title, names)| format!("{title}:\n{}", listed(command, names)));
    all.collect::<Vec<_>>().join("\n")
}

/// The command with its sub-commands listed in groups.
pub(crate) fn grouped(command: Command) -> Command {
    let template = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\nOptions:\n{options}";
    let text = format!("{}\nHelp on one command: regard look --help", groups(&command));
    with_fitted_examples(command).help_template(template).after_help(text).term_width(line_width())
}

/// Printed by `regard` without arguments.
pub(crate) fn start_page(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let names = |at: usize| GROUPS[at].1.join(", ");
    let more = [(GROUPS[1].0, names(1)), (GROUPS[2].0, "regard lab, which lists them".to_owned()), (GROUPS[3].0, names(3))];
    let more: String =
        more.iter().map(|(title, names)| format!("{title}: {}\n", wrapped(names, line_width() - title.len() - 2, 2))).collect();
    format!(
        "Regard: {about}\n\n{}:\n{}\n{more}\nAll commands: regard --help. One of them: regard look --help",
        GROUPS[0].0,
        listed(command, GROUPS[0].1)
    )
}

#[cfg(test)]
mod tests {
    use super::{command_path, first_example, fitted_examples};
    use clap::Command;
    use std::ffi::OsString;

    const EXAMPLES: &str = "Examples:\n  regard look                      every head\n  regard look model.bin --text \"Once upon a time\"";

    #[test]
    fn examples_that_fit_are_unchanged() {
        assert_eq!(fitted_examples(EXAMPLES, 80), EXAMPLES);
    }

    #[test]
    fn terms_fold_as_text() {
        let folded = fitted_examples("Names:\n  out_a lse_a  the two states of a merge, and what else it needs to know", 40);
        assert_eq!(folded, "Names:\n  out_a lse_a: the two states of a\n    merge, and what else it needs to\n    know");
    }

    #[test]
    fn nested_commands_have_a_path() {
        let command = Command::new("regard").subcommand(Command::new("lab").subcommand(Command::new("sweep")));
        let path = |words: &[&str]| command_path(&command, &words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(path(&["regard", "lab", "sweep", "--dk", "4"]), "regard lab sweep");
        assert_eq!(path(&["regard", "-x"]), "regard");
    }

    #[test]
    fn the_first_example_is_whole() {
        let whole = "regard patch --clean \"Emma loves the school\" --corrupt \"Emma loves the garden\"";
        let examples = fitted_examples(&format!("Examples:\n  {whole}\n  regard patch model.gguf"), 40);
        assert!(examples.contains("\\\n"), "{examples}");
        let command = Command::new("regard").subcommand(Command::new("patch").after_help(examples));
        assert_eq!(first_example(&command, &["regard".into(), "patch".into()]).as_deref(), Some(whole));
    }

    #[test]
    fn long_examples_fold_as_a_shell_reads_them() {
        let folded = fitted_examples(EXAMPLES, 40);
        assert!(folded.lines().all(|line| line.chars().count() <= 40), "{folded}");
        assert!(folded.contains("  # every head\n  regard look\n"), "{folded}");
        let joined = folded.replace(" \\\n      ", " ");
        assert!(joined.contains("  regard look model.bin --text \"Once upon a time\""), "{folded}");
    }
}
