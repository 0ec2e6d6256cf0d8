//! Attention as a formula, once, with the known mistakes at the places where they are made.
//!
//! An exercise evaluates this in f64 (the oracle), in f32 in four orders (the honest error), with tracked magnitudes (what cancels), and
//! with mistakes switched on (the mutants).

use crate::real::Real;
use crate::value::{Trouble, Value};

/// How a formula is evaluated.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// Sums run from the last term to the first.
    pub backwards: bool,
    /// The scale multiplies the queries, not the scores.
    pub scale_first: bool,
    /// Of code that makes mistakes, how it is written otherwise: a sum of 0 divides as 1, and a maximum passes over NaN.
    pub manners: Manners,
    /// Mistakes that are made on purpose. A mutant in several forms has names such as `empty-mean/add`.
    pub wrong: Vec<&'static str>,
}

/// Ways to write the same program that show only where it is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manners {
    /// 0 / 0 is avoided, and gives 0.
    pub guarded: bool,
    /// A maximum passes over NaN.
    pub lax: bool,
}

/// All manners, the plain ones first.
pub const MANNERS: [Manners; 4] = [
    Manners { guarded: false, lax: false },
    Manners { guarded: true, lax: false },
    Manners { guarded: false, lax: true },
    Manners { guarded: true, lax: true },
];

impl How {
    /// The larger one, as the manners have it.
    pub fn max<T: Real>(&self, a: T, b: T) -> T {
        match (self.manners.lax, a.value().is_nan(), b.value().is_nan()) {
            (true, true, _) => b,
            (true, _, true) => a,
            _ => a.max(b),
        }
    }

    /// Whether this mistake is made.
    pub fn is(&self, mistake: &str) -> bool {
        self.wrong.contains(&mistake)
    }

    /// The number of a mistake in numbered forms, such as 1e-8 of `added-epsilon/1e-8`.
    pub fn number(&self, prefix: &str) -> Option<f64> {
        self.wrong.iter().find_map(|wrong| wrong.strip_prefix(prefix)?.parse().ok())
    }

    /// The same with one more mistake.
    pub fn and(&self, mistake: &'static str) -> Self {
        Self { wrong: [&self.wrong[..], &[mistake]].concat(), ..self.clone() }
    }

    /// The same without a mistake.
    pub fn without(&self, mistake: &str) -> Self {
        Self { wrong: self.wrong.iter().copied().filter(|w| *w != mistake).collect(), ..self.clone() }
    }

    /// With mistakes.
    pub fn with(wrong: &[&'static str]) -> Self {
        Self { wrong: wrong.to_vec(), ..Self::default() }
    }
}

/// A sum in the order of `how`.
pub fn sum<T: Real>(how: &How, count: usize, term: impl Fn(usize) -> T) -> T {
    let mut total = T::of(0.0);
    for step in 0..count {
        total = total + term(if how.backwards { count - 1 - step } else { step });
    }
    total
}

/// Dot product.
pub fn dot<T: Real>(how: &How, a: &[T], b: &[T]) -> T {
    sum(how, a.len(), |i| a[i] * b[i])
}

/// `x [n, e] @ w [e, f]`.
pub fn matmul<T: Real>(how: &How, x: &Value<T>, w: &Value<T>) -> Value<T> {
    let (n, e, f) = (x.rows(), x.width(), w.width());
    let data = (0..n * f).map(|at| sum(how, e, |c| x.data[at / f * e + c] * w.data[c * f + at % f])).collect();
    Value::new(&[n, f], data)
}

/// `q k^T scale`, `[n, m]`.
pub fn scores<T: Real>(how: &How, q: &Value<T>, k: &Value<T>, scale: T) -> Result<Value<T>, Trouble> {
    let (mut n, mut m) = (q.rows(), k.rows());
    let (mut q, mut k) = (q, k);
    if how.is("transposed-scores") {
        if n != m {
            return Err(Trouble::Shapes);
        }
        (q, k) = (k, q);
        (n, m) = (m, n);
    }
    let scale = match () {
        () if how.is("no-scale") || how.is("scale-after") => T::of(1.0),
        () if how.is("scale-after/out") => T::of(1.0),
        () if how.is("scale-inverted") || how.is("scale-inverted/root") => T::of(1.0) / scale,
        () if how.is("scale-and-root") => scale * root_scale(q.width()),
        () if how.is("scale-twice") => scale * scale,
        () if how.is("scale-rooted") => scale.sqrt(),
        () if how.is("negated") => -scale,
        () if how.is("scale-truncated") => T::of(scale.value().trunc()),
        () if how.is("scale-absolute") => scale.abs(),
        () if how.is("scale-halved") => scale / T::of(2.0),
        () => scale,
    };
    let score = |i: usize, j: usize| {
        if how.is("cosine-scores") || how.is("distance-scores") {
            let (a, b) = (q.row(i), k.row(j));
            let length = |x: &[T]| dot(how, x, x).sqrt();
            return if how.is("cosine-scores") {
                dot(how, a, b) / (length(a) * length(b)) * scale
            } else {
                -sum(how, a.len(), |c| (a[c] - b[c]) * (a[c] - b[c])) * scale
            };
        }
        if how.scale_first {
            let scaled: Vec<T> = q.row(i).iter().map(|x| *x * scale).collect();
            dot(how, &scaled, k.row(j))
        } else {
            dot(how, q.row(i), k.row(j)) * scale
        }
    };
    let components = match () {
        () if how.is("component-last-only") => q.width() - 1..q.width(),
        () if how.is("component-missing") => 0..q.width() - 1,
        () if how.is("component-missing/first") => 1..q.width(),
        () => 0..q.width(),
    };
    if components.len() < q.width() {
        let part = |x: &[T]| x[components.clone()].to_vec();
        let data = (0..n * m).map(|at| dot(how, &part(q.row(at / m)), &part(k.row(at % m))) * scale).collect();
        return Ok(Value::new(&[n, m], data));
    }
    Ok(Value::new(&[n, m], (0..n * m).map(|at| score(at / m, at % m)).collect()))
}

/// Softmax of what is visible of one row; what is hidden gets 0. Nothing visible, or nothing above -inf: zeros.
pub fn softmax_row<T: Real>(how: &How, x: &[T], sees: &[bool]) -> Vec<T> {
    let all = |value: f64| vec![T::of(value); x.len()];
    let visible: Vec<usize> = (0..x.len()).filter(|&j| sees[j]).collect();
    let over: Vec<usize> = if how.is("max-hidden") { (0..x.len()).collect() } else { visible.clone() };
    let size = |y: T| if how.is("absolute-max") { y.abs() } else { y };
    let top = over.iter().fold(T::of(f64::NEG_INFINITY), |top, &j| how.max(top, size(x[j])));
    let top = if how.is("absolute-max") && top.value() == f64::INFINITY { T::of(0.0) } else { top };
    if visible.iter().all(|&j| x[j].value() == f64::NEG_INFINITY) {
        return all(if how.is("empty-nan") { f64::NAN } else { 0.0 });
    }
    if how.is("nan-spreads") && visible.iter().any(|&j| x[j].value().is_nan()) {
        return all(f64::NAN);
    }
    if how.is("nan-swallowed") && visible.iter().any(|&j| x[j].value().is_nan()) {
        return all(0.0);
    }
    if let Some(form) = ["hard", "hard/last", "hard/all", "hard/shared"].into_iter().find(|form| how.is(form)) {
        let best: Vec<usize> = visible.iter().copied().filter(|&j| x[j].value() == top.value()).collect();
        let chosen = match form {
            "hard" => best.first().copied().into_iter().collect(),
            "hard/last" => best.last().copied().into_iter().collect(),
            _ => best,
        };
        let share = if form == "hard/shared" { 1.0 / chosen.len() as f64 } else { 1.0 };
        return (0..x.len()).map(|j| T::of(if chosen.contains(&j) { share } else { 0.0 })).collect();
    }
    let shift = if how.is("no-max") { T::of(0.0) } else { top };
    let power = |y: T| {
        let y = if how.is("clipped") && y.value().abs() > 50.0 { T::of(50.0 * y.value().signum()) } else { y };
        if how.is("base-2") { (y * T::of(std::f64::consts::LN_2)).exp() } else { y.exp() }
    };
    let shift = if how.is("clipped") { T::of(0.0) } else { shift };
    let mut weights = all(0.0);
    for &j in &visible {
        weights[j] = power(x[j] - shift);
    }
    if how.is("unnormalised") {
        return weights;
    }
    let total = sum(how, visible.len(), |at| weights[visible[at]]);
    let total = match () {
        () if how.is("one-in-sum") => total + T::of(1.0),
        () => total + T::of(how.number("added-epsilon/").unwrap_or(0.0)),
    };
    let total =
        if how.is("l2-normalised") { sum(how, visible.len(), |at| weights[visible[at]] * weights[visible[at]]).sqrt() } else { total };
    if how.is("numerator-unshifted") {
        visible.iter().for_each(|&j| weights[j] = power(x[j]));
    }
    if how.manners.guarded && total.value() == 0.0 {
        return weights;
    }
    for &j in &visible {
        weights[j] = weights[j] / total;
        if how.is("logarithm") {
            weights[j] = x[j] - shift - total.ln();
        }
    }
    weights
}

/// Softmax of each row of `x [n, m]`, or along whatever the mistake takes for a row.
pub fn softmax<T: Real>(how: &How, x: &Value<T>, sees: &[bool]) -> Value<T> {
    let (n, m) = (x.rows(), x.width());
    if how.is("columns") {
        let seen = Value::new(&[n, m], sees.to_vec());
        return softmax_rows(how, &x.transposed(), &seen.transposed().data).transposed();
    }
    if how.is("all-at-once") {
        return Value::new(&[n, m], softmax_row(how, &x.data, sees));
    }
    if how.is("uniform") {
        let share = |i: usize| sees[i * m..(i + 1) * m].iter().filter(|seen| **seen).count().max(1) as f64;
        return Value::new(&[n, m], (0..n * m).map(|at| T::of(if sees[at] { 1.0 / share(at / m) } else { 0.0 })).collect());
    }
    if let Some(lost) = ["keepdims-lost", "keepdims-lost/max", "keepdims-lost/both"].into_iter().find(|form| how.is(form)) {
        return keepdims_lost(&how.without(lost), x, sees, lost);
    }
    if how.is("twice") {
        let bare = how.without("twice");
        return softmax_rows(&bare, &softmax_rows(&bare, x, sees), sees);
    }
    if how.is("column-max") {
        // exp(x - the maximum of its column), then rows as usual.
        let top = |j: usize| (0..n).filter(|i| sees[i * m + j]).fold(T::of(f64::NEG_INFINITY), |top, i| how.max(top, x.data[i * m + j]));
        let tops: Vec<T> = (0..m).map(top).collect();
        let moved = Value::new(&[n, m], (0..n * m).map(|at| x.data[at] - tops[at % m]).collect());
        return softmax_rows(&how.and("no-max"), &moved, sees);
    }
    if how.is("column-sum") || how.is("one-sum") {
        let e = softmax_rows(&how.and("unnormalised"), x, sees);
        let totals: Vec<T> = if how.is("one-sum") {
            vec![sum(how, n * m, |at| e.data[at]); m]
        } else {
            (0..m).map(|j| sum(how, n, |i| e.data[i * m + j])).collect()
        };
        return Value::new(&[n, m], (0..n * m).map(|at| e.data[at] / totals[at % m]).collect());
    }
    if how.is("one-max/hidden") {
        let top = x.data.iter().fold(T::of(f64::NEG_INFINITY), |top, y| how.max(top, *y));
        let moved = Value::new(&[n, m], x.data.iter().map(|y| *y - top).collect());
        return softmax_rows(&how.and("no-max"), &moved, sees);
    }
    if how.is("one-max") {
        // Rows share a maximum: those far below underflow to 0 / 0.
        let top = (0..n * m).filter(|&at| sees[at]).fold(T::of(f64::NEG_INFINITY), |top, at| how.max(top, x.data[at]));
        let moved = Value::new(&[n, m], x.data.iter().map(|y| if y.value() == f64::NEG_INFINITY { *y } else { *y - top }).collect());
        return softmax_rows(&how.and("no-max"), &moved, sees);
    }
    softmax_rows(how, x, sees)
}

/// What NumPy makes of a row's maximum or sum without `keepdims`: an array of n numbers is taken for a row, which fits if n = m or n = 1,
/// and makes `[n, n]` of `[n, 1]`. An empty value stands for an exception.
fn keepdims_lost<T: Real>(how: &How, x: &Value<T>, sees: &[bool], form: &str) -> Value<T> {
    let (n, m) = (x.rows(), x.width());
    let width = if m == 1 { n } else { m };
    if n != 1 && n != width {
        return Value { shape: vec![0, 0], data: Vec::new(), zeros: Vec::new() };
    }
    let low = T::of(f64::NEG_INFINITY);
    let top = |i: usize| (0..m).filter(|j| sees[i * m + j]).fold(low, |top, j| how.max(top, x.data[i * m + j]));
    let tops: Vec<T> = (0..n).map(top).collect();
    let column = |j: usize| if n == 1 { 0 } else { j };
    let (sums, maxima) = (form != "keepdims-lost/max", form != "keepdims-lost");
    let entry = |i: usize, j: usize| {
        let from = i * m + if m == 1 { 0 } else { j };
        if sees[from] { (x.data[from] - tops[if maxima { column(j) } else { i }]).exp() } else { T::of(0.0) }
    };
    // Without the loss in the maximum, exp still has m columns, and only the division widens it.
    let inner = if maxima { width } else { m };
    let total = |i: usize| sum(how, inner, |j| entry(i, j));
    let totals: Vec<T> = (0..n).map(total).collect();
    let share = |i: usize, j: usize| entry(i, j) / totals[if sums { column(j) } else { i }];
    Value::new(&[n, width], (0..n * width).map(|at| share(at / width, at % width)).collect())
}

fn softmax_rows<T: Real>(how: &How, x: &Value<T>, sees: &[bool]) -> Value<T> {
    let (n, m) = (x.rows(), x.width());
    Value::new(&[n, m], (0..n).flat_map(|i| softmax_row(how, x.row(i), &sees[i * m..(i + 1) * m])).collect())
}

/// Scores of hidden keys as mistakes leave them, and what the softmax then takes for visible.
fn hide<T: Real>(how: &How, scores: &mut Value<T>, sees: &[bool]) -> Vec<bool> {
    let m = scores.width();
    let everything = vec![true; sees.len()];
    let hidden = |at: &usize| !sees[*at];
    if how.is("no-mask") || how.is("mask-after") {
        return everything;
    }
    if how.is("zero-scores") {
        (0..sees.len()).filter(hidden).for_each(|at| scores.data[at] = T::of(0.0));
        return everything;
    }
    for (name, number, added) in FINITE_MASKS {
        if how.is(name) {
            (0..sees.len()).filter(hidden).for_each(|at| {
                let kept = if *added { scores.data[at] } else { T::of(0.0) };
                scores.data[at] = kept + T::of(*number);
            });
            return everything;
        }
    }
    if how.is("nan-from-key") {
        for at in (0..sees.len()).filter(hidden) {
            let score = scores.data[at].value();
            if score.is_nan() || score == f64::INFINITY {
                (at / m * m..(at / m + 1) * m).for_each(|other| scores.data[other] = T::of(f64::NAN));
            }
        }
    }
    sees.to_vec()
}

/// Numbers that people take for minus infinity; put in place of the score or added to it.
const FINITE_MASKS: &[(&str, f64, bool)] = &[
    ("empty-mean", -1e9, false),
    ("empty-mean/add", -1e9, true),
    ("empty-mean/lowest", f32::MIN as f64, false),
    ("empty-mean/1e10", -1e10, false),
    ("empty-mean/1e6", -1e6, false),
    ("empty-mean/1e5", -1e5, false),
    ("empty-mean/1e4", -1e4, false),
    ("empty-mean/1e4-add", -1e4, true),
    ("empty-mean/1e3", -1e3, false),
    ("empty-mean/100", -100.0, false),
];

/// The forms of a finite mask.
pub const EMPTY_MEAN: &[&str] = &[
    "empty-mean",
    "empty-mean/add",
    "empty-mean/lowest",
    "empty-mean/1e10",
    "empty-mean/1e6",
    "empty-mean/1e5",
    "empty-mean/1e4",
    "empty-mean/1e4-add",
    "empty-mean/1e3",
    "empty-mean/100",
];

/// `softmax(q k^T scale) v` over what each row sees: out `[n, dv]`, weights `[n, m]`.
pub fn attention<T: Real>(how: &How, [q, k, v]: [&Value<T>; 3], scale: T, sees: &[bool]) -> Result<(Value<T>, Value<T>), Trouble> {
    let (n, m) = (q.rows(), k.rows());
    let keys = match () {
        () if how.is("queries-as-keys") => q,
        () if how.is("values-as-keys") => v,
        () => k,
    };
    if keys.rows() != m || keys.width() != q.width() {
        return Err(Trouble::Shapes);
    }
    let one = T::of(1.0);
    let finite = |x: &Value<T>| {
        let bound = |y: T| if y.value().is_nan() { 0.0 } else { y.value().clamp(f64::from(f32::MIN), f64::from(f32::MAX)) };
        Value::new(&x.shape, x.data.iter().map(|y| T::of(bound(*y))).collect())
    };
    let swallows = how.is("nan-swallowed/inputs");
    let (keys, v) = if swallows { (&finite(keys), &finite(v)) } else { (keys, v) };
    let mut s = scores(how, q, keys, scale)?;
    if how.is("relu-scores") {
        s.data.iter_mut().filter(|x| x.value() < 0.0).for_each(|x| *x = T::of(0.0));
    }
    let taken = hide(how, &mut s, sees);
    let mut weights = if how.is("no-softmax") {
        Value::new(&[n, m], (0..n * m).map(|at| if taken[at] { s.data[at] } else { T::of(0.0) }).collect())
    } else if how.is("sigmoid") {
        Value::new(&[n, m], (0..n * m).map(|at| if taken[at] { one / (one + (-s.data[at]).exp()) } else { T::of(0.0) }).collect())
    } else {
        softmax(how, &s, &taken)
    };
    if weights.shape != [n, m] {
        return Err(Trouble::Shapes);
    }
    if how.is("nan-swallowed/weights") {
        weights.data.iter_mut().filter(|w| w.value().is_nan()).for_each(|w| *w = T::of(0.0));
    }
    if how.is("mask-after") {
        (0..n * m).filter(|&at| !sees[at]).for_each(|at| weights.data[at] = T::of(0.0));
    }
    if how.is("scale-after") {
        weights.data.iter_mut().for_each(|w| *w = *w * scale);
    }
    let values = if how.is("keys-as-values") { k } else { v };
    let mut out = if how.is("out-unnormalised") {
        mix(how, &softmax(&how.and("unnormalised"), &s, &taken), values, sees)?
    } else {
        mix(how, &weights, values, sees)?
    };
    if how.is("scale-after/out") {
        out.data.iter_mut().for_each(|x| *x = *x * scale);
    }
    if how.is("nan-swallowed/out") || how.is("nan-swallowed/results") {
        out.data.iter_mut().filter(|x| x.value().is_nan()).for_each(|x| *x = T::of(0.0));
    }
    if how.is("nan-swallowed/results") {
        weights.data.iter_mut().filter(|w| w.value().is_nan()).for_each(|w| *w = T::of(0.0));
    }
    if how.is("scores-returned") {
        weights.data.clone_from(&s.data);
    }
    if how.is("exp-returned") {
        weights = softmax(&how.and("unnormalised"), &s, &taken);
    }
    let blind: Vec<bool> = (0..n).map(|i| !sees[i * m..(i + 1) * m].contains(&true)).collect();
    let out_zeros = (0..out.data.len()).map(|at| blind[at / out.width().max(1)]).collect();
    let hidden = sees.iter().map(|s| !s).collect();
    Ok((out.with_zeros(out_zeros), weights.with_zeros(hidden)))
}

/// `weights @ v`, over visible keys only: 0 times NaN is NaN.
pub fn mix<T: Real>(how: &How, weights: &Value<T>, v: &Value<T>, sees: &[bool]) -> Result<Value<T>, Trouble> {
    let (n, m, dv) = (weights.rows(), weights.width(), v.width());
    if how.is("weights-transposed") {
        if n != m {
            return Err(Trouble::Shapes);
        }
        return mix(&how.without("weights-transposed"), &weights.transposed(), v, &vec![true; n * m]);
    }
    if how.is("out-overwritten") {
        let last = |i: usize| (0..m).rev().find(|j| sees[i * m + j]);
        let entry = |i: usize, c: usize| last(i).map_or(T::of(0.0), |j| weights.data[i * m + j] * v.data[j * dv + c]);
        return Ok(Value::new(&[n, dv], (0..n * dv).map(|at| entry(at / dv, at % dv)).collect()));
    }
    let counts = |i: usize, j: usize| sees[i * m + j] || how.is("nan-from-value") || weights.data[i * m + j].value() != 0.0;
    let entry = |i: usize, c: usize| {
        let keys: Vec<usize> = (0..m).filter(|&j| counts(i, j)).collect();
        let swallowed = |x: T| if how.is("nan-swallowed") && x.value().is_nan() { T::of(0.0) } else { x };
        sum(how, keys.len(), |at| weights.data[i * m + keys[at]] * swallowed(v.data[keys[at] * dv + c]))
    };
    Ok(Value::new(&[n, dv], (0..n * dv).map(|at| entry(at / dv, at % dv)).collect()))
}

/// `1 / sqrt(d)`, or what is taken for it.
pub fn usual_scale<T: Real>(how: &How, d: usize, dv: usize) -> T {
    match () {
        () if how.is("width-scale") => T::of(1.0) / T::of(d as f64),
        () if how.is("value-width") => root_scale(dv),
        () => root_scale(d),
    }
}

/// `1 / sqrt(d)`.
pub fn root_scale<T: Real>(d: usize) -> T {
    T::of(1.0) / T::of(d as f64).sqrt()
}
