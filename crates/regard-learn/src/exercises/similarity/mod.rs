//! 01: dot products and cosines.

use super::{different, normal, strided};
use crate::exercise::{Exercise, Judging, Mistake, input, plain};
use crate::formula::{How, dot, sum};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Value};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 1,
    name: "similarity",
    title: "dot products and cosines",
    dims: &["n", "m", "d"],
    params: &[input("q", &["n", "d"]), input("k", &["m", "d"])],
    results: &[("dots", &["n", "m"]), ("cosines", &["n", "m"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "only-q-norm", text: "cosines grow with the length of k: divide by |k| too" },
        Mistake { id: "only-k-norm", text: "cosines grow with the length of q: divide by |q| too" },
        Mistake { id: "l1-norm", text: "lengths are sums of |x|: a length is the root of the sum of squares" },
        Mistake { id: "zero-nan", text: "a row of zeros has length 0, and 0/0 is NaN: its cosine is 0" },
        Mistake { id: "distance", text: "these are distances, 1 - cosine: return the cosine" },
        Mistake { id: "dots-normalised", text: "dots are divided by the lengths already: dots are plain q.k" },
        Mistake { id: "no-norm", text: "cosines are plain dot products: divide by both lengths" },
        Mistake { id: "squared-norm", text: "lengths lack their root: |q| is sqrt(q.q)" },
        Mistake { id: "one-norm-for-all", text: "one length for the whole matrix: each row has its own" },
        Mistake { id: "by-width", text: "the dots are divided by d: a dot product is a sum, not a mean" },
        Mistake { id: "added-epsilon", text: "a small number is added to the lengths: very short rows lose their direction; only a \
            length of 0 is special" },
        Mistake { id: "results-swapped", text: "the two results are exchanged: dots first, then cosines" },
        Mistake {
            id: "length-floor",
            text: "lengths below a small number are raised to it: very short rows lose their direction; only a length of 0 is special",
        },
        Mistake {
            id: "product-floor",
            text: "a product of lengths below a small number is raised to it: very short rows lose their direction; only a length of 0 \
                is special",
        },
        Mistake {
            id: "length-threshold",
            text: "rows shorter than a small number get cosine 0: very short rows have a direction, too; only a length of 0 is special",
        },
        Mistake {
            id: "product-threshold",
            text: "where the product of lengths is below a small number the cosine is set to 0: only a length of 0 is special",
        },
        Mistake {
            id: "rooted-epsilon",
            text: "a small number is added under the root of the lengths: very short rows lose their direction; only a length of 0 is \
                special",
        },
        Mistake {
            id: "squares-multiplied",
            text: "the squares of both lengths are multiplied before the root, which leaves the range of float32 for very short and very \
                long rows: take each root first",
        },
        Mistake { id: "clamped", text: "negative cosines become 0: opposite rows have cosine -1" },
        Mistake { id: "rms-norm", text: "lengths are roots of the mean square: a length is the root of the sum of squares" },
        Mistake { id: "centred", text: "the mean of each row is subtracted first: that is a correlation, not a cosine" },
        Mistake { id: "component-missing", text: "the last component is left out of the dot products: the sum runs over all d" },
        Mistake { id: "component-missing/first", text: "the first component is left out of the dot products: the sum runs over all d" },
        Mistake { id: "cosines-transposed", text: "the cosines have rows and columns exchanged" },
        Mistake { id: "max-norm", text: "lengths are the largest |x|: a length is the root of the sum of squares" },
        Mistake { id: "column-norms", text: "lengths are taken over columns (axis 0): each row has its own" },
        Mistake { id: "angle", text: "these are angles: return their cosine, without arccos" },
        Mistake { id: "absolute", text: "the cosines have lost their sign: opposite rows have cosine -1" },
        Mistake { id: "root-width", text: "the dots are divided by sqrt(d): a dot product is a plain sum" },
        Mistake { id: "cosine-squared", text: "the cosines are squared" },
        Mistake { id: "zero-one", text: "a row of zeros has cosine 1 here: it has no direction, and its cosine is 0" },
    ],
    mutants: &[
        "only-q-norm", "l1-norm", "zero-nan", "distance", "dots-normalised", "transposed", "only-k-norm", "no-norm", "squared-norm",
        "one-norm-for-all", "by-width", "results-swapped", "max-norm", "column-norms", "angle", "absolute", "root-width",
        "cosine-squared", "zero-one", "squares-multiplied", "clamped", "rms-norm", "centred", "component-missing",
        "component-missing/first", "cosines-transposed", "added-epsilon/1e-6", "added-epsilon/1e-8", "added-epsilon/1e-12",
        "added-epsilon/1e-9", "added-epsilon/1e-10", "added-epsilon/1e-7", "added-epsilon/1e-5", "added-epsilon/1e-4",
        "added-epsilon/1e-3", "added-epsilon/1e-16", "length-floor/1e-6", "length-floor/1e-8", "length-floor/1e-9",
        "length-floor/1e-10", "length-floor/1e-7", "length-floor/1e-5", "length-floor/1e-4", "length-floor/1e-3",
        "product-floor/1e-6", "product-floor/1e-8", "product-floor/1e-12", "product-floor/1e-9", "product-floor/1e-10",
        "product-floor/1e-7", "product-floor/1e-5", "product-floor/1e-4", "product-floor/1e-16", "added-epsilon/each-1e-6",
        "added-epsilon/each-1e-8", "added-epsilon/each-1e-12", "added-epsilon/each-1e-9", "added-epsilon/each-1e-10",
        "added-epsilon/each-1e-7", "added-epsilon/each-1e-5", "added-epsilon/each-1e-4", "added-epsilon/each-1e-3",
        "added-epsilon/each-1e-16", "length-threshold/1e-6", "length-threshold/1e-8", "length-threshold/1e-9",
        "length-threshold/1e-10", "length-threshold/1e-7", "length-threshold/1e-5", "length-threshold/1e-4", "length-threshold/1e-3",
        "product-threshold/1e-6", "product-threshold/1e-8", "product-threshold/1e-12", "product-threshold/1e-9",
        "product-threshold/1e-10", "product-threshold/1e-7", "product-threshold/1e-5", "product-threshold/1e-4",
        "product-threshold/1e-16", "rooted-epsilon/1e-6", "rooted-epsilon/1e-8", "rooted-epsilon/1e-12", "rooted-epsilon/1e-9",
        "rooted-epsilon/1e-10", "rooted-epsilon/1e-7", "rooted-epsilon/1e-5", "rooted-epsilon/1e-4", "rooted-epsilon/1e-3",
        "rooted-epsilon/1e-16",
        "component-last-only", "added-epsilon/1.1920929e-7", "added-epsilon/2.220446e-16", "added-epsilon/each-1.1920929e-7",
        "added-epsilon/each-2.220446e-16", "product-floor/1.1920929e-7", "product-floor/2.220446e-16", "length-floor/1.1920929e-7",
    ],
    hints: ["What is q.q, the dot product of a row with itself?", "A length per row: sqrt(q.q).", "Divide by both lengths where they are \
        not 0."],
    idea: "q.k = |q| |k| cos: the dot product knows direction and length, the cosine forgets length. Attention uses the dot product.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(similarity), session: session!(plain) },
    custom: None,
    files: files!(),
};

fn length<T: Real>(how: &How, row: &[T]) -> T {
    if how.is("l1-norm") {
        return sum(how, row.len(), |c| row[c].abs());
    }
    if how.is("max-norm") {
        return row.iter().fold(T::of(0.0), |top, x| how.max(top, x.abs()));
    }
    let square = dot(how, row, row) + T::of(how.number("rooted-epsilon/").unwrap_or(0.0));
    let square = if how.is("rms-norm") { square / T::of(row.len() as f64) } else { square };
    if how.is("squared-norm") { square } else { square.sqrt() }
}

fn similarity<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k] = [&call.args[0], &call.args[1]];
    let (n, m, zero) = (q.rows(), k.rows(), T::of(0.0));
    let centred = |x: &Value<T>| {
        let mean = |i: usize| sum(how, x.width(), |c| x.row(i)[c]) / T::of(x.width() as f64);
        Value::new(&x.shape, (0..x.data.len()).map(|at| x.data[at] - mean(at / x.width())).collect())
    };
    let (q_plain, k_plain) = (q, k);
    let (q, k) = if how.is("centred") { (&centred(q), &centred(k)) } else { (q, k) };
    let epsilon = how.number("added-epsilon/").map(T::of);
    let lengths = |x: &Value<T>, rows: usize| -> Vec<T> {
        if how.is("one-norm-for-all") {
            return vec![length(how, &x.data); rows];
        }
        (0..rows).map(|i| length(how, x.row(i))).collect()
    };
    let (mut q_lengths, mut k_lengths) = (lengths(q, n), lengths(k, m));
    if let Some(each) = how.number("added-epsilon/each-") {
        q_lengths.iter_mut().chain(&mut k_lengths).for_each(|x| *x = *x + T::of(each));
    }
    if let Some(floor) = how.number("length-floor/") {
        q_lengths.iter_mut().chain(&mut k_lengths).for_each(|x| *x = how.max(*x, T::of(floor)));
    }
    let shortest = how.number("length-threshold/").unwrap_or(0.0);
    let smallest = how.number("product-threshold/").unwrap_or(0.0);
    let product_floor = how.number("product-floor/").map(T::of);
    let squares = |i: usize, j: usize| dot(how, q.row(i), q.row(i)) * dot(how, k.row(j), k.row(j));
    let part = |x: &[T]| match () {
        () if how.is("component-missing") => x[..x.len() - 1].to_vec(),
        () if how.is("component-missing/first") => x[1..].to_vec(),
        () if how.is("component-last-only") => x[x.len() - 1..].to_vec(),
        () => x.to_vec(),
    };
    let (q_units, k_units) = (by_columns(how, q), by_columns(how, k));
    let (mut dots, mut cosines) = (Vec::new(), Vec::new());
    for at in 0..n * m {
        let (i, j) = (at / m, at % m);
        let product = dot(how, &part(q.row(i)), &part(k.row(j)));
        let by_q = if how.is("only-k-norm") || how.is("no-norm") { T::of(1.0) } else { q_lengths[i] };
        let by_k = if how.is("only-q-norm") || how.is("no-norm") { T::of(1.0) } else { k_lengths[j] };
        let short = |length: T| length.value() <= shortest;
        let empty = (short(by_q) || short(by_k) || (by_q * by_k).value() < smallest) && !how.is("zero-nan");
        let cosine = match epsilon {
            Some(epsilon) => product / (by_q * by_k + epsilon),
            None if how.is("column-norms") => dot(how, q_units.row(i), k_units.row(j)),
            None if product_floor.is_some() => product / how.max(by_q * by_k, product_floor.unwrap_or(zero)),
            None if how.is("squares-multiplied") && !empty => product / squares(i, j).sqrt(),
            None if empty => if how.is("zero-one") { T::of(1.0) } else { zero },
            None => product / by_q / by_k,
        };
        let cosine = match () {
            () if how.is("angle") => T::of(cosine.value().clamp(-1.0, 1.0).acos()),
            () if how.is("absolute") => cosine.abs(),
            () if how.is("clamped") && cosine.value() < 0.0 => zero,
            () if how.is("cosine-squared") => cosine * cosine,
            () => cosine,
        };
        let width = T::of(q.width() as f64);
        let product = if how.is("centred") { dot(how, q_plain.row(i), k_plain.row(j)) } else { product };
        let product = match () {
            () if how.is("by-width") => product / width,
            () if how.is("root-width") => product / width.sqrt(),
            () => product,
        };
        dots.push(if how.is("dots-normalised") { cosine } else { product });
        cosines.push(if how.is("distance") { T::of(1.0) - cosine } else { cosine });
    }
    let (mut dots, mut cosines) = (Value::new(&[n, m], dots), Value::new(&[n, m], cosines));
    if how.is("transposed") {
        (dots, cosines) = (dots.transposed(), cosines.transposed());
    }
    if how.is("cosines-transposed") {
        cosines = cosines.transposed();
    }
    Ok(if how.is("results-swapped") { vec![cosines, dots] } else { vec![dots, cosines] })
}

/// Each entry over the length of its column.
fn by_columns<T: Real>(how: &How, x: &Value<T>) -> Value<T> {
    let (rows, width) = (x.rows(), x.width());
    let lengths: Vec<T> = (0..width).map(|c| sum(how, rows, |i| x.data[i * width + c] * x.data[i * width + c]).sqrt()).collect();
    Value::new(&x.shape, (0..rows * width).map(|at| x.data[at] / lengths[at % width]).collect())
}

/// What is special about q and k of width d.
type Change<'a> = &'a dyn Fn(&mut [f64], &mut [f64], usize);

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [n, m, d]: [usize; 3], change: Change<'_>| {
        let (mut q, mut k) = (normal(rng, &[n, d]), normal(rng, &[m, d]));
        change(&mut q.data, &mut k.data, d);
        cases.push(Case::new(label, &[n, m, d], vec![q, k]));
    };
    let as_is = |_: &mut [f64], _: &mut [f64], _: usize| {};
    add(rng, "one query, one key", [1, 1, 3], &as_is);
    add(rng, "one query", [1, 4, 3], &as_is);
    add(rng, "one key", [4, 1, 3], &as_is);
    add(rng, "d = 1", [3, 2, 1], &as_is);
    add(rng, "a row of zeros in q", [3, 4, 5], &|q, _, d| q[d..2 * d].fill(0.0));
    add(rng, "a row of zeros in k", [4, 3, 5], &|_, k, d| k[..d].fill(0.0));
    add(rng, "zeros in both", [3, 3, 4], &|q, k, d| {
        q[..d].fill(0.0);
        k[d..2 * d].fill(0.0);
    });
    let times = |x: &mut [f64], power: i32| x.iter_mut().for_each(|x| *x *= 2f64.powi(power));
    add(rng, "queries times 2^-40", [3, 4, 5], &|q, _, _| times(q, -40));
    add(rng, "keys times 2^40", [4, 3, 5], &|_, k, _| times(k, 40));
    add(rng, "rows times 2^-40 and 2^40", [4, 3, 6], &|q, k, d| {
        times(&mut q[..d], -40);
        times(&mut k[..d], 40);
    });
    for power in [-40, 40] {
        // Squares of both lengths, multiplied, would leave the range of f32.
        add(rng, &format!("queries and keys times 2^{power}"), [3, 2, 4], &|q, k, _| {
            times(q, power);
            times(k, power);
        });
    }
    add(rng, "opposite rows", [2, 2, 4], &|q, k, _| k.iter_mut().zip(q).for_each(|(k, q)| *k = -*q));
    for _ in 0..10 {
        let sizes = different(rng, 2, 8);
        add(rng, "random", sizes, &as_is);
    }
    for size in [2, 4, 5] {
        add(rng, "square", [size, size, size], &as_is);
    }
    add(rng, "long rows", [3, 5, 64], &as_is);
    add(rng, "large", [83, 61, 33], &as_is);
    strided(cases)
}
