//! A verdict in lines: what is wrong, why, the smallest case, pictures, prints.

use super::picture::{coloured, digits, fits, three};
use super::{index, numbers, short};
use crate::exercise::Kind;
use crate::judge::{Failure, Seen, Status, Verdict};

/// How things are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Colours and half blocks.
    pub colour: bool,
}

impl Look {
    /// Text in a colour of the terminal.
    pub fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Prints that are shown; the judge keeps more.
const PRINTED: usize = 200;

/// The lines of a verdict.
pub fn verdict(verdict: &Verdict, look: Look) -> Vec<String> {
    let mut lines = vec![headline(verdict, look)];
    if let Some(message) = &verdict.message {
        lines.extend(message.lines().map(|line| format!("  {line}")));
    }
    if let Some(diagnosis) = &verdict.diagnosis {
        for (at, mistake) in diagnosis.mistakes.iter().enumerate() {
            let start = if at == 0 { "" } else { "and " };
            lines.push(format!("  {start}{}: {}", look.paint("1", mistake.id), mistake.text));
            let entry = crate::kernels::catalogue::of_exercise(verdict.exercise.name, mistake.id);
            if let Some(entry) = entry.filter(|entry| !entry.seen.is_empty()) {
                lines.push(format!("    a published kernel made it, too: {}", entry.seen));
            }
        }
        let what = if diagnosis.mistakes.len() > 1 { "together they explain" } else { "explains" };
        lines.push(format!("  ({what} {} of {} cases)", diagnosis.explains, verdict.cases));
    }
    lines.extend(verdict.facts.iter().map(|fact| format!("  - {fact}")));
    if let Some(seen) = &verdict.smallest {
        lines.extend(smallest(verdict, seen, look));
    }
    let (prints, count) = &verdict.prints;
    if *count > 0 {
        lines.push(String::new());
        lines.push(format!("  your code printed {count} line(s):"));
        lines.extend(prints.iter().take(PRINTED).map(|line| format!("  | {line}")));
        if *count > prints.len() {
            lines.push(format!("  | .. {} more", count - prints.len()));
        }
    }
    lines
}

fn headline(verdict: &Verdict, look: Look) -> String {
    let name = format!("{:02} {}", verdict.exercise.number, verdict.exercise.name);
    let cases = format!("{} of {} cases failed", verdict.failed, verdict.cases);
    match verdict.status {
        Status::Pass => format!("{} {name}: right in {} cases", look.paint("32;1", "pass"), verdict.cases),
        Status::Todo => format!("{} {name}", look.paint("33;1", "todo")),
        Status::Fail => format!("{} {name}: {cases}", look.paint("31;1", "fail")),
        Status::Error => format!("{} {name}", look.paint("31;1", "error")),
        Status::Timeout => format!("{} {name}", look.paint("31;1", "timeout")),
    }
}

/// The smallest case in numbers and as a picture.
fn smallest(verdict: &Verdict, seen: &Seen, look: Look) -> Vec<String> {
    let exercise = verdict.exercise;
    let mut lines = vec![String::new()];
    let pieces = if seen.case.pieces.len() > 1 { format!(", in pieces of {:?}", seen.case.pieces) } else { String::new() };
    lines.push(format!(
        "  the smallest case like it ({}{pieces}; from case {}, {}):",
        exercise.dims_text(&seen.case.call.dims),
        verdict.case_number,
        seen.case.label
    ));
    for (param, value) in exercise.inputs().iter().zip(&seen.case.call.args) {
        if param.kind == Kind::File {
            lines.push(format!("    {}: a file of {} bytes", param.name, value.data.len()));
            continue;
        }
        lines.extend(numbers(param.name, value).into_iter().map(|line| format!("    {line}")));
    }
    let Some(failure) = &seen.failure else { return lines };
    match failure {
        Failure::Numbers { result, at, expected, got, tolerance, .. } => {
            let name = exercise.judged(*result);
            let place = index(&seen.expected.values[*result].shape, *at);
            let within = if *tolerance == 0.0 { "exactly".to_owned() } else { format!("within {tolerance:.1e}") };
            lines.push(format!("  {name}{} is {}; it must be {} ({within})", bracketed(&place), short(*got), short(*expected)));
            let Ok(got) = &seen.reply else { return lines };
            let maps = three(&seen.expected.values[*result], &got[*result]);
            if maps.iter().all(fits) {
                lines.push(format!("  {name}:"));
                lines.extend(if look.colour { coloured(&maps) } else { digits(&maps) });
            }
        }
        Failure::Shape { text, .. } => lines.push(format!("  {text}")),
        Failure::Bits { result, at, by, what } => {
            let place = index(&seen.expected.values[*result].shape, *at);
            lines.push(format!(
                "  with {what}, {}{} changes by {by:.1e}; it must not change at all",
                exercise.judged(*result),
                bracketed(&place)
            ));
        }
        Failure::Trouble(_) => {}
    }
    lines
}

fn bracketed(place: &[usize]) -> String {
    if place.is_empty() { String::new() } else { format!("{place:?}") }
}
