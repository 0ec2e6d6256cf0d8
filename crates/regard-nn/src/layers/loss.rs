//! Softmax and cross-entropy in one pass over the logits.
//!
//! ```text
//! loss = mean over counted rows of   ln(sum(exp(logits))) - logits[target]
//! d_logits = (softmax(logits) - onehot(target)) / counted rows
//! ```
//!
//! Where only losses are wanted, logits need not be there all at once: `Share` is what a few columns of a row come to, and shares add up.

use crate::float::{Float, kernel, lane_max, lane_sum};
use crate::parallel::{Cut, for_pieces};

/// The target of a row that does not count.
pub const IGNORE: u32 = u32::MAX;

/// What a batch of logits is worth.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loss {
    /// Sum of the rows' losses, in nats.
    pub sum: f64,
    /// Rows that count.
    pub rows: usize,
    /// Rows whose largest logit is the target's.
    pub correct: usize,
}

impl Loss {
    /// Mean loss of a row; 0 of none.
    pub fn mean(&self) -> f64 {
        self.sum / self.rows.max(1) as f64
    }

    /// Share of rows whose largest logit is the target's.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.rows.max(1) as f64
    }
}

impl std::ops::AddAssign for Loss {
    fn add_assign(&mut self, other: Self) {
        self.sum += other.sum;
        self.rows += other.rows;
        self.correct += other.correct;
    }
}

/// The loss; `logits` become their gradient, each counted row's weighing `1 / divisor`. With `divisor` `None` logits are left alone.
/// `row_losses` gets one number per row, 0 for a row that does not count.
///
/// # Panics
/// When a target is neither a column nor [`IGNORE`].
pub fn cross_entropy<T: Float>(logits: &mut [T], targets: &[u32], divisor: Option<f64>, row_losses: &mut [f64]) -> Loss {
    let classes = logits.len() / targets.len().max(1);
    assert!(targets.iter().all(|&t| t == IGNORE || (t as usize) < classes), "a target is outside the vocabulary");
    let scale = divisor.map(|d| T::from_f64(1.0 / d));
    let cut = Cut::new(targets.len());
    let mut correct = vec![0usize; cut.count()];
    let tasks = cut.pieces_mut(logits, classes).zip(cut.pieces(targets, 1)).zip(cut.pieces_mut(row_losses, 1)).zip(&mut correct).collect();
    for_pieces(tasks, |_, (((logits, targets), losses), correct)| {
        *correct = cross_entropy_rows(logits, targets, scale, losses);
    });
    Loss {
        sum: row_losses[..targets.len()].iter().sum(),
        rows: targets.iter().filter(|&&t| t != IGNORE).count(),
        correct: correct.iter().sum(),
    }
}

/// Some columns of a row of logits: their largest, the sum of `exp(logit - largest)`, and the target's logit where it is among them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    pub(crate) largest: f64,
    pub(crate) sum: f64,
    pub(crate) target: Option<f64>,
}

impl Share {
    /// The largest logit of a row, and the logarithm of its sum of `exp(logit - largest)`, from the shares of all its columns in their
    /// order.
    pub(crate) fn log_sum(shares: impl Iterator<Item = Self> + Clone) -> (f64, f64) {
        let largest =
            shares.clone().fold(f64::NEG_INFINITY, |largest, share| if share.largest <= largest { largest } else { share.largest });
        (largest, shares.map(|share| share.sum * (share.largest - largest).exp()).sum::<f64>().ln())
    }

    /// Whether no logit of a row is larger than the target's.
    pub(crate) fn is_largest(shares: impl Iterator<Item = Self> + Clone) -> bool {
        let target = shares.clone().find_map(|share| share.target);
        target.is_some_and(|target| shares.into_iter().all(|share| share.largest <= target))
    }

    /// The loss of a row from the shares of all its columns, in their order; NaN where a logit is, or the target is in none of them.
    pub(crate) fn loss(shares: impl Iterator<Item = Self> + Clone) -> f64 {
        let (largest, log_sum) = Self::log_sum(shares.clone());
        let target = shares.filter_map(|share| share.target).next().unwrap_or(f64::NAN);
        log_sum - (target - largest)
    }
}

kernel! {
    /// The shares of columns `first ..` of rows, of which `logits` has these columns alone.
    pub(crate) fn shares<'a, T>(logits: &'a [T], first: usize, targets: &'a [u32], to: &'a mut Vec<Share>) -> () {
        let columns = logits.len() / targets.len().max(1);
        for (logits, &target) in logits.chunks_exact(columns.max(1)).zip(targets) {
            let largest = lane_max(logits);
            let sum = lane_sum(logits, |x, s| s + (x - largest).exp());
            let target = (target as usize).checked_sub(first).and_then(|at| logits.get(at)).map(|x| x.to_f64());
            to.push(Share { largest: largest.to_f64(), sum: sum.to_f64(), target });
        }
    }
}

kernel! {
    /// Of a row of logits: the largest, the sum of `e = exp(logit - largest)`, and the sum of `e (logit - largest)`.
    pub fn softmax_sums<'a, T>(logits: &'a [T]) -> [f64; 3] {
        let largest = lane_max(logits);
        let sum = lane_sum(logits, |x, s| s + (x - largest).exp());
        let weighted = lane_sum(logits, |x, s| (x - largest).mul_add((x - largest).exp(), s));
        [largest.to_f64(), sum.to_f64(), weighted.to_f64()]
    }
}

kernel! {
    fn cross_entropy_rows<'a, T>(logits: &'a mut [T], targets: &'a [u32], scale: Option<T>, losses: &'a mut [f64]) -> usize {
        let classes = logits.len() / targets.len().max(1);
        let mut powers = vec![T::ZERO; classes];
        let mut correct = 0;
        for ((logits, &target), loss) in logits.chunks_exact_mut(classes.max(1)).zip(targets).zip(losses) {
            if target == IGNORE {
                *loss = 0.0;
                if scale.is_some() {
                    logits.fill(T::ZERO);
                }
                continue;
            }
            let target = target as usize;
            let max = lane_max(logits);
            for (power, &logit) in powers.iter_mut().zip(logits.iter()) {
                *power = (logit - max).exp();
            }
            let sum = lane_sum(&powers, |x, s| s + x);
            *loss = sum.to_f64().ln() - (logits[target].to_f64() - max.to_f64());
            correct += usize::from(logits[target] == max);
            if let Some(scale) = scale {
                let factor = scale / sum;
                for (logit, &power) in logits.iter_mut().zip(&powers) {
                    *logit = power * factor;
                }
                logits[target] -= scale;
            }
        }
        correct
    }
}
