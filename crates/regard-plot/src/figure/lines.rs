//! Line plots: several series with markers, confidence bands, reference lines, and names beside the lines.

use super::axis::{Axis, Fit, Range, plain_number};
use super::plane::{BOLD, Edges, Entry, Plane, Reference, TICK, draw_legend, heading, heading_height, legend_height, spread, tick_width};
use super::series::{Line, Point, Series};
use super::svg::{Svg, TextStyle, n};
use super::text::{plain, width, wrap};
use super::theme::Ink;
use std::fmt::Write as _;

/// Where the names of series stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Names {
    /// Beside the right end of each line, in its colour.
    #[default]
    Beside,
    /// In a legend above the plot.
    Legend,
    /// Nowhere: another panel has them.
    Nowhere,
}

/// A line plot.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinePlot {
    /// Above the plot; may be empty.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn, later ones on top.
    pub series: Vec<Series>,
    /// Lines across the plot.
    pub references: Vec<Reference>,
    /// Where the names of series stand.
    pub names: Names,
}

impl LinePlot {
    /// An empty plot.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, ..Self::default() }
    }

    /// Add a series.
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Add a dotted horizontal line.
    pub fn horizontal(mut self, y: f64, label: impl Into<String>) -> Self {
        self.references.push(Reference::Horizontal { y, label: label.into() });
        self
    }

    /// Add a dotted vertical line.
    pub fn vertical(mut self, x: f64, label: impl Into<String>) -> Self {
        self.references.push(Reference::Vertical { x, label: label.into() });
        self
    }

    /// Say where the names of series stand.
    pub fn names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    fn ink(&self, place: usize) -> Ink {
        Ink::Series(self.series[place].colour.unwrap_or(place))
    }

    /// One sentence of what the plot shows.
    pub(crate) fn describe(&self) -> String {
        let mut out = format!("{} against {}.", plain(&self.y.title), plain(&self.x.title));
        for s in &self.series {
            let seen: Vec<&Point> = s.points.iter().filter(|p| p.x.is_finite() && p.y.is_finite()).collect();
            if let (Some(first), Some(last)) = (seen.first(), seen.last())
                && !s.label.is_empty()
            {
                let _ = write!(
                    out,
                    " {}: {} at {} to {} at {}.",
                    plain(&s.label),
                    plain_number(first.y),
                    plain_number(first.x),
                    plain_number(last.y),
                    plain_number(last.x)
                );
            }
        }
        out
    }

    fn named(&self) -> impl Iterator<Item = (usize, &Series)> {
        self.series.iter().enumerate().filter(|(_, s)| !s.label.is_empty())
    }

    pub(crate) fn draw(&self, svg: &mut Svg, at: Edges, letter: Option<char>) {
        let steps = self.series.iter().any(|s| s.line == Line::Steps);
        let all = || self.series.iter().flat_map(|s| s.points.iter());
        let spans = all().filter(|p| p.y.is_finite()).map(|p| p.x).chain(self.references.iter().filter_map(|r| match r {
            Reference::Vertical { x, .. } => Some(*x),
            Reference::Horizontal { .. } => None,
        }));
        // Labels of vertical lines stand above a histogram.
        let extra = (steps && self.references.iter().any(|r| matches!(r, Reference::Vertical { .. })))
            .then(|| 1.16 * all().map(|p| p.y).filter(|y| y.is_finite()).fold(0.0, f64::max));
        let heights = all()
            .flat_map(|p| [Some(p.y), p.interval.map(|i| i.0), p.interval.map(|i| i.1)])
            .flatten()
            .chain(self.references.iter().filter_map(|r| match r {
                Reference::Horizontal { y, .. } => Some(*y),
                Reference::Vertical { .. } => None,
            }))
            .chain(steps.then_some(0.0))
            .chain(extra);
        let y = Range::new(&self.y, heights, Fit::Ticks, 5);
        let labels = tick_width(&y);
        let left = at.left + labels + if self.y.title.is_empty() { 12.0 } else { 34.0 };
        let beside: Vec<(usize, Vec<String>)> = if self.names == Names::Beside {
            self.named().map(|(i, s)| (i, wrap(&s.label, TICK * BOLD, 0.33 * at.width()))).collect()
        } else {
            Vec::new()
        };
        let widest = beside.iter().flat_map(|(_, lines)| lines).map(|l| width(l, TICK * BOLD)).fold(0.0, f64::max);
        let right = at.right - if widest > 0.0 { widest + 20.0 } else { 14.0 };
        let entries = self.legend();
        let mut top = at.top + heading_height(&self.title, letter, at.width());
        heading(svg, at.left, at.top, at.width(), letter, &self.title);
        draw_legend(svg, &entries, left, top, at.right - left);
        top += legend_height(&entries, at.right - left) + 8.0;
        let edges = Edges { left, top, right, bottom: at.bottom - 50.0 };
        let wanted = (edges.width() / 75.0) as usize;
        let plane = Plane { edges, x: Range::new(&self.x, spans, Fit::Padded, wanted), y };
        plane.draw(svg, &self.x, &self.y, labels);
        self.draw_series(svg, &plane);
        self.draw_names(svg, &plane, &beside);
        self.draw_targets(svg, &plane);
    }

    fn legend(&self) -> Vec<Entry<'_>> {
        if self.names != Names::Legend {
            return Vec::new();
        }
        self.named()
            .map(|(i, s)| Entry {
                label: &s.label,
                sample: Box::new(move |svg: &mut Svg, x: f64, y: f64| {
                    let ink = self.ink(i);
                    if s.points.iter().any(|p| p.interval.is_some()) && s.line != Line::None {
                        svg.area(&format!("M{} {}h26v10h-26z", n(x - 13.0), n(y - 5.0)), ink, 0.2);
                    }
                    match s.line {
                        Line::None => {}
                        Line::Steps => svg.area(&format!("M{} {}h26v10h-26z", n(x - 13.0), n(y - 5.0)), ink, 0.5),
                        line => svg.line((x - 13.0, y), (x + 13.0, y), ink, 2.2, dash(line)),
                    }
                    if s.markers {
                        svg.shape(&marker(i, x, y, 4.2), ink, Ink::Paper, 1.2);
                    }
                }),
            })
            .collect()
    }

    fn draw_series(&self, svg: &mut Svg, plane: &Plane) {
        let clip = svg.fresh_id("clip");
        let e = plane.edges;
        svg.raw(&format!(
            "<clipPath id=\"{clip}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>",
            n(e.left - 6.0),
            n(e.top - 6.0),
            n(e.width() + 12.0),
            n(e.height() + 12.0)
        ));
        svg.open(&format!("clip-path=\"url(#{clip})\""));
        for (i, s) in self.series.iter().enumerate() {
            let path = band(plane, &s.points);
            if s.line != Line::None && !path.is_empty() {
                svg.area(&path, self.ink(i), 0.2);
            }
        }
        plane.references(svg, &self.references, &self.busy(plane));
        for (i, s) in self.series.iter().enumerate() {
            let ink = self.ink(i);
            match s.line {
                Line::None => error_bars(svg, plane, &s.points, ink),
                Line::Steps => {
                    let (outline, fill) = staircase(plane, &s.points);
                    svg.area(&fill, ink, 0.32);
                    svg.path(&outline, ink, 1.6, "");
                }
                line => svg.path(&joined(plane, &s.points), ink, 2.2, dash(line)),
            }
            if s.markers && s.points.len() <= 40 {
                for (x, y) in s.points.iter().filter_map(|p| plane.at(p.x, p.y)) {
                    svg.shape(&marker(i, x, y, 4.4), ink, Ink::Paper, 1.3);
                }
            }
        }
        svg.close();
    }

    /// Places along the lines, for labels to keep away from.
    fn busy(&self, plane: &Plane) -> Vec<(f64, f64)> {
        let mut busy = Vec::new();
        for s in &self.series {
            let mut places: Vec<(f64, f64)> = s.points.iter().filter_map(|p| plane.at(p.x, p.y)).collect();
            if s.line == Line::Steps {
                places = places.windows(2).flat_map(|p| [p[0], (p[1].0, p[0].1)]).collect();
            }
            for pair in places.windows(2) {
                let cuts = 12;
                busy.extend((0..=cuts).map(|k| {
                    let t = f64::from(k) / f64::from(cuts);
                    (pair[0].0 + t * (pair[1].0 - pair[0].0), pair[0].1 + t * (pair[1].1 - pair[0].1))
                }));
            }
            busy.extend(places);
        }
        busy
    }

    fn draw_names(&self, svg: &mut Svg, plane: &Plane, beside: &[(usize, Vec<String>)]) {
        let line_height = TICK * 1.22;
        let e = plane.edges;
        let ends: Vec<(f64, f64)> = beside
            .iter()
            .map(|(i, _)| {
                let last = self.series[*i].points.iter().rev().find_map(|p| plane.at(p.x, p.y));
                last.map_or((e.right, e.top), |(x, y)| (x, y.clamp(e.top, e.bottom)))
            })
            .collect();
        let wanted: Vec<(f64, f64)> =
            ends.iter().zip(beside).map(|(end, (_, lines))| (end.1, lines.len() as f64 * line_height + 3.0)).collect();
        let centres = spread(&wanted, e.top - 8.0, e.bottom + 8.0);
        for (((i, lines), end), centre) in beside.iter().zip(&ends).zip(centres) {
            let (ink, x) = (self.ink(*i), e.right + 14.0);
            if (centre - end.1).abs() > 5.0 {
                svg.path(&format!("M{} {}L{} {}", n(end.0 + 7.0), n(end.1), n(x - 3.0), n(centre)), ink, 0.9, "");
            }
            for (k, line) in lines.iter().enumerate() {
                let y = centre + (k as f64 - (lines.len() - 1) as f64 / 2.0) * line_height + TICK * 0.35;
                svg.text(x, y, line, TextStyle::new(TICK, ink).bold());
            }
        }
    }

    /// Invisible circles to point at, with the values as titles.
    fn draw_targets(&self, svg: &mut Svg, plane: &Plane) {
        let (x_name, y_name) = (plain(&self.x.title), plain(&self.y.title));
        for s in &self.series {
            let every = s.points.len().div_ceil(200).max(1);
            for p in s.points.iter().step_by(every) {
                let Some((x, y)) = plane.at(p.x, p.y) else { continue };
                let mut title = if s.label.is_empty() { String::new() } else { format!("{}\n", plain(&s.label)) };
                let _ = write!(title, "{y_name}: {}", plain_number(p.y));
                if let Some((low, high)) = p.interval {
                    let _ = write!(title, " ({} to {})", plain_number(low), plain_number(high));
                }
                let _ = write!(title, "\n{x_name}: {}", plain_number(p.x));
                svg.target(x, y, 9.0, &title);
            }
        }
    }
}

fn dash(line: Line) -> &'static str {
    match line {
        Line::Dashed => "6 4.5",
        Line::Dotted => "1 4.5",
        _ => "",
    }
}

/// A marker: circle, square, triangle, diamond, triangle down, cross, by the place of the series.
pub(crate) fn marker(place: usize, x: f64, y: f64, r: f64) -> String {
    let shape = |points: &[(f64, f64)]| {
        let mut d = String::new();
        for (i, (dx, dy)) in points.iter().enumerate() {
            let _ = write!(d, "{}{} {}", if i == 0 { 'M' } else { 'L' }, n(x + dx * r), n(y + dy * r));
        }
        d.push('z');
        d
    };
    match place % 6 {
        0 => format!("M{} {}a{r} {r} 0 1 0 {} 0a{r} {r} 0 1 0 {} 0z", n(x - r), n(y), n(2.0 * r), n(-2.0 * r), r = n(r)),
        1 => shape(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => shape(&[(0.0, -1.2), (1.1, 0.85), (-1.1, 0.85)]),
        3 => shape(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
        4 => shape(&[(0.0, 1.2), (1.1, -0.85), (-1.1, -0.85)]),
        _ => shape(&[
            (-0.4, -1.2),
            (0.4, -1.2),
            (0.4, -0.4),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-0.4, 0.4),
            (-1.2, 0.4),
            (-1.2, -0.4),
            (-0.4, -0.4),
        ]),
    }
}

/// The line through the points, with a new start after each gap.
fn joined(plane: &Plane, points: &[Point]) -> String {
    let mut d = String::new();
    let mut pen_down = false;
    for p in points {
        match plane.at(p.x, p.y) {
            Some((x, y)) => {
                let _ = write!(d, "{}{} {}", if pen_down { 'L' } else { 'M' }, n(x), n(y));
                pen_down = true;
            }
            None => pen_down = false,
        }
    }
    d
}

/// The band of the intervals. An end that the axis cannot show is drawn at the nearer edge.
fn band(plane: &Plane, points: &[Point]) -> String {
    let e = plane.edges;
    let mut d = String::new();
    let mut run: Vec<(f64, f64, f64)> = Vec::new();
    let mut flush = |run: &mut Vec<(f64, f64, f64)>| {
        if run.len() >= 2 {
            for (i, (x, _, high)) in run.iter().enumerate() {
                let _ = write!(d, "{}{} {}", if i == 0 { 'M' } else { 'L' }, n(*x), n(*high));
            }
            for (x, low, _) in run.iter().rev() {
                let _ = write!(d, "L{} {}", n(*x), n(*low));
            }
            d.push('z');
        }
        run.clear();
    };
    for p in points {
        match (plane.px(p.x), p.interval) {
            (Some(x), Some((low, high))) if low.is_finite() && high.is_finite() => {
                run.push((x, plane.py(low).unwrap_or(e.bottom), plane.py(high).unwrap_or(e.bottom)));
            }
            _ => flush(&mut run),
        }
    }
    flush(&mut run);
    d
}

fn error_bars(svg: &mut Svg, plane: &Plane, points: &[Point], ink: Ink) {
    for p in points {
        if let (Some(x), Some((low, high))) = (plane.px(p.x), p.interval) {
            let (low, high) = (plane.py(low).unwrap_or(plane.edges.bottom), plane.py(high).unwrap_or(plane.edges.bottom));
            svg.path(
                &format!("M{x} {l}V{h}M{a} {l}H{b}M{a} {h}H{b}", x = n(x), l = n(low), h = n(high), a = n(x - 4.0), b = n(x + 4.0)),
                ink,
                1.6,
                "",
            );
        }
    }
}

/// Outline and filled area of a staircase.
fn staircase(plane: &Plane, points: &[Point]) -> (String, String) {
    let places: Vec<(f64, f64)> = points.iter().filter_map(|p| plane.at(p.x, p.y)).collect();
    let Some(first) = places.first() else { return (String::new(), String::new()) };
    let base = plane.py(0.0).unwrap_or(plane.edges.bottom).min(plane.edges.bottom);
    let mut outline = format!("M{} {}V{}", n(first.0), n(base), n(first.1));
    for (x, y) in &places[1..] {
        let _ = write!(outline, "H{}V{}", n(*x), n(*y));
    }
    let fill = format!("{outline}V{}H{}z", n(base), n(first.0));
    (outline, fill)
}
