//! What the tests share: numbers from a seed, options whose plain computation is known, and a tolerance that is measured.

mod gradients;
mod masks;
pub mod oracle;
pub mod random_call;
mod recipe;

pub use gradients::{assert_same_gradients, bias_numbers, check_gradients, d_out_for, gradients};
pub use masks::{masks, random_bools};
pub use oracle::Shape;
pub use recipe::{Recipe, naive, naive_backward};

use ndarray::{Array, Array4, Dimension};
use oracle::{Answer, BackwardAnswer, Options};
use regard::{Element, Level, Real, Storage};

/// Normal numbers from a seed (splitmix64 and Box-Muller).
pub struct Normal(u64);

impl Normal {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In (0, 1).
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    pub fn number(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

pub fn to<E: Storage>(x: f64) -> E {
    E::from_real(E::Real::from_f64(x))
}

pub fn wide<E: Storage>(x: E) -> f64 {
    x.to_real().to_f64()
}

/// Bits that tell any two numbers apart, except that one NaN is as good as another.
pub fn bits<E: Storage>(x: E) -> u64 {
    let x = wide(x);
    if x.is_nan() { u64::MAX } else { x.to_bits() }
}

pub fn normal<E: Storage>(shape: [usize; 4], seed: u64) -> Array4<E> {
    let mut numbers = Normal::new(seed);
    Array4::from_shape_simple_fn(shape, || to(numbers.number()))
}

/// Sizes that tests want.
impl Shape {
    /// Two batch entries, four query heads on two key/value heads.
    pub const fn new(seq_q: usize, seq_kv: usize, head_dim: usize) -> Self {
        Self { batch: 2, heads_q: 4, heads_kv: 2, seq_q, seq_kv, head_dim, value_dim: head_dim }
    }

    /// One batch entry and one head.
    pub const fn single(seq_q: usize, seq_kv: usize, head_dim: usize) -> Self {
        Self { batch: 1, heads_q: 1, heads_kv: 1, ..Self::new(seq_q, seq_kv, head_dim) }
    }

    pub const fn heads(self, heads_q: usize, heads_kv: usize) -> Self {
        Self { heads_q, heads_kv, ..self }
    }

    pub const fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    pub const fn values(self, value_dim: usize) -> Self {
        Self { value_dim, ..self }
    }

    /// Every combination of empty and other sizes.
    pub fn with_empty_sizes() -> impl Iterator<Item = Self> {
        (0..64).map(|bits| {
            let size = |bit: usize, n: usize| if bits >> bit & 1 == 1 { 0 } else { n };
            let heads_q = size(1, 2);
            Self {
                batch: size(0, 2),
                heads_q,
                heads_kv: if heads_q == 0 { size(2, 1) } else { 1 },
                seq_q: size(3, 3),
                seq_kv: size(4, 5),
                head_dim: size(5, 4),
                value_dim: size(2, 3),
            }
        })
    }
}

/// q, k and v.
#[derive(Clone)]
pub struct Inputs<E> {
    pub q: Array4<E>,
    pub k: Array4<E>,
    pub v: Array4<E>,
}

impl<E: Element> Inputs<E> {
    /// In f64, as the judge reads them.
    pub fn widened(&self) -> Inputs<f64> {
        // Whatever the strides were.
        let wide = |x: &Array4<E>| x.as_standard_layout().mapv(wide);
        Inputs { q: wide(&self.q), k: wide(&self.k), v: wide(&self.v) }
    }

    pub fn normal(s: Shape, seed: u64) -> Self {
        Self {
            q: normal([s.batch, s.heads_q, s.seq_q, s.head_dim], seed),
            k: normal([s.batch, s.heads_kv, s.seq_kv, s.head_dim], seed ^ 0xAAAA),
            v: normal([s.batch, s.heads_kv, s.seq_kv, s.value_dim], seed ^ 0x5555),
        }
    }
}

/// Says aloud what cannot be tested on this machine: past the capture of passing tests, and as a failure where `REGARD_NO_SKIPS` is set.
pub fn skip(what: &str) {
    use std::io::Write;
    assert!(std::env::var_os("REGARD_NO_SKIPS").is_none(), "REGARD_NO_SKIPS is set, and this would be skipped: {what}");
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    writeln!(std::io::stderr(), "SKIPPED {name}: {what}").expect("stderr takes it");
}

/// The levels of this CPU.
pub fn levels() -> Vec<Level> {
    Level::available().collect()
}

/// The judge's answer.
pub fn textbook<E: Element>(options: &Options, x: &Inputs<E>) -> Answer {
    let x = x.widened();
    oracle::attention(options, &x.q, &x.k, &x.v)
}

/// The judge's gradients.
pub fn textbook_backward<E: Element>(options: &Options, x: &Inputs<E>, d_out: &Array4<E>) -> BackwardAnswer {
    let answer = textbook(options, x);
    let x = x.widened();
    oracle::backward(options, &answer, &x.q, &x.k, &x.v, &d_out.mapv(wide))
}

/// All bits are the same.
#[track_caller]
pub fn assert_same_bits<E: Storage, D: Dimension>(what: &str, a: &Array<E, D>, b: &Array<E, D>) {
    assert_eq!(a.shape(), b.shape(), "{what}");
    for ((at, &x), &y) in a.indexed_iter().zip(b) {
        assert!(bits(x) == bits(y), "{what}: {x:?} and {y:?} at {at:?} of {:?}", a.shape());
    }
}

/// `got` is as near to `exact` as a plain loop of the same precision is, within a factor of two.
#[track_caller]
pub fn assert_as_good_as_naive<E: Storage, D: Dimension>(
    what: &str,
    got: &Array<E, D>,
    naive: &Array<E, D>,
    exact: &Array<f64, D>,
    floor: f64,
) {
    assert_within(what, 2.0, got, naive, exact, floor);
}

/// The error of every number is at most `factor` times the largest error of the plain loop, and the floor.
#[track_caller]
pub fn assert_within<E: Storage, D: Dimension>(
    what: &str,
    factor: f64,
    got: &Array<E, D>,
    naive: &Array<E, D>,
    exact: &Array<f64, D>,
    floor: f64,
) {
    assert_eq!(got.shape(), exact.shape(), "{what}");
    let naive_error = naive.iter().zip(exact).map(|(&x, &y)| error(wide(x), y)).filter(|e| e.is_finite()).fold(0.0, f64::max);
    let tolerance = factor * naive_error + floor;
    for ((at, &x), &y) in got.indexed_iter().zip(exact) {
        let e = error(wide(x), y);
        assert!(
            e <= tolerance,
            "{what}: {x:?} for {y:?} at {at:?} of {:?}: error {e:e}, naive error {naive_error:e}, floor {floor:e}",
            got.shape()
        );
    }
}

/// 0 for equal infinities and for two NaN; NaN for one.
fn error(x: f64, y: f64) -> f64 {
    if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() }
}

/// Half the distance of 1 and the next larger number, in the type that the arithmetic is done in.
pub fn unit<E: Element>() -> f64 {
    if size_of::<E::Real>() == 8 { f64::EPSILON } else { f64::from(f32::EPSILON) }
}

/// Forward and log-sum-exp of every level against the textbook.
#[track_caller]
pub fn check<E: Element>(what: &str, recipe: &Recipe, x: &Inputs<E>) {
    let exact = textbook(&recipe.options, x);
    let plain = naive(recipe, x, &exact);
    for level in levels() {
        let what = format!("{what}, {} {}", std::any::type_name::<E>(), level.name());
        let got = recipe.attention().level(level).forward(&x.q, &x.k, &x.v).expect(&what);
        assert_as_good_as_naive(&format!("out of {what}"), &got.out, &plain.out, &exact.out, out_floor::<E>(&exact));
        assert_as_good_as_naive(&format!("lse of {what}"), &got.lse, &plain.lse, &exact.lse, score_floor::<E>(&exact));
    }
}

pub fn largest<'a>(numbers: impl IntoIterator<Item = &'a f64>) -> f64 {
    numbers.into_iter().filter(|x| x.is_finite()).fold(0.0, |m, x| x.abs().max(m))
}

/// A few roundings of the largest number; in f64, where the plain loop is the textbook itself, what rounding a score costs.
fn out_floor<E: Element>(exact: &Answer) -> f64 {
    let score = if size_of::<E::Real>() == 8 { 16.0 * (1.0 + largest(&exact.raw)) } else { 4.0 };
    score * unit::<E>() * largest(&exact.out)
}

pub fn score_floor<E: Element>(exact: &Answer) -> f64 {
    8.0 * unit::<E>() * (1.0 + largest(&exact.raw).max(largest(&exact.lse)))
}
