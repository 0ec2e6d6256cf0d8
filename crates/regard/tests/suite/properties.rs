//! What holds for any attention, tried on random ones.

use crate::common::oracle::{self, Options};
use crate::common::{Inputs, Normal, Recipe, Shape, check_gradients, d_out_for, gradients, levels, random_bools};
use ndarray::{Array1, Array2, Array4, Axis, s};
use proptest::prelude::*;
use regard::{Attention, Bias, BiasGradient, HeadPosition, Mask, TileCoverage, merge};

fn shapes() -> impl Strategy<Value = Shape> {
    (1..3usize, 1..3usize, 1..4usize, 1..45usize, 1..150usize, 1..12usize, 1..12usize).prop_map(
        |(batch, heads_kv, group, seq_q, seq_kv, head_dim, value_dim)| Shape {
            batch,
            heads_q: heads_kv * group,
            heads_kv,
            seq_q,
            seq_kv,
            head_dim,
            value_dim,
        },
    )
}

/// A random expression.
fn mask(s: &Shape, numbers: &mut Normal, depth: usize) -> oracle::Mask {
    let (n, m) = (s.seq_q, s.seq_kv);
    let side = |numbers: &mut Normal| if numbers.below(4) == 0 { None } else { Some(numbers.below(m + 1)) };
    match numbers.below(if depth == 0 { 9 } else { 13 }) {
        0 => oracle::Mask::Everything,
        1 => oracle::Mask::Causal,
        2 => [oracle::Mask::Reverse, oracle::Mask::StrictlyFuture][numbers.below(2)].clone(),
        3 => oracle::Mask::Window(side(numbers), side(numbers)),
        4 => oracle::Mask::FirstKeys(numbers.below(m + 2)),
        5 => oracle::Mask::KeyLengths((0..s.batch).map(|_| numbers.below(m + 1)).collect()),
        6 => {
            let rows = if numbers.below(2) == 0 { 1 } else { s.batch };
            let size = 1 + numbers.below(40);
            let mut ids = |n: usize| Array2::from_shape_fn((rows, n), |(b, i)| ((i + 3 * b) / size + numbers.below(20) / 19) as u32);
            oracle::Mask::Documents { queries: ids(n), keys: ids(m) }
        }
        7 => {
            let one_or = |n: usize, numbers: &mut Normal| if numbers.below(2) == 0 { 1 } else { n };
            let shape = [one_or(s.batch, numbers), one_or(s.heads_q, numbers), one_or(n, numbers), one_or(m, numbers)];
            oracle::Mask::Dense(random_bools(shape, numbers.below(1 << 20) as u64))
        }
        8 if numbers.below(2) == 0 => oracle::Mask::Dilated,
        8 => {
            let (q, kv) = (1 + numbers.below(70), 1 + numbers.below(70));
            oracle::Mask::Blocks {
                table: random_bools((1, n.div_ceil(q), m.div_ceil(kv)), numbers.below(1 << 20) as u64),
                q_block: q,
                kv_block: kv,
            }
        }
        9 | 10 => mask(s, numbers, depth - 1) & mask(s, numbers, depth - 1),
        11 => mask(s, numbers, depth - 1) | mask(s, numbers, depth - 1),
        _ => !mask(s, numbers, depth - 1),
    }
}

fn options(s: &Shape, numbers: &mut Normal) -> Options {
    let options = Options::new().mask(mask(s, numbers, 3));
    match numbers.below(3) {
        0 => options,
        // With two lengths there are two ends.
        1 => options.align_end(),
        _ => options.q_offset(numbers.below(2 * s.seq_kv) as i64 - s.seq_kv as i64 / 2),
    }
}

fn at_every_level(options: &Options) -> impl Iterator<Item = Attention<'_>> {
    levels().into_iter().map(|level| options.attention().level(level))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_attention_is_right(s in shapes(), seed in any::<u32>()) {
        let mut numbers = Normal::new(seed.into());
        let recipe = Recipe { options: options(&s, &mut numbers) };
        crate::common::check(&format!("{:?}, {s:?}", recipe.options), &recipe, &Inputs::<f32>::normal(s, seed.into()));
    }

    #[test]
    fn rows_of_weights_sum_to_one_or_are_empty(s in shapes(), seed in any::<u32>()) {
        let options = options(&s, &mut Normal::new(seed.into()));
        let x = Inputs::<f32>::normal(s, 1);
        for a in at_every_level(&options) {
            let (weights, lse) = (a.weights(&x.q, &x.k).unwrap(), a.forward(&x.q, &x.k, &x.v).unwrap().lse);
            for (row, &lse) in weights.lanes(Axis(3)).into_iter().zip(&lse) {
                let sum: f64 = row.iter().map(|&w| f64::from(w)).sum();
                prop_assert!(row.iter().all(|&w| w >= 0.0));
                let expected = if lse == f32::NEG_INFINITY { 0.0 } else { 1.0 };
                prop_assert!((sum - expected).abs() < 1e-5, "{sum} with {lse}");
            }
        }
    }

    #[test]
    fn adding_the_same_to_all_scores_changes_nothing_but_the_lse(s in shapes(), seed in any::<u32>(), shift in -50.0..50.0f64) {
        let options = options(&s, &mut Normal::new(seed.into()));
        let x = Inputs::<f64>::normal(s, 1);
        for a in at_every_level(&options) {
            let before = a.forward(&x.q, &x.k, &x.v).unwrap();
            let bias = Array4::from_elem([1, 1, 1, 1], shift);
            let after = a.bias(Bias::Dense64(bias.into())).forward(&x.q, &x.k, &x.v).unwrap();
            prop_assert!(before.out.iter().zip(&after.out).all(|(x, y)| (x - y).abs() < 1e-11));
            prop_assert!(before.lse.iter().zip(&after.lse).all(|(x, y)| x == y || (x + shift - y).abs() < 1e-11));
        }
    }

    #[test]
    fn the_order_of_the_keys_does_not_matter(s in shapes(), seed in any::<u32>()) {
        let mut numbers = Normal::new(seed.into());
        let x = Inputs::<f64>::normal(s, 1);
        let mut order: Vec<usize> = (0..s.seq_kv).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, numbers.below(i + 1));
        }
        let table = random_bools(s.scores(), seed.into());
        let (k, v) = (x.k.select(Axis(2), &order), x.v.select(Axis(2), &order));
        let moved = table.select(Axis(3), &order);
        for level in levels() {
            let go = |mask, k, v| Attention::new().mask(Mask::dense(mask)).level(level).forward(&x.q, k, v).unwrap();
            let (one, other) = (go(&table, &x.k, &x.v), go(&moved, &k, &v));
            prop_assert!(one.out.iter().zip(&other.out).all(|(x, y)| (x - y).abs() < 1e-12));
            prop_assert!(one.lse.iter().zip(&other.lse).all(|(x, y)| x == y || (x - y).abs() < 1e-12));
        }
    }

    #[test]
    fn the_result_lies_between_the_visible_values(s in shapes(), seed in any::<u32>()) {
        let mut numbers = Normal::new(seed.into());
        let options = options(&s, &mut numbers);
        let a = options.attention();
        let x = Inputs::<f32>::normal(s, 1);
        let exact = crate::common::textbook(&options, &x);
        for level in levels() {
            let out = a.clone().level(level).forward(&x.q, &x.k, &x.v).unwrap().out;
            for ((b, h, i, d), &got) in out.indexed_iter() {
                let seen = (0..s.seq_kv).filter(|&j| exact.visible[[b, h, i, j]]);
                let values = seen.map(|j| x.v[[b, h * s.heads_kv / s.heads_q, j, d]]);
                let (low, high) = values.fold((f32::INFINITY, f32::NEG_INFINITY), |(l, u), v| (l.min(v), u.max(v)));
                if low > high {
                    prop_assert!(got == 0.0);
                } else {
                    prop_assert!(low - 1e-5 <= got && got <= high + 1e-5, "{got} outside {low}..{high}");
                }
            }
        }
    }

    #[test]
    fn two_halves_merged_are_the_whole(s in shapes(), seed in any::<u32>(), cut in 0.0..1.0f64) {
        let mut numbers = Normal::new(seed.into());
        let options = options(&s, &mut numbers);
        let a = options.attention();
        let x = Inputs::<f64>::normal(s, 1);
        let cut = (cut * s.seq_kv as f64) as usize;
        let (lower, upper) = (a.clone().mask(Mask::first_keys(cut)), a.clone().mask(!Mask::first_keys(cut)));
        for level in levels() {
            let go = |a: &Attention<'_>| a.clone().level(level).forward(&x.q, &x.k, &x.v).unwrap();
            let (whole, l, u) = (go(&a), go(&lower), go(&upper));
            let (out, lse) = merge(l.out.view(), l.lse.view(), u.out.view(), u.lse.view()).unwrap();
            prop_assert!(whole.out.iter().zip(&out).all(|(x, y)| (x - y).abs() < 1e-12));
            prop_assert!(whole.lse.iter().zip(&lse).all(|(x, y)| x == y || (x - y).abs() < 1e-12));
        }
    }

    #[test]
    fn a_linear_change_of_the_values_changes_the_result_alike(s in shapes(), seed in any::<u32>(), factor in -3.0..3.0f64) {
        let mut numbers = Normal::new(seed.into());
        let options = options(&s, &mut numbers);
        let a = options.attention();
        let x = Inputs::<f64>::normal(s, 1);
        let shift = Array1::from_shape_simple_fn(s.value_dim, || numbers.number());
        let v = &x.v * factor + &shift;
        for level in levels() {
            let a = a.clone().level(level);
            let (before, after) = (a.forward(&x.q, &x.k, &x.v).unwrap(), a.forward(&x.q, &x.k, &v).unwrap());
            for ((x, y), lse) in before.out.lanes(Axis(3)).into_iter().zip(after.out.lanes(Axis(3))).zip(&before.lse) {
                if *lse > f64::NEG_INFINITY {
                    let expected = &x * factor + &shift;
                    prop_assert!((&expected - &y).iter().all(|e| e.abs() < 1e-12));
                }
            }
        }
    }

    #[test]
    fn random_gradients_are_right(s in shapes(), seed in any::<u32>()) {
        let mut numbers = Normal::new(seed.into());
        let mut recipe = Recipe { options: options(&s, &mut numbers) };
        if numbers.below(3) == 0 {
            recipe = recipe.softcap(0.5 + numbers.uniform());
        }
        if numbers.below(3) == 0 {
            recipe = recipe.some_sink(&s);
        }
        if numbers.below(3) == 0 {
            let shape = s.scores().map(|n| if numbers.below(2) == 0 { 1 } else { n });
            recipe = recipe.dense_bias(shape, seed.into());
        }
        if numbers.below(3) == 0 {
            recipe = recipe.with(|a| a.dropout(0.3, seed.into()));
        }
        check_gradients(&format!("{:?}, {s:?}", recipe.options), &recipe, &Inputs::<f32>::normal(s, seed.into()), 1);
    }

    #[test]
    fn adding_the_same_to_all_scores_changes_no_gradient(s in shapes(), seed in any::<u32>(), shift in -50.0..50.0f64) {
        let options = options(&s, &mut Normal::new(seed.into())).dropout(0.2, seed.into());
        let x = Inputs::<f64>::normal(s, 1);
        let d_out = d_out_for(&x, 1);
        for a in at_every_level(&options) {
            let before = gradients(&a, &x, &d_out);
            let bias = Array4::from_elem([s.batch, 1, s.seq_q, 1], shift);
            let after = gradients(&a.bias(Bias::Dense64(bias.into())), &x, &d_out);
            for (before, after) in [(&before.dq, &after.dq), (&before.dk, &after.dk), (&before.dv, &after.dv)] {
                prop_assert!(before.iter().zip(after).all(|(x, y)| (x - y).abs() < 1e-10));
            }
            // And so the bias itself has none.
            let Some(BiasGradient::Dense64(d_bias)) = after.d_biases.first() else { panic!("there is a bias") };
            prop_assert!(d_bias.iter().all(|x| x.abs() < 1e-10));
        }
    }

    #[test]
    fn the_order_of_the_keys_is_the_order_of_their_gradients(s in shapes(), seed in any::<u32>()) {
        let mut numbers = Normal::new(seed.into());
        let x = Inputs::<f64>::normal(s, 1);
        let d_out = d_out_for(&x, 1);
        let mut order: Vec<usize> = (0..s.seq_kv).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, numbers.below(i + 1));
        }
        let table = random_bools(s.scores(), seed.into());
        let moved = table.select(Axis(3), &order);
        let moved_x = Inputs { q: x.q.clone(), k: x.k.select(Axis(2), &order), v: x.v.select(Axis(2), &order) };
        for level in levels() {
            let go = |mask, x| gradients(&Attention::new().mask(Mask::dense(mask)).level(level), x, &d_out);
            let (one, other) = (go(&table, &x), go(&moved, &moved_x));
            let (dk, dv) = (one.dk.select(Axis(2), &order), one.dv.select(Axis(2), &order));
            for (x, y) in [(&one.dq, &other.dq), (&dk, &other.dk), (&dv, &other.dv)] {
                prop_assert!(x.iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-11));
            }
        }
    }

    #[test]
    fn gradients_are_linear_in_d_out(s in shapes(), seed in any::<u32>(), factor in -3.0..3.0f64) {
        let options = options(&s, &mut Normal::new(seed.into())).softcap(3.0).dropout(0.1, seed.into());
        let x = Inputs::<f64>::normal(s, 1);
        let (one, two) = (d_out_for(&x, 1), d_out_for(&x, 2));
        for a in at_every_level(&options) {
            let (f, g, both) = (gradients(&a, &x, &one), gradients(&a, &x, &two), gradients(&a, &x, &(&one * factor + &two)));
            for (f, g, both) in [(&f.dq, &g.dq, &both.dq), (&f.dk, &g.dk, &both.dk), (&f.dv, &g.dv, &both.dv)] {
                let expected = f * factor + g;
                prop_assert!(expected.iter().zip(both).all(|(x, y)| (x - y).abs() < 1e-10));
            }
        }
    }

    /// The weights sum to one, and so does what comes back through them: every value is handed on whole.
    #[test]
    fn dv_of_a_sum_is_the_number_of_rows_that_see_anything(s in shapes(), seed in any::<u32>()) {
        let options = options(&s, &mut Normal::new(seed.into()));
        let x = Inputs::<f64>::normal(s, 1);
        for a in at_every_level(&options) {
            let saved = a.forward_saved(&x.q, &x.k, &x.v).unwrap();
            let ones = Array4::ones(saved.out.raw_dim());
            let got = a.backward(&x.q, &x.k, &x.v, &saved, &ones).unwrap();
            let rows = saved.lse().iter().filter(|&&lse| lse > f64::NEG_INFINITY).count();
            prop_assert!((got.dv.sum() - (rows * s.value_dim) as f64).abs() < 1e-9);
        }
    }

    /// Full and empty tiles are that, and no visible key is outside the range.
    #[test]
    fn coverage_and_key_range_never_lie(s in shapes(), seed in any::<u32>()) {
        let mut numbers = Normal::new(seed.into());
        let mask = mask(&s, &mut numbers, 4);
        let q_offset = numbers.below(2 * s.seq_kv) as i64 - s.seq_kv as i64 / 2;
        let place = HeadPosition { batch: numbers.below(s.batch), head: numbers.below(s.heads_q), q_offset };
        let library = mask.library();
        let visible = |query: usize, key: usize| {
            let position = i128::from(q_offset) + query as i128;
            mask.visible(&oracle::Pair { batch: place.batch, head: place.head, query, key, position })
        };
        for _ in 0..20 {
            let range = |n: usize, numbers: &mut Normal| {
                let start = numbers.below(n);
                start..start + 1 + numbers.below(n - start)
            };
            let (queries, keys) = (range(s.seq_q, &mut numbers), range(s.seq_kv, &mut numbers));
            let pairs = || queries.clone().flat_map(|i| keys.clone().map(move |j| (i, j)));
            match library.coverage(&place, queries.clone(), keys.clone()) {
                TileCoverage::Full => prop_assert!(pairs().all(|(i, j)| visible(i, j)), "{mask:?}"),
                TileCoverage::Empty => prop_assert!(!pairs().any(|(i, j)| visible(i, j)), "{mask:?}"),
                TileCoverage::Partial => {}
            }
            let found = library.key_range(&place, queries.clone(), keys.clone());
            prop_assert!(keys.start <= found.start && found.end <= keys.end, "{mask:?}: {found:?} of {keys:?}");
            prop_assert!(pairs().all(|(i, j)| found.contains(&j) || !visible(i, j)), "{mask:?}: {found:?}");
        }
    }

    /// The kernels see what `visible` says, by all of their ways.
    #[test]
    fn kernels_see_what_the_mask_says(s in shapes(), seed in any::<u32>()) {
        let mut numbers = Normal::new(seed.into());
        let mask = mask(&s, &mut numbers, 4);
        let q_offset = numbers.below(2 * s.seq_kv) as i64 - s.seq_kv as i64 / 2;
        let q = Array4::<f32>::zeros([s.batch, s.heads_q, s.seq_q, 1]);
        let k = Array4::<f32>::zeros([s.batch, s.heads_kv, s.seq_kv, 1]);
        for level in levels() {
            let weights = Attention::new().mask(mask.library()).q_offset(q_offset).level(level).weights(&q, &k).unwrap();
            for ((batch, head, i, j), &w) in weights.indexed_iter() {
                let pair = oracle::Pair { batch, head, query: i, key: j, position: i128::from(q_offset) + i as i128 };
                prop_assert_eq!(w > 0.0, mask.visible(&pair), "{:?} at {} {}", mask, i, j);
            }
        }
    }
}

#[test]
fn the_laws_of_coverage_hold() {
    use TileCoverage::{Empty, Full, Partial};
    for a in [Empty, Partial, Full] {
        assert_eq!((a.and(Full), a.and(Empty), a.or(Full), a.or(Empty), !!a), (a, Empty, Full, a, a));
        for b in [Empty, Partial, Full] {
            assert_eq!((a.and(b), a.or(b)), (b.and(a), b.or(a)));
            assert_eq!(!(a.and(b)), (!a).or(!b));
        }
    }
    // Nothing of nothing is nothing.
    let place = HeadPosition { batch: 0, head: 0, q_offset: 0 };
    assert_eq!(Mask::everything().coverage(&place, 3..3, 0..9), Empty);
    assert!(Mask::everything().key_range(&place, 3..3, 2..9).is_empty());
    assert_eq!(Mask::causal().key_range(&place, 3..7, 0..9), 0..7);
    assert_eq!(Mask::window(Some(2), Some(1)).key_range(&place, 3..5, 0..9), 1..6);
}

#[test]
fn a_slice_of_the_queries_is_a_slice_of_the_result() {
    let x = Inputs::<f32>::normal(Shape::new(130, 60, 8), 1);
    for level in levels() {
        let a = Attention::new().level(level);
        let whole = a.forward(&x.q, &x.k, &x.v).expect("fits").out;
        for rows in [0..1, 3..9, 60..70, 129..130] {
            let part = s![.., .., rows.clone(), ..];
            let got = a.forward(x.q.slice(part), x.k.view(), x.v.view()).expect("fits").out;
            assert_eq!(got, whole.slice(part), "{rows:?}");
        }
    }
}
