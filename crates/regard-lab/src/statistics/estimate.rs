//! [`Estimate`]: a sampled quantity with its 95 % interval. Every mean of a random quantity has one.

use crate::rules::DECISIVE;
use regard_plot::Value;

/// A number and the ends of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// 97.5 % of Student's t distribution, for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
    2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// 97.5 % of Student's t distribution.
pub(crate) fn t_quantile(degrees: usize) -> f64 {
    match degrees {
        0 => f64::NAN,
        1..=30 => T[degrees - 1],
        // The first term of the expansion around the normal distribution: right to 0.001.
        _ => 1.959_964 + 2.372_3 / degrees as f64 + 2.8 / (degrees as f64).powi(2),
    }
}

/// 97.5 % of the normal distribution.
pub(crate) const Z: f64 = 1.959_963_984_540_054;

impl Estimate {
    /// A known value: an interval of width 0.
    pub(crate) fn exact(value: f64) -> Self {
        Self { value, low: value, high: value }
    }

    /// With a half width.
    pub(crate) fn around(value: f64, half: f64) -> Self {
        Self { value, low: value - half, high: value + half }
    }

    /// The mean of independent numbers, by Student's t; of equal numbers that number, of one without an interval.
    pub(crate) fn of_mean(sample: &[f64]) -> Self {
        let n = sample.len();
        let mean = sample.iter().sum::<f64>() / n as f64;
        if n > 0 && sample.iter().all(|x| *x == sample[0]) && n > 1 {
            return Self::exact(sample[0]);
        }
        let squares: f64 = sample.iter().map(|x| (x - mean).powi(2)).sum();
        let error = (squares / (n.saturating_sub(1) * n) as f64).sqrt();
        Self::around(mean, t_quantile(n.saturating_sub(1)) * error)
    }

    /// A share of independent cases, by Wilson's interval: right also where the share is 0 or 1.
    pub(crate) fn of_share(hits: usize, count: usize) -> Self {
        let (value, [low, high]) = (hits as f64 / count as f64, wilson(hits as f64, count as f64, Z));
        Self { value, low, high }
    }

    /// A share of cases that come in independent groups, by the share in each group: Wilson's interval for as many independent cases as
    /// would scatter like the groups, so that it is right also where the share is 0 or 1 in all of them.
    pub(crate) fn of_shares(groups: &[f64]) -> Self {
        let (n, mean) = (groups.len(), Self::of_mean(groups));
        if n < 2 {
            return mean;
        }
        let p = mean.value.clamp(0.0, 1.0);
        let square = ((mean.high - mean.low) / (2.0 * t_quantile(n - 1))).powi(2);
        // Groups that are all alike might be one case each.
        let cases = if square > 0.0 { p * (1.0 - p) / square } else { n as f64 };
        let [low, high] = wilson(p * cases, cases, Z);
        Self { value: mean.value, low, high }
    }

    /// By an increasing function.
    pub(crate) fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { value: f(self.value), low: f(self.low), high: f(self.high) }
    }

    /// The interval of [`DECISIVE`] standard errors.
    pub(crate) fn decisive(self) -> (f64, f64) {
        let factor = DECISIVE / Z;
        (self.value - factor * (self.value - self.low), self.value + factor * (self.high - self.value))
    }

    /// Whether it is above the limit; `None` if undecided.
    pub(crate) fn above(self, limit: f64) -> Option<bool> {
        let (low, high) = self.decisive();
        if low > limit {
            Some(true)
        } else if high < limit {
            Some(false)
        } else {
            None
        }
    }

    /// Whether it is below the limit.
    pub(crate) fn below(self, limit: f64) -> Option<bool> {
        self.above(limit).map(|above| !above)
    }

    /// Whether it is within the limits.
    pub(crate) fn within(self, low: f64, high: f64) -> Option<bool> {
        all([self.above(low), self.below(high)])
    }

    /// Whether it is above another estimate; both intervals count.
    pub(crate) fn exceeds(self, other: Self) -> Option<bool> {
        let difference = self.value - other.value;
        let half = |e: Self| ((e.high - e.low) / 2.0).abs();
        Self::around(difference, half(self).hypot(half(other))).above(0.0)
    }

    /// Three cells: the number, and the ends.
    pub(crate) fn values(self) -> [Value; 3] {
        let end = |x: f64| if x.is_nan() { Value::Missing } else { Value::Number(x) };
        [self.value.into(), end(self.low), end(self.high)]
    }

    /// For a sentence, without digits that the interval does not support.
    pub(crate) fn words(self) -> String {
        regard_plot::with_interval(self.value, self.low, self.high)
    }
}

/// Wilson's interval of a share at `z` standard errors.
pub(crate) fn wilson(hits: f64, count: f64, z: f64) -> [f64; 2] {
    let (p, square) = (hits / count, z * z / count);
    let middle = (p + square / 2.0) / (1.0 + square);
    let half = z / (1.0 + square) * (p * (1.0 - p) / count + square / (4.0 * count)).sqrt();
    [if hits == 0.0 { 0.0 } else { middle - half }, if hits == count { 1.0 } else { middle + half }]
}

/// Conjunction: false as soon as one is false, undecided if one is undecided.
pub(crate) fn all<const N: usize>(answers: [Option<bool>; N]) -> Option<bool> {
    if answers.contains(&Some(false)) {
        Some(false)
    } else if answers.contains(&None) {
        None
    } else {
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_textbooks() {
        // Student's sleep data, the second drug: mean 2.33, standard deviation 2.002, 95 % interval 0.898 to 3.762.
        let sleep = Estimate::of_mean(&[1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]);
        assert!((sleep.value - 2.33).abs() < 1e-9 && (sleep.low - 0.898).abs() < 2e-3 && (sleep.high - 3.762).abs() < 2e-3, "{sleep:?}");
        // Wilson's interval of 7 of 10: 0.397 to 0.892.
        let share = Estimate::of_share(7, 10);
        assert!((share.low - 0.3968).abs() < 1e-3 && (share.high - 0.8922).abs() < 1e-3, "{share:?}");
        assert_eq!((Estimate::of_share(0, 10).low, Estimate::of_share(10, 10).high), (0.0, 1.0));
        // Groups of one case each are cases, but for n - 1; none in any group leaves room for some; half in each of four is no certainty.
        let (groups, cases) = (Estimate::of_shares(&[1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]), Estimate::of_share(7, 10));
        assert!((groups.low - cases.low).abs() < 0.02 && (groups.high - cases.high).abs() < 0.02, "{groups:?}");
        assert_eq!(Estimate::of_shares(&[0.0; 50]), Estimate::of_share(0, 50));
        assert_eq!(Estimate::of_shares(&[0.5; 4]), Estimate::of_share(2, 4));
        assert!(Estimate::of_shares(&[0.0, 0.0, 0.0, 1e-3]).low >= 0.0 && Estimate::of_shares(&[1.0]).low.is_nan());
        for (degrees, known) in [(40, 2.021), (60, 2.000), (120, 1.980), (1000, 1.962)] {
            assert!((t_quantile(degrees) - known).abs() < 1.5e-3, "{degrees}: {}", t_quantile(degrees));
        }
        assert_eq!(Estimate::of_mean(&[3.0, 3.0, 3.0]), Estimate::exact(3.0));
        assert!(Estimate::of_mean(&[3.0]).low.is_nan(), "one number has no interval");
    }

    #[test]
    fn evidence_decides_only_where_it_reaches() {
        let e = Estimate::around(1.0, Z * 0.1);
        assert_eq!([e.above(0.59), e.above(0.61), e.above(1.39), e.above(1.41)], [Some(true), None, None, Some(false)]);
        assert_eq!((e.within(0.5, 1.5), e.within(0.5, 1.2), e.within(2.0, 3.0)), (Some(true), None, Some(false)));
        assert_eq!(e.exceeds(Estimate::around(0.4, Z * 0.1)), Some(true));
        assert_eq!(e.exceeds(Estimate::around(0.5, Z * 0.1)), None);
        let unknown = Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN };
        assert_eq!((unknown.above(0.0), unknown.below(0.0)), (None, None), "NaN decides nothing");
        assert_eq!(all([Some(true), None]), None);
        assert_eq!(all([None, Some(false)]), Some(false));
    }

    #[test]
    fn nineteen_of_twenty_intervals_hold_the_mean() {
        let mut held = 0;
        for draw in 0..2000 {
            let mut x = [0.0; 12];
            crate::statistics::draws::Draw::named(7, "estimate", [1, 1], draw).normal(&mut x);
            let e = Estimate::of_mean(&x);
            held += usize::from(e.low <= 0.0 && e.high >= 0.0);
        }
        assert!((1860..=1940).contains(&held), "{held} of 2000");
    }
}
