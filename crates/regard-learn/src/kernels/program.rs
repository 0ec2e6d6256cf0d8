//! The reference program: attention and its gradients row by row in f64, with a switch at every place where kernels go wrong.
//!
//! Without switches it is the oracle. It shares no code with the library.

use super::catalogue::{Mistake as M, Switches};
use super::problem::{Memory, Problem, Results};
use std::borrow::Cow;

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
    q: Cow<'a, [f64]>,
    k: Cow<'a, [f64]>,
    v: Cow<'a, [f64]>,
}

/// What the program returns for a problem.
pub fn evaluate(problem: &Problem, run: Run<'_>) -> Results {
    if problem.merge.is_some() {
        return merge(problem, run);
    }
    let equal = problem.segments.windows(2).all(|pair| pair[0].n == pair[1].n && pair[0].m == pair[1].m);
    if let Some(form) = run.switches.form(M::HeadsViewed).filter(|_| !problem.packed && equal) {
        return viewed(problem, run, form);
    }
    let [q, k, v] = memory(problem, run);
    Program { p: problem, run, q, k, v }.run()
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
    let mut results = Program { p: &p, run, q, k, v }.run();
    for (at, sizes) in [(0, queries), (2, queries), (3, keys), (4, keys)] {
        if let Some(data) = results.arrays[at].take() {
            let moved = if at == 0 { form != 1 } else { form != 2 };
            results.arrays[at] = Some(if moved { reordered(problem, &data, sizes, true) } else { data });
        }
    }
    results
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

    fn sum(&self, count: usize, term: impl Fn(usize) -> f64) -> f64 {
        let mut total = 0.0;
        for at in 0..count {
            let at = if self.run.backwards { count - 1 - at } else { at };
            total = self.round(total + self.round(term(at)));
        }
        total
    }

    /// The scale on q.k, and the factor on the weights.
    fn scale(&self, place: Place) -> [f64; 2] {
        let [d, dv] = self.p.dims.map(|d| d as f64);
        let segment = self.p.segments[place.segment];
        let root = |x: f64| 1.0 / x.sqrt();
        let usual = match () {
            () if self.on(M::ScaleValueDim) => root(dv),
            () if self.on(M::ScaleModelDim) => root(d * self.p.heads[0] as f64),
            () if self.on(M::ScaleWidth) => 1.0 / d,
            () => match (self.form(M::ScalePadded), self.form(M::ScaleFixed), self.form(M::ScaleLength)) {
                (Some(to), _, _) => root(self.p.dims[0].next_multiple_of(to) as f64),
                (_, Some(fixed), _) => root(fixed as f64),
                (_, _, Some(0)) => root(segment.n as f64),
                (_, _, Some(_)) => root(segment.m as f64),
                _ => root(d),
            },
        };
        let scale = self.p.scale.unwrap_or(usual);
        match () {
            () if self.on(M::ScaleMissing) => [1.0, 1.0],
            () if self.on(M::ScaleInverted) => [1.0 / scale, 1.0],
            () if self.on(M::ScaleIgnored) => [root(d), 1.0],
            () if self.on(M::ScaleLost) && (self.p.mask.is_some() || self.p.bias.is_some()) => [root(d), 1.0],
            () if self.on(M::ScaleOnTop) && self.p.scale.is_some() => [scale * root(d), 1.0],
            () if self.on(M::ScaleTwice) => [scale * scale, 1.0],
            () if self.on(M::ScaleRoot) => [scale.abs().sqrt().copysign(scale), 1.0],
            () if self.on(M::ScaleSign) => [scale.abs(), 1.0],
            () if self.on(M::ScaleNegative) && scale < 0.0 => [f64::NAN, 1.0],
            () if self.on(M::ScaleAfter) => [1.0, scale],
            () => [scale, 1.0],
        }
    }

    fn key_head(&self, head: usize) -> usize {
        let [heads, kv] = self.p.heads;
        match () {
            () if self.on(M::GqaModulo) => head % kv,
            () if self.on(M::GqaFirst) => 0,
            () if self.on(M::GqaByHeads) => (head / kv).min(kv - 1),
            () => head / (heads / kv),
        }
    }

    /// First key row, number of keys, number of valid keys, position of query 0 for windows and biases, and for the causal mask.
    fn keys(&self, place: Place) -> (i64, usize, usize, [i64; 2]) {
        let (start, m, used, first) =
            self.keys_aligned(place, self.form(M::CausalTopLeft) == Some(0), self.form(M::CausalBottomRight) == Some(0));
        let (_, _, _, causal) = self.keys_aligned(place, self.on(M::CausalTopLeft), self.on(M::CausalBottomRight));
        (start, m, used, [first, causal])
    }

    fn keys_aligned(&self, place: Place, top_left: bool, bottom_right: bool) -> (i64, usize, usize, i64) {
        let p = self.p;
        let s = p.segments[place.segment];
        let (mut start, mut m) = (s.k0 as i64, s.m);
        let total = p.tokens()[1];
        if p.packed {
            match () {
                () if self.on(M::PackedEndShort) => m = m.saturating_sub(1),
                () if self.on(M::PackedEndLong) => m = (m + 1).min(total - s.k0),
                () if self.on(M::PackedStartLate) => (start, m) = (start + i64::from(m > 0), m.saturating_sub(1)),
                () if self.on(M::PackedStartEarly) && s.k0 > 0 => (start, m) = (start - 1, m + 1),
                () if self.on(M::PackedIgnored) => (start, m) = (0, total),
                () if self.on(M::PackedQueryCu) => (start, m) = (s.q0 as i64, s.n.min(total.saturating_sub(s.q0))),
                () => {}
            }
        }
        if self.on(M::BatchFirst) && !p.packed {
            start = p.segments[0].k0 as i64;
        }
        let length = p.lengths.as_ref().map(|all| if self.on(M::LengthsFirst) { all[0] } else { all[place.segment] });
        let used = match length {
            None => m,
            Some(_) if self.on(M::LengthsIgnored) => m,
            Some(length) if self.on(M::LengthsInclusive) => (length + 1).min(m),
            Some(length) if self.on(M::LengthsShort) => length.saturating_sub(1),
            Some(length) => length,
        };
        let ends_right = match () {
            () if top_left => false,
            () if bottom_right => true,
            () => p.align == super::problem::Align::BottomRight,
        };
        let of = |name: fn(&super::problem::Segment) -> usize| p.segments.iter().map(name).max().unwrap_or(0) as i64;
        let first = match p.offset {
            Some(_) if self.on(M::OffsetIgnored) => 0,
            Some(offset) => offset as i64,
            None if !ends_right => 0,
            None if p.lengths.is_some() && self.on(M::OffsetIgnored) => 0,
            None if p.lengths.is_some() && self.on(M::OffsetAllocated) => m as i64 - s.n as i64,
            None if p.packed && self.on(M::PackedMaxOffset) => of(|s| s.m) - of(|s| s.n),
            None if p.packed && self.on(M::PackedIgnored) => total as i64 - p.tokens()[0] as i64 + s.q0 as i64,
            // Positions of the lengths that are right.
            None if self.rightly_placed() => p.used(place.segment) as i64 - s.n as i64,
            None => used as i64 - s.n as i64,
        };
        let first = if p.packed && !ends_right && self.on(M::PackedIgnored) { s.q0 as i64 } else { first };
        let moved = match () {
            () if p.offset.is_none() && p.lengths.is_none() => 0,
            () if self.on(M::OffsetMore) => 1,
            () if self.on(M::OffsetLess) => -1,
            () => 0,
        };
        (start, m, used, first + moved)
    }

    /// Whether a mistake in the number of keys leaves the positions of queries alone.
    fn rightly_placed(&self) -> bool {
        [M::LengthsIgnored, M::LengthsInclusive, M::LengthsShort, M::PackedEndShort, M::PackedEndLong]
            .iter()
            .any(|mistake| self.form(*mistake) == Some(1))
    }

    /// Whether the window and the causal mask show a key to a query.
    fn near(&self, positions: [i64; 2], query: usize, key: i64) -> bool {
        let p = self.p;
        let distance = positions[1] - key;
        let causal = p.causal && !(p.mask.is_some() && self.on(M::CausalLostWithMask));
        let in_order = match () {
            () if !causal || self.on(M::CausalIgnored) => true,
            () if self.on(M::CausalExclusive) => distance > 0,
            () if self.on(M::CausalAhead) => distance >= -1,
            () if self.on(M::CausalReversed) => distance <= 0,
            () => match self.form(M::CausalTiles) {
                Some(tile) => key / tile as i64 <= positions[1].div_euclid(tile as i64),
                None => distance >= 0,
            },
        };
        let Some([mut left, mut right]) = p.window else { return in_order };
        if self.on(M::WindowIgnored) || (!p.causal && self.on(M::WindowLostAlone)) || (p.causal && self.on(M::WindowLostCausal)) {
            return in_order;
        }
        if self.on(M::WindowSwapped) {
            (left, right) = (right, left);
        }
        if self.on(M::WindowLeftIgnored) {
            left = None;
        }
        if self.on(M::WindowRightIgnored) {
            right = None;
        }
        if self.on(M::WindowHalf) {
            (left, right) = (left.map(|size| size / 2), right.map(|size| size / 2));
        }
        let short = |side: M| i64::from(self.on(side) || self.on(M::WindowBothShort));
        let long = |side: M| i64::from(self.on(side) || self.on(M::WindowBothLong));
        let by = [long(M::WindowLeftLong) - short(M::WindowLeftShort), long(M::WindowRightLong) - short(M::WindowRightShort)];
        let distance = if self.on(M::WindowTopLeft) { query as i64 - key } else { positions[0] - key };
        in_order && left.is_none_or(|size| distance <= size as i64 + by[0]) && right.is_none_or(|size| -distance <= size as i64 + by[1])
    }

    /// Element of a mask or bias, or 0 outside of it.
    fn plane(&self, plane: &super::problem::Plane, place: Place, key: usize, transposed: bool) -> f64 {
        let mut at = [place.segment, place.head, place.query, key];
        if self.on(M::PlaneFirstBatch) {
            at[0] = 0;
        }
        if self.on(M::PlaneHeadsMixed) {
            at[0] = (place.segment * self.p.heads[0] + place.head) % self.p.segments.len();
        }
        if let Some(tile) = self.form(M::PlaneFirstTile) {
            at[3] %= tile;
        }
        if self.on(M::PlaneFirstHead) {
            at[1] = 0;
        }
        if self.on(M::PlaneFirstRow) {
            at[2] = 0;
        }
        if transposed {
            // The same memory, read with rows and columns exchanged.
            let [_, _, rows, cols] = plane.shape;
            if rows > 1 && cols > 1 {
                let flat = at[3] * rows + at[2];
                (at[2], at[3]) = (flat / cols % rows, flat % cols);
                if rows == cols {
                    (at[2], at[3]) = (key.min(rows - 1), place.query);
                }
            }
        }
        if key >= plane.shape[3].max(1) && plane.shape[3] > 1 { 0.0 } else { plane.at(at) }
    }

    /// The bias and ALiBi of a pair, and the derivative by the bias.
    fn added(&self, place: Place, position: i64, key: usize, scale: f64) -> (f64, f64) {
        let p = self.p;
        let (mut total, mut beta) = (0.0, 0.0);
        if let Some(bias) = &p.bias
            && !self.on(M::BiasIgnored)
            && !self.on(M::BiasAsFlags)
        {
            beta = match () {
                () if self.on(M::BiasBeforeScale) => scale,
                () if self.on(M::BiasSign) => -1.0,
                () if self.on(M::BiasTwice) => 2.0,
                () if self.on(M::BiasBase2) => std::f64::consts::LN_2,
                () => 1.0,
            };
            total += self.plane(bias, place, key, false) * beta;
        }
        if let Some(slopes) = &p.alibi
            && !self.on(M::AlibiIgnored)
        {
            let head = match () {
                () if self.on(M::AlibiFirst) => 0,
                () if self.on(M::AlibiSlopes) => self.key_head(place.head),
                () => place.head,
            };
            let from = if self.on(M::AlibiTopLeft) { place.query as i64 } else { position };
            let sign = if self.on(M::AlibiSign) { 1.0 } else { -1.0 };
            let factor = if self.on(M::AlibiScaled) { scale } else { 1.0 };
            let distance = from - key as i64;
            total += sign * slopes[head] * if self.on(M::AlibiSigned) { distance } else { distance.abs() } as f64 * factor;
        }
        if let (Some(mask), true) = (&p.mask, self.on(M::MaskAdded)) {
            total += self.plane(mask, place, key, false);
        }
        (total, beta)
    }

    /// Score of q.k with its derivatives: the scale, the softcap, what is added.
    fn score(&self, raw: f64, scale: f64, added: (f64, f64)) -> (f64, f64, f64) {
        let (more, beta) = added;
        let scaled = self.round(raw * scale);
        let Some(cap) = self.p.softcap.filter(|_| !self.on(M::SoftcapMissing)) else { return (self.round(scaled + more), scale, beta) };
        let cap = self.form(M::SoftcapFixed).map_or(cap, |fixed| fixed as f64);
        let slope_of = |t: f64| if self.on(M::SoftcapGradient) { 1.0 } else { 1.0 - t * t };
        match () {
            () if self.on(M::SoftcapBeforeScale) => {
                let t = (raw / cap).tanh();
                (self.round(cap * t * scale + more), scale * slope_of(t), beta)
            }
            () if self.on(M::SoftcapAfterBias) || self.form(M::SoftcapAfterMask).is_some_and(|form| form >= 2) => {
                let t = ((scaled + more) / cap).tanh();
                (self.round(cap * t), scale * slope_of(t), beta * slope_of(t))
            }
            () if self.on(M::SoftcapNotMultiplied) => {
                let t = (scaled / cap).tanh();
                (self.round(t + more), scale * slope_of(t) / cap, beta)
            }
            () if self.on(M::SoftcapNotDivided) => {
                let t = scaled.tanh();
                (self.round(cap * t + more), scale * slope_of(t) * cap, beta)
            }
            () if self.on(M::SoftcapClamp) => {
                let inside = if scaled.abs() <= cap { 1.0 } else { 0.0 };
                (self.round(scaled.clamp(-cap, cap) + more), scale * inside, beta)
            }
            () => {
                let t = (scaled / cap).tanh();
                (self.round(cap * t + more), scale * slope_of(t), beta)
            }
        }
    }

    /// Row of k and v, and head, of a key that may lie past the end.
    fn token(&self, place: Place, start: i64, m: usize, key: usize) -> (Option<usize>, usize) {
        let head = self.key_head(place.head);
        let total = self.p.tokens()[1];
        if key < m {
            let token = start + key as i64;
            return ((0..total as i64).contains(&token).then_some(token as usize), head);
        }
        if self.on(M::TailZeros) {
            return (None, head);
        }
        // Past the end: the next sequence, or the next head where heads are outside of rows.
        if self.p.packed || self.p.seq_major {
            let token = start as usize + key;
            return ((token < total).then_some(token), head);
        }
        let flat = (place.segment * self.p.heads[1] + head) * m + key;
        let (segment, head, row) = (flat / m / self.p.heads[1], flat / m % self.p.heads[1], flat % m);
        (self.p.segments.get(segment).map(|s| s.k0 + row), head)
    }

    fn raw(&self, place: Place, token: Option<usize>, head: usize, key: usize) -> f64 {
        let d = self.p.dims[0];
        let q_at = ((self.p.segments[place.segment].q0 + place.query) * self.p.heads[0] + place.head) * d;
        let Some(token) = token else { return 0.0 };
        let k_at = (token * self.p.heads[1] + head) * d;
        let dot = self.sum(d, |c| self.q[q_at + c] * self.k[k_at + c]);
        let Some(scales) = &self.p.k_scale else { return dot };
        let first = token.saturating_sub(key);
        let from = match (self.form(M::KScaleBlock), self.form(M::KScaleFirst)) {
            (Some(block), _) => first + key / block,
            (_, Some(block)) => first + key - key % block,
            _ => token,
        };
        let factor = if self.on(M::KScaleIgnored) { 1.0 } else { scales.get(from * self.p.heads[1] + head).copied().unwrap_or(0.0) };
        self.round(dot * factor)
    }

    fn row(&self, place: Place) -> Row {
        let p = self.p;
        let (start, m, used, first) = self.keys(place);
        let [scale, after] = self.scale(place);
        let positions = first.map(|first| first + place.query as i64);
        let position = positions[0];
        let tail = self.form(M::TailZeros).or(self.form(M::TailNext));
        let span = tail.map_or(m, |tile| m.next_multiple_of(tile));
        let shown = self.form(M::TailDropped).map_or(m, |tile| m / tile * tile);
        let limit = self.form(M::KeysLimit).unwrap_or(usize::MAX);
        let mut terms = Vec::with_capacity(span);
        for key in 0..span {
            let (token, head) = self.token(place, start, m, key);
            let raw = self.raw(place, token, head, key);
            let (mut score, mut slope, mut beta) = self.score(raw, scale, self.added(place, position, key, scale));
            let by_length = key >= used && key < m;
            let near = self.near(positions, place.query, key as i64);
            let mask = p.mask.as_ref().filter(|_| key < m && !(p.causal && self.on(M::MaskLostWithCausal)));
            let by_mask = mask.is_some_and(|mask| {
                let visible = self.plane(mask, place, key, self.on(M::MaskTransposed)) != 0.0;
                (if self.on(M::MaskPolarity) { visible } else { !visible }) && !self.on(M::MaskIgnored) && !self.on(M::MaskAdded)
            });
            let by_flags = p.bias.as_ref().is_some_and(|bias| match self.form(M::BiasAsFlags) {
                Some(0) => self.plane(bias, place, key, false) == 0.0,
                Some(_) => self.plane(bias, place, key, false) != 0.0,
                None => false,
            });
            // Inside of tanh, -inf is the softcap.
            let by_bias = p
                .bias
                .as_ref()
                .is_some_and(|bias| !bias.data.is_empty() && key < m && self.plane(bias, place, key, false) == f64::NEG_INFINITY)
                && !self.on(M::BiasIgnored)
                && !self.on(M::BiasAsFlags)
                && !self.on(M::BiasSign);
            let hidden = by_length || !near || by_mask || by_flags || by_bias;
            let mut factor = [after, after];
            let mut taken = !hidden && key < limit && (key < shown || key >= m);
            if by_mask && near && !by_length && self.on(M::MaskAfter) {
                (taken, factor) = (true, [0.0, 0.0]);
            }
            if by_mask && near && !by_length && self.on(M::MaskZero) {
                (taken, score, slope, beta) = (true, 0.0, 0.0, 0.0);
            }
            if let (Some(cap), Some(form), true) = (p.softcap, self.form(M::SoftcapAfterMask), hidden)
                && (form % 2 == 0 || by_mask || by_bias)
                && (near && !by_length || form % 2 == 0)
            {
                (taken, score, slope, beta) = (true, -cap, 0.0, 0.0);
            }
            if let (Some(form), true) = (self.form(M::HiddenFinite), hidden) {
                let low = match form / 10 {
                    1_000 => -1e4,
                    100_000_000 => -1e9,
                    _ => f64::from(f32::MIN),
                };
                let added = form % 10 == 9 && !by_bias;
                taken = true;
                if added {
                    score = self.round(score + low).max(f64::from(f32::MIN));
                } else {
                    (score, slope, beta) = (low, 0.0, 0.0);
                }
            }
            let by_mask = by_mask || by_flags || by_bias;
            terms.push(Term {
                token,
                key,
                head,
                raw,
                score,
                slope,
                beta,
                taken,
                hidden,
                by_mask,
                factor,
                weight: 0.0,
                shown: 0.0,
                delta: None,
            });
        }
        self.softmax(place, terms, scale)
    }

    /// Whether a NaN of a hidden key leaks: everywhere, through masks only, or through positions only.
    fn leaks(&self, mistake: M, term: &Term) -> bool {
        term.hidden && self.form(mistake).is_some_and(|form| form == 0 || (form == 1) == term.by_mask)
    }

    fn power(&self, x: f64) -> f64 {
        let x = match () {
            () if self.on(M::Base2) => x * std::f64::consts::LN_2,
            () if self.on(M::BaseTwice) => x * std::f64::consts::LOG2_E,
            () => x,
        };
        self.round(self.round(x).exp())
    }

    fn softmax(&self, place: Place, mut terms: Vec<Term>, scale: f64) -> Row {
        let p = self.p;
        if self.form(M::NanSwallowed) == Some(1) {
            terms.iter_mut().filter(|t| t.score.is_nan()).for_each(|t| t.taken = false);
        }
        let sink = p.sinks.as_ref().filter(|_| !self.on(M::SinkIgnored)).map(|all| {
            let sink = all[if self.on(M::SinkFirst) { 0 } else { place.head }];
            if self.on(M::SinkScaled) { sink * scale } else { sink }
        });
        let any = terms.iter().any(|t| t.taken);
        let leaks = terms.iter().any(|t| self.leaks(M::NanKey, t) && t.raw.is_nan());
        let visible_nan = terms.iter().any(|t| t.taken && t.score.is_nan());
        let all_nan = terms.iter().all(|t| !t.taken || t.score.is_nan());
        if visible_nan && (self.form(M::NanSwallowed) == Some(0) || (all_nan && self.form(M::NanSwallowed) == Some(2))) {
            terms.iter_mut().for_each(|t| t.taken = false);
            return Row { terms, lse: f64::NEG_INFINITY, spoiled: None };
        }
        let first_hidden = self.form(M::FirstTileEmpty).is_some_and(|tile| any && !terms.iter().take(tile).any(|t| t.taken));
        if leaks || visible_nan || first_hidden {
            return Row { terms, lse: f64::NAN, spoiled: Some(f64::NAN) };
        }
        if !any && sink.is_none() {
            let spoiled = self.on(M::EmptyNan).then_some(f64::NAN);
            return Row { terms, lse: f64::NEG_INFINITY, spoiled };
        }
        let largest = terms.iter().filter(|t| t.taken).fold(f64::NEG_INFINITY, |top, t| top.max(t.score));
        let outside = self.form(M::SinkNotInMax);
        let mut max = match sink {
            Some(sink) if outside.is_none() || !any => largest.max(sink),
            _ => largest,
        };
        if self.on(M::MaxFromZero) {
            max = max.max(0.0);
        }
        let shift = if self.on(M::NoMax) { 0.0 } else { max };
        for term in terms.iter_mut().filter(|t| t.taken) {
            term.weight = self.power(self.round(term.score - shift));
        }
        let mut sum = self.sum(terms.len(), |at| terms[at].weight);
        if let Some(sink) = sink {
            sum = self.round(sum + if outside.is_some_and(|form| form != 1) { self.power(sink) } else { self.power(sink - shift) });
        }
        let plain_sum = sum;
        self.running(&mut terms, &mut sum, shift);
        let empty_sum = plain_sum == 0.0 && self.form(M::MaxFromZero) == Some(1);
        for term in &mut terms {
            let weight = if empty_sum { 0.0 } else { self.round(term.weight / plain_sum) };
            let shown = if empty_sum { 0.0 } else { self.round(term.shown / sum) };
            let weight = if self.on(M::SplitsPlain) { shown } else { weight };
            (term.weight, term.shown) = (self.run.precision.store(weight), self.run.precision.store(shown));
            if !term.taken {
                (term.weight, term.shown) = (0.0, 0.0);
            }
        }
        let sink_part = if self.on(M::LseSinkless) { sink.map_or(0.0, |sink| self.power(sink - shift)) } else { 0.0 };
        let lse = match () {
            () if self.on(M::LseNoMax) => (plain_sum - sink_part).ln(),
            () if self.on(M::LseMaxOnly) => shift,
            () if self.on(M::LseBase2) => (shift + plain_sum.ln()) * std::f64::consts::LOG2_E,
            () if self.on(M::LseUnscaled) => (shift + plain_sum.ln()) / scale,
            () => self.round(shift + self.round((plain_sum - sink_part).ln())),
        };
        Row { terms, lse, spoiled: None }
    }

    /// All rows of a segment with the softmax over queries or over heads, and what autograd subtracts there.
    fn other_axis(&self, segment: usize) -> Option<Vec<Row>> {
        let (queries, over_heads) = (self.form(M::OverQueries), self.on(M::OverHeads));
        if queries.is_none() && !over_heads {
            return None;
        }
        let p = self.p;
        let (heads, n, dv) = (p.heads[0], p.segments[segment].n, p.dims[1]);
        let mut rows: Vec<Row> = (0..heads * n).map(|at| self.row(Place { segment, head: at / n, query: at % n })).collect();
        let keys = rows.first().map_or(0, |row| row.terms.len());
        // Rows that share a sum.
        let groups: Vec<Vec<usize>> = if over_heads {
            (0..n).map(|query| (0..heads).map(|head| head * n + query).collect()).collect()
        } else {
            (0..heads).map(|head| (head * n..(head + 1) * n).collect()).collect()
        };
        for group in &groups {
            for key in 0..keys {
                let score = |rows: &[Row], at: usize| rows[at].terms.get(key).filter(|t| t.taken).map_or(f64::NEG_INFINITY, |t| t.score);
                let top = group.iter().fold(f64::NEG_INFINITY, |top, &at| top.max(score(&rows, at)));
                let power = |x: f64| if top == f64::NEG_INFINITY { 0.0 } else { self.power(x - top) };
                let total: f64 = group.iter().map(|&at| power(score(&rows, at))).sum();
                let blind = total == 0.0 && (queries == Some(1) || over_heads);
                let mut delta = 0.0;
                for &at in group {
                    let weight = if total == 0.0 { 0.0 } else { power(score(&rows, at)) / total };
                    let Some(term) = rows[at].terms.get_mut(key) else { continue };
                    (term.weight, term.shown) = (weight, weight);
                    if let (Some(d_out), Some(token)) = (&p.d_out, term.token) {
                        let row = ((p.segments[segment].q0 + at % n) * heads + at / n) * dv;
                        let value = (token * p.heads[1] + term.head) * dv;
                        delta += weight * (0..dv).map(|c| d_out[row + c] * self.v[value + c]).sum::<f64>();
                    }
                }
                for &at in group {
                    if let Some(term) = rows[at].terms.get_mut(key) {
                        term.delta = Some(delta);
                    }
                    if blind {
                        rows[at].spoiled = Some(f64::NAN);
                    }
                }
            }
        }
        Some(rows)
    }

    /// Weights of the output where older tiles are not rescaled.
    fn running(&self, terms: &mut [Term], sum: &mut f64, last: f64) {
        if self.on(M::SplitsPlain) {
            return self.splits(terms, sum);
        }
        let tile = self.form(M::NoRescale).or(self.form(M::SumNoRescale)).unwrap_or(usize::MAX);
        let (mut max, mut wrong) = (f64::NEG_INFINITY, 0.0);
        if tile == usize::MAX {
            terms.iter_mut().for_each(|t| t.shown = t.weight);
            return;
        }
        for tile in terms.chunks_mut(tile) {
            max = tile.iter().filter(|t| t.taken).fold(max, |top, t| top.max(t.score));
            for term in tile {
                let then = if term.taken { self.power(term.score - max) } else { 0.0 };
                wrong += then;
                term.shown = if self.on(M::NoRescale) { then } else { term.weight };
            }
        }
        let _ = last;
        if self.on(M::SumNoRescale) {
            *sum = wrong;
        }
    }

    /// The part of the keys that a key belongs to, where parts have a softmax each.
    fn part(&self, key: usize, keys: usize) -> usize {
        match self.form(M::SplitsPlain) {
            // A number of parts, their size rounded up or down.
            Some(form @ 1000..1100) => key / keys.div_ceil(form - 1000).max(1),
            Some(form @ 1100..1200) => (key / (keys / (form - 1100)).max(1)).min(form - 1101),
            Some(tile) => key / tile,
            None => 0,
        }
    }

    fn parts(&self, keys: usize) -> usize {
        if self.on(M::SplitsPlain) && keys > 0 { self.part(keys - 1, keys) + 1 } else { 1 }
    }

    /// Weights where the parts of the keys are averaged; `sum` divides what is shown.
    fn splits(&self, terms: &mut [Term], sum: &mut f64) {
        let keys = terms.len();
        let parts = self.parts(keys);
        let mut totals = vec![0.0; parts];
        terms.iter().filter(|t| t.taken).for_each(|t| totals[self.part(t.key, keys)] += t.weight);
        for term in terms.iter_mut() {
            let total = totals[self.part(term.key, keys)];
            term.shown = if term.taken && total > 0.0 { term.weight / total / parts as f64 } else { 0.0 };
        }
        *sum = 1.0;
    }

    /// Applies dropout to the factors of a row.
    fn drop_out(&self, place: Place, row: &mut Row) {
        let p = self.p;
        let [Some(kept), kept_back] = &p.keep else { return };
        let (n, m) = (p.segments[0].n, p.segments[0].m);
        let at = |key: usize| ((place.segment * p.heads[0] + place.head) * n + place.query) * m + key;
        let total: f64 = row.terms.iter().filter(|t| t.key < m && kept[at(t.key)]).map(|t| t.weight).sum();
        let factor = match () {
            () if self.on(M::DropoutNotScaled) && !kept.iter().all(|kept| *kept) => 1.0,
            () if self.on(M::DropoutIgnored) && kept.iter().all(|kept| *kept) => 1.0,
            () if self.on(M::DropoutByP) => 1.0 / p.dropout,
            () if self.on(M::DropoutRenormalised) => 1.0 / total,
            () => 1.0 / (1.0 - p.dropout),
        };
        for term in row.terms.iter_mut().filter(|t| t.key < m) {
            let forward = if kept[at(term.key)] { factor } else { 0.0 };
            let backward = match kept_back {
                Some(other) if self.on(M::DropoutBackward) => {
                    if other[at(term.key)] {
                        factor
                    } else {
                        0.0
                    }
                }
                _ if self.on(M::DropoutBackwardNone) => 1.0,
                _ if self.on(M::DropoutScaleBackward) => f64::from(u8::from(kept[at(term.key)])),
                _ => forward,
            };
            term.factor = [term.factor[0] * forward, term.factor[1] * backward];
        }
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
        let mut arrays = [Some(out), p.lse.then_some(lse), None, None, None, None];
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
        if let Some(spoiled) = row.spoiled {
            out.fill(spoiled);
            return;
        }
        let terms: Vec<&Term> = row.terms.iter().filter(|t| t.taken || self.leaks(M::NanValue, t)).collect();
        for (c, x) in out.iter_mut().enumerate() {
            *x = self.run.precision.store(self.sum(terms.len(), |at| {
                let t = terms[at];
                let value = t.token.map_or(0.0, |token| self.v[(token * self.p.heads[1] + t.head) * dv + c]);
                // A value that is not finite counts where its key is visible, also with a weight that underflows.
                t.shown * t.factor[0] * value
            }));
        }
    }

    /// Adds what a row gives to the gradients.
    fn backward(&self, place: Place, row: &mut Row, at: usize, g: &mut Gradients<'_>) {
        let p = self.p;
        let [d, dv] = p.dims;
        let kv = p.heads[1];
        if let Some(spoiled) = row.spoiled {
            g.dq[at * d..(at + 1) * d].fill(spoiled);
            return;
        }
        if self.on(M::BackwardUnmasked) {
            for term in row.terms.iter_mut().filter(|t| t.hidden && t.score.is_finite() && row.lse.is_finite()) {
                (term.taken, term.weight) = (true, self.power(term.score - row.lse));
            }
        }
        let d_out = &g.d_out[at * dv..(at + 1) * dv];
        let terms: Vec<&Term> = row.terms.iter().filter(|t| t.taken).collect();
        let value = |t: &Term, c: usize| t.token.map_or(0.0, |token| self.v[(token * kv + t.head) * dv + c]);
        let d_weight: Vec<f64> = terms.iter().map(|t| t.factor[1] * self.sum(dv, |c| d_out[c] * value(t, c))).collect();
        let delta = self.sum(terms.len(), |i| terms[i].weight * d_weight[i]);
        let base = match () {
            () if self.on(M::Base2) => std::f64::consts::LN_2,
            () if self.on(M::BaseTwice) => std::f64::consts::LOG2_E,
            () => 1.0,
        };
        let delta_of = |i: usize| terms[i].delta.unwrap_or(delta);
        let parts = self.parts(row.terms.len());
        let d_score = |i: usize| match () {
            () if parts > 1 => {
                let part = |t: &Term| self.part(t.key, row.terms.len());
                let own = (0..terms.len()).filter(|&j| part(terms[j]) == part(terms[i]));
                terms[i].weight * (d_weight[i] - parts as f64 * own.map(|j| terms[j].weight * d_weight[j]).sum::<f64>())
            }
            () if self.on(M::DeltaMissing) => terms[i].weight * d_weight[i],
            () if self.on(M::DeltaAdded) => terms[i].weight * (d_weight[i] + delta),
            () if self.on(M::DeltaOutside) => terms[i].weight * d_weight[i] - delta,
            () if self.on(M::DsIsDp) => d_weight[i],
            () => terms[i].weight * self.round(d_weight[i] - delta_of(i)),
        };
        // Without the sink in the maximum the weights depend on it, and automatic differentiation goes through it.
        let through_max = match self.form(M::SinkNotInMax) {
            Some(2) => delta * (1.0 - terms.iter().map(|t| t.weight).sum::<f64>()),
            _ => 0.0,
        };
        let top = terms.iter().enumerate().max_by(|a, b| a.1.score.total_cmp(&b.1.score)).map(|(at, _)| at);
        let [scale, _] = self.scale(place);
        let group = p.heads[0] / kv;
        let skipped = match self.form(M::GqaGradient) {
            Some(0) => !place.head.is_multiple_of(group),
            Some(1) => place.head % group != group - 1,
            _ => false,
        };
        for (i, term) in terms.iter().enumerate() {
            let Some(token) = term.token else { continue };
            let ds = self.round((d_score(i) - if Some(i) == top { through_max } else { 0.0 }) * base);
            let k_at = (token * kv + term.head) * d;
            let row_scale = p.k_scale.as_ref().map_or(1.0, |all| all[token * kv + term.head]);
            let slope = term.slope * row_scale;
            let unscaled = |mistake: M| if self.on(mistake) { slope / scale } else { slope };
            let base_factor = |mistake: M| match self.form(mistake) {
                Some(0) => std::f64::consts::LOG2_E,
                Some(_) => std::f64::consts::LN_2,
                None => 1.0,
            };
            let [q_slope, k_slope] = [unscaled(M::DqUnscaled) * base_factor(M::DqBase), unscaled(M::DkUnscaled) * base_factor(M::DkBase)];
            for c in 0..d {
                let dq = &mut g.dq[at * d + c];
                *dq = self.round(*dq + self.round(ds * q_slope * self.k[k_at + c]));
                if !skipped {
                    let dk = &mut g.dk[k_at + c];
                    *dk = self.round(*dk + self.round(ds * k_slope * self.q[at * d + c]));
                }
            }
            if !skipped {
                for (c, x) in d_out.iter().enumerate() {
                    let dv = &mut g.dv[(token * kv + term.head) * dv + c];
                    *dv = self.round(*dv + self.round(term.weight * term.factor[1] * x));
                }
            }
            if let (Some(bias), Some(d_bias), Some(counts)) = (&p.bias, &mut g.d_bias, &mut g.terms)
                && term.key < p.segments[place.segment].m
            {
                let to = bias.index([place.segment, place.head, place.query, term.key]);
                match self.form(M::BiasGradient) {
                    Some(0) if counts[to] > 0 => {}
                    Some(0 | 1) => d_bias[to] = ds * term.beta,
                    _ => d_bias[to] = self.round(d_bias[to] + ds * term.beta),
                }
                counts[to] += 1;
            }
        }
    }
}

struct Gradients<'a> {
    d_out: &'a [f64],
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
    d_bias: Option<Vec<f64>>,
    /// Terms of each element of the bias gradient.
    terms: Option<Vec<u32>>,
}

/// Two states as one: out = (a e^la + b e^lb) / (e^la + e^lb).
fn merge(p: &Problem, run: Run<'_>) -> Results {
    let Some(parts) = &p.merge else { return Results::default() };
    let (on, round) = (|mistake: M| run.switches.on(mistake), |x: f64| run.precision.round(x));
    let dv = p.dims[1];
    let rows = parts.lse[0].len();
    let (mut out, mut lse) = (vec![0.0; rows * dv], vec![0.0; rows]);
    for (row, total) in lse.iter_mut().enumerate() {
        let l = [parts.lse[0][row], parts.lse[1][row]];
        let max = l[0].max(l[1]);
        let empty = max == f64::NEG_INFINITY;
        let shift = if on(M::MergeNoMax) { 0.0 } else { max };
        let power = |x: f64| round(if on(M::MergeBase2) { round(x).exp2() } else { round(x).exp() });
        let mut w = if empty { [0.0, 0.0] } else { l.map(|x| power(x - shift)) };
        let sum = round(w[0] + w[1]);
        if on(M::MergeSwapped) {
            w.swap(0, 1);
        }
        let mut share = if empty { [0.0, 0.0] } else { w.map(|x| round(x / sum)) };
        match run.switches.form(M::MergePlain) {
            Some(0) => share = [0.5, 0.5],
            Some(1) => share = [1.0, 1.0],
            Some(_) => share = l.map(|x| x / (l[0] + l[1])),
            None => {}
        }
        let spoiled = empty && on(M::MergeEmptyNan);
        *total = match () {
            () if spoiled => f64::NAN,
            () if empty => f64::NEG_INFINITY,
            () if on(M::MergeBase2) => shift + sum.log2(),
            () => round(shift + round(sum.ln())),
        };
        for c in 0..dv {
            let at = row * dv + c;
            // A state of weight 0 does not count, whatever it holds.
            let part = |side: usize| if share[side] == 0.0 { 0.0 } else { share[side] * parts.out[side][at] };
            out[at] = if spoiled { f64::NAN } else { run.precision.store(round(part(0) + part(1))) };
        }
    }
    Results { arrays: [Some(out), p.lse.then_some(lse), None, None, None, None] }
}
