//! `regard circuit`: which edges between heads, MLPs, embedding and output carry a difference, with errors and controls.

use super::{ABOUT_MODEL, load};
use crate::options::{Common, Out, Outcome, Unusable, figure_files, table_files, write_files};
use crate::output::{note, print_wrapped};
use crate::progress::Bar;
use anyhow::Result;
use clap::Args;
use regard_files::{limits, names};
use regard_lab::experiments::Progress;
use regard_lab::figure::{Axis, BarPlot, Figure, GraphPlot};
use regard_lab::{Folder, Table};
use regard_model::circuit::{Found, Options, Pair, Reader, Store, Writer};
use regard_model::{Input, Model};
use regard_nn::layers::probe::Operand;
use std::path::PathBuf;
use std::str::FromStr;

/// Edges in the table and, at most, in the figure.
const LISTED: usize = 512;
const DRAWN: usize = 24;

/// Find the circuit behind a difference between clean and corrupt texts: edges by attribution patching, the best checked exactly
///
/// Nodes are heads, MLPs, the embedding and the output; an edge is what one writes as another
/// reads it, by queries, keys or values (KV heads, where several query heads share keys). One
/// backward pass per pair and step gives every edge's effect to first order, on the difference of
/// the logits of the two texts' next tokens; p is from sign flips over pairs, q over all edges. The
/// best edges are patched exactly. The circuit is the fewest edges of those with q <= 0.05 that keep 80 %
/// of the difference when all others come from the corrupt text, or all of these edges; beside it stand random circuits of equal size and
/// the same method on pairs that do not belong together. Without texts: random tokens that begin
/// again, which need induction. An interrupted run is resumed.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard circuit
  regard circuit model.gguf --clean \"The capital of France is\" --corrupt \"The capital of Italy is\"
  regard circuit stories15M/model.bin --pairs 8 --exact all --out edges
  regard circuit --why 2.1,12,8")]
pub(crate) struct Circuit {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// A clean text; may be given several times, each with its corrupt text
    #[arg(long, value_name = "TEXT")]
    clean: Vec<String>,
    /// The corrupt text of the same number of tokens
    #[arg(long, value_name = "TEXT")]
    corrupt: Vec<String>,
    /// The token that the clean text goes on with [default: the most likely]; once, or once per pair
    #[arg(long, value_name = "TOKEN")]
    answer: Vec<String>,
    /// The token that the corrupt text goes on with [default: the most likely]; once, or once per pair
    #[arg(long, value_name = "TOKEN")]
    wrong: Vec<String>,
    /// Number of pairs, where no texts are given
    #[arg(long, default_value_t = 16, value_name = "N")]
    pairs: usize,
    /// Seed of these pairs and of random circuits
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Points between clean and corrupt embedding at which gradients are taken; 0: at the clean one, as in plain attribution patching
    #[arg(long, default_value_t = 4, value_name = "N")]
    steps: usize,
    /// Edges whose effect is measured exactly, the largest first: a number or `all`
    #[arg(long, default_value = "24", value_name = "N")]
    exact: Count,
    /// Edges of the circuit [default: the fewest with q <= 0.05 that keep 80 %]
    #[arg(long, value_name = "N")]
    edges: Option<usize>,
    /// Random circuits of equal size
    #[arg(long, default_value_t = 10, value_name = "N")]
    random: usize,
    /// Instead: which parts make a score, LAYER.HEAD,QUERY,KEY of the first clean text
    #[arg(long, value_name = "WHERE")]
    why: Option<Why>,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

/// A number, or all.
#[derive(Debug, Clone, Copy)]
struct Count(usize);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(usize::MAX));
        }
        text.parse().map(Self).map_err(|_| format!("{text:?} is not a number of edges; give a number or all"))
    }
}

/// A score: layer, head, query, key.
#[derive(Debug, Clone, Copy)]
struct Why([usize; 4]);

impl FromStr for Why {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<usize>> = text.split(['.', ',']).map(|number| number.trim().parse().ok()).collect();
        let four = numbers.and_then(|numbers| numbers.try_into().ok());
        four.map(Self).ok_or_else(|| format!("{text:?} is not a score; give LAYER.HEAD,QUERY,KEY, as in 2.1,12,8"))
    }
}

/// Steps of an interrupted run, and the bar.
struct Steps<'s> {
    bar: &'s Bar,
    setting: String,
}

impl Store for Steps<'_> {
    fn recall(&self, step: &str) -> Option<String> {
        self.bar.recall(&format!("{} {step}", self.setting))
    }

    fn remember(&self, step: &str, what: &str) {
        // A step that is not stored costs time, not results.
        let _ = self.bar.remember(&format!("{} {step}", self.setting), what);
    }

    fn expect(&self, steps: usize) {
        self.bar.expect(steps as u64);
    }

    fn advance(&self) {
        self.bar.advance(1);
    }
}

fn kind(to: &Reader) -> usize {
    match to {
        Reader::Head { operand: Operand::Q, .. } => 0,
        Reader::Head { operand: Operand::K, .. } => 1,
        Reader::Head { operand: Operand::V, .. } => 2,
        Reader::Network { .. } | Reader::Output => 3,
    }
}

fn tables(found: &Found) -> [Table; 3] {
    let columns = [
        ("from", "from"),
        ("to", "to"),
        ("attribution", "attribution (logits)"),
        ("low", "95 % from"),
        ("high", "to"),
        ("q", "q"),
        ("exact", "exact effect"),
        ("chosen", "in the circuit"),
        ("exact_low", "95 % from"),
        ("exact_high", "to"),
        ("p", "p"),
    ];
    let caption = format!(
        "The largest of {} edges: the change of the difference of logits where the edge comes from the corrupt text, over {} pairs.",
        found.edges_of_model, found.pairs
    );
    let mut edges = Table::new("circuit", &caption, &columns);
    for edge in found.edges.iter().take(LISTED) {
        let exact = edge.exact.as_ref();
        edges.push(vec![
            edge.from.to_string().into(),
            edge.to.to_string().into(),
            edge.attribution.into(),
            edge.low.into(),
            edge.high.into(),
            edge.q.into(),
            exact.map(|e| e.mean).into(),
            edge.chosen.into(),
            exact.map(|e| e.low).into(),
            exact.map(|e| e.high).into(),
            edge.p.into(),
        ]);
    }
    let columns = [("node", "node"), ("attribution", "attribution (logits)"), ("low", "95 % from"), ("high", "to"), ("p", "p"), ("q", "q")];
    let mut nodes = Table::new("circuit_nodes", "Nodes: the same where all that they write comes from the corrupt text.", &columns);
    for node in &found.nodes {
        let a = &node.attribution;
        nodes.push(vec![node.node.to_string().into(), a.mean.into(), a.low.into(), a.high.into(), a.p.into(), node.q.into()]);
    }
    let columns = [
        ("circuit", "circuit"),
        ("edges", "edges"),
        ("faithfulness", "share of the difference kept"),
        ("low", "95 % from"),
        ("high", "to"),
    ];
    let caption = "Circuits by size; random ones and those of shuffled pairs have the size of the chosen one.";
    let mut sizes = Table::new("circuit_faithfulness", caption, &columns);
    for size in &found.sizes {
        let f = &size.faithfulness;
        sizes.push(vec![size.kind.into(), size.edges.into(), f.mean.into(), f.low.into(), f.high.into()]);
    }
    [edges, nodes, sizes]
}

fn figure(found: &Found) -> Result<Figure> {
    // Rows: the embedding, heads and network of each layer, the output; only those that have a node.
    let place = |layer: usize, network: bool| 1 + 2 * layer + usize::from(network);
    let of_writer = |writer: &Writer| match writer {
        Writer::Embedding => (0, "embedding".to_owned()),
        Writer::Head { layer, .. } => (place(*layer, false), writer.to_string()),
        Writer::Network { layer } => (place(*layer, true), writer.to_string()),
    };
    let group = found.edges.iter().filter_map(|edge| if let Writer::Head { head, .. } = edge.from { Some(head + 1) } else { None }).max();
    let kv = found.edges.iter().filter_map(|edge| match edge.to {
        Reader::Head { head, operand: Operand::K, .. } => Some(head + 1),
        _ => None,
    });
    let shared = group.unwrap_or(1) / kv.max().unwrap_or(1).max(1);
    let of_reader = |reader: &Reader| match reader {
        Reader::Head { layer, head, operand: Operand::Q } => (place(*layer, false), format!("L{layer}.H{head}")),
        Reader::Head { layer, head, .. } if shared == 1 => (place(*layer, false), format!("L{layer}.H{head}")),
        Reader::Head { layer, head, .. } => (place(*layer, false), format!("L{layer}.KV{head}")),
        Reader::Network { layer } => (place(*layer, true), reader.to_string()),
        Reader::Output => (usize::MAX, "output".to_owned()),
    };
    let drawn: Vec<_> = found.edges.iter().filter(|edge| edge.chosen).take(DRAWN).collect();
    let mut nodes: Vec<(usize, String)> = drawn.iter().flat_map(|edge| [of_writer(&edge.from), of_reader(&edge.to)]).collect();
    nodes.sort();
    nodes.dedup();
    let mut places: Vec<usize> = nodes.iter().map(|node| node.0).collect();
    places.dedup();
    let row_name = |place: &usize| match *place {
        0 | usize::MAX => String::new(),
        place if place % 2 == 1 => format!("layer {}", (place - 1) / 2),
        place => format!("MLP {}", (place - 2) / 2),
    };
    let kinds = ["to queries", "to keys", "to values", "to MLP or output"].map(str::to_owned).to_vec();
    let mut graph = GraphPlot::new(places.iter().map(row_name).collect(), kinds);
    let row = |place: usize| places.iter().position(|p| *p == place).unwrap_or(0);
    for (place, name) in &nodes {
        graph = graph.node(row(*place), name.clone());
    }
    let number = |node: (usize, String)| nodes.iter().position(|n| *n == node).unwrap_or(0);
    for edge in &drawn {
        graph = graph.edge(number(of_writer(&edge.from)), number(of_reader(&edge.to)), kind(&edge.to), edge.attribution)?;
    }
    let name = |size: &regard_model::circuit::SizeFound| match size.kind {
        "found" => size.edges.to_string(),
        other => other.to_owned(),
    };
    let bars = BarPlot::new("what circuits keep", "edges", found.sizes.iter().map(name).collect(), Axis::linear("share of the difference"))
        .bars_with_intervals(
            "",
            found.sizes.iter().map(|size| size.faithfulness.mean).collect(),
            found.sizes.iter().map(|size| (size.faithfulness.low, size.faithfulness.high)).collect(),
        );
    let caption = format!(
        "The circuit of {} of {} edges over {} pairs; lines are as wide as their attribution. Beside it: random circuits and the same \
         method on shuffled pairs, of equal size.",
        found.chosen, found.edges_of_model, found.pairs
    );
    Ok(Figure::new("circuit", "Edges that carry the difference").panel(graph).panel(bars).caption(caption))
}

/// Share of the difference that a circuit without a given size is to keep.
const GOAL: f64 = 0.8;

/// What was found, in sentences.
fn said(found: &Found, goal: bool) -> String {
    let of = |kind: &str| found.sizes.iter().rev().find(|size| size.kind == kind).map(|size| &size.faithfulness);
    let share = |kind: &str| of(kind).map_or("-".to_owned(), |f| format!("{:.2} [{:.2}, {:.2}]", f.mean, f.low, f.high));
    let mut lines = vec![
        format!("difference of logits: {:.3} clean, {:.3} corrupt, over {} pairs", found.ends[0], found.ends[1], found.pairs),
        format!(
            "{} of {} edges keep {} of it; random circuits {}, shuffled pairs {}",
            found.chosen,
            found.edges_of_model,
            share("found"),
            share("random"),
            share("shuffled")
        ),
    ];
    let kept = of("found").map_or(f64::NAN, |found| found.mean);
    if goal && kept < GOAL {
        lines.push(format!(
            "below the goal of 80 %: only the {} edges with q <= 0.05 are considered; more pairs (--pairs or --clean and --corrupt) make \
             more edges certain, --edges N takes the N largest of these",
            found.chosen
        ));
    }
    if let Some((r, low, high)) = found.agreement {
        let tested = found.edges.iter().filter(|edge| edge.exact.is_some()).count();
        lines.push(format!("attribution against exact patching of {tested} edges: rank correlation {r:.3} [{low:.3}, {high:.3}]"));
    }
    lines.join("\n")
}

impl Circuit {
    /// A token's id, or the only token of a text.
    fn token(model: &Model, text: &str) -> Result<u32> {
        match text.parse() {
            Ok(id) => Ok(id),
            Err(_) => Ok(model.token(text)?),
        }
    }

    fn pairs(&self, model: &Model) -> Result<Vec<Pair>> {
        if self.clean.len() != self.corrupt.len() {
            let message = format!("{} clean texts and {} corrupt ones: give one of each per pair", self.clean.len(), self.corrupt.len());
            return Err(Unusable(message).into());
        }
        let fits = |given: &[String]| given.len() <= 1 || given.len() == self.clean.len();
        if !fits(&self.answer) || !fits(&self.wrong) || self.answer.is_empty() != self.wrong.is_empty() {
            return Err(Unusable("give --answer and --wrong both, once or once per pair".to_owned()).into());
        }
        if self.clean.is_empty() {
            if !(1..=1000).contains(&self.pairs) {
                return Err(Unusable(format!("--pairs {} is not possible: it must be from 1 to 1000", self.pairs)).into());
            }
            return Ok(model.repeated_pairs(self.pairs, self.seed));
        }
        let pair = |number: usize| -> Result<Pair> {
            let of = |given: &[String]| given.get(number).or(given.first()).map(|text| Self::token(model, text)).transpose();
            let tokens = of(&self.answer)?.zip(of(&self.wrong)?).map(|(a, b)| [a, b]);
            let ids = |text: &str| model.ids(Input::Text(text));
            Ok(model.pair(ids(&self.clean[number])?, ids(&self.corrupt[number])?, tokens)?)
        };
        (0..self.clean.len()).map(pair).collect()
    }

    /// Which parts make a score.
    fn explain(&self, model: &Model, ids: &[u32], Why([layer, head, query, key]): Why) -> Result<Outcome> {
        let score = model.score_parts(ids, layer, head, query, key)?;
        let piece = |at: usize| model.piece(ids[at]);
        let caption = format!(
            "L{layer}.H{head}, token {query} ({:?}) at token {key} ({:?}): {} parts sum to {:.5}, the score is {:.5}.",
            piece(query),
            piece(key),
            score.products.len(),
            score.sum,
            score.score
        );
        let columns = [("query_part", "through the query"), ("key_part", "through the key"), ("score", "share of the score")];
        let mut table = Table::new("score_parts", &caption, &columns);
        let mut cells: Vec<((usize, usize), f64)> = score.products.indexed_iter().map(|(at, x)| (at, *x)).collect();
        cells.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        for ((a, b), x) in cells {
            table.push(vec![score.parts[a].clone().into(), score.parts[b].clone().into(), x.into()]);
        }
        if !self.common.json && !self.common.quiet {
            // The largest are enough to read; JSON has all.
            table.rows.truncate(20);
        }
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }

    pub(super) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("circuit")?;
        let model = load(self.model.as_deref())?;
        if let Some(why) = self.why {
            let ids = match self.clean.first() {
                Some(text) => model.ids(Input::Text(text))?,
                None => model.repeated_pairs(1, self.seed).swap_remove(0).clean,
            };
            drop(bar);
            return self.explain(&model, &ids, why);
        }
        limits::GRADIENT_STEPS.check("--steps", self.steps)?;
        limits::RANDOM_CIRCUITS.check("--random", self.random)?;
        let folder = Folder::open(&self.out.out, "circuit")?;
        folder.reserve(&names::CIRCUIT)?;
        let bar = bar.resuming(&self.out.out)?;
        let pairs = self.pairs(&model)?;
        let options = Options { steps: self.steps, exact: self.exact.0, edges: self.edges, random: self.random, seed: self.seed };
        let level = regard::Level::preferred().map_err(regard::Error::from)?.name();
        let setting = format!("circuit {} {level} {}", env!("CARGO_PKG_VERSION"), model.digest()?);
        let found = model.find_circuit(&pairs, &options, &Steps { bar: &bar, setting })?;
        bar.hide();
        let tables = tables(&found);
        if !self.common.json && !self.common.quiet {
            print_wrapped(said(&found, self.edges.is_none()))?;
        }
        let mut shown = tables.clone();
        if !self.common.json {
            shown[0].rows.truncate(found.chosen.clamp(8, 24));
        }
        self.common.show(&shown)?;
        let mut files = table_files(&tables);
        files.extend(figure_files(&[figure(&found)?])?);
        write_files(folder, &files, &self.common)?;
        bar.ended();
        if found.pairs < 8 && !self.common.quiet {
            note(format_args!(
                "{} pairs can give no p below {:.3}: q over all edges needs more pairs",
                found.pairs,
                2.0 / 2f64.powi(found.pairs as i32)
            ));
        }
        Ok(Outcome::Done)
    }
}
