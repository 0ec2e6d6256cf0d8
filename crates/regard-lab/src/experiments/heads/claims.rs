//! What a low cosine between heads was said to show.

use crate::error::Result;
use crate::judging::{Answer, decided, estimate, lucky_draws};
use crate::rules::EXPLAINED;
use crate::statistics::estimate::{Estimate, all};
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let of = |heads: usize, measure: &str, column| {
        estimate(tables, "head_diversity", &[("heads", heads.into()), ("measure", measure.into())], column)
    };
    let plain = |heads| of(heads, "plain_cosine", "mean").map(Estimate::words);
    let percentiles = [of(2, "plain_cosine", "percentile")?, of(4, "plain_cosine", "percentile")?, of(8, "plain_cosine", "percentile")?];
    let (mean, independent, centred) =
        (of(4, "plain_cosine", "mean")?, of(4, "plain_cosine", "independent")?, of(4, "centred_cosine", "mean")?);
    let apart = Estimate::around(mean.value - independent.value, (mean.high - mean.low).hypot(independent.high - independent.low) / 2.0);
    let explained = all([apart.within(-EXPLAINED, EXPLAINED), centred.within(-EXPLAINED, EXPLAINED)]);
    // One number of one draw is outside in one case of twenty.
    let draws: Vec<_> = percentiles.iter().map(|p| (vec![*p], 0.05)).collect();
    Ok(vec![
        Answer {
            id: "head-cosines",
            verdict: decided(lucky_draws(&draws), Verdict::LuckyDraw, Verdict::Holds),
            because: format!(
                "The means over many draws are {}, {}, {}; below the published draws lie {} %, {} % and {} % of them.",
                plain(2)?,
                plain(4)?,
                plain(8)?,
                percentiles[0].words(),
                percentiles[1].words(),
                percentiles[2].words()
            ),
        },
        Answer {
            id: "low-similarity",
            verdict: decided(explained, Verdict::WrongAsWorded, Verdict::Holds),
            because: format!(
                "Nothing was trained. Independent random heads have a cosine of about 1 / (tokens x sum of squared weights), {} for 4 \
                 heads; measured is {}. The centred cosine, which takes out what all maps share, is {}.",
                independent.words(),
                mean.words(),
                centred.words()
            ),
        },
        Answer {
            id: "single-head",
            verdict: Verdict::WrongAsWorded,
            because: "One head has no pair to compare: the 1.00 is the answer to an empty list, not a measurement.".to_owned(),
        },
    ])
}
