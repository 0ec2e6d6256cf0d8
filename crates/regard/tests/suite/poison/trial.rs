//! One random call: sizes, a mask, layouts, and a number that is not finite somewhere.

use crate::common::Normal;
use crate::common::oracle::{Bias, Mask, Number, Options, Poison, Shape};
use ndarray::{Array2, Array3, Array4, ArrayView4, Axis, s};
use regard::Level;

/// Which operand the poison is put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    Q,
    K,
    V,
    DOut,
    Bias,
}

/// How an operand lies in memory.
#[derive(Debug, Clone, Copy)]
pub enum Layout {
    Rows,
    Transposed,
    HeadsInside,
    EverySecond,
    Backwards,
    /// A stride of 0 along this axis.
    Broadcast(usize),
}

const LAYOUTS: [Layout; 9] = [
    Layout::Rows,
    Layout::Transposed,
    Layout::HeadsInside,
    Layout::EverySecond,
    Layout::Backwards,
    Layout::Broadcast(0),
    Layout::Broadcast(1),
    Layout::Broadcast(2),
    Layout::Broadcast(3),
];

impl Layout {
    /// The shape that is stored, for an operand that is seen as `shape`.
    fn stored(self, shape: [usize; 4]) -> [usize; 4] {
        let [b, h, n, d] = shape;
        match self {
            Self::Rows | Self::Backwards => shape,
            Self::Transposed => [b, h, d, n],
            Self::HeadsInside => [b, n, h, d],
            Self::EverySecond => [b, h, n, 2 * d],
            Self::Broadcast(axis) => std::array::from_fn(|a| if a == axis { 1 } else { shape[a] }),
        }
    }

    fn seen<E>(self, x: &Array4<E>, shape: [usize; 4]) -> ArrayView4<'_, E> {
        match self {
            Self::Rows => x.view(),
            Self::Transposed => x.view().permuted_axes([0, 1, 3, 2]),
            Self::HeadsInside => x.view().permuted_axes([0, 2, 1, 3]),
            Self::EverySecond => x.slice(s![.., .., .., ..;2]),
            Self::Backwards => {
                let mut x = x.view();
                (0..4).for_each(|axis| x.invert_axis(Axis(axis)));
                x
            }
            Self::Broadcast(_) => x.broadcast(shape).expect("one entry serves all"),
        }
    }
}

/// An operand as it is stored, and the way that it is seen.
pub struct Tensor<E> {
    stored: Array4<E>,
    shape: [usize; 4],
    layout: Layout,
}

impl<E> Tensor<E> {
    pub fn view(&self) -> ArrayView4<'_, E> {
        self.layout.seen(&self.stored, self.shape)
    }
}

/// A call before and after the poison.
pub struct Trial<E> {
    pub what: String,
    pub dims: Shape,
    pub level: Level,
    pub poisoned: Operand,
    pub clean_options: Options,
    pub options: Options,
    /// q, k, v, d_out.
    pub clean: [Tensor<E>; 4],
    pub bad: [Tensor<E>; 4],
    pub cells: (usize, usize),
}

impl<E: Number> Trial<E> {
    /// Number `number` of all; the same every time.
    pub fn new(number: usize) -> Self {
        let mut random = Normal::new(number as u64 * 0x9E37_79B9 + 77);
        let kind = number % MASKS;
        let dims = sizes(&mut random);
        let poisoned = [Operand::Q, Operand::K, Operand::K, Operand::V, Operand::V, Operand::DOut, Operand::Bias][random.below(7)];
        let mut options = some_options(&mut random, kind, &dims, poisoned == Operand::Bias);
        options.threads = Some(1 + random.below(8) / 7);
        let whole = options.top_k.is_some();
        let shapes = [
            [dims.batch, dims.heads_q, dims.seq_q, dims.head_dim],
            [dims.batch, dims.heads_kv, dims.seq_kv, dims.head_dim],
            [dims.batch, dims.heads_kv, dims.seq_kv, dims.value_dim],
            [dims.batch, dims.heads_q, dims.seq_q, dims.value_dim],
        ];
        let layouts: [Layout; 4] = std::array::from_fn(|_| {
            // Broadcasts in half of the draws only: they hold few numbers.
            let among = if random.below(2) == 0 { 5 } else { LAYOUTS.len() };
            LAYOUTS[random.below(among)]
        });
        let seed = random.below(1 << 40) as u64;
        let make = |operand: usize| {
            let mut random = Normal::new(seed + operand as u64);
            let stored = layouts[operand].stored(shapes[operand]);
            // Whole numbers make every score exact, so that top-k is the same in any arithmetic.
            let number = || E::narrow(if whole { random.below(5) as f64 - 2.0 } else { random.number() });
            Tensor { stored: Array4::from_shape_simple_fn(stored, number), shape: shapes[operand], layout: layouts[operand] }
        };
        let clean: [Tensor<E>; 4] = std::array::from_fn(make);
        let mut bad: [Tensor<E>; 4] = std::array::from_fn(make);
        let clean_options = options.clone();
        let poison = Poison::ALL[random.below(6)];
        if poisoned == Operand::Bias {
            poison_bias(&mut options, poison, &mut random);
        } else {
            let place = match poisoned {
                Operand::Q => 0,
                Operand::K => 1,
                Operand::V => 2,
                _ => 3,
            };
            let numbers = bad[place].stored.as_slice_mut().expect("as it was made");
            let at = random.below(numbers.len());
            numbers[at] = E::poison(poison);
        }
        let levels: Vec<Level> = Level::available().collect();
        let level = levels[random.below(levels.len())];
        let cells = (1 + random.below(9), 1 + random.below(40));
        let (name, on) = (std::any::type_name::<E>(), level.name());
        let Options { offset, softcap, sink, dropout, top_k, .. } = &options;
        let rest = format!("{offset:?}, softcap {softcap:?}, sink {sink:?}, {dropout:?}, top k {top_k:?}");
        let what = format!("trial {number}, {name} {on}: {poison:?} in {poisoned:?}, mask {kind}, {layouts:?}, {dims:?}, {rest}");
        Self { what, dims, level, poisoned, clean_options, options, clean, bad, cells }
    }
}

/// Sizes that have full, partial and empty panels and tiles, most of them small.
fn sizes(random: &mut Normal) -> Shape {
    let mut between = |low: usize, high: usize| low + random.below(high + 1 - low);
    let (seq_q, seq_kv, large) = match between(0, 99) {
        0..25 => (between(1, 4), between(1, 400), false),
        25..86 => (between(1, 50), between(1, 160), false),
        86..98 => (between(64, 200), between(128, 300), true),
        98 => (between(1, 20), between(2040, 2200), true),
        _ => (between(200, 300), between(256, 400), true),
    };
    let (batch, heads_kv, group) = if large { (1, between(1, 2), 1) } else { (between(1, 2), between(1, 2), between(1, 3)) };
    Shape { batch, heads_kv, heads_q: heads_kv * group, seq_q, seq_kv, head_dim: between(1, 9), value_dim: between(1, 9) }
}

/// How many kinds of masks [`some_options`] knows.
pub const MASKS: usize = 23;

fn some_options(random: &mut Normal, kind: usize, dims: &Shape, bias: bool) -> Options {
    let (n, m) = (dims.seq_q, dims.seq_kv);
    let offset = match random.below(4) {
        0 => 0,
        1 => m as i64 - n as i64,
        _ => random.below(m + n) as i64 - n as i64,
    };
    let offsets: Vec<i64> = (0..dims.batch).map(|b| offset - 3 * b as i64).collect();
    let mut o = Options::new();
    o = if random.below(3) == 0 { o.q_offsets(offsets) } else { o.q_offset(offset) };
    let (left, right, first) = (random.below(m), random.below(m), 1 + random.below(m));
    let size = 1 + random.below(40);
    let ids = |n: usize, from: usize| Array2::from_shape_fn((dims.batch, n), |(b, i)| ((i + from + 5 * b) / size) as u32);
    let documents = || Mask::Documents { queries: ids(n, size / 3), keys: ids(m, 0) };
    let axes = random.below(16);
    let table: [usize; 4] = std::array::from_fn(|a| if axes >> a & 1 == 1 { dims.scores()[a] } else { 1 });
    let mut bools = Normal::new(left as u64 + 991 * right as u64);
    let density = 1 + random.below(9);
    o = match kind {
        0 => o,
        1 => o.causal(),
        2 => Options::new().causal_bottom_right(),
        3 => o.reverse(),
        4 => o.strictly_future(),
        5 => o.window(left / 3, right / 3),
        6 => o.mask(Mask::Window(None, Some(right / 2))),
        7 => o.mask(Mask::Window(Some(left / 2), None)),
        8 => o.mask(Mask::FirstKeys(first)),
        9 => o.key_lengths((0..dims.batch).map(|b| (first + 7 * b) % (m + 1)).collect::<Vec<_>>()),
        10 => o.mask(documents()),
        11 => o.mask(Mask::Dense(Array4::from_shape_simple_fn(table, || bools.below(10) < density))),
        // Steps, so that some panels see all of a tile, some a part and some nothing.
        12 => o.mask(Mask::Dense(Array4::from_shape_fn(dims.scores(), |(_, h, i, j)| (i / 16 + j / 50 + h) % 3 > 0 || j == left))),
        13 => {
            let (q_block, kv_block) = (1 + random.below(70), 1 + random.below(130));
            let shape = (dims.heads_q, n.div_ceil(q_block), m.div_ceil(kv_block));
            o.mask(Mask::Blocks { table: Array3::from_shape_simple_fn(shape, || bools.below(3) > 0), q_block, kv_block })
        }
        14 => o.mask(Mask::Dilated),
        15 => o.mask(Mask::Causal & documents()),
        16 => o.mask(Mask::FirstKeys(first / 8) | Mask::Window(Some(left / 4), Some(0))),
        17 => o.mask(!Mask::Window(Some(left / 4), Some(right / 4))),
        18 => o.mask((Mask::Causal & !documents()) | Mask::FirstKeys(2) | !Mask::Window(Some(left), Some(right))),
        // Hidden by a bias.
        19 => o.bias(some_bias(&mut bools, table, 3)),
        20 => o.causal().bias(some_bias(&mut bools, dims.scores(), 7)),
        // Hidden by top-k, alone and under a mask.
        21 => o.top_k(1 + random.below(m)).scale(0.5),
        _ => o.causal().top_k(1 + random.below(m)).scale(1.0),
    };
    if bias && o.biases.is_empty() {
        o = o.bias(some_bias(&mut bools, table, 1000));
    }
    if o.top_k.is_none() && random.below(8) == 0 {
        o = o.softcap(2.0);
    }
    if random.below(6) == 0 {
        o = o.sink((0..dims.heads_q).map(|h| h as f64 - 1.0).collect::<Vec<_>>());
    }
    if random.below(8) == 0 {
        o = o.dropout(0.3, left as u64);
    }
    o
}

/// Quarters, which are exact everywhere; one in `every` hides.
fn some_bias(random: &mut Normal, shape: [usize; 4], every: usize) -> Bias {
    let dense = Array4::from_shape_simple_fn(shape, || match random.below(every) {
        0 => f32::NEG_INFINITY,
        _ => random.below(9) as f32 / 4.0 - 1.0,
    });
    if random.below(3) == 0 { Bias::Dense64(dense.mapv(f64::from)) } else { Bias::Dense(dense) }
}

fn poison_bias(options: &mut Options, poison: Poison, random: &mut Normal) {
    fn put<X: Number>(x: &mut Array4<X>, poison: Poison, random: &mut Normal) {
        let numbers = x.as_slice_mut().expect("as it was made");
        let at = random.below(numbers.len());
        numbers[at] = X::poison(poison);
    }
    match &mut options.biases[0] {
        Bias::Dense(x) => put(x, poison, random),
        Bias::Dense64(x) => put(x, poison, random),
        other => panic!("not dense: {other:?}"),
    }
}
