//! Colours: two themes, a palette that colour-blind readers can distinguish, and the style sheet that switches between them.
//!
//! Every mark carries its light colour as an attribute and the name of its ink as a class. A style sheet may therefore repaint a
//! drawing for a dark page without touching it, and a renderer without style sheets still sees the light one.

use std::fmt::Write as _;

/// The page that a drawing lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Theme {
    /// Dark ink on white.
    #[default]
    Light,
    /// Light ink on near-black.
    Dark,
}

/// What a mark is painted with, whatever the theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    /// The paper itself; also the ring around markers.
    Paper,
    /// Titles and names.
    Text,
    /// Tick labels, notes.
    Soft,
    /// Axis lines and ticks.
    Axis,
    /// Grid lines.
    Grid,
    /// Reference lines and their labels.
    Reference,
    /// Cells that a mask hides.
    Hidden,
    /// Lines over hidden cells.
    Hatch,
    /// NaN and infinite values.
    Alarm,
    /// A series, by its place in the palette.
    Series(usize),
}

/// How many series colours there are before they repeat (with other markers).
pub(crate) const SERIES_COLOURS: usize = 7;

/// Blue, vermilion, green, purple, olive (amber on dark), sky, grey: each at least 3 : 1 against the paper, and distinguishable for
/// readers with any of the three kinds of dichromacy (the tests measure both).
const LIGHT: [&str; SERIES_COLOURS] = ["#0052ba", "#ef3a00", "#00a66c", "#783d85", "#789e38", "#3e8ad3", "#5f6670"];
const DARK: [&str; SERIES_COLOURS] = ["#7593ea", "#e16e3b", "#1fe5a7", "#a97bb1", "#f7b740", "#a1e9ff", "#a9b1bc"];

const INKS: [(Ink, &str, &str, &str); 9] = [
    (Ink::Paper, "paper", "#ffffff", "#15181d"),
    (Ink::Text, "text", "#1a1d21", "#eceff3"),
    (Ink::Soft, "soft", "#4c535c", "#b4bcc6"),
    (Ink::Axis, "axis", "#6b737d", "#8d96a1"),
    (Ink::Grid, "grid", "#e3e6ea", "#2d333b"),
    (Ink::Reference, "ref", "#5f6670", "#a9b1bc"),
    (Ink::Hidden, "hidden", "#e4e6e9", "#2a2f36"),
    (Ink::Hatch, "hatch", "#b9bec5", "#4a525c"),
    (Ink::Alarm, "alarm", "#c4006a", "#ff5aa8"),
];

impl Ink {
    /// The class without its prefix.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Series(n) => format!("{}", n % SERIES_COLOURS),
            other => INKS.iter().find(|i| i.0 == other).map_or_else(String::new, |i| i.1.to_owned()),
        }
    }

    /// The colour, as `#rrggbb`.
    pub(crate) fn colour(self, theme: Theme) -> &'static str {
        match (self, theme) {
            (Self::Series(n), Theme::Light) => LIGHT[n % SERIES_COLOURS],
            (Self::Series(n), Theme::Dark) => DARK[n % SERIES_COLOURS],
            (other, theme) => INKS.iter().find(|i| i.0 == other).map_or("#808080", |i| if theme == Theme::Light { i.2 } else { i.3 }),
        }
    }
}

/// All inks there are.
pub(crate) fn inks() -> impl Iterator<Item = Ink> {
    INKS.iter().map(|i| i.0).chain((0..SERIES_COLOURS).map(Ink::Series))
}

/// Rules that repaint a drawing for `theme`.
pub(crate) fn repaint(theme: Theme) -> String {
    let mut css = String::new();
    for ink in inks() {
        let (name, colour) = (ink.name(), ink.colour(theme));
        let _ = write!(css, ".rf-{name}{{fill:{colour}}}.rs-{name}{{stroke:{colour}}}");
    }
    css
}

/// The inks as variables, for a page whose `color-scheme` says which theme it has.
pub(crate) fn variables() -> String {
    let both = |ink: Ink| format!("light-dark({},{})", ink.colour(Theme::Light), ink.colour(Theme::Dark));
    inks().map(|ink| format!("--g-{}:{};", ink.name(), both(ink))).collect()
}

/// Rules that paint drawings with the variables of the page.
pub(crate) fn painted_by_variables() -> String {
    inks().map(|ink| ink.name()).map(|name| format!(".rf-{name}{{fill:var(--g-{name})}}.rs-{name}{{stroke:var(--g-{name})}}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rgb(hex: &str) -> [f64; 3] {
        std::array::from_fn(|i| f64::from(u8::from_str_radix(&hex[1 + 2 * i..3 + 2 * i], 16).unwrap()) / 255.0)
    }

    fn linear(c: [f64; 3]) -> [f64; 3] {
        c.map(|x| if x <= 0.04045 { x / 12.92 } else { ((x + 0.055) / 1.055).powf(2.4) })
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |c| {
            let [r, g, b] = linear(rgb(c));
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// CIE L*a*b* of a linear colour, D65.
    fn lab([r, g, b]: [f64; 3]) -> [f64; 3] {
        let xyz = [
            (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
            0.2126 * r + 0.7152 * g + 0.0722 * b,
            (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
        ];
        let [x, y, z] = xyz.map(|t| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
    }

    #[test]
    fn text_and_series_stand_out_from_the_paper() {
        for theme in [Theme::Light, Theme::Dark] {
            let paper = Ink::Paper.colour(theme);
            for n in 0..SERIES_COLOURS {
                let c = contrast(Ink::Series(n).colour(theme), paper);
                assert!(c >= 3.0, "series {n} in {theme:?}: {c}");
            }
            for ink in [Ink::Text, Ink::Soft, Ink::Reference, Ink::Alarm] {
                let c = contrast(ink.colour(theme), paper);
                assert!(c >= 4.5, "{ink:?} in {theme:?}: {c}");
            }
        }
    }

    #[test]
    fn colour_blind_readers_tell_the_series_apart() {
        // Severe protanomaly, deuteranomaly, tritanomaly as matrices on linear RGB (Machado, Oliveira, Fernandes 2009).
        let deficiencies = [
            [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
        ];
        for theme in [Theme::Light, Theme::Dark] {
            for matrix in deficiencies {
                let seen = |n: usize| {
                    let c = linear(rgb(Ink::Series(n).colour(theme)));
                    lab(matrix.map(|row| row.iter().zip(c).map(|(m, c)| m * c).sum::<f64>().clamp(0.0, 1.0)))
                };
                for (a, b) in (0..SERIES_COLOURS).flat_map(|a| (0..a).map(move |b| (a, b))) {
                    let d = distance(seen(a), seen(b));
                    let least = if a < 5 { 18.0 } else { 14.0 };
                    assert!(d >= least, "{a} and {b} in {theme:?}: {d}");
                }
            }
        }
    }

    #[test]
    fn repainting_covers_every_ink() {
        let (css, variables, rules) = (repaint(Theme::Dark), variables(), painted_by_variables());
        for ink in inks() {
            let (name, light, colour) = (ink.name(), ink.colour(Theme::Light), ink.colour(Theme::Dark));
            assert!(css.contains(&format!(".rf-{name}{{fill:{colour}}}")) && css.contains(&format!(".rs-{name}{{stroke:{colour}}}")));
            assert!(
                variables.contains(&format!("--g-{name}:light-dark({light},{colour});")) && rules.contains(&format!("var(--g-{name})"))
            );
        }
    }
}
