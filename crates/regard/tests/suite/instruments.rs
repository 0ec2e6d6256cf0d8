//! Maps, sums, similarity and the heaviest key against the judge, where hidden pairs, long rows and near ties make them hard.

use crate::common::oracle::{self, Bias, Mask, Options};
use crate::common::{Inputs, Normal, Shape, levels};
use ndarray::Array4;
use regard::{Attention, Stage, StatsOptions};

fn answer(options: &Options, x: &Inputs<f32>) -> oracle::Answer {
    let [q, k, v] = [&x.q, &x.k, &x.v].map(|x| oracle::widened(x.view()));
    oracle::attention(options, &q, &k, &v)
}

/// Whole numbers, so that top-k takes the same keys in any arithmetic.
fn whole(shape: Shape, seed: u64) -> Inputs<f32> {
    let round = |x: Array4<f32>| x.mapv(|x| x.round());
    let Inputs { q, k, v } = Inputs::normal(shape, seed);
    Inputs { q: round(q), k: round(k), v: round(v) }
}

/// Every way to hide a pair, from all heads alike and from each differently.
fn hiding(s: &Shape) -> Vec<(&'static str, Options)> {
    let mut numbers = Normal::new(7);
    let mut bias = |shape: [usize; 4]| {
        Bias::Dense(Array4::from_shape_simple_fn(shape, || match numbers.below(3) {
            0 => f32::NEG_INFINITY,
            n => n as f32 / 4.0,
        }))
    };
    let (pairs, per_head) = (bias([1, 1, s.seq_q, s.seq_kv]), bias(s.scores()));
    vec![
        ("nothing", Options::new()),
        ("a mask", Options::new().causal_bottom_right()),
        ("a bias", Options::new().bias(pairs.clone())),
        ("a bias for each head", Options::new().bias(per_head.clone())),
        ("top k", Options::new().top_k(3).scale(0.5)),
        ("a mask and top k", Options::new().causal_bottom_right().top_k(5).scale(0.5)),
        ("all of them", Options::new().mask(Mask::Window(Some(30), None)).bias(per_head).top_k(9).scale(0.5)),
    ]
}

#[test]
fn head_similarity_counts_the_pairs_that_are_seen_and_no_others() {
    for s in [Shape::single(12, 20, 8).heads(3, 3), Shape::new(37, 150, 8).heads(4, 2)] {
        let x = whole(s, 3);
        for (name, options) in hiding(&s) {
            let answer = answer(&options, &x);
            for level in levels() {
                let got = options.attention().level(level).head_similarity(&x.q, &x.k).expect(name);
                for ((b, f, g), &cosine) in got.centred_cosine.indexed_iter().filter(|((_, f, g), _)| f != g) {
                    let expected = oracle::similarity(&answer, b, f, g);
                    let what = format!("hidden by {name}, heads {f} and {g}, {s:?}, {}", level.name());
                    assert!((cosine - expected.centred_cosine).abs() <= 1e-4, "{what}: {cosine} instead of {}", expected.centred_cosine);
                    let divergence = got.jensen_shannon[[b, f, g]];
                    assert!(
                        (divergence - expected.jensen_shannon).abs() <= 1e-5,
                        "{what}: {divergence} instead of {}",
                        expected.jensen_shannon
                    );
                }
            }
        }
    }
}

/// By hand: two heads of two queries and two keys, all keys alike. A bias hides the pair (0, 1) from both heads.
#[test]
fn a_pair_that_a_bias_hides_from_both_heads_is_not_counted() {
    let q = Array4::from_shape_vec([1, 2, 2, 1], vec![0.0, 1.0, 0.0, -1.0]).expect("four");
    let k = Array4::from_shape_vec([1, 1, 2, 1], vec![0.0, 3f32.ln()]).expect("two");
    let bias = Array4::from_shape_vec([1, 1, 2, 2], vec![0.0, f32::NEG_INFINITY, 0.0, 0.0]).expect("four");
    // Seen: (0, 0), (1, 0), (1, 1). Weights 1, 1/4, 3/4 in the first head, 1, 3/4, 1/4 in the second; both have the mean 2/3.
    let deviations = [(1.0 / 3.0, 1.0 / 3.0), (-5.0 / 12.0, 1.0 / 12.0), (1.0 / 12.0, -5.0 / 12.0)];
    let sum = |of: &dyn Fn(f64, f64) -> f64| deviations.iter().map(|&(x, y)| of(x, y)).sum::<f64>();
    let expected = sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
    for level in levels() {
        let a = Attention::new().bias(regard::Bias::Dense(bias.view().into())).level(level);
        let got = a.head_similarity(&q, &k).expect("fits").centred_cosine[[0, 0, 1]];
        assert!((got - expected).abs() < 1e-5, "{got} instead of {expected}, {}", level.name());
    }
}

#[test]
fn maps_and_column_sums_are_those_of_the_pairs_that_are_seen() {
    for s in [Shape::single(12, 20, 8).heads(2, 2), Shape::new(70, 150, 8).heads(2, 1)] {
        let x = whole(s, 4);
        for (name, options) in hiding(&s) {
            let answer = answer(&options, &x);
            let (mean, max) = oracle::heat_map(&answer, 7, 9);
            let sums = oracle::column_sums(&answer);
            for level in levels() {
                let a = options.attention().level(level);
                let what = format!("hidden by {name}, {s:?}, {}", level.name());
                let map = a.heat_map(&x.q, &x.k, 7, 9).expect(name);
                let near = |x: f32, y: f64, size: f64| (f64::from(x) - y).abs() <= 2e-6 * size;
                assert!(map.mean.iter().zip(&mean).all(|(&x, &y)| near(x, y, 1.0)), "{what}: mean");
                assert!(map.max.iter().zip(&max).all(|(&x, &y)| near(x, y, 1.0)), "{what}: max");
                let got = a.column_sums(&x.q, &x.k).expect(name);
                assert!(got.iter().zip(&sums).all(|(&x, &y)| near(x, y, s.seq_q as f64)), "{what}: column sums");
            }
        }
    }
}

/// All keys alike: each weighs 1 / m, and a cell's mean is that, however many keys it pools.
#[test]
fn a_cell_of_a_hundred_thousand_keys_has_their_mean() {
    let m = 100_000;
    for n in [1, 20] {
        let (q, k) = (Array4::<f32>::zeros([1, 1, n, 1]), Array4::<f32>::zeros([1, 1, m, 1]));
        for level in levels() {
            for cols in [1, 3] {
                let map = Attention::new().level(level).heat_map(&q, &k, 1, cols).expect("fits");
                for &mean in &map.mean {
                    let off = f64::from(mean) * m as f64 - 1.0;
                    assert!(off.abs() < 1e-5, "off by {off:e}, {n} rows, {cols} cells, {}", level.name());
                }
            }
        }
    }
}

/// The heaviest key is the one of the highest score, also where all weights round to the same number.
#[test]
fn argmax_is_the_key_of_the_highest_score_and_the_first_of_the_top_keys() {
    for (n, m) in [(3, 40), (40, 140), (20, 2100)] {
        for size in [1.0, 1e-3, 1e-7, 1e-20] {
            let mut x = Inputs::<f32>::normal(Shape::single(n, m, 4), 5);
            x.q.mapv_inplace(|x| x * size);
            for level in levels() {
                let a = Attention::new().level(level);
                let scores = a.scores(&x.q, &x.k, Stage::Masked).expect("fits");
                let options = StatsOptions { local_window: 1, top_keys: 2 };
                let (_, stats) = a.forward_with_stats(&x.q, &x.k, &x.v, options).expect("fits");
                for i in 0..n {
                    let score = |j: usize| scores[[0, 0, i, j]];
                    let first = (0..m).fold(0, |best, j| if score(j) > score(best) { j } else { best });
                    let (argmax, top) = (stats.argmax[[0, 0, i]], stats.top_keys[[0, 0, i, 0]]);
                    let what = format!("scores of {size:e}, row {i} of {n} x {m}, {}", level.name());
                    assert_eq!(argmax, first as i64, "argmax, {what}");
                    assert_eq!(top, first as i64, "top key, {what}");
                }
            }
        }
    }
}
