//! Any call that can be written down: shapes, strides, masks, biases and options. It is refused with an error, or its
//! result and its gradients are those of the textbook. It does not panic.
//!
//! ```text
//! cd crates/regard && cargo +nightly fuzz run attention
//! ```

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ndarray::{Array2, Array3, Array4, ArrayView4, Axis};
use regard::reference::{self, Reference};
use regard::{Attention, Bias, Element, Level, Mask, Real, Scale, StatsOptions};

#[derive(Debug, Arbitrary)]
struct Call {
    batch: u8,
    heads: [u8; 3],
    seq_q: u8,
    seq_kv: u16,
    /// Rarely another length for v, and another batch for k.
    misfit: u8,
    dims: [u8; 2],
    layouts: [u8; 4],
    seed: u64,
    element: u8,
    level: u8,
    threads: u8,
    scale: Number,
    softcap: Option<Number>,
    sink: Option<[Number; 4]>,
    top_k: Option<u8>,
    dropout: Option<(Number, u64)>,
    offset: Offset,
    masks: Vec<MaskKind>,
    bias: BiasKind,
    /// Numbers that are put in place of others.
    poison: Vec<(u16, Poison)>,
}

#[derive(Debug, Arbitrary, Clone, Copy)]
enum Number {
    Small(i8),
    Any(f64),
}

impl Number {
    fn get(self) -> f64 {
        match self {
            Self::Small(n) => f64::from(n) / 16.0,
            Self::Any(x) => x,
        }
    }

    /// For options whose size would make rounding errors of any size legal.
    fn tame(self) -> f64 {
        let x = self.get();
        if x.is_finite() { x.clamp(-4.0, 4.0) } else { x }
    }
}

#[derive(Debug, Arbitrary)]
enum Poison {
    NanKey,
    NanValue,
    InfiniteValue,
    NanQuery,
    NanGradient,
    InfiniteGradient,
}

#[derive(Debug, Arbitrary)]
enum Offset {
    None,
    Same(i16),
    Any(i64),
    End,
    PerBatch(Vec<i16>),
}

#[derive(Debug, Arbitrary)]
enum MaskKind {
    Causal,
    Reverse,
    Future,
    Window(Option<u16>, Option<u16>),
    WideWindow(usize, usize),
    FirstKeys(u16),
    NotFirstKeys(u16),
    Lengths(Vec<u8>),
    Documents { rows: u8, size: u8, extra: u8 },
    Dense { broadcast: u8, seed: u64, density: u8, misfit: bool },
    Blocks { q: u8, kv: u8, seed: u64, per_head: bool },
    NotWindow(u8, u8),
    Either(u8, u8),
}

#[derive(Debug, Arbitrary)]
enum BiasKind {
    None,
    Dense { broadcast: u8, seed: u64, misfit: bool },
    Dense64 { broadcast: u8, seed: u64 },
    Alibi { misfit: bool },
    Relative { reach: u8, per_head: bool, even: bool },
}

/// Numbers in (-2, 2) from a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 51) as f64 - 2.0
    }

    fn array<E: Element>(&mut self, shape: [usize; 4]) -> Array4<E> {
        Array4::from_shape_simple_fn(shape, || E::from_real(E::Real::from_f64(self.next())))
    }
}

/// An array that is seen as `shape` through one of several layouts.
fn stored<E: Element>(shape: [usize; 4], layout: u8, numbers: &mut Numbers) -> Array4<E> {
    let [b, h, n, d] = shape;
    match layout % 6 {
        1 => numbers.array([b, n, h, d]),
        2 => numbers.array([b, h, d, n]),
        3 => numbers.array([b, h, n, 2 * d]),
        4 => numbers.array([1, h, n, d]),
        _ => numbers.array(shape),
    }
}

fn seen<E: Element>(x: &Array4<E>, shape: [usize; 4], layout: u8) -> ArrayView4<'_, E> {
    match layout % 6 {
        1 => x.view().permuted_axes([0, 2, 1, 3]),
        2 => x.view().permuted_axes([0, 1, 3, 2]),
        3 => x.slice(ndarray::s![.., .., .., ..;2]),
        4 => x.broadcast(shape).expect("one entry serves all"),
        5 => {
            let mut x = x.view();
            (0..4).for_each(|axis| x.invert_axis(Axis(axis)));
            x
        }
        _ => x.view(),
    }
}

fn broadcast(bits: u8, scores: [usize; 4], misfit: bool) -> [usize; 4] {
    std::array::from_fn(|a| if bits >> a & 1 == 0 { 1 } else { scores[a] + usize::from(misfit && a == 3) })
}

impl Call {
    fn scores(&self) -> [usize; 4] {
        let (heads_q, _) = self.heads();
        [usize::from(self.batch % 4), heads_q, usize::from(self.seq_q % 80), usize::from(self.seq_kv % 300)]
    }

    fn heads(&self) -> (usize, usize) {
        let kv = usize::from(self.heads[0] % 4);
        (kv * usize::from(self.heads[1] % 4) + usize::from(self.heads[2] == 255), kv)
    }

    fn mask(&self, kind: &MaskKind) -> Mask<'static> {
        let scores = self.scores();
        let [batch, heads, n, m] = scores;
        let wide = |x: Option<u16>| x.map(usize::from);
        match *kind {
            MaskKind::Causal => Mask::causal(),
            MaskKind::Reverse => Mask::reverse(),
            MaskKind::Future => Mask::strictly_future(),
            MaskKind::Window(left, right) => Mask::window(wide(left), wide(right)),
            MaskKind::WideWindow(left, right) => Mask::window(Some(left), Some(right)),
            MaskKind::FirstKeys(n) => Mask::first_keys(n.into()),
            MaskKind::NotFirstKeys(n) => !Mask::first_keys(n.into()),
            MaskKind::Lengths(ref lengths) => Mask::key_lengths(lengths.iter().map(|&n| n.into()).collect::<Vec<usize>>()),
            MaskKind::Documents { rows, size, extra } => {
                let rows = if rows % 2 == 0 { 1 } else { batch };
                let ids = |n: usize| Array2::from_shape_fn((rows, n), |(b, i)| ((i + b) / (usize::from(size) + 1)) as u32);
                Mask::documents(ids(n + usize::from(extra == 255)), ids(m))
            }
            MaskKind::Dense { broadcast: bits, seed, density, misfit } => {
                let mut numbers = Numbers(seed);
                let limit = f64::from(density) / 64.0 - 2.0;
                Mask::dense(Array4::from_shape_simple_fn(broadcast(bits, scores, misfit), || numbers.next() < limit))
            }
            MaskKind::Blocks { q, kv, seed, per_head } => {
                let mut numbers = Numbers(seed);
                let (q, kv) = (usize::from(q), usize::from(kv));
                let shape = (if per_head { heads } else { 1 }, n.div_ceil(q.max(1)), m.div_ceil(kv.max(1)));
                Mask::blocks(Array3::from_shape_simple_fn(shape, || numbers.next() < 0.5), q, kv)
            }
            MaskKind::NotWindow(left, right) => !Mask::window(Some(left.into()), Some(right.into())),
            MaskKind::Either(left, first) => Mask::window(Some(left.into()), Some(0)) | Mask::first_keys(first.into()),
        }
    }

    fn bias(&self) -> Option<Bias<'static>> {
        let scores = self.scores();
        Some(match self.bias {
            BiasKind::None => return None,
            BiasKind::Dense { broadcast: bits, seed, misfit } => {
                let mut numbers = Numbers(seed);
                let number = || match numbers.next() {
                    x if x > 1.5 => f32::NEG_INFINITY,
                    x => x as f32,
                };
                Bias::Dense(Array4::from_shape_simple_fn(broadcast(bits, scores, misfit), number).into())
            }
            BiasKind::Dense64 { broadcast: bits, seed } => Bias::Dense64(Numbers(seed).array(broadcast(bits, scores, false)).into()),
            BiasKind::Alibi { misfit } => Bias::Alibi(regard::alibi_slopes(scores[1] + usize::from(misfit))),
            BiasKind::Relative { reach, per_head, even } => {
                let mut numbers = Numbers(u64::from(reach));
                let shape = (if per_head { scores[1] } else { 1 }, 2 * usize::from(reach) + 1 + usize::from(even));
                Bias::Relative(Array2::from_shape_simple_fn(shape, || numbers.next() as f32).into())
            }
        })
    }

    /// Next to 1 the few weights that are left would be multiplied with any number.
    fn dropout(&self) -> Option<(f64, u64)> {
        self.dropout.map(|(p, seed)| (if p.get() < 1.0 { p.get().min(0.9) } else { p.get() }, seed))
    }

    fn attention(&self) -> Attention<'static> {
        let mut a = Attention::new().scale(match self.scale {
            Number::Small(0) => Scale::InvSqrtDim,
            Number::Small(1) => Scale::Off,
            other => Scale::By(other.tame()),
        });
        if let Some(cap) = self.softcap {
            a = a.softcap(cap.tame());
        }
        if let Some(sink) = &self.sink {
            a = a.sink(sink.iter().cycle().take(self.scores()[1]).map(|x| x.tame()).collect::<Vec<_>>());
        }
        if let Some(k) = self.top_k {
            a = a.top_k(k.into());
        }
        if let Some((p, seed)) = self.dropout() {
            a = a.dropout(p, seed);
        }
        a = match &self.offset {
            Offset::None => a,
            Offset::Same(n) => a.q_offset((*n).into()),
            // Distances of such numbers are rounded: not together with a bias of the distance.
            Offset::Any(n) if matches!(self.bias, BiasKind::Alibi { .. }) => a.q_offset(n % 1000),
            Offset::Any(n) => a.q_offset(*n),
            Offset::End => a.align_end(),
            Offset::PerBatch(n) => a.q_offsets(n.iter().map(|&n| n.into()).collect::<Vec<i64>>()),
        };
        for mask in self.masks.iter().take(4) {
            a = a.mask(self.mask(mask));
        }
        if let Some(bias) = self.bias() {
            a = a.bias(bias);
        }
        a.threads(usize::from(self.threads % 4))
    }

    fn run<E: Element>(&self, tolerance: f64) {
        let [batch, _, n, m] = self.scores();
        let (heads_q, heads_kv) = self.heads();
        let (d, e) = (usize::from(self.dims[0] % 40), usize::from(self.dims[1] % 40));
        let mut numbers = Numbers(self.seed);
        let misfit = |value: u8| usize::from(self.misfit == value);
        let [lq, lk, lv, lo] = self.layouts;
        let shapes =
            [[batch, heads_q, n, d], [batch + misfit(1), heads_kv, m, d + misfit(2)], [batch, heads_kv + misfit(3), m + misfit(4), e]];
        let mut q = stored::<E>(shapes[0], lq, &mut numbers);
        let mut k = stored::<E>(shapes[1], lk, &mut numbers);
        let mut v = stored::<E>(shapes[2], lv, &mut numbers);
        let out_shape = [batch, heads_q, n, e + misfit(5)];
        let mut d_out = stored::<E>(out_shape, lo, &mut numbers);
        let mut special = false;
        for (at, poison) in self.poison.iter().take(3) {
            let (x, number) = match poison {
                Poison::NanKey => (&mut k, f64::NAN),
                Poison::NanValue => (&mut v, f64::NAN),
                Poison::InfiniteValue => (&mut v, f64::INFINITY),
                Poison::NanQuery => (&mut q, f64::NAN),
                Poison::NanGradient => (&mut d_out, f64::NAN),
                Poison::InfiniteGradient => (&mut d_out, f64::INFINITY),
            };
            if let Some(x) = x.as_slice_mut().filter(|x| !x.is_empty()) {
                x[usize::from(*at) % x.len()] = E::from_real(E::Real::from_f64(number));
                special = true;
            }
        }
        // Which of several NaN top-k keeps, and what is next to them, is not promised.
        if special && self.top_k.is_some() {
            return;
        }
        let (q, k, v) = (seen(&q, shapes[0], lq), seen(&k, shapes[1], lk), seen(&v, shapes[2], lv));
        let d_out = seen(&d_out, out_shape, lo);
        let levels: Vec<Level> = Level::available().collect();
        let a = self.attention().level(levels[usize::from(self.level) % levels.len()]);
        let exact = reference::attention(&a, q, k, v);
        let got = a.forward(q, k, v);
        let (exact, got) = match (exact, got) {
            (Ok(exact), Ok(got)) => (exact, got),
            (Err(a), Err(b)) => return assert_eq!(a.to_string(), b.to_string()),
            (a, b) => panic!("one refuses, the other does not: {:?} {:?}", a.err(), b.err()),
        };
        // In f32 a near tie may fall to the other side: only that the call comes to an end, then.
        let comparable = self.top_k.is_none();
        let near = |what: &str, x: f64, y: f64| {
            let same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * (1.0 + y.abs());
            assert!(same || !comparable, "{what}: {x} instead of {y}");
        };
        for (&x, &y) in got.out.iter().zip(&exact.out) {
            near("out", x.to_real().to_f64(), y);
        }
        for (&x, &y) in got.lse.iter().zip(&exact.lse) {
            near("lse", x.to_f64(), y);
        }
        let (again, _) =
            a.forward_with_stats(q, k, v, StatsOptions { local_window: usize::from(self.seq_q), top_keys: 2 }).expect("it was accepted");
        let bits = |x: &E| (x.to_real().to_f64() + 0.0).to_bits();
        assert!(again.out.iter().zip(&got.out).all(|(x, y)| bits(x) == bits(y) || x.to_real() != x.to_real()));
        let weights = a.weights(q, k).expect("it was accepted");
        for (&x, &y) in weights.iter().zip(&exact.applied) {
            near("weights", x.to_f64(), y);
        }
        if comparable {
            self.backward(&a, [q, k, v, d_out], &exact, tolerance);
        }
    }

    /// Gradients, and that statistics change none of them.
    fn backward<E: Element>(&self, a: &Attention<'_>, [q, k, v, d_out]: [ArrayView4<'_, E>; 4], exact: &Reference, tolerance: f64) {
        let saved = a.forward_saved(q, k, v).expect("it was accepted");
        let (expected, got) = match (reference::backward(a, q, k, v, d_out), a.backward(q, k, v, &saved, d_out)) {
            (Ok(expected), Ok(got)) => (expected, got),
            (Err(a), Err(b)) => return assert_eq!(a.to_string(), b.to_string()),
            (a, b) => panic!("one refuses, the other does not: {:?} {:?}", a.err(), b.err()),
        };
        // Numbers are below 2. What a gradient is a sum of: d_out . v, weighed; once over the keys and once over the rows that see one.
        let (group, factor) = (self.heads().0 / self.heads().1.max(1), self.dropout().map_or(1.0, |(p, _)| 1.0 / (1.0 - p)));
        let column = exact.weights.sum_axis(Axis(2)).iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, &x| m.max(x)) * group as f64;
        let scale = match self.scale {
            Number::Small(0 | 1) => 1.0,
            other => other.tame().abs(),
        };
        let dq_size = 16.0 * v.len_of(Axis(3)) as f64 * factor * scale;
        for (name, got, expected, size) in [
            ("dq", &got.dq, &expected.dq, dq_size),
            ("dk", &got.dk, &expected.dk, dq_size * column),
            ("dv", &got.dv, &expected.dv, 2.0 * factor * column),
        ] {
            for (&x, &y) in got.iter().zip(expected) {
                // What is hidden stays hidden. Where the textbook is not finite, a weight that is zero in f32 may make the other finite.
                let x = x.to_real().to_f64();
                let too_large = x.is_infinite() && y.abs() > 6e4;
                assert!(!y.is_finite() || too_large || (x - y).abs() <= tolerance * (1.0 + size), "{name}: {x} instead of {y}");
            }
        }
        let (again, _) = a.backward_with_stats(q, k, v, &saved, d_out).expect("it was accepted");
        let bits = |x: &E| (x.to_real().to_f64() + 0.0).to_bits();
        for (x, y) in [(&again.dq, &got.dq), (&again.dk, &got.dk), (&again.dv, &got.dv)] {
            assert!(x.iter().zip(y).all(|(x, y)| bits(x) == bits(y) || x.to_real() != x.to_real()));
        }
    }
}

fuzz_target!(|call: Call| {
    match call.element % 4 {
        0 => call.run::<f32>(1e-4),
        1 => call.run::<f64>(1e-10),
        2 => call.run::<half::f16>(1e-2),
        _ => call.run::<half::bf16>(5e-2),
    }
});
