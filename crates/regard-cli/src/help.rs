//! The start page, and the list of commands in groups.

use clap::Command;

/// Groups of commands, in the order of `regard --help`; the first group is on the start page.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Start here", &["report", "serve", "learn", "judge", "look", "train"]),
    ("Models", &["inspect", "tokens", "classify", "lens", "surgery", "screen", "patch", "eval", "generate"]),
    ("Experiments", &["lab"]),
    ("Files and machines", &["plot", "attend", "bench", "merge", "cluster"]),
];

/// Characters per line where the output is not a terminal.
const LINE: usize = 100;
/// Characters of the column of names.
const NAME: usize = 10;

/// Words on lines of at most `width` characters, all but the first indented.
fn wrapped(text: &str, width: usize, indent: usize) -> String {
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

fn line_width() -> usize {
    crate::output::line_width().unwrap_or(LINE).clamp(40, LINE)
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
    command.help_template(template).after_help(text)
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
