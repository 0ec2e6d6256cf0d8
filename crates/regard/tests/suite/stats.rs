//! Statistics, heat maps, column sums and head similarity against the matrix, laid out.

use crate::common::{Inputs, Recipe, Shape, levels, masks, oracle, textbook};
use ndarray::{Array3, Array4, ArrayView1, s};
use regard::{Attention, Mask, RowStats, StatsOptions};

const OPTIONS: StatsOptions = StatsOptions { local_window: 4, top_keys: 5 };

#[track_caller]
fn assert_near(what: &str, got: f64, exact: f64, tolerance: f64) {
    assert!((got - exact).abs() <= tolerance, "{what}: {got} instead of {exact}");
}

fn sum(row: &ArrayView1<'_, f64>, f: impl Fn(usize, f64) -> f64) -> f64 {
    row.iter().enumerate().filter(|&(_, &w)| w > 0.0).map(|(j, &w)| f(j, w)).sum()
}

/// Every number of every row, from its definition. `positions[b]` is where query 0 stands.
#[track_caller]
fn check_rows(what: &str, stats: &RowStats<f32>, scores: &Array4<f64>, weights: &Array4<f64>, positions: &[i64]) {
    let (batch, heads, n, m) = weights.dim();
    for b in 0..batch {
        for h in 0..heads {
            for i in 0..n {
                let row = weights.slice(s![b, h, i, ..]);
                let at = [b, h, i];
                let position = positions[b] + i as i64;
                let distance = |j: usize| (position - j as i64).abs();
                let what = |name: &str| format!("{name}, {what}, row {at:?}");
                let near = |name: &str, got: &Array3<f32>, exact: f64, tolerance: f64| {
                    assert_near(&what(name), f64::from(got[at]), exact, tolerance);
                };
                near("entropy", &stats.entropy, sum(&row, |_, w| -w * w.ln()), 1e-5);
                near("squares", &stats.sum_of_squares, sum(&row, |_, w| w * w), 2e-6);
                near("distance", &stats.mean_distance, sum(&row, |j, w| w * distance(j) as f64), 2e-6 * m as f64);
                let mass = |is: &dyn Fn(usize) -> bool| sum(&row, |j, w| if is(j) { w } else { 0.0 });
                near("diagonal", &stats.diagonal_mass, mass(&|j| j as i64 == position), 2e-6);
                near("previous", &stats.previous_token_mass, mass(&|j| j as i64 == position - 1), 2e-6);
                near("first", &stats.first_token_mass, mass(&|j| j == 0), 2e-6);
                near("local", &stats.local_mass, mass(&|j| distance(j) <= 4), 2e-6);
                near("largest", &stats.max_weight, row.iter().fold(0.0, |m: f64, &w| m.max(w)), 2e-6);
                // Keys by score, the lower first where they are equal.
                let visible = (0..m).filter(|&j| scores[[b, h, i, j]] > f64::NEG_INFINITY);
                let mut order: Vec<usize> = visible.collect();
                order.sort_by(|&x, &y| scores[[b, h, i, y]].total_cmp(&scores[[b, h, i, x]]).then(x.cmp(&y)));
                assert_eq!(stats.argmax[at], order.first().map_or(-1, |&j| j as i64), "{}", what("argmax"));
                for t in 0..OPTIONS.top_keys {
                    let key = order.get(t).map_or(-1, |&j| j as i64);
                    assert_eq!(stats.top_keys[[b, h, i, t]], key, "{}", what("top keys"));
                    let weight = order.get(t).map_or(0.0, |&j| row[j]);
                    assert_near(&what("top weights"), f64::from(stats.top_weights[[b, h, i, t]]), weight, 2e-6);
                }
            }
        }
    }
    let means = stats.heads();
    for b in 0..batch {
        for h in 0..heads {
            let seen: Vec<usize> = (0..n).filter(|&i| scores.slice(s![b, h, i, ..]).iter().any(|&x| x > f64::NEG_INFINITY)).collect();
            let mean = |f: &dyn Fn(usize) -> f64| seen.iter().map(|&i| f(i)).sum::<f64>() / seen.len().max(1) as f64;
            let row = |i: usize| weights.slice(s![b, h, i, ..]);
            let entropy = mean(&|i| sum(&row(i), |_, w| -w * w.ln()));
            assert_near(&format!("mean entropy, {what}"), means.entropy[[b, h]], entropy, 1e-5);
            let first = mean(&|i| sum(&row(i), |j, w| if j == 0 { w } else { 0.0 }));
            assert_near(&format!("mean first, {what}"), means.first_token_mass[[b, h]], first, 2e-6);
            let largest = mean(&|i| row(i).iter().fold(0.0, |m: f64, &w| m.max(w)));
            assert_near(&format!("mean largest, {what}"), means.max_weight[[b, h]], largest, 2e-6);
        }
    }
}

fn check(what: &str, recipe: &Recipe, x: &Inputs<f32>, positions: &[i64]) {
    let exact = textbook(&recipe.options, x);
    for level in levels() {
        let a = recipe.attention().level(level);
        let (_, stats) = a.forward_with_stats(&x.q, &x.k, &x.v, OPTIONS).expect(what);
        check_rows(&format!("{what}, {}", level.name()), &stats, &exact.scores, &exact.weights, positions);
    }
}

/// Where query 0 stands under the masks of the same name.
fn positions(name: &str, s: &Shape) -> Vec<i64> {
    let (n, m) = (s.seq_q as i64, s.seq_kv as i64);
    let each = |f: &dyn Fn(i64) -> i64| (0..s.batch as i64).map(f).collect();
    match name {
        "bottom right" => each(&|_| m - n),
        "causal with an offset" => each(&|_| 11),
        "causal with a negative offset" => each(&|_| -5),
        "causal with offsets" | "window with offsets" => each(&|b| m / 2 - 4 * b),
        "key lengths, bottom right" => each(&|b| if b == 0 { m - 3 - n } else { m * (b % 3) / 3 - n }),
        "custom with an offset" => each(&|_| 20),
        _ => each(&|_| 0),
    }
}

#[test]
fn row_statistics_are_those_of_the_matrix_under_every_mask() {
    for s in [Shape::new(1, 140, 8), Shape::new(5, 140, 8).heads(2, 1), Shape::new(40, 140, 8).heads(2, 1), Shape::new(70, 33, 8)] {
        let x = Inputs::normal(s, 3);
        for (name, recipe) in masks(&s) {
            let at = positions(name, &s);
            check(&format!("{name}, {s:?}"), &recipe, &x, &at);
            check(&format!("{name} with sink, {s:?}"), &recipe.some_sink(&s), &x, &at);
        }
    }
}

#[test]
fn row_statistics_of_long_rows_are_those_of_the_matrix() {
    for n in [1, 3, 30] {
        let s = Shape::single(n, 4300, 8).heads(2, 1);
        let x = Inputs::normal(s, 5);
        let end = vec![4300 - n as i64];
        check("full", &Recipe::new(), &x, &[0]);
        check("causal", &Recipe::new().with(|a| a.causal_bottom_right()), &x, &end);
        check("sink", &Recipe::new().some_sink(&s).with(|a| a.causal_bottom_right()), &x, &end);
        check("last keys", &Recipe::new().with(|a| a.mask(!oracle::Mask::FirstKeys(4200))), &x, &[0]);
        check(
            "both ends",
            &Recipe::new().with(|a| a.mask(oracle::Mask::FirstKeys(3) | !oracle::Mask::FirstKeys(4200)).q_offset(4000)),
            &x,
            &[4000],
        );
        check("sharp", &Recipe::new().scale(regard::Scale::By(3.0)), &x, &[0]);
    }
}

#[test]
fn row_statistics_hold_with_top_k_bias_and_softcap() {
    let s = Shape::new(20, 150, 8);
    let x = Inputs::normal(s, 7);
    check("top k", &Recipe::new().with(|a| a.top_k(9)), &x, &[0, 0]);
    check("bias", &Recipe::new().dense_bias(s.scores(), 4), &x, &[0, 0]);
    check("softcap", &Recipe::new().softcap(0.7), &x, &[0, 0]);
}

/// A huge sink leaves the keys next to nothing; the weights of the keys are still what counts.
#[test]
fn statistics_with_a_sink_are_of_the_keys_alone() {
    let s = Shape::new(9, 20, 8);
    let x = Inputs::normal(s, 7);
    check("sink", &Recipe::new().sink(vec![8.0, -8.0, f64::NEG_INFINITY, 0.0]), &x, &[0, 0]);
}

#[test]
fn equal_scores_have_the_entropy_of_a_uniform_row() {
    let x = Array4::<f64>::zeros((1, 1, 300, 4));
    for level in levels() {
        let a = Attention::new().causal().level(level);
        let (_, stats) = a.forward_with_stats(&x, &x, &x, StatsOptions { local_window: 0, top_keys: 3 }).expect("fits");
        for i in 0..300 {
            let at = [0, 0, i];
            let n = i as f64 + 1.0;
            assert_near("entropy", stats.entropy[at], n.ln(), 1e-12);
            assert_near("squares", stats.sum_of_squares[at], 1.0 / n, 1e-12);
            assert_near("distance", stats.mean_distance[at], i as f64 / 2.0, 1e-10);
            // All are equal: the lowest keys.
            assert_eq!(stats.argmax[at], 0);
            assert_eq!(stats.top_keys.slice(s![0, 0, i, ..]).to_vec(), [0, if i > 0 { 1 } else { -1 }, if i > 1 { 2 } else { -1 }]);
        }
    }
}

#[test]
fn a_row_that_is_certain_has_no_entropy() {
    let x = Inputs::<f32>::normal(Shape::single(40, 40, 8), 1);
    for level in levels() {
        let a = Attention::new().window(0, 0).level(level);
        let (_, stats) = a.forward_with_stats(&x.q, &x.k, &x.v, OPTIONS).expect("fits");
        assert!(stats.entropy.iter().all(|&e| (0.0..1e-6).contains(&e)), "{:?}", stats.entropy);
        assert!(stats.diagonal_mass.iter().all(|&w| w == 1.0));
        assert!(stats.max_weight.iter().all(|&w| w == 1.0));
    }
}

#[test]
fn column_sums_are_those_of_the_matrix() {
    for s in [Shape::new(1, 140, 8), Shape::new(70, 140, 8), Shape::single(5, 4300, 8).heads(4, 1), Shape::new(9, 30, 8).heads(6, 1)] {
        let x = Inputs::<f32>::normal(s, 3);
        for (name, recipe) in
            masks(&s).into_iter().chain([("sink", Recipe::new().some_sink(&s)), ("top", Recipe::new().with(|a| a.top_k(5)))])
        {
            let exact = textbook(&recipe.options, &x);
            for level in levels() {
                let got = recipe.attention().level(level).column_sums(&x.q, &x.k).expect(name);
                for ((b, h, j), &sum) in got.indexed_iter() {
                    let column = exact.weights.slice(s![b, h, .., j]).sum();
                    assert_near(&format!("{name}, key {j}, {s:?}"), f64::from(sum), column, 1e-6 * s.seq_q as f64);
                }
            }
        }
    }
}

#[test]
fn a_heat_map_is_the_matrix_pooled() {
    for s in [
        Shape::new(1, 140, 8),
        Shape::new(70, 140, 8).heads(2, 1),
        Shape::single(5, 4300, 8).heads(4, 1),
        Shape::new(150, 40, 8).heads(2, 2),
    ] {
        let x = Inputs::<f32>::normal(s, 3);
        for (name, recipe) in masks(&s) {
            let exact = textbook(&recipe.options, &x);
            for (rows, cols) in [(1, 1), (7, 9), (64, 33), (5000, 5000)] {
                let (r, c) = (rows.min(s.seq_q), cols.min(s.seq_kv));
                // Pool once; every level must agree.
                let mut sums = Array4::<f64>::zeros((s.batch, s.heads_q, r, c));
                let (mut tops, mut areas) = (sums.clone(), sums.clone());
                for ((b, h, i, j), &w) in exact.weights.indexed_iter() {
                    let at = [b, h, i * r / s.seq_q, j * c / s.seq_kv];
                    sums[at] += w;
                    areas[at] += 1.0;
                    tops[at] = tops[at].max(w);
                }
                for level in levels() {
                    let map = recipe.attention().level(level).heat_map(&x.q, &x.k, rows, cols).expect(name);
                    assert_eq!(map.mean.dim(), sums.dim());
                    for (at, &mean) in map.mean.indexed_iter() {
                        let [mean, max] = [f64::from(mean) - sums[at] / areas[at], f64::from(map.max[at]) - tops[at]];
                        let near = mean.abs() < 2e-6 && max.abs() < 2e-6;
                        assert!(near, "{name}, cell {at:?} of {rows} x {cols}, {s:?}: {mean:e}, {max:e}");
                    }
                }
            }
        }
    }
}

/// From the matrices: correlation over the pairs that either head may see, and the divergence of the rows.
#[test]
fn head_similarity_is_that_of_the_matrices() {
    for s in [Shape::new(1, 40, 8), Shape::new(37, 150, 8).heads(4, 2), Shape::single(3, 2300, 8).heads(3, 1)] {
        let x = Inputs::<f32>::normal(s, 3);
        for (name, recipe) in masks(&s).into_iter().chain([("sink", Recipe::new().some_sink(&s))]) {
            let exact = textbook(&recipe.options, &x);
            for level in levels() {
                let got = recipe.attention().level(level).head_similarity(&x.q, &x.k).expect(name);
                for ((b, f, g), &cosine) in got.centred_cosine.indexed_iter() {
                    let what = format!("{name}, heads {f} and {g}, {s:?}");
                    let divergence = got.jensen_shannon[[b, f, g]];
                    if f == g {
                        assert!(cosine == 1.0 && divergence == 0.0);
                        continue;
                    }
                    let of = |h: usize| (exact.weights.slice(s![b, h, .., ..]), exact.scores.slice(s![b, h, .., ..]));
                    let ((wf, sf), (wg, sg)) = (of(f), of(g));
                    let seen = sf.iter().zip(&sg).map(|(&x, &y)| x > f64::NEG_INFINITY || y > f64::NEG_INFINITY);
                    let pairs: Vec<(f64, f64)> =
                        wf.iter().zip(&wg).zip(seen).filter(|(_, seen)| *seen).map(|((&x, &y), _)| (x, y)).collect();
                    let n = pairs.len().max(1) as f64;
                    let (mx, my) = pairs.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x / n, b + y / n));
                    let (xx, yy, xy) = pairs.iter().fold((0.0, 0.0, 0.0), |(a, b, c), (x, y)| {
                        (a + (x - mx) * (x - mx), b + (y - my) * (y - my), c + (x - mx) * (y - my))
                    });
                    let flat = xx < 1e-12 || yy < 1e-12;
                    assert_near(&what, cosine, if flat { 0.0 } else { xy / (xx * yy).sqrt() }, 1e-4);
                    let exact = oracle::similarity(&exact, b, f, g).jensen_shannon;
                    if exact.is_nan() {
                        assert!(divergence.is_nan(), "{what}: {divergence} where no row sees keys in both heads");
                    } else {
                        assert_near(&what, divergence, exact, 1e-5);
                    }
                }
            }
        }
    }
}

/// Two queries, of which the first sees nothing: the divergence is that of the second, not half of it.
#[test]
fn a_row_that_sees_nothing_does_not_make_heads_alike() {
    let q = Array4::from_shape_vec([1, 2, 2, 1], vec![0.0, 1.0, 0.0, -1.0]).expect("four");
    let k = Array4::from_shape_vec([1, 1, 2, 1], vec![0.0, 3f64.ln()]).expect("two");
    let log = |x: f64| x * x.ln();
    // Weights 1/4 and 3/4 in the first head, 3/4 and 1/4 in the second.
    let expected = log(0.25) + log(0.75) - 2.0 * log(0.5);
    for level in levels() {
        let a = Attention::new().level(level);
        let second = Mask::dense(Array4::from_shape_fn([1, 1, 2, 2], |(_, _, i, _)| i == 1));
        let got = a.clone().mask(second).head_similarity(&q, &k).expect("fits").jensen_shannon;
        assert_near("one row of two", got[[0, 0, 1]], expected, 1e-12);
        assert_eq!(got[[0, 0, 0]], 0.0);
        let one_head = Mask::dense(Array4::from_shape_fn([1, 2, 2, 2], |(_, h, i, _)| h == i));
        let got = a.mask(one_head).head_similarity(&q, &k).expect("fits").jensen_shannon;
        assert!(got[[0, 0, 1]].is_nan() && got[[0, 1, 0]].is_nan(), "no row to compare: {got}");
        assert_eq!(got[[0, 1, 1]], 0.0);
    }
}
