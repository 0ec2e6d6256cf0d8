//! What a low cosine between heads was said to show.

use crate::error::Result;
use crate::judging::{Judged, lucky, ordinal, short};
use crate::published::Document;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let get = |heads: usize, measure: &str, column| {
        tables.number("head_diversity", &[("heads", heads.into()), ("measure", measure.into())], column)
    };
    let percentiles = [get(2, "plain_cosine", "percentile")?, get(4, "plain_cosine", "percentile")?, get(8, "plain_cosine", "percentile")?];
    let explained = (get(4, "plain_cosine", "mean")? - get(4, "plain_cosine", "independent")?).abs() < 0.02
        && get(4, "centred_cosine", "mean")?.abs() < 0.02;
    Ok(vec![
        Judged {
            document: Document::Insights,
            claim: "the mean cosine of two heads' maps is 0.12, 0.17, 0.19 for 2, 4, 8 heads",
            verdict: if lucky(&percentiles.chunks(1).collect::<Vec<_>>()) { Verdict::LuckyDraw } else { Verdict::Holds },
            because: format!(
                "The means over many draws are {}, {}, {}; the published draws stand at the {}, {} and {} percentile.",
                short(get(2, "plain_cosine", "mean")?),
                short(get(4, "plain_cosine", "mean")?),
                short(get(8, "plain_cosine", "mean")?),
                ordinal(percentiles[0]),
                ordinal(percentiles[1]),
                ordinal(percentiles[2])
            ),
        },
        Judged {
            document: Document::Insights,
            claim: "low similarity shows that the heads learn different patterns",
            verdict: if explained { Verdict::WrongAsWorded } else { Verdict::Holds },
            because: format!(
                "Nothing was trained, and the number is that of independent random heads: 1 / (tokens x sum of squared weights) = {} for 4 heads, measured {}. It follows sharpness and length. The centred cosine, which asks the question, is {}.",
                short(get(4, "plain_cosine", "independent")?),
                short(get(4, "plain_cosine", "mean")?),
                short(get(4, "centred_cosine", "mean")?)
            ),
        },
        Judged {
            document: Document::Insights,
            claim: "a single head has similarity 1.00",
            verdict: Verdict::WrongAsWorded,
            because: "One head has no pair to compare: the 1.00 is the answer to an empty list, not a measurement.".to_owned(),
        },
    ])
}
