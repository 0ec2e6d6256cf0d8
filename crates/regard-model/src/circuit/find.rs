//! From pairs to a circuit: edges with their errors, exact effects of the best, and faithfulness beside that of chance.

use super::attribution::Attributed;
use super::bench::Bench;
use super::{Graph, Pair, Reader, Writer};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::paired_test::{Evidence, benjamini_hochberg, interval, sign_flip};
use regard_nn::random::Draws;

/// Faithfulness at which a circuit is large enough.
const ENOUGH: f64 = 0.8;
/// Edges whose false discovery rate is above this are not put into a circuit, where pairs are many enough to tell.
const RATE: f64 = 0.05;
/// Edges of the largest circuit that is tried.
const LARGEST: usize = 4096;

/// How a circuit is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Points between clean and corrupt embedding at which gradients are taken; 0 at the clean one.
    pub steps: usize,
    /// Edges whose exact effect is measured, the largest attributions first.
    pub exact: usize,
    /// Edges of the circuit; the fewest that keep 80 % where none are given.
    pub edges: Option<usize>,
    /// Random circuits of equal size.
    pub random: usize,
    /// Of random circuits.
    pub seed: u64,
}

/// Finished steps of an earlier run, progress, and Ctrl-C.
pub trait Store {
    /// What a step came to.
    fn recall(&self, step: &str) -> Option<String>;
    /// Keeps what a step came to.
    fn remember(&self, step: &str, what: &str);
    /// More steps are to come.
    fn expect(&self, steps: usize);
    /// A step is done.
    fn advance(&self);
}

/// An edge.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeFound {
    /// Its number in the graph.
    pub edge: usize,
    /// Who writes.
    pub from: Writer,
    /// Who reads.
    pub to: Reader,
    /// Mean attribution over pairs: the change of the difference of logits where the edge comes from the corrupt text.
    pub attribution: f64,
    /// 95 % interval over pairs.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// Sign flips of pairs.
    pub p: f64,
    /// Benjamini-Hochberg over all edges.
    pub q: f64,
    /// The exact effect over pairs, where it was measured.
    pub exact: Option<Evidence>,
    /// Belongs to the circuit.
    pub chosen: bool,
}

/// A writer as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFound {
    /// Which.
    pub node: Writer,
    /// Attribution over pairs.
    pub attribution: Evidence,
    /// Benjamini-Hochberg over all nodes.
    pub q: f64,
}

/// Circuits of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeFound {
    /// Edges.
    pub edges: usize,
    /// `found`, `random`, `shuffled`.
    pub kind: &'static str,
    /// Share of the difference that is kept: over pairs, for random circuits over circuits.
    pub faithfulness: Evidence,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// How many pairs.
    pub pairs: usize,
    /// How many edges the model has.
    pub edges_of_model: usize,
    /// The mean difference of logits on the clean and on the corrupt texts.
    pub ends: [f64; 2],
    /// Edges, the largest attribution first: all of them.
    pub edges: Vec<EdgeFound>,
    /// Nodes in the order of a pass.
    pub nodes: Vec<NodeFound>,
    /// Circuits by size, and beside the chosen one random ones and those of shuffled pairs.
    pub sizes: Vec<SizeFound>,
    /// Spearman's correlation of attribution and exact effect over measured edges, with its 95 % interval over edges.
    pub agreement: Option<(f64, f64, f64)>,
    /// Edges of the circuit.
    pub chosen: usize,
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len().max(1) as f64
}

/// Ranks from 0, ties shared.
fn ranks(x: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*a].total_cmp(&x[*b]));
    let mut ranks = vec![0.0; x.len()];
    let mut first = 0;
    while first < order.len() {
        let end = (first..order.len()).take_while(|i| x[order[*i]] == x[order[first]]).count() + first;
        order[first..end].iter().for_each(|i| ranks[*i] = (first + end - 1) as f64 / 2.0);
        first = end;
    }
    ranks
}

/// Spearman's rank correlation; NaN of fewer than two, or of equal numbers.
pub fn rank_correlation(x: &[f64], y: &[f64]) -> f64 {
    let (x, y) = (ranks(x), ranks(y));
    let (a, b) = (mean(&x), mean(&y));
    let sum = |f: &dyn Fn(f64, f64) -> f64| x.iter().zip(&y).map(|(x, y)| f(x - a, y - b)).sum::<f64>();
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

/// The same with its 95 % bootstrap interval over pairs of numbers.
fn agreement(x: &[f64], y: &[f64]) -> Option<(f64, f64, f64)> {
    if x.len() < 3 {
        return None;
    }
    let mut draws = Draws::at(1, &[0xA62E]);
    let mut drawn: Vec<f64> = (0..400)
        .map(|_| {
            let places: Vec<usize> = (0..x.len()).map(|_| draws.below(x.len())).collect();
            let of = |all: &[f64]| places.iter().map(|i| all[*i]).collect::<Vec<_>>();
            rank_correlation(&of(x), &of(y))
        })
        .filter(|r| !r.is_nan())
        .collect();
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| drawn.get(((drawn.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(f64::NAN);
    Some((rank_correlation(x, y), at(0.025), at(0.975)))
}

/// A number of each pair, computed or recalled.
fn stored<R: serde::Serialize + serde::de::DeserializeOwned>(store: &dyn Store, step: &str, make: impl FnOnce() -> Result<R>) -> Result<R> {
    if let Some(known) = store.recall(step).and_then(|text| serde_json::from_str(&text).ok()) {
        store.advance();
        return Ok(known);
    }
    let made = make()?;
    if let Ok(text) = serde_json::to_string(&made) {
        store.remember(step, &text);
    }
    store.advance();
    Ok(made)
}

/// A part of each edge's means over pairs, and the edges by the size of their attribution.
fn ordered(all: &[Attributed]) -> (Vec<f64>, Vec<usize>) {
    let count = all.first().map_or(0, |one| one.edges.len());
    let means: Vec<f64> = (0..count).map(|edge| all.iter().map(|one| one.edges[edge]).sum::<f64>() / all.len() as f64).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|a, b| means[*b].abs().total_cmp(&means[*a].abs()).then(a.cmp(b)));
    (means, order)
}

fn kept(count: usize, edges: &[usize]) -> Vec<bool> {
    let mut kept = vec![false; count];
    edges.iter().for_each(|edge| kept[*edge] = true);
    kept
}

impl Model {
    /// How much of the difference between the texts of a pair the edges keep, when all others come from the corrupt text: 1 all, 0 nothing.
    ///
    /// # Errors
    /// As [`Model::find_circuit`].
    pub fn circuit_faithfulness(&self, pair: &Pair, edges: &[usize]) -> Result<f64> {
        let (graph, weights) = (Graph::of(self)?, self.weights()?);
        Bench::of(self, &weights, &graph, pair.clone())?.faithfulness(&kept(graph.edges(), edges))
    }

    /// The exact effect of an edge: the change of the difference of logits where it comes from the corrupt text, all else clean.
    ///
    /// # Errors
    /// As [`Model::find_circuit`].
    pub fn edge_effect(&self, pair: &Pair, edge: usize) -> Result<f64> {
        let (graph, weights) = (Graph::of(self)?, self.weights()?);
        if edge >= graph.edges() {
            return Err(Error::Outside { what: "edge", number: edge, count: graph.edges() });
        }
        Bench::of(self, &weights, &graph, pair.clone())?.exact(edge)
    }

    /// Look for a circuit that keeps the difference between clean and corrupt texts.
    ///
    /// # Errors
    /// As [`Graph::of`]; when there are no pairs, or a pair whose texts differ in nothing.
    pub fn find_circuit(&self, pairs: &[Pair], options: &Options, store: &dyn Store) -> Result<Found> {
        let graph = Graph::of(self)?;
        if pairs.is_empty() {
            return Err(Error::Tokens { reason: "there are no pairs of texts: give at least one clean and one corrupt text".to_owned() });
        }
        let weights = self.weights()?;
        // A pair is run again for each use, so that one at a time is in memory.
        let bench = |pair: &Pair| Bench::of(self, &weights, &graph, pair.clone());
        let edges = graph.edges();
        let exact = options.exact.min(edges);
        store.expect(pairs.len() * 2 + pairs.len() * exact);
        let attribute = |name: &str, pair: &Pair| {
            stored(store, &format!("{name} {} {pair:?}", options.steps), || bench(pair)?.attribution(options.steps))
        };
        let all: Vec<Attributed> = pairs.iter().map(|pair| attribute("attribution", pair)).collect::<Result<_>>()?;
        if let Some(pair) = all.iter().position(|one| (one.ends[0] - one.ends[1]).abs() < 1e-6) {
            return Err(Error::Tokens { reason: format!("the texts of pair {pair} do not differ in the logits that are compared") });
        }
        let (means, order) = ordered(&all);
        let of_edge = |edge: usize| all.iter().map(|one| one.edges[edge]).collect::<Vec<f64>>();
        let p: Vec<f64> = (0..edges).map(|edge| sign_flip(&of_edge(edge), edge as u64)).collect();
        let q = benjamini_hochberg(&p);

        // The same method on pairs that do not belong together.
        let partner = |at: usize| {
            let mut others = (1..pairs.len()).map(|step| (at + step) % pairs.len());
            others.find(|other| pairs[*other].corrupt.len() == pairs[at].clean.len())
        };
        let shuffled: Vec<Pair> = (0..pairs.len())
            .filter_map(|at| partner(at).map(|other| Pair { corrupt: pairs[other].corrupt.clone(), ..pairs[at].clone() }))
            .collect();
        let of_shuffled: Vec<Attributed> = shuffled.iter().map(|pair| attribute("shuffled", pair)).collect::<Result<_>>()?;

        // Edges that may be chance are left out where pairs are many enough to tell.
        let sure: Vec<usize> = order.iter().copied().filter(|edge| q[*edge] <= RATE).collect();
        let candidates = if sure.is_empty() { &order } else { &sure };
        let measure = |name: &str, chosen: &[usize]| -> Result<Vec<f64>> {
            let kept = kept(edges, chosen);
            let one =
                |pair: &Pair| stored(store, &format!("{name} {} {chosen:?} {pair:?}", options.steps), || bench(pair)?.faithfulness(&kept));
            pairs.iter().map(one).collect()
        };
        let mut sizes = Vec::new();
        let mut count = options.edges.unwrap_or(1).clamp(1, candidates.len());
        loop {
            store.expect(pairs.len());
            let faithfulness = Evidence::of(&measure("found", &candidates[..count])?, count as u64);
            let enough = faithfulness.mean >= ENOUGH || options.edges.is_some() || count >= candidates.len().min(LARGEST);
            sizes.push(SizeFound { edges: count, kind: "found", faithfulness });
            if enough {
                break;
            }
            count = (2 * count).min(candidates.len());
        }
        let chosen = &candidates[..count];
        store.expect(pairs.len() * (options.random + 1));
        let mut of_random = Vec::new();
        for number in 0..options.random {
            let mut draws = Draws::at(options.seed, &[0x4A4D, number as u64]);
            let mut places: Vec<usize> = (0..edges).collect();
            for at in 0..count {
                let other = at + draws.below(edges - at);
                places.swap(at, other);
            }
            of_random.push(mean(&measure("random", &places[..count])?));
        }
        if !of_random.is_empty() {
            sizes.push(SizeFound { edges: count, kind: "random", faithfulness: Evidence::of(&of_random, 7) });
        }
        if !of_shuffled.is_empty() {
            let (_, order) = ordered(&of_shuffled);
            let values = measure("shuffled", &order[..count])?;
            sizes.push(SizeFound { edges: count, kind: "shuffled", faithfulness: Evidence::of(&values, 8) });
        }

        // Exact effects, pair by pair so that each is run once.
        let tested = &order[..exact];
        let mut effects = vec![Vec::new(); exact];
        for pair in pairs {
            let mut ready: Option<Bench<'_>> = None;
            for (effects, &edge) in effects.iter_mut().zip(tested) {
                let value = stored(store, &format!("exact {edge} {pair:?}"), || {
                    if ready.is_none() {
                        ready = Some(bench(pair)?);
                    }
                    ready.as_ref().map_or(Ok(f64::NAN), |bench| bench.exact(edge))
                })?;
                effects.push(value);
            }
        }
        let exact: Vec<Evidence> = tested.iter().zip(&effects).map(|(edge, effects)| Evidence::of(effects, *edge as u64)).collect();
        let agreement = agreement(
            &tested.iter().map(|edge| means[*edge]).collect::<Vec<_>>(),
            &exact.iter().map(|effect| effect.mean).collect::<Vec<_>>(),
        );
        let in_circuit = kept(edges, chosen);
        let found = |(place, &edge): (usize, &usize)| {
            let (from, to) = graph.ends(edge);
            let (low, high) = if place < SHOWN { interval(&of_edge(edge), edge as u64) } else { (f64::NAN, f64::NAN) };
            EdgeFound {
                edge,
                from,
                to,
                attribution: means[edge],
                low,
                high,
                p: p[edge],
                q: q[edge],
                exact: exact.get(place).cloned(),
                chosen: in_circuit[edge],
            }
        };
        let nodes: Vec<Evidence> = (0..graph.writers())
            .map(|node| Evidence::of(&all.iter().map(|one| one.nodes[node]).collect::<Vec<_>>(), node as u64))
            .collect();
        let of_nodes = benjamini_hochberg(&nodes.iter().map(|node| node.p).collect::<Vec<_>>());
        let node = |(number, (attribution, q)): (usize, (Evidence, f64))| NodeFound { node: graph.writer(number), attribution, q };
        Ok(Found {
            pairs: pairs.len(),
            edges_of_model: edges,
            ends: [0, 1].map(|end| mean(&all.iter().map(|one| one.ends[end]).collect::<Vec<_>>())),
            edges: order.iter().enumerate().map(found).collect(),
            nodes: nodes.into_iter().zip(of_nodes).enumerate().map(node).collect(),
            sizes,
            agreement,
            chosen: count,
        })
    }
}

/// Edges with intervals, the largest first.
const SHOWN: usize = 512;
