//! Graphs in rows: nodes as boxes, the first row at the bottom, and edges as lines whose width is their size.

use super::FigureError;
use super::axis::plain_number;
use super::plane::{Entry, TICK, draw_legend, heading, heading_height, legend_height};
use super::svg::{Anchor, Svg, TextStyle, escape, n};
use super::text::raw_width;
use super::theme::Ink;

/// An edge of a [`GraphPlot`].
#[derive(Debug, Clone, PartialEq)]
pub struct GraphEdge {
    /// The number of the lower node.
    pub from: usize,
    /// The number of the upper node.
    pub to: usize,
    /// Which of the kinds.
    pub kind: usize,
    /// Its size; the widest line is the largest.
    pub weight: f64,
}

/// Nodes in rows, and edges of several kinds between them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GraphPlot {
    /// Above the graph; may be empty.
    pub title: String,
    /// Names of rows, from the bottom; may be empty.
    pub rows: Vec<String>,
    /// Nodes: the row and the name; a row's nodes stand in their order.
    pub nodes: Vec<(usize, String)>,
    /// Kinds of edges.
    pub kinds: Vec<String>,
    /// The edges.
    pub edges: Vec<GraphEdge>,
}

const ROW: f64 = 62.0;
const BOX: f64 = 22.0;
/// Between boxes, and within one beside its name.
const SPACE: f64 = 16.0;
const PAD: f64 = 8.0;
const WIDEST: f64 = 6.0;
const LEAST_WIDTH: f64 = 360.0;

impl GraphPlot {
    /// A graph with these rows and kinds of edges, without nodes.
    pub fn new(rows: Vec<String>, kinds: Vec<String>) -> Self {
        Self { rows, kinds, ..Self::default() }
    }

    /// Add a node; its number is how many there were.
    pub fn node(mut self, row: usize, name: impl Into<String>) -> Self {
        self.nodes.push((row, name.into()));
        self
    }

    /// Add an edge.
    ///
    /// # Errors
    /// When it has no such nodes or kind.
    pub fn edge(mut self, from: usize, to: usize, kind: usize, weight: f64) -> Result<Self, FigureError> {
        let (nodes, kinds) = (self.nodes.len(), self.kinds.len());
        if from.max(to) >= nodes || kind >= kinds {
            return Err(FigureError::Edge { from, to, kind, nodes, kinds });
        }
        self.edges.push(GraphEdge { from, to, kind, weight });
        Ok(self)
    }

    fn box_width(name: &str) -> f64 {
        raw_width(name, TICK) + 2.0 * PAD
    }

    /// Nodes of a row, in order.
    fn of_row(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        self.nodes.iter().enumerate().filter(move |(_, (of, _))| *of == row).map(|(number, _)| number)
    }

    fn row_names(&self) -> f64 {
        self.rows.iter().map(|name| raw_width(name, TICK)).fold(0.0, f64::max) + SPACE
    }

    fn width(&self) -> f64 {
        let of = |row: usize| self.of_row(row).map(|node| Self::box_width(&self.nodes[node].1) + SPACE).sum::<f64>();
        self.row_names() + (0..self.rows.len()).map(of).fold(LEAST_WIDTH, f64::max)
    }

    fn legend(&self) -> Vec<Entry<'_>> {
        let sample = |i: usize| move |svg: &mut Svg, x: f64, y: f64| svg.line((x - 12.0, y), (x + 12.0, y), Ink::Series(i), 3.0, "");
        self.kinds.iter().enumerate().map(|(i, label)| Entry { label, sample: Box::new(sample(i)) }).collect()
    }

    fn largest(&self) -> f64 {
        self.edges.iter().map(|edge| edge.weight.abs()).filter(|x| x.is_finite()).fold(0.0, f64::max)
    }

    fn said(&self, edge: &GraphEdge) -> String {
        let name = |node: usize| &self.nodes[node].1;
        format!("{} to {} ({}): {}", name(edge.from), name(edge.to), self.kinds[edge.kind], plain_number(edge.weight))
    }

    /// One sentence of what the graph shows.
    pub(crate) fn describe(&self) -> String {
        let mut order: Vec<&GraphEdge> = self.edges.iter().collect();
        order.sort_by(|a, b| b.weight.abs().total_cmp(&a.weight.abs()));
        let largest: Vec<String> = order.iter().take(5).map(|edge| self.said(edge)).collect();
        format!("A graph of {} nodes and {} edges; the largest are {}.", self.nodes.len(), self.edges.len(), largest.join(", "))
    }

    /// Preferred size of the panel.
    pub(crate) fn size(&self, letter: Option<char>) -> (f64, f64) {
        let width = self.width();
        (width, heading_height(&self.title, letter, width) + legend_height(&self.legend(), width) + ROW * self.rows.len() as f64)
    }

    pub(crate) fn draw(&self, svg: &mut Svg, left: f64, top: f64, letter: Option<char>) {
        let (width, legend) = (self.width(), self.legend());
        let mut y = top + heading(svg, left, top, width, letter, &self.title);
        draw_legend(svg, &legend, left, y, width);
        y += legend_height(&legend, width);
        let middle = |row: usize| y + ROW * (self.rows.len() as f64 - row as f64 - 0.5);
        let from = left + self.row_names();
        let mut centres = vec![0.0; self.nodes.len()];
        for row in 0..self.rows.len() {
            let boxes: Vec<usize> = self.of_row(row).collect();
            let used: f64 = boxes.iter().map(|node| Self::box_width(&self.nodes[*node].1)).sum();
            let gap = (left + width - from - used) / (boxes.len() + 1) as f64;
            let mut x = from + gap;
            for node in boxes {
                let own = Self::box_width(&self.nodes[node].1);
                centres[node] = x + own / 2.0;
                x += own + gap;
            }
            svg.raw_text(left, middle(row) + TICK * 0.35, &self.rows[row], TextStyle::new(TICK, Ink::Soft));
        }
        let largest = self.largest().max(f64::MIN_POSITIVE);
        for (kind, _) in self.kinds.iter().enumerate() {
            svg.open(&format!("class=\"rs-{}\" stroke=\"{}\"", Ink::Series(kind).name(), svg.colour(Ink::Series(kind))));
            for edge in self.edges.iter().filter(|edge| edge.kind == kind) {
                let share = if edge.weight.is_finite() { edge.weight.abs() / largest } else { 1.0 };
                // Several edges between the same nodes stand beside each other.
                let shift = 5.0 * (kind as f64 - (self.kinds.len() - 1) as f64 / 2.0);
                svg.raw(&format!(
                    "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\"><title>{}</title></line>",
                    n(centres[edge.from] + shift),
                    n(middle(self.nodes[edge.from].0) - BOX / 2.0),
                    n(centres[edge.to] + shift),
                    n(middle(self.nodes[edge.to].0) + BOX / 2.0),
                    n((WIDEST * share).max(1.0)),
                    n(0.35 + 0.6 * share),
                    escape(&self.said(edge))
                ));
            }
            svg.close();
        }
        for (node, (row, name)) in self.nodes.iter().enumerate() {
            let own = Self::box_width(name);
            let (x, top) = (centres[node] - own / 2.0, middle(*row) - BOX / 2.0);
            svg.rect(x, top, own, BOX, Ink::Paper, "", name);
            svg.frame(x, top, own, BOX, Ink::Axis, 1.2);
            svg.raw_text(centres[node], middle(*row) + TICK * 0.35, name, TextStyle::new(TICK, Ink::Text).anchor(Anchor::Middle));
        }
    }
}
