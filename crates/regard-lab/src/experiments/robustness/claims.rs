//! Published single draws against their distributions.

use crate::error::Result;
use crate::judging::{Answer, ROBUSTNESS, cell, decided, estimate, lucky_draws, short, tail};
use crate::published::{MINI_REPORT, SURGEON_MAX};
use crate::rules::TAIL;
use regard_plot::Tables;
use regard_plot::page::Verdict;

/// How often chance makes a draw unusual.
const RULE: &str = "attention_robustness_rule";

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    let mut all = Vec::new();
    for (scaled, id) in [(false, "one-draw-unscaled"), (true, "one-draw-scaled")] {
        let get = |statistic, column| tables.number(ROBUSTNESS, &cell(8, 256, scaled, statistic), column);
        let of = |statistic, column| estimate(tables, ROBUSTNESS, &cell(8, 256, scaled, statistic), column);
        let because = format!(
            "One draw, reproduced digit for digit; the expectations are {} and {} (exact). A single matrix scatters by {} and {}: {} % \
             and {} % of {} draws lie below the published values.",
            short(get("max_weight", "exact")?),
            short(get("entropy", "exact")?),
            of("max_weight", "std")?.words(),
            of("entropy", "std")?.words(),
            of("max_weight", "percentile")?.words(),
            of("entropy", "percentile")?.words(),
            short(get("entropy", "seeds")?)
        );
        all.push(Answer { id, verdict: Verdict::OneDraw, because });
    }
    all.push(csv_as_a_whole(tables)?);
    all.extend(surgeon_table(tables)?);
    Ok(all)
}

fn csv_as_a_whole(tables: &Tables) -> Result<Answer> {
    // Without and with the scale Q, K and V are the same: one draw for each width.
    let (mut draws, mut outside, mut count) = (Vec::new(), 0, 0);
    for (d_k, ..) in MINI_REPORT.into_iter().step_by(2) {
        let mut numbers = Vec::new();
        for scaled in [false, true] {
            for statistic in ["max_weight", "entropy", "norm_dq", "norm_dk"] {
                numbers.push(estimate(tables, ROBUSTNESS, &cell(8, d_k, scaled, statistic), "percentile")?);
            }
        }
        outside += numbers.iter().filter(|p| tail(**p).value < TAIL).count();
        count += numbers.len();
        draws.push((numbers, tables.number(RULE, &[("seq", 8usize.into()), ("d_k", d_k.into())], "any_outside")?));
    }
    let with = draws.iter().filter(|(numbers, _)| numbers.iter().any(|p| tail(*p).value < TAIL)).count();
    let chance: f64 = draws.iter().map(|(_, share)| share).sum();
    Ok(Answer {
        id: "csv-as-a-whole",
        verdict: decided(lucky_draws(&draws), Verdict::LuckyDraw, Verdict::Holds),
        because: format!(
            "Reproduced to 2 x 10^{{-6}} from PyTorch's seeds. The eight cells are four draws, each used without and with the scale; \
             {outside} of {count} numbers lie outside the central 95 % of their distributions, in {with} of the four draws, where {} \
             would by chance. Four draws show the trend, not the second digit.",
            short((10.0 * chance).round() / 10.0)
        ),
    })
}

fn surgeon_table(tables: &Tables) -> Result<Vec<Answer>> {
    let mut exact = [Vec::new(), Vec::new()];
    for (d_k, ..) in SURGEON_MAX {
        for (scaled, list) in [false, true].into_iter().zip(&mut exact) {
            list.push(short(tables.number(ROBUSTNESS, &cell(4, d_k, scaled, "max_weight"), "exact")?));
        }
    }
    Ok(vec![Answer {
        id: "expected-maxima",
        verdict: Verdict::Illustrative,
        because: format!(
            "No number of tokens is given. With four the expectations are {} without and {} with the scale (exact). The distance to 1 \
             halves when d_{{k}} is multiplied by four; in the table it falls to a quarter and a fifth.",
            exact[0].join(", "),
            exact[1].join(", ")
        ),
    }])
}
