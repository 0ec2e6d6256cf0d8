//! Sequence mixers of the laboratory: a dilated causal convolution, a GRU and attention, each from a sequence of rows to one output row,
//! with explicit gradients.
//!
//! Rows are time-major: row `t * batch + b` is position `t` of sequence `b`. Of width w, each mixer has 4 w^2 parameters.

use ndarray::{Array2, ArrayBase, ArrayView2, ArrayViewMut2, Axis, Data, DataMut, Ix2, Slice, Zip};
use regard_nn::tensors::layout::{Init, Layout, TensorId};
use std::ops::Range;

/// Dilated layers of the convolution: with two taps each it reaches 2^6 = 64 positions.
const LAYERS: usize = 6;

/// Which tensor attention uses for queries, keys and values: 0, 1 or 2 each. Equal numbers share one matrix.
pub(crate) type Roles = [usize; 3];
pub(crate) const SEPARATE: Roles = [0, 1, 2];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MixerKind {
    Convolution,
    Gru,
    /// The last position attends to the `window` positions before it; all of them without a window.
    Attention {
        roles: Roles,
        window: Option<usize>,
    },
}

/// A matrix of the flat parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix {
    start: usize,
    shape: [usize; 2],
}

impl Matrix {
    /// Normal with variance 1 / rows.
    pub(crate) fn new(layout: &mut Layout, name: &str, shape: [usize; 2]) -> Self {
        Self::with_deviation(layout, name, shape, (shape[0] as f64).powf(-0.5))
    }

    pub(crate) fn with_deviation(layout: &mut Layout, name: &str, shape: [usize; 2], deviation: f64) -> Self {
        let id: TensorId = layout.add(name, &shape, Init::Normal(deviation), true);
        Self { start: layout.entry(id).range.start, shape }
    }

    pub(crate) fn of(self, p: &[f64]) -> ArrayView2<'_, f64> {
        let len = self.shape[0] * self.shape[1];
        ArrayView2::from_shape(self.shape, &p[self.start..self.start + len]).expect("the layout has room")
    }

    pub(crate) fn add(self, g: &mut [f64], gradient: &Array2<f64>) {
        let len = self.shape[0] * self.shape[1];
        let mut to = ArrayViewMut2::from_shape(self.shape, &mut g[self.start..self.start + len]).expect("the layout has room");
        to += gradient;
    }
}

#[derive(Debug, Clone)]
enum Parts {
    Convolution { inward: Matrix, taps: Vec<[Matrix; 2]>, outward: Matrix },
    Gru { input: Matrix, state: Matrix, outward: Matrix },
    Attention { qkv: [Matrix; 3], outward: Matrix, roles: Roles, window: Option<usize> },
}

#[derive(Debug, Clone)]
pub(crate) struct Mixer(Parts);

/// Activations that the backward pass reads.
#[derive(Debug)]
pub(crate) enum Saved {
    /// Input and pre-activation of every layer, and the last output.
    Convolution(Vec<Array2<f64>>, Vec<Array2<f64>>),
    /// For every step: the state before it, reset gate, update gate, candidate, and the state's share of the candidate.
    Gru(Vec<[Array2<f64>; 5]>, Array2<f64>),
    /// Queries, keys, values, weights `[batch, keys]`, mixed values, and the first key that is visible.
    Attention(Box<[Array2<f64>; 5]>, usize),
}

fn rows<S: Data<Elem = f64>>(x: &ArrayBase<S, Ix2>, range: Range<usize>) -> ArrayView2<'_, f64> {
    x.slice_axis(Axis(0), Slice::from(range))
}

fn rows_mut<S: DataMut<Elem = f64>>(x: &mut ArrayBase<S, Ix2>, range: Range<usize>) -> ArrayViewMut2<'_, f64> {
    x.slice_axis_mut(Axis(0), Slice::from(range))
}

fn columns<S: Data<Elem = f64>>(x: &ArrayBase<S, Ix2>, range: Range<usize>) -> ArrayView2<'_, f64> {
    x.slice_axis(Axis(1), Slice::from(range))
}

fn columns_mut<S: DataMut<Elem = f64>>(x: &mut ArrayBase<S, Ix2>, range: Range<usize>) -> ArrayViewMut2<'_, f64> {
    x.slice_axis_mut(Axis(1), Slice::from(range))
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Mixer {
    pub(crate) fn new(layout: &mut Layout, kind: MixerKind, width: usize) -> Self {
        Self(match kind {
            MixerKind::Convolution => {
                let inner = width / 2;
                let tap = |layout: &mut Layout, l: usize, which: &str| {
                    // Two taps share the variance.
                    Matrix::with_deviation(layout, &format!("tap.{l}.{which}"), [inner, inner], (2.0 * inner as f64).powf(-0.5))
                };
                let inward = Matrix::new(layout, "inward", [width, inner]);
                let taps = (0..LAYERS).map(|l| [tap(layout, l, "here"), tap(layout, l, "before")]).collect();
                Parts::Convolution { inward, taps, outward: Matrix::new(layout, "outward", [inner, width]) }
            }
            MixerKind::Gru => {
                let inner = 2 * width / 3;
                Parts::Gru {
                    input: Matrix::new(layout, "input", [width, 3 * inner]),
                    state: Matrix::new(layout, "state", [inner, 3 * inner]),
                    outward: Matrix::new(layout, "outward", [inner, width]),
                }
            }
            MixerKind::Attention { roles, window } => {
                let qkv = roles.map(|role| Matrix::new(layout, &format!("projection.{role}"), [width, width]));
                Parts::Attention { qkv, outward: Matrix::new(layout, "outward", [width, width]), roles, window }
            }
        })
    }

    /// The same attention with its trained matrices in other roles.
    pub(crate) fn with_roles(&self, roles: Roles) -> Self {
        match &self.0 {
            Parts::Attention { qkv, outward, roles: own, window } => {
                let of = |role: usize| qkv[own.iter().position(|one| *one == role).expect("a role that it has")];
                Self(Parts::Attention { qkv: roles.map(of), outward: *outward, roles, window: *window })
            }
            other => Self(other.clone()),
        }
    }

    /// The output of the last position of each sequence, `[batch, width]`.
    pub(crate) fn forward(&self, p: &[f64], x: &Array2<f64>, batch: usize) -> (Array2<f64>, Saved) {
        match &self.0 {
            Parts::Convolution { inward, taps, outward } => {
                let (mut inputs, mut before) = (vec![x.dot(&inward.of(p))], Vec::new());
                for (l, [here, earlier]) in taps.iter().enumerate() {
                    let h = &inputs[l];
                    let shift = (batch << l).min(h.nrows());
                    let mut z = h.dot(&here.of(p));
                    let mut later = rows_mut(&mut z, shift..h.nrows());
                    later += &rows(h, 0..h.nrows() - shift).dot(&earlier.of(p));
                    inputs.push(h + &z.mapv(|z| z.max(0.0)));
                    before.push(z);
                }
                let last = rows(&inputs[taps.len()], x.nrows() - batch..x.nrows()).dot(&outward.of(p));
                (last, Saved::Convolution(inputs, before))
            }
            Parts::Gru { input, state, outward } => {
                let inner = input.shape[1] / 3;
                let from_input = x.dot(&input.of(p));
                let (mut h, mut steps) = (Array2::zeros((batch, inner)), Vec::new());
                for t in 0..x.nrows() / batch {
                    let (a, b) = (rows(&from_input, t * batch..(t + 1) * batch), h.dot(&state.of(p)));
                    let gate = |n: usize| {
                        let part = n * inner..(n + 1) * inner;
                        (&columns(&a, part.clone()) + &columns(&b, part)).mapv(sigmoid)
                    };
                    let (reset, update) = (gate(0), gate(1));
                    let share = columns(&b, 2 * inner..3 * inner).to_owned();
                    let candidate = (&columns(&a, 2 * inner..3 * inner) + &(&reset * &share)).mapv(f64::tanh);
                    let next = &update * &h + &update.mapv(|u| 1.0 - u) * &candidate;
                    steps.push([h, reset, update, candidate, share]);
                    h = next;
                }
                let out = h.dot(&outward.of(p));
                (out, Saved::Gru(steps, h))
            }
            Parts::Attention { qkv, outward, window, .. } => {
                let n = x.nrows() / batch - 1;
                let first = window.map_or(0, |window| n.saturating_sub(window));
                let keys = rows(x, first * batch..n * batch);
                let q = rows(x, n * batch..x.nrows()).dot(&qkv[0].of(p));
                let (k, v) = (keys.dot(&qkv[1].of(p)), keys.dot(&qkv[2].of(p)));
                let scale = (q.ncols() as f64).powf(-0.5);
                let mut weights = Array2::from_shape_fn((batch, n - first), |(b, j)| scale * q.row(b).dot(&k.row(j * batch + b)));
                for mut row in weights.rows_mut() {
                    let largest = row.fold(f64::NEG_INFINITY, |m, x| m.max(*x));
                    row.mapv_inplace(|x| (x - largest).exp());
                    row /= row.sum();
                }
                let mut mixed = Array2::zeros(q.raw_dim());
                for ((b, j), weight) in weights.indexed_iter() {
                    mixed.row_mut(b).scaled_add(*weight, &v.row(j * batch + b));
                }
                let out = mixed.dot(&outward.of(p));
                (out, Saved::Attention(Box::new([q, k, v, weights, mixed]), first))
            }
        }
    }

    /// Adds the gradient on the parameters to `g`; returns the gradient on the rows.
    pub(crate) fn backward(&self, p: &[f64], g: &mut [f64], x: &Array2<f64>, saved: &Saved, dy: &Array2<f64>) -> Array2<f64> {
        let batch = dy.nrows();
        match (&self.0, saved) {
            (Parts::Convolution { inward, taps, outward }, Saved::Convolution(inputs, before)) => {
                let last = x.nrows() - batch..x.nrows();
                outward.add(g, &rows(&inputs[taps.len()], last.clone()).t().dot(dy));
                let mut dh = Array2::zeros(inputs[0].raw_dim());
                rows_mut(&mut dh, last).assign(&dy.dot(&outward.of(p).t()));
                for (l, [here, earlier]) in taps.iter().enumerate().rev() {
                    let (h, mut dz) = (&inputs[l], dh.clone());
                    Zip::from(&mut dz).and(&before[l]).for_each(|dz, z| *dz = if *z > 0.0 { *dz } else { 0.0 });
                    let shift = (batch << l).min(h.nrows());
                    let (early, late) = (0..h.nrows() - shift, shift..h.nrows());
                    here.add(g, &h.t().dot(&dz));
                    earlier.add(g, &rows(h, early.clone()).t().dot(&rows(&dz, late.clone())));
                    dh += &dz.dot(&here.of(p).t());
                    let mut into = rows_mut(&mut dh, early);
                    into += &rows(&dz, late).dot(&earlier.of(p).t());
                }
                inward.add(g, &x.t().dot(&dh));
                dh.dot(&inward.of(p).t())
            }
            (Parts::Gru { input, state, outward }, Saved::Gru(steps, end)) => {
                let inner = end.ncols();
                outward.add(g, &end.t().dot(dy));
                let mut dh = dy.dot(&outward.of(p).t());
                let mut from_input = Array2::zeros((x.nrows(), 3 * inner));
                let mut d_state = Array2::zeros((inner, 3 * inner));
                for (t, [h, reset, update, candidate, share]) in steps.iter().enumerate().rev() {
                    let d_update = &dh * &(h - candidate) * update * &update.mapv(|u| 1.0 - u);
                    let d_candidate = &dh * &update.mapv(|u| 1.0 - u) * &candidate.mapv(|c| 1.0 - c * c);
                    let d_reset = &d_candidate * share * reset * &reset.mapv(|r| 1.0 - r);
                    let mut a = rows_mut(&mut from_input, t * batch..(t + 1) * batch);
                    columns_mut(&mut a, 0..inner).assign(&d_reset);
                    columns_mut(&mut a, inner..2 * inner).assign(&d_update);
                    columns_mut(&mut a, 2 * inner..3 * inner).assign(&d_candidate);
                    let mut b = a.to_owned();
                    columns_mut(&mut b, 2 * inner..3 * inner).assign(&(&d_candidate * reset));
                    d_state += &h.t().dot(&b);
                    dh = &dh * update + &b.dot(&state.of(p).t());
                }
                state.add(g, &d_state);
                input.add(g, &x.t().dot(&from_input));
                from_input.dot(&input.of(p).t())
            }
            (Parts::Attention { qkv, outward, .. }, Saved::Attention(saved, first)) => {
                let [q, k, v, weights, mixed] = &**saved;
                outward.add(g, &mixed.t().dot(dy));
                let d_mixed = dy.dot(&outward.of(p).t());
                let scale = (q.ncols() as f64).powf(-0.5);
                let mut d_scores = Array2::from_shape_fn(weights.raw_dim(), |(b, j)| d_mixed.row(b).dot(&v.row(j * batch + b)));
                for (mut ds, w) in d_scores.rows_mut().into_iter().zip(weights.rows()) {
                    let mean = ds.dot(&w);
                    Zip::from(&mut ds).and(&w).for_each(|ds, w| *ds = w * (*ds - mean) * scale);
                }
                let (mut dq, mut dk, mut dv) = (Array2::zeros(q.raw_dim()), Array2::zeros(k.raw_dim()), Array2::<f64>::zeros(v.raw_dim()));
                for ((b, j), ds) in d_scores.indexed_iter() {
                    let at = j * batch + b;
                    dq.row_mut(b).scaled_add(*ds, &k.row(at));
                    dk.row_mut(at).scaled_add(*ds, &q.row(b));
                    dv.row_mut(at).scaled_add(weights[[b, j]], &d_mixed.row(b));
                }
                let n = x.nrows() - batch;
                let (keys, query) = (first * batch..n, n..x.nrows());
                let mut dx = Array2::zeros(x.raw_dim());
                qkv[0].add(g, &rows(x, query.clone()).t().dot(&dq));
                rows_mut(&mut dx, query).assign(&dq.dot(&qkv[0].of(p).t()));
                for (matrix, gradient) in [(qkv[1], dk), (qkv[2], dv)] {
                    matrix.add(g, &rows(x, keys.clone()).t().dot(&gradient));
                    let mut into = rows_mut(&mut dx, keys.clone());
                    into += &gradient.dot(&matrix.of(p).t());
                }
                dx
            }
            _ => unreachable!("a mixer reads what it saved"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard_nn::random::Draws;

    const KINDS: [MixerKind; 6] = [
        MixerKind::Convolution,
        MixerKind::Gru,
        MixerKind::Attention { roles: SEPARATE, window: None },
        MixerKind::Attention { roles: SEPARATE, window: Some(2) },
        MixerKind::Attention { roles: [0, 0, 2], window: None },
        MixerKind::Attention { roles: [0, 0, 0], window: None },
    ];

    fn normal(seed: u64, n: usize, width: usize) -> Array2<f64> {
        let mut draws = Draws::at(seed, &[3]);
        Array2::from_shape_fn((n, width), |_| draws.normal())
    }

    #[test]
    fn three_mixers_have_the_same_number_of_parameters() {
        for kind in &KINDS[..4] {
            let mut layout = Layout::new();
            Mixer::new(&mut layout, *kind, 48);
            assert_eq!(layout.len(), 4 * 48 * 48, "{kind:?}");
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let (batch, n, width) = (3, 5, 6);
        for kind in KINDS {
            let mut layout = Layout::new();
            let mixer = Mixer::new(&mut layout, kind, width);
            let (p, x, dy): (Vec<f64>, _, _) = (layout.init(1), normal(2, n * batch, width), normal(3, batch, width));
            let value = |p: &[f64], x: &Array2<f64>| (mixer.forward(p, x, batch).0 * &dy).sum();
            let mut g = vec![0.0; p.len()];
            let dx = mixer.backward(&p, &mut g, &x, &mixer.forward(&p, &x, batch).1, &dy);
            let step = 1e-6;
            for i in 0..p.len() {
                let moved = |by: f64| {
                    let mut p = p.clone();
                    p[i] += by;
                    value(&p, &x)
                };
                let known = (moved(step) - moved(-step)) / (2.0 * step);
                assert!((g[i] - known).abs() < 1e-7 * known.abs().max(1.0), "{kind:?}: parameter {i}: {} instead of {known}", g[i]);
            }
            for at in [[0, 0], [4, 1], [n * batch - 1, 5], [n * batch - 4, 2]] {
                let moved = |by: f64| {
                    let mut x = x.clone();
                    x[at] += by;
                    value(&p, &x)
                };
                let known = (moved(step) - moved(-step)) / (2.0 * step);
                assert!((dx[at] - known).abs() < 1e-7 * known.abs().max(1.0), "{kind:?}: row {at:?}: {} instead of {known}", dx[at]);
            }
        }
    }

    #[test]
    fn attention_is_that_of_the_library() {
        let (batch, n, width) = (2, 7, 6);
        let mut layout = Layout::new();
        let mixer = Mixer::new(&mut layout, MixerKind::Attention { roles: SEPARATE, window: Some(4) }, width);
        let (p, x): (Vec<f64>, _) = (layout.init(4), normal(5, n * batch, width));
        let out = mixer.forward(&p, &x, batch).0;
        let matrix = |i: usize| ArrayView2::from_shape((width, width), &p[i * width * width..(i + 1) * width * width]).unwrap();
        for b in 0..batch {
            let of = |from: usize, to: usize, m: usize| {
                let rows = Array2::from_shape_fn((to - from, width), |(t, c)| x[[(from + t) * batch + b, c]]);
                rows.dot(&matrix(m)).into_shape_with_order((1, 1, to - from, width)).unwrap()
            };
            let attention = regard::Attention::new().threads(1);
            let known = attention.forward(&of(n - 1, n, 0), &of(n - 5, n - 1, 1), &of(n - 5, n - 1, 2)).unwrap().out;
            let known = known.into_shape_with_order((1, width)).unwrap().dot(&matrix(3));
            for c in 0..width {
                assert!((out[[b, c]] - known[[0, c]]).abs() < 1e-12, "{} instead of {}", out[[b, c]], known[[0, c]]);
            }
        }
    }

    #[test]
    fn a_gru_is_its_equations_number_by_number() {
        let (n, width) = (4, 6);
        let mut layout = Layout::new();
        let mixer = Mixer::new(&mut layout, MixerKind::Gru, width);
        let (p, x): (Vec<f64>, _) = (layout.init(6), normal(7, n, width));
        let inner = 4;
        let w = |i: usize, j: usize| p[i * 3 * inner + j];
        let u = |i: usize, j: usize| p[width * 3 * inner + i * 3 * inner + j];
        let o = |i: usize, j: usize| p[(width + inner) * 3 * inner + i * width + j];
        let mut h = vec![0.0; inner];
        for t in 0..n {
            let from = |j: usize| (0..width).map(|i| x[[t, i]] * w(i, j)).sum::<f64>();
            let back = |j: usize| (0..inner).map(|i| h[i] * u(i, j)).sum::<f64>();
            h = (0..inner)
                .map(|c| {
                    let reset = 1.0 / (1.0 + (-(from(c) + back(c))).exp());
                    let update = 1.0 / (1.0 + (-(from(inner + c) + back(inner + c))).exp());
                    let candidate = (from(2 * inner + c) + reset * back(2 * inner + c)).tanh();
                    update * h[c] + (1.0 - update) * candidate
                })
                .collect();
        }
        let out = mixer.forward(&p, &x, 1).0;
        for c in 0..width {
            let known: f64 = (0..inner).map(|i| h[i] * o(i, c)).sum();
            assert!((out[[0, c]] - known).abs() < 1e-12);
        }
    }

    #[test]
    fn a_convolution_reaches_sixty_four_positions() {
        let width = 6;
        let mut layout = Layout::new();
        let mixer = Mixer::new(&mut layout, MixerKind::Convolution, width);
        let (p, x): (Vec<f64>, _) = (layout.init(8), normal(9, 70, width));
        let out = |at: usize| {
            let mut x = x.clone();
            x.row_mut(at).fill(9.0);
            mixer.forward(&p, &x, 1).0
        };
        let plain = mixer.forward(&p, &x, 1).0;
        assert_eq!(out(5), plain, "65 positions back");
        assert_ne!(out(6), plain, "64 positions, its own included");
    }
}
