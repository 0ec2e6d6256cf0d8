//! Lines between tokens: queries at the left, keys at the right, each weight a line as strong as it is; several heads in several colours.

use super::FigureError;
use super::axis::plain_number;
use super::plane::{Entry, LABEL, TICK, draw_legend, heading, heading_height, legend_height};
use super::svg::{Anchor, Svg, TextStyle, escape, n};
use super::text::{raw_width, shorten, visible};
use super::theme::Ink;

/// Attention as lines from queries to keys.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinkPlot {
    /// Above the lines; may be empty.
    pub title: String,
    /// Tokens of the queries, from the top.
    pub queries: Vec<String>,
    /// Tokens of the keys, from the top.
    pub keys: Vec<String>,
    /// A head each: its name, and `queries x keys` weights, row by row. NaN is shown as such.
    pub heads: Vec<(String, Vec<f64>)>,
    /// Queries whose lines are drawn; all where empty.
    pub chosen: Vec<usize>,
}

/// Weights below it have no line: it could not be seen.
const LEAST: f64 = 0.01;
const ROW: f64 = 20.0;
/// Between the two columns of tokens.
const SPAN: f64 = 190.0;
const TOKEN_LIMIT: f64 = 130.0;
const MARGIN: f64 = 7.0;

impl LinkPlot {
    /// Lines between these tokens, without a head yet.
    pub fn new(queries: Vec<String>, keys: Vec<String>) -> Self {
        Self { queries, keys, ..Self::default() }
    }

    /// Add a head.
    ///
    /// # Errors
    /// When there is not one weight per query and key.
    pub fn head(mut self, name: impl Into<String>, weights: Vec<f64>) -> Result<Self, FigureError> {
        let (rows, cols) = (self.queries.len(), self.keys.len());
        if rows.checked_mul(cols) != Some(weights.len()) {
            return Err(FigureError::Cells { what: "weights", got: weights.len(), rows, cols });
        }
        self.heads.push((name.into(), weights));
        Ok(self)
    }

    /// Draw the lines of these queries only.
    pub fn chosen(mut self, queries: Vec<usize>) -> Self {
        self.chosen = queries;
        self
    }

    fn is_chosen(&self, query: usize) -> bool {
        self.chosen.is_empty() || self.chosen.contains(&query)
    }

    /// Query, key and weight of every line of a head.
    fn lines<'a>(&'a self, weights: &'a [f64]) -> impl Iterator<Item = (usize, usize, f64)> + 'a {
        let cells = weights.iter().enumerate().map(|(cell, &w)| (cell / self.keys.len(), cell % self.keys.len(), w));
        cells.filter(|&(query, _, w)| self.is_chosen(query) && w >= LEAST)
    }

    fn column(tokens: &[String]) -> Vec<String> {
        tokens.iter().map(|token| shorten(&visible(token), TICK, TOKEN_LIMIT)).collect()
    }

    fn width_of(tokens: &[String], title: &str) -> f64 {
        tokens.iter().map(|t| raw_width(t, TICK)).fold(raw_width(title, LABEL), f64::max)
    }

    fn legend(&self) -> Vec<Entry<'_>> {
        if self.heads.len() < 2 {
            return Vec::new();
        }
        let sample = |i: usize| move |svg: &mut Svg, x: f64, y: f64| svg.line((x - 12.0, y), (x + 12.0, y), Ink::Series(i), 3.0, "");
        self.heads.iter().enumerate().map(|(i, (label, _))| Entry { label, sample: Box::new(sample(i)) }).collect()
    }

    /// One sentence of what the lines show.
    pub(crate) fn describe(&self) -> String {
        let mut out = format!("Lines from {} queries to {} keys, {} heads.", self.queries.len(), self.keys.len(), self.heads.len());
        for (name, weights) in &self.heads {
            if let Some((query, key, w)) = self.lines(weights).max_by(|a, b| a.2.total_cmp(&b.2)) {
                let (query, key) = (visible(&self.queries[query]), visible(&self.keys[key]));
                out.push_str(&format!(" {name}: the strongest is {} from {query} to {key}.", plain_number(w)));
            }
        }
        out
    }

    fn width(&self) -> f64 {
        let [left, right] = [(&self.queries, "query"), (&self.keys, "key")].map(|(x, title)| Self::width_of(&Self::column(x), title));
        left + SPAN + right
    }

    /// Preferred size of the panel.
    pub(crate) fn size(&self, letter: Option<char>) -> (f64, f64) {
        let width = self.width();
        let rows = self.queries.len().max(self.keys.len()) as f64;
        (width, heading_height(&self.title, letter, width) + legend_height(&self.legend(), width) + ROW * (rows + 1.5))
    }

    pub(crate) fn draw(&self, svg: &mut Svg, left: f64, top: f64, letter: Option<char>) {
        let (queries, keys) = (Self::column(&self.queries), Self::column(&self.keys));
        let width = self.width();
        let mut y = top + heading(svg, left, top, width, letter, &self.title);
        let legend = self.legend();
        draw_legend(svg, &legend, left, y, width);
        y += legend_height(&legend, width) + ROW;
        let from = left + Self::width_of(&queries, "query");
        let to = from + SPAN;
        let style = TextStyle::new(LABEL, Ink::Text);
        svg.text(from, y - 4.0, "query", style.anchor(Anchor::End).bold());
        svg.text(to, y - 4.0, "key", style.bold());
        let middle = |row: usize| y + ROW * (row as f64 + 0.6);
        for (i, (name, weights)) in self.heads.iter().enumerate() {
            svg.open(&format!("class=\"rs-{}\" stroke=\"{}\" stroke-width=\"2.4\"", Ink::Series(i).name(), svg.colour(Ink::Series(i))));
            // Heads beside each other where they share a pair.
            let shift = 2.4 * (i as f64 - (self.heads.len() - 1) as f64 / 2.0);
            for (query, key, w) in self.lines(weights) {
                let said =
                    format!("{name}: {} looks at {}\nweight: {}", visible(&self.queries[query]), visible(&self.keys[key]), plain_number(w));
                svg.raw(&format!(
                    "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke-opacity=\"{}\"><title>{}</title></line>",
                    n(from + MARGIN),
                    n(middle(query) + shift),
                    n(to - MARGIN),
                    n(middle(key) + shift),
                    n(w.min(1.0)),
                    escape(&said)
                ));
            }
            svg.close();
        }
        for (row, token) in queries.iter().enumerate() {
            let spoilt = self.heads.iter().any(|(_, w)| w[row * keys.len()..][..keys.len()].iter().any(|w| w.is_nan()));
            let ink = match self.is_chosen(row) {
                _ if spoilt => Ink::Alarm,
                true => Ink::Text,
                false => Ink::Soft,
            };
            let said = if spoilt { format!("{token} (NaN)") } else { token.clone() };
            svg.raw_text(from, middle(row) + TICK * 0.35, &said, TextStyle::new(TICK, ink).anchor(Anchor::End));
        }
        for (row, token) in keys.iter().enumerate() {
            svg.raw_text(to, middle(row) + TICK * 0.35, token, TextStyle::new(TICK, Ink::Text));
        }
    }
}
