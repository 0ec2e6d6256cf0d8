//! 07: a mask and lengths; hidden means hidden.

use super::{different, normal, strided, whole};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, attention as attend, usual_scale};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value, flags};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 7,
    name: "masked_attention",
    title: "hidden means hidden",
    dims: &["b", "n", "m", "d", "dv"],
    params: &[
        input("q", &["b", "n", "d"]),
        input("k", &["b", "m", "d"]),
        input("v", &["b", "m", "dv"]),
        param("mask", Kind::Flags, &["n", "m"]),
        param("lengths", Kind::Lengths, &["b"]),
    ],
    results: &[("out", &["b", "n", "dv"]), ("weights", &["b", "n", "m"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "inverted", text: "what the mask shows is hidden, and what it hides is seen: true means visible" },
        Mistake { id: "either", text: "a key is seen if the mask or the length allows it: both must" },
        Mistake { id: "length-inclusive", text: "one key of the padding is seen: j < length, not j <= length" },
        Mistake { id: "length-exclusive", text: "the last key before the padding is hidden: j < length, not j < length - 1" },
        Mistake { id: "padding-hides-queries", text: "rows from the length on are emptied: lengths hide keys, not queries" },
        Mistake { id: "mask-transposed", text: "the mask is read as [m, n]: rows are queries" },
        Mistake { id: "lengths-ignored", text: "the lengths are not used: padding is seen" },
        Mistake { id: "mask-ignored", text: "the mask is not used: only the lengths hide keys" },
        Mistake { id: "first-length", text: "the first length is used for all of the batch" },
        Mistake { id: "inverted/with-lengths", text: "what mask and lengths show is hidden, and what they hide is seen: true means \
            visible" },
        Mistake { id: "lengths-on-queries", text: "the lengths hide queries (i < length): they hide keys (j < length)" },
        Mistake { id: "first-entry", text: "every entry of the batch reads the keys and values of entry 0" },
        Mistake { id: "empty-all", text: "a row that sees no key is given all of them: it must be exactly 0" },
        Mistake { id: "weights-compacted", text: "the weights of visible keys stand at the front of the row: each belongs in the column \
            of its key" },
        Mistake { id: "last-length", text: "the last length is used for all of the batch" },
        Mistake { id: "lengths-front", text: "the length is counted from the end: padding stands behind" },
    ],
    // What goes wrong together stands together: sets of mistakes are tried in this order.
    mutants: &[
        "nan-from-value", "empty-nan", "nan-spreads", "nan-from-key", "empty-mean", "inverted", "either", "length-inclusive",
        "padding-hides-queries",
        "mask-transposed", "mask-transposed/flat", "no-scale", "columns", "lengths-ignored", "mask-ignored", "no-mask", "nan-swallowed",
        "nan-swallowed/weights", "nan-swallowed/out", "nan-swallowed/results",
        "empty-mean/lowest", "empty-mean/add", "empty-mean/1e10", "empty-mean/1e6", "empty-mean/1e4", "first-length", "length-exclusive",
        "lengths-front", "mask-after", "zero-scores", "max-hidden", "no-max", "inverted/with-lengths", "no-softmax", "width-scale",
        "value-width", "keys-as-values",
        "lengths-on-queries", "first-entry", "empty-all", "last-length", "one-max", "all-at-once", "results-swapped", "negated",
        "scale-inverted/root", "scale-after", "hard", "hard/last", "base-2", "unnormalised", "weights-transposed", "queries-as-keys",
        "sigmoid", "twice", "clipped",
        "scores-returned", "exp-returned", "uniform", "one-in-sum", "component-missing", "column-max", "column-sum", "one-sum",
        "one-max/hidden", "nan-swallowed/inputs", "out-overwritten", "weights-compacted", "relu-scores", "out-unnormalised",
    ],
    hints: ["One row at a time.", "Select the visible keys first.", "Only they enter maximum, sum and product."],
    idea: "0 times NaN is NaN: what is hidden must be left out, not multiplied by 0.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(masked_attention), session: session!(plain) },
    custom: None,
    files: files!(),
};

fn sees<T: Real>(how: &How, mask: &Value<T>, length: usize, [first, last]: [usize; 2]) -> Result<Vec<bool>, Trouble> {
    let (n, m) = (mask.rows(), mask.width());
    if how.is("mask-transposed") && n != m {
        return Err(Trouble::Shapes);
    }
    let visible = |i: usize, j: usize| {
        let turned = how.is("mask-transposed") || how.is("mask-transposed/flat");
        let shown = mask.flag(if turned { j * n + i } else { i * m + j }) || how.is("mask-ignored");
        let within = match () {
            () if how.is("length-inclusive") => j <= length,
            () if how.is("length-exclusive") => j + 1 < length,
            () if how.is("lengths-ignored") => true,
            () if how.is("first-length") => j < first,
            () if how.is("last-length") => j < last,
            () if how.is("lengths-on-queries") => i < length,
            () if how.is("lengths-front") => j + length >= m,
            () => j < length,
        };
        match () {
            () if how.is("inverted") => !shown && within,
            () if how.is("inverted/with-lengths") => !(shown && within),
            () if how.is("either") => shown || within,
            () if how.is("padding-hides-queries") => shown && within && i < length,
            () => shown && within,
        }
    };
    let mut all: Vec<bool> = (0..n * m).map(|at| visible(at / m, at % m)).collect();
    if how.is("empty-all") {
        all.chunks_mut(m).filter(|row| !row.contains(&true)).for_each(|row| row.fill(true));
    }
    Ok(all)
}

fn masked_attention<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v, mask, lengths] = [0, 1, 2, 3, 4].map(|at| &call.args[at]);
    let length = |b: usize| lengths.data[b].value() as usize;
    let (mut outs, mut all) = (Vec::new(), Vec::new());
    for b in 0..call.dims[0] {
        let visible = sees(how, mask, length(b), [length(0), length(call.dims[0] - 1)])?;
        let entry = if how.is("first-entry") { 0 } else { b };
        let (out, weights) = attend(how, [&q.part(b), &k.part(entry), &v.part(entry)], usual_scale(how, q.width(), v.width()), &visible)?;
        let mut weights = weights;
        if how.is("weights-compacted") {
            let m = weights.width();
            for (row, seen) in weights.data.chunks_mut(m).zip(visible.chunks(m)) {
                let front: Vec<T> = (0..m).filter(|&j| seen[j]).map(|j| row[j]).collect();
                row.fill(T::of(0.0));
                row[..front.len()].copy_from_slice(&front);
            }
        }
        outs.push(out);
        all.push(weights);
    }
    let (out, weights) = (Value::stack(&outs), Value::stack(&all));
    Ok(if how.is("results-swapped") { vec![weights, out] } else { vec![out, weights] })
}

fn random_mask(rng: &mut Rng, n: usize, m: usize, share: f64) -> Vec<bool> {
    (0..n * m).map(|_| rng.chance(share)).collect()
}

struct Draft {
    dims: [usize; 5],
    q: Value<f64>,
    k: Value<f64>,
    v: Value<f64>,
    mask: Vec<bool>,
    lengths: Vec<usize>,
}

impl Draft {
    fn new(rng: &mut Rng, dims: [usize; 5], share: f64) -> Self {
        let [b, n, m, d, dv] = dims;
        let lengths = (0..b).map(|_| rng.size(1, m)).collect();
        let (q, k, v) = (normal(rng, &[b, n, d]), normal(rng, &[b, m, d]), normal(rng, &[b, m, dv]));
        Self { dims, q, k, v, mask: random_mask(rng, n, m, share), lengths }
    }

    fn case(self, label: &str) -> Case {
        let [b, n, m, ..] = self.dims;
        let lengths = Value::new(&[b], self.lengths.iter().map(|l| *l as f64).collect());
        Case::new(label, &self.dims, vec![self.q, self.k, self.v, flags(&[n, m], self.mask), lengths])
    }

    fn whole(mut self, rng: &mut Rng, unit: f32) -> Self {
        let [b, n, m, d, _] = self.dims;
        (self.q, self.k) = (whole(rng, &[b, n, d], 4, unit), whole(rng, &[b, m, d], 4, unit));
        self
    }
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |label: &str, draft: Draft| cases.push(draft.case(label));
    let draft = |rng: &mut Rng, dims: [usize; 5], lengths: &[usize]| {
        let mut draft = Draft::new(rng, dims, 0.7);
        draft.lengths.copy_from_slice(lengths);
        draft
    };
    let mut open = draft(rng, [2, 3, 4, 5, 2], &[4, 4]);
    open.mask.fill(true);
    add("everything is visible", open);
    let mut open = draft(rng, [3, 4, 5, 2, 3], &[2, 5, 1]);
    open.mask.fill(true);
    add("lengths alone", open);
    add("mask alone", draft(rng, [2, 4, 3, 2, 5], &[3, 3]));
    let mut empty = draft(rng, [2, 3, 4, 2, 5], &[3, 4]);
    empty.mask[4..8].fill(false);
    add("a row of the mask is empty", empty);
    add("a length of 0", draft(rng, [3, 2, 4, 5, 3], &[0, 3, 4]));
    let mut shut = draft(rng, [2, 3, 4, 5, 2], &[2, 4]);
    shut.mask.fill(false);
    add("nothing is visible", shut);
    let mut late = draft(rng, [2, 5, 6, 3, 4], &[2, 3]);
    (0..5).for_each(|i| (0..6).for_each(|j| late.mask[i * 6 + j] = j >= i));
    add("rows whose visible keys are padding", late);
    // Behind the lengths everything may stand.
    for (label, bad) in [("NaN hidden in k", f64::NAN), ("inf hidden in k", f64::INFINITY)] {
        let mut hidden = draft(rng, [2, 3, 5, 4, 2], &[3, 4]);
        hidden.mask.iter_mut().enumerate().for_each(|(at, shown)| *shown |= at % 5 == 0);
        (0..2).for_each(|b| hidden.k.data[(b * 5 + 4) * 4..(b * 5 + 5) * 4].fill(bad));
        add(label, hidden);
    }
    for (label, bad) in [("NaN hidden in v", f64::NAN), ("inf hidden in v", f64::NEG_INFINITY)] {
        let mut hidden = draft(rng, [2, 4, 5, 2, 3], &[4, 3]);
        hidden.mask.iter_mut().enumerate().for_each(|(at, shown)| *shown |= at % 5 == 0);
        (0..2).for_each(|b| hidden.v.data[(b * 5 + 4) * 3 + 1] = bad);
        add(label, hidden);
    }
    let mut by_mask = draft(rng, [1, 3, 4, 3, 2], &[4]);
    by_mask.mask.copy_from_slice(&[true, false, true, true, true, false, false, true, false, false, false, true]);
    by_mask.k.data[3..6].fill(f64::NAN);
    by_mask.v.data[2] = f64::NAN;
    add("NaN in a key that the mask hides", by_mask);
    let mut seen = draft(rng, [2, 3, 4, 3, 2], &[4, 3]);
    seen.mask.copy_from_slice(&[true, true, false, false, true, false, true, true, false, false, true, false]);
    seen.k.data[3] = f64::NAN;
    add("NaN visible in k, to row 0 alone", seen);
    let mut seen = draft(rng, [2, 3, 4, 3, 2], &[4, 3]);
    seen.mask.copy_from_slice(&[true, true, false, false, true, false, true, true, false, false, true, false]);
    seen.v.data[3] = f64::NAN;
    add("NaN visible in v, to row 0 alone", seen);
    let mut seen = draft(rng, [1, 3, 4, 3, 2], &[3]);
    seen.mask.fill(true);
    seen.q.data[3] = f64::NAN;
    add("NaN in a query", seen);
    let mut low = draft(rng, [2, 3, 4, 4, 2], &[4, 2]);
    low.mask.copy_from_slice(&[true, true, false, true, true, false, false, true, false, true, true, false]);
    low.q.data.fill(65536.0);
    low.k.data.iter_mut().enumerate().for_each(|(at, x)| *x = -81920.0 + 4096.0 * ((at / 4) % 3) as f64);
    add("visible scores of -1e10", low);
    let mut high = draft(rng, [2, 3, 4, 4, 2], &[3, 3]).whole(rng, 1.0);
    high.mask.copy_from_slice(&[true, true, false, true, true, false, true, true, false, true, true, true]);
    high.q.data.iter_mut().for_each(|x| *x = x.abs() + 128.0);
    (0..2).for_each(|b| high.k.data[(b * 4 + 3) * 4..(b * 4 + 4) * 4].fill(64.0));
    (0..2).for_each(|b| high.k.data[b * 16..(b * 4 + 3) * 4].iter_mut().for_each(|x| *x = -x.abs()));
    add("hidden scores of +1e4", high);
    for dims in [[2, 3, 4, 4, 2], [1, 4, 4, 4, 4]] {
        let large = Draft::new(rng, dims, 0.7).whole(rng, 64.0);
        add("scores of 1e4", large);
    }
    for _ in 0..8 {
        let [n, m, d, dv] = different(rng, 2, 7);
        let batch = rng.size(1, 3);
        add("random", Draft::new(rng, [batch, n, m, d, dv], 0.6));
    }
    for size in [2, 3, 4] {
        add("square", Draft::new(rng, [2, size, size, size, size], 0.6));
    }
    add("large", Draft::new(rng, [3, 37, 41, 14, 21], 0.6));
    strided(cases)
}
