//! Grouped bars, upright or lying, with their values and intervals.

use super::axis::{Axis, Fit, Range, plain_number, short_number};
use super::lines::marker;
use super::plane::{Edges, Entry, Plane, Reference, TICK, draw_legend, heading, heading_height, legend_height, tick_width, x_title};
use super::svg::{Anchor, Svg, TextStyle, n};
use super::text::{plain, shorten, width, wrap};
use super::theme::Ink;
use std::fmt::Write as _;

/// One colour of bars: a value for every category.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BarSeries {
    /// The name in the legend.
    pub label: String,
    /// One value per category; NaN leaves a gap.
    pub values: Vec<f64>,
    /// Lower and upper ends of intervals, as many as values, or none.
    pub intervals: Vec<(f64, f64)>,
    /// Place in the palette; the place in the plot where `None`.
    pub colour: Option<usize>,
}

/// Grouped bars.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BarPlot {
    /// Above the plot; may be empty.
    pub title: String,
    /// What the categories are.
    pub category_title: String,
    /// Names of the categories, as they are (no markup).
    pub categories: Vec<String>,
    /// The axis of the values.
    pub values: Axis,
    /// The bars.
    pub series: Vec<BarSeries>,
    /// Lines across the bars, each at a value and with a label.
    pub references: Vec<(f64, String)>,
    /// Write each value at its bar.
    pub show_values: bool,
    /// Lay the bars, with the names at the left: for many or long names.
    pub lying: bool,
    /// Dots instead of bars, for values that do not begin at zero; lying plots only.
    pub dots: bool,
    /// A range of values that is shaded, with its label; lying plots only.
    pub band: Option<(f64, f64, String)>,
}

impl BarPlot {
    /// No bars yet; values are written at the bars.
    pub fn new(title: impl Into<String>, category_title: impl Into<String>, categories: Vec<String>, values: Axis) -> Self {
        Self { title: title.into(), category_title: category_title.into(), categories, values, show_values: true, ..Self::default() }
    }

    /// Add bars of one colour.
    pub fn bars(mut self, label: impl Into<String>, values: Vec<f64>) -> Self {
        self.series.push(BarSeries { label: label.into(), values, ..BarSeries::default() });
        self
    }

    /// Add bars of one colour with intervals.
    pub fn bars_with_intervals(mut self, label: impl Into<String>, values: Vec<f64>, intervals: Vec<(f64, f64)>) -> Self {
        self.series.push(BarSeries { label: label.into(), values, intervals, colour: None });
        self
    }

    /// Dots instead of bars, lying.
    pub fn as_dots(mut self) -> Self {
        (self.lying, self.dots, self.show_values) = (true, true, false);
        self
    }

    /// Shade a range of values.
    pub fn shaded(mut self, from: f64, to: f64, label: impl Into<String>) -> Self {
        self.band = Some((from, to, label.into()));
        self
    }

    /// Add a line at a value.
    pub fn reference(mut self, value: f64, label: impl Into<String>) -> Self {
        self.references.push((value, label.into()));
        self
    }

    /// Lay the bars.
    pub fn lying(mut self) -> Self {
        self.lying = true;
        self
    }

    fn ink(&self, place: usize) -> Ink {
        Ink::Series(self.series[place].colour.unwrap_or(place))
    }

    /// One sentence of what the bars show.
    pub(crate) fn describe(&self) -> String {
        let mut out = format!("{} by {}.", plain(&self.values.title), plain(&self.category_title));
        for s in &self.series {
            let parts: Vec<String> = self.categories.iter().zip(&s.values).map(|(c, v)| format!("{c} {}", plain_number(*v))).collect();
            let _ = write!(out, " {}: {}.", plain(&s.label), parts.join(", "));
        }
        out
    }

    /// Preferred height of the panel.
    pub(crate) fn height(&self, usual: f64) -> f64 {
        let bars = (self.categories.len() * self.series.len().max(1)) as f64;
        let lying = bars * 17.0 + self.categories.len() as f64 * 10.0 + 120.0 + self.label_room();
        if self.lying { lying.max(170.0) } else { usual }
    }

    /// Above lying bars, for what reference lines are called.
    fn label_room(&self) -> f64 {
        if self.band.is_some() || self.references.iter().any(|(_, label)| !label.is_empty()) { TICK * 1.5 } else { 0.0 }
    }

    pub(crate) fn draw(&self, svg: &mut Svg, at: Edges, letter: Option<char>) {
        let entries = self.legend();
        let mut top = at.top + heading_height(&self.title, letter, at.width());
        heading(svg, at.left, at.top, at.width(), letter, &self.title);
        draw_legend(svg, &entries, at.left + 4.0, top, at.width());
        top += legend_height(&entries, at.width()) + 8.0;
        let heights = self.series.iter().flat_map(|s| s.values.iter().copied().chain(s.intervals.iter().flat_map(|i| [i.0, i.1])));
        let references = self.references.iter().map(|r| r.0);
        let zero = (self.values.scale == super::Scale::Linear).then_some(0.0);
        let range = Range::new(&self.values, heights.chain(references).chain(zero), Fit::Ticks, 5);
        if self.lying { self.draw_lying(svg, at, top, range) } else { self.draw_upright(svg, at, top, range) }
    }

    fn legend(&self) -> Vec<Entry<'_>> {
        if self.series.len() < 2 {
            return Vec::new();
        }
        (0..self.series.len())
            .map(|i| Entry {
                label: &self.series[i].label,
                sample: Box::new(move |svg: &mut Svg, x: f64, y: f64| {
                    if self.dots {
                        svg.shape(&marker(i, x + 4.0, y, 4.4), self.ink(i), Ink::Paper, 1.2);
                    } else {
                        svg.rect(x - 2.0, y - 6.0, 13.0, 12.0, self.ink(i), "rx=\"2\"", "");
                    }
                }),
            })
            .collect()
    }

    /// Left (or top) edge and thickness of a bar, as shares of the category axis.
    fn slot(&self, category: usize, series: usize) -> (f64, f64) {
        let (c, s) = (self.categories.len().max(1) as f64, self.series.len().max(1) as f64);
        let space = 0.74 / c;
        let thick = space / s;
        ((category as f64 + 0.13) / c + series as f64 * thick, thick)
    }

    fn hover(&self, category: usize, series: usize) -> String {
        let s = &self.series[series];
        let mut out = format!(
            "{}, {}\n{}: {}",
            self.categories[category],
            plain(&s.label),
            plain(&self.values.title),
            plain_number(s.values[category])
        );
        if let Some((low, high)) = s.intervals.get(category) {
            let _ = write!(out, " ({} to {})", plain_number(*low), plain_number(*high));
        }
        out
    }

    fn each(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        let count = self.categories.len();
        self.series.iter().enumerate().flat_map(move |(s, series)| {
            series.values.iter().copied().enumerate().filter(move |(c, v)| *c < count && v.is_finite()).map(move |(c, v)| (c, s, v))
        })
    }

    fn draw_upright(&self, svg: &mut Svg, at: Edges, top: f64, range: Range) {
        let labels = tick_width(&range);
        let left = at.left + labels + if self.values.title.is_empty() { 12.0 } else { 34.0 };
        let slot = (at.right - 8.0 - left) / self.categories.len().max(1) as f64;
        let names: Vec<Vec<String>> = self.categories.iter().map(|c| wrap(c, TICK, slot - 6.0)).collect();
        let turned = names.iter().flatten().any(|l| width(l, TICK) > slot - 2.0);
        let lines = names.iter().map(Vec::len).max().unwrap_or(1);
        let below = if turned {
            self.categories.iter().map(|c| width(c, TICK)).fold(0.0, f64::max).min(110.0) * 0.72 + 18.0
        } else {
            lines as f64 * TICK * 1.2 + 8.0
        };
        let bottom = at.bottom - below - if self.category_title.is_empty() { 4.0 } else { 26.0 };
        let edges = Edges { left, top: top + if self.show_values { 8.0 } else { 0.0 }, right: at.right - 8.0, bottom };
        let none = Range::new(&Axis::linear("").limits(0.0, 1.0), [], Fit::Tight, 2);
        let plane = Plane { edges, x: none, y: range };
        plane.draw_y(svg, &self.values, labels);
        let base = plane.py(0.0).unwrap_or(edges.bottom).clamp(edges.top, edges.bottom);
        let thick = self.slot(0, 0).1 * edges.width();
        // All values or none: a few of them would look like a choice.
        let values = self.show_values && self.each().all(|(_, _, v)| width(&short_number(v), TICK - 1.5) <= thick * 1.3);
        let (mut busy, mut written) = (Vec::new(), Vec::new());
        for (c, s, v) in self.each() {
            let (from, thick) = self.slot(c, s);
            let (x, w) = (edges.left + from * edges.width(), thick * edges.width());
            let Some(y) = plane.py(v).map(|y| y.clamp(edges.top - 4.0, edges.bottom)) else { continue };
            svg.rect(x + 0.7, y.min(base), w - 1.4, (y - base).abs(), self.ink(s), "rx=\"1.5\"", &self.hover(c, s));
            busy.extend((0..8).map(|k| (x + w / 2.0, y + f64::from(k) / 8.0 * (base - y))));
            let mut tip = y.min(base);
            if let Some((low, high)) = self.series[s].intervals.get(c) {
                let (l, h) = (plane.py(*low).unwrap_or(edges.bottom), plane.py(*high).unwrap_or(edges.bottom));
                let m = x + w / 2.0;
                svg.path(
                    &format!("M{m} {l}V{h}M{a} {h}H{b}M{a} {l}H{b}", m = n(m), l = n(l), h = n(h), a = n(m - 3.5), b = n(m + 3.5)),
                    Ink::Text,
                    1.3,
                    "",
                );
                tip = tip.min(h);
            }
            if values {
                let y = if v < 0.0 && y > base { y + TICK } else { tip - 5.0 };
                written.push((x + w / 2.0, y, short_number(v)));
            }
        }
        svg.line((edges.left, base), (edges.right, base), Ink::Axis, 1.2, "");
        let horizontal: Vec<Reference> =
            self.references.iter().map(|(y, label)| Reference::Horizontal { y: *y, label: label.clone() }).collect();
        busy.extend(written.iter().map(|(x, y, _)| (*x, y - TICK * 0.32)));
        plane.references(svg, &horizontal, &busy);
        // Over the lines, so that no line crosses a number.
        for (x, y, value) in &written {
            svg.text(*x, *y, value, TextStyle::new(TICK - 1.5, Ink::Text).anchor(Anchor::Middle).halo());
        }
        for (c, lines) in names.iter().enumerate() {
            let x = edges.left + (c as f64 + 0.5) * slot;
            if turned {
                let name = shorten(&self.categories[c], TICK, 110.0);
                svg.raw_text(x + 4.0, edges.bottom + 14.0, &name, TextStyle::new(TICK, Ink::Soft).anchor(Anchor::End).turn(-40.0));
            } else {
                for (k, line) in lines.iter().enumerate() {
                    let y = edges.bottom + 18.0 + k as f64 * TICK * 1.2;
                    svg.raw_text(x, y, line, TextStyle::new(TICK, Ink::Soft).anchor(Anchor::Middle));
                }
            }
        }
        x_title(svg, edges, &self.category_title, at.bottom - 8.0);
    }

    fn draw_lying(&self, svg: &mut Svg, at: Edges, top: f64, range: Range) {
        let name_limit = at.width() * 0.42;
        let widest = self.categories.iter().map(|c| width(c, TICK)).fold(0.0, f64::max).min(name_limit);
        let edges =
            Edges { left: at.left + widest + 12.0, top: top + 2.0 + self.label_room(), right: at.right - 46.0, bottom: at.bottom - 50.0 };
        let none = Range::new(&Axis::linear("").limits(0.0, 1.0), [], Fit::Tight, 2);
        let plane = Plane { edges, x: range, y: none };
        for tick in plane.x.ticks.iter().filter(|t| !t.label.is_empty()) {
            let Some(x) = plane.px(tick.value) else { continue };
            svg.line((x, edges.top), (x, edges.bottom), Ink::Grid, 1.0, "");
            svg.text(x, edges.bottom + 19.0, &tick.label, TextStyle::new(TICK, Ink::Soft).anchor(Anchor::Middle));
        }
        if let Some((from, to, label)) = &self.band
            && let (Some(from), Some(to)) = (plane.px(*from), plane.px(*to))
        {
            let (from, to) = (from.clamp(edges.left, edges.right), to.clamp(edges.left, edges.right));
            let path = format!("M{} {}H{}V{}H{}z", n(from), n(edges.top), n(to), n(edges.bottom), n(from));
            svg.area(&path, Ink::Reference, 0.14);
            let middle = f64::midpoint(from, to);
            svg.text(middle, edges.top - TICK * 0.5, label, TextStyle::new(TICK, Ink::Reference).anchor(Anchor::Middle));
        }
        let base = plane.px(0.0).unwrap_or(edges.left).clamp(edges.left, edges.right);
        let mut written = Vec::new();
        for (c, s, v) in self.each() {
            let (from, thick) = self.slot(c, s);
            let (y, h) = (edges.top + from * edges.height(), thick * edges.height());
            let Some(x) = plane.px(v).map(|x| x.clamp(edges.left, edges.right)) else { continue };
            if self.dots {
                let m = y + h / 2.0;
                if let Some((low, high)) = self.series[s].intervals.get(c)
                    && let (Some(l), Some(r)) = (plane.px(*low), plane.px(*high))
                {
                    svg.path(
                        &format!("M{} {}H{}", n(l.clamp(edges.left, edges.right)), n(m), n(r.clamp(edges.left, edges.right))),
                        self.ink(s),
                        1.6,
                        "",
                    );
                }
                svg.shape(&marker(s, x, m, 4.4), self.ink(s), Ink::Paper, 1.2);
                svg.target(x, m, 8.0, &self.hover(c, s));
                continue;
            }
            svg.rect(x.min(base), y + 0.7, (x - base).abs(), h - 1.4, self.ink(s), "rx=\"1.5\"", &self.hover(c, s));
            let mut tip = x.max(base);
            if let Some((low, high)) = self.series[s].intervals.get(c) {
                let (l, r) = (plane.px(*low).unwrap_or(edges.left), plane.px(*high).unwrap_or(edges.left));
                let m = y + h / 2.0;
                svg.path(
                    &format!("M{l} {m}H{r}M{l} {a}V{b}M{r} {a}V{b}", m = n(m), l = n(l), r = n(r), a = n(m - 3.5), b = n(m + 3.5)),
                    Ink::Text,
                    1.3,
                    "",
                );
                tip = tip.max(r);
            }
            if self.show_values {
                written.push((tip + 5.0, y + h / 2.0, short_number(v)));
            }
        }
        svg.line((base, edges.top), (base, edges.bottom), Ink::Axis, 1.2, "");
        // Labels stand above the plane: within, there are bars from end to end.
        for (value, label) in &self.references {
            let Some(x) = plane.px(*value) else { continue };
            svg.line((x, edges.top), (x, edges.bottom), Ink::Reference, 1.3, "2 3.5");
            let half = width(label, TICK) / 2.0;
            let middle = x.min(at.right - half).max(edges.left + half);
            svg.text(middle, edges.top - TICK * 0.5, label, TextStyle::new(TICK, Ink::Reference).anchor(Anchor::Middle));
        }
        // Over the lines, so that no line crosses a number.
        for (x, y, value) in &written {
            svg.text(*x, y + TICK * 0.32, value, TextStyle::new(TICK - 1.0, Ink::Text).halo());
        }
        for (c, name) in self.categories.iter().enumerate() {
            let y = edges.top + (c as f64 + 0.5) / self.categories.len() as f64 * edges.height();
            let name = shorten(name, TICK, name_limit);
            svg.raw_text(edges.left - 8.0, y + TICK * 0.35, &name, TextStyle::new(TICK, Ink::Text).anchor(Anchor::End));
        }
        x_title(svg, edges, &self.values.title, edges.bottom + 40.0);
    }
}
