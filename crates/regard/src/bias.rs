//! Numbers that are added to the scores: given densely, or made on the fly from the distance.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::mask::{CowBase, Place, broadcast_index, check_broadcast, check_length};
use crate::simd::Real;
use ndarray::{CowArray, Ix2, Ix4};

/// A bias on the scores. Minus infinity hides a key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Bias<'a> {
    /// One f32 per pair, `[batch, heads_q, seq_q, seq_kv]`; an axis of length 1 is broadcast.
    Dense(CowBase<'a, f32, Ix4>),
    /// The same in f64.
    Dense64(CowBase<'a, f64, Ix4>),
    /// ALiBi: `-slope[head] * |query position - key|`, one slope per query head (see [`alibi_slopes`]).
    Alibi(Vec<f64>),
    /// A learned number per head and distance: `table[head, clamp(key - position, -r, r) + r]` with `2 r + 1` columns;
    /// one row serves all heads.
    Relative(CowBase<'a, f32, Ix2>),
}

impl Bias<'_> {
    pub(crate) fn validate(&self, scores: [usize; 4]) -> Result<()> {
        match self {
            Self::Dense(b) => check_broadcast("bias", b.shape(), scores),
            Self::Dense64(b) => check_broadcast("bias", b.shape(), scores),
            Self::Alibi(slopes) => {
                check_length("ALiBi slopes", slopes.len(), scores[1], "one per query head")?;
                match slopes.iter().find(|s| !s.is_finite()) {
                    Some(&value) => Err(Error::Number { name: "an ALiBi slope", value, requirement: "finite" }),
                    None => Ok(()),
                }
            }
            Self::Relative(table) => {
                if table.nrows() != 1 {
                    check_length("relative bias", table.nrows(), scores[1], "rows, one per query head, or one for all")?;
                }
                // An even number of columns has no middle.
                check_length("relative bias", table.ncols(), table.ncols() / 2 * 2 + 1, "columns, 2 r + 1")
            }
        }
    }

    /// May the bias hide a key by being minus infinity?
    pub(crate) const fn may_hide(&self) -> bool {
        !matches!(self, Self::Alibi(_))
    }

    /// The number for one pair.
    pub fn at(&self, place: &Place, query: usize, key: usize) -> f64 {
        let distance = (key as i64).saturating_sub(place.position(query));
        match self {
            Self::Dense(b) => b[broadcast_index(b.shape(), [place.batch, place.head, query, key])].into(),
            Self::Dense64(b) => b[broadcast_index(b.shape(), [place.batch, place.head, query, key])],
            Self::Alibi(slopes) => -slopes[place.head] * distance.unsigned_abs() as f64,
            Self::Relative(table) => {
                let reach = (table.ncols() / 2) as i64;
                let row = if table.nrows() == 1 { 0 } else { place.head };
                table[[row, (distance.clamp(-reach, reach) + reach) as usize]].into()
            }
        }
    }

    /// One query's numbers for a range of keys, written to every `stride`-th place of `to`.
    pub(crate) fn fill<T: Real>(&self, place: &Place, query: usize, keys: std::ops::Range<usize>, to: &mut [T], stride: usize) {
        let to = to.iter_mut().step_by(stride);
        match self {
            Self::Dense(b) => fill_dense(b, place, query, keys, to),
            Self::Dense64(b) => fill_dense(b, place, query, keys, to),
            Self::Alibi(slopes) => {
                let (slope, position) = (-slopes[place.head], place.position(query));
                to.zip(keys).for_each(|(to, key)| *to = T::from_f64(slope * (key as i64).abs_diff(position) as f64));
            }
            Self::Relative(_) => to.zip(keys).for_each(|(to, key)| *to = T::from_f64(self.at(place, query, key))),
        }
    }
}

fn fill_dense<'t, T: Real, E: Element>(
    bias: &CowArray<'_, E, Ix4>,
    place: &Place,
    query: usize,
    keys: std::ops::Range<usize>,
    to: impl Iterator<Item = &'t mut T>,
) {
    let at = broadcast_index(bias.shape(), [place.batch, place.head, query, 0]);
    let view = bias.view();
    let line = view.slice(ndarray::s![at[0], at[1], at[2], ..]);
    if line.len() == 1 {
        let x = T::from_f64(line[0].to_real().to_f64());
        to.zip(keys).for_each(|(to, _)| *to = x);
    } else {
        to.zip(line.slice(ndarray::s![keys])).for_each(|(to, x)| *to = T::from_f64(x.to_real().to_f64()));
    }
}

/// The slopes of the ALiBi paper for any number of heads: `2^(-8 h / n)` for a power of two `n`; otherwise those of the
/// next lower power of two, and every second one of the next higher for the heads that are left.
///
/// ```
/// let slopes = regard::alibi_slopes(6);
/// assert_eq!(slopes[..4], [0.25, 0.0625, 0.015625, 0.00390625]);
/// assert_eq!(slopes[4..], [0.5, 0.125]);
/// ```
pub fn alibi_slopes(heads: usize) -> Vec<f64> {
    let series = |n: usize| (1..=n).map(move |h| 2f64.powf(-8.0 * h as f64 / n as f64));
    if heads == 0 || heads.is_power_of_two() {
        return series(heads).collect();
    }
    let lower = heads.next_power_of_two() / 2;
    series(lower).chain(series(2 * lower).step_by(2).take(heads - lower)).collect()
}
