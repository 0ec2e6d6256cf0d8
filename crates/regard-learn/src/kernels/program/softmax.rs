//! Rows: the keys that take part, their weights, dropout.

use super::super::catalogue::Mistake as M;
use super::{Place, Program, Row, Term};

impl Program<'_> {
    pub(super) fn row(&self, place: Place) -> Row {
        let p = self.p;
        let (start, m, used, first) = self.keys(place);
        let [scale, after] = self.scale(place);
        let positions = first.map(|first| first + place.query as i64);
        let position = positions[0];
        let tail = self.form(M::TailZeros).or(self.form(M::TailNext));
        let span = tail.map_or(m, |tile| m.next_multiple_of(tile));
        let shown = self.form(M::TailDropped).map_or(m, |tile| m / tile * tile);
        let limit = self.form(M::KeysLimit).unwrap_or(usize::MAX);
        let [from, to] = self.reached(place, positions);
        let padding = p.mask.as_ref().and_then(|mask| self.mask_length(mask, place));
        let mut terms = Vec::with_capacity(span);
        for key in 0..span {
            let (token, head) = self.token(place, start, m, key);
            let raw = self.raw(place, token, head, key);
            let (mut score, mut slope, mut beta) = self.score(raw, scale, self.added(place, position, key, scale));
            let by_length = key >= used && key < m;
            let near = self.near(positions, place, key as i64);
            let mask = p.mask.as_ref().filter(|_| key < m && !(p.causal && self.on(M::MaskLostWithCausal)));
            let by_mask = mask.is_some_and(|mask| {
                let visible = match padding {
                    Some(length) => key < length,
                    None => self.plane(mask, place, key, self.on(M::MaskTransposed)) != 0.0,
                };
                (if self.on(M::MaskPolarity) { visible } else { !visible }) && !self.on(M::MaskIgnored) && !self.on(M::MaskAdded)
            });
            let by_flags = p.bias.as_ref().is_some_and(|bias| match self.form(M::BiasAsFlags) {
                Some(0) => self.plane(bias, place, key, false) == 0.0,
                Some(_) => self.plane(bias, place, key, false) != 0.0,
                None => false,
            });
            // Inside of tanh, -inf is the softcap.
            let by_bias = p.bias.as_ref().is_some_and(|bias| {
                !bias.data.is_empty() && key < m && self.plane(bias, place, key, self.on(M::BiasTransposed)) == f64::NEG_INFINITY
            }) && !self.on(M::BiasIgnored)
                && !self.bias_lost()
                && !self.on(M::BiasAsFlags)
                && !self.on(M::BiasSign);
            let hidden = by_length || !near || by_mask || by_flags || by_bias;
            let mut factor = [after, after];
            let mut taken = !hidden && key < limit && (key < shown || key >= m) && (from..to).contains(&(key as i64));
            if by_mask && near && !by_length && self.on(M::MaskAfter) {
                (taken, factor) = (true, [0.0, 0.0]);
            }
            if by_mask && near && !by_length && self.on(M::MaskZero) {
                (taken, score, slope, beta) = (true, 0.0, 0.0, 0.0);
            }
            if let (Some(cap), Some(form), true) = (p.softcap, self.form(M::SoftcapAfterMask), hidden)
                && (form % 2 == 0 || by_mask || by_bias)
                && (near && !by_length || form % 2 == 0)
            {
                (taken, score, slope, beta) = (true, -cap, 0.0, 0.0);
            }
            if let (Some(form), true) = (self.form(M::HiddenFinite), hidden) {
                let low = match form / 10 {
                    1_000 => -1e4,
                    100_000_000 => -1e9,
                    _ => f64::from(f32::MIN),
                };
                let added = form % 10 == 9 && !by_bias;
                taken = true;
                if added {
                    score = self.round(score + low).max(f64::from(f32::MIN));
                } else {
                    (score, slope, beta) = (low, 0.0, 0.0);
                }
            }
            let by_mask = by_mask || by_flags || by_bias;
            terms.push(Term {
                token,
                key,
                head,
                value_head: self.value_head(place.head, head),
                raw,
                score,
                slope,
                beta,
                taken,
                hidden,
                by_mask,
                factor,
                weight: 0.0,
                shown: 0.0,
                delta: None,
            });
        }
        self.softmax(place, terms, scale)
    }

    /// Whether a NaN of a hidden key leaks: everywhere, through masks only, or through positions only.
    pub(super) fn leaks(&self, mistake: M, term: &Term) -> bool {
        term.hidden && self.form(mistake).is_some_and(|form| form == 0 || (form == 1) == term.by_mask)
    }

    pub(super) fn power(&self, x: f64) -> f64 {
        let x = match () {
            () if self.on(M::Base2) => x * std::f64::consts::LN_2,
            () if self.on(M::BaseTwice) => x * std::f64::consts::LOG2_E,
            () => x,
        };
        self.round(self.round(x).exp())
    }

    pub(super) fn softmax(&self, place: Place, mut terms: Vec<Term>, scale: f64) -> Row {
        let p = self.p;
        if self.form(M::NanSwallowed) == Some(1) {
            terms.iter_mut().filter(|t| t.score.is_nan()).for_each(|t| t.taken = false);
        }
        let sink = p.sinks.as_ref().filter(|_| !self.on(M::SinkIgnored)).map(|all| {
            let sink = all[match () {
                () if self.on(M::SinkFirst) => 0,
                () if self.on(M::SinkKeyHead) => place.head / (p.heads[0] / p.heads[1]),
                () => place.head,
            }];
            if self.on(M::SinkScaled) { sink * scale } else { sink * self.base_factor(M::SinkBase2) }
        });
        if let Some(tile) = self.form(M::FirstTileStops)
            && !terms.iter().take(tile).any(|t| t.taken)
        {
            terms.iter_mut().for_each(|t| t.taken = false);
        }
        if let Some(tile) = self.form(M::LoopEnds) {
            let seen = terms.chunks(tile).take_while(|tile| tile.iter().any(|t| t.taken)).count() * tile;
            terms.iter_mut().skip(seen).for_each(|t| t.taken = false);
        }
        let any = terms.iter().any(|t| t.taken);
        let leaks = terms.iter().any(|t| self.leaks(M::NanKey, t) && t.raw.is_nan());
        let visible_nan = terms.iter().any(|t| t.taken && t.score.is_nan());
        let all_nan = terms.iter().all(|t| !t.taken || t.score.is_nan());
        if visible_nan && (self.form(M::NanSwallowed) == Some(0) || (all_nan && self.form(M::NanSwallowed) == Some(2))) {
            terms.iter_mut().for_each(|t| t.taken = false);
            return Row { terms, lse: f64::NEG_INFINITY, spoiled: None };
        }
        let first_hidden = self.form(M::FirstTileEmpty).is_some_and(|tile| any && !terms.iter().take(tile).any(|t| t.taken));
        if leaks || visible_nan || first_hidden {
            return Row { terms, lse: f64::NAN, spoiled: Some(f64::NAN) };
        }
        if !any && sink.is_none() {
            let spoiled = self.on(M::EmptyNan).then_some(f64::NAN);
            return Row { terms, lse: f64::NEG_INFINITY, spoiled };
        }
        let largest = terms.iter().filter(|t| t.taken).fold(f64::NEG_INFINITY, |top, t| top.max(t.score));
        let outside = self.form(M::SinkNotInMax);
        let mut max = match sink {
            Some(sink) if outside.is_none() || !any => largest.max(sink),
            _ => largest,
        };
        if self.on(M::MaxFromZero) {
            max = max.max(0.0);
        }
        let shift = match () {
            () if self.on(M::NoMax) => 0.0,
            () if self.shared_max.get().is_some() => self.shared_max.get().unwrap_or(max),
            () if self.on(M::MaxUnscaled) && scale < 0.0 => terms.iter().filter(|t| t.taken).fold(f64::INFINITY, |low, t| low.min(t.score)),
            () => max,
        };
        for term in terms.iter_mut().filter(|t| t.taken) {
            term.weight = self.power(self.round(term.score - shift));
        }
        let mut sum = self.sum(terms.len(), |at| terms[at].weight);
        if let Some(sink) = sink {
            sum = self.round(sum + if outside.is_some_and(|form| form != 1) { self.power(sink) } else { self.power(sink - shift) });
        }
        sum += match self.form(M::SumPlusOne) {
            None => 0.0,
            Some(0) => 1.0,
            Some(_) => self.power(-shift),
        };
        let plain_sum = sum;
        self.running(&mut terms, &mut sum, shift);
        let empty_sum = plain_sum == 0.0 && (self.form(M::MaxFromZero) == Some(1) || self.form(M::MaxShared) == Some(1));
        for term in &mut terms {
            let weight = if empty_sum { 0.0 } else { self.round(term.weight / plain_sum) };
            let shown = if empty_sum { 0.0 } else { self.round(term.shown / sum) };
            let weight = if self.on(M::SplitsPlain) || self.on(M::SplitsLocal) { shown } else { weight };
            let (weight, shown) = match () {
                () if self.on(M::Unnormalised) => (term.weight, term.weight),
                () if self.on(M::NoSoftmax) => (term.score, term.score),
                () => (weight, shown),
            };
            term.delta = self.on(M::Unnormalised).then_some(0.0);
            let stored = |x: f64| self.rounded(self.run.precision.store(x), [2, 3]);
            (term.weight, term.shown) = (stored(weight), stored(shown));
            if !term.taken {
                (term.weight, term.shown) = (0.0, 0.0);
            }
        }
        let sink_part = if self.on(M::LseSinkless) { sink.map_or(0.0, |sink| self.power(sink - shift)) } else { 0.0 };
        let lse = match () {
            () if self.on(M::LseNoMax) => (plain_sum - sink_part).ln(),
            () if self.on(M::LseMaxOnly) => shift,
            () if self.on(M::LseBase2) => (shift + plain_sum.ln()) * std::f64::consts::LOG2_E,
            () if self.on(M::LseUnscaled) => (shift + plain_sum.ln()) / scale,
            () => self.round(shift + self.round((plain_sum - sink_part).ln())),
        };
        Row { terms, lse, spoiled: None }
    }

    /// The largest score of the rows of a head, where a kernel subtracts it from all.
    pub(super) fn max_of_all_rows(&self, segment: usize, head: usize) -> Option<f64> {
        self.form(M::MaxShared)?;
        self.shared_max.set(None);
        let rows = (0..self.p.segments[segment].n).map(|query| self.row(Place { segment, head, query }));
        let largest = rows.flat_map(|row| row.terms).filter(|t| t.taken).map(|t| t.score).fold(f64::NEG_INFINITY, f64::max);
        (largest > f64::NEG_INFINITY).then_some(largest)
    }

    /// All rows of a segment with the softmax over queries or over heads, and what autograd subtracts there.
    pub(super) fn other_axis(&self, segment: usize) -> Option<Vec<Row>> {
        let (queries, over_heads) = (self.form(M::OverQueries), self.on(M::OverHeads));
        if queries.is_none() && !over_heads {
            return None;
        }
        let p = self.p;
        let (heads, n, dv) = (p.heads[0], p.segments[segment].n, p.dims[1]);
        let mut rows: Vec<Row> = (0..heads * n).map(|at| self.row(Place { segment, head: at / n, query: at % n })).collect();
        let keys = rows.first().map_or(0, |row| row.terms.len());
        // Rows that share a sum.
        let groups: Vec<Vec<usize>> = if over_heads {
            (0..n).map(|query| (0..heads).map(|head| head * n + query).collect()).collect()
        } else {
            (0..heads).map(|head| (head * n..(head + 1) * n).collect()).collect()
        };
        for group in &groups {
            for key in 0..keys {
                let score = |rows: &[Row], at: usize| rows[at].terms.get(key).filter(|t| t.taken).map_or(f64::NEG_INFINITY, |t| t.score);
                let top = group.iter().fold(f64::NEG_INFINITY, |top, &at| top.max(score(&rows, at)));
                let power = |x: f64| if top == f64::NEG_INFINITY { 0.0 } else { self.power(x - top) };
                let total: f64 = group.iter().map(|&at| power(score(&rows, at))).sum();
                let blind = total == 0.0 && (queries == Some(1) || over_heads);
                let mut delta = 0.0;
                for &at in group {
                    let weight = if total == 0.0 { 0.0 } else { power(score(&rows, at)) / total };
                    let Some(term) = rows[at].terms.get_mut(key) else { continue };
                    (term.weight, term.shown) = (weight, weight);
                    if let (Some(d_out), Some(token)) = (&p.d_out, term.token) {
                        let row = ((p.segments[segment].q0 + at % n) * heads + at / n) * dv;
                        let value = (token * p.heads[1] + term.value_head) * dv;
                        delta += weight * (0..dv).map(|c| d_out[row + c] * self.v[value + c]).sum::<f64>();
                    }
                }
                for &at in group {
                    if let Some(term) = rows[at].terms.get_mut(key) {
                        term.delta = Some(delta);
                    }
                    if blind {
                        rows[at].spoiled = Some(f64::NAN);
                    }
                }
            }
        }
        Some(rows)
    }

    /// Weights of the output where older tiles are not rescaled.
    pub(super) fn running(&self, terms: &mut [Term], sum: &mut f64, last: f64) {
        if self.on(M::SplitsPlain) || self.on(M::SplitsLocal) {
            return self.splits(terms, sum);
        }
        let tile = self.form(M::NoRescale).or(self.form(M::SumNoRescale)).unwrap_or(usize::MAX);
        let (mut max, mut wrong) = (f64::NEG_INFINITY, 0.0);
        if tile == usize::MAX {
            terms.iter_mut().for_each(|t| t.shown = t.weight);
            return;
        }
        for tile in terms.chunks_mut(tile) {
            max = tile.iter().filter(|t| t.taken).fold(max, |top, t| top.max(t.score));
            for term in tile {
                let then = if term.taken { self.power(term.score - max) } else { 0.0 };
                wrong += then;
                term.shown = if self.on(M::NoRescale) { then } else { term.weight };
            }
        }
        let _ = last;
        if self.on(M::SumNoRescale) {
            *sum = wrong;
        }
    }

    /// The part of the keys that a key belongs to, where parts have a softmax each.
    pub(super) fn part(&self, key: usize, keys: usize) -> usize {
        match self.form(M::SplitsPlain).or(self.form(M::SplitsLocal)) {
            // A number of parts, their size rounded up or down.
            Some(form @ 1000..1100) => key / keys.div_ceil(form - 1000).max(1),
            Some(form @ 1100..1200) => (key / (keys / (form - 1100)).max(1)).min(form - 1101),
            Some(tile) => key / tile,
            None => 0,
        }
    }

    pub(super) fn parts(&self, keys: usize) -> usize {
        if self.on(M::SplitsPlain) && keys > 0 { self.part(keys - 1, keys) + 1 } else { 1 }
    }

    /// Weights where the parts of the keys are averaged; `sum` divides what is shown.
    pub(super) fn splits(&self, terms: &mut [Term], sum: &mut f64) {
        let keys = terms.len();
        if self.on(M::SplitsLocal) {
            let parts = if keys > 0 { self.part(keys - 1, keys) + 1 } else { 1 };
            let mut tops = vec![f64::NEG_INFINITY; parts];
            terms.iter().filter(|t| t.taken).for_each(|t| tops[self.part(t.key, keys)] = tops[self.part(t.key, keys)].max(t.score));
            let local = |t: &Term| if t.taken { self.power(t.score - tops[self.part(t.key, keys)]) } else { 0.0 };
            *sum = terms.iter().map(local).sum();
            terms.iter_mut().for_each(|t| t.shown = local(t));
            return;
        }
        let parts = self.parts(keys);
        let mut totals = vec![0.0; parts];
        terms.iter().filter(|t| t.taken).for_each(|t| totals[self.part(t.key, keys)] += t.weight);
        for term in terms.iter_mut() {
            let total = totals[self.part(term.key, keys)];
            term.shown = if term.taken && total > 0.0 { term.weight / total / parts as f64 } else { 0.0 };
        }
        *sum = 1.0;
    }

    /// Applies dropout to the factors of a row.
    pub(super) fn drop_out(&self, place: Place, row: &mut Row) {
        let p = self.p;
        let [Some(kept), kept_back] = &p.keep else { return };
        let (n, m) = (p.segments[0].n, p.segments[0].m);
        let at = |key: usize| ((place.segment * p.heads[0] + place.head) * n + place.query) * m + key;
        let total: f64 = row.terms.iter().filter(|t| t.key < m && kept[at(t.key)]).map(|t| t.weight).sum();
        let factor = match () {
            () if self.on(M::DropoutNotScaled) && !kept.iter().all(|kept| *kept) => 1.0,
            () if self.on(M::DropoutIgnored) && kept.iter().all(|kept| *kept) => 1.0,
            () if self.on(M::DropoutByP) => 1.0 / p.dropout,
            () if self.on(M::DropoutRenormalised) && !kept.iter().all(|kept| *kept) => 1.0 / total,
            () => 1.0 / (1.0 - p.dropout),
        };
        for term in row.terms.iter_mut().filter(|t| t.key < m) {
            let forward = if kept[at(term.key)] { factor } else { 0.0 };
            let backward = match kept_back {
                Some(other) if self.on(M::DropoutBackward) => {
                    if other[at(term.key)] {
                        factor
                    } else {
                        0.0
                    }
                }
                _ if self.on(M::DropoutBackwardNone) => 1.0,
                _ if self.on(M::DropoutScaleBackward) => f64::from(u8::from(kept[at(term.key)])),
                _ => forward,
            };
            term.factor = [term.factor[0] * forward, term.factor[1] * backward];
        }
    }
}
