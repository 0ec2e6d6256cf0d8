//! Scores: the scale, which keys a query sees, masks and biases, the softcap.

use super::super::catalogue::Mistake as M;
use super::super::problem::{Align, PAGE, Plane, Segment};
use super::{Place, Program};

impl Program<'_> {
    /// The scale on q.k, and the factor on the weights.
    pub(super) fn scale(&self, place: Place) -> [f64; 2] {
        let [d, dv] = self.p.dims.map(|d| d as f64);
        let segment = self.p.segments[place.segment];
        let root = |x: f64| 1.0 / x.sqrt();
        let usual = match () {
            () if self.on(M::ScaleValueDim) => root(dv),
            () if self.on(M::ScaleModelDim) => root(d * self.p.heads[0] as f64),
            () if self.on(M::ScaleWidth) => 1.0 / d,
            () => match (self.form(M::ScalePadded), self.form(M::ScaleFixed), self.form(M::ScaleLength)) {
                (Some(to), _, _) => root(self.p.dims[0].next_multiple_of(to) as f64),
                (_, Some(fixed), _) => root(fixed as f64),
                (_, _, Some(0)) => root(segment.n as f64),
                (_, _, Some(_)) => root(segment.m as f64),
                _ => root(d),
            },
        };
        let scale = self.p.scale.unwrap_or(usual);
        match () {
            () if self.on(M::ScaleMissing) => [1.0, 1.0],
            () if self.on(M::ScaleInverted) => [1.0 / scale, 1.0],
            () if self.on(M::ScaleIgnored) => [root(d), 1.0],
            () if self.on(M::ScaleLost) && (self.p.mask.is_some() || self.p.bias.is_some()) => [root(d), 1.0],
            () if self.on(M::ScaleOnTop) && self.p.scale.is_some() => [scale * root(d), 1.0],
            () if self.on(M::ScaleTwice) => [scale * scale, 1.0],
            () if self.on(M::ScaleRoot) => [scale.abs().sqrt().copysign(scale), 1.0],
            () if self.on(M::ScaleSign) => [scale.abs(), 1.0],
            () if self.on(M::ScaleNegative) && scale < 0.0 => [f64::NAN, 1.0],
            () if self.on(M::ScaleAfter) => [1.0, scale],
            () => [scale, 1.0],
        }
    }

    pub(super) fn key_head(&self, head: usize) -> usize {
        let [heads, kv] = self.p.heads;
        match () {
            () if self.on(M::GqaModulo) => head % kv,
            () if self.on(M::GqaFirst) => 0,
            () if self.on(M::GqaByHeads) => (head / kv).min(kv - 1),
            () => head / (heads / kv),
        }
    }

    /// The key head whose values are read.
    pub(super) fn value_head(&self, head: usize, of_keys: usize) -> usize {
        let [heads, kv] = self.p.heads;
        match self.form(M::GqaValues) {
            None => of_keys,
            Some(0) => head % kv,
            Some(1) => 0,
            Some(_) => (head / kv).min(kv - 1) * usize::from(heads != kv) + head * usize::from(heads == kv),
        }
    }

    /// First key row, number of keys, number of valid keys, position of query 0 for windows and biases, and for the causal mask.
    pub(super) fn keys(&self, place: Place) -> (i64, usize, usize, [i64; 2]) {
        let (start, m, used, first) =
            self.keys_aligned(place, self.form(M::CausalTopLeft) == Some(0), self.form(M::CausalBottomRight) == Some(0));
        let (_, _, _, causal) = self.keys_aligned(place, self.on(M::CausalTopLeft), self.on(M::CausalBottomRight));
        (start, m, used, [first, causal])
    }

    pub(super) fn keys_aligned(&self, place: Place, top_left: bool, bottom_right: bool) -> (i64, usize, usize, i64) {
        let p = self.p;
        let s = p.segments[place.segment];
        let (mut start, mut m) = (s.k0 as i64, s.m);
        let total = p.tokens()[1];
        if p.packed {
            match () {
                () if self.on(M::PackedEndShort) => m = m.saturating_sub(1),
                () if self.on(M::PackedEndLong) => m = (m + 1).min(total - s.k0),
                () if self.on(M::PackedStartLate) => (start, m) = (start + i64::from(m > 0), m.saturating_sub(1)),
                () if self.on(M::PackedStartEarly) && s.k0 > 0 => (start, m) = (start - 1, m + 1),
                () if self.on(M::PackedIgnored) => (start, m) = (0, total),
                () if self.on(M::PackedQueryCu) => (start, m) = (s.q0 as i64, s.n.min(total.saturating_sub(s.q0))),
                () => {}
            }
        }
        if self.on(M::BatchFirst) && !p.packed {
            start = p.segments[0].k0 as i64;
        }
        let length = p.lengths.as_ref().map(|all| if self.on(M::LengthsFirst) { all[0] } else { all[place.segment] });
        let used = match length {
            None => m,
            Some(_) if self.on(M::LengthsIgnored) => m,
            Some(length) if self.on(M::LengthsInclusive) => (length + 1).min(m),
            Some(length) if self.on(M::LengthsShort) => length.saturating_sub(1),
            Some(_) if self.on(M::LengthsLongest) => p.lengths.iter().flatten().copied().max().unwrap_or(m),
            Some(length) => match (self.form(M::LengthsRounded), self.form(M::LengthsTailLost)) {
                (Some(tile), _) => length.next_multiple_of(tile).min(m),
                (_, Some(tile)) => length / tile * tile,
                _ => length,
            },
        };
        let ends_right = match () {
            () if top_left => false,
            () if bottom_right => true,
            () => p.align == Align::BottomRight,
        };
        let of = |name: fn(&Segment) -> usize| p.segments.iter().map(name).max().unwrap_or(0) as i64;
        let first = match p.offset {
            Some(_) if self.on(M::OffsetIgnored) => 0,
            Some(offset) => offset as i64,
            None if p.packed && self.on(M::PackedGlobal) => s.q0 as i64 - s.k0 as i64,
            None if !ends_right => 0,
            None if p.lengths.is_some() && self.on(M::OffsetIgnored) => 0,
            None if p.lengths.is_some() && self.on(M::OffsetAllocated) => m as i64 - s.n as i64,
            None if p.lengths.is_some() && self.on(M::OffsetLongest) => {
                let lengths = p.lengths.as_deref().unwrap_or_default();
                let of_all = if self.form(M::OffsetLongest) == Some(0) { lengths.iter().max() } else { lengths.first() };
                of_all.map_or(0, |length| *length as i64 - s.n as i64)
            }
            None if p.packed && self.on(M::PackedMaxOffset) => of(|s| s.m) - of(|s| s.n),
            None if p.packed && self.on(M::PackedIgnored) => total as i64 - p.tokens()[0] as i64 + s.q0 as i64,
            // Positions of the lengths that are right.
            None if self.rightly_placed() => p.used(place.segment) as i64 - s.n as i64,
            None => used as i64 - s.n as i64,
        };
        let first = if p.packed && !ends_right && self.on(M::PackedIgnored) { s.q0 as i64 } else { first };
        let moved = match () {
            () if p.offset.is_none() && p.lengths.is_none() => 0,
            () if self.on(M::OffsetMore) => 1,
            () if self.on(M::OffsetLess) => -1,
            () => 0,
        };
        (start, m, used, first + moved)
    }

    /// Whether a mistake in the number of keys leaves the positions of queries alone.
    pub(super) fn rightly_placed(&self) -> bool {
        [M::LengthsIgnored, M::LengthsInclusive, M::LengthsShort, M::PackedEndShort, M::PackedEndLong]
            .iter()
            .any(|mistake| self.form(*mistake) == Some(1))
            || self.on(M::LengthsRounded)
            || self.on(M::LengthsTailLost)
    }

    /// Whether the window and the causal mask show a key to a query.
    pub(super) fn near(&self, positions: [i64; 2], place: Place, key: i64) -> bool {
        let (p, query) = (self.p, place.query);
        // A causal mask that was not asked for starts at the top left, or ends at the bottom right.
        let always = self.form(M::CausalAlways).filter(|_| !p.causal);
        let last = p.used(place.segment) as i64 - p.segments[place.segment].n as i64;
        let position = match always {
            Some(form) => {
                if form == 0 {
                    query as i64
                } else {
                    query as i64 + last
                }
            }
            None => positions[1],
        };
        let distance = position - key;
        let causal = (p.causal && !(p.mask.is_some() && self.on(M::CausalLostWithMask))) || always.is_some();
        let in_order = match () {
            () if !causal || self.on(M::CausalIgnored) => true,
            () if self.on(M::CausalExclusive) => distance > 0,
            () if self.on(M::CausalAhead) => distance >= -1,
            () if self.on(M::CausalReversed) => distance <= 0,
            () => match self.form(M::CausalTiles) {
                Some(tile) => key / tile as i64 <= positions[1].div_euclid(tile as i64),
                None => distance >= 0,
            },
        };
        let Some([mut left, mut right]) = p.window else { return in_order };
        if self.on(M::WindowIgnored) || (!p.causal && self.on(M::WindowLostAlone)) || (p.causal && self.on(M::WindowLostCausal)) {
            return in_order;
        }
        let positioned = if self.on(M::WindowTopLeft) { query as i64 } else { positions[0] };
        if self.form(M::WindowKeepsFirst).is_some_and(|first| key < first as i64) {
            return in_order;
        }
        if let (true, Some(left)) = (self.on(M::WindowChunks), left) {
            return in_order && key.div_euclid(left as i64 + 1) == positioned.div_euclid(left as i64 + 1);
        }
        if self.on(M::WindowSymmetric) && (left.is_some() || self.form(M::WindowSymmetric) == Some(1)) {
            right = left;
        }
        if self.on(M::WindowSwapped) {
            (left, right) = (right, left);
        }
        if self.on(M::WindowLeftIgnored) {
            left = None;
        }
        if self.on(M::WindowRightIgnored) {
            right = None;
        }
        if self.on(M::WindowHalf) {
            (left, right) = (left.map(|size| size / 2), right.map(|size| size / 2));
        }
        // A causal mask may take the place of the right side.
        let replaced = |side: M| p.causal && self.form(side) == Some(1);
        // A window of 0 may stay one.
        let kept =
            |side: M, size: Option<usize>| size == Some(0) && self.form(side) == Some(if side == M::WindowLeftShort { 1 } else { 2 });
        let short = |side: M, size: Option<usize>| {
            i64::from(
                (self.on(side) && !(side == M::WindowRightShort && replaced(side)) && !kept(side, size)) || self.on(M::WindowBothShort),
            )
        };
        let long = |side: M| i64::from(self.on(side) || self.on(M::WindowBothLong));
        let by = [long(M::WindowLeftLong) - short(M::WindowLeftShort, left), long(M::WindowRightLong) - short(M::WindowRightShort, right)];
        let distance = positioned - key;
        in_order && left.is_none_or(|size| distance <= size as i64 + by[0]) && right.is_none_or(|size| -distance <= size as i64 + by[1])
    }

    /// The element of a mask or bias that is read.
    pub(super) fn read_at(&self, place: Place, key: usize) -> [usize; 4] {
        let mut at = [place.segment, place.head, place.query, key];
        if self.on(M::PlaneFirstBatch) {
            at[0] = 0;
        }
        if self.on(M::PlaneHeadsMixed) {
            at[0] = (place.segment * self.p.heads[0] + place.head) % self.p.segments.len();
        }
        if let Some(tile) = self.form(M::PlaneFirstTile) {
            at[3] %= tile;
        }
        if self.on(M::PlaneFirstHead) {
            at[1] = 0;
        }
        if self.on(M::PlaneFirstRow) {
            at[2] = 0;
        }
        match self.form(M::PlaneKeyHead) {
            Some(0) => at[1] = place.head / (self.p.heads[0] / self.p.heads[1]),
            Some(_) => at[1] = place.head % self.p.heads[1],
            None => {}
        }
        at
    }

    /// The keys that the loops of a kernel with wrong bounds reach: from, and up to.
    pub(super) fn reached(&self, place: Place, positions: [i64; 2]) -> [i64; 2] {
        let (p, query) = (self.p, place.query as i64);
        let mut reached = [0, i64::MAX];
        let sizes = |form: usize| ((form / 1000 % 1000) as i64, (form % 1000) as i64, form / 1_000_000);
        if let Some((rows, keys, kind)) = self.form(M::CausalLoopShort).filter(|_| p.causal).map(sizes) {
            let (block, first) = (query / rows, positions[1] - query);
            reached[1] = match kind {
                0 => ((first + block * rows).div_euclid(keys) + 1) * keys,
                _ => (block + 1) * keys + first,
            };
        }
        if let (Some((rows, keys, kind)), Some([left, right])) = (self.form(M::WindowLoop).map(sizes), p.window) {
            let (start, first) = (query / rows * rows, positions[0] - query);
            let end = if kind == 2 { start + rows } else { (start + rows).min(p.segments[place.segment].n as i64) };
            match (kind, left, right) {
                (1, _, Some(right)) => reached[1] = ((first + start + right as i64).div_euclid(keys) + 1) * keys,
                (0 | 2, Some(left), _) => reached[0] = (first + end - 1 - left as i64).div_euclid(keys) * keys,
                _ => {}
            }
        }
        reached
    }

    /// The number of visible keys that takes the place of a boolean mask.
    pub(super) fn mask_length(&self, mask: &Plane, place: Place) -> Option<usize> {
        let form = self.form(M::MaskAsLengths)?;
        let s = self.p.segments[place.segment];
        let (head, row) = match form {
            0 | 1 => (0, 0),
            2 => (0, s.n - 1),
            _ => (place.head, place.query),
        };
        let seen = (0..s.m).map(|key| mask.at([place.segment, head, row, key]) != 0.0);
        Some(if form == 0 || form == 3 { seen.take_while(|seen| *seen).count() } else { seen.filter(|seen| *seen).count() })
    }

    /// Where an element of a mask or bias is read.
    pub(super) fn place_of(&self, plane: &Plane, place: Place, key: usize, transposed: bool) -> usize {
        let mut at = self.read_at(place, key);
        if transposed {
            // The same memory, read with rows and columns exchanged.
            let [_, _, rows, cols] = plane.shape;
            if rows > 1 && cols > 1 {
                let flat = at[3] * rows + at[2];
                (at[2], at[3]) = (flat / cols % rows, flat % cols);
                if rows == cols {
                    (at[2], at[3]) = (key.min(rows - 1), place.query);
                }
            }
        }
        plane.index(at)
    }

    /// Element of a mask or bias, or 0 outside of it.
    pub(super) fn plane(&self, plane: &Plane, place: Place, key: usize, transposed: bool) -> f64 {
        let outside = key >= plane.shape[3].max(1) && plane.shape[3] > 1;
        if outside { 0.0 } else { plane.data[self.place_of(plane, place, key, transposed)] }
    }

    /// Whether the causal mask replaces the bias: where one argument takes masks and biases.
    pub(super) fn bias_lost(&self) -> bool {
        self.p.causal && self.form(M::MaskLostWithCausal) == Some(0)
    }

    /// The bias and ALiBi of a pair, and the derivative by the bias.
    pub(super) fn added(&self, place: Place, position: i64, key: usize, scale: f64) -> (f64, f64) {
        let p = self.p;
        let (mut total, mut beta) = (0.0, 0.0);
        if let Some(bias) = &p.bias
            && !self.on(M::BiasIgnored)
            && !self.on(M::BiasAsFlags)
            && !self.bias_lost()
        {
            beta = match () {
                () if self.on(M::BiasBeforeScale) => scale,
                () if self.on(M::BiasSign) => -1.0,
                () if self.on(M::BiasTwice) => 2.0,
                () => self.base_factor(M::BiasBase2),
            };
            total += self.plane(bias, place, key, self.on(M::BiasTransposed)) * beta;
        }
        if let Some(slopes) = &p.alibi
            && !self.on(M::AlibiIgnored)
        {
            let head = match () {
                () if self.on(M::AlibiFirst) => 0,
                () if self.on(M::AlibiSlopes) => self.key_head(place.head),
                () => place.head,
            };
            let from = if self.on(M::AlibiTopLeft) { place.query as i64 } else { position };
            let sign = if self.on(M::AlibiSign) { 1.0 } else { -1.0 };
            let factor = if self.on(M::AlibiScaled) { scale } else { self.base_factor(M::AlibiBase2) };
            let distance = from - key as i64;
            total += sign * slopes[head] * if self.on(M::AlibiSigned) { distance } else { distance.abs() } as f64 * factor;
        }
        if let (Some(mask), true) = (&p.mask, self.on(M::MaskAdded)) {
            total += self.plane(mask, place, key, false);
        }
        (total, beta)
    }

    /// Score of q.k with its derivatives: the scale, the softcap, what is added.
    pub(super) fn score(&self, raw: f64, scale: f64, added: (f64, f64)) -> (f64, f64, f64) {
        let (more, beta) = added;
        let scaled = self.round(raw * scale);
        let Some(cap) = self.p.softcap.filter(|_| !self.on(M::SoftcapMissing)) else { return (self.round(scaled + more), scale, beta) };
        let cap = self.form(M::SoftcapFixed).map_or(cap, |fixed| fixed as f64);
        let slope_of = |t: f64| match self.form(M::SoftcapGradient) {
            None => 1.0 - t * t,
            Some(0) => 1.0,
            Some(1) => 1.0 + t * t,
            Some(_) => 1.0 - t,
        };
        match () {
            () if self.on(M::SoftcapBeforeScale) => {
                let t = (raw / cap).tanh();
                (self.round(cap * t * scale + more), scale * slope_of(t), beta)
            }
            () if self.on(M::SoftcapAfterBias) || self.form(M::SoftcapAfterMask).is_some_and(|form| form >= 2) => {
                let t = ((scaled + more) / cap).tanh();
                (self.round(cap * t), scale * slope_of(t), beta * slope_of(t))
            }
            () if self.on(M::SoftcapNotMultiplied) => {
                let t = (scaled / cap).tanh();
                (self.round(t + more), scale * slope_of(t) / cap, beta)
            }
            () if self.on(M::SoftcapNotDivided) => {
                let t = scaled.tanh();
                (self.round(cap * t + more), scale * slope_of(t) * cap, beta)
            }
            () if self.on(M::SoftcapClamp) => {
                let inside = if scaled.abs() <= cap { 1.0 } else { 0.0 };
                (self.round(scaled.clamp(-cap, cap) + more), scale * inside, beta)
            }
            () => {
                let t = (scaled / cap).tanh();
                (self.round(cap * t + more), scale * slope_of(t), beta)
            }
        }
    }

    /// Row of k and v, and head, of a key that may lie past the end.
    pub(super) fn token(&self, place: Place, start: i64, m: usize, key: usize) -> (Option<usize>, usize) {
        let head = self.key_head(place.head);
        let total = self.p.tokens()[1];
        if self.p.paged && self.on(M::PagesInOrder) && key < m {
            // Pages lie in memory in reversed order.
            let pages = m.div_ceil(PAGE);
            let page = self.p.segments.len() * pages - 1 - (place.segment * pages + key / PAGE);
            let row = page % pages * PAGE + key % PAGE;
            return ((row < m).then(|| self.p.segments[page / pages].k0 + row), head);
        }
        if key < m {
            let token = start + key as i64;
            return ((0..total as i64).contains(&token).then_some(token as usize), head);
        }
        if self.on(M::TailZeros) {
            return (None, head);
        }
        // Past the end: the next sequence, or the next head where heads are outside of rows.
        if self.p.packed || self.p.seq_major {
            let token = start as usize + key;
            return ((token < total).then_some(token), head);
        }
        let flat = (place.segment * self.p.heads[1] + head) * m + key;
        let (segment, head, row) = (flat / m / self.p.heads[1], flat / m % self.p.heads[1], flat % m);
        (self.p.segments.get(segment).map(|s| s.k0 + row), head)
    }

    /// Elements of the head dimension that the scores use.
    pub(super) fn width(&self, d: usize) -> usize {
        match (self.form(M::HeadDimTail), self.form(M::HeadDimLimit)) {
            (Some(tile), _) => d / tile * tile,
            (_, Some(limit)) => d.min(limit),
            _ => d,
        }
    }

    /// What a term is multiplied by where log2(e) is missing, or there twice.
    pub(super) fn base_factor(&self, mistake: M) -> f64 {
        match self.form(mistake) {
            None => 1.0,
            Some(0) => std::f64::consts::LN_2,
            Some(_) => std::f64::consts::LOG2_E,
        }
    }

    pub(super) fn raw(&self, place: Place, token: Option<usize>, head: usize, key: usize) -> f64 {
        let d = self.p.dims[0];
        let q_at = ((self.p.segments[place.segment].q0 + place.query) * self.p.heads[0] + place.head) * d;
        let Some(token) = token else { return 0.0 };
        let k_at = (token * self.p.heads[1] + head) * d;
        let dot = self.sum(self.width(d), |c| self.q[q_at + c] * self.k[k_at + c]);
        let Some(scales) = &self.p.k_scale else { return dot };
        let first = token.saturating_sub(key);
        let from = match (self.form(M::KScaleBlock), self.form(M::KScaleFirst)) {
            (Some(block), _) => first + key / block,
            (_, Some(block)) => first + key - key % block,
            _ => token,
        };
        let of = if self.on(M::KScaleHead) { 0 } else { head };
        let stored = scales.get(from * self.p.heads[1] + of).copied().unwrap_or(0.0);
        let factor = match () {
            () if self.on(M::KScaleIgnored) => 1.0,
            () if self.on(M::KScaleInverted) => 1.0 / stored,
            () => stored,
        };
        self.round(dot * factor)
    }
}
