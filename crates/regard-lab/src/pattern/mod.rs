//! `regard plot`: the picture of a pattern, and its statistics, from weights or from Q and K of any length.
//!
//! With `w` the weights of a row, `i` the query's position on the key axis and `j` the key, each statistic is the mean over the rows of a
//! head that see any key:
//!
//! | column | definition |
//! |---|---|
//! | `max_weight` | the largest weight of the row |
//! | `entropy` | `-sum(w ln w)`, in nats |
//! | `effective_keys` | the inverse of the mean of `sum(w^2)` |
//! | `diagonal_mass`, `previous_token_mass`, `first_token_mass` | weight of key `i`, of key `i - 1`, of key 0 |
//! | `local_mass` | weight of the keys with `abs(i - j) <= local_window` |
//! | `local_vs_global` | `local_mass / (1 - local_mass)`: infinite without distant weight |
//! | `mean_distance` | `sum(w * abs(i - j))` |
//!
//! Q and K never become an `n x n` matrix unless the whole of it is drawn cell by cell: maps are pooled and statistics summed on the way.

pub mod input;

use self::input::{Held, Pattern};
use ndarray::{Array2, Array4, ArrayView2, ArrayView4, Axis, Slice};
use regard::{Attention, Mask, Real, Shape4, StatsOptions};
use regard_files::shell_quoted;
use regard_plot::figure::{Figure, FigureError, HeatPlot, Norm};
use regard_plot::{Column, Table, Value};

/// Value of a cell that pools many pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CellValue {
    /// The mean weight of its pairs, hidden ones counting as 0.
    #[default]
    Mean,
    /// The largest.
    Max,
}

/// Options of a pattern's figure.
#[derive(Debug, Clone, PartialEq)]
pub struct PlotOptions {
    /// Only this head; all of them, as a grid, where `None`.
    pub head: Option<usize>,
    /// Which batch entry.
    pub batch: usize,
    /// Largest number of rows and columns of cells; chosen where `None` (512 for one head, 128 in a grid).
    pub pool: Option<usize>,
    /// Value of a pooled cell.
    pub cell: CellValue,
    /// Keys after the query are hidden. (Weights that are zero there are recognised as causal.)
    pub causal: bool,
    /// The last query stands at the last key, rather than the first at the first.
    pub align_end: bool,
    /// Half width of `local_mass`.
    pub local_window: usize,
    /// How values become colours; chosen where `None`: by logarithm where cells pool many pairs.
    pub norm: Option<Norm>,
    /// Tokens of the keys, and of the queries where they are the same; empty for numbers.
    pub tokens: Vec<String>,
    /// Tokens of the queries, where they are others.
    pub query_tokens: Option<Vec<String>>,
    /// Heads per row of a grid; chosen where `None`.
    pub columns: Option<usize>,
}

impl Default for PlotOptions {
    fn default() -> Self {
        Self {
            head: None,
            batch: 0,
            pool: None,
            cell: CellValue::Mean,
            causal: false,
            align_end: false,
            local_window: 3,
            norm: None,
            tokens: Vec::new(),
            query_tokens: None,
            columns: None,
        }
    }
}

/// Figure and statistics of a pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct Plotted {
    /// The heat map, or the grid of heads.
    pub figure: Figure,
    /// One row of statistics per head.
    pub table: Table,
}

/// Why a pattern could not be drawn.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// There is no such head or batch entry.
    #[error("no such {what}: {got}; there are {count}, numbered from 0")]
    Index {
        /// Head or batch entry.
        what: &'static str,
        /// The requested index.
        got: usize,
        /// How many there are.
        count: usize,
    },
    /// The tokens do not fit the pattern.
    #[error(
        "{got} tokens were given, but the pattern has {queries} queries and {keys} keys; give one token per key (and --query-tokens \
         where they differ)"
    )]
    Tokens {
        /// How many tokens there are.
        got: usize,
        /// How many queries.
        queries: usize,
        /// How many keys.
        keys: usize,
    },
    /// `--causal` with weights that look ahead: they are what they are.
    #[error(
        "row {row} of head {head} has a weight of {weight} on key {key}, after the query: finished weights cannot be made causal; leave \
         --causal out, or give q and k"
    )]
    NotCausal {
        /// The head, from 0.
        head: usize,
        /// The row, from 0.
        row: usize,
        /// The key, from 0.
        key: usize,
        /// The weight there.
        weight: f64,
    },
    /// Products of queries and keys are too large for their type.
    #[error(
        "row {row} of head {head} has scores that are not finite: q and k are too large for {kind}; divide them, or store them as float64"
    )]
    Overflow {
        /// The head, from 0.
        head: usize,
        /// The row, from 0.
        row: usize,
        /// The type that the scores are computed in.
        kind: &'static str,
    },
    /// Queries in one precision and keys in another.
    #[error("q and k have different types; give both as float32 or both as float64")]
    Precision,
    /// Pooling to nothing.
    #[error("pool is 0; it must be at least 1")]
    Pool,
    /// The attention refused Q and K.
    #[error(transparent)]
    Attention(#[from] regard::Error),
    /// The figure could not be made.
    #[error(transparent)]
    Figure(#[from] FigureError),
}

/// Provenance of a plot's table.
///
/// # Errors
/// When the requested SIMD level is not available.
pub fn origin(command: &[String]) -> crate::Result<Vec<(String, String)>> {
    let words: Vec<String> = command.iter().map(|word| shell_quoted(word)).collect();
    let level = regard::Level::preferred().map_err(regard::Error::from)?.name();
    let origin = [("regard", env!("CARGO_PKG_VERSION").to_owned()), ("command", words.join(" ")), ("simd", level.to_owned())];
    Ok(origin.map(|(key, value)| (key.to_owned(), value)).to_vec())
}

/// Means over the rows of one head.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct HeadSums {
    rows: f64,
    max_weight: f64,
    entropy: f64,
    sum_of_squares: f64,
    diagonal: f64,
    previous: f64,
    first: f64,
    local: f64,
    distance: f64,
}

/// Draws a pattern. `progress` receives the finished steps and all steps.
///
/// # Errors
/// When a head, the tokens or the shapes do not fit.
pub fn plot(pattern: &Pattern, options: &PlotOptions, progress: &mut dyn FnMut(usize, usize)) -> Result<Plotted, PlotError> {
    let (batches, heads) = match pattern {
        Pattern::Weights(x) | Pattern::QueriesKeys { q: x, .. } => (x.shape()[0], x.shape()[1]),
    };
    for (what, got, count) in [("batch entry", options.batch, batches), ("head", options.head.unwrap_or(0), heads)] {
        if got >= count {
            return Err(PlotError::Index { what, got, count });
        }
    }
    if options.pool == Some(0) {
        return Err(PlotError::Pool);
    }
    match pattern {
        Pattern::Weights(Held::Single(weights)) => draw(&Source::Weights(weights.view()), options, progress),
        Pattern::Weights(Held::Double(weights)) => draw(&Source::Weights(weights.view()), options, progress),
        Pattern::QueriesKeys { q: Held::Single(q), k: Held::Single(k) } => draw(&Source::Vectors(q.view(), k.view()), options, progress),
        Pattern::QueriesKeys { q: Held::Double(q), k: Held::Double(k) } => draw(&Source::Vectors(q.view(), k.view()), options, progress),
        Pattern::QueriesKeys { .. } => Err(PlotError::Precision),
    }
}

/// A pattern in one precision.
enum Source<'p, T> {
    Weights(ArrayView4<'p, T>),
    Vectors(ArrayView4<'p, T>, ArrayView4<'p, T>),
}

fn draw<T: Real + regard::Element>(
    source: &Source<'_, T>,
    options: &PlotOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Plotted, PlotError> {
    let (heads, queries, keys) = match source {
        Source::Weights(w) => (w.shape()[1], w.shape()[2], w.shape()[3]),
        Source::Vectors(q, k) => {
            check_heads(q, k)?;
            (q.shape()[1], q.shape()[2], k.shape()[2])
        }
    };
    let chosen: Vec<usize> = options.head.map_or_else(|| (0..heads).collect(), |h| vec![h]);
    let alone = chosen.len() == 1;
    let limit = options.pool.unwrap_or(if alone { 512 } else { 128 });
    let (rows, cols) = (queries.min(limit), keys.min(limit));
    let (row_tokens, key_tokens) = tokens(options, queries, keys)?;
    let steps = chosen.len() * (STEPS_PER_HEAD + 1);
    let mut maps = Vec::new();
    let mut sums = Vec::new();
    for (place, &head) in chosen.iter().enumerate() {
        let mut done = |part: usize| progress(place * (STEPS_PER_HEAD + 1) + part, steps);
        let (cells, hidden, head_sums) = match source {
            Source::Weights(weights) => {
                let map = weights.index_axis(Axis(0), options.batch);
                let map = map.index_axis(Axis(0), head);
                let ahead = first_ahead(&map, offset(options, queries, keys));
                if let (true, Some((row, key, weight))) = (options.causal, ahead) {
                    return Err(PlotError::NotCausal { head, row, key, weight });
                }
                let cells = pooled(&map, rows, cols, options.cell);
                done(STEPS_PER_HEAD);
                (cells, ahead.is_none() && has_ahead(queries, keys, offset(options, queries, keys)), weight_sums(&map, options))
            }
            Source::Vectors(q, k) => {
                let kv = head / (heads / k.shape()[1]);
                let (q, k) = (one_head(q, options.batch, head), one_head(k, options.batch, kv));
                let sums = vector_sums(q, k, head, options, &mut done)?;
                let map = attention(options, queries, keys, 0).heat_map(q, k, rows, cols)?;
                let values = if options.cell == CellValue::Mean { map.mean } else { map.max };
                (values.index_axis(Axis(0), 0).index_axis(Axis(0), 0).mapv(|x| x.to_f64()), options.causal, sums)
            }
        };
        done(STEPS_PER_HEAD + 1);
        let title = if alone { String::new() } else { format!("head {head}") };
        maps.push(map(title, cells, (queries, keys), hidden, options, &row_tokens, &key_tokens)?);
        sums.push((head, head_sums));
    }
    Ok(Plotted { figure: figure(maps, &chosen, (queries, keys), options), table: table(&sums, (queries, keys), options) })
}

/// Parts of the statistics of a head, for progress.
const STEPS_PER_HEAD: usize = 16;

/// Heads are looked at one by one, so what concerns all of them together is checked here; the rest the attention checks.
fn check_heads<T>(q: &ArrayView4<'_, T>, k: &ArrayView4<'_, T>) -> Result<(), regard::Error> {
    let (heads_q, heads_kv) = (q.shape()[1], k.shape()[1]);
    let (qs, ks) = (Shape4::from(q.shape()), Shape4::from(k.shape()));
    if q.shape()[0] != k.shape()[0] {
        return Err(regard::Error::Batch { operand: "k", shape: ks, q: qs });
    }
    if heads_kv == 0 || !heads_q.is_multiple_of(heads_kv) {
        return Err(regard::Error::HeadGroups { q: qs, k: ks, heads_q, heads_kv });
    }
    Ok(())
}

/// `[1, 1, token, dim]` of a head.
fn one_head<'x, T>(x: &ArrayView4<'x, T>, batch: usize, head: usize) -> ArrayView4<'x, T> {
    let mut view = *x;
    view.slice_axis_inplace(Axis(0), Slice::from(batch..=batch));
    view.slice_axis_inplace(Axis(1), Slice::from(head..=head));
    view
}

/// Position of query 0 on the key axis.
fn offset(options: &PlotOptions, queries: usize, keys: usize) -> i64 {
    if options.align_end { keys as i64 - queries as i64 } else { 0 }
}

fn tokens(options: &PlotOptions, queries: usize, keys: usize) -> Result<(Vec<String>, Vec<String>), PlotError> {
    let of_keys = &options.tokens;
    let of_queries = options.query_tokens.as_ref().unwrap_or(of_keys);
    let fits = |tokens: &[String], n: usize| tokens.is_empty() || tokens.len() == n;
    for (tokens, n) in [(of_keys, keys), (of_queries, queries)] {
        if !fits(tokens, n) {
            return Err(PlotError::Tokens { got: tokens.len(), queries, keys });
        }
    }
    Ok((of_queries.clone(), of_keys.clone()))
}

fn attention(options: &PlotOptions, queries: usize, keys: usize, first: usize) -> Attention<'static> {
    let attention = Attention::new().q_offset(offset(options, queries, keys) + first as i64);
    if options.causal { attention.mask(Mask::causal()) } else { attention }
}

/// Statistics of one head from Q and K, some rows at a time.
fn vector_sums<T: Real + regard::Element>(
    q: ArrayView4<'_, T>,
    k: ArrayView4<'_, T>,
    head: usize,
    options: &PlotOptions,
    done: &mut dyn FnMut(usize),
) -> Result<HeadSums, PlotError> {
    let (queries, keys) = (q.shape()[2], k.shape()[2]);
    // Statistics need no values: one number serves all keys.
    let nothing = Array4::from_elem((1, 1, 1, 1), T::ZERO);
    let v = nothing.broadcast((1, 1, keys, 1)).ok_or(regard::Error::Zero { name: "keys" })?;
    let stats = StatsOptions { local_window: options.local_window, top_keys: 0 };
    let mut sums = HeadSums::default();
    let part = queries.div_ceil(STEPS_PER_HEAD).max(64);
    for first in (0..queries).step_by(part) {
        let rows = q.slice_axis(Axis(2), Slice::from(first..queries.min(first + part)));
        let (result, rows) = attention(options, queries, keys, first).forward_with_stats(rows, k, v, stats)?;
        for (i, lse) in result.lse.iter().enumerate() {
            if options.causal && offset(options, queries, keys) + ((first + i) as i64) < 0 {
                continue;
            }
            if !lse.to_f64().is_finite() {
                return Err(PlotError::Overflow { head, row: first + i, kind: if size_of::<T>() == 8 { "float64" } else { "float32" } });
            }
            let at = [0, 0, i];
            sums.add(&HeadSums {
                rows: 1.0,
                max_weight: rows.max_weight[at].to_f64(),
                entropy: rows.entropy[at].to_f64(),
                sum_of_squares: rows.sum_of_squares[at].to_f64(),
                diagonal: rows.diagonal_mass[at].to_f64(),
                previous: rows.previous_token_mass[at].to_f64(),
                first: rows.first_token_mass[at].to_f64(),
                local: rows.local_mass[at].to_f64(),
                distance: rows.mean_distance[at].to_f64(),
            });
        }
        done((first / part + 1).min(STEPS_PER_HEAD));
    }
    Ok(sums)
}

/// The same from weights that are laid out.
fn weight_sums<T: Real>(map: &ArrayView2<'_, T>, options: &PlotOptions) -> HeadSums {
    let (queries, keys) = map.dim();
    let offset = offset(options, queries, keys);
    let mut sums = HeadSums::default();
    for (query, row) in map.outer_iter().enumerate() {
        let position = query as i64 + offset;
        let mut one = HeadSums::default();
        for (key, w) in row.iter().map(|w| w.to_f64()).enumerate().filter(|(_, w)| *w > 0.0) {
            let away = (position - key as i64).unsigned_abs();
            one.rows = 1.0;
            one.max_weight = one.max_weight.max(w);
            one.entropy -= w * w.ln();
            one.sum_of_squares += w * w;
            one.distance += w * away as f64;
            one.diagonal += if away == 0 { w } else { 0.0 };
            one.previous += if key as i64 == position - 1 { w } else { 0.0 };
            one.first += if key == 0 { w } else { 0.0 };
            one.local += if away <= options.local_window as u64 { w } else { 0.0 };
        }
        sums.add(&one);
    }
    sums
}

impl HeadSums {
    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.max_weight += other.max_weight;
        self.entropy += other.entropy;
        self.sum_of_squares += other.sum_of_squares;
        self.diagonal += other.diagonal;
        self.previous += other.previous;
        self.first += other.first;
        self.local += other.local;
        self.distance += other.distance;
    }
}

/// The first weight after its query's own position that is not zero.
fn first_ahead<T: Real>(map: &ArrayView2<'_, T>, offset: i64) -> Option<(usize, usize, f64)> {
    let ahead = |&((query, key), weight): &((usize, usize), &T)| key as i64 > query as i64 + offset && weight.to_f64() != 0.0;
    map.indexed_iter().find(ahead).map(|((query, key), weight)| (query, key, weight.to_f64()))
}

/// Whether any key stands after a query's own position.
fn has_ahead(queries: usize, keys: usize, offset: i64) -> bool {
    queries > 0 && keys as i64 - 1 > offset
}

/// First index of a cell: the rule of [`regard::HeatMap`].
fn edge(cell: usize, length: usize, cells: usize) -> usize {
    (cell as u128 * length as u128).div_ceil(cells as u128) as usize
}

fn pooled<T: Real>(map: &ArrayView2<'_, T>, rows: usize, cols: usize, value: CellValue) -> Array2<f64> {
    let (queries, keys) = map.dim();
    Array2::from_shape_fn((rows, cols), |(r, c)| {
        let cell = map.slice_axis(Axis(0), Slice::from(edge(r, queries, rows)..edge(r + 1, queries, rows)));
        let cell = cell.slice_axis(Axis(1), Slice::from(edge(c, keys, cols)..edge(c + 1, keys, cols)));
        match value {
            CellValue::Mean => cell.iter().map(|w| w.to_f64()).sum::<f64>() / cell.len().max(1) as f64,
            CellValue::Max => cell.iter().map(|w| w.to_f64()).fold(0.0, f64::max),
        }
    })
}

fn map(
    title: String,
    cells: Array2<f64>,
    (queries, keys): (usize, usize),
    causal: bool,
    options: &PlotOptions,
    row_tokens: &[String],
    key_tokens: &[String],
) -> Result<HeatPlot, PlotError> {
    let (rows, cols) = cells.dim();
    let pooled = (rows, cols) != (queries, keys);
    let offset = offset(options, queries, keys);
    let hidden = if causal {
        // A cell is hidden where its last query does not reach its first key.
        let reach = |r: usize| edge(r + 1, queries, rows) as i64 - 1 + offset;
        (0..rows * cols).map(|cell| edge(cell % cols, keys, cols) as i64 > reach(cell / cols)).collect()
    } else {
        vec![false; rows * cols]
    };
    let mut map = HeatPlot::new(title, rows, cols, cells.into_raw_vec_and_offset().0)?;
    if causal {
        map = map.hidden(hidden)?;
    }
    if pooled {
        map = map.pooled(queries, keys).value_title(if options.cell == CellValue::Mean {
            "mean weight in a cell"
        } else {
            "largest weight in a cell"
        });
    } else {
        (map.row_labels, map.col_labels) = (row_tokens.to_vec(), key_tokens.to_vec());
        map.show_values = rows * cols <= 256;
    }
    let log = options.norm.unwrap_or(if pooled && keys > 1024 { Norm::Log } else { Norm::Linear });
    Ok(map.norm(log))
}

fn figure(mut maps: Vec<HeatPlot>, chosen: &[usize], (queries, keys): (usize, usize), options: &PlotOptions) -> Figure {
    let cells = maps.first().map_or((0, 0), |m| (m.rows, m.cols));
    let mut caption = format!("Row: the query. Column: the key it looks at. {queries} queries, {keys} keys");
    if cells != (queries, keys) {
        caption.push_str(&format!(", pooled to {} x {} cells", cells.0, cells.1));
    }
    caption.push('.');
    if maps.len() == 1 {
        let title = format!("Attention of head {}", chosen[0]);
        return maps.pop().map_or_else(Figure::default, |map| Figure::new("attention_map", title).panel(map)).caption(caption);
    }
    let columns = options.columns.unwrap_or_else(|| {
        if maps.len() <= 4 {
            maps.len().min(2)
        } else if maps.len() <= 16 {
            4
        } else {
            6
        }
    });
    Figure::grid("attention_heads", format!("Attention of {} heads", chosen.len()), maps, columns.max(1))
        .caption(format!("{caption} One colour scale for all heads."))
}

fn table(heads: &[(usize, HeadSums)], (queries, keys): (usize, usize), options: &PlotOptions) -> Table {
    let column = |name: &str, title: &str| Column { name: name.to_owned(), title: title.to_owned() };
    let local = format!("local mass (within {})", options.local_window);
    let row = |(head, s): &(usize, HeadSums)| {
        let mean = |sum: f64| Value::Number(if s.rows > 0.0 { sum / s.rows } else { 0.0 });
        let local = if s.rows > 0.0 { s.local / s.rows } else { 0.0 };
        // Rounding: the mass may exceed 1.
        let far = (1.0 - local).max(0.0);
        vec![
            Value::Integer(*head as i64),
            mean(s.max_weight),
            mean(s.entropy),
            Value::Number(if s.sum_of_squares > 0.0 { s.rows / s.sum_of_squares } else { 0.0 }),
            mean(s.diagonal),
            mean(s.previous),
            mean(s.first),
            Value::Number(local),
            Value::Number(if far < 1e-6 { f64::INFINITY } else { local / far }),
            mean(s.distance),
        ]
    };
    Table {
        name: "attention_statistics".to_owned(),
        caption: format!("Means over the rows of each head, {queries} queries and {keys} keys"),
        columns: vec![
            column("head", "head"),
            column("max_weight", "largest weight"),
            column("entropy", "entropy (nats)"),
            column("effective_keys", "effective keys"),
            column("diagonal_mass", "diagonal mass"),
            column("previous_token_mass", "previous-token mass"),
            column("first_token_mass", "first-token mass"),
            column("local_mass", &local),
            column("local_vs_global", "local / global"),
            column("mean_distance", "mean distance (tokens)"),
        ],
        rows: heads.iter().map(row).collect(),
        origin: Vec::new(),
    }
}
