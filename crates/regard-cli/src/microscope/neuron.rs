//! Picture and values of one query and one key: `regard look --neuron QUERY,KEY`.

use super::picture::shown;
use anyhow::Result;
use regard_lab::Table;
use regard_lab::figure::{Axis, ColourMap, Figure, HeatPlot, LinePlot, Series};
use regard_model::Run;
use std::str::FromStr;

/// Two tokens by their numbers.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The query's.
    pub query: usize,
    /// The key's.
    pub key: usize,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<usize>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
        match numbers.as_deref() {
            Some([query, key]) => Ok(Self { query: *query, key: *key }),
            _ => Err("give the numbers of a query's and a key's token, as in 12,7; `regard tokens` counts them".to_owned()),
        }
    }
}

/// How one score of a head is computed: by elements of its vectors, and over the keys of its row.
///
/// # Errors
/// When there are no such tokens or no such head.
pub fn neuron(run: &Run, layer: usize, head: usize, pair: Pair) -> Result<(Figure, [Table; 2])> {
    let neuron = run.neuron(layer, head, pair.query, pair.key)?;
    let piece = |at: usize| shown(&run.model().piece(run.ids()[at]));
    let who = format!(
        "Layer {layer}, head {head}: token {} ({:?}) looks at token {} ({:?})",
        pair.query,
        piece(pair.query),
        pair.key,
        piece(pair.key)
    );
    let columns = [
        ("d", "element of the vectors"),
        ("q_before", "query, before positions"),
        ("k_before", "key, before positions"),
        ("q", "query"),
        ("k", "key"),
        ("product", "product"),
        ("sum", "sum so far"),
    ];
    let mut numbers = Table::new("neuron", &format!("{who}, element by element; the last sum is q.k."), &columns);
    for d in 0..neuron.q.len() {
        let of = |x: &[f32]| f64::from(x[d]).into();
        numbers.push(vec![
            d.into(),
            of(&neuron.q_before),
            of(&neuron.k_before),
            of(&neuron.q),
            of(&neuron.k),
            neuron.products[d].into(),
            neuron.sums[d].into(),
        ]);
    }
    let columns = [
        ("key", "key"),
        ("token", "token"),
        ("dot", "q.k"),
        ("scaled", "times the scale"),
        ("capped", "after the softcap"),
        ("score", "after bias and mask"),
        ("weight", "after the softmax"),
    ];
    let mut keys = Table::new("neuron_keys", &format!("The row of token {}: from products to weights.", pair.query), &columns);
    for (key, of) in neuron.keys.iter().enumerate() {
        keys.push(vec![
            key.into(),
            piece(key).into(),
            of.dot.into(),
            of.scaled.into(),
            of.capped.into(),
            of.score.into(),
            of.weight.into(),
        ]);
    }
    let dim = neuron.q.len();
    let rows = [&neuron.q_before, &neuron.k_before, &neuron.q, &neuron.k].map(|x| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    let mut cells = rows.concat();
    cells.extend(&neuron.products);
    let most = cells.iter().fold(0f64, |most, x| most.max(x.abs())).max(f64::MIN_POSITIVE);
    let mut map =
        HeatPlot::new("elements of the vectors", 5, dim, cells)?.map(ColourMap::PurpleOrange).limits(-most, most).value_title("value");
    map.row_labels = ["q before rotation", "k before rotation", "q", "k", "q times k"].map(str::to_owned).to_vec();
    (map.row_title, map.col_title) = (String::new(), "number of the vectors".to_owned());
    let d: Vec<f64> = (0..dim).map(|d| d as f64).collect();
    let dot = neuron.sums.last().copied().unwrap_or(0.0);
    let of_key = neuron.keys[pair.key];
    let sums = LinePlot::new("sum of the products", Axis::linear("number of the vectors"), Axis::linear("sum so far"))
        .series(Series::new("sum", &d, &neuron.sums).without_markers())
        .horizontal(dot, format!("q.k = {dot:.2}, times the scale {:.2}", of_key.scaled));
    // Hidden keys have no score.
    let seen: Vec<usize> = (0..neuron.keys.len()).filter(|key| neuron.keys[*key].score.is_finite()).collect();
    let x: Vec<f64> = seen.iter().map(|key| *key as f64).collect();
    let of = |what: fn(&regard_model::KeyOfRow) -> f64| seen.iter().map(|key| what(&neuron.keys[*key])).collect::<Vec<f64>>();
    let scores = LinePlot::new("scores of the row", Axis::linear("key"), Axis::linear("score"))
        .series(Series::new("q.k", &x, &of(|key| key.dot)))
        .series(Series::new("what the softmax gets", &x, &of(|key| key.score)))
        .vertical(pair.key as f64, "this key");
    let weights = LinePlot::new("weights of the row", Axis::linear("key"), Axis::linear("weight"))
        .series(Series::new("weight", &x, &of(|key| key.weight)))
        .vertical(pair.key as f64, format!("this key: {:.3}", of_key.weight));
    let caption = format!(
        "{} on {} tokens. q.k = {dot:.3}, score {:.3}, weight {:.4}.",
        run.model().path().display(),
        run.len(),
        of_key.score,
        of_key.weight
    );
    let name = format!("neuron_{layer}_{head}_{}_{}", pair.query, pair.key);
    Ok((Figure::new(name, who).panel(map).panel(sums).panel(scores).panel(weights).columns(2).caption(caption), [numbers, keys]))
}
