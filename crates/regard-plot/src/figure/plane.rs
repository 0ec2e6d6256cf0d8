//! What line plots and bars share: the plot's rectangle, grid, ticks, titles, legends, reference lines, and places for labels.

use super::axis::{Axis, Range};
use super::svg::{Anchor, Svg, TextStyle};
use super::text::{width, wrap};
use super::theme::Ink;

/// Sizes of text, in units of a drawing (a panel is about 480 wide: at half that width 13 is still 6.5 px).
pub(crate) const TICK: f64 = 13.5;
pub(crate) const LABEL: f64 = 14.5;
pub(crate) const HEADING: f64 = 16.0;

/// How much wider bold text may be than the metrics of the regular face: a fifteenth in the same font, a fifth in the widest that
/// a browser may have instead.
pub(crate) const BOLD: f64 = 1.2;

/// A rectangle, by its edges.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Edges {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Edges {
    pub(crate) fn width(&self) -> f64 {
        self.right - self.left
    }
    pub(crate) fn height(&self) -> f64 {
        self.bottom - self.top
    }
    fn overlap(&self, other: &Self) -> f64 {
        let x = self.right.min(other.right) - self.left.max(other.left);
        let y = self.bottom.min(other.bottom) - self.top.max(other.top);
        if x > 0.0 && y > 0.0 { x * y } else { 0.0 }
    }
}

/// A line across the plot, with a label.
#[derive(Debug, Clone, PartialEq)]
pub enum Reference {
    /// At a height.
    Horizontal {
        /// Where.
        y: f64,
        /// What it stands for.
        label: String,
    },
    /// At a place of the horizontal axis.
    Vertical {
        /// Where.
        x: f64,
        /// What it stands for.
        label: String,
    },
}

/// The plot's rectangle with its axes.
pub(crate) struct Plane {
    pub(crate) edges: Edges,
    pub(crate) x: Range,
    pub(crate) y: Range,
}

impl Plane {
    pub(crate) fn px(&self, x: f64) -> Option<f64> {
        self.x.share(x).map(|s| self.edges.left + s * self.edges.width())
    }
    pub(crate) fn py(&self, y: f64) -> Option<f64> {
        self.y.share(y).map(|s| self.edges.bottom - s * self.edges.height())
    }
    /// Where a point lies; `None` where an axis cannot show it.
    pub(crate) fn at(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        Some((self.px(x)?, self.py(y)?))
    }

    /// Horizontal grid, both axes with ticks.
    pub(crate) fn draw(&self, svg: &mut Svg, x_axis: &Axis, y_axis: &Axis, y_label_width: f64) {
        let e = self.edges;
        self.draw_y(svg, y_axis, y_label_width);
        svg.line((e.left, e.bottom), (e.right, e.bottom), Ink::Axis, 1.2, "");
        let mut free = f64::NEG_INFINITY;
        for tick in &self.x.ticks {
            let Some(x) = self.px(tick.value) else { continue };
            let major = !tick.label.is_empty();
            svg.line((x, e.bottom), (x, e.bottom + if major { 5.0 } else { 3.0 }), Ink::Axis, 1.2, "");
            let half = width(&tick.label, TICK) / 2.0;
            if major && x - half > free {
                svg.text(x, e.bottom + 19.0, &tick.label, TextStyle::new(TICK, Ink::Soft).anchor(Anchor::Middle));
                free = x + half + 5.0;
            }
        }
        x_title(svg, e, &x_axis.title, e.bottom + 40.0);
    }

    /// The vertical axis alone: grid, tick labels, rotated title.
    pub(crate) fn draw_y(&self, svg: &mut Svg, axis: &Axis, label_width: f64) {
        let e = self.edges;
        for tick in &self.y.ticks {
            let Some(y) = self.py(tick.value) else { continue };
            if tick.label.is_empty() {
                svg.line((e.left - 4.0, y), (e.left, y), Ink::Axis, 0.8, "");
            } else {
                svg.line((e.left, y), (e.right, y), Ink::Grid, 1.0, "");
                svg.text(e.left - 8.0, y + TICK * 0.35, &tick.label, TextStyle::new(TICK, Ink::Soft).anchor(Anchor::End));
            }
        }
        y_title(svg, e, &axis.title, e.left - label_width - 22.0);
    }

    /// Reference lines with their labels, each where it covers least of `busy` (places that hold data).
    pub(crate) fn references(&self, svg: &mut Svg, references: &[Reference], busy: &[(f64, f64)]) {
        let mut labels: Vec<(&str, Vec<Edges>)> = Vec::new();
        let e = self.edges;
        for reference in references {
            match reference {
                Reference::Horizontal { y, label } => {
                    let Some(y) = self.py(*y).filter(|y| *y >= e.top - 0.5 && *y <= e.bottom + 0.5) else { continue };
                    svg.line((e.left, y), (e.right, y), Ink::Reference, 1.3, "2 3.5");
                    labels.push((label, self.beside_horizontal(y, width(label, TICK))));
                }
                Reference::Vertical { x, label } => {
                    let Some(x) = self.px(*x).filter(|x| *x >= e.left - 0.5 && *x <= e.right + 0.5) else { continue };
                    svg.line((x, e.top), (x, e.bottom), Ink::Reference, 1.3, "2 3.5");
                    labels.push((label, self.beside_vertical(x, width(label, TICK))));
                }
            }
        }
        labels.retain(|(label, _)| !label.is_empty());
        for ((label, _), place) in labels.iter().zip(self.places(&labels, busy)) {
            svg.text(place.left, place.bottom - TICK * 0.32, label, TextStyle::new(TICK, Ink::Reference).halo());
        }
    }

    /// Places for a label of a horizontal line, best first.
    fn beside_horizontal(&self, y: f64, w: f64) -> Vec<Edges> {
        let e = self.edges;
        let (left, right, middle) = (e.left + 6.0, e.right - w - 4.0, f64::midpoint(e.left, e.right) - w / 2.0);
        [y - TICK * 1.3 - 2.0, y + 2.0]
            .into_iter()
            .flat_map(|top| [right, left, middle].map(|x| Edges { left: x, top, right: x + w, bottom: top + TICK * 1.3 }))
            .collect()
    }

    /// Places for a label of a vertical line, best first.
    fn beside_vertical(&self, x: f64, w: f64) -> Vec<Edges> {
        (0..5)
            .map(|i| self.edges.top + 2.0 + f64::from(i) * TICK * 1.45)
            .flat_map(|top| [x + 6.0, x - w - 6.0].map(|x| Edges { left: x, top, right: x + w, bottom: top + TICK * 1.3 }))
            .collect()
    }

    /// One place per label. Up to three labels are placed together, so that the first does not take the only place of the second.
    fn places(&self, labels: &[(&str, Vec<Edges>)], busy: &[(f64, f64)]) -> Vec<Edges> {
        let mut placed: Vec<Edges> = Vec::new();
        for group in labels.chunks(3) {
            let total: usize = group.iter().map(|(_, places)| places.len()).product();
            let choice = |mut number: usize| -> Vec<Edges> {
                group
                    .iter()
                    .map(|(_, places)| {
                        let place = places[number % places.len()];
                        number /= places.len();
                        place
                    })
                    .collect()
            };
            let cost = |number: usize| {
                let mut taken = placed.clone();
                let mut sum = 0.0;
                for place in choice(number) {
                    sum += self.cost(&place, busy, &taken);
                    taken.push(place);
                }
                sum
            };
            let best = (0..total).map(|number| (number, cost(number))).min_by(|a, b| a.1.total_cmp(&b.1));
            placed.extend(best.map_or_else(Vec::new, |(number, _)| choice(number)));
        }
        placed
    }

    /// How much a label there would hide, or stick out.
    fn cost(&self, place: &Edges, busy: &[(f64, f64)], taken: &[Edges]) -> f64 {
        let inside =
            |&&(x, y): &&(f64, f64)| x > place.left - 4.0 && x < place.right + 4.0 && y > place.top - 4.0 && y < place.bottom + 4.0;
        let hidden = busy.iter().filter(inside).count() as f64;
        let overlap: f64 = taken.iter().map(|t| t.overlap(place)).sum();
        let e = self.edges;
        let out = (e.left - place.left).max(0.0)
            + (place.right - e.right).max(0.0)
            + (e.top - 4.0 - place.top).max(0.0)
            + (place.bottom - e.bottom).max(0.0);
        hidden + overlap + 20.0 * out
    }
}

pub(crate) fn x_title(svg: &mut Svg, e: Edges, title: &str, y: f64) {
    svg.text(f64::midpoint(e.left, e.right), y, title, TextStyle::new(LABEL, Ink::Text).anchor(Anchor::Middle));
}

pub(crate) fn y_title(svg: &mut Svg, e: Edges, title: &str, x: f64) {
    if !title.is_empty() {
        svg.text(x, f64::midpoint(e.top, e.bottom), title, TextStyle::new(LABEL, Ink::Text).anchor(Anchor::Middle).turn(-90.0));
    }
}

/// Widest label of a vertical axis.
pub(crate) fn tick_width(range: &Range) -> f64 {
    range.ticks.iter().map(|t| width(&t.label, TICK)).fold(0.0, f64::max)
}

/// A panel's letter and title; how much height they take.
pub(crate) fn heading(svg: &mut Svg, left: f64, top: f64, limit: f64, letter: Option<char>, title: &str) -> f64 {
    let lines = heading_lines(title, letter, limit);
    let mut x = left;
    if let Some(letter) = letter {
        svg.text(x, top + HEADING, &letter.to_string(), TextStyle::new(HEADING, Ink::Text).bold());
        x += LETTER;
    }
    for (i, line) in lines.iter().enumerate() {
        svg.text(x, top + HEADING + i as f64 * HEADING * 1.25, line, TextStyle::new(HEADING, Ink::Text).bold());
    }
    heading_height(title, letter, limit)
}

/// Space for a panel's letter.
const LETTER: f64 = 20.0;

fn heading_lines(title: &str, letter: Option<char>, limit: f64) -> Vec<String> {
    let limit = limit - if letter.is_some() { LETTER } else { 0.0 };
    if title.is_empty() { Vec::new() } else { wrap(title, HEADING * BOLD, limit) }
}

pub(crate) fn heading_height(title: &str, letter: Option<char>, limit: f64) -> f64 {
    let lines = heading_lines(title, letter, limit).len().max(usize::from(letter.is_some()));
    if lines == 0 { 0.0 } else { lines as f64 * HEADING * 1.25 + 8.0 }
}

/// Draws a sample around a centre.
type Sample<'a> = Box<dyn Fn(&mut Svg, f64, f64) + 'a>;

/// An entry of a legend: its name, and how to draw its sample in a box of 26 x 12 around a centre.
pub(crate) struct Entry<'a> {
    pub(crate) label: &'a str,
    pub(crate) sample: Sample<'a>,
}

const SAMPLE: f64 = 26.0;
const LEGEND_LINE: f64 = 21.0;

/// Places of the entries, line by line.
fn legend_places(entries: &[Entry<'_>], limit: f64) -> Vec<(f64, f64)> {
    let (mut x, mut line) = (0.0, 0.0);
    let mut places = Vec::new();
    for entry in entries {
        let w = SAMPLE + 7.0 + width(entry.label, TICK);
        if x > 0.0 && x + w > limit {
            (x, line) = (0.0, line + 1.0);
        }
        places.push((x, line));
        x += w + 20.0;
    }
    places
}

pub(crate) fn legend_height(entries: &[Entry<'_>], limit: f64) -> f64 {
    legend_places(entries, limit).last().map_or(0.0, |(_, line)| (line + 1.0) * LEGEND_LINE + 6.0)
}

pub(crate) fn draw_legend(svg: &mut Svg, entries: &[Entry<'_>], left: f64, top: f64, limit: f64) {
    for (entry, (x, line)) in entries.iter().zip(legend_places(entries, limit)) {
        let (x, y) = (left + x, top + line * LEGEND_LINE + LEGEND_LINE / 2.0);
        (entry.sample)(svg, x + SAMPLE / 2.0, y);
        svg.text(x + SAMPLE + 7.0, y + TICK * 0.35, entry.label, TextStyle::new(TICK, Ink::Text));
    }
}

/// Move labels apart: wanted centres and heights in, centres out, none outside `top..bottom` where they fit.
pub(crate) fn spread(wanted: &[(f64, f64)], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].0.total_cmp(&wanted[b].0));
    let mut centres: Vec<f64> = wanted.iter().map(|w| w.0).collect();
    for _ in 0..200 {
        let mut moved = false;
        for pair in order.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let need = f64::midpoint(wanted[a].1, wanted[b].1) - (centres[b] - centres[a]);
            if need > 0.01 {
                centres[a] -= need / 2.0;
                centres[b] += need / 2.0;
                moved = true;
            }
        }
        for &i in &order {
            centres[i] = centres[i].max(top + wanted[i].1 / 2.0).min(bottom - wanted[i].1 / 2.0);
        }
        if !moved {
            break;
        }
    }
    centres
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_collide_are_moved_apart_in_order() {
        let centres = spread(&[(50.0, 16.0), (52.0, 16.0), (51.0, 16.0), (200.0, 16.0)], 0.0, 300.0);
        assert!(centres[0] < centres[2] && centres[2] < centres[1]);
        assert!(centres[2] - centres[0] >= 15.9 && centres[1] - centres[2] >= 15.9);
        assert!((centres[3] - 200.0).abs() < 1e-9);
    }

    #[test]
    fn labels_stay_inside_the_plot() {
        let centres = spread(&[(2.0, 16.0), (3.0, 16.0)], 0.0, 100.0);
        assert!(centres.iter().all(|c| *c >= 7.9 && *c <= 92.1), "{centres:?}");
        assert!(centres[1] - centres[0] >= 15.0);
    }
}
