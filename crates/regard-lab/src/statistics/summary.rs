//! What many draws of a number come to.

/// Mean, spread and quantiles of a sample.
#[derive(Debug, Clone)]
pub(crate) struct Summary {
    pub(crate) count: usize,
    pub(crate) mean: f64,
    /// Standard deviation, with n - 1.
    pub(crate) std: f64,
    sorted: Vec<f64>,
}

/// The mean, summed in the order of the sample.
pub(crate) fn mean(sample: &[f64]) -> f64 {
    sample.iter().sum::<f64>() / sample.len() as f64
}

/// The square root of the mean of the squares.
pub(crate) fn root_mean_square(sample: &[f64]) -> f64 {
    (sample.iter().map(|x| x * x).sum::<f64>() / sample.len() as f64).sqrt()
}

/// What [`Summary::median`] says, without putting all of the sample in order.
pub(crate) fn median(sample: &[f64]) -> f64 {
    let Some(last) = sample.len().checked_sub(1) else { return f64::NAN };
    let mut sample = sample.to_vec();
    let (_, &mut low, above) = sample.select_nth_unstable_by(last / 2, f64::total_cmp);
    let high = if last % 2 == 0 { low } else { above.iter().copied().min_by(f64::total_cmp).unwrap_or(low) };
    low + 0.5 * (high - low)
}

impl Summary {
    /// The sums are made in the order of the sample.
    pub(crate) fn new(sample: &[f64]) -> Self {
        let count = sample.len();
        let mean = mean(sample);
        let squares: f64 = sample.iter().map(|x| (x - mean).powi(2)).sum();
        let mut sorted = sample.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Self { count, mean, std: (squares / count.saturating_sub(1) as f64).sqrt(), sorted }
    }

    pub(crate) fn standard_error(&self) -> f64 {
        self.std / (self.count as f64).sqrt()
    }

    /// 95 % confidence interval of the mean, by the normal approximation.
    pub(crate) fn confidence(&self) -> (f64, f64) {
        let half = 1.96 * self.standard_error();
        (self.mean - half, self.mean + half)
    }

    /// The value below which a share `p` of the sample lies, between neighbours by a straight line.
    pub(crate) fn quantile(&self, p: f64) -> f64 {
        let Some(last) = self.sorted.len().checked_sub(1) else { return f64::NAN };
        let at = p * last as f64;
        let low = at.floor() as usize;
        let (a, b) = (self.sorted[low], self.sorted[(low + 1).min(last)]);
        a + (at - low as f64) * (b - a)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Share of the sample below `value`, in percent.
    pub(crate) fn percentile_of(&self, value: f64) -> f64 {
        100.0 * self.share_below(value)
    }

    pub(crate) fn share_below(&self, value: f64) -> f64 {
        self.sorted.partition_point(|x| *x < value) as f64 / self.count as f64
    }

    /// The smallest share of the sample that holds `part` of the sum of squares.
    pub(crate) fn share_holding(&self, part: f64) -> f64 {
        let total: f64 = self.sorted.iter().map(|x| x * x).sum();
        let mut held = 0.0;
        let needed = self.sorted.iter().rev().take_while(|x| {
            let more = held < part * total;
            held += *x * *x;
            more
        });
        needed.count() as f64 / self.count as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_a_small_sample_are_those_by_hand() {
        let s = Summary::new(&[4.0, 1.0, 3.0, 2.0, 10.0]);
        assert_eq!((s.mean, s.median(), s.quantile(0.25), s.quantile(1.0)), (4.0, 3.0, 2.0, 10.0));
        assert!((s.std - 12.5f64.sqrt()).abs() < 1e-15);
        assert_eq!((s.percentile_of(3.0), s.percentile_of(3.5), s.percentile_of(99.0)), (40.0, 60.0, 100.0));
        assert_eq!(root_mean_square(&[4.0, 1.0, 3.0, 2.0, 10.0]), 26f64.sqrt());
        // 100 of 130 are held by one in five, 90 % by two.
        assert_eq!((s.share_holding(0.75), s.share_holding(0.88)), (0.2, 0.4));
    }

    #[test]
    fn the_median_is_that_of_the_sorted_sample() {
        for n in 1..20 {
            let sample: Vec<f64> = (0..n).map(|i| f64::from(i * 7 % 20)).collect();
            assert_eq!(median(&sample), Summary::new(&sample).median(), "{sample:?}");
        }
        assert!(median(&[]).is_nan());
    }
}
