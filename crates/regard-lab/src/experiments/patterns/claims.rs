//! What masks cost, and what a row without keys becomes.

use crate::drawing::{estimate_at, joined};
use crate::error::Result;
use crate::judging::{Answer, holds, percent, short};
use regard_plot::Tables;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let maps = tables.get("attention_patterns_maps")?;
    let above: f64 = maps
        .rows_where("pattern", "causal")
        .filter(|row| maps.number(row, "key") > maps.number(row, "query"))
        .map(|row| maps.number(row, "weight"))
        .sum();
    let pairs = |pattern: &str| tables.number("attention_patterns", &[("pattern", pattern.into())], "pairs");
    let empty = tables.get("attention_empty_rows")?;
    let nan = empty.rows.iter().filter(|row| empty.number(row, "textbook_sum").is_nan()).count();
    let zero = empty.rows.iter().all(|row| empty.number(row, "visible_keys") > 0.0 || empty.number(row, "regard_out") == 0.0);
    Ok(vec![
        Answer {
            id: "pattern-costs",
            verdict: holds(pairs("local")? < pairs("causal")? && pairs("causal")? < pairs("full")?),
            because: format!(
                "Of {} pairs causal attention needs {} and the window {}.{}",
                short(pairs("full")?),
                short(pairs("causal")?),
                short(pairs("local")?),
                times(tables)?
            ),
        },
        Answer {
            id: "lower-triangular",
            verdict: holds(above == 0.0),
            because: format!("The weights above the diagonal sum to exactly {above}, in every row."),
        },
        Answer {
            id: "masked-row",
            verdict: holds(nan == 1 && zero),
            because: "The last query of a strictly-future mask sees nothing: NaN in the textbook softmax, exactly zero in Regard, where \
                 no NaN arises in the first place."
                .to_owned(),
        },
    ])
}

/// What the clock says, where it was asked: times do not follow pairs where a tile is computed whole or its mask must be looked at.
fn times(tables: &Tables) -> Result<String> {
    let (Some(exponents), Some(times)) = (tables.find("patterns_exponents"), tables.find("patterns_time")) else {
        return Ok(String::new());
    };
    let of = |pattern: &str| estimate_at(exponents, &[("pattern", pattern.into())], "time_exponent").words();
    let longest = times.rows.iter().map(|row| times.number(row, "seq")).fold(0.0, f64::max);
    let at = [("pattern", "local".into()), ("seq", (longest as usize).into())];
    let (pairs, time) = (joined(times, &at, "share"), estimate_at(times, &at, "of_full"));
    // Said where it is so in every round.
    let unlike = if time.low > 2.0 * pairs {
        format!(
            " It is not in proportion to the pairs: at {longest} tokens the window has {:.2} % of the pairs and takes {} of the time, \
             since whole tiles are computed.",
            100.0 * pairs,
            percent(time)
        )
    } else {
        String::new()
    };
    Ok(format!(" The time grows as n to the power {} (full), {} (causal), {} (window).{unlike}", of("full"), of("causal"), of("local")))
}
