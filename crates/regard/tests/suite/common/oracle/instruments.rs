//! Statistics, maps and comparisons, from the matrix of weights. Hidden pairs weigh nothing; a NaN of a visible pair is in every sum it
//! belongs to.

use super::forward::Answer;
use ndarray::{Array3, Array4};

/// The statistics of one row, as the library's module `stats` defines them.
#[derive(Debug, Clone, PartialEq)]
pub struct RowStatistics {
    pub entropy: f64,
    pub max_weight: f64,
    pub sum_of_squares: f64,
    pub diagonal_mass: f64,
    pub previous_token_mass: f64,
    pub first_token_mass: f64,
    pub local_mass: f64,
    pub mean_distance: f64,
}

/// The larger one; NaN counts as the largest.
fn larger(x: f64, y: f64) -> f64 {
    if x.is_nan() || x > y { x } else { y }
}

fn x_ln_x(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x * x.ln() }
}

pub fn row_statistics(answer: &Answer, [b, h, i]: [usize; 3], local_window: usize) -> RowStatistics {
    let seen: Vec<usize> = (0..answer.dims.seq_kv).filter(|&j| answer.visible[[b, h, i, j]]).collect();
    let weight = |j: usize| answer.weights[[b, h, i, j]];
    let distance = |j: usize| answer.pair([b, h, i, j]).distance();
    let mass = |is: &dyn Fn(i128) -> bool| seen.iter().filter(|&&j| is(distance(j))).map(|&j| weight(j)).sum::<f64>();
    RowStatistics {
        entropy: -seen.iter().map(|&j| x_ln_x(weight(j))).sum::<f64>(),
        max_weight: seen.iter().fold(0.0, |max, &j| larger(weight(j), max)),
        sum_of_squares: seen.iter().map(|&j| weight(j) * weight(j)).sum(),
        diagonal_mass: mass(&|d| d == 0),
        previous_token_mass: mass(&|d| d == -1),
        first_token_mass: seen.iter().filter(|&&j| j == 0).map(|&j| weight(j)).sum(),
        local_mass: mass(&|d| d.unsigned_abs() <= local_window as u128),
        mean_distance: seen.iter().map(|&j| weight(j) * distance(j).unsigned_abs() as f64).sum(),
    }
}

/// The visible keys of a row, the highest score first, the lower key first among equals.
pub fn heaviest_first(answer: &Answer, [b, h, i]: [usize; 3]) -> Vec<usize> {
    let score = |j: usize| answer.scores[[b, h, i, j]] + 0.0;
    let mut order: Vec<usize> = (0..answer.dims.seq_kv).filter(|&j| answer.visible[[b, h, i, j]]).collect();
    order.sort_by(|&x, &y| score(y).total_cmp(&score(x)).then(x.cmp(&y)));
    order
}

/// Mean and maximum of the weights of each cell; index `i` of `n` belongs to cell `i * cells / n`.
pub fn heat_map(answer: &Answer, rows: usize, cols: usize) -> (Array4<f64>, Array4<f64>) {
    let [b, h, n, m] = answer.dims.scores();
    let (rows, cols) = (rows.min(n), cols.min(m));
    let mut mean = Array4::<f64>::zeros([b, h, rows, cols]);
    let (mut max, mut count) = (mean.clone(), mean.clone());
    for ((b, h, i, j), &w) in answer.weights.indexed_iter() {
        let at = [b, h, i * rows / n, j * cols / m];
        mean[at] += w;
        count[at] += 1.0;
        max[at] = larger(w, max[at]);
    }
    mean.zip_mut_with(&count, |mean, count| *mean /= count);
    (mean, max)
}

/// The weight that each key gets from all queries.
pub fn column_sums(answer: &Answer) -> Array3<f64> {
    answer.weights.sum_axis(ndarray::Axis(2))
}

/// How alike two heads of a batch entry are.
#[derive(Debug, Clone, Copy)]
pub struct Similarity {
    /// Correlation of the weights over the pairs that either head sees; 0 where one of them does not vary.
    pub centred_cosine: f64,
    /// Mean of the Jensen-Shannon divergence of the rows in which both heads see a key, in nats; NaN where there is none.
    pub jensen_shannon: f64,
}

pub fn similarity(answer: &Answer, batch: usize, f: usize, g: usize) -> Similarity {
    let [_, _, n, m] = answer.dims.scores();
    let places = (0..n).flat_map(|i| (0..m).map(move |j| (i, j)));
    let seen = places.filter(|&(i, j)| answer.visible[[batch, f, i, j]] || answer.visible[[batch, g, i, j]]);
    let pairs: Vec<(f64, f64)> = seen.map(|(i, j)| (answer.weights[[batch, f, i, j]], answer.weights[[batch, g, i, j]])).collect();
    let count = pairs.len().max(1) as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
    let (mx, my) = (mean(&|p| p.0), mean(&|p| p.1));
    let product = |of: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|p| of(p.0 - mx, p.1 - my)).sum::<f64>();
    let (xx, yy, xy) = (product(&|x, _| x * x), product(&|_, y| y * y), product(&|x, y| x * y));
    let flat = xx <= 1e-12 || yy <= 1e-12;
    let sees = |head: usize, i: usize| (0..m).any(|j| answer.visible[[batch, head, i, j]]);
    let weight = |head: usize, i: usize, j: usize| answer.weights[[batch, head, i, j]];
    let divergence = |i: usize| -> f64 {
        let seen = (0..m).filter(|&j| answer.visible[[batch, f, i, j]] || answer.visible[[batch, g, i, j]]);
        seen.map(|j| (weight(f, i, j), weight(g, i, j))).map(|(x, y)| (x_ln_x(x) + x_ln_x(y)) / 2.0 - x_ln_x(f64::midpoint(x, y))).sum()
    };
    let rows: Vec<f64> =
        (0..n).map(|i| (i, divergence(i))).filter(|&(i, d)| d.is_nan() || (sees(f, i) && sees(g, i))).map(|(_, d)| d).collect();
    let jensen_shannon = rows.iter().sum::<f64>() / rows.len() as f64;
    Similarity { centred_cosine: if flat { 0.0 } else { xy / (xx * yy).sqrt() }, jensen_shannon }
}

/// Weights 1/4 and 3/4 of two keys, the query at key 1.
#[test]
fn statistics_of_two_keys_are_those_by_hand() {
    use super::{Options, attention};
    let q = Array4::ones([1, 2, 1, 1]);
    let k = Array4::from_shape_vec([1, 2, 2, 1], vec![0.0, 3f64.ln(), 0.0, 3f64.ln()]).expect("four");
    let answer = attention(&Options::new().q_offset(1), &q, &k, &k);
    let row = row_statistics(&answer, [0, 0, 0], 0);
    let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-14, "{x} instead of {y}");
    near(row.entropy, 0.25 * 4f64.ln() + 0.75 * (4f64 / 3.0).ln());
    near(row.max_weight, 0.75);
    near(row.sum_of_squares, 0.625);
    near(row.diagonal_mass, 0.75);
    near(row.previous_token_mass, 0.25);
    near(row.first_token_mass, 0.25);
    near(row.local_mass, 0.75);
    near(row.mean_distance, 0.25);
    assert_eq!(heaviest_first(&answer, [0, 0, 0]), [1, 0]);
    let (mean, max) = heat_map(&answer, 1, 1);
    near(mean[[0, 0, 0, 0]], 0.5);
    near(max[[0, 1, 0, 0]], 0.75);
    near(column_sums(&answer)[[0, 0, 1]], 0.75);
    let same = similarity(&answer, 0, 0, 1);
    near(same.centred_cosine, 1.0);
    near(same.jensen_shannon, 0.0);
    // One head sees key 0 alone, the other key 1 alone: disjoint.
    let apart = super::Mask::Dense(Array4::from_shape_vec([1, 2, 1, 2], vec![true, false, false, true]).expect("four"));
    let answer = attention(&Options::new().mask(apart), &q, &k, &k);
    near(similarity(&answer, 0, 0, 1).jensen_shannon, 2f64.ln());
    near(similarity(&answer, 0, 0, 1).centred_cosine, -1.0);
}
