//! What sinusoidal encodings were said to do.

use super::run::SCALED;
use crate::error::Result;
use crate::judging::{Answer, decided, estimate, percent};
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    if tables.find("positions").is_none() {
        return Ok(Vec::new());
    }
    let of = |kind: &str, column| estimate(tables, "positions", &[("positions", kind.into())], column);
    let (with, without) = (of(SCALED, "right")?, of("none", "right")?);
    // The order must change the output, and trainings must use it.
    let enters = all([of(SCALED, "moved")?.above(0.01), of("none", "moved")?.below(1e-4)]);
    let used = with.exceeds(without);
    let each = tables.get("positions_seeds")?;
    let better = |kind: &str| {
        let right: Vec<f64> = each.rows_where("positions", kind).map(|row| each.number(row, "right")).collect();
        format!("{} of {}", right.iter().filter(|right| **right > without.high).count(), right.len())
    };
    Ok(vec![Answer {
        id: "sinusoidal-positions",
        verdict: decided(all([enters, used]), Verdict::Holds, Verdict::Wrong),
        because: format!(
            "Shuffled input moves the outputs of a model without positions by {} of their size, with sinusoidal ones by {}. With \
             embeddings multiplied by sqrt(width), as in the original, {} trainings write letters backwards better than those without \
             positions; without that factor, where waves of RMS 0.71 cover embeddings of 0.02, {}. Teacher-forced, {} of the letters are \
             right without positions, and {} of the words; with sinusoidal positions {} and {}, with learned ones {} and {}.",
            of("none", "moved")?.words(),
            of(SCALED, "moved")?.words(),
            better(SCALED),
            better("sinusoidal"),
            percent(without),
            percent(of("none", "exact_match")?),
            percent(with),
            percent(of(SCALED, "exact_match")?),
            percent(of("learned", "right")?),
            percent(of("learned", "exact_match")?)
        ),
    }])
}
