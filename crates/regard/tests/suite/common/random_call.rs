//! Any call that can be written down, from a string of bytes: shapes, strides, masks, biases, options and numbers that are not finite. The
//! fuzz target and a seeded test share it.
//!
//! A call is refused with an error exactly where the judge says that it must be. Otherwise every pass gives what the judge gives. It does
//! not panic.

use super::oracle::{
    Answer, BackwardAnswer, Bias, Mask, Number, Options, Poison, Shape, attention, backward, bias_gradients, column_sums, heat_map,
    refusal, row_statistics, similarity, widened,
};
use ndarray::{Array2, Array3, Array4, ArrayView4, Axis};
use regard::{Attention, Level, Stage, StatsOptions};

/// Biases that are given at most. More than one add up.
const MAX_BIASES: usize = 3;

/// Pairs of a call at most: a judge that lays everything out is slow.
const MAX_PAIRS: usize = 12_000;

/// Bytes, read one after the other; zeros after the last.
pub struct Draws<'b>(pub &'b [u8]);

impl Draws<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// Up to 65,536 different answers.
    fn below(&mut self, n: usize) -> usize {
        (usize::from(self.byte()) << 8 | usize::from(self.byte())) % n.max(1)
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    /// Mostly a few sixteenths; sometimes any bits, a size that would make rounding errors of any size legal cut off.
    fn number(&mut self) -> f64 {
        if self.one_in(8) {
            let any = f64::from_bits(self.word());
            if any.is_finite() { any.clamp(-4.0, 4.0) } else { any }
        } else {
            f64::from(self.byte() as i8) / 32.0
        }
    }
}

/// Numbers in (-2, 2) from a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 51) as f64 - 2.0
    }
}

/// A call, drawn.
#[derive(Debug)]
pub struct Call {
    /// Of q, k, v, d_out.
    shapes: [[usize; 4]; 4],
    layouts: [usize; 4],
    seed: u64,
    options: Options,
    level: Level,
    /// Which operand, which number of it, what.
    poisons: Vec<(usize, usize, Poison)>,
    cells: (usize, usize),
    /// Whole numbers, so that top-k is the same in any arithmetic.
    whole: bool,
}

impl Call {
    pub fn new(draws: &mut Draws<'_>) -> Self {
        // Rarely nothing at all.
        let mut few = || if draws.one_in(16) { 0 } else { 1 + draws.below(3) };
        let (mut batch, heads_kv, mut group) = (few(), few(), few());
        let (n, m) = (draws.below(80), draws.below(300));
        if batch * heads_kv * group * n * m > MAX_PAIRS {
            (batch, group) = (1, 1);
        }
        let heads_kv = if heads_kv * group * n * m > MAX_PAIRS { 1 } else { heads_kv };
        let heads_q = heads_kv * group + usize::from(draws.one_in(64));
        let (d, e) = (draws.below(20), draws.below(20));
        // Rarely, shapes that do not fit.
        let misfit = if draws.one_in(16) { draws.below(6) } else { 6 };
        let one = |number: usize| usize::from(misfit == number);
        let shapes = [
            [batch, heads_q, n, d],
            [batch + one(0), heads_kv, m, d + one(1)],
            [batch, heads_kv + one(2), m + one(3), e],
            [batch, heads_q, n, e + one(4)],
        ];
        let options = some_options(draws, [batch, heads_q, n, m]);
        let levels: Vec<Level> = Level::available().collect();
        let level = levels[draws.below(levels.len())];
        let poisons = (0..draws.below(6).saturating_sub(2)).map(|_| (draws.below(4), draws.below(60_000), some_poison(draws)));
        let poisons = poisons.collect();
        let layouts = [0; 4].map(|_| draws.below(7));
        let cells = (draws.below(12), 1 + draws.below(40));
        Self { shapes, layouts, seed: draws.word(), whole: options.top_k.is_some(), options, level, poisons, cells }
    }

    /// An array that is seen as operand `operand` through one of several layouts.
    fn stored<E: Number>(&self, operand: usize, numbers: &mut Numbers) -> Array4<E> {
        let [b, h, n, d] = self.shapes[operand];
        let shape = match self.layouts[operand] {
            1 => [b, n, h, d],
            2 => [b, h, d, n],
            3 => [b, h, n, 2 * d],
            4 => [1, h, n, d],
            6 => [b, 1, 1, d],
            _ => [b, h, n, d],
        };
        let mut stored =
            Array4::from_shape_simple_fn(shape, || E::narrow(if self.whole { numbers.next().round() } else { numbers.next() }));
        for &(_, at, poison) in self.poisons.iter().filter(|poison| poison.0 == operand) {
            // An infinite score may be minus infinity, which hides in one reading and does not in another: only NaN for q and k.
            let poison = if operand < 2 && matches!(poison, Poison::Infinity | Poison::MinusInfinity) { Poison::Payload } else { poison };
            if let Some(numbers) = stored.as_slice_mut().filter(|numbers| !numbers.is_empty()) {
                let at = at % numbers.len();
                numbers[at] = E::poison(poison);
            }
        }
        stored
    }

    fn seen<'x, E>(&self, operand: usize, x: &'x Array4<E>) -> ArrayView4<'x, E> {
        match self.layouts[operand] {
            1 => x.view().permuted_axes([0, 2, 1, 3]),
            2 => x.view().permuted_axes([0, 1, 3, 2]),
            3 => x.slice(ndarray::s![.., .., .., ..;2]),
            4 | 6 => x.broadcast(self.shapes[operand]).expect("one entry serves all"),
            5 => {
                let mut x = x.view();
                (0..4).for_each(|axis| x.invert_axis(Axis(axis)));
                x
            }
            _ => x.view(),
        }
    }

    /// Run every pass, and panic where one of them is wrong.
    pub fn judge<E: Number>(&self)
    where
        <E as regard::Storage>::Real: Number,
    {
        let mut numbers = Numbers(self.seed);
        let stored: [Array4<E>; 4] = std::array::from_fn(|operand| self.stored(operand, &mut numbers));
        let [q, k, v, d_out] = [0, 1, 2, 3].map(|operand| self.seen(operand, &stored[operand]));
        let a = self.options.attention().level(self.level);
        let [qs, ks, vs, os] = self.shapes;
        let refused = refusal(&self.options, &qs, &ks, &vs, size_of::<E::Real>() == 4);
        let forward = match (a.forward(q, k, v), refused) {
            (Ok(forward), None) => forward,
            (Err(_), Some(_)) => return,
            (Ok(_), Some(why)) => panic!("accepted, and must be refused: {why}"),
            (Err(error), None) => panic!("refused: {error}"),
        };
        let saved = a.forward_saved(q, k, v).expect("it was accepted");
        if os[3] != vs[3] {
            assert!(a.backward(q, k, v, &saved, d_out).is_err(), "d_out has another shape than out");
            return;
        }
        let (gradients, gradient_stats) = a.backward_with_stats(q, k, v, &saved, d_out).expect("it was accepted");
        let spoiled_top_k = self.options.top_k.is_some() && !self.poisons.is_empty();
        if spoiled_top_k || !self.exact_ranks() {
            // Which of several NaN, or of two near scores, is kept is not promised: only that the call comes to an end.
            return;
        }
        let wide = [q, k, v, d_out].map(|x| widened(x));
        let answer = attention(&self.options, &wide[0], &wide[1], &wide[2]);
        let exact = backward(&self.options, &answer, &wide[0], &wide[1], &wide[2], &wide[3]);
        let near = Near::of::<E>();
        near.all("out", forward.out.iter().map(|x| x.wide()), &answer.out, 1.0 / (1.0 - self.dropped()));
        near.all("lse", forward.lse.iter().map(|x| x.wide()), &answer.lse, 1.0);
        assert_bits("saved out", &saved.out, &forward.out);
        self.matrices(&a, [q, k], &answer, near);
        self.statistics(&a, [q, k, v], &forward.out, &answer, near);
        if self.options.dropout.is_none() {
            self.maps(&a, [q, k], &answer, near);
        }
        self.gradients(&gradients, &gradient_stats, &answer, &exact, near);
        let plain = a.backward(q, k, v, &saved, d_out).expect("it was accepted");
        for (name, x, y) in [("dq", &plain.dq, &gradients.dq), ("dk", &plain.dk, &gradients.dk), ("dv", &plain.dv, &gradients.dv)] {
            assert_bits(name, x, y);
        }
    }

    /// Are scores ranked the same in any arithmetic? Whole numbers are, unless something rounds them together: a scale that is nothing in
    /// single precision makes all of them equal.
    fn exact_ranks(&self) -> bool {
        let sixteenths = self.options.scale.is_some_and(|scale| (scale * 32.0).fract() == 0.0);
        let something = self.options.scale.is_none_or(|scale| scale == 0.0 || scale.abs() > 1e-30);
        self.options.top_k.is_none() || (something && self.options.softcap.is_none() && (self.options.biases.is_empty() || sixteenths))
    }

    fn dropped(&self) -> f64 {
        self.options.dropout.map_or(0.0, |dropout| dropout.probability)
    }

    fn matrices<E: Number>(&self, a: &Attention<'_>, [q, k]: [ArrayView4<'_, E>; 2], answer: &Answer, near: Near)
    where
        <E as regard::Storage>::Real: Number,
    {
        for (name, stage, exact) in [
            ("raw scores", Stage::Raw, &answer.raw),
            ("capped scores", Stage::Softcap, &answer.capped),
            ("scores", Stage::Masked, &answer.scores),
        ] {
            let got = a.scores(q, k, stage).expect("it was accepted");
            near.all(name, got.iter().map(|x| x.wide()), exact, 4.0);
        }
        let weights = a.weights(q, k).expect("it was accepted");
        near.all("weights", weights.iter().map(|x| x.wide()), &answer.applied, 1.0 / (1.0 - self.dropped()));
        for (w, _) in weights.iter().zip(&answer.visible).filter(|(_, visible)| !**visible) {
            assert!(w.wide() == 0.0, "a hidden key weighs {w:?}");
        }
    }

    fn statistics<E: Number>(&self, a: &Attention<'_>, [q, k, v]: [ArrayView4<'_, E>; 3], out: &Array4<E>, answer: &Answer, near: Near)
    where
        <E as regard::Storage>::Real: Number,
    {
        let options = StatsOptions { local_window: self.cells.0, top_keys: 2 };
        let (again, stats) = a.forward_with_stats(q, k, v, options).expect("it was accepted");
        assert_bits("out with statistics", &again.out, out);
        for ((b, h, i), entropy) in stats.entropy.indexed_iter() {
            let row = row_statistics(answer, [b, h, i], self.cells.0);
            let one = |name, got: f64, exact: f64, size: f64| near.one(name, got, exact, size);
            let at = [b, h, i];
            one("entropy", entropy.wide(), row.entropy, 1.0);
            one("max_weight", stats.max_weight[at].wide(), row.max_weight, 1.0);
            one("sum_of_squares", stats.sum_of_squares[at].wide(), row.sum_of_squares, 1.0);
            one("mean_distance", stats.mean_distance[at].wide(), row.mean_distance, 1.0);
            if !row.entropy.is_nan() {
                // Of a spoiled row, a mass that no visible key has a part in may be a number or not.
                one("diagonal_mass", stats.diagonal_mass[at].wide(), row.diagonal_mass, 1.0);
                one("previous_token_mass", stats.previous_token_mass[at].wide(), row.previous_token_mass, 1.0);
                one("first_token_mass", stats.first_token_mass[at].wide(), row.first_token_mass, 1.0);
                one("local_mass", stats.local_mass[at].wide(), row.local_mass, 1.0);
            }
            let empty = !answer.visible.slice(ndarray::s![b, h, i, ..]).iter().any(|&visible| visible);
            assert_eq!(stats.argmax[at] < 0, empty, "a row is empty if it sees no key");
        }
    }

    fn maps<E: Number>(&self, a: &Attention<'_>, [q, k]: [ArrayView4<'_, E>; 2], answer: &Answer, near: Near)
    where
        <E as regard::Storage>::Real: Number,
    {
        let (rows, cols) = self.cells;
        let map = a.heat_map(q, k, rows, cols);
        assert_eq!(map.is_err(), rows == 0, "no rows are an error, and nothing else");
        if let Ok(map) = map {
            let (mean, max) = heat_map(answer, rows, cols);
            near.all("heat map mean", map.mean.iter().map(|x| x.wide()), &mean, 1.0);
            near.all("heat map max", map.max.iter().map(|x| x.wide()), &max, 1.0);
        }
        let sums = a.column_sums(q, k).expect("it was accepted");
        near.all("column sums", sums.iter().map(|x| x.wide()), &column_sums(answer), 4.0);
        let alike = a.head_similarity(q, k).expect("it was accepted");
        for ((b, f, g), divergence) in alike.jensen_shannon.indexed_iter().filter(|((_, f, g), _)| f != g) {
            let exact = similarity(answer, b, f, g);
            near.one("jensen_shannon", *divergence, exact.jensen_shannon, 1.0);
            let spoiled = answer
                .weights
                .slice(ndarray::s![b, f, .., ..])
                .iter()
                .chain(&answer.weights.slice(ndarray::s![b, g, .., ..]))
                .any(|w| w.is_nan());
            assert_eq!(alike.centred_cosine[[b, f, g]].is_nan(), spoiled, "cosine of heads {f} and {g}");
        }
    }

    fn gradients<E: Number>(
        &self,
        got: &regard::Gradients<E>,
        stats: &regard::GradientStats,
        answer: &Answer,
        exact: &BackwardAnswer,
        near: Near,
    ) where
        <E as regard::Storage>::Real: Number,
    {
        let Shape { heads_q, heads_kv, value_dim, .. } = answer.dims;
        let near = Near { any_non_finite: true, ..near };
        // Numbers are below 2. What a gradient is a sum of: d_out . v, weighed; once over the keys and once over the rows that see one.
        let group = heads_q / heads_kv.max(1);
        let column = column_sums(answer).iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, &x| m.max(x)) * group as f64;
        let kept = 1.0 / (1.0 - self.dropped());
        let d_scores = 8.0 * value_dim as f64 * kept;
        let dq = d_scores * 2.0 * self.options.factor(&answer.dims).abs();
        near.all("dq", got.dq.iter().map(|x| x.wide()), &exact.dq, 1.0 + dq);
        near.all("dk", got.dk.iter().map(|x| x.wide()), &exact.dk, 1.0 + dq * column);
        near.all("dv", got.dv.iter().map(|x| x.wide()), &exact.dv, 1.0 + 2.0 * kept * column);
        let rows = answer.dims.batch * answer.dims.seq_q;
        if let Some(d_sink) = &got.d_sink {
            d_sink.iter().zip(&exact.d_sink).for_each(|(&x, &y)| near.one("d_sink", x, y, 1.0 + d_scores * rows as f64));
        }
        for ((got, exact), bias) in bias_gradients(got).iter().zip(&exact.d_biases).zip(&self.options.biases) {
            let distance = if matches!(bias, Bias::Alibi(_)) { 1e5 } else { 1.0 };
            let size = 1.0 + d_scores * (rows * heads_q) as f64 * distance;
            // The gradient of a bias in f32 is in f32, whatever the arithmetic.
            let rounded = matches!(bias, Bias::Dense(_) | Bias::Relative(_));
            let near = Near { tolerance: if rounded { near.tolerance.max(1e-6) } else { near.tolerance }, ..near };
            got.iter().zip(exact).for_each(|(&x, &y)| near.one("d_bias", x, y, size));
        }
        for ((b, h, i), &norm) in stats.d_scores_rows.indexed_iter() {
            let exact = exact.d_scores.slice(ndarray::s![b, h, i, ..]).iter().map(|x| x * x).sum::<f64>().sqrt();
            near.one("norm of d_scores", norm, exact, 1.0 + d_scores);
        }
    }
}

/// How far off numbers of an element type may be.
#[derive(Debug, Clone, Copy)]
struct Near {
    tolerance: f64,
    /// Beyond this, a number of the type is infinite.
    largest: f64,
    /// Infinity is as good as NaN: where infinities cancel depends on the order of sums, which gradients do not share with the judge.
    any_non_finite: bool,
}

impl Near {
    fn of<E: Number>() -> Self {
        let tolerance = if size_of::<E>() == 8 { 1e-10 } else { 1e-4 };
        match size_of::<E>() {
            // f16 has ten bits after the point, bf16 seven.
            2 if E::narrow(1.0 + 1.0 / 512.0).wide() > 1.0 => Self { tolerance: 1e-2, largest: 6e4, any_non_finite: false },
            2 => Self { tolerance: 5e-2, largest: 1e38, any_non_finite: false },
            _ => Self { tolerance, largest: f64::INFINITY, any_non_finite: false },
        }
    }

    /// Equal, or near, or both no number.
    #[track_caller]
    fn one(self, what: &str, got: f64, exact: f64, size: f64) {
        let near = (got - exact).abs() <= self.tolerance * (size + exact.abs());
        let too_large = got.is_infinite() && exact.abs() > self.largest && got.signum() == exact.signum();
        let neither = if self.any_non_finite { !got.is_finite() && !exact.is_finite() } else { got.is_nan() && exact.is_nan() };
        assert!(got == exact || near || too_large || neither, "{what}: {got} instead of {exact}");
    }

    #[track_caller]
    fn all<'x>(self, what: &str, got: impl ExactSizeIterator<Item = f64>, exact: impl IntoIterator<Item = &'x f64>, size: f64) {
        let exact: Vec<f64> = exact.into_iter().copied().collect();
        assert_eq!(got.len(), exact.len(), "{what}");
        got.zip(exact).for_each(|(x, y)| self.one(what, x, y, size));
    }
}

#[track_caller]
fn assert_bits<E: Number>(what: &str, x: &Array4<E>, y: &Array4<E>) {
    let bits = |x: &E| if x.wide().is_nan() { u64::MAX } else { x.wide().to_bits() };
    assert!(x.iter().zip(y).all(|(x, y)| bits(x) == bits(y)), "{what} is not the same again");
}

fn some_poison(draws: &mut Draws<'_>) -> Poison {
    Poison::ALL[draws.below(6)]
}

fn some_options(draws: &mut Draws<'_>, scores: [usize; 4]) -> Options {
    let mut o = Options::new();
    o.scale = match draws.below(8) {
        0..4 => None,
        4 => Some(1.0),
        5 if draws.one_in(8) => Some(1e39),
        _ => Some(draws.number()),
    };
    if draws.one_in(6) {
        o.softcap = Some(draws.number());
    }
    if draws.one_in(4) {
        o.sink = Some((0..scores[1] + usize::from(draws.one_in(32))).map(|_| draws.number()).collect());
    }
    if draws.one_in(6) {
        o.top_k = Some(draws.below(40));
    }
    if draws.one_in(6) {
        let p = draws.number().abs();
        // Next to 1 the few weights that are left would be multiplied with any number.
        o = o.dropout(if p < 1.0 { p.min(0.9) } else { p }, draws.word());
    }
    for _ in 0..draws.below(2 * MAX_BIASES + 1).min(MAX_BIASES) {
        o = o.bias(some_bias(draws, scores));
    }
    let by_distance = o.biases.iter().any(|bias| matches!(bias, Bias::Alibi(_)));
    o = match draws.below(6) {
        0 | 1 => o,
        2 => o.q_offset(draws.below(700) as i64 - 350),
        // Distances of such numbers are rounded: not together with a bias of the distance.
        3 if !by_distance => o.q_offset(draws.word() as i64),
        4 => o.align_end(),
        _ => o.q_offsets((0..scores[0] + usize::from(draws.one_in(32))).map(|_| draws.below(700) as i64 - 350).collect::<Vec<_>>()),
    };
    for _ in 0..draws.below(4) {
        o = o.mask(some_mask(draws, scores, 2));
    }
    for _ in 0..draws.below(8).saturating_sub(5) {
        o = o.key_lengths((0..scores[0]).map(|_| draws.below(scores[3] + 1) + usize::from(draws.one_in(64))).collect::<Vec<_>>());
    }
    o.threads(if draws.one_in(64) { 0 } else { 1 + draws.below(3) })
}

/// Each axis as long as that of the scores, or 1; rarely one too long.
fn broadcast(draws: &mut Draws<'_>, scores: [usize; 4]) -> [usize; 4] {
    let (bits, misfit) = (draws.byte(), usize::from(draws.one_in(64)));
    std::array::from_fn(|a| if bits >> a & 1 == 0 { 1 } else { scores[a] + if a == 3 { misfit } else { 0 } })
}

fn some_bias(draws: &mut Draws<'_>, scores: [usize; 4]) -> Bias {
    let kind = draws.below(5);
    let shape = broadcast(draws, scores);
    let mut numbers = Numbers(draws.word());
    // Quarters, which are exact everywhere.
    let mut number = || match numbers.next() {
        x if x > 1.5 => f32::NEG_INFINITY,
        x => (x * 4.0).round() as f32 / 4.0,
    };
    match kind {
        0 | 1 => Bias::Dense(Array4::from_shape_simple_fn(shape, number)),
        2 => Bias::Dense64(Array4::from_shape_simple_fn(shape, || number().into())),
        3 => Bias::Alibi(regard::alibi_slopes(scores[1] + usize::from(draws.one_in(64)))),
        _ => {
            let (reach, per_head, even) = (draws.below(40), draws.one_in(2), usize::from(draws.one_in(64)));
            let shape = (if per_head { scores[1] } else { 1 }, 2 * reach + 1 + even);
            Bias::Relative(Array2::from_shape_simple_fn(shape, number))
        }
    }
}

fn some_mask(draws: &mut Draws<'_>, scores: [usize; 4], depth: usize) -> Mask {
    let [batch, heads, n, m] = scores;
    let kinds = if depth == 0 { 12 } else { 15 };
    match draws.below(kinds) {
        0 => Mask::Causal,
        1 => Mask::Reverse,
        2 => Mask::StrictlyFuture,
        3 => {
            let mut side = || (!draws.one_in(3)).then(|| if draws.one_in(16) { draws.word() as usize } else { draws.below(m + 2) });
            Mask::Window(side(), side())
        }
        4 => Mask::FirstKeys(draws.below(m + 2)),
        5 => Mask::KeyLengths((0..batch).map(|_| draws.below(m + 1) + usize::from(draws.one_in(64))).collect()),
        6 | 7 => {
            let (rows, size, extra) = (if draws.one_in(2) { 1 } else { batch }, 1 + draws.below(60), usize::from(draws.one_in(64)));
            let ids = |n: usize| Array2::from_shape_fn((rows, n), |(b, i)| ((i + b) / size) as u32);
            Mask::Documents { queries: ids(n + extra), keys: ids(m) }
        }
        8 | 9 => {
            let shape = broadcast(draws, scores);
            let (limit, mut numbers) = (f64::from(draws.byte()) / 64.0 - 2.0, Numbers(draws.word()));
            Mask::Dense(Array4::from_shape_simple_fn(shape, || numbers.next() < limit))
        }
        10 => {
            let (q_block, kv_block, per_head) = (draws.below(100), draws.below(200), draws.one_in(2));
            let mut numbers = Numbers(draws.word());
            let shape = (if per_head { heads } else { 1 }, n.div_ceil(q_block.max(1)), m.div_ceil(kv_block.max(1)));
            Mask::Blocks { table: Array3::from_shape_simple_fn(shape, || numbers.next() < 0.5), q_block, kv_block }
        }
        11 => Mask::Dilated,
        12 => some_mask(draws, scores, depth - 1) & some_mask(draws, scores, depth - 1),
        13 => some_mask(draws, scores, depth - 1) | some_mask(draws, scores, depth - 1),
        _ => !some_mask(draws, scores, depth - 1),
    }
}

/// One call of one element type, by the first byte.
pub fn judge(bytes: &[u8]) {
    let (element, call) = drawn(bytes);
    match element {
        0 => call.judge::<f32>(),
        1 => call.judge::<f64>(),
        2 => call.judge::<half::f16>(),
        _ => call.judge::<half::bf16>(),
    }
}

/// The call in words.
pub fn describe(bytes: &[u8]) -> String {
    let (element, call) = drawn(bytes);
    format!("{}: {call:#?}", ["f32", "f64", "f16", "bf16"][element])
}

fn drawn(bytes: &[u8]) -> (usize, Call) {
    let mut draws = Draws(bytes);
    (usize::from(draws.byte() % 4), Call::new(&mut draws))
}
