//! The reference program: attention and its gradients row by row in f64, with a switch at every place where kernels go wrong.
//!
//! Without switches it is the oracle. It shares no code with the library.

mod gradients;
mod merge;
mod scores;
mod softmax;

use super::catalogue::{Mistake as M, Part, Switches};
use super::problem::{Memory, Problem, RESULTS, Results};
use super::when::When;
use gradients::Gradients;
use std::borrow::Cow;
use std::cell::Cell;

/// Number type that a computation is rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    F64,
    F32,
    /// Sums in f32, stored arrays in f16.
    F16,
    /// Sums in f32, stored arrays in bf16.
    Bf16,
}

impl Precision {
    pub fn eps(self) -> f64 {
        match self {
            Precision::F64 => f64::EPSILON,
            Precision::F32 => f64::from(f32::EPSILON),
            Precision::F16 => 2f64.powi(-10),
            Precision::Bf16 => 2f64.powi(-7),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Precision::F64 => "f64",
            Precision::F32 => "f32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }

    /// Rounds an intermediate result.
    fn round(self, x: f64) -> f64 {
        if self == Precision::F64 { x } else { f64::from(x as f32) }
    }

    /// Rounds an element of a stored array.
    pub fn store(self, x: f64) -> f64 {
        match self {
            Precision::F64 => x,
            Precision::F32 => f64::from(x as f32),
            Precision::F16 => half(x),
            Precision::Bf16 => bfloat(x),
        }
    }
}

fn bfloat(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    if !x.is_finite() {
        return x;
    }
    f64::from(f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000))
}

fn half(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = x.abs().log2().floor().max(-14.0) as i32;
    let step = 2f64.powi(exponent - 10);
    let rounded = (x / step).round_ties_even() * step;
    if rounded.abs() > 65_504.0 { f64::INFINITY.copysign(x) } else { rounded }
}

/// How a program is evaluated.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub switches: &'a Switches,
    pub precision: Precision,
    /// Sums from the last term to the first.
    pub backwards: bool,
}

/// One key as a row sees it.
struct Term {
    /// Row of k and v; `None` reads zeros.
    token: Option<usize>,
    key: usize,
    head: usize,
    value_head: usize,
    raw: f64,
    score: f64,
    /// Derivative of the score by q.k and by the bias.
    slope: f64,
    beta: f64,
    /// Takes part in the softmax.
    taken: bool,
    /// Hidden from the query, whether it takes part or not.
    hidden: bool,
    /// Hidden by a mask or bias, not by position or length.
    by_mask: bool,
    /// What multiplies the weight after the softmax, in the forward and the backward pass.
    factor: [f64; 2],
    weight: f64,
    /// Weight with mistakes of the running sum, for the output only.
    shown: f64,
    /// What is subtracted from the gradient of the weight, where it is not the mean of the row.
    delta: Option<f64>,
}

#[derive(Default)]
struct Row {
    terms: Vec<Term>,
    lse: f64,
    /// Everything that is computed from the row is this.
    spoiled: Option<f64>,
}

/// Where a row stands.
#[derive(Clone, Copy)]
struct Place {
    segment: usize,
    head: usize,
    query: usize,
}

struct Program<'a> {
    p: &'a Problem,
    run: Run<'a>,
    /// Output and log-sum-exp from which the backward pass computes the weights again.
    saved: Option<&'a Results>,
    /// The largest score of all rows of the head, where it takes the place of a row's own.
    shared_max: Cell<Option<f64>>,
    q: Cow<'a, [f64]>,
    k: Cow<'a, [f64]>,
    v: Cow<'a, [f64]>,
}

/// What the program returns for a problem.
pub fn evaluate(problem: &Problem, run: Run<'_>) -> Results {
    if run.switches.all().iter().all(|one| one.part == Part::All && one.when == When::default()) {
        return shown(problem, whole(problem, run, None));
    }
    let made = run.switches.made_in(problem);
    let forward = made.made_for(0);
    let mut results = whole(problem, Run { switches: &forward, ..run }, None);
    // Results whose computations make the same mistakes come from one program.
    let mut known: Vec<(Switches, Results)> = Vec::new();
    for result in 2..RESULTS.len() {
        let set = made.made_for(result);
        if results.arrays[result].is_none() || set == forward {
            continue;
        }
        let at = known.iter().position(|(other, _)| *other == set).unwrap_or_else(|| {
            let saved = set.all().iter().any(|one| one.part.recomputes()).then_some(&results);
            let found = whole(problem, Run { switches: &set, ..run }, saved);
            known.push((set, found));
            known.len() - 1
        });
        results.arrays[result] = known[at].1.arrays[result].clone();
    }
    shown(problem, results)
}

/// Without what was not asked for.
fn shown(problem: &Problem, mut results: Results) -> Results {
    if !problem.lse {
        results.arrays[1] = None;
    }
    results
}

/// The results of one program, always with the log-sum-exp.
fn whole(problem: &Problem, run: Run<'_>, saved: Option<&Results>) -> Results {
    if problem.merge.is_some() {
        return merge::merge(problem, run);
    }
    let equal = problem.segments.windows(2).all(|pair| pair[0].n == pair[1].n && pair[0].m == pair[1].m);
    if let Some(form) = run.switches.form(M::HeadsViewed).filter(|_| !problem.packed && equal) {
        return viewed(problem, run, form);
    }
    let [q, k, v] = memory(problem, run).map(|data| rounded_inputs(data, run));
    Program { p: problem, run, saved, shared_max: Cell::new(None), q, k, v }.run()
}

/// Rows and heads of `[batch, rows, heads, width]` in memory order, read as if the two were exchanged; back with `inverse`.
fn reordered(p: &Problem, data: &[f64], [rows, heads]: [usize; 2], inverse: bool) -> Vec<f64> {
    let batches = p.segments.len();
    let width = data.len() / (batches * rows * heads).max(1);
    let mut out = vec![0.0; data.len()];
    for b in 0..batches {
        for i in 0..rows {
            for h in 0..heads {
                let (other, here) = (((b * heads + h) * rows + i) * width, ((b * rows + i) * heads + h) * width);
                let (to, from) = if p.seq_major != inverse { (here, other) } else { (other, here) };
                out[to..to + width].copy_from_slice(&data[from..from + width]);
            }
        }
    }
    out
}

/// The program between reshapes that stand for transposes: of inputs and results, of inputs alone, of results alone.
fn viewed(problem: &Problem, run: Run<'_>, form: u32) -> Results {
    let mut p = problem.clone();
    let (queries, keys) = ([p.segments[0].n, p.heads[0]], [p.segments[0].m, p.heads[1]]);
    if form != 2 {
        p.q = reordered(problem, &p.q, queries, false);
        p.k = reordered(problem, &p.k, keys, false);
        p.v = reordered(problem, &p.v, keys, false);
    }
    if let Some(d_out) = p.d_out.take() {
        p.d_out = Some(if form == 1 { d_out } else { reordered(problem, &d_out, queries, false) });
    }
    let [q, k, v] = memory(&p, run);
    let mut results = Program { p: &p, run, saved: None, shared_max: Cell::new(None), q, k, v }.run();
    for (at, sizes) in [(0, queries), (2, queries), (3, keys), (4, keys)] {
        if let Some(data) = results.arrays[at].take() {
            let moved = if at == 0 { form != 1 } else { form != 2 };
            results.arrays[at] = Some(if moved { reordered(problem, &data, sizes, true) } else { data });
        }
    }
    results
}

/// Inputs in half precision.
fn rounded_inputs<'a>(data: Cow<'a, [f64]>, run: Run<'_>) -> Cow<'a, [f64]> {
    match run.switches.form(M::Rounded) {
        Some(0) => data.iter().map(|x| half(*x)).collect(),
        Some(1) => data.iter().map(|x| bfloat(*x)).collect(),
        _ => data,
    }
}

/// The inputs as the program reads them.
fn memory<'a>(p: &'a Problem, run: Run<'_>) -> [Cow<'a, [f64]>; 3] {
    let [d, dv] = p.dims;
    let equal = p.segments.windows(2).all(|pair| pair[0].n == pair[1].n && pair[0].m == pair[1].m);
    if !run.switches.on(M::Strides) || p.memory != Memory::Transposed || !equal {
        return [Cow::Borrowed(&p.q), Cow::Borrowed(&p.k), Cow::Borrowed(&p.v)];
    }
    let (n, m) = (p.segments[0].n, p.segments[0].m);
    let reread = |data: &[f64], rows: usize, heads: usize, width: usize| -> Vec<f64> {
        // Place of (batch, row, head) in the other order.
        let other = |b: usize, i: usize, h: usize| ((b * heads + h) * rows + i) * width;
        let mut out = vec![0.0; data.len()];
        for b in 0..p.segments.len() {
            for i in 0..rows {
                for h in 0..heads {
                    let here = ((b * rows + i) * heads + h) * width;
                    let (to, from) = if p.seq_major { (other(b, i, h), here) } else { (here, other(b, i, h)) };
                    out[to..to + width].copy_from_slice(&data[from..from + width]);
                }
            }
        }
        // With the other order as the kernel's own, `out` is the memory, read as if it were in this order.
        out
    };
    [Cow::Owned(reread(&p.q, n, p.heads[0], d)), Cow::Owned(reread(&p.k, m, p.heads[1], d)), Cow::Owned(reread(&p.v, m, p.heads[1], dv))]
}

impl Program<'_> {
    fn on(&self, mistake: M) -> bool {
        self.run.switches.on(mistake)
    }

    fn form(&self, mistake: M) -> Option<usize> {
        self.run.switches.form(mistake).map(|form| form as usize)
    }

    fn round(&self, x: f64) -> f64 {
        self.run.precision.round(x)
    }

    /// In f16 or bf16, with the first or the second of these forms of half precision inside.
    fn rounded(&self, x: f64, [f16, bf16]: [usize; 2]) -> f64 {
        match self.form(M::Rounded) {
            Some(form) if form == f16 => half(x),
            Some(form) if form == bf16 => bfloat(x),
            _ => x,
        }
    }

    fn sum(&self, count: usize, term: impl Fn(usize) -> f64) -> f64 {
        let mut total = 0.0;
        for at in 0..count {
            let at = if self.run.backwards { count - 1 - at } else { at };
            total = self.round(total + self.round(term(at)));
        }
        total
    }

    fn run(&self) -> Results {
        let p = self.p;
        let [heads, kv] = p.heads;
        let [d, dv] = p.dims;
        let [rows, keys] = p.tokens();
        let mut out = vec![0.0; rows * heads * dv];
        let mut lse = vec![f64::NEG_INFINITY; rows * heads];
        let mut gradients = p.d_out.as_ref().map(|d_out| Gradients {
            d_out,
            dq: vec![0.0; rows * heads * d],
            dk: vec![0.0; keys * kv * d],
            dv: vec![0.0; keys * kv * dv],
            d_bias: p.bias.as_ref().map(|bias| vec![0.0; bias.data.len()]),
            terms: p.bias.as_ref().map(|bias| vec![0u32; bias.data.len()]),
        });
        for segment in 0..p.segments.len() {
            let queries = p.segments[segment].n;
            let mut other_axis = self.other_axis(segment);
            for head in 0..heads {
                self.shared_max.set(self.max_of_all_rows(segment, head));
                for query in 0..queries {
                    let place = Place { segment, head, query };
                    let mut row = match &mut other_axis {
                        Some(rows) => std::mem::take(&mut rows[head * queries + query]),
                        None => self.row(place),
                    };
                    self.drop_out(place, &mut row);
                    let at = (p.segments[segment].q0 + query) * heads + head;
                    self.output(place, &row, &mut out[at * dv..(at + 1) * dv]);
                    lse[at] = row.lse;
                    if let Some(gradients) = &mut gradients {
                        self.backward(place, &mut row, at, gradients);
                    }
                }
            }
        }
        let mut arrays = [Some(out), Some(lse), None, None, None, None];
        if let Some(mut g) = gradients {
            if let (Some(d_bias), Some(terms), Some(2)) = (&mut g.d_bias, &g.terms, self.form(M::BiasGradient)) {
                d_bias.iter_mut().zip(terms).for_each(|(x, count)| *x /= f64::from((*count).max(1)));
            }
            if self.form(M::GqaGradient) == Some(2) {
                let group = (heads / kv) as f64;
                g.dk.iter_mut().chain(&mut g.dv).for_each(|x| *x /= group);
            }
            if self.on(M::DkDvSwapped) && d == dv {
                std::mem::swap(&mut g.dk, &mut g.dv);
            }
            if self.on(M::DqDkSwapped) && g.dq.len() == g.dk.len() {
                std::mem::swap(&mut g.dq, &mut g.dk);
            }
            match self.form(M::GradientZero) {
                Some(0) => g.dq.fill(0.0),
                Some(1) => g.dk.fill(0.0),
                Some(2) => g.dv.fill(0.0),
                Some(_) => g.d_bias.iter_mut().for_each(|all| all.fill(0.0)),
                None => {}
            }
            let store = |all: Vec<f64>| Some(all.into_iter().map(|x| self.run.precision.store(x)).collect::<Vec<f64>>());
            arrays[2] = store(g.dq);
            arrays[3] = store(g.dk);
            arrays[4] = store(g.dv);
            arrays[5] = g.d_bias.and_then(store);
        }
        Results { arrays }
    }

    fn output(&self, place: Place, row: &Row, out: &mut [f64]) {
        let dv = self.p.dims[1];
        let n = self.p.segments[place.segment].n;
        if self.form(M::QueryTail).is_some_and(|tile| place.query >= n / tile * tile) {
            out.fill(0.0);
            return;
        }
        if self.on(M::BatchLast) && place.segment + 1 == self.p.segments.len() {
            out.fill(0.0);
            return;
        }
        if let Some(spoiled) = row.spoiled {
            out.fill(spoiled);
            return;
        }
        let terms: Vec<&Term> = row.terms.iter().filter(|t| t.taken || self.leaks(M::NanValue, t)).collect();
        for (c, x) in out.iter_mut().enumerate() {
            let sum = self.sum(terms.len(), |at| {
                let t = terms[at];
                let value = t.token.map_or(0.0, |token| self.v[(token * self.p.heads[1] + t.value_head) * dv + c]);
                // A value that is not finite counts where its key is visible, also with a weight that underflows.
                t.shown * t.factor[0] * value
            });
            *x = self.rounded(self.run.precision.store(sum), [4, 5]);
        }
    }
}
