//! Whether queries, keys and values have roles of their own.

use super::run::TASKS;
use crate::error::Result;
use crate::judging::{Answer, decided, estimate, percent};
use crate::statistics::estimate::all;
use regard_plot::Tables;
use regard_plot::page::Verdict;

pub(super) fn claims(tables: &Tables) -> Result<Vec<Answer>> {
    if tables.find("roles").is_none() {
        return Ok(Vec::new());
    }
    let of =
        |at: usize, variant: &str| estimate(tables, "roles", &[("task", TASKS[at].name().into()), ("variant", variant.into())], "right");
    let whole = of(1, "three projections")?;
    let exchanged = [of(1, "Q and K exchanged")?, of(1, "K and V exchanged")?, of(1, "Q and V exchanged")?];
    let [a, b, c] = exchanged.map(|e| whole.exceeds(e));
    let words = |at: usize, variant: &str| of(at, variant).map(percent);
    Ok(vec![Answer {
        id: "qkv-roles",
        verdict: decided(all([all([a, b]), c]), Verdict::Holds, Verdict::Wrong),
        because: format!(
            "Asked for the value of the next key, attention with three projections is right in {} of cases; with the trained Q and K \
             exchanged in {}, K and V in {}, Q and V in {}. Sharing one matrix for Q and K in training gives {} ({} where the key itself \
             is sought), for K and V {}.",
            percent(whole),
            percent(exchanged[0]),
            percent(exchanged[1]),
            percent(exchanged[2]),
            words(1, "Q = K")?,
            words(0, "Q = K")?,
            words(1, "K = V")?
        ),
    }])
}
