//! Heat maps: query rows from top to bottom, key columns from left to right, a titled colour bar, hidden cells hatched.
//!
//! Up to [`DRAWN`] cells are drawn one by one, each with its value to hover over. A larger map is a picture inside the drawing, one
//! indexed pixel per cell: a page can read values back from its palette.

use super::FigureError;
use super::axis::{Axis, Fit, Range, plain_number};
use super::colour_map::{ColourMap, STEPS, hex, takes_dark_text};
use super::plane::{Edges, LABEL, TICK, heading, heading_height, y_title};
use super::raster::{HIDDEN, NOT_A_NUMBER, indexed_png};
use super::svg::{Anchor, Svg, TextStyle, escape, n};
use super::text::{plain, raw_width, shorten, visible, width};
use super::theme::Ink;
use base64::Engine as _;

/// Cells that are drawn one by one, at most.
pub const DRAWN: usize = 4096;

/// How values become colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Norm {
    /// In proportion.
    #[default]
    Linear,
    /// By their logarithm: for maps whose values differ by orders of magnitude. Zeros take the lowest colour.
    Log,
}

/// A heat map.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeatPlot {
    /// Above the map; may be empty.
    pub title: String,
    /// Rows of cells, from the top.
    pub rows: usize,
    /// Columns of cells, from the left.
    pub cols: usize,
    /// `rows x cols` values, row by row. NaN is shown as such.
    pub values: Vec<f64>,
    /// Which cells a mask hides; empty for none.
    pub hidden: Vec<bool>,
    /// Name of the rows' axis, for example `query`.
    pub row_title: String,
    /// Name of the columns' axis, for example `key`.
    pub col_title: String,
    /// Name of the values with their unit, beside the colour bar.
    pub value_title: String,
    /// Tokens of the rows; numbers where empty.
    pub row_labels: Vec<String>,
    /// Tokens of the columns; numbers where empty.
    pub col_labels: Vec<String>,
    /// How many queries the rows stand for, where cells are pooled.
    pub row_span: Option<usize>,
    /// How many keys the columns stand for, where cells are pooled.
    pub col_span: Option<usize>,
    /// Colours.
    pub map: ColourMap,
    /// How values become colours.
    pub norm: Norm,
    /// Values of the first and last colour; from the data where `None`.
    pub limits: Option<(f64, f64)>,
    /// Write values into the cells where they fit.
    pub show_values: bool,
}

/// What stands around the cells of one map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around {
    /// The longer side of the cells' rectangle.
    pub(crate) side: f64,
    pub(crate) bar: bool,
    pub(crate) row_axis: bool,
    pub(crate) col_axis: bool,
    pub(crate) letter: Option<char>,
    /// Height of the highest heading of its row: the cells of a row are level.
    pub(crate) heading: f64,
    /// Largest number of cells that are drawn one by one.
    pub(crate) drawn: usize,
}

const BAR: f64 = 15.0;
const TOKEN_LIMIT: f64 = 90.0;

impl HeatPlot {
    /// A map of `rows x cols` weights, query by key.
    ///
    /// # Errors
    /// When there are not `rows * cols` values.
    pub fn new(title: impl Into<String>, rows: usize, cols: usize, values: Vec<f64>) -> Result<Self, FigureError> {
        if rows.checked_mul(cols) != Some(values.len()) {
            return Err(FigureError::Cells { what: "values", got: values.len(), rows, cols });
        }
        Ok(Self {
            title: title.into(),
            rows,
            cols,
            values,
            row_title: "query".to_owned(),
            col_title: "key".to_owned(),
            value_title: "weight".to_owned(),
            ..Self::default()
        })
    }

    /// Hide cells.
    ///
    /// # Errors
    /// When there is not one flag per cell.
    pub fn hidden(mut self, hidden: Vec<bool>) -> Result<Self, FigureError> {
        if hidden.len() != self.values.len() {
            return Err(FigureError::Cells { what: "hidden cells", got: hidden.len(), rows: self.rows, cols: self.cols });
        }
        self.hidden = hidden;
        Ok(self)
    }

    /// Tokens at both axes.
    ///
    /// # Errors
    /// When there is not one per row and one per column.
    pub fn tokens(mut self, rows: &[String], cols: &[String]) -> Result<Self, FigureError> {
        for (axis, got, expected) in [("rows", rows.len(), self.rows), ("columns", cols.len(), self.cols)] {
            if got != expected {
                return Err(FigureError::Tokens { axis, got, expected });
            }
        }
        (self.row_labels, self.col_labels) = (rows.to_vec(), cols.to_vec());
        Ok(self)
    }

    /// Fix the values of the first and last colour.
    pub fn limits(mut self, low: f64, high: f64) -> Self {
        self.limits = Some((low, high));
        self
    }

    /// Choose the colours.
    pub fn map(mut self, map: ColourMap) -> Self {
        self.map = map;
        self
    }

    /// Choose how values become colours.
    pub fn norm(mut self, norm: Norm) -> Self {
        self.norm = norm;
        self
    }

    /// Name the values.
    pub fn value_title(mut self, title: impl Into<String>) -> Self {
        self.value_title = title.into();
        self
    }

    /// Write values into the cells where they fit.
    pub fn show_values(mut self) -> Self {
        self.show_values = true;
        self
    }

    /// The cells are pooled over this many queries and keys.
    pub fn pooled(mut self, queries: usize, keys: usize) -> Self {
        (self.row_span, self.col_span) = (Some(queries), Some(keys));
        self
    }

    fn is_hidden(&self, cell: usize) -> bool {
        self.hidden.get(cell).copied().unwrap_or(false)
    }

    fn visible_values(&self) -> impl Iterator<Item = f64> {
        self.values.iter().copied().enumerate().filter(|(i, v)| v.is_finite() && !self.is_hidden(*i)).map(|(_, v)| v)
    }

    /// Values of the first and last colour, from the data.
    pub(crate) fn data_limits(&self) -> (f64, f64) {
        let positive = self.norm == Norm::Log;
        let (low, high) = self
            .visible_values()
            .filter(|v| !positive || *v > 0.0)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        if low > high {
            return if positive { (0.1, 1.0) } else { (0.0, 1.0) };
        }
        match self.norm {
            // Weights are shares: their scale begins at zero.
            Norm::Linear if low >= 0.0 => (0.0, if high > 0.0 { high } else { 1.0 }),
            Norm::Linear => (low, if high > low { high } else { low + 1.0 }),
            // Six orders of magnitude are as much as a colour bar can say.
            Norm::Log => (low.max(high * 1e-6).min(high * 0.1), high),
        }
    }

    fn range(&self) -> Range {
        let (low, high) = self.limits.unwrap_or_else(|| self.data_limits());
        let axis = match self.norm {
            Norm::Linear => Axis::linear(""),
            Norm::Log => Axis::log10(""),
        };
        Range::new(&axis.limits(low, high), [], Fit::Tight, 5)
    }

    /// The colour step of a value that is a number.
    fn step(&self, range: &Range, value: f64) -> u8 {
        ColourMap::step(range.share(value).unwrap_or(0.0))
    }

    /// One sentence of what the map shows.
    pub(crate) fn describe(&self) -> String {
        let best = self.values.iter().enumerate().filter(|(i, v)| v.is_finite() && !self.is_hidden(*i)).max_by(|a, b| a.1.total_cmp(b.1));
        let mut out = format!(
            "Heat map of {}, {} rows ({}) by {} columns ({}).",
            plain(&self.value_title),
            self.rows,
            plain(&self.row_title),
            self.cols,
            plain(&self.col_title)
        );
        if let Some((cell, value)) = best {
            let (r, c) = (cell / self.cols, cell % self.cols);
            out.push_str(&format!(" Largest: {} at {}, {}.", plain_number(*value), self.row_name(r), self.col_name(c)));
        }
        let hidden = self.hidden.iter().filter(|h| **h).count();
        if hidden > 0 {
            out.push_str(&format!(" {hidden} of {} cells are hidden by a mask.", self.values.len()));
        }
        out
    }

    fn row_name(&self, row: usize) -> String {
        name(&plain(&self.row_title), row, self.rows, &self.row_labels, self.row_span)
    }

    fn col_name(&self, col: usize) -> String {
        name(&plain(&self.col_title), col, self.cols, &self.col_labels, self.col_span)
    }

    /// Width and height of the cells' rectangle.
    fn extent(&self, side: f64) -> (f64, f64) {
        let (r, c) = (self.rows.max(1) as f64, self.cols.max(1) as f64);
        // Square cells, unless that would make a ribbon.
        let cell = (side / r.max(c)).min(46.0);
        let least = 70f64.min(side);
        ((cell * c).max(least), (cell * r).max(least))
    }

    fn left(&self, around: &Around) -> f64 {
        if !around.row_axis {
            return 2.0;
        }
        let row_labels = axis_labels(&self.row_labels, self.rows, self.row_span, self.extent(around.side).1);
        let widest = row_labels.iter().map(|l| raw_width(&l.text, l.size)).fold(0.0, f64::max);
        widest + 9.0 + if self.row_title.is_empty() { 0.0 } else { 24.0 }
    }

    fn right(&self, around: &Around) -> f64 {
        if around.bar { 22.0 + self.bar_width() } else { 4.0 }
    }

    /// Height of the map's own heading.
    pub(crate) fn heading(&self, around: &Around) -> f64 {
        let width = self.extent(around.side).0 + self.right(around) + if around.bar { self.left(around) } else { 0.0 };
        heading_height(&self.title, around.letter, width).max(4.0)
    }

    fn margins(&self, around: &Around) -> Edges {
        let (w, _) = self.extent(around.side);
        let col_labels = axis_labels(&self.col_labels, self.cols, self.col_span, w);
        let (left, right) = (self.left(around), self.right(around));
        let bottom = if around.col_axis {
            let turned = turned(&col_labels, w);
            let labels = if turned { col_labels.iter().map(|l| raw_width(&l.text, l.size)).fold(0.0, f64::max) } else { TICK };
            labels + if turned { 12.0 } else { 8.0 } + if self.col_title.is_empty() { 0.0 } else { 24.0 }
        } else {
            4.0
        };
        Edges { left, top: self.heading(around).max(around.heading), right, bottom: bottom + self.note_height(around) }
    }

    fn note_height(&self, around: &Around) -> f64 {
        if around.bar && self.hidden.iter().any(|h| *h) { 24.0 } else { 0.0 }
    }

    /// Preferred size of the panel.
    pub(crate) fn size(&self, around: &Around) -> (f64, f64) {
        let (w, h) = self.extent(around.side);
        let m = self.margins(around);
        (m.left + w + m.right, m.top + h + m.bottom)
    }

    /// Width of a colour bar with its ticks and title.
    pub(crate) fn bar_width(&self) -> f64 {
        let range = self.range();
        BAR + 8.0 + range.ticks.iter().map(|t| width(&t.label, TICK)).fold(0.0, f64::max) + 26.0
    }

    /// Draws at a place, in the preferred size; `left` and `top` of `column` align the cells of a grid.
    pub(crate) fn draw(&self, svg: &mut Svg, left: f64, top: f64, around: &Around) -> Result<(), FigureError> {
        let (w, h) = self.extent(around.side);
        let m = self.margins(around);
        // In a grid a title belongs to its cells, elsewhere to the whole panel.
        let indent = if around.bar { 0.0 } else { m.left };
        let above = m.top - self.heading(around);
        heading(svg, left + indent, top + above, m.left + w + m.right - indent, around.letter, &self.title);
        let e = Edges { left: left + m.left, top: top + m.top, right: left + m.left + w, bottom: top + m.top + h };
        if self.rows * self.cols <= around.drawn {
            self.draw_cells(svg, e)
        } else {
            self.draw_picture(svg, e)?
        }
        svg.frame(e.left, e.top, w, h, Ink::Axis, 1.0);
        self.draw_axes(svg, e, around, &m);
        if around.bar {
            self.draw_bar(svg, e.right + 20.0, e.top, h.clamp(60.0, 420.0));
            if self.note_height(around) > 0.0 {
                self.draw_note(svg, e.left, top + m.top + h + m.bottom - 16.0);
            }
        }
        Ok(())
    }

    /// The sign for hidden cells, explained.
    pub(crate) fn draw_note(&self, svg: &mut Svg, left: f64, top: f64) {
        svg.hatch(left, top, 20.0, 13.0, "");
        svg.frame(left, top, 20.0, 13.0, Ink::Axis, 0.8);
        svg.text(left + 27.0, top + 11.0, "hidden by the mask", TextStyle::new(TICK, Ink::Soft));
    }

    fn draw_cells(&self, svg: &mut Svg, e: Edges) {
        let range = self.range();
        let (cw, ch) = (e.width() / self.cols.max(1) as f64, e.height() / self.rows.max(1) as f64);
        // Neighbours overlap by a hair, so that no seam shows; the last column and row do not.
        let grown = |at: f64, size: f64, end: f64| size + if at + size < end - 0.1 { 0.4 } else { 0.0 };
        svg.open("shape-rendering=\"crispEdges\"");
        for row in 0..self.rows {
            for col in 0..self.cols {
                let cell = row * self.cols + col;
                let (x, y) = (e.left + col as f64 * cw, e.top + row as f64 * ch);
                let (w, h) = (grown(x, cw, e.right), grown(y, ch, e.bottom));
                let place = format!("{}, {}", self.row_name(row), self.col_name(col));
                let value = self.values[cell];
                if self.is_hidden(cell) {
                    svg.hatch(x, y, w, h, &format!("{place}\nhidden by the mask"));
                } else if value.is_nan() {
                    svg.rect(x, y, w, h, Ink::Alarm, "", &format!("{place}\n{}: NaN", plain(&self.value_title)));
                } else {
                    let colour = hex(self.map.step_colour(self.step(&range, value)));
                    svg.raw(&format!(
                        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\"><title>{}</title></rect>",
                        n(x),
                        n(y),
                        n(w),
                        n(h),
                        escape(&format!("{place}\n{}: {}", plain(&self.value_title), plain_number(value)))
                    ));
                }
            }
        }
        svg.close();
        if self.show_values && cw >= 30.0 && ch >= 17.0 {
            self.draw_values(svg, e, &range, cw, ch);
        }
    }

    fn draw_values(&self, svg: &mut Svg, e: Edges, range: &Range, cw: f64, ch: f64) {
        let size = (cw * 0.34).min(TICK);
        svg.open("pointer-events=\"none\"");
        for (cell, value) in self.values.iter().enumerate() {
            if self.is_hidden(cell) {
                continue;
            }
            let (x, y) = (e.left + ((cell % self.cols) as f64 + 0.5) * cw, e.top + ((cell / self.cols) as f64 + 0.5) * ch + size * 0.36);
            let dark = !value.is_nan() && takes_dark_text(self.map.step_colour(self.step(range, *value)));
            let text = if value.is_nan() { "NaN".to_owned() } else { super::axis::fixed(*value, 2) };
            svg.raw(&format!(
                "<text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"middle\" fill=\"{}\">{text}</text>",
                n(x),
                n(y),
                n(size),
                if dark { "#101214" } else { "#ffffff" }
            ));
        }
        svg.close();
    }

    fn draw_picture(&self, svg: &mut Svg, e: Edges) -> Result<(), FigureError> {
        let range = self.range();
        let cells: Vec<u8> = self
            .values
            .iter()
            .enumerate()
            .map(|(i, v)| match v {
                _ if self.is_hidden(i) => HIDDEN,
                v if v.is_nan() => NOT_A_NUMBER,
                v => self.step(&range, *v),
            })
            .collect();
        let png = indexed_png(self.map, &cells, self.rows, self.cols)?;
        if self.hidden.iter().any(|h| *h) {
            svg.hatch(e.left, e.top, e.width(), e.height(), "");
        }
        // Small cells may be blended, large ones must stay sharp.
        let rendering =
            if e.width() >= self.cols as f64 { " image-rendering=\"optimizeSpeed\" style=\"image-rendering:pixelated\"" } else { "" };
        let (low, high) = range.ends();
        svg.raw(&format!(
            "<image class=\"rg-map\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\"{rendering} \
                data-rows=\"{}\" data-cols=\"{}\" \
             data-row-span=\"{}\" data-col-span=\"{}\" data-row-title=\"{}\" data-col-title=\"{}\" data-value-title=\"{}\" \
             data-low=\"{low:e}\" \
             data-high=\"{high:e}\" data-log=\"{}\" data-steps=\"{STEPS}\" data-map=\"{:?}\" href=\"data:image/png;base64,{}\"/>",
            n(e.left),
            n(e.top),
            n(e.width()),
            n(e.height()),
            self.rows,
            self.cols,
            self.row_span.unwrap_or(self.rows),
            self.col_span.unwrap_or(self.cols),
            escape(&plain(&self.row_title)),
            escape(&plain(&self.col_title)),
            escape(&plain(&self.value_title)),
            u8::from(self.norm == Norm::Log),
            self.map,
            base64::engine::general_purpose::STANDARD.encode(png)
        ));
        Ok(())
    }

    fn draw_axes(&self, svg: &mut Svg, e: Edges, around: &Around, m: &Edges) {
        if around.row_axis {
            let labels = axis_labels(&self.row_labels, self.rows, self.row_span, e.height());
            for label in &labels {
                let y = e.top + label.share * e.height();
                svg.line((e.left - 4.0, y), (e.left, y), Ink::Axis, 1.0, "");
                svg.raw_text(e.left - 7.0, y + label.size * 0.35, &label.text, TextStyle::new(label.size, Ink::Soft).anchor(Anchor::End));
            }
            y_title(svg, e, &self.row_title, e.left - m.left + LABEL);
        }
        if around.col_axis {
            let labels = axis_labels(&self.col_labels, self.cols, self.col_span, e.width());
            let turned = turned(&labels, e.width());
            for label in &labels {
                let x = e.left + label.share * e.width();
                svg.line((x, e.bottom), (x, e.bottom + 4.0), Ink::Axis, 1.0, "");
                let style = TextStyle::new(label.size, Ink::Soft);
                if turned {
                    svg.raw_text(x + label.size * 0.35, e.bottom + 8.0, &label.text, style.anchor(Anchor::End).turn(-90.0));
                } else {
                    svg.raw_text(x, e.bottom + 19.0, &label.text, style.anchor(Anchor::Middle));
                }
            }
            let note = self.note_height(around);
            svg.text(
                f64::midpoint(e.left, e.right),
                e.bottom + m.bottom - note - 5.0,
                &self.col_title,
                TextStyle::new(LABEL, Ink::Text).anchor(Anchor::Middle),
            );
        }
    }

    /// The colour bar with its ticks and title.
    pub(crate) fn draw_bar(&self, svg: &mut Svg, left: f64, top: f64, height: f64) {
        let range = self.range();
        let id = svg.fresh_id("bar");
        let stops: String = (0..=32)
            .map(|i| {
                let share = f64::from(i) / 32.0;
                format!("<stop offset=\"{}\" stop-color=\"{}\"/>", n(share), hex(self.map.colour(share)))
            })
            .collect();
        svg.raw(&format!(
            "<linearGradient id=\"{id}\" x1=\"0\" y1=\"1\" x2=\"0\" y2=\"0\">{stops}</linearGradient><rect x=\"{}\" y=\"{}\" \
             width=\"{BAR}\" height=\"{}\" fill=\"url(#{id})\"/>",
            n(left),
            n(top),
            n(height)
        ));
        svg.frame(left, top, BAR, height, Ink::Axis, 1.0);
        for tick in range.ticks.iter().filter(|t| !t.label.is_empty()) {
            let Some(y) = range.share(tick.value).map(|s| top + (1.0 - s) * height) else { continue };
            svg.line((left + BAR, y), (left + BAR + 4.0, y), Ink::Axis, 1.0, "");
            svg.text(left + BAR + 7.0, y + TICK * 0.35, &tick.label, TextStyle::new(TICK, Ink::Soft));
        }
        let x = left + self.bar_width() - 8.0;
        svg.text(x, top + height / 2.0, &self.value_title, TextStyle::new(LABEL, Ink::Text).anchor(Anchor::Middle).turn(-90.0));
    }
}

/// A label of a heat map's axis: where (as a share of it), what, how large.
struct AxisLabel {
    share: f64,
    text: String,
    size: f64,
}

/// Tokens where they fit, otherwise numbers at round places.
fn axis_labels(tokens: &[String], cells: usize, span: Option<usize>, length: f64) -> Vec<AxisLabel> {
    let cell = length / cells.max(1) as f64;
    if !tokens.is_empty() && cell >= 8.0 {
        let size = (cell * 0.86).min(TICK);
        return tokens
            .iter()
            .enumerate()
            .map(|(i, t)| AxisLabel { share: (i as f64 + 0.5) / cells as f64, text: shorten(&visible(t), size, TOKEN_LIMIT), size })
            .collect();
    }
    let total = span.unwrap_or(cells);
    let wanted = ((length / 48.0) as usize).max(3);
    if total == cells && cells <= wanted * 2 {
        // Few cells: each has its number, in its middle.
        return (0..cells).map(|i| AxisLabel { share: (i as f64 + 0.5) / cells as f64, text: i.to_string(), size: TICK }).collect();
    }
    let range = Range::new(&Axis::linear("").limits(0.0, total as f64), [], Fit::Tight, wanted);
    let middle = if total == cells { 0.5 } else { 0.0 };
    range
        .ticks
        .iter()
        .filter(|t| t.value.fract() == 0.0 && t.value + middle <= total as f64)
        .map(|t| AxisLabel { share: (t.value + middle) / total as f64, text: super::axis::fixed(t.value, 0), size: TICK })
        .collect()
}

/// Whether column labels of this total length must be rotated.
fn turned(labels: &[AxisLabel], length: f64) -> bool {
    let gap = labels.windows(2).map(|p| p[1].share - p[0].share).fold(1.0, f64::min) * length;
    labels.iter().any(|l| raw_width(&l.text, l.size) > gap - 4.0)
}

/// What a hover text calls a row or a column.
fn name(axis: &str, index: usize, cells: usize, tokens: &[String], span: Option<usize>) -> String {
    match (tokens.get(index), span) {
        (Some(token), _) => format!("{axis} {index} \u{201c}{}\u{201d}", visible(token)),
        (None, Some(total)) if total != cells => {
            let edge = |i: usize| (i as u128 * total as u128).div_ceil(cells as u128);
            format!("{axis} {}\u{2013}{}", edge(index), edge(index + 1).saturating_sub(1))
        }
        _ => format!("{axis} {index}"),
    }
}
