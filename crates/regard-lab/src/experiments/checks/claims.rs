//! Masking, width, rank, and a gradient test that never fails.

use crate::error::Result;
use crate::judging::{Answer, decided, estimate, holds, short};
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let masking = |method: &str, column| tables.number("check_masking", &[("method", method.into())], column);
    let kept = estimate(tables, "check_masking", &[("method", "0 before the softmax".into())], "hidden_weight")?;
    let rank = |case: &str| tables.number("check_rank", &[("case", case.into())], "output_rank");
    let test = tables.get("check_gradient_test")?;
    let unscaled: Vec<_> = test.rows_where("scaled", false).collect();
    let never_fails = unscaled.iter().all(|row| *test.value(row, "passes") == true.into());
    let least = unscaled.iter().map(|row| test.number(row, "smallest")).fold(f64::INFINITY, f64::min);
    let widths = tables.get("check_output_width")?;
    let by_values = widths.rows.iter().all(|row| widths.number(row, "out") == widths.number(row, "d_v"));
    let one = |id, verdict, because| Answer { id, verdict, because };
    Ok(vec![
        one(
            "gradient-threshold",
            if never_fails { Verdict::WrongAsWorded } else { Verdict::Holds },
            format!(
                "The smallest value without the scale, over widths and starts, is {}.{}",
                short(least),
                if never_fails { " Attention without the scale passes too, because x also receives the gradient through V." } else { "" }
            ),
        ),
        one(
            "hide-with-inf",
            decided(
                all([kept.above(0.0), Some(masking("-inf before the softmax (Regard)", "hidden_weight")? == 0.0)]),
                Verdict::Holds,
                Verdict::Wrong,
            ),
            format!(
                "With 0 a hidden key keeps a weight of {} on average; with -inf {}. Zeros after the softmax leave rows that sum to as \
                 little as {}.",
                kept.words(),
                short(masking("-inf before the softmax (Regard)", "hidden_weight")?),
                short(masking("0 after the softmax", "least_row_sum")?)
            ),
        ),
        one(
            "output-width",
            holds(by_values),
            "The weights are tokens by tokens for every d_{k}; the output is a mixture of values.".to_owned(),
        ),
        one(
            "output-rank",
            Verdict::HoldsInPart,
            format!(
                "Not for one head and its values (3 in, {} out). Several heads can: tokens of rank 2 give {} with 4 heads. And the \
                 softmax makes weights of rank {} from scores of rank 1.",
                short(rank("values of rank 3")?),
                short(rank("rank-2 tokens, heads: 4")?),
                short(rank("softmax, d_k = 1")?)
            ),
        ),
    ])
}
