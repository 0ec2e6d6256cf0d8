//! The merge of two partial results.

use super::super::catalogue::Mistake as M;
use super::super::problem::{Problem, Results};
use super::Run;

/// Two states as one: out = (a e^la + b e^lb) / (e^la + e^lb).
pub(super) fn merge(p: &Problem, run: Run<'_>) -> Results {
    let Some(parts) = &p.merge else { return Results::default() };
    let (on, round) = (|mistake: M| run.switches.on(mistake), |x: f64| run.precision.round(x));
    let dv = p.dims[1];
    let rows = parts.lse[0].len();
    let (mut out, mut lse) = (vec![0.0; rows * dv], vec![0.0; rows]);
    for (row, total) in lse.iter_mut().enumerate() {
        let l = [parts.lse[0][row], parts.lse[1][row]];
        let max = l[0].max(l[1]);
        let empty = max == f64::NEG_INFINITY;
        let shift = if on(M::MergeNoMax) { 0.0 } else { max };
        let power = |x: f64| round(if on(M::MergeBase2) { round(x).exp2() } else { round(x).exp() });
        let mut w = if empty { [0.0, 0.0] } else { l.map(|x| power(x - shift)) };
        let sum = round(w[0] + w[1]);
        if on(M::MergeSwapped) {
            w.swap(0, 1);
        }
        let mut share = if empty { [0.0, 0.0] } else { w.map(|x| round(x / sum)) };
        match run.switches.form(M::MergePlain) {
            Some(0) => share = [0.5, 0.5],
            Some(1) => share = [1.0, 1.0],
            Some(_) => share = l.map(|x| x / (l[0] + l[1])),
            None => {}
        }
        let spoiled = empty && on(M::MergeEmptyNan);
        *total = match () {
            () if spoiled => f64::NAN,
            () if empty => f64::NEG_INFINITY,
            () if run.switches.form(M::MergeLse) == Some(0) => max,
            () if run.switches.form(M::MergeLse) == Some(1) => l[0],
            () if run.switches.form(M::MergeLse) == Some(2) => l[0] + l[1],
            () if on(M::MergeBase2) => shift + sum.log2(),
            () => round(shift + round(sum.ln())),
        };
        for c in 0..dv {
            let at = row * dv + c;
            // A state of weight 0 does not count, whatever it holds.
            let part = |side: usize| if share[side] == 0.0 { 0.0 } else { share[side] * parts.out[side][at] };
            out[at] = if spoiled { f64::NAN } else { run.precision.store(round(part(0) + part(1))) };
        }
    }
    Results { arrays: [Some(out), Some(lse), None, None, None, None] }
}
