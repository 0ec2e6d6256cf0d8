//! The gradients of a row.

use super::super::catalogue::Mistake as M;
use super::{Place, Program, Row, Term};

pub(super) struct Gradients<'a> {
    pub(super) d_out: &'a [f64],
    pub(super) dq: Vec<f64>,
    pub(super) dk: Vec<f64>,
    pub(super) dv: Vec<f64>,
    pub(super) d_bias: Option<Vec<f64>>,
    /// Terms of each element of the bias gradient.
    pub(super) terms: Option<Vec<u32>>,
}

impl Program<'_> {
    /// Weights of a backward pass that has the scores and the log-sum-exp, or the maximum alone.
    fn recompute(&self, row: &mut Row, at: usize) {
        let top = row.terms.iter().filter(|t| t.taken).fold(f64::NEG_INFINITY, |top, t| top.max(t.score));
        let saved = self.saved.and_then(|saved| saved.named("lse")).map(|all| all[at]);
        let own = self.on(M::WeightsUnnormalised).then_some(top);
        let Some(lse) = own.or(saved) else { return };
        for term in row.terms.iter_mut().filter(|t| t.taken) {
            term.weight = if lse == f64::NEG_INFINITY { 0.0 } else { self.power(term.score - lse) };
        }
    }

    /// Adds what a row gives to the gradients.
    pub(super) fn backward(&self, place: Place, row: &mut Row, at: usize, g: &mut Gradients<'_>) {
        let p = self.p;
        let [d, dv] = p.dims;
        let kv = p.heads[1];
        if let Some(spoiled) = row.spoiled {
            g.dq[at * d..(at + 1) * d].fill(spoiled);
            return;
        }
        if self.on(M::BackwardUnmasked) {
            for term in row.terms.iter_mut().filter(|t| t.hidden && t.score.is_finite() && row.lse.is_finite()) {
                (term.taken, term.weight) = (true, self.power(term.score - row.lse));
            }
        }
        let d_out = &g.d_out[at * dv..(at + 1) * dv];
        let value = |t: &Term, c: usize| t.token.map_or(0.0, |token| self.v[(token * kv + t.value_head) * dv + c]);
        let taken: Vec<&Term> = row.terms.iter().filter(|t| t.taken).collect();
        let width = if self.on(M::ValuesTruncated) { d.min(dv) } else { dv };
        let plain: Vec<f64> = taken.iter().map(|t| self.sum(width, |c| d_out[c] * value(t, c))).collect();
        let d_weight: Vec<f64> = taken.iter().zip(&plain).map(|(t, x)| t.factor[1] * x).collect();
        let delta = match self.saved.and_then(|saved| saved.named("out")) {
            Some(out) => self.sum(dv, |c| d_out[c] * out[at * dv + c]),
            None if self.on(M::DeltaUndropped) => self.sum(taken.len(), |i| taken[i].weight * plain[i]),
            None => self.sum(taken.len(), |i| taken[i].weight * d_weight[i]),
        };
        self.recompute(row, at);
        let terms: Vec<&Term> = row.terms.iter().filter(|t| t.taken).collect();
        let base = match () {
            () if self.on(M::Base2) => std::f64::consts::LN_2,
            () if self.on(M::BaseTwice) => std::f64::consts::LOG2_E,
            () => 1.0,
        };
        let of_tile = |i: usize| {
            let tile = self.form(M::DeltaTile)?;
            let own = (0..terms.len()).filter(|&j| terms[j].key / tile == terms[i].key / tile);
            Some(own.map(|j| terms[j].weight * d_weight[j]).sum())
        };
        let delta_of = |i: usize| terms[i].delta.or_else(|| of_tile(i)).unwrap_or(delta);
        let parts = self.parts(row.terms.len());
        let d_score = |i: usize| match () {
            () if parts > 1 => {
                let part = |t: &Term| self.part(t.key, row.terms.len());
                let own = (0..terms.len()).filter(|&j| part(terms[j]) == part(terms[i]));
                terms[i].weight * (d_weight[i] - parts as f64 * own.map(|j| terms[j].weight * d_weight[j]).sum::<f64>())
            }
            () if self.on(M::DeltaMissing) => terms[i].weight * d_weight[i],
            () if self.on(M::DeltaAdded) => terms[i].weight * (d_weight[i] + delta),
            () if self.on(M::DeltaOutside) => terms[i].weight * d_weight[i] - delta,
            () if self.on(M::DsIsDp) || self.on(M::NoSoftmax) => d_weight[i],
            () => terms[i].weight * self.round(d_weight[i] - delta_of(i)),
        };
        // Without the sink in the maximum the weights depend on it, and automatic differentiation goes through it.
        let through_max = match self.form(M::SinkNotInMax) {
            Some(2) => delta * (1.0 - terms.iter().map(|t| t.weight).sum::<f64>()),
            _ if self.form(M::Unnormalised) == Some(1) => delta,
            _ => 0.0,
        };
        let top = terms.iter().enumerate().max_by(|a, b| a.1.score.total_cmp(&b.1.score)).map(|(at, _)| at);
        let [scale, _] = self.scale(place);
        let group = p.heads[0] / kv;
        let skipped = match self.form(M::GqaGradient) {
            Some(0) => !place.head.is_multiple_of(group),
            Some(1) => place.head % group != group - 1,
            _ => self.form(M::QueryTailBackward).is_some_and(|tile| place.query >= p.segments[place.segment].n / tile * tile),
        };
        for (i, term) in terms.iter().enumerate() {
            let Some(token) = term.token else { continue };
            let ds = self.round((d_score(i) - if Some(i) == top { through_max } else { 0.0 }) * base);
            let k_at = (token * kv + term.head) * d;
            let row_scale = p.k_scale.as_ref().map_or(1.0, |all| all[token * kv + term.head]);
            let slope = term.slope * row_scale;
            let unscaled = |mistake: M| if self.on(mistake) { slope / scale } else { slope };
            let base_factor = |mistake: M| match self.form(mistake) {
                Some(0) => std::f64::consts::LOG2_E,
                Some(_) => std::f64::consts::LN_2,
                None => 1.0,
            };
            let other = |usual: M, twice: M| match () {
                () if self.on(usual) => 1.0 / (d as f64).sqrt() / scale,
                () if self.on(twice) => scale,
                () => 1.0,
            };
            let q_slope = unscaled(M::DqUnscaled) * base_factor(M::DqBase) * other(M::DqDefault, M::DqTwice);
            let k_slope = unscaled(M::DkUnscaled) * base_factor(M::DkBase) * other(M::DkDefault, M::DkTwice);
            for c in 0..self.width(d) {
                let dq = &mut g.dq[at * d + c];
                *dq = self.round(*dq + self.round(ds * q_slope * self.k[k_at + c]));
                if !skipped {
                    let dk = &mut g.dk[k_at + c];
                    *dk = self.round(*dk + self.round(ds * k_slope * self.q[at * d + c]));
                }
            }
            if !skipped {
                for (c, x) in d_out.iter().enumerate() {
                    let dv = &mut g.dv[(token * kv + term.value_head) * dv + c];
                    *dv = self.round(*dv + self.round(term.weight * term.factor[1] * x));
                }
            }
            if let (Some(bias), Some(d_bias), Some(counts)) = (&p.bias, &mut g.d_bias, &mut g.terms)
                && term.key < p.segments[place.segment].m
            {
                let own = self.form(M::PlaneFirstBatch).or(self.form(M::PlaneFirstHead)).or(self.form(M::PlaneFirstRow));
                let rightly = own.or(self.form(M::PlaneHeadsMixed)) == Some(1);
                let read = [place.segment, place.head, place.query, term.key];
                let to = if rightly { bias.index(read) } else { self.place_of(bias, place, term.key, self.on(M::BiasTransposed)) };
                let beta = if self.on(M::BiasGradientScaled) { term.beta * scale } else { term.beta };
                match self.form(M::BiasGradient) {
                    Some(0) if counts[to] > 0 => {}
                    Some(0 | 1) => d_bias[to] = ds * beta,
                    _ => d_bias[to] = self.round(d_bias[to] + ds * beta),
                }
                counts[to] += 1;
            }
        }
    }
}
