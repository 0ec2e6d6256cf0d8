//! The rules of the verdicts: every edge in one place, printed in the methods box of the report.
//!
//! A verdict is given where the evidence is [`DECISIVE`] standard errors clear of the edge of its rule; it is *undecided* otherwise.
//! Edges of claims that have rules of their own are in `claims/*.toml`.

use crate::statistics::estimate::{Estimate, Z, t_quantile};

/// Distance of the evidence from the edge of a rule, in standard errors, at which it decides. Few samples: the interval is Student's, so
/// that the distance is larger by the ratio of the quantiles.
pub(crate) const DECISIVE: f64 = 4.0;
/// Two losses are equal if they differ by at most this: sums over windows in another order.
pub(crate) const SAME_LOSS: f64 = 1e-4;
/// A prefix loss this many times the causal model's, or above that of uniform guessing, is a failure at inference.
pub(crate) const FAILING_LOSS: f64 = 2.0;
/// Without a mask: prefix loss relative to the causal model's.
pub(crate) const LEAKING_LOSS: f64 = 1.5;
/// Nats that a cheaper attention may cost.
pub(crate) const CHEAP: f64 = 0.05;
/// Relative loss that shared keys and values may cost.
pub(crate) const SHARED: f64 = 0.1;
/// Relative bias of dropped weights.
pub(crate) const UNBIASED: f64 = 0.01;
/// Heads of a block differ below this centred cosine and above this Jensen-Shannon divergence.
pub(crate) const DIFFERENT: (f64, f64) = (0.5, 0.1);
/// Share of saturated rows of a collapsed model.
pub(crate) const COLLAPSED: f64 = 0.9;
/// Excess weight of a head on the related position, over even weights or over the distractor: one edge for all kinds of heads.
pub(crate) const HEAD_EXCESS: f64 = 0.0;
/// Excess over even weights that a pattern of a head needs, at the lower 95 % end over windows.
pub(crate) const PATTERN_EXCESS: f64 = 0.1;
/// A head whose rows are even in at least this share of cases is uniform, which is no pattern.
pub(crate) const UNIFORM_HEAD: f64 = 0.95;
/// Share of right answers above which a task is done.
pub(crate) const COPIES: f64 = 0.9;
/// Distance from the expectation of independent heads within which cosines are explained by it.
pub(crate) const EXPLAINED: f64 = 0.02;
/// Slope of the logarithm of the entropy against that of the width, and nats by which it may change with the scale.
pub(crate) const ENTROPY_FALLS: (f64, f64) = (-0.3, 0.05);
/// Tail of a distribution on each side, in percent, outside of which a published number is unusual.
pub(crate) const TAIL: f64 = 2.5;
/// Several draws together are lucky if chance produces as many unusual draws with a smaller probability.
pub(crate) const LUCKY: f64 = 0.05;

/// A rule as the methods box shows it: what it decides, its edge, and its false rate, the probability that a quantity exactly at the edge
/// is decided either way.
pub(crate) struct Rule {
    pub(crate) decides: &'static str,
    pub(crate) edge: String,
    /// Upper bound, tested by simulation.
    pub(crate) false_rate: String,
}

/// False rates by the kind of evidence.
pub(crate) const RATE_DRAWS: f64 = 1e-3;
pub(crate) const RATE_TRAININGS: f64 = 0.01;
pub(crate) const RATE_TEXTS: f64 = 0.01;
/// Of a pattern in half of 5 trainings of 8 heads.
pub(crate) const RATE_PATTERNS: f64 = 0.07;

/// Names that the edges of `claims/*.toml` may contain in braces, and their values.
pub(crate) fn constants() -> Vec<(&'static str, String)> {
    let number = |x: f64| regard_plot::prose_number(x);
    vec![
        ("DECISIVE", number(DECISIVE)),
        ("SAME_LOSS", number(SAME_LOSS)),
        ("FAILING_LOSS", number(FAILING_LOSS)),
        ("LEAKING_LOSS", number(LEAKING_LOSS)),
        ("CHEAP", number(CHEAP)),
        ("SHARED", number(SHARED)),
        ("UNBIASED", number(UNBIASED)),
        ("DIFFERENT_COSINE", number(DIFFERENT.0)),
        ("DIFFERENT_DIVERGENCE", number(DIFFERENT.1)),
        ("COLLAPSED", number(COLLAPSED)),
        ("HEAD_EXCESS", number(HEAD_EXCESS)),
        ("PATTERN_EXCESS", number(PATTERN_EXCESS)),
        ("COPIES", number(COPIES)),
        ("EXPLAINED", number(EXPLAINED)),
        ("ENTROPY_SLOPE", number(ENTROPY_FALLS.0)),
        ("ENTROPY_CHANGE", number(ENTROPY_FALLS.1)),
        ("LUCKY", number(100.0 * LUCKY)),
        ("CENTRAL", number(100.0 - 2.0 * TAIL)),
    ]
}

/// Every rule, for the methods box.
pub(crate) fn all() -> Vec<Rule> {
    let rule = |decides, edge: String, rate: f64| {
        let false_rate = if rate > 0.0 { format!("below {} %", regard_plot::prose_number(100.0 * rate)) } else { "none: exact".to_owned() };
        Rule { decides, edge, false_rate }
    };
    let (draws, trainings, texts, exact) = (RATE_DRAWS, RATE_TRAININGS, RATE_TEXTS, 0.0);
    vec![
        rule("a mean or a share over draws", format!("{DECISIVE} standard errors from the edge of its claim"), draws),
        rule("a mean over 5 trainings", format!("{DECISIVE} standard errors, as Student's t: 5.7 with 5 trainings"), trainings),
        rule("a mean over 8 or 16 texts", format!("{DECISIVE} standard errors; bootstrap intervals are widened to Student's t"), texts),
        rule("one published draw", "no verdict on luck: it is compared with its expectation".to_owned(), exact),
        rule(
            "several published draws",
            format!(
                "lucky if chance gives as many draws with a number outside the central {} % in less than {} % of cases",
                100.0 - 2.0 * TAIL,
                100.0 * LUCKY
            ),
            LUCKY,
        ),
        rule("learning", "validation loss below that of a bigram model; below a unigram model: in part".to_owned(), trainings),
        rule("failing at inference", format!("prefix loss above uniform guessing, or {FAILING_LOSS} times the causal model's"), trainings),
        rule("no leak", format!("leak exactly 0, and prefix and validation loss within {SAME_LOSS}"), exact),
        rule("near-perfect loss", "unigram loss / window: one target in each window cannot be copied".to_owned(), trainings),
        rule("sparse attention", format!("loss within {CHEAP} nats, output within {CHEAP} of its length"), trainings),
        rule("shared keys and values", format!("loss within {SHARED} of the loss"), trainings),
        rule("dropout without bias", format!("relative bias within {UNBIASED}"), draws),
        rule("heads that differ", format!("centred cosine below {}, divergence above {}", DIFFERENT.0, DIFFERENT.1), trainings),
        rule(
            "pattern of trained heads",
            format!("lower 95 % end over windows above {PATTERN_EXCESS}, in some head of half of the trainings"),
            RATE_PATTERNS,
        ),
        rule("collapse in training", format!("share of rows with a weight above 0.99 above {COLLAPSED}"), trainings),
        rule("heads of models", format!("excess weight above {HEAD_EXCESS} in the worse order, for every kind"), texts),
    ]
}

/// Widens the 95 % bootstrap interval of a mean over `n` texts to Student's. A bootstrap of few texts is too narrow: its standard error
/// lacks the factor sqrt(n / (n - 1)), and its quantile is the normal one.
pub(crate) fn few_texts(e: Estimate, n: usize) -> Estimate {
    if n < 2 {
        return Estimate { value: e.value, low: f64::NAN, high: f64::NAN };
    }
    let factor = t_quantile(n - 1) / Z * (n as f64 / (n - 1) as f64).sqrt();
    Estimate { value: e.value, low: e.value - factor * (e.value - e.low), high: e.value + factor * (e.high - e.value) }
}

/// Of two estimates, the one whose decisive lower end is smaller.
pub(crate) fn worse(a: Estimate, b: Estimate) -> Estimate {
    if a.decisive().0 < b.decisive().0 { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::draws::Draw;

    fn sample(at: u64, n: usize) -> Vec<f64> {
        let mut x = vec![0.0; n];
        Draw::named(11, "rules", [n, 1], at).normal(&mut x);
        x
    }

    /// How often a quantity exactly at the edge is decided either way.
    fn rate(cases: u64, decide: impl Fn(u64) -> Option<bool>) -> f64 {
        (0..cases).filter(|at| decide(*at).is_some()).count() as f64 / cases as f64
    }

    #[test]
    fn false_rates_are_below_their_printed_bounds() {
        let mean = |n: usize| move |at: u64| Estimate::of_mean(&sample(at, n)).above(0.0);
        let (draws, trainings) = (rate(20_000, mean(200)), rate(20_000, mean(5)));
        assert!(draws < RATE_DRAWS, "{draws} for 200 draws");
        assert!(trainings < RATE_TRAININGS, "{trainings} for 5 trainings");
        // Shares of draws with a true share of 0.3.
        let share = |at: u64| {
            let hits = sample(at, 400).iter().filter(|x| **x < -0.524_400_512_708).count();
            Estimate::of_share(hits, 400).above(0.3)
        };
        let shares = rate(5000, share);
        assert!(shares < RATE_DRAWS, "{shares} for shares");
        // Texts: a percentile bootstrap, as the stored tables have it, widened.
        let bootstrap = |n: usize, wide: bool| {
            move |at: u64| {
                let x = sample(at, n);
                let mut picks = vec![0.0; n * 400];
                Draw::named(12, "bootstrap", [n, 2], at).uniform(&mut picks);
                let pick = |u: &f64| x[(((u + 1.0) / 2.0 * n as f64) as usize).min(n - 1)];
                let mut means: Vec<f64> = picks.chunks(n).map(|row| row.iter().map(pick).sum::<f64>() / n as f64).collect();
                means.sort_unstable_by(f64::total_cmp);
                let value = x.iter().sum::<f64>() / n as f64;
                let e = Estimate { value, low: means[9], high: means[390] };
                if wide { few_texts(e, n) } else { e }.above(0.0)
            }
        };
        for n in [8, 16] {
            let widened = rate(3000, bootstrap(n, true));
            assert!(widened < RATE_TEXTS, "{widened} for {n} texts");
        }
        let narrow = rate(3000, bootstrap(4, false));
        assert!(narrow > RATE_TEXTS, "{narrow}: a bootstrap of 4 texts is too narrow as it is, so this test can fail");
    }

    #[test]
    fn patterns_of_heads_at_the_edge_are_rarely_in_half_of_the_trainings() {
        // Eight heads exactly at the edge, over 64 windows, in each of five trainings.
        let present = |at: u64| {
            let head = |one: u64| {
                let x = sample(at * 40 + one, 64);
                let (mean, n) = (x.iter().sum::<f64>() / 64.0, 64.0);
                let error = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n * (n - 1.0))).sqrt();
                Estimate::around(mean, Z * error).low > 0.0
            };
            let trainings = (0..5).filter(|training| (0..8).any(|one| head(training * 8 + one))).count();
            (2 * trainings >= 5).then_some(true)
        };
        let found = rate(4000, present);
        assert!((0.01..RATE_PATTERNS).contains(&found), "{found}");
    }

    #[test]
    fn widened_intervals_of_few_texts_hold_the_mean() {
        for n in [4usize, 8, 16] {
            let held = (0..2000)
                .filter(|at| {
                    let x = sample(*at, n);
                    let mean = x.iter().sum::<f64>() / n as f64;
                    // The bootstrap's standard error, without resampling.
                    let error = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n * n) as f64).sqrt();
                    let e = few_texts(Estimate::around(mean, Z * error), n);
                    e.low <= 0.0 && e.high >= 0.0
                })
                .count();
            assert!((1860..=1940).contains(&held), "{held} of 2000 for {n} texts");
        }
    }

    #[test]
    fn the_worse_of_two_orders_is_that_with_the_lower_decisive_end() {
        // At 95 % the second is lower, at four standard errors the first.
        let (before, behind) = (Estimate::around(0.439, 0.222), Estimate::around(0.378, 0.177));
        assert!(behind.low < before.low && worse(before, behind) == before);
    }

    #[test]
    fn the_methods_box_lists_every_rule_with_an_edge_and_a_rate() {
        assert!(all().iter().all(|rule| !rule.edge.is_empty() && !rule.false_rate.is_empty()));
    }
}
