//! Figures a journal would take: line plots, bars, heat maps and lines between tokens as SVG and PNG, drawn from tables and series alone.
//!
//! A [`Figure`] has one or more panels. [`Figure::svg`] is a file of its own that follows the reader's light or dark page;
//! [`Figure::png`] is rendered with fonts of our own, so the bytes are the same on every machine. Every mark carries its value as a
//! `<title>`. In titles, labels and captions `d_{k}` sets a subscript and `10^{-3}` a superscript.
//!
//! The SVG is written here rather than by a plotting crate: text must stay text, marks must carry values, one drawing must serve light and
//! dark pages, and a map of 512 x 512 cells must be a picture of 200 kB and not 18 MB of rectangles. `paint.rs` renders it.
//!
//! ```
//! use regard_plot::figure::{Axis, Figure, LinePlot, Series, Theme};
//! let d_k = [4.0, 16.0, 64.0, 256.0];
//! let plot = LinePlot::new("", Axis::log2("head dimension d_{k}"), Axis::linear("entropy (nats)"))
//!     .series(Series::new("scaled", &d_k, &[1.75, 1.73, 1.72, 1.72]).plus_minus(&[0.02; 4]))
//!     .series(Series::new("unscaled", &d_k, &[1.29, 0.67, 0.32, 0.15]))
//!     .horizontal(8f64.ln(), "ln 8: uniform");
//! let figure = Figure::new("entropy", "Without the scale, attention collapses").panel(plot);
//! assert!(figure.svg()?.starts_with("<svg"));
//! assert!(figure.png(Theme::Light)?.starts_with(b"\x89PNG"));
//! # Ok::<(), regard_plot::figure::FigureError>(())
//! ```

mod axis;
mod bars;
mod colour_map;
mod fonts;
mod glyphs;
mod graph;
mod heat;
mod lines;
mod links;
mod paint;
mod plane;
mod raster;
mod series;
mod svg;
mod text;
mod theme;

pub use axis::{Axis, Scale};
pub use bars::{BarPlot, BarSeries};
pub use colour_map::ColourMap;
pub use graph::{GraphEdge, GraphPlot};
pub use heat::{DRAWN, HeatPlot, Norm};
pub use lines::{LinePlot, Names};
pub use links::LinkPlot;
pub use plane::Reference;
pub use series::{Line, Point, Series, numbers, rows_where, texts};
pub use theme::Theme;

pub(crate) use series::cell_text;
pub(crate) use text::{Level, plain, runs};
pub(crate) use theme::{painted_by_variables, variables};

use heat::Around;
use plane::Edges;
use svg::{Svg, Use};

/// Why a figure could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FigureError {
    /// A table lacks a column.
    #[error("table {table} has no column {column}; it has {known}")]
    NoColumn {
        /// The table's name.
        table: String,
        /// The requested name.
        column: String,
        /// What there is.
        known: String,
    },
    /// A cell that should be a number is text.
    #[error("table {table}: row {row} of column {column} is \"{text}\", not a number")]
    NotANumber {
        /// The table's name.
        table: String,
        /// The column's name.
        column: String,
        /// The row, from 0.
        row: usize,
        /// What stands there.
        text: String,
    },
    /// A heat map has too few or too many values.
    #[error("a heat map of {rows} x {cols} cells was given {got} {what}")]
    Cells {
        /// Which list.
        what: &'static str,
        /// Its length.
        got: usize,
        /// Rows of the map.
        rows: usize,
        /// Columns of the map.
        cols: usize,
    },
    /// A heat map has more or fewer tokens than rows or columns.
    #[error("{got} tokens do not fit {expected} {axis}; give one per token of the sequence")]
    Tokens {
        /// Rows or columns.
        axis: &'static str,
        /// How many tokens there are.
        got: usize,
        /// How many were expected.
        expected: usize,
    },
    /// A picture has more pixels on a side than PNG can say.
    #[error("a heat map of {rows} x {cols} cells is too large for a picture; pool it")]
    TooLarge {
        /// Rows of the map.
        rows: usize,
        /// Columns of the map.
        cols: usize,
    },
    /// An edge of a graph has no such ends or kind.
    #[error("an edge from node {from} to node {to} of kind {kind}, of {nodes} nodes and {kinds} kinds; add these first")]
    Edge {
        /// Where it begins.
        from: usize,
        /// Where it ends.
        to: usize,
        /// Which kind.
        kind: usize,
        /// Nodes of the graph.
        nodes: usize,
        /// Kinds of the graph.
        kinds: usize,
    },
    /// The drawing could not be rendered.
    #[error("the picture could not be rendered: {reason}")]
    Png {
        /// What the renderer said.
        reason: String,
    },
}

/// One drawing within a figure.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Panel {
    /// A line plot.
    Lines(LinePlot),
    /// Grouped bars.
    Bars(BarPlot),
    /// A heat map.
    Heat(HeatPlot),
    /// Lines between tokens.
    Links(LinkPlot),
    /// Nodes in rows, and edges between them.
    Graph(GraphPlot),
}

impl From<LinePlot> for Panel {
    fn from(plot: LinePlot) -> Self {
        Self::Lines(plot)
    }
}
impl From<BarPlot> for Panel {
    fn from(plot: BarPlot) -> Self {
        Self::Bars(plot)
    }
}
impl From<HeatPlot> for Panel {
    fn from(plot: HeatPlot) -> Self {
        Self::Heat(plot)
    }
}
impl From<GraphPlot> for Panel {
    fn from(plot: GraphPlot) -> Self {
        Self::Graph(plot)
    }
}
impl From<LinkPlot> for Panel {
    fn from(plot: LinkPlot) -> Self {
        Self::Links(plot)
    }
}

impl Panel {
    /// Its title, and what it shows in words.
    fn described(&self) -> (&str, String) {
        match self {
            Self::Lines(p) => (&p.title, p.describe()),
            Self::Bars(p) => (&p.title, p.describe()),
            Self::Heat(p) => (&p.title, p.describe()),
            Self::Links(p) => (&p.title, p.describe()),
            Self::Graph(p) => (&p.title, p.describe()),
        }
    }
}

/// A figure: panels with title and caption.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figure {
    /// File stem, `snake_case`.
    pub name: String,
    /// The message of the figure in a few words; set above it on a page.
    pub title: String,
    /// What is shown and how to read it; set below it on a page.
    pub caption: String,
    /// Alternative text; made from the data where empty.
    pub alt: String,
    /// The panels, row by row.
    pub panels: Vec<Panel>,
    /// Panels per row; chosen where 0.
    pub columns: usize,
    /// One colour scale and one colour bar for all heat maps.
    pub shared_scale: bool,
}

/// Gap between panels and around them.
const GAP: f64 = 30.0;
const RIM: f64 = 12.0;

impl Figure {
    /// A figure without panels.
    pub fn new(name: impl Into<String>, title: impl Into<String>) -> Self {
        Self { name: name.into(), title: title.into(), ..Self::default() }
    }

    /// Heat maps of the same kind beside each other, with one colour scale: the heads of a layer.
    pub fn grid(name: impl Into<String>, title: impl Into<String>, maps: Vec<HeatPlot>, columns: usize) -> Self {
        Self { columns, shared_scale: true, panels: maps.into_iter().map(Panel::Heat).collect(), ..Self::new(name, title) }
    }

    /// Add a panel.
    pub fn panel(mut self, panel: impl Into<Panel>) -> Self {
        self.panels.push(panel.into());
        self
    }

    /// Say what is shown.
    pub fn caption(mut self, caption: impl Into<String>) -> Self {
        self.caption = caption.into();
        self
    }

    /// Sets the alternative text.
    pub fn alt(mut self, alt: impl Into<String>) -> Self {
        self.alt = alt.into();
        self
    }

    /// Set the number of panels per row.
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = columns;
        self
    }

    /// The alternative text: the author's, or a description made from the data.
    pub fn alt_text(&self) -> String {
        if !self.alt.is_empty() {
            return plain(&self.alt);
        }
        let mut out = format!("{}.", plain(&self.title).trim_end_matches('.'));
        for panel in self.panels.iter().take(4) {
            let (title, text) = panel.described();
            out.push(' ');
            if !title.is_empty() {
                out.push_str(&format!("{}: ", plain(title)));
            }
            out.push_str(&text);
        }
        if self.panels.len() > 4 {
            out.push_str(&format!(" {} more panels.", self.panels.len() - 4));
        }
        out
    }

    /// The figure as an SVG file: text is text, marks have their values as titles, dark pages get light ink.
    ///
    /// # Errors
    /// When a heat map's picture cannot be encoded.
    pub fn svg(&self) -> Result<String, FigureError> {
        self.drawing(Theme::Light, "f", Use::File, None)
    }

    /// The figure as a PNG file, two pixels to a unit.
    ///
    /// # Errors
    /// When it cannot be rendered.
    pub fn png(&self, theme: Theme) -> Result<Vec<u8>, FigureError> {
        raster::render(&self.drawing(theme, "f", Use::Png, None)?)
    }

    /// Both files, light, laid out once.
    ///
    /// # Errors
    /// When it cannot be rendered.
    pub fn files(&self) -> Result<(String, Vec<u8>), FigureError> {
        let (svg, width, height) = self.layout(Theme::Light, "f", None)?;
        let alt = self.alt_text();
        Ok((svg.finish(width, height, &alt, Use::File), raster::render(&svg.finish(width, height, &alt, Use::Png))?))
    }

    /// The figure for a page: one SVG per panel, so that panels can stand below each other on a narrow screen. `id` must be
    /// unique in the page.
    pub(crate) fn fragments(&self, id: &str) -> Result<Vec<String>, FigureError> {
        if self.shared_scale || self.panels.len() < 2 {
            return Ok(vec![self.drawing(Theme::Light, id, Use::Page, None)?]);
        }
        (0..self.panels.len())
            .map(|i| {
                let one = Self { panels: vec![self.panels[i].clone()], alt: panel_alt(&self.panels[i]), ..self.clone() };
                one.drawing(Theme::Light, &format!("{id}-{i}"), Use::Page, Some(i))
            })
            .collect()
    }

    /// The letter of a panel, where panels have letters.
    fn letter(&self, place: usize, only: Option<usize>) -> Option<char> {
        let many = self.panels.len() > 1 || only.is_some();
        let place = only.unwrap_or(place);
        (many && !self.shared_scale && place < 26).then(|| char::from(b'a' + place as u8))
    }

    fn per_row(&self) -> usize {
        let count = self.panels.len().max(1);
        let heats = self.panels.iter().filter(|p| matches!(p, Panel::Heat(_))).count();
        match self.columns {
            0 if heats == count && count > 4 => 4,
            0 => count.min(2),
            n => n.min(count),
        }
    }

    fn drawing(&self, theme: Theme, id: &str, use_: Use, only: Option<usize>) -> Result<String, FigureError> {
        let (svg, width, height) = self.layout(theme, id, only)?;
        Ok(svg.finish(width, height, &self.alt_text(), use_))
    }

    /// Every mark in its place, and how large the whole is.
    fn layout(&self, theme: Theme, id: &str, only: Option<usize>) -> Result<(Svg, f64, f64), FigureError> {
        let panels = self.scaled_panels();
        let columns = self.per_row();
        let around = |i: usize| self.around(i, columns, only);
        let sizes: Vec<(f64, f64)> = panels.iter().enumerate().map(|(i, p)| panel_size(p, &around(i), panels.len())).collect();
        let rows = panels.len().div_ceil(columns);
        let width_of = |c: usize| sizes.iter().skip(c).step_by(columns).map(|s| s.0).fold(0.0, f64::max);
        let height_of = |r: usize| sizes.iter().skip(r * columns).take(columns).map(|s| s.1).fold(0.0, f64::max);
        let gap = if self.shared_scale { 14.0 } else { GAP };
        let lefts: Vec<f64> = (0..columns).map(|c| RIM + (0..c).map(|c| width_of(c) + gap).sum::<f64>()).collect();
        let tops: Vec<f64> = (0..rows).map(|r| RIM + (0..r).map(|r| height_of(r) + gap * 0.8).sum::<f64>()).collect();
        let mut width = lefts.last().map_or(0.0, |l| l + width_of(columns - 1)) + RIM;
        let mut height = tops.last().map_or(0.0, |t| t + height_of(rows - 1)) + RIM;
        let mut svg = Svg::new(theme, id);
        for (i, panel) in panels.iter().enumerate() {
            let (left, top) = (lefts[i % columns], tops[i / columns]);
            match panel {
                Panel::Heat(map) => map.draw(&mut svg, left, top, &around(i))?,
                Panel::Links(plot) => plot.draw(&mut svg, left, top, self.letter(i, only)),
                Panel::Graph(plot) => plot.draw(&mut svg, left, top, self.letter(i, only)),
                other => {
                    let at = Edges { left, top, right: left + width_of(i % columns), bottom: top + height_of(i / columns) };
                    match other {
                        Panel::Lines(plot) => plot.draw(&mut svg, at, self.letter(i, only)),
                        Panel::Bars(plot) => plot.draw(&mut svg, at, self.letter(i, only)),
                        Panel::Heat(_) | Panel::Links(_) | Panel::Graph(_) => {}
                    }
                }
            }
        }
        if self.shared_scale
            && let Some(Panel::Heat(first)) = panels.first()
        {
            let bar = (height - 2.0 * RIM - 60.0).clamp(80.0, 320.0);
            let top = (height - bar) / 2.0 - 12.0;
            first.draw_bar(&mut svg, width + 4.0, top.max(RIM), bar);
            if panels.iter().any(|p| matches!(p, Panel::Heat(m) if m.hidden.iter().any(|h| *h))) {
                first.draw_note(&mut svg, RIM, height);
                height += 26.0;
            }
            width += 4.0 + first.bar_width() + RIM;
        }
        Ok((svg, width, height))
    }

    /// The panels, heat maps with one scale where it is shared.
    fn scaled_panels(&self) -> Vec<Panel> {
        let mut panels = self.panels.clone();
        if self.shared_scale {
            let limits = panels
                .iter()
                .filter_map(|p| if let Panel::Heat(m) = p { Some(m.limits.unwrap_or_else(|| m.data_limits())) } else { None })
                .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
            for panel in &mut panels {
                if let Panel::Heat(map) = panel {
                    map.limits = limits;
                }
            }
        }
        panels
    }

    /// What stands around the heat map at a place: in a grid, axes only at the outer edges.
    fn around(&self, place: usize, columns: usize, only: Option<usize>) -> Around {
        let letter = self.letter(place, only);
        if !self.shared_scale {
            return Around {
                side: if self.panels.len() > 1 || only.is_some() { 300.0 } else { 400.0 },
                bar: true,
                row_axis: true,
                col_axis: true,
                letter,
                heading: 0.0,
                drawn: DRAWN,
            };
        }
        let side = match columns {
            0 | 1 => 320.0,
            2 => 260.0,
            3 => 190.0,
            4 => 150.0,
            _ => 110.0,
        };
        let below = place + columns < self.panels.len();
        let alone = Around {
            side,
            bar: false,
            row_axis: place.is_multiple_of(columns),
            col_axis: !below,
            letter,
            heading: 0.0,
            drawn: DRAWN / self.panels.len().max(1),
        };
        let first = place - place % columns.max(1);
        let row = self.panels.iter().skip(first).take(columns.max(1));
        let headings = row.filter_map(|panel| if let Panel::Heat(map) = panel { Some(map.heading(&alone)) } else { None });
        Around { heading: headings.fold(0.0, f64::max), ..alone }
    }
}

fn panel_alt(panel: &Panel) -> String {
    let (title, text) = panel.described();
    if title.is_empty() { text } else { format!("{}. {text}", plain(title)) }
}

fn panel_size(panel: &Panel, around: &Around, panels: usize) -> (f64, f64) {
    let (w, h) = if panels > 1 { (450.0, 330.0) } else { (540.0, 360.0) };
    match panel {
        Panel::Lines(_) => (w, h),
        Panel::Bars(plot) => (w, plot.height(h)),
        Panel::Heat(map) => map.size(around),
        Panel::Links(plot) => plot.size(around.letter),
        Panel::Graph(plot) => plot.size(around.letter),
    }
}
