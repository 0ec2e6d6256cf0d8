//! Gradients by position: through the softmax (dS) at the dominant key of a row and elsewhere, on values that some query favours and on the
//! others; and draw by draw, so that the typical draw stands beside the mean.
//!
//! ```text
//! P = softmax(s Q K^T)          dP = dO V^T          dS = P * (dP - rowsum(P * dP))
//! dQ = s dS K                   dK = s dS^T Q        dV = P^T dO
//! ```

use crate::error::Result;
use crate::experiment::Progress;
use crate::rows::{self, Row};
use crate::statistics::cell::{Cell, Loss, Numbers};
use crate::statistics::estimate::Estimate;
use crate::statistics::summary::{Summary, grouped_median};
use ndarray::{Array2, Array4, Axis};
use rayon::prelude::*;
use regard_plot::Table;

/// Draws of this table, at most: each is kept position by position.
pub(super) const DRAWS: usize = 4000;

/// Name of the table.
pub(super) const TABLE: &str = "attention_gradient_positions";

const COLUMNS: [(&str, &str); 15] = [
    ("d_k", "d_k"),
    ("scaled", "scaled"),
    ("draws", "draws"),
    ("~ds_median_draw", "norm of dS, median draw"),
    ("~ds_smaller", "share of draws with a smaller dS without the scale"),
    ("~dq_median_draw", "norm of dQ, median draw"),
    ("~dq_smaller", "share of draws with a smaller dQ without the scale"),
    ("~dk_median_draw", "norm of dK, median draw"),
    ("~dk_smaller", "share of draws with a smaller dK without the scale"),
    ("~ds_dominant", "median |dS| at the dominant key of a row"),
    ("~ds_other", "median |dS| at the other keys"),
    ("~dv_favoured", "median row of dV, keys that are dominant for a query"),
    ("~dv_other", "median row of dV, other keys"),
    ("~other_keys", "share of keys that are dominant for no query"),
    ("~dv_median_draw", "norm of dV, median draw"),
];

/// Measurements of one draw.
#[derive(Debug, Clone, Default)]
struct Draw {
    ds: f64,
    dq: f64,
    dk: f64,
    dv: f64,
    ds_dominant: Vec<f64>,
    ds_other: Vec<f64>,
    dv_favoured: Vec<f64>,
    dv_other: Vec<f64>,
}

fn matrix(x: &Array4<f64>) -> Array2<f64> {
    x.index_axis(Axis(0), 0).index_axis(Axis(0), 0).to_owned()
}

fn norm(x: &Array2<f64>) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The gradients of one draw, by the formulas above.
fn measure([q, k, v, d_out]: &[Array2<f64>; 4], scale: f64) -> Draw {
    let mut p = q.dot(&k.t()) * scale;
    for mut row in p.rows_mut() {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.mapv_inplace(|s| (s - top).exp());
        let sum = row.sum();
        row /= sum;
    }
    let dp = d_out.dot(&v.t());
    let mut ds = &p * &dp;
    for (mut row, p) in ds.rows_mut().into_iter().zip(p.rows()) {
        let sum = row.sum();
        row.zip_mut_with(&p, |ds, p| *ds -= p * sum);
    }
    let dv = p.t().dot(d_out);
    let mut draw = Draw { ds: norm(&ds), dq: norm(&ds.dot(k)) * scale, dk: norm(&ds.t().dot(q)) * scale, dv: norm(&dv), ..Draw::default() };
    let mut favoured = vec![false; p.ncols()];
    for (ds, p) in ds.rows().into_iter().zip(p.rows()) {
        let dominant = (0..p.len()).max_by(|&a, &b| p[a].total_cmp(&p[b])).unwrap_or(0);
        favoured[dominant] = true;
        for (key, x) in ds.iter().enumerate() {
            if key == dominant { &mut draw.ds_dominant } else { &mut draw.ds_other }.push(x.abs());
        }
    }
    for (row, favoured) in dv.rows().into_iter().zip(favoured) {
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        if favoured { &mut draw.dv_favoured } else { &mut draw.dv_other }.push(norm);
    }
    draw
}

/// `attention_gradient_positions`, one row per d_k, unscaled and scaled, of the first draws of the same cells.
pub(super) fn table(d_k: &[usize], seq: usize, seeds: usize, seed: u64, progress: &dyn Progress) -> Result<Table> {
    let caption = "Gradients by position and by draw; dS: on the scores, through the softmax";
    let mut table = rows::table(TABLE, caption, &COLUMNS);
    let draws = seeds.min(DRAWS);
    for &d_k in d_k {
        let cell = Cell { seq, d_k, seeds: draws, seed, numbers: Numbers::Regard, loss: Some(Loss::Unit) };
        let both = |draw: usize| -> Result<[Draw; 2]> {
            let tensors = cell.draw_one(draw)?.each_ref().map(matrix);
            Ok([1.0, 1.0 / (d_k as f64).sqrt()].map(|scale| measure(&tensors, scale)))
        };
        let all = (0..draws).into_par_iter().map(both).collect::<Result<Vec<_>>>()?;
        progress.advance(draws as u64);
        let smaller = |of: fn(&Draw) -> f64| Estimate::of_share(all.iter().filter(|[off, on]| of(off) < of(on)).count(), draws);
        for (at, scaled) in [false, true].into_iter().enumerate() {
            let median = |of: fn(&Draw) -> f64| Summary::new(&all.iter().map(|both| of(&both[at])).collect::<Vec<_>>()).median();
            let grouped = |of: fn(&Draw) -> &Vec<f64>| grouped_median(&all.iter().map(|both| of(&both[at]).clone()).collect::<Vec<_>>());
            let other: Vec<f64> = all.iter().map(|both| both[at].dv_other.len() as f64 / seq as f64).collect();
            let share = |of: fn(&Draw) -> f64| (!scaled).then(|| smaller(of));
            let row = Row::default().of(d_k).of(scaled).of(draws);
            let row = row.estimate(median(|d| d.ds)).maybe(share(|d| d.ds)).estimate(median(|d| d.dq)).maybe(share(|d| d.dq));
            let row = row.estimate(median(|d| d.dk)).maybe(share(|d| d.dk));
            let row = row.estimate(grouped(|d| &d.ds_dominant)).estimate(grouped(|d| &d.ds_other));
            let row = row.estimate(grouped(|d| &d.dv_favoured)).estimate(grouped(|d| &d.dv_other));
            row.estimate(Estimate::of_mean(&other)).estimate(median(|d| d.dv)).put(&mut table);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Unwatched;
    use regard::{Attention, Scale};
    use regard_plot::Value;

    #[test]
    fn gradients_by_hand_are_those_of_the_library() {
        let cell = Cell { seq: 5, d_k: 4, seeds: 1, seed: 3, numbers: Numbers::Regard, loss: Some(Loss::Unit) };
        let [q, k, v, d_out] = cell.draw_one(0).unwrap();
        for (scale, factor) in [(Scale::Off, 1.0), (Scale::InvSqrtDim, 0.5)] {
            let attention = Attention::new().threads(1).scale(scale);
            let saved = attention.forward_saved(&q, &k, &v).unwrap();
            let known = attention.backward(&q, &k, &v, &saved, &d_out).unwrap();
            let ours = measure(&[&q, &k, &v, &d_out].map(matrix), factor);
            for (ours, known) in [(ours.dq, &known.dq), (ours.dk, &known.dk), (ours.dv, &known.dv)] {
                let known = known.iter().map(|x| x * x).sum::<f64>().sqrt();
                assert!((ours / known - 1.0).abs() < 1e-12, "{ours} instead of {known}");
            }
        }
    }

    #[test]
    fn medians_and_shares_are_those_of_an_independent_computation() {
        // Computed in NumPy with other random numbers: d_k, scaled, column, value, tolerance.
        let known = [
            (256, false, "dq_median_draw", 5.1, 0.3),
            (1024, false, "dq_median_draw", 4.2, 0.4),
            (4096, false, "dq_median_draw", 1.5, 0.4),
            (256, false, "dq_smaller", 0.12, 0.03),
            (1024, false, "dq_smaller", 0.28, 0.03),
            (4096, false, "dq_smaller", 0.46, 0.03),
            (1024, false, "ds_smaller", 0.985, 0.01),
            (256, true, "ds_other", 0.044, 0.004),
            (1024, true, "dv_other", 0.31, 0.03),
            (1024, false, "other_keys", 0.34, 0.02),
        ];
        let table = table(&[256, 1024, 4096], 8, 4000, 1, &Unwatched).unwrap();
        let at = |d_k: i64, scaled: bool, column: &str| {
            let here = |row: &&Vec<Value>| *table.value(row, "d_k") == Value::Integer(d_k) && *table.value(row, "scaled") == scaled.into();
            table.number(table.rows.iter().find(here).unwrap(), column)
        };
        for (d_k, scaled, column, value, tolerance) in known {
            let got = at(d_k, scaled, column);
            assert!((got - value).abs() < tolerance, "{column} at {d_k}, scaled {scaled}: {got} instead of {value}");
        }
        // Orders of magnitude of what vanishes.
        let decades = |x: f64, known: f64| (x / known).log10().abs();
        assert!(decades(at(256, false, "ds_other"), 1.7e-11) < 0.7, "{}", at(256, false, "ds_other"));
        assert!(decades(at(1024, false, "dv_other"), 1.6e-5) < 0.7, "{}", at(1024, false, "dv_other"));
    }
}
