//! Text in drawings: widths by the metrics of the font that PNGs are set in, and a small markup for sub- and superscripts.
//!
//! `d_{k}` is a subscript, `10^{-3}` a superscript; everything else is taken as it is. Tokens are never marked up.

use super::fonts;
use std::sync::OnceLock;
use ttf_parser::Face;

/// The stack for browsers; the PNG renderer has Noto Sans, and DejaVu Sans for what that lacks.
pub(crate) const FONTS: &str = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', Roboto, 'Liberation Sans', Helvetica, Arial, sans-serif";

/// Size of sub- and superscripts, as a share of the text's.
pub(crate) const SCRIPT: f64 = 0.72;

/// Where a run of characters stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// On the line.
    Line,
    /// Below it.
    Sub,
    /// Above it.
    Super,
}

/// Cut marked-up text into runs.
pub(crate) fn runs(text: &str) -> Vec<(Level, &str)> {
    let mut runs = Vec::new();
    let mut rest = text;
    while let Some((at, level)) = next_mark(rest) {
        let inner = &rest[at + 2..];
        let Some(end) = inner.find('}') else { break };
        if at > 0 {
            runs.push((Level::Line, &rest[..at]));
        }
        runs.push((level, &inner[..end]));
        rest = &inner[end + 1..];
    }
    if !rest.is_empty() {
        runs.push((Level::Line, rest));
    }
    runs
}

fn next_mark(text: &str) -> Option<(usize, Level)> {
    let sub = text.find("_{").map(|at| (at, Level::Sub));
    let sup = text.find("^{").map(|at| (at, Level::Super));
    [sub, sup].into_iter().flatten().min_by_key(|m| m.0)
}

/// The text without its markup, for titles and alternative text: `d_k`, `10^-3`.
pub(crate) fn plain(text: &str) -> String {
    runs(text)
        .into_iter()
        .map(|(level, run)| match level {
            Level::Line => run.to_owned(),
            Level::Sub => format!("_{run}"),
            Level::Super => format!("^{run}"),
        })
        .collect()
}

fn faces() -> &'static [Face<'static>] {
    static FACES: OnceLock<Vec<Face<'static>>> = OnceLock::new();
    FACES.get_or_init(|| [fonts::NOTO_SANS, fonts::DEJAVU_SANS].into_iter().filter_map(|data| Face::parse(data, 0).ok()).collect())
}

fn advance(c: char) -> f64 {
    for face in faces() {
        if let Some(glyph) = face.glyph_index(c) {
            return f64::from(face.glyph_hor_advance(glyph).unwrap_or(0)) / f64::from(face.units_per_em());
        }
    }
    1.0
}

/// Width of text without markup, in the units of `size`.
pub(crate) fn raw_width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

/// Width of marked-up text.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    runs(text).into_iter().map(|(level, run)| raw_width(run, if level == Level::Line { size } else { size * SCRIPT })).sum()
}

/// Break at spaces into lines no wider than `limit`; a longer word keeps its own line.
pub(crate) fn wrap(text: &str, size: f64, limit: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width(line, size) + width(word, size) + width(" ", size) <= limit => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A token as people can see it: blanks and line ends become signs, other control characters their code.
pub(crate) fn visible(token: &str) -> String {
    let mut shown = String::new();
    let last = token.chars().count().saturating_sub(1);
    for (i, c) in token.chars().enumerate() {
        match c {
            ' ' if i == 0 || i == last => shown.push('\u{2423}'),
            '\n' => shown.push('\u{23ce}'),
            '\t' => shown.push('\u{2192}'),
            c if c.is_control() || !is_xml_char(c) => shown.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown
}

/// May this character stand in an XML document?
pub(crate) fn is_xml_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// Cut raw text to a width, with an ellipsis.
pub(crate) fn shorten(text: &str, size: f64, limit: f64) -> String {
    if raw_width(text, size) <= limit {
        return text.to_owned();
    }
    let free = limit - advance('\u{2026}') * size;
    let mut used = 0.0;
    let mut short: String = text
        .chars()
        .take_while(|&c| {
            used += advance(c) * size;
            used <= free
        })
        .collect();
    short.push('\u{2026}');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_cut_into_runs_and_the_rest_is_left_alone() {
        assert_eq!(runs("1/sqrt(d_{k}) x"), [(Level::Line, "1/sqrt(d"), (Level::Sub, "k"), (Level::Line, ") x")]);
        assert_eq!(runs("10^{-3}"), [(Level::Line, "10"), (Level::Super, "-3")]);
        assert_eq!(runs("max_weight"), [(Level::Line, "max_weight")]);
        assert_eq!(runs("d_{k"), [(Level::Line, "d_{k")]);
        assert_eq!(plain("d_{k} = 10^{3}"), "d_k = 10^3");
    }

    #[test]
    fn widths_follow_the_font() {
        assert!(raw_width("mmm", 10.0) > 2.0 * raw_width("iii", 10.0));
        assert!((raw_width("entropy", 20.0) - 2.0 * raw_width("entropy", 10.0)).abs() < 1e-9);
        assert!(width("d_{k}", 10.0) < raw_width("dk", 10.0));
    }

    #[test]
    fn text_is_wrapped_and_shortened_to_fit() {
        let lines = wrap("without the scale, one token takes all", 14.0, 120.0);
        assert!(lines.len() >= 2 && lines.iter().all(|l| width(l, 14.0) <= 120.0));
        let short = shorten("antidisestablishmentarianism", 12.0, 60.0);
        assert!(short.ends_with('\u{2026}') && raw_width(&short, 12.0) <= 60.0);
    }

    #[test]
    fn blanks_and_control_characters_become_visible() {
        assert_eq!(visible(" the"), "\u{2423}the");
        assert_eq!(visible("\n"), "\u{23ce}");
        assert_eq!(visible("\u{0}\u{1b}"), "\\u{0}\\u{1b}");
        assert_eq!(visible("a b"), "a b");
    }
}
