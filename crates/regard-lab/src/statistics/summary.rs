//! What many draws of a number come to, each with its 95 % interval.
//!
//! Rows of one draw share their keys, so they are not independent: what is said of rows rests on draws. The interval of a quantile is
//! Woodruff's: the share of rows below it has a standard error, which is that of a mean over draws; the quantiles at the ends of that
//! share's interval are the ends of the interval. It holds for any tail.

use crate::statistics::estimate::{Estimate, Z, t_quantile};

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

/// The value below which a share `p` of an ordered sample lies, between neighbours by a straight line.
fn quantile(sorted: &[f64], p: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = p.clamp(0.0, 1.0) * last as f64;
    let low = at.floor() as usize;
    let (a, b) = (sorted[low], sorted[(low + 1).min(last)]);
    a + (at - low as f64) * (b - a)
}

/// Rows of draws, `per` rows of each, one draw after the other.
pub(crate) struct Rows<'r> {
    rows: &'r [f64],
    per: usize,
    sorted: Vec<f64>,
}

/// Median of values that come in groups of different size, by the interval of [`Rows::quantile`]: the share below the median is a ratio of
/// sums over draws, whose standard error is that of its linearisation.
pub(crate) fn grouped_median(groups: &[Vec<f64>]) -> Estimate {
    let mut sorted: Vec<f64> = groups.iter().flatten().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let value = quantile(&sorted, 0.5);
    let (draws, total) = (groups.len() as f64, sorted.len() as f64);
    let below = |group: &Vec<f64>| group.iter().filter(|x| **x <= value).count() as f64;
    let share = groups.iter().map(below).sum::<f64>() / total;
    let squares: f64 = groups.iter().map(|group| (below(group) - share * group.len() as f64).powi(2)).sum();
    let half = Z * (squares * draws / (draws - 1.0)).sqrt() / total;
    if !half.is_finite() {
        return Estimate { value, low: f64::NAN, high: f64::NAN };
    }
    Estimate { value, low: quantile(&sorted, 0.5 - half), high: quantile(&sorted, 0.5 + half) }
}

/// Groups of draws that are left out in turn.
const GROUPS: usize = 20;

impl<'r> Rows<'r> {
    pub(crate) fn new(rows: &'r [f64], per: usize) -> Self {
        let mut sorted = rows.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Self { rows, per, sorted }
    }

    /// The mean over the rows of each draw.
    fn by_draw(&self, f: impl Fn(f64) -> f64) -> Vec<f64> {
        self.rows.chunks_exact(self.per).map(|draw| draw.iter().map(|x| f(*x)).sum::<f64>() / self.per as f64).collect()
    }

    /// A mean over rows, as one over draws.
    fn mean_of(&self, f: impl Fn(f64) -> f64) -> Estimate {
        Estimate::of_mean(&self.by_draw(f))
    }

    /// The square root of the mean of the squares.
    pub(crate) fn root_mean_square(&self) -> Estimate {
        self.mean_of(|x| x * x).map(|x| x.clamp(0.0, f64::INFINITY).sqrt())
    }

    /// The share of rows below a value.
    pub(crate) fn share_below(&self, value: f64) -> Estimate {
        Estimate::of_shares(&self.by_draw(|x| f64::from(u8::from(x < value))))
    }

    pub(crate) fn quantile(&self, p: f64) -> Estimate {
        let value = quantile(&self.sorted, p);
        let share = self.mean_of(|x| f64::from(u8::from(x <= value)));
        let half = (share.high - share.low) / 2.0;
        if half.is_nan() {
            return Estimate { value, low: f64::NAN, high: f64::NAN };
        }
        Estimate { value, low: quantile(&self.sorted, p - half), high: quantile(&self.sorted, p + half) }
    }

    /// The smallest share of rows that holds `part` of the sum of squares, with the interval of the jackknife over groups of draws.
    pub(crate) fn share_holding(&self, part: f64) -> Estimate {
        let draws = self.rows.len() / self.per;
        let mut order: Vec<(f64, usize)> =
            self.rows.iter().enumerate().map(|(at, x)| (x * x, at / self.per * GROUPS / draws.max(1))).collect();
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let without = |group: Option<usize>| {
            let left = || order.iter().filter(|(_, g)| Some(*g) != group).map(|(x, _)| *x);
            let (total, count): (f64, usize) = left().fold((0.0, 0), |(sum, n), x| (sum + x, n + 1));
            let mut held = 0.0;
            let needed = left().take_while(|x| {
                let more = held < part * total;
                held += x;
                more
            });
            needed.count() as f64 / count.max(1) as f64
        };
        jackknife(draws, without)
    }
}

/// A number of all draws, with the interval that the same number without each group of draws gives.
fn jackknife(draws: usize, without: impl Fn(Option<usize>) -> f64) -> Estimate {
    let value = without(None);
    if draws < GROUPS {
        return Estimate { value, low: f64::NAN, high: f64::NAN };
    }
    let others: Vec<f64> = (0..GROUPS).map(|group| without(Some(group))).collect();
    let mean = others.iter().sum::<f64>() / GROUPS as f64;
    let squares: f64 = others.iter().map(|x| (x - mean).powi(2)).sum();
    let error = (squares * (GROUPS - 1) as f64 / GROUPS as f64).sqrt();
    Estimate::around(value, t_quantile(GROUPS - 1) * error)
}

/// The share of the sum that is in the largest hundredth of the draws: much more than a hundredth where the tail is heavy.
pub(crate) fn share_of_largest(sample: &[f64]) -> Estimate {
    let draws = sample.len();
    let mut order: Vec<(f64, usize)> = sample.iter().enumerate().map(|(at, x)| (*x, at * GROUPS / draws.max(1))).collect();
    order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    jackknife(draws, |group| {
        let left: Vec<f64> = order.iter().filter(|(_, g)| Some(*g) != group).map(|(x, _)| *x).collect();
        left.iter().take(left.len().div_ceil(100)).sum::<f64>() / left.iter().sum::<f64>()
    })
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

    /// The mean with its interval.
    pub(crate) fn estimate(&self) -> Estimate {
        Estimate::around(self.mean, t_quantile(self.count.saturating_sub(1)) * self.standard_error())
    }

    /// The standard deviation with its interval, by its fourth moment.
    pub(crate) fn deviation(&self) -> Estimate {
        let fourth = self.sorted.iter().map(|x| (x - self.mean).powi(4)).sum::<f64>() / self.count as f64;
        let error = ((fourth - self.std.powi(4)).max(0.0) / self.count as f64).sqrt() / (2.0 * self.std);
        Estimate::around(self.std, if self.std > 0.0 { Z * error } else { 0.0 })
    }

    /// The value below which a share `p` of draws lies, by ranks.
    pub(crate) fn quantile(&self, p: f64) -> Estimate {
        let half = Z * (p * (1.0 - p) / self.count as f64).sqrt();
        let at = |p: f64| quantile(&self.sorted, p);
        Estimate { value: at(p), low: at(p - half), high: at(p + half) }
    }

    pub(crate) fn median(&self) -> Estimate {
        self.quantile(0.5)
    }

    /// Share of draws below `value`, in percent.
    pub(crate) fn percentile_of(&self, value: f64) -> Estimate {
        Estimate::of_share(self.sorted.partition_point(|x| *x < value), self.count).map(|share| 100.0 * share)
    }

    /// Whether each number lies outside of the central part of the sample, so much of it on each side.
    pub(crate) fn outside<'s>(&self, sample: &'s [f64], side: f64) -> impl Iterator<Item = bool> + 's {
        let (low, high) = (quantile(&self.sorted, side), quantile(&self.sorted, 1.0 - side));
        sample.iter().map(move |x| *x < low || *x > high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::statistics::draws::Draw;

    #[test]
    fn summaries_of_a_small_sample_are_those_by_hand() {
        let sample = [4.0, 1.0, 3.0, 2.0, 10.0];
        let s = Summary::new(&sample);
        assert_eq!((s.mean, s.median().value, s.quantile(0.25).value, s.quantile(1.0).value), (4.0, 3.0, 2.0, 10.0));
        assert!((s.std - 12.5f64.sqrt()).abs() < 1e-15);
        assert_eq!((s.percentile_of(3.0).value, s.percentile_of(3.5).value, s.percentile_of(99.0).value), (40.0, 60.0, 100.0));
        let rows = Rows::new(&sample, 1);
        assert_eq!(rows.root_mean_square().value, 26f64.sqrt());
        // 100 of 130 are held by one in five, 90 % by two.
        assert_eq!((rows.share_holding(0.75).value, rows.share_holding(0.88).value), (0.2, 0.4));
        assert!((rows.share_below(3.0).value - 0.4).abs() < 1e-12);
        assert_eq!(s.outside(&sample, 0.1).collect::<Vec<_>>(), [false, true, false, false, true]);
        assert!(share_of_largest(&sample).value == 0.5 && share_of_largest(&sample).low.is_nan());
    }

    /// 400 samples of 60 draws of 8 rows that share a factor, log-normal: how many intervals hold what is true.
    #[test]
    fn intervals_of_rows_hold_what_is_true_although_rows_of_a_draw_are_alike() {
        let (mut median, mut share, mut square) = (0, 0, 0);
        for index in 0..400 {
            let mut x = vec![0.0; 60 * 9];
            Draw::named(11, "rows", [60, 8], index).normal(&mut x);
            let rows: Vec<f64> = x.chunks(9).flat_map(|draw| draw[1..].iter().map(|y| (draw[0] + y).exp()).collect::<Vec<_>>()).collect();
            let rows = Rows::new(&rows, 8);
            let holds = |e: Estimate, truth: f64| usize::from(e.low <= truth && truth <= e.high);
            median += holds(rows.quantile(0.5), 1.0);
            share += holds(rows.share_below(1.0), 0.5);
            // E exp(2 z) with z of variance 2: exp(4). Its tail is heavy: the interval is known to be too short.
            square += holds(rows.root_mean_square(), 2f64.exp());
        }
        assert!((364..=396).contains(&median) && (364..=396).contains(&share), "{median} and {share} of 400");
        assert!(square > 200, "{square} of 400");
    }

    #[test]
    fn intervals_of_draws_hold_what_is_true() {
        let (mut mean, mut deviation, mut low, mut percentile, mut largest) = (0, 0, 0, 0, 0);
        for index in 0..400 {
            let mut x = vec![0.0; 300];
            Draw::named(12, "draws", [300, 1], index).normal(&mut x);
            let s = Summary::new(&x);
            let holds = |e: Estimate, truth: f64| usize::from(e.low <= truth && truth <= e.high);
            mean += holds(s.estimate(), 0.0);
            deviation += holds(s.deviation(), 1.0);
            low += holds(s.quantile(0.025), -1.959_96);
            percentile += holds(s.percentile_of(1.0), 84.134_47);
            // Of exp(z) the upper hundredth holds the share of z + 1 that is above 2.326: Q(1.326).
            largest += holds(share_of_largest(&x.iter().map(|z| z.exp()).collect::<Vec<_>>()), 0.0924);
        }
        for (what, held) in [("mean", mean), ("deviation", deviation), ("quantile", low), ("percentile", percentile)] {
            assert!((364..=396).contains(&held), "{what}: {held} of 400");
        }
        // Three draws make the largest hundredth of 300: rough, but an interval.
        assert!(largest > 280, "{largest} of 400");
    }
}
