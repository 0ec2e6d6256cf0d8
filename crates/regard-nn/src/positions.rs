//! Where a token stands: added to its embedding, turned into its queries and keys, or added to the scores.
//!
//! ```text
//! sinusoidal   x[t, 2 i] += sin(t / 10000^(2 i / d)),  x[t, 2 i + 1] += cos(the same)
//! learned      x[t] += table[t]
//! rotary       (q[i], q[i + d/2]) is turned by the angle t / base^(2 i / d); the same with k
//! ALiBi        score[i, j] -= slope[head] |i - j|                                  (by the attention itself)
//! ```

use crate::float::{Float, kernel};
use crate::params::{Init, Layout, Slot};
use serde::{Deserialize, Serialize};

/// How positions are told.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Not at all.
    None,
    /// Fixed waves that are added to the embedding.
    Sinusoidal,
    /// A learned row per position that is added to the embedding.
    #[default]
    Learned,
    /// Queries and keys are turned; the number is the base of the angles, usually 10000.
    Rotary(f64),
    /// A penalty on the distance, by head.
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
    Waves,
    Learned { table: Slot, count: usize },
}

impl Added {
    pub(crate) fn new(layout: &mut Layout, positions: Positions, count: usize, width: usize) -> Self {
        match positions {
            Positions::Sinusoidal => Self::Waves,
            Positions::Learned => {
                Self::Learned { table: layout.within("positions", |l| l.add("table", &[count, width], Init::Normal(0.02), false)), count }
            }
            Positions::None | Positions::Rotary(_) | Positions::Alibi => Self::Nothing,
        }
    }

    /// How many positions there are, if that is limited.
    pub(crate) fn limit(&self) -> Option<usize> {
        if let Self::Learned { count, .. } = self { Some(*count) } else { None }
    }

    /// Add to rows `[batch, seq, width]`, the first of each sequence being position `offset`.
    pub(crate) fn forward<T: Float>(&self, p: &[T], x: &mut [T], seq: usize, width: usize, offset: usize) {
        match self {
            Self::Nothing => {}
            Self::Waves => {
                let waves = waves::<T>(offset, seq, width);
                x.chunks_exact_mut((seq * width).max(1)).for_each(|x| add(x, &waves));
            }
            Self::Learned { table, .. } => {
                let table = &table.of(p)[offset * width..(offset + seq) * width];
                x.chunks_exact_mut((seq * width).max(1)).for_each(|x| add(x, table));
            }
        }
    }

    pub(crate) fn backward<T: Float>(&self, g: &mut [T], dx: &[T], seq: usize, width: usize, offset: usize) {
        if let Self::Learned { table, .. } = self {
            let table = &mut table.of_mut(g)[offset * width..(offset + seq) * width];
            dx.chunks_exact((seq * width).max(1)).for_each(|dx| add(table, dx));
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

/// Rows `[seq, width]` of waves for positions from `offset` on.
pub fn waves<T: Float>(offset: usize, seq: usize, width: usize) -> Vec<T> {
    let at = |t: usize, d: usize| {
        let angle = (offset + t) as f64 / 10_000f64.powf((d - d % 2) as f64 / width as f64);
        T::from_f64(if d.is_multiple_of(2) { angle.sin() } else { angle.cos() })
    };
    (0..seq).flat_map(|t| (0..width).map(move |d| at(t, d))).collect()
}

/// Angles of rotary positions, made once for a number of positions.
#[derive(Debug, Clone)]
pub struct Rotary<T> {
    /// `[position, head_dim / 2]`
    cos: Vec<T>,
    sin: Vec<T>,
    half: usize,
}

impl<T: Float> Rotary<T> {
    /// Angles for positions below `count`.
    pub fn new(base: f64, head_dim: usize, count: usize) -> Self {
        let half = head_dim / 2;
        let angles = || (0..count).flat_map(|t| (0..half).map(move |i| t as f64 / base.powf(2.0 * i as f64 / head_dim as f64)));
        Self { cos: angles().map(|a| T::from_f64(a.cos())).collect(), sin: angles().map(|a| T::from_f64(a.sin())).collect(), half }
    }

    /// Turn the first `heads` heads of one row that stands at `position`; backwards for gradients.
    pub fn turn(&self, row: &mut [T], heads: usize, position: usize, back: bool) {
        let (cos, sin) = (&self.cos[position * self.half..][..self.half], &self.sin[position * self.half..][..self.half]);
        let sign = if back { -T::ONE } else { T::ONE };
        turn_row(row, heads, cos, sin, sign);
    }
}

kernel! {
    fn turn_row<'a, T>(row: &'a mut [T], heads: usize, cos: &'a [T], sin: &'a [T], sign: T) -> () {
        let half = cos.len();
        for head in row.chunks_exact_mut((2 * half).max(1)).take(heads) {
            let (low, high) = head.split_at_mut(half);
            for (((a, b), &cos), &sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                let (x, y, sin) = (*a, *b, sign * sin);
                *a = x * cos - y * sin;
                *b = y * cos + x * sin;
            }
        }
    }
}
