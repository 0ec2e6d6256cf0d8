//! Learned numbers on the scores, by head and bucket of distances: those of T5.
//!
//! ```text
//! score[i, j] += table[bucket(j - i), head]       one bucket per short distance, then wider ones, up to `most`
//! ```

use crate::float::Float;
use crate::tensors::layout::{Init, Layout, TensorId};
use crate::tensors::{Order, Weights};
use ndarray::{Array2, Axis};
use regard::Bias;

/// How distances are put into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// All.
    pub count: usize,
    /// Longer distances are in the last bucket.
    pub most: usize,
    /// Half of the buckets are for keys after the query; otherwise all of these are in the first.
    pub both: bool,
}

impl Buckets {
    /// The bucket of `key - query`.
    pub fn of(self, distance: i64) -> usize {
        let (count, first) = match self.both {
            true => (self.count / 2, if distance > 0 { self.count / 2 } else { 0 }),
            false => (self.count, 0),
        };
        let far = if self.both { distance.unsigned_abs() } else { distance.min(0).unsigned_abs() } as usize;
        let exact = count / 2;
        if far < exact {
            return first + far;
        }
        // In f32, as the models were trained: buckets begin at rounded places.
        let share = (far as f32 / exact as f32).ln() / (self.most as f64 / exact as f64).ln() as f32;
        first + (exact + (share * (count - exact) as f32) as usize).min(count - 1)
    }
}

/// The table of a layer.
#[derive(Debug, Clone)]
pub(crate) struct Relative {
    table: TensorId,
    buckets: Buckets,
    heads: usize,
    /// By head and distance from `-most` to `most`, from the weights.
    numbers: Option<Array2<f32>>,
}

impl Relative {
    pub(crate) fn new(layout: &mut Layout, buckets: Buckets, heads: usize) -> Self {
        let table = layout.within("relative", |layout| layout.add("table", &[buckets.count, heads], Init::Normal(0.02), false));
        Self { table, buckets, heads, numbers: None }
    }

    /// Spread the table over distances.
    pub(crate) fn read<T: Float>(&mut self, w: &Weights<'_, T>) {
        let table = w.matrix(self.table, self.heads, self.buckets.count, Order::OutIn).to_dense();
        let most = self.buckets.most as i64;
        let at = |(head, column): (usize, usize)| table[[head, self.buckets.of(column as i64 - most)]].to_f64() as f32;
        self.numbers = Some(Array2::from_shape_fn((self.heads, 2 * self.buckets.most + 1), at));
    }

    /// For all heads or one, divided by a temperature.
    pub(crate) fn bias(&self, head: Option<usize>, temperature: Option<f64>) -> Bias<'static> {
        let numbers = self.numbers.as_ref().expect("read when the weights are bound");
        let mut numbers = match head {
            Some(head) => numbers.index_axis(Axis(0), head).insert_axis(Axis(0)).to_owned(),
            None => numbers.clone(),
        };
        if let Some(temperature) = temperature {
            numbers.mapv_inplace(|x| (f64::from(x) / temperature) as f32);
        }
        Bias::Relative(numbers.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exact_for_short_distances_and_end_at_the_most() {
        let buckets = Buckets { count: 32, most: 128, both: true };
        assert_eq!([0, -1, -7, -8, -11, -12, -127, -128, -1000].map(|d| buckets.of(d)), [0, 1, 7, 8, 8, 9, 15, 15, 15]);
        assert_eq!([1, 7, 8, 200].map(|d| buckets.of(d)), [17, 23, 24, 31]);
        let before = Buckets { both: false, ..buckets };
        assert_eq!([5, 0, -15, -16, -127, -128].map(|d| before.of(d)), [0, 0, 15, 16, 31, 31]);
    }
}
