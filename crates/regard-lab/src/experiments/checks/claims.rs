//! Growth, masking, width, rank, and a test that cannot fail.

use crate::error::Result;
use crate::judging::{Judged, ROBUSTNESS, cell, decided, estimate, holds, percent, short};
use crate::published::Document;
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    let growth = |d_k: usize, column| estimate(tables, "check_growth", &[("d_k", d_k.into())], column);
    let masking = |method: &str, column| tables.number("check_masking", &[("method", method.into())], column);
    let kept = estimate(tables, "check_masking", &[("method", "0 before the softmax".into())], "hidden_weight")?;
    let rank = |case: &str| tables.number("check_rank", &[("case", case.into())], "output_rank");
    let exact = |d_k, scaled| tables.number(ROBUSTNESS, &cell(8, d_k, scaled, "max_weight"), "exact");
    let test = tables.get("check_gradient_test")?;
    let unscaled: Vec<_> = test.rows_where("scaled", false).collect();
    let never_fails = unscaled.iter().all(|row| *test.value(row, "passes") == true.into());
    let least = unscaled.iter().map(|row| test.number(row, "smallest")).fold(f64::INFINITY, f64::min);
    let widths = tables.get("check_output_width")?;
    let by_values = widths.rows.iter().all(|row| widths.number(row, "out") == widths.number(row, "d_v"));
    let one = |document, claim, verdict, because| Judged { document, claim, verdict, because };
    Ok(vec![
        one(
            Document::Surgeon,
            "dot products of random vectors grow with sqrt(d_{k})",
            decided(
                all([growth(1024, "ratio")?.within(0.95, 1.05), growth(16, "ratio")?.within(0.95, 1.05)]),
                Verdict::Holds,
                Verdict::Wrong,
            ),
            format!(
                "Their standard deviation is sqrt(d_{{k}}): measured {} at 16 and {} at 1024.",
                growth(16, "std")?.words(),
                growth(1024, "std")?.words()
            ),
        ),
        one(
            Document::ProblemSheet,
            "at d_{k} = 512 dot products range from -50 to 50, scaled from -2.2 to 2.2",
            decided(growth(512, "within_50")?.above(0.95), Verdict::Holds, Verdict::Wrong),
            format!(
                "{} of them lie inside, and the largest of 5 x 5 averages {} ({} scaled).",
                percent(growth(512, "within_50")?),
                growth(512, "largest")?.words(),
                growth(512, "scaled_largest")?.words()
            ),
        ),
        one(
            Document::ProblemSheet,
            "at d_{k} = 64 the scale makes little difference",
            if exact(64, false)? - exact(64, true)? > 0.2 { Verdict::WrongAsWorded } else { Verdict::Holds },
            format!(
                "At 8 tokens the largest weight averages {} without and {} with the scale (exact).",
                short(exact(64, false)?),
                short(exact(64, true)?)
            ),
        ),
        one(
            Document::ProblemSheet,
            "gradients that do not vanish are shown by max |x.grad| > 10^{-8}",
            if never_fails { Verdict::WrongAsWorded } else { Verdict::Holds },
            format!(
                "The least that attention without the scale gives, over widths and starts, is {}.{}",
                short(least),
                if never_fails { " It passes too: the path through V does not vanish, since every row of weights sums to 1." } else { "" }
            ),
        ),
        one(
            Document::Surgeon,
            "hide with -inf, not with 0: softmax turns a score of 0 into weight",
            decided(
                all([kept.above(0.0), Some(masking("-inf before the softmax (Regard)", "hidden_weight")? == 0.0)]),
                Verdict::Holds,
                Verdict::Wrong,
            ),
            format!(
                "With 0 a hidden key keeps a weight of {} on average; with -inf {}. Zeros after the softmax leave rows that sum to as little as {}.",
                kept.words(),
                short(masking("-inf before the softmax (Regard)", "hidden_weight")?),
                short(masking("0 after the softmax", "least_row_sum")?)
            ),
        ),
        one(
            Document::Surgeon,
            "the output is as wide as the values, whatever d_{k} is",
            holds(by_values),
            "The weights are tokens by tokens for every d_{k}; the output is a mixture of values.".to_owned(),
        ),
        one(
            Document::Surgeon,
            "attention is a convex combination, so the output cannot have a higher rank than the input",
            Verdict::HoldsInPart,
            format!(
                "True of one head and its values (3 in, {} out). Heads side by side can raise the rank: tokens of rank 2 give {} with 4 heads. And the softmax makes weights of rank {} out of scores of rank 1.",
                short(rank("values of rank 3")?),
                short(rank("rank-2 tokens, heads: 4")?),
                short(rank("softmax, d_k = 1")?)
            ),
        ),
    ])
}
