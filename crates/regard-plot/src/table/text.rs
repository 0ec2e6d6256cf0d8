//! Tables for a terminal.

use crate::figure::plain;
use crate::table::{Table, Value};

/// A number with about four significant digits; settings with fewer digits unchanged.
pub fn short_number(x: f64) -> String {
    let size = x.abs();
    match size {
        _ if !x.is_finite() => format!("{x}"),
        _ if size == 0.0 => "0".to_owned(),
        _ if !(1e-4..1e6).contains(&size) => format!("{x:.2e}"),
        _ => {
            let decimals = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
            let (four, all) = (format!("{x:.decimals$}"), format!("{x}"));
            if all.len() < four.len() { all } else { four }
        }
    }
}

/// A number within a sentence: about three significant digits, no trailing zeros, small ones as `2.4 x 10^{-5}`.
pub fn prose_number(x: f64) -> String {
    let size = x.abs();
    if size != 0.0 && size < 1e-3 {
        let power = size.log10().floor() as i32;
        return format!("{:.1} x 10^{{{power}}}", x / 10f64.powi(power));
    }
    let decimals = if size == 0.0 { 0 } else { (2 - size.log10().floor() as i32).clamp(0, 5) as usize };
    let text = format!("{x:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number with its 95 % interval, without digits that the interval does not support: `7.13 \u{b1} 0.06`, or both ends where they are
/// not equally far.
pub fn with_interval(value: f64, low: f64, high: f64) -> String {
    if !(low.is_finite() && high.is_finite() && value.is_finite()) || low == high {
        return prose_number(value);
    }
    if value == 0.0 && low == 0.0 {
        // None was seen, and this many there may be all the same.
        return format!("0 (to {})", prose_number(high));
    }
    let size = value.abs().max(low.abs()).max(high.abs());
    // Small numbers and large ones by their power of ten.
    let power = if (1e-3..1e6).contains(&size) || size == 0.0 { 0 } else { size.log10().floor() as i32 };
    let unit = 10f64.powi(power);
    let (value, low, high) = (value / unit, low / unit, high / unit);
    let (below, above) = (value - low, high - value);
    let half = below.max(above);
    let place = half.log10().floor() as i32;
    // Two digits of an uncertainty that begins with 1.
    let digits = if half < 2.0 * 10f64.powi(place) { 1 - place } else { -place };
    let decimals = digits.clamp(0, 9) as usize;
    let round = |x: f64| if digits < 0 { (x * 10f64.powi(digits)).round() / 10f64.powi(digits) } else { x };
    let number = |x: f64| {
        let text = format!("{:.decimals$}", round(x));
        if text.trim_start_matches('-').bytes().all(|b| b == b'0' || b == b'.') { text.trim_start_matches('-').to_owned() } else { text }
    };
    let alike = (below - above).abs() <= 0.25 * half;
    match (alike, power) {
        (true, 0) => format!("{} \u{b1} {}", number(value), number(half)),
        (true, _) => format!("({} \u{b1} {}) \u{d7} 10^{{{power}}}", number(value), number(half)),
        (false, 0) => format!("{} ({} to {})", number(value), number(low), number(high)),
        (false, _) => format!("{} ({} to {}) \u{d7} 10^{{{power}}}", number(value), number(low), number(high)),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(x) => short_number(*x),
        Value::Flag(flag) => (if *flag { "yes" } else { "no" }).to_owned(),
        Value::Text(text) => plain(text),
        other => other.to_field(),
    }
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Missing) || matches!(value, Value::Text(text) if text.is_empty())
}

/// The widest that a cell may be where lines are limited; longer texts go on below.
const CELL: usize = 44;

/// Wraps a text at `width` characters; a longer word is split.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        while !word.is_empty() {
            let line = lines.last_mut().expect("there is a first line");
            let used = line.chars().count();
            let free = if used == 0 { width } else { width.saturating_sub(used + 1) };
            if word.len() > free && used > 0 {
                lines.push(String::new());
                continue;
            }
            if used > 0 {
                line.push(' ');
            }
            line.extend(word.drain(..free.min(word.len())));
        }
    }
    lines
}

/// Columns per fold: as many as fit, each fold led by the `keys` columns that identify a row. `None` where these leave no room for another
/// column.
fn groups(widths: &[usize], keys: usize, limit: usize) -> Option<Vec<Vec<usize>>> {
    let width = |columns: &[usize]| columns.iter().map(|&column| widths[column] + 2).sum::<usize>().saturating_sub(2);
    let lead: Vec<usize> = (0..keys).collect();
    let widest = widths.iter().skip(keys).max().copied().unwrap_or(0);
    if width(&(0..widths.len()).collect::<Vec<_>>()) > limit && width(&lead) + 2 + widest > limit {
        return None;
    }
    let mut groups: Vec<Vec<usize>> = vec![Vec::new()];
    for (column, own) in widths.iter().enumerate() {
        let last = groups.last_mut().expect("there is a first group");
        if last.len() > lead.len().min(column) && column > 1 && width(last) + 2 + own > limit {
            groups.push(lead.clone());
        }
        groups.last_mut().expect("there is a first group").push(column);
    }
    Some(groups)
}

/// A block of lines per row, `name: value`.
fn blocks(header: &[String], body: &[Vec<String>], limit: usize) -> String {
    let name = header.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(limit / 3);
    let mut text = String::new();
    for row in body {
        for (column, value) in header.iter().zip(row).filter(|(_, value)| !value.is_empty()) {
            let names = wrapped(column, name.max(1));
            let values = wrapped(value, limit.saturating_sub(name + 2).max(1));
            for line in 0..names.len().max(values.len()) {
                let part = |of: &[String]| of.get(line).cloned().unwrap_or_default();
                text += format!("{:<name$}  {}", part(&names), part(&values)).trim_end();
                text.push('\n');
            }
        }
        text.push('\n');
    }
    text
}

/// The shortest prefix of columns, of at most four, whose values differ from row to row; one where there is none.
fn key_columns(body: &[Vec<String>]) -> usize {
    let most = body.first().map_or(0, |row| row.len().saturating_sub(1)).min(4);
    let distinct = |keys: &usize| {
        let mut seen = std::collections::HashSet::new();
        body.iter().all(|row| seen.insert(&row[..*keys]))
    };
    (1..=most).find(distinct).unwrap_or(1)
}

impl Table {
    /// The caption and up to `most` rows in columns, on lines of at most `limit` characters where there is a limit: long texts are
    /// wrapped, and columns that do not fit beside the others follow below them.
    pub fn to_text(&self, most: usize, limit: Option<usize>) -> String {
        self.to_text_of(usize::MAX, most, limit)
    }

    /// [`Table::to_text`] of the first `columns` columns that have a value in some row; the names of the others with values follow.
    pub fn to_text_of(&self, columns: usize, most: usize, limit: Option<usize>) -> String {
        // A number and its interval stand in one column.
        let mut here: Vec<usize> = (0..self.columns.len()).filter(|&c| !self.is_end(&self.columns[c].name)).collect();
        if columns < here.len() {
            here.retain(|&c| self.rows.is_empty() || self.rows.iter().any(|row| !is_empty(&row[c])));
        }
        // One more column costs less than the line that names it.
        let shown_columns = if here.len().checked_sub(1) == Some(columns) { here.len() } else { columns.max(1).min(here.len()) };
        let left_out = here.split_off(shown_columns);
        let header: Vec<String> = here.iter().map(|&c| self.columns[c].name.clone()).collect();
        let cell_of = |row: &Vec<Value>, c: usize| match (self.interval(row, &self.columns[c].name), row[c].number()) {
            (Some((low, high)), Some(x)) => plain(&with_interval(x, low, high)),
            _ => shown(&row[c]),
        };
        let body: Vec<Vec<String>> = self.rows.iter().take(most).map(|row| here.iter().map(|&c| cell_of(row, c)).collect()).collect();
        let cell = limit.map_or(usize::MAX, |limit| CELL.min(limit.saturating_sub(2) / 2).max(1));
        let mut widths: Vec<usize> = header.iter().map(|name| name.chars().count()).collect();
        for row in &body {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
        widths.iter_mut().for_each(|width| *width = (*width).min(cell));
        let is_text: Vec<bool> = here.iter().map(|&c| self.rows.iter().any(|row| matches!(row[c], Value::Text(_)))).collect();
        let caption = format!("{}: {}", self.name, plain(&self.caption));
        let mut text = limit.map_or_else(|| caption.clone(), |limit| wrapped(&caption, limit.max(1)).join("\n"));
        text.push('\n');
        let room = limit.unwrap_or(usize::MAX);
        let groups = groups(&widths, key_columns(&body), room).unwrap_or_else(|| {
            text += &blocks(&header, &body, room);
            Vec::new()
        });
        for (place, columns) in groups.into_iter().enumerate() {
            if place > 0 {
                text.push('\n');
            }
            for row in std::iter::once(&header).chain(&body) {
                let cells: Vec<Vec<String>> = columns.iter().map(|&c| wrapped(&row[c], widths[c].max(1))).collect();
                for line in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                    let parts = columns.iter().zip(&cells).map(|(&c, cell)| {
                        let (part, w) = (cell.get(line).map_or("", String::as_str), widths[c]);
                        if is_text[c] { format!("{part:<w$}") } else { format!("{part:>w$}") }
                    });
                    text += parts.collect::<Vec<_>>().join("  ").trim_end();
                    text.push('\n');
                }
            }
        }
        if !left_out.is_empty() {
            let names = left_out.iter().map(|&c| self.columns[c].name.as_str()).collect::<Vec<_>>().join(", ");
            // Without a limit of rows there is no file: such tables are printed whole.
            let file = if most == usize::MAX { "" } else { " and in the CSV file" };
            let note = format!("{} more columns with --wide{file}: {names}", left_out.len());
            text += &limit.map_or_else(|| note.clone(), |limit| wrapped(&note, limit.max(1)).join("\n"));
            text.push('\n');
        }
        if self.rows.len() > most {
            text += &format!("... {} more rows in the CSV file\n", self.rows.len() - most);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        let cases = [
            (0.99421, "0.9942"),
            (0.029_604, "0.02960"),
            (0.01, "0.01"),
            (12.5, "12.5"),
            (123456.0, "123456"),
            (1.6e-11, "1.60e-11"),
            (0.0, "0"),
        ];
        for (x, text) in cases {
            assert_eq!(short_number(x), text);
        }
    }

    #[test]
    fn no_digit_is_printed_that_the_interval_does_not_hold() {
        let cases = [
            (7.1326, 7.0711, 7.1941, "7.13 \u{b1} 0.06"),
            (2.8e-5, 2.6e-5, 3.0e-5, "(2.8 \u{b1} 0.2) \u{d7} 10^{-5}"),
            (0.12345, 0.12330, 0.12360, "0.12345 \u{b1} 0.00015"),
            (93.412, 93.05, 93.76, "93.4 \u{b1} 0.4"),
            (0.5, 0.5, 0.5, "0.5"),
            (0.0, 0.0, 0.0, "0"),
            (0.02, 0.001, 0.08, "0.02 (0.00 to 0.08)"),
            (1234.0, 1100.0, 1368.0, "1230 \u{b1} 130"),
            (-0.0011, -0.0511, 0.0489, "0.00 \u{b1} 0.05"),
            (3.0, f64::NAN, f64::NAN, "3"),
            (0.0, 0.0, 1.92e-4, "0 (to 1.9 x 10^{-4})"),
        ];
        for (value, low, high, text) in cases {
            assert_eq!(with_interval(value, low, high), text);
        }
    }

    #[test]
    fn numbers_in_sentences_are_brief() {
        let cases =
            [(0.93790, "0.938"), (5.0, "5"), (2000.0, "2000"), (97.32, "97.3"), (0.0, "0"), (2.42e-5, "2.4 x 10^{-5}"), (0.9982, "0.998")];
        for (x, text) in cases {
            assert_eq!(prose_number(x), text);
        }
    }

    #[test]
    fn columns_are_aligned_and_long_tables_are_cut() {
        let mut table = Table::new("t", "about", &[("name", "name"), ("x", "x")]);
        for n in 0..3usize {
            table.push(vec!["ab".into(), n.into()]);
        }
        assert_eq!(table.to_text(2, None), "t: about\nname  x\nab    0\nab    1\n... 1 more rows in the CSV file\n");
    }

    #[test]
    fn every_fold_has_the_columns_that_identify_a_row() {
        let names = ["layer", "head", "entropy_of_rows", "largest_weight", "own_token", "previous_token", "first_token"];
        let mut table = Table::new("look", "heads", &names.map(|name| (name, name)));
        for (layer, head) in [(0usize, 0usize), (0, 1), (1, 0), (1, 1)] {
            table.push([layer.into(), head.into()].into_iter().chain((0..5).map(|c| f64::from(c).into())).collect());
        }
        let text = table.to_text(10, Some(50));
        let headers: Vec<&str> = text.lines().filter(|line| line.contains("layer")).collect();
        assert!(headers.len() > 1 && headers.iter().all(|line| line.trim_start().starts_with("layer  head")), "{text}");
        // One column suffices where its values differ.
        let mut table = Table::new("t", "about", &names.map(|name| (name, name)));
        (0..3usize).for_each(|row| table.push(vec![row.into(); 7]));
        let text = table.to_text(10, Some(50));
        let second = text.lines().filter(|line| line.contains("layer")).nth(1).expect("a second fold");
        assert!(!second.contains("head"), "{text}");
    }

    #[test]
    fn columns_that_are_left_out_are_named() {
        let names: Vec<String> = (0..10).map(|c| format!("c{c}")).collect();
        let mut table = Table::new("t", "about", &names.iter().map(|c| (c.as_str(), c.as_str())).collect::<Vec<_>>());
        table.push((0..10usize).map(Into::into).collect());
        let text = table.to_text_of(8, 10, Some(80));
        assert!(text.contains("c7") && text.ends_with("2 more columns with --wide and in the CSV file: c8, c9\n"), "{text}");
        assert!(table.to_text_of(8, usize::MAX, Some(80)).ends_with("2 more columns with --wide: c8, c9\n"));
        assert!(!table.to_text(10, Some(80)).contains("--wide"));
    }

    #[test]
    fn rows_whose_keys_are_too_wide_are_blocks() {
        let mut table = Table::new("claims", "d_{k} in captions", &["section", "claim", "verdict", "because"].map(|c| (c, c)));
        table.push(vec![
            "one".into(),
            "a claim that is as wide as the line of a narrow terminal".into(),
            "holds".into(),
            "of a longer reason still".into(),
        ]);
        table.push(vec!["one".into(), "another that is about as wide as the line of this terminal".into(), "fails".into(), Value::Missing]);
        let text = table.to_text(10, Some(40));
        assert!(text.starts_with("claims: d_k in captions\nsection  one\nclaim    a claim that is as wide as the\n"), "{text}");
        assert!(text.contains("\nverdict  holds\nbecause  of a longer reason still\n\nsection  one\nclaim    another"), "{text}");
        assert!(text.ends_with("verdict  fails\n\n") && text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }

    #[test]
    fn empty_columns_do_not_count() {
        let names: Vec<String> = (0..12).map(|c| format!("c{c}")).collect();
        let mut table = Table::new("t", "about", &names.iter().map(|c| (c.as_str(), c.as_str())).collect::<Vec<_>>());
        table.push((0..12usize).map(|c| if c % 3 == 0 { Value::Missing } else { c.into() }).collect());
        let text = table.to_text_of(6, 10, Some(80));
        assert!(
            text.contains("c8") && !text.contains("c0") && text.ends_with("2 more columns with --wide and in the CSV file: c10, c11\n"),
            "{text}"
        );
        assert!(table.to_text_of(7, 10, Some(80)).contains("11\n"), "one more is shown");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal_is_wide() {
        let columns: Vec<String> = (0..12).map(|c| format!("a_rather_long_column_{c}")).collect();
        let columns: Vec<(&str, &str)> = columns.iter().map(|c| (c.as_str(), c.as_str())).collect();
        let mut table = Table::new("wide", &"a caption of many words ".repeat(9), &columns);
        let long = "a sentence that goes on and on, with averyverylongwordthatnobodywouldwriteinanylanguageofthisworld in it";
        table.push((0..12).map(|c| if c % 3 == 0 { long.into() } else { f64::from(c).into() }).collect());
        for limit in [40, 80, 132] {
            let text = table.to_text(10, Some(limit));
            assert!(text.lines().all(|line| line.chars().count() <= limit), "{limit}:\n{text}");
            // Narrower than that, names are broken as texts are.
            assert!(limit < 80 || columns.iter().all(|(name, _)| text.contains(name)), "every column is there:\n{text}");
        }
        assert_eq!(table.to_text(10, None).lines().count(), 3);
    }
}
