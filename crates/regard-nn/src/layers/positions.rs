//! Position encodings: added to the embedding, applied to queries and keys as rotations, or added to the scores.
//!
//! ```text
//! sinusoidal   x[t, 2 i] += sin(t / 10000^(2 i / d)),  x[t, 2 i + 1] += cos(the same); or sines first, then cosines
//! learned      x[t] += table[t]
//! rotary       (q[i], q[i + d/2]) is rotated by the angle t / base^(2 i / d); the same with k; or (q[2 i], q[2 i + 1])
//! ALiBi        score[i, j] -= slope[head] |i - j|                                  (by the attention itself)
//! ```

use super::pass::Pass;
use crate::float::{Float, kernel};
use crate::tensors::layout::{Gradients, Init, Layout, TensorId};
use crate::tensors::{Order, Weights};
use serde::{Deserialize, Serialize};

/// Kind of position encoding.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// No position encoding.
    None,
    /// Sinusoidal encoding, added to the embedding.
    Sinusoidal,
    /// The same waves, all sines before all cosines.
    SinusoidalHalves,
    /// A learned row per position that is added to the embedding.
    #[default]
    Learned,
    /// Queries and keys are rotated (RoPE); the number is the base of the angles, usually 10000.
    Rotary(f64),
    /// ALiBi: a linear distance bias with a slope per head.
    Alibi,
}

impl Positions {
    /// Positions beyond the trained context make sense: nothing is a table of fixed length.
    pub const fn extends(self) -> bool {
        !matches!(self, Self::Learned)
    }
}

/// What is added to embeddings.
#[derive(Debug, Clone)]
pub(crate) enum Added {
    Nothing,
    /// With all sines before all cosines, or without.
    Sinusoidal {
        halves: bool,
    },
    /// Position t has row `first + t`.
    Learned {
        table: TensorId,
        count: usize,
        first: usize,
    },
}

impl Added {
    pub(crate) fn new(layout: &mut Layout, positions: Positions, count: usize, width: usize) -> Self {
        match positions {
            Positions::Sinusoidal => Self::Sinusoidal { halves: false },
            Positions::SinusoidalHalves => Self::Sinusoidal { halves: true },
            Positions::Learned => Self::learned(layout, count, 0, width),
            Positions::None | Positions::Rotary(_) | Positions::Alibi => Self::Nothing,
        }
    }

    /// A table for `count` positions, the first in row `first`.
    pub(crate) fn learned(layout: &mut Layout, count: usize, first: usize, width: usize) -> Self {
        let table = layout.within("positions", |l| l.add("table", &[first + count, width], Init::Normal(0.02), false));
        Self::Learned { table, count, first }
    }

    /// How many positions there are, if that is limited.
    pub(crate) fn limit(&self) -> Option<usize> {
        if let Self::Learned { count, .. } = self { Some(*count) } else { None }
    }

    /// Add to rows `[batch, seq, width]`.
    pub(crate) fn forward<T: Float>(&self, w: &Weights<'_, T>, x: &mut [T], pass: &Pass<'_>, width: usize) {
        let sequences = x.chunks_exact_mut((pass.seq * width).max(1)).enumerate();
        match self {
            Self::Nothing => {}
            Self::Sinusoidal { halves } => {
                let mut made: Option<(usize, Vec<T>)> = None;
                for (b, x) in sequences {
                    let start = pass.start(b);
                    let made = match &mut made {
                        Some(made) if made.0 == start => made,
                        made => made.insert((start, waves(start, pass.seq, width, *halves))),
                    };
                    add(x, &made.1);
                }
            }
            Self::Learned { table, count, first } => {
                let table = w.matrix(*table, width, first + count, Order::OutIn);
                let mut row = vec![T::ZERO; width];
                for (b, x) in sequences {
                    for (t, x) in x.chunks_exact_mut(width).enumerate() {
                        table.line(first + pass.start(b) + t, &mut row);
                        add(x, &row);
                    }
                }
            }
        }
    }

    pub(crate) fn backward<T: Float>(&self, g: &mut Gradients<'_, T>, dx: &[T], pass: &Pass<'_>, width: usize) {
        if let Self::Learned { table, first, .. } = self {
            let table = g.of(*table);
            for (b, dx) in dx.chunks_exact((pass.seq * width).max(1)).enumerate() {
                let start = first + pass.start(b);
                add(&mut table[start * width..(start + pass.seq) * width], dx);
            }
        }
    }
}

kernel! {
    /// x += y
    pub(crate) fn add<'a, T>(x: &'a mut [T], y: &'a [T]) -> () {
        for (x, &y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

/// Rows `[seq, width]` of sines and cosines for positions from `offset` on.
pub fn sinusoidal<T: Float>(offset: usize, seq: usize, width: usize) -> Vec<T> {
    waves(offset, seq, width, false)
}

/// The same, with all sines before all cosines where `halves` says so.
fn waves<T: Float>(offset: usize, seq: usize, width: usize, halves: bool) -> Vec<T> {
    let half = width.div_ceil(2);
    let at = |t: usize, d: usize| {
        // The place of the same wave where sines and cosines alternate.
        let d = if !halves {
            d
        } else if d < half {
            2 * d
        } else {
            2 * (d - half) + 1
        };
        let angle = (offset + t) as f64 / 10_000f64.powf((d - d % 2) as f64 / width as f64);
        T::from_f64(if d.is_multiple_of(2) { angle.sin() } else { angle.cos() })
    };
    (0..seq).flat_map(|t| (0..width).map(move |d| at(t, d))).collect()
}

/// Which two elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pairs {
    /// `(i, i + dims / 2)`.
    #[default]
    Halves,
    /// `(2 i, 2 i + 1)`.
    Interleaved,
}

/// Pairs of a head that can have factors of their own.
const FACTORS: usize = 128;

/// How angles are changed for contexts that are longer than those of the training.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[expect(clippy::large_enum_variant, reason = "there is one of them per layer, and options are copied freely")]
pub enum Scaling {
    /// No position encoding.
    #[default]
    None,
    /// All are divided by this.
    Linear(f64),
    /// As in Llama 3: slow ones are divided, fast ones are not, with a ramp between.
    Llama3 {
        /// What slow ones are divided by.
        factor: f64,
        /// Wavelengths above `context / low` are slow.
        low: f64,
        /// Wavelengths below `context / high` are fast.
        high: f64,
        /// Tokens of the context before.
        context: f64,
    },
    /// The angles of pair i are divided by factor i: see [`Scaling::factors`].
    Factors([f32; FACTORS]),
}

impl Scaling {
    /// One factor per pair of a head; `None` when they are too many or not positive.
    pub fn factors(given: &[f64]) -> Option<Self> {
        let mut factors = [1.0; FACTORS];
        let fits = given.len() <= FACTORS && given.iter().all(|x| x.is_finite() && *x > 0.0);
        fits.then(|| factors.iter_mut().zip(given).for_each(|(to, &x)| *to = x as f32)).map(|()| Self::Factors(factors))
    }
}

/// Rotary positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// Of the angles; usually 10000.
    pub base: f64,
    /// The number of rotated elements per head; all when `None`.
    pub dims: Option<usize>,
    /// Which elements go together.
    pub pairs: Pairs,
    /// For longer contexts.
    pub scaling: Scaling,
    /// Angles are rounded to f32 before their sines are taken, as trainings in f32 do it: at position 1000 that is up to 3e-5 of an angle.
    pub rounded: bool,
}

impl Rotary {
    /// All elements of a head, in halves.
    pub fn new(base: f64) -> Self {
        Self { base, dims: None, pairs: Pairs::Halves, scaling: Scaling::None, rounded: false }
    }

    /// The same with the angles that a model had which was trained elsewhere, in f32.
    pub fn rounded(base: f64) -> Self {
        Self { rounded: true, ..Self::new(base) }
    }

    /// The angle at position t of a pair with this divisor.
    fn angle(&self, t: usize, divisor: f64) -> f64 {
        if self.rounded { f64::from(t as f32 * (1.0 / divisor as f32)) } else { t as f64 / divisor }
    }

    /// Position t turns pair i by `t / divisor(i)`.
    fn divisor(&self, i: usize, dims: usize) -> f64 {
        let share = if self.rounded { f64::from(2.0 * i as f32 / dims as f32) } else { 2.0 * i as f64 / dims as f64 };
        let divisor = self.base.powf(share);
        match self.scaling {
            Scaling::None => divisor,
            Scaling::Linear(factor) => divisor * factor,
            Scaling::Factors(factors) => divisor * factors.get(i).map_or(1.0, |x| f64::from(*x)),
            Scaling::Llama3 { factor, low, high, context } => {
                let turns = context / (std::f64::consts::TAU * divisor);
                if turns < low {
                    divisor * factor
                } else if turns > high {
                    divisor
                } else {
                    let share = (turns - low) / (high - low);
                    divisor / ((1.0 - share) / factor + share)
                }
            }
        }
    }
}

/// Angles of rotary positions, made once for a number of positions.
#[derive(Debug, Clone)]
pub struct Angles<T> {
    rotary: Rotary,
    /// `[position, half]`
    cos: Vec<T>,
    sin: Vec<T>,
    half: usize,
    count: usize,
}

impl<T: Float> Angles<T> {
    /// Angles for positions below `count`.
    pub fn new(rotary: Rotary, head_dim: usize, count: usize) -> Self {
        let dims = rotary.dims.unwrap_or(head_dim).min(head_dim);
        let half = dims / 2;
        let divisors: Vec<f64> = (0..half).map(|i| rotary.divisor(i, dims)).collect();
        let angles = || (0..count).flat_map(|t| divisors.iter().map(move |divisor| rotary.angle(t, *divisor)));
        let (cos, sin) = (angles().map(|a| T::from_f64(a.cos())).collect(), angles().map(|a| T::from_f64(a.sin())).collect());
        Self { rotary, cos, sin, half, count }
    }

    /// They serve these positions up to `count`.
    pub(crate) fn serves(&self, rotary: Rotary, count: usize) -> bool {
        self.rotary == rotary && self.count >= count
    }

    /// Rotate a head that stands at `position`; backwards for gradients.
    pub fn rotate(&self, head: &mut [T], position: usize, back: bool) {
        let (cos, sin) = (&self.cos[position * self.half..][..self.half], &self.sin[position * self.half..][..self.half]);
        let sign = if back { -T::ONE } else { T::ONE };
        match self.rotary.pairs {
            Pairs::Halves => rotate_halves(head, cos, sin, sign),
            Pairs::Interleaved => rotate_neighbours(head, cos, sin, sign),
        }
    }

    /// Rotate `heads` heads that lie side by side.
    pub(crate) fn rotate_heads(&self, heads: &mut [T], dim: usize, position: usize, back: bool) {
        for head in heads.chunks_exact_mut(dim.max(1)) {
            self.rotate(head, position, back);
        }
    }
}

kernel! {
    fn rotate_halves<'a, T>(head: &'a mut [T], cos: &'a [T], sin: &'a [T], sign: T) -> () {
        let (low, high) = head.split_at_mut(cos.len());
        for (((a, b), &cos), &sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            let (x, y, sin) = (*a, *b, sign * sin);
            *a = x * cos - y * sin;
            *b = y * cos + x * sin;
        }
    }
}

kernel! {
    fn rotate_neighbours<'a, T>(head: &'a mut [T], cos: &'a [T], sin: &'a [T], sign: T) -> () {
        for ((pair, &cos), &sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
            let (x, y, sin) = (pair[0], pair[1], sign * sin);
            pair[0] = x * cos - y * sin;
            pair[1] = y * cos + x * sin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_of_pairs_are_the_same_rotation_of_other_places() {
        let head: Vec<f64> = (0..8).map(|i| f64::from(i).sin()).collect();
        let mut halves = head.clone();
        Angles::new(Rotary::new(100.0), 8, 10).rotate(&mut halves, 7, false);
        let mut interleaved: Vec<f64> = (0..8).map(|i| head[i / 2 + i % 2 * 4]).collect();
        Angles::new(Rotary { pairs: Pairs::Interleaved, ..Rotary::new(100.0) }, 8, 10).rotate(&mut interleaved, 7, false);
        assert!((0..8).all(|i| interleaved[i] == halves[i / 2 + i % 2 * 4]));
        // The definition, for one pair.
        let angle = 7.0 / 100f64.powf(2.0 / 8.0);
        assert!((halves[1] - (head[1] * angle.cos() - head[5] * angle.sin())).abs() < 1e-15);
        let partial = Rotary { dims: Some(4), ..Rotary::new(100.0) };
        let mut some = head.clone();
        Angles::new(partial, 8, 10).rotate(&mut some, 7, false);
        assert!(some[4..] == head[4..] && some[..4] != head[..4]);
        Angles::new(partial, 8, 10).rotate(&mut some, 7, true);
        assert!(some.iter().zip(&head).all(|(a, b)| (a - b).abs() < 1e-15), "back again");
    }

    #[test]
    fn rounded_angles_are_those_of_trainings_in_f32() {
        // PyTorch: `inv = 1.0 / (10000.0 ** (torch.arange(0, 24, 2).float() / 24))`, then `torch.tensor(1000.0) * inv`, as bits.
        let angles = [
            0x447a_0000,
            0x43e8_1457,
            0x4357_7186,
            0x42c8_0000,
            0x4239_a9de,
            0x41ac_5ad3,
            0x4120_0000,
            0x4094_87e7,
            0x4009_e241,
            0x3f80_0000,
            0x3eed_a63e,
            0x3e5c_9d33,
        ];
        let (rounded, exact) = (Rotary::rounded(10_000.0), Rotary::new(10_000.0));
        for (i, bits) in angles.into_iter().enumerate() {
            assert_eq!((rounded.angle(1000, rounded.divisor(i, 24)) as f32).to_bits(), bits, "pair {i}");
        }
        let off = |i: usize| (rounded.angle(1000, rounded.divisor(i, 24)) / exact.angle(1000, exact.divisor(i, 24)) - 1.0).abs();
        assert!((0..12).any(|i| off(i) > 1e-8) && (0..12).all(|i| off(i) < 4e-7));
    }

    #[test]
    fn scaled_angles_are_slower_where_they_are_slow() {
        let plain = Rotary::new(500_000.0);
        let linear = Rotary { scaling: Scaling::Linear(4.0), ..plain };
        let llama = Rotary { scaling: Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 8192.0 }, ..plain };
        for i in 0..64 {
            let (was, four, now) = (plain.divisor(i, 128), linear.divisor(i, 128), llama.divisor(i, 128));
            assert_eq!(four, 4.0 * was);
            let wavelength = std::f64::consts::TAU * was;
            if wavelength < 8192.0 / 4.0 {
                assert_eq!(now, was);
            } else if wavelength > 8192.0 {
                assert_eq!(now, 8.0 * was);
            } else {
                assert!(was <= now && now <= 8.0 * was, "{was} {now}");
            }
        }
    }
}
