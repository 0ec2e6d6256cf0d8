//! Biases on the scores: dense, or computed from the distance.

pub(crate) mod gradient;

pub use gradient::BiasGradient;

use crate::arrays::CowBase;
use crate::error::{Error, Result, check_length};
use crate::mask::{HeadPosition, broadcast_index, check_broadcast};
use half::{bf16, f16};
use ndarray::{Axis, Ix2, Ix4};
use regard_simd::strided::{AnyRows, Rows};
use regard_simd::{Real, Simd, Storage};
use std::ops::Range;

/// A bias on the scores. Minus infinity hides a key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Bias<'a> {
    /// One f32 per pair, `[batch, heads_q, seq_q, seq_kv]`; an axis of length 1 is broadcast.
    Dense(CowBase<'a, f32, Ix4>),
    /// The same in f64.
    Dense64(CowBase<'a, f64, Ix4>),
    /// The same in f16.
    DenseF16(CowBase<'a, f16, Ix4>),
    /// The same in bf16.
    DenseBf16(CowBase<'a, bf16, Ix4>),
    /// ALiBi: `-slope[head] * |query position - key|`, one slope per query head (see [`alibi_slopes`]).
    Alibi(Vec<f64>),
    /// A learned number per head and distance: `table[head, clamp(key - position, -r, r) + r]` with `2 r + 1` columns;
    /// one row serves all heads.
    Relative(CowBase<'a, f32, Ix2>),
}

/// `$body` with `$b` the elements of a dense bias of any storage type; `$other` for the other kinds.
macro_rules! match_dense {
    ($bias:expr, $b:ident => $body:expr, $($other:tt)*) => {
        match $bias {
            Bias::Dense($b) => $body,
            Bias::Dense64($b) => $body,
            Bias::DenseF16($b) => $body,
            Bias::DenseBf16($b) => $body,
            $($other)*
        }
    };
}
pub(crate) use match_dense;

impl Bias<'_> {
    pub(crate) fn validate(&self, scores: [usize; 4]) -> Result<()> {
        match_dense!(self, b => check_broadcast("bias", b.shape(), scores),
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
        )
    }

    /// May the bias hide a key by being minus infinity?
    pub(crate) const fn may_hide(&self) -> bool {
        !matches!(self, Self::Alibi(_))
    }

    /// The bias of one pair.
    pub fn at(&self, at: &HeadPosition, query: usize, key: usize) -> f64 {
        let distance = (key as i64).saturating_sub(at.position(query));
        match_dense!(self, b => b[broadcast_index(b.shape(), [at.batch, at.head, query, key])].to_real().to_f64(),
            Self::Alibi(slopes) => -slopes[at.head] * distance.unsigned_abs() as f64,
            Self::Relative(table) => {
                let reach = (table.ncols() / 2) as i64;
                let row = if table.nrows() == 1 { 0 } else { at.head };
                table[[row, (distance.clamp(-reach, reach) + reach) as usize]].into()
            }
        )
    }

    /// Numbers for some queries of a head and some keys: `to[(key - keys.start) * width + lane + r]` for the r-th query.
    pub(crate) fn fill<S: Simd>(&self, simd: S, from: &Region<'_>, to: &mut [S::T], width: usize, lane: usize) {
        // Transposed as a whole, where the elements widen to the type that is computed in.
        let rows = match self {
            Self::Dense(b) => dense_rows(b, from).map(AnyRows::F32),
            Self::Dense64(b) => dense_rows(b, from).map(AnyRows::F64),
            Self::DenseF16(b) => dense_rows(b, from).map(AnyRows::F16),
            Self::DenseBf16(b) => dense_rows(b, from).map(AnyRows::Bf16),
            Self::Alibi(_) | Self::Relative(_) => None,
        };
        if rows.is_some_and(|rows| S::T::transpose_storage(simd, rows, to, width, lane)) {
            return;
        }
        for (r, query) in from.queries.clone().enumerate() {
            let to = to[lane + r..].iter_mut().step_by(width);
            self.fill_row(from.at, query, from.keys.clone(), to);
        }
    }

    /// One query's elements for a range of keys.
    fn fill_row<'t, T: Real>(&self, at: &HeadPosition, query: usize, keys: Range<usize>, to: impl Iterator<Item = &'t mut T>) {
        match_dense!(self, b => {
            let [batch, head, row, _] = broadcast_index(b.shape(), [at.batch, at.head, query, 0]);
            let view = b.view();
            let line = view.slice(ndarray::s![batch, head, row, ..]);
            let number = |x: f64| T::from_f64_saturating(x);
            if line.len() == 1 {
                let x = number(line[0].to_real().to_f64());
                to.zip(keys).for_each(|(to, _)| *to = x);
            } else {
                to.zip(line.slice(ndarray::s![keys])).for_each(|(to, x)| *to = number(x.to_real().to_f64()));
            }
        },
            Self::Alibi(slopes) => {
                let (slope, position) = (-slopes[at.head], at.position(query));
                to.zip(keys).for_each(|(to, key)| *to = T::from_f64_saturating(slope * (key as i64).abs_diff(position) as f64));
            }
            Self::Relative(_) => to.zip(keys).for_each(|(to, key)| *to = T::from_f64_saturating(self.at(at, query, key)))
        );
    }
}

/// Some queries of a head, and some keys.
pub(crate) struct Region<'r> {
    pub(crate) at: &'r HeadPosition,
    pub(crate) queries: Range<usize>,
    pub(crate) keys: Range<usize>,
}

/// The elements of a region, a row per query; `None` where one serves all keys.
fn dense_rows<'b, X: Storage>(bias: &'b CowBase<'_, X, Ix4>, from: &Region<'_>) -> Option<Rows<'b, X>> {
    let [b, h, _, _] = broadcast_index(bias.shape(), [from.at.batch, from.at.head, 0, 0]);
    let mut rows = bias.view().index_axis_move(Axis(0), b).index_axis_move(Axis(0), h);
    if rows.ncols() == 1 {
        return None;
    }
    rows.slice_axis_inplace(Axis(1), from.keys.clone().into());
    if rows.nrows() == 1 {
        return Some(Rows::repeated(&rows.index_axis_move(Axis(0), 0), from.queries.len()));
    }
    rows.slice_axis_inplace(Axis(0), from.queries.clone().into());
    Some(Rows::new(&rows))
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
