//! Instruments: row statistics, and weights as a matrix, pooled or compared. All but the matrices is linear in memory.

pub(crate) mod columns;
pub(crate) mod heat_map;
pub(crate) mod similarity;
pub mod stats;
pub(crate) mod weights;

pub use heat_map::{HeatMap, HeatMapCells, HeatMapState};
pub use similarity::HeadSimilarity;
pub use stats::{HeadStats, RowStats, StatsOptions};

use crate::error::{Error, Result, check_shape};
use crate::forward::Saved;
use crate::plan::Plan;
use ndarray::Array3;
use regard_simd::{Real, Storage};
use std::ops::Range;

/// Softmax denominators of every row as two factors, each `[batch, heads_q, seq_q]`: a weight is `exp(score - row_max) / row_sum`.
/// With it, weights of any part of the pattern cost that part only.
#[derive(Debug, Clone)]
pub struct SoftmaxDenominators<T> {
    /// The highest score of each row (a sink logit included); `-inf` for a row without any visible key.
    pub row_max: Array3<T>,
    /// `sum(exp(scores - row_max))` of each row; 0 for a row without any visible key.
    pub row_sum: Array3<T>,
}

impl<E: Storage> From<&Saved<E>> for SoftmaxDenominators<E::Real> {
    fn from(saved: &Saved<E>) -> Self {
        Self { row_max: saved.row_max.clone(), row_sum: saved.row_sum.clone() }
    }
}

/// Some rows and keys of a pattern.
#[derive(Debug, Clone)]
pub struct Rectangle {
    /// Queries.
    pub rows: Range<usize>,
    /// Keys.
    pub keys: Range<usize>,
}

impl Rectangle {
    pub(crate) fn all(plan: &Plan<'_>) -> Self {
        Self { rows: 0..plan.dims.seq_q, keys: 0..plan.dims.seq_kv }
    }

    pub(crate) fn check(&self, plan: &Plan<'_>) -> Result<()> {
        for (operand, range, len) in [("rows", &self.rows, plan.dims.seq_q), ("keys", &self.keys, plan.dims.seq_kv)] {
            if range.start > range.end || range.end > len {
                return Err(Error::Range { operand, start: range.start, end: range.end, len });
            }
        }
        Ok(())
    }
}

pub(crate) fn check_states<T: Real>(plan: &Plan<'_>, states: &SoftmaxDenominators<T>) -> Result<()> {
    let expected = &plan.dims.out()[..3];
    check_shape("row_max", states.row_max.shape(), expected)?;
    check_shape("row_sum", states.row_sum.shape(), expected)
}
