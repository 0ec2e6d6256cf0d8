//! Tables for a terminal.

use crate::table::{Table, Value};

/// A number with about four digits that count.
pub fn short_number(x: f64) -> String {
    let size = x.abs();
    match size {
        _ if !x.is_finite() => format!("{x}"),
        _ if size == 0.0 => "0".to_owned(),
        _ if !(1e-4..1e6).contains(&size) => format!("{x:.2e}"),
        _ => {
            let decimals = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
            format!("{x:.decimals$}")
        }
    }
}

/// A number within a sentence: about three digits that count, no zeros behind them, small ones as `2.4 x 10^{-5}`.
pub(crate) fn prose_number(x: f64) -> String {
    let size = x.abs();
    if size != 0.0 && size < 1e-3 {
        let power = size.log10().floor() as i32;
        return format!("{:.1} x 10^{{{power}}}", x / 10f64.powi(power));
    }
    let decimals = if size == 0.0 { 0 } else { (2 - size.log10().floor() as i32).clamp(0, 5) as usize };
    let text = format!("{x:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(x) => short_number(*x),
        Value::Flag(flag) => (if *flag { "yes" } else { "no" }).to_owned(),
        other => other.to_field(),
    }
}

impl Table {
    /// The caption and up to `most` rows in columns.
    pub fn to_text(&self, most: usize) -> String {
        let header: Vec<String> = self.columns.iter().map(|c| c.name.clone()).collect();
        let body: Vec<Vec<String>> = self.rows.iter().take(most).map(|row| row.iter().map(shown).collect()).collect();
        let mut widths: Vec<usize> = header.iter().map(|name| name.chars().count()).collect();
        for row in &body {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let is_text: Vec<bool> = (0..self.columns.len()).map(|c| self.rows.iter().any(|row| matches!(row[c], Value::Text(_)))).collect();
        let line = |cells: &[String]| {
            let cells = cells.iter().zip(&widths).zip(&is_text);
            let cells: Vec<_> = cells.map(|((cell, &w), &text)| if text { format!("{cell:<w$}") } else { format!("{cell:>w$}") }).collect();
            cells.join("  ").trim_end().to_owned()
        };
        let mut text = format!("{}: {}\n{}\n", self.name, self.caption, line(&header));
        for row in &body {
            text += &line(row);
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
        let cases = [(0.99421, "0.9942"), (0.02960, "0.02960"), (12.5, "12.50"), (123456.0, "123456"), (1.6e-11, "1.60e-11"), (0.0, "0")];
        for (x, text) in cases {
            assert_eq!(short_number(x), text);
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
        assert_eq!(table.to_text(2), "t: about\nname  x\nab    0\nab    1\n... 1 more rows in the CSV file\n");
    }
}
