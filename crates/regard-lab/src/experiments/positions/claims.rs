//! What sinusoidal encodings were said to do.

use crate::error::Result;
use crate::judging::{Judged, decided, estimate, percent};
use crate::published::Document;
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Judged>> {
    if tables.find("positions").is_none() {
        return Ok(Vec::new());
    }
    let of = |kind: &str, column| estimate(tables, "positions", &[("positions", kind.into())], column);
    let (with, without) = (of("sinusoidal", "right")?, of("none", "right")?);
    Ok(vec![Judged {
        document: Document::Notebook,
        claim: "sinusoidal encodings are added to the embeddings so that the order of the sequence is kept",
        verdict: decided(all([of("sinusoidal", "moved")?.above(0.01), of("none", "moved")?.below(1e-4)]), Verdict::Holds, Verdict::Wrong),
        because: format!(
            "Without positions a shuffled input gives the same outputs, shuffled; with sinusoidal ones the outputs move. Asked to write letters backwards, such a model has {} of the letters right, the ones before given, and {} of the words; with sinusoidal positions {} and {}, with learned ones {} and {}.",
            percent(without),
            percent(of("none", "exact_match")?),
            percent(with),
            percent(of("sinusoidal", "exact_match")?),
            percent(of("learned", "right")?),
            percent(of("learned", "exact_match")?)
        ),
    }])
}
