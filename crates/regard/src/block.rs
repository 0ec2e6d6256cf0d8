//! One block of query rows, from the first tile of keys to the finished rows. See [`crate::forward`] for the loops.

use crate::decode;
use crate::element::Element;
use crate::mask::TileCoverage;
use crate::online_softmax::{self, AccLayout, AddSink, Merge, State, Watch};
use crate::product::{Take, product};
use crate::rows::{Rows, copy_out, hand_out};
use crate::score::{KV_TILE, SPAN, Scorer, Stage};
use crate::scratch::Scratch;
use crate::simd::{Lanes, Operation, Real};
use crate::stats::{RowSummary, StatSums, StatsOptions};
use ndarray::{ArrayViewMut2, ArrayViewMut3, Axis};
use std::mem::MaybeUninit;
use std::ops::Range;

/// The state of a block after one span, to be merged elsewhere.
pub(crate) struct SpanState<T> {
    row_max: Vec<T>,
    row_sum: Vec<T>,
    acc: Vec<T>,
    stats: Option<StatSums<T>>,
}

impl<T: Real> SpanState<T> {
    fn new<S: Lanes<T = T>>(layout: &AccLayout, stats: Option<StatSums<T>>) -> Self {
        let lanes = layout.lanes::<S>();
        Self { row_max: vec![T::HIDDEN; lanes], row_sum: vec![T::ZERO; lanes], acc: vec![T::ZERO; layout.acc_len::<S>()], stats }
    }

    fn borrow(&mut self) -> State<'_, T> {
        State { row_max: &mut self.row_max, row_sum: &mut self.row_sum, acc: &mut self.acc, stats: self.stats.take() }
    }
}

/// What became of the rows of a block, where that was asked for; `None` for a row that saw nothing.
pub(crate) type Summaries = Vec<Option<RowSummary>>;

/// Where the softmax denominators of some rows go, `[head, query]`.
pub(crate) enum Ends<'g, T> {
    /// As one number, `row_max + ln(row_sum)`.
    Lse(ArrayViewMut2<'g, T>),
    /// `row_max` and `row_sum`, for a backward pass.
    Apart(ArrayViewMut2<'g, T>, ArrayViewMut2<'g, T>),
}

impl<T: Real> Ends<'_, T> {
    pub(crate) fn split_at(self, axis: Axis, index: usize) -> (Self, Self) {
        match self {
            Self::Lse(lse) => {
                let (a, b) = lse.split_at(axis, index);
                (Self::Lse(a), Self::Lse(b))
            }
            Self::Apart(max, sum) => {
                let ((max_a, max_b), (sum_a, sum_b)) = (max.split_at(axis, index), sum.split_at(axis, index));
                (Self::Apart(max_a, sum_a), Self::Apart(max_b, sum_b))
            }
        }
    }

    fn set(&mut self, at: [usize; 2], row_max: T, row_sum: T) {
        match self {
            Self::Lse(lse) => lse[at] = lse_of(row_max, row_sum),
            Self::Apart(max, sum) => (max[at], sum[at]) = (row_max, row_sum),
        }
    }
}

/// `-inf` for a row that saw nothing.
pub(crate) fn lse_of<T: Real>(row_max: T, row_sum: T) -> T {
    if row_sum == T::ZERO { T::HIDDEN } else { row_max + row_sum.ln() }
}

/// What a pass over a block is to come to.
pub(crate) enum Goal<'g, E: Element> {
    /// All keys, and the results.
    Results(ArrayViewMut3<'g, MaybeUninit<E>>, Ends<'g, E::Real>),
    /// One span of keys, and its state.
    Span(usize),
    /// The states of all spans, and the results.
    Merge(Vec<SpanState<E::Real>>, ArrayViewMut3<'g, MaybeUninit<E>>, Ends<'g, E::Real>),
}

pub(crate) struct Pass<'p, 'a, 'g, E: Element> {
    pub(crate) scorer: &'p Scorer<'a, E>,
    pub(crate) v: Rows<'p, E>,
    pub(crate) stats: Option<StatsOptions>,
    pub(crate) goal: Goal<'g, E>,
}

impl<E: Element> Operation<E::Real> for Pass<'_, '_, '_, E> {
    type Output = (Option<SpanState<E::Real>>, Summaries);

    fn run<S: Lanes<T = E::Real>>(self, simd: S) -> Self::Output {
        let Self { scorer, v, stats, goal } = self;
        let plan = scorer.plan;
        let layout = AccLayout::new::<S>(scorer.block.rows(), plan.dims.value_dim, scorer.few::<S>());
        let (lanes, acc_len) = (layout.lanes::<S>(), layout.acc_len::<S>());
        let sums = || stats.map(|options| StatSums::new(options, &scorer.block, |head| plan.place(scorer.block.batch, head), lanes));
        let keys = scorer.key_range(0..plan.dims.seq_kv);
        let spans = if keys.is_empty() { 0..0 } else { keys.start / SPAN..(keys.end - 1) / SPAN + 1 };
        let lengths = Buffers::lengths::<S, E>(scorer, &v, &layout);
        match goal {
            Goal::Span(span) => {
                if !spans.contains(&span) {
                    return (None, Vec::new());
                }
                let mut owned = SpanState::new::<S>(&layout, sums());
                let mut state = owned.borrow();
                let mut memory = Scratch::take();
                let mut buffers = Buffers::new(memory.slices(lengths));
                scorer.pack_queries(simd, buffers.queries);
                run_span(simd, scorer, &v, &layout, clip(&keys, span), &mut state, &mut buffers);
                let stats = state.stats.take();
                owned.stats = stats;
                (Some(owned), Vec::new())
            }
            Goal::Results(out, ends) => {
                let [l0, l1, l2, l3, l4, l5, l6] = lengths;
                let totals = if spans.len() > 1 { (lanes, acc_len) } else { (0, 0) };
                let lengths = [l0, l1, l2, l3, l4, l5, l6, lanes, lanes, acc_len, totals.0, totals.0, totals.1];
                let mut memory = Scratch::take();
                let [b0, b1, b2, b3, b4, b5, b6, row_max, row_sum, acc, total_max, total_sum, total_acc] = memory.slices(lengths);
                let mut buffers = Buffers::new([b0, b1, b2, b3, b4, b5, b6]);
                scorer.pack_queries(simd, buffers.queries);
                let mut state = State { row_max, row_sum, acc, stats: sums() };
                state.reset();
                let several = spans.len() > 1;
                let mut total =
                    State { row_max: total_max, row_sum: total_sum, acc: total_acc, stats: if several { sums() } else { None } };
                total.reset();
                for span in spans {
                    run_span(simd, scorer, &v, &layout, clip(&keys, span), &mut state, &mut buffers);
                    if several {
                        simd.call(Merge { into: &mut total, layout: &layout, later: &state, factors: buffers.factors });
                        state.reset();
                    }
                }
                let state = if several { &mut total } else { &mut state };
                (None, finish(simd, scorer, &layout, state, &mut buffers, out, ends))
            }
            Goal::Merge(mut states, out, ends) => {
                let mut memory = Scratch::take();
                let mut buffers = Buffers::new(memory.slices(lengths));
                let mut owned = SpanState::new::<S>(&layout, sums());
                let mut total = owned.borrow();
                for state in &mut states {
                    simd.call(Merge { into: &mut total, layout: &layout, later: &state.borrow(), factors: buffers.factors });
                }
                (None, finish(simd, scorer, &layout, &mut total, &mut buffers, out, ends))
            }
        }
    }
}

fn clip(keys: &Range<usize>, span: usize) -> Range<usize> {
    keys.start.max(span * SPAN)..keys.end.min((span + 1) * SPAN)
}

/// Working memory of a block, all of it the size of tiles.
struct Buffers<'b, T> {
    queries: &'b mut [T],
    /// Keys, where they must be copied.
    keys: &'b mut [T],
    /// Values, where they must be copied.
    values: &'b mut [T],
    scores: &'b mut [T],
    /// A bias, laid out like the scores.
    numbers: &'b mut [T],
    /// Two numbers per lane.
    factors: &'b mut [T],
    /// Finished rows, before they are handed out; sums of a tile where rows are few.
    rows: &'b mut [T],
}

impl<'b, T: Real> Buffers<'b, T> {
    fn lengths<S: Lanes<T = T>, E: Element<Real = T>>(scorer: &Scorer<'_, E>, v: &Rows<'_, E>, layout: &AccLayout) -> [usize; 7] {
        let dims = layout.dims;
        let in_place = E::NATIVE && v.has_unit_cols() && !scorer.may_hide();
        [
            scorer.queries_len::<S>(),
            scorer.keys_len(),
            if in_place { 0 } else { KV_TILE * dims },
            KV_TILE * 2 * S::LANES,
            scorer.numbers_len::<S>(),
            2 * layout.lanes::<S>(),
            layout.pitch.map_or(layout.rows * dims, |pitch| layout.rows * pitch),
        ]
    }

    fn new([queries, keys, values, scores, numbers, factors, rows]: [&'b mut [T]; 7]) -> Self {
        Self { queries, keys, values, scores, numbers, factors, rows }
    }
}

/// All tiles of one span.
fn run_span<S: Lanes, E: Element<Real = S::T>>(
    simd: S,
    scorer: &Scorer<'_, E>,
    v: &Rows<'_, E>,
    layout: &AccLayout,
    keys: Range<usize>,
    state: &mut State<'_, S::T>,
    buffers: &mut Buffers<'_, S::T>,
) {
    let Buffers { queries, keys: key_copy, values: copy, scores, numbers, factors, rows } = buffers;
    let mut start = keys.start;
    while start < keys.end {
        let first = start / KV_TILE * KV_TILE;
        let end = keys.end.min(first + KV_TILE);
        if scorer.may_see(start..end) {
            let mut values = ValueTile::new(v, start..end);
            let tile = scorer.key_tile(simd, start, end, key_copy);
            for panel in scorer.panels::<S>() {
                let (needed, coverage) = scorer.needed(&panel, &tile);
                if coverage == TileCoverage::Empty {
                    continue;
                }
                let at = PanelTile { panel, keys: needed, coverage };
                macro_rules! step {
                    ($nr:literal) => {{
                        scorer.scores::<S, $nr>(simd, queries, &at.panel, &tile, &at.keys, coverage, Stage::Bias, numbers, scores);
                        let bad = values.prepare(simd, scorer, &at, copy, scores, $nr * S::LANES);
                        simd.call(Soften::<_, $nr> { at: &at, scores, state, factors });
                        scorer.drop_out(simd, &at.panel, &at.keys, $nr * S::LANES, numbers, scores);
                        add_values::<S, E, $nr>(simd, &at, layout, &values, copy, scores, state, factors, rows, bad);
                    }};
                }
                if at.panel.len() > S::LANES { step!(2) } else { step!(1) }
            }
        }
        start = end;
    }
}

/// A panel of rows and the keys that it takes in.
pub(crate) struct PanelTile {
    pub(crate) panel: Range<usize>,
    pub(crate) keys: Range<usize>,
    pub(crate) coverage: TileCoverage,
}

/// Scores become `p`; maximum, sum and statistics are brought up to date. `factors[..width]` gets alpha.
pub(crate) struct Soften<'k, 's, T, const NR: usize> {
    pub(crate) at: &'k PanelTile,
    pub(crate) scores: &'k mut [T],
    pub(crate) state: &'k mut State<'s, T>,
    pub(crate) factors: &'k mut [T],
}

impl<T: Real, const NR: usize> Operation<T> for Soften<'_, '_, T, NR> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { at, scores, state, factors } = self;
        soften::<S, NR>(simd, at, scores, state, factors);
    }
}

#[inline(always)]
fn soften<S: Lanes, const NR: usize>(simd: S, at: &PanelTile, scores: &mut [S::T], state: &mut State<'_, S::T>, factors: &mut [S::T]) {
    let width = NR * S::LANES;
    let count = at.keys.len();
    let scores = &mut scores[..count * width];
    for n in 0..NR {
        let offset = n * S::LANES;
        let lane = at.panel.start + offset;
        let rows = at.panel.len().saturating_sub(offset).min(S::LANES);
        let (row_max, row_sum) = (&mut state.row_max[lane..lane + S::LANES], &mut state.row_sum[lane..lane + S::LANES]);
        let alpha = &mut factors[offset..offset + S::LANES];
        let zero = simd.splat(S::T::ZERO);
        match &mut state.stats {
            None => {
                // SAFETY: `scores` has `count` rows of `width`, so each holds a vector at `offset`; the row slices are vectors.
                unsafe {
                    let from = scores.as_mut_ptr().add(offset);
                    let update = online_softmax::update(simd, from, width, count, row_max.as_mut_ptr(), row_sum.as_mut_ptr(), &mut ());
                    simd.store(alpha.as_mut_ptr(), update.alpha);
                }
            }
            Some(stats) => {
                stats.note_top_keys(simd, scores, width, offset, lane, rows, &at.keys);
                // SAFETY: as above; the positions are a whole vector too.
                let (update, watch) = unsafe {
                    let positions = simd.load(stats.positions(lane));
                    let mut watch = Watcher {
                        positions: simd.sub(positions, simd.splat(S::T::from_f64(at.keys.start as f64))),
                        squares: zero,
                        entropy: zero,
                        distance: zero,
                    };
                    let from = scores.as_mut_ptr().add(offset);
                    let update = online_softmax::update(simd, from, width, count, row_max.as_mut_ptr(), row_sum.as_mut_ptr(), &mut watch);
                    simd.store(alpha.as_mut_ptr(), update.alpha);
                    (update, watch)
                };
                let sums = [watch.squares, watch.entropy, watch.distance];
                stats.note_tile(simd, &update, sums, scores, width, offset, lane, rows, &at.keys);
            }
        }
    }
}

/// Sums for the statistics, on the way.
struct Watcher<V> {
    /// Of the rows, counted from the first key.
    positions: V,
    squares: V,
    entropy: V,
    distance: V,
}

impl<S: Lanes> Watch<S> for Watcher<S::V> {
    #[inline(always)]
    fn see(&mut self, simd: S, key: usize, x: S::V, p: S::V) {
        self.squares = simd.mul_add(p, p, self.squares);
        // Hidden: p = 0 and x = -inf, which must not meet.
        self.entropy = simd.mul_add(p, simd.max(x, simd.splat(S::T::VERY_NEGATIVE)), self.entropy);
        let away = simd.abs(simd.sub(self.positions, simd.splat(S::T::from_f64(key as f64))));
        self.distance = simd.mul_add(p, away, self.distance);
    }
}

/// The values of a tile of keys, and whether a hidden one could do harm.
struct ValueTile<'v, E: Element> {
    v: Rows<'v, E>,
    keys: Range<usize>,
    /// The copy has been made.
    copied: bool,
    /// All values are finite; `None`: not looked at yet.
    finite: Option<bool>,
}

/// One bit per row for each key of a tile: the key is visible.
type VisibleBits = [u32; KV_TILE];

impl<'v, E: Element> ValueTile<'v, E> {
    fn new(v: &Rows<'v, E>, keys: Range<usize>) -> Self {
        Self { v: *v, keys, copied: false, finite: None }
    }

    /// Copy the values where they cannot be read as they lie. Where some key is hidden from some row, `0 * value` must
    /// not make NaN of an infinite value: such numbers are then left out of the copy, and the rows that do see the key are returned, so
    /// that they get them afterwards.
    fn prepare<S: Lanes<T = E::Real>>(
        &mut self,
        simd: S,
        scorer: &Scorer<'_, E>,
        at: &PanelTile,
        copy: &mut [E::Real],
        scores: &[E::Real],
        width: usize,
    ) -> Option<VisibleBits> {
        let partial = at.coverage != TileCoverage::Full || scorer.may_hide_beside_mask();
        if partial && self.finite.is_none() {
            self.finite = Some(self.v.all_finite(simd, self.keys.clone()));
        }
        let finite = !partial || self.finite == Some(true);
        let in_place = self.v.has_unit_cols() && (E::NATIVE || scorer.few::<S>());
        if !self.copied && (!in_place || !finite) {
            self.v.copy(simd, self.keys.clone(), copy);
            self.copied = true;
            if self.finite == Some(false) {
                copy[..self.keys.len() * self.v.cols()].iter_mut().filter(|x| !x.is_finite()).for_each(|x| *x = E::Real::ZERO);
            }
        }
        if finite {
            return None;
        }
        let mut visible = [0; KV_TILE];
        for (bits, line) in visible.iter_mut().zip(scores.chunks_exact(width)).take(at.keys.len()) {
            *bits = line.iter().enumerate().fold(0, |b, (lane, &s)| b | u32::from(s != E::Real::HIDDEN) << lane);
        }
        Some(visible)
    }
}

/// `acc = acc * alpha + values^T . p`
fn add_values<S: Lanes, E: Element<Real = S::T>, const NR: usize>(
    simd: S,
    at: &PanelTile,
    layout: &AccLayout,
    values: &ValueTile<'_, E>,
    copy: &[S::T],
    weights: &[S::T],
    state: &mut State<'_, S::T>,
    alpha: &[S::T],
    sums: &mut [S::T],
    bad: Option<VisibleBits>,
) {
    let dims = layout.dims;
    let count = at.keys.len();
    let width = NR * S::LANES;
    let weights = &weights[..count * width];
    // A cleaned copy serves only the panels that need it.
    let from_copy = values.copied && (bad.is_some() || !E::NATIVE || !values.v.has_unit_cols());
    let local = at.keys.start - values.keys.start..at.keys.end - values.keys.start;
    let copied = || Rows::from_slice(copy, values.keys.len(), dims);
    match layout.pitch {
        Some(pitch) => {
            let (rows, acc) = (layout.rows, &mut *state.acc);
            if from_copy {
                simd.call(decode::Accumulate { weights, rows, pitch, v: copied(), keys: local, alpha, sums, acc });
            } else {
                simd.call(decode::Accumulate { weights, rows, pitch, v: values.v, keys: at.keys.clone(), alpha, sums, acc });
            }
        }
        None => {
            let acc = &mut state.acc[at.panel.start * dims..][..width * dims];
            let (rows, keys) = match values.v.native() {
                Some(rows) if !from_copy => (rows, at.keys.clone()),
                _ => (copied(), local),
            };
            simd.call(AddValues::<_, NR> { v: rows, keys, weights, pitch: width, alpha, acc });
        }
    }
    if let Some(visible) = bad {
        for (i, key) in at.keys.clone().enumerate() {
            for dim in 0..dims {
                let x = values.v.get(key, dim);
                if x.is_finite() {
                    continue;
                }
                for lane in (0..at.panel.len()).filter(|lane| visible[i] >> lane & 1 == 1) {
                    let place = match layout.pitch {
                        Some(pitch) => lane * pitch + dim,
                        None => at.panel.start * dims + dim * width + lane,
                    };
                    state.acc[place] += weights[i * width + lane] * x;
                }
            }
        }
    }
}

/// `acc[dim][lane] = acc[dim][lane] * alpha[lane] + sum over keys of v[key, dim] * weights[key][lane]`
pub(crate) struct AddValues<'k, T: Real, const NR: usize> {
    pub(crate) v: Rows<'k, T>,
    pub(crate) keys: Range<usize>,
    pub(crate) weights: &'k [T],
    /// From one key's weights to the next's.
    pub(crate) pitch: usize,
    pub(crate) alpha: &'k [T],
    pub(crate) acc: &'k mut [T],
}

impl<T: Real, const NR: usize> Operation<T> for AddValues<'_, T, NR> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { v, keys, weights, pitch, alpha, acc } = self;
        let (width, dims) = (NR * S::LANES, v.cols());
        assert!(keys.end <= v.len() && v.has_unit_cols() && !keys.is_empty());
        assert!(weights.len() >= (keys.len() - 1) * pitch + width && acc.len() >= dims * width && alpha.len() >= width);
        // SAFETY: `keys` are rows of `dims` numbers side by side; `weights` has a row of `width` for each, `acc` one for each
        // dimension, `alpha` one. All of it was just checked.
        unsafe {
            let mut by = [simd.splat(T::ZERO); NR];
            for (n, by) in by.iter_mut().enumerate() {
                *by = simd.load(alpha.as_ptr().add(n * S::LANES));
            }
            let to = AddTo::<S, NR> { acc: acc.as_mut_ptr(), by };
            product::<S, NR, true, false>(simd, dims, keys.len(), v.row(keys.start), v.row_stride(), weights.as_ptr(), pitch, to);
        }
    }
}

/// A tile's sum on its way to the accumulator.
struct AddTo<S: Lanes, const NR: usize> {
    acc: *mut S::T,
    by: [S::V; NR],
}

impl<S: Lanes, const NR: usize> Take<S, NR> for AddTo<S, NR> {
    #[inline(always)]
    unsafe fn take(&mut self, simd: S, row: usize, c: [S::V; NR]) {
        for (n, c) in c.into_iter().enumerate() {
            // SAFETY: `acc` has NR * LANES places for every row.
            unsafe {
                let to = self.acc.add((row * NR + n) * S::LANES);
                simd.store(to, simd.mul_add(simd.load(to), self.by[n], c));
            }
        }
    }
}

/// Divide, and hand out: results of all rows, and their statistics.
fn finish<S: Lanes, E: Element<Real = S::T>>(
    simd: S,
    scorer: &Scorer<'_, E>,
    layout: &AccLayout,
    state: &mut State<'_, S::T>,
    buffers: &mut Buffers<'_, S::T>,
    out: ArrayViewMut3<'_, MaybeUninit<E>>,
    mut ends: Ends<'_, S::T>,
) -> Summaries {
    let block = &scorer.block;
    let (plan, dims) = (scorer.plan, layout.dims);
    let stats = state.stats.take();
    let sink = plan.sink(block.head).is_some();
    let before: Option<Vec<_>> =
        (sink && stats.is_some()).then(|| (0..layout.rows).map(|r| (state.row_max[r], state.row_sum[r])).collect());
    if sink {
        let logits: Vec<_> =
            (0..layout.lanes::<S>()).map(|r| plan.sink(block.row(r.min(layout.rows - 1)).0).map_or(S::T::HIDDEN, S::T::from_f64)).collect();
        simd.call(AddSink { to: state, layout, logits: &logits, factors: buffers.factors });
    }
    for r in 0..layout.rows {
        ends.set([r / block.queries, r % block.queries], state.row_max[r], state.row_sum[r]);
    }
    // A row that saw nothing is 0 / 1.
    let divisors = &mut buffers.factors[..layout.lanes::<S>()];
    divisors.iter_mut().zip(&*state.row_sum).for_each(|(d, &sum)| *d = if sum == S::T::ZERO { S::T::ONE } else { sum });
    match layout.pitch {
        Some(pitch) => {
            for (r, &divisor) in divisors.iter().enumerate().take(layout.rows) {
                for (to, &x) in buffers.rows[r * dims..][..dims].iter_mut().zip(&state.acc[r * pitch..]) {
                    *to = x / divisor;
                }
            }
            copy_out(buffers.rows, out);
        }
        None => hand_out::<S, E, true>(simd, state.acc, divisors, buffers.rows, out),
    }
    let Some(stats) = stats else { return Vec::new() };
    let end = |r: usize| (state.row_max[r], state.row_sum[r]);
    (0..layout.rows).map(|r| stats.finish(r, before.as_ref().map_or_else(|| end(r), |before| before[r]), end(r))).collect()
}
