//! The backward pass: a wavefront. A block of keys goes through the blocks of queries that see any of it, in their order, from rank to rank, and takes the running sums of its dk
//! and dv along; dq stays with its rows, which meet the keys in order.
//!
//! ```text
//! task (c, j), queries c and keys j, comes after (c, j - 1), for dq, and (c - 1, j), for dk and dv.  Each rank runs its tasks in the order of c + j.
//! ```
//!
//! Whoever sends a block waits until an earlier one was taken, by a task of an earlier wave, so that nobody waits for itself.

use crate::error::Result;
use crate::exchange::{Exchange, Kind, Number, get, put};
use crate::forward::{Distributed, Mine, tokens};
use crate::ways::mark;
use ndarray::{Array3, Array4, ArrayView3, ArrayView4, ArrayViewMut4, Axis, Zip, s};
use regard::{Gradients, Part, Real, Saved, SavedView};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Range;

/// Keys whose share of dq is a sum of its own.
const SPAN: usize = 256;

/// Query rows of a tile: the sums that gradients on sinks are made of.
const TILE: usize = 64;

/// Waves that keys are sent out ahead of.
const AHEAD: usize = 2;

/// Which blocks of queries see any of which blocks of keys.
struct Sights {
    seen: Vec<Vec<bool>>,
    /// Of each block of keys, the first queries that see any of it.
    first: Vec<Option<usize>>,
    /// Of a task of this rank: keys that may be sent to its queries when it is done, and the rank that waits for that.
    credits: HashMap<[usize; 2], Vec<(usize, usize)>>,
}

impl Sights {
    fn of(&self, queries: usize, keys: usize) -> bool {
        self.seen[queries][keys]
    }

    /// The queries that keys come to after these.
    fn after(&self, queries: usize, keys: usize) -> Option<usize> {
        (queries + 1..self.seen.len()).find(|&c| self.of(c, keys))
    }

    /// The queries that they came from; `None` where these are the first.
    fn before(&self, queries: usize, keys: usize) -> Option<usize> {
        (0..queries).rev().find(|&c| self.of(c, keys))
    }

    /// The keys that queries must be through with before others are sent to them: those of the last wave before the one in which they are sent.
    fn taken(&self, from: usize, to: usize, keys: usize) -> Option<usize> {
        (0..(from + keys).saturating_sub(to)).rev().find(|&j| self.of(to, j))
    }
}

/// A block of keys with its running sums, as it travels: of each span dk, dv, k and v, so that nothing is copied on the way.
struct Travelling<E> {
    bytes: Vec<u8>,
    /// Where numbers may begin.
    start: usize,
    /// Of k and of v.
    shapes: [[usize; 4]; 2],
    element: PhantomData<E>,
}

impl<E: Number> Travelling<E> {
    /// Bytes of some tokens.
    fn len_of(shapes: &[[usize; 4]; 2], tokens: usize) -> usize {
        let numbers: usize = shapes.iter().map(|[batch, heads, _, dims]| batch * heads * tokens * dims).sum();
        numbers * (size_of::<E>() + size_of::<E::Real>())
    }

    /// Keys that no query has seen.
    fn new(keys: [ArrayView4<'_, E>; 2]) -> Self {
        let shapes = keys.each_ref().map(|x| [x.len_of(Axis(0)), x.len_of(Axis(1)), x.len_of(Axis(2)), x.len_of(Axis(3))]);
        let bytes = vec![0; Self::len_of(&shapes, shapes[0][2])];
        let mut new = Self::came(bytes, shapes);
        for first in (0..shapes[0][2]).step_by(SPAN) {
            let here = first..shapes[0][2].min(first + SPAN);
            let (to, _) = new.split(first);
            to.into_iter().zip(&keys).for_each(|(mut to, from)| to.assign(&tokens(from, &here)));
        }
        new
    }

    /// Keys as another rank sent them.
    fn came(mut bytes: Vec<u8>, shapes: [[usize; 4]; 2]) -> Self {
        let (align, len) = (align_of::<E::Real>(), bytes.len());
        let mut start = 0;
        if bytes.as_ptr().align_offset(align) != 0 {
            bytes.resize(len + align, 0);
            start = bytes.as_ptr().align_offset(align);
            bytes.copy_within(..len, start);
            bytes.truncate(start + len);
        }
        Self { bytes, start, shapes, element: PhantomData }
    }

    fn into_bytes(mut self) -> Vec<u8> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
        }
        self.bytes
    }

    /// k, v and dk, dv of the span that begins there.
    fn split(&mut self, first: usize) -> ([ArrayViewMut4<'_, E>; 2], [ArrayViewMut4<'_, E::Real>; 2]) {
        let count = SPAN.min(self.shapes[0][2] - first);
        let from = self.start + Self::len_of(&self.shapes, first);
        let span = &mut self.bytes[from..from + Self::len_of(&self.shapes, count)];
        let shapes = self.shapes.map(|[batch, heads, _, dims]| [batch, heads, count, dims]);
        let [of_k, of_v] = shapes.map(|shape| shape.iter().product::<usize>());
        let (sums, keys) = span.split_at_mut((of_k + of_v) * size_of::<E::Real>());
        let (dk, dv) = bytemuck::cast_slice_mut::<u8, E::Real>(sums).split_at_mut(of_k);
        let (k, v) = bytemuck::cast_slice_mut::<u8, E>(keys).split_at_mut(of_k);
        ([view(shapes[0], k), view(shapes[1], v)], [view(shapes[0], dk), view(shapes[1], dv)])
    }

    /// The sums.
    fn sums(mut self) -> [Array4<E::Real>; 2] {
        let mut sums = self.shapes.map(|shape| Array4::from_elem(shape, E::Real::ZERO));
        for first in (0..self.shapes[0][2]).step_by(SPAN) {
            let (_, from) = self.split(first);
            let here = first..first + from[0].len_of(Axis(2));
            sums.iter_mut().zip(from).for_each(|(to, from)| to.slice_mut(s![.., .., here.clone(), ..]).assign(&from));
        }
        sums
    }
}

fn view<T>(shape: [usize; 4], numbers: &mut [T]) -> ArrayViewMut4<'_, T> {
    ArrayViewMut4::from_shape(shape, numbers).expect("so many numbers")
}

impl<X: Exchange> Distributed<'_, X> {
    /// [`regard::Attention::backward`] of all tokens; `saved` and `d_out` are those of this rank's rows, and so are dq, dk and dv. The gradients on sinks
    /// and on the scale are the whole ones, on every rank.
    ///
    /// # Errors
    /// As [`Distributed::forward_saved`]; and [`regard::Error::Unsupported`] with top-k, a scale beyond 4, and the gradient on a bias (see
    /// [`regard::Attention::bias_gradient`]).
    pub fn backward<E: Number>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        v: ArrayView4<'_, E>,
        saved: &Saved<E>,
        d_out: ArrayView4<'_, E>,
    ) -> Result<Gradients<E>> {
        let whole = self.check([&q, &k, &v, &d_out], "backward")?;
        let (mine, given) = (self.mine(), Given { q: &q, k: &k, v: &v, saved, d_out: &d_out });
        let d_sink = self.sink_gradient(whole, &mine, &given)?;
        let sights = self.sights(whole, &mine)?;
        let mut dq = Array4::from_elem(q.raw_dim(), E::Real::ZERO);
        let count = self.partition.blocks().len();
        let (mut kept, mut home) = (HashMap::new(), HashMap::new());
        for wave in 0..(2 * count).saturating_sub(1) {
            self.send_out(wave, &sights, &k, &v)?;
            for queries in &mine {
                let Some(j) = wave.checked_sub(queries.block).filter(|&j| j < count) else { continue };
                let mut dq = dq.slice_mut(s![.., .., queries.here.clone(), ..]);
                if !sights.of(queries.block, j) {
                    // What one process adds.
                    dq.mapv_inplace(|x| x + E::Real::ZERO);
                    continue;
                }
                let mut keys = self.keys_for([queries.block, j], &sights, &mut kept, [&k, &v])?;
                self.add_pairs(whole, queries, j, &mut keys, &given, dq)?;
                self.hand_on([queries.block, j], &sights, keys, &mut kept, &mut home)?;
            }
        }
        let (mut dk, mut dv) = (Array4::from_elem(k.raw_dim(), E::zeroed()), Array4::from_elem(v.raw_dim(), E::zeroed()));
        for block in &mine {
            let [from_k, from_v] = self.come_home(block, &sights, &mut home, [&k, &v])?;
            dk.slice_mut(s![.., .., block.here.clone(), ..]).zip_mut_with(&from_k, |to, &x| *to = E::from_real(x));
            dv.slice_mut(s![.., .., block.here.clone(), ..]).zip_mut_with(&from_v, |to, &x| *to = E::from_real(x));
        }
        let d_scale = self.attention.has_scale_gradient().then(|| self.scale_gradient(whole, &q, &dq)).transpose()?;
        let scale = E::Real::from_f64(self.attention.scale_of(q.len_of(Axis(3))));
        let dq = dq.mapv(|x| E::from_real(x * scale));
        Ok(Gradients { dq, dk, dv, d_biases: Vec::new(), d_sink, d_scale })
    }

    fn owner(&self, block: usize) -> usize {
        self.partition.blocks()[block].1
    }

    fn sights(&self, whole: [usize; 4], mine: &[Mine]) -> Result<Sights> {
        let range = self.attention.key_ranges(whole)?;
        let blocks: Vec<_> = self.partition.blocks().iter().map(|(range, _)| range.clone()).collect();
        let sight = |queries: &Range<usize>| {
            let mut marks = vec![false; blocks.len()];
            mark(&range, queries, &blocks, &mut marks);
            marks
        };
        let seen: Vec<_> = blocks.iter().map(sight).collect();
        let first = (0..blocks.len()).map(|j| seen.iter().position(|seen| seen[j])).collect();
        let mut sights = Sights { seen, first, credits: HashMap::new() };
        let mut credits: HashMap<_, Vec<_>> = HashMap::new();
        for (c, j) in mine.iter().flat_map(|queries| (0..blocks.len()).map(|j| (queries.block, j))) {
            let Some(from) = sights.before(c, j).filter(|&from| sights.of(c, j) && self.owner(from) != self.talk.rank()) else { continue };
            if let Some(taken) = sights.taken(from, c, j) {
                credits.entry([c, taken]).or_default().push((j, self.owner(from)));
            }
        }
        sights.credits = credits;
        Ok(sights)
    }

    /// Keys that the first queries that see them need in the wave after the next: whoever has those asks, and whoever has the keys sends them.
    fn send_out<E: Number>(&self, wave: usize, sights: &Sights, k: &ArrayView4<'_, E>, v: &ArrayView4<'_, E>) -> Result<()> {
        let rank = self.talk.rank();
        let soon = |start: usize| start < wave + AHEAD && (wave == 0 || start + 1 == wave + AHEAD);
        let out = || {
            let firsts = sights.first.iter().enumerate().filter_map(|(j, first)| Some((j, (*first)?)));
            firsts.filter(|&(j, first)| soon(j + first)).map(|(j, first)| (j, self.owner(first)))
        };
        for (j, _) in out().filter(|&(j, to)| to == rank && self.owner(j) != rank) {
            let keys = &self.partition.blocks()[j].0;
            self.talk.send(self.owner(j), (Kind::Credit, j as u32), Vec::new(), || format!("keys {keys:?}"))?;
        }
        for (j, to) in out().filter(|&(j, to)| to != rank && self.owner(j) == rank) {
            let block = self.mine().into_iter().find(|block| block.block == j).expect("it is one of them");
            let what = || format!("the word that it is ready for keys {:?}", block.range);
            self.talk.receive(to, (Kind::Credit, j as u32), what)?;
            let mut bytes = Vec::new();
            put(&mut bytes, &tokens(k, &block.here));
            put(&mut bytes, &tokens(v, &block.here));
            self.talk.send(to, (Kind::Home, j as u32), bytes, || format!("room for keys {:?}", block.range))?;
        }
        Ok(())
    }

    /// Keys `j` as queries `c` get them.
    fn keys_for<E: Number>(
        &self,
        [c, j]: [usize; 2],
        sights: &Sights,
        kept: &mut HashMap<usize, Travelling<E>>,
        like: [&ArrayView4<'_, E>; 2],
    ) -> Result<Travelling<E>> {
        let (rank, keys) = (self.talk.rank(), &self.partition.blocks()[j].0);
        let shapes = like.map(|x| [x.len_of(Axis(0)), x.len_of(Axis(1)), keys.len(), x.len_of(Axis(3))]);
        let Some(before) = sights.before(c, j) else {
            if self.owner(j) == rank {
                let here = self.mine().into_iter().find(|block| block.block == j).expect("it is one of them").here;
                return Ok(Travelling::new(like.map(|x| tokens(x, &here))));
            }
            let expected = shapes.iter().map(|shape| shape.iter().product::<usize>() * size_of::<E>()).sum();
            let bytes = self.talk.receive_exactly(self.owner(j), (Kind::Home, j as u32), expected, || format!("keys {keys:?}"))?;
            let mut rest = &bytes[..];
            let got: [Array4<E>; 2] = shapes.map(|shape| get(&mut rest, shape));
            return Ok(Travelling::new(got.each_ref().map(|x| x.view())));
        };
        let from = self.owner(before);
        if from == rank {
            return Ok(kept.remove(&j).expect("the queries before have left it"));
        }
        let what = || format!("keys {keys:?} with their sums over queries before {}", self.partition.blocks()[c].0.start);
        let expected = Travelling::<E>::len_of(&shapes, keys.len());
        let bytes = self.talk.receive_exactly(from, (Kind::Sums, j as u32), expected, what)?;
        Ok(Travelling::came(bytes, shapes))
    }

    /// The pairs of some queries and some keys, span by span.
    fn add_pairs<E: Number>(
        &self,
        whole: [usize; 4],
        queries: &Mine,
        j: usize,
        keys: &mut Travelling<E>,
        given: &Given<'_, E>,
        mut dq: ArrayViewMut4<'_, E::Real>,
    ) -> Result<()> {
        let block = &self.partition.blocks()[j].0;
        let mut share = Array4::from_elem(dq.raw_dim(), E::Real::ZERO);
        for first in (0..block.len()).step_by(SPAN) {
            let part = Part { batch: 0, query: queries.range.start, key: block.start + first, whole };
            let ([k, v], [mut dk, mut dv]) = keys.split(first);
            let rows = [tokens(given.q, &queries.here), tokens(given.d_out, &queries.here)];
            let sums = [&mut share.view_mut(), &mut dk, &mut dv];
            let saved = given.saved(&(0..whole[0]), &queries.here);
            self.attention.backward_part(part, rows, [k.view(), v.view()], saved, sums)?;
            // One span is its own sum.
            if whole[3] <= SPAN { dq.assign(&share) } else { dq.zip_mut_with(&share, |to, &x| *to += x) }
        }
        Ok(())
    }

    /// Keys `j` leave queries `c`: for the next queries, or home.
    fn hand_on<E: Number>(
        &self,
        [c, j]: [usize; 2],
        sights: &Sights,
        keys: Travelling<E>,
        kept: &mut HashMap<usize, Travelling<E>>,
        home: &mut HashMap<usize, [Array4<E::Real>; 2]>,
    ) -> Result<()> {
        let (rank, blocks) = (self.talk.rank(), self.partition.blocks());
        let credit = |j: usize| (Kind::Credit, (blocks.len() + j) as u32);
        for &(later, to) in sights.credits.get(&[c, j]).into_iter().flatten() {
            self.talk.send(to, credit(later), Vec::new(), || format!("the sums of keys {:?}", blocks[later].0))?;
        }
        let what = || format!("room for the sums of keys {:?}", blocks[j].0);
        let Some(next) = sights.after(c, j) else {
            if self.owner(j) == rank {
                home.insert(j, keys.sums());
                return Ok(());
            }
            let mut bytes = Vec::new();
            keys.sums().iter().for_each(|x| put(&mut bytes, &x.view()));
            return self.talk.send(self.owner(j), (Kind::Home, (blocks.len() + j) as u32), bytes, what);
        };
        let to = self.owner(next);
        if to == rank {
            kept.insert(j, keys);
            return Ok(());
        }
        if let Some(taken) = sights.taken(c, next, j) {
            let what = || format!("the word that it is through with keys {:?}", blocks[taken].0);
            self.talk.receive(to, credit(j), what)?;
        }
        self.talk.send(to, (Kind::Sums, j as u32), keys.into_bytes(), what)
    }

    /// The finished sums of a block of this rank.
    fn come_home<E: Number>(
        &self,
        block: &Mine,
        sights: &Sights,
        home: &mut HashMap<usize, [Array4<E::Real>; 2]>,
        like: [&ArrayView4<'_, E>; 2],
    ) -> Result<[Array4<E::Real>; 2]> {
        if let Some(sums) = home.remove(&block.block) {
            return Ok(sums);
        }
        let count = self.partition.blocks().len();
        let shapes = like.map(|x| [x.len_of(Axis(0)), x.len_of(Axis(1)), block.here.len(), x.len_of(Axis(3))]);
        let expected = shapes.iter().map(|shape| shape.iter().product::<usize>() * size_of::<E::Real>()).sum();
        // The last queries that see them have the sums; where nobody does there are none.
        let Some(last) = sights.before(count, block.block) else { return Ok(shapes.map(|shape| Array4::from_elem(shape, E::Real::ZERO))) };
        let what = || format!("the gradients of keys {:?}", block.range);
        let bytes = self.talk.receive_exactly(self.owner(last), (Kind::Home, (count + block.block) as u32), expected, what)?;
        let mut rest = &bytes[..];
        Ok(shapes.map(|shape| get(&mut rest, shape)))
    }

    /// The gradient on sink logits: of each batch entry and tile of rows, told to all ranks, and added up in their order.
    fn sink_gradient<E: Number>(&self, whole: [usize; 4], mine: &[Mine], given: &Given<'_, E>) -> Result<Option<Vec<f64>>> {
        // No rows tell as much as any whether there are sinks.
        let start = Part { batch: 0, query: 0, key: 0, whole };
        if self.sinks(start, 0..whole[0], 0..0, given)?.is_none() {
            return Ok(None);
        }
        // The library's tiles are of equal size where the whole is short.
        let tile = whole[2].div_ceil(whole[2].div_ceil(TILE).max(1)).next_multiple_of(16).max(16);
        let mut tiles: HashMap<(usize, usize), Vec<f64>> = HashMap::new();
        let mut bytes = Vec::new();
        for block in mine {
            for (batch, first) in (0..whole[0]).flat_map(|batch| block.range.clone().step_by(tile).map(move |first| (batch, first))) {
                let here = first - block.range.start + block.here.start;
                let rows = here..block.here.end.min(here + tile);
                let sums = self.sinks(Part { batch, query: first, ..start }, batch..batch + 1, rows, given)?.unwrap_or_default();
                bytes.extend([batch as u64, first as u64].iter().flat_map(|x| x.to_le_bytes()));
                bytes.extend(sums.iter().flat_map(|x| x.to_le_bytes()));
                tiles.insert((batch, first), sums);
            }
        }
        let what = || "its part of the gradient on sinks".to_owned();
        self.others().try_for_each(|to| self.talk.send(to, (Kind::Tiles, 0), bytes.clone(), what))?;
        for from in self.others() {
            let rows: usize = self.partition.blocks_of_rank(from).map(|range| range.len().div_ceil(tile)).sum();
            let record = 8 * (2 + whole[1]);
            let bytes = self.talk.receive_exactly(from, (Kind::Tiles, 0), whole[0] * rows * record, what)?;
            for record in bytes.chunks_exact(record) {
                let mut words = record.as_chunks::<8>().0.iter();
                let mut place = || words.next().map_or(0, |word| u64::from_le_bytes(*word) as usize);
                let at = (place(), place());
                tiles.insert(at, words.map(|word| f64::from_le_bytes(*word)).collect());
            }
        }
        let mut order: Vec<_> = tiles.into_iter().collect();
        order.sort_by_key(|(at, _)| *at);
        let mut gradient = vec![0.0; whole[1]];
        for (_, sums) in order {
            gradient.iter_mut().zip(sums).for_each(|(to, x)| *to += x);
        }
        Ok(Some(gradient))
    }

    /// The gradient on the scale: of each row, told to all ranks, and added up in their order.
    fn scale_gradient<E: Number>(&self, whole: [usize; 4], q: &ArrayView4<'_, E>, dq: &Array4<E::Real>) -> Result<f64> {
        let [batch, heads, queries, _] = whole;
        let products = Zip::from(dq.lanes(Axis(3)))
            .and(q.lanes(Axis(3)))
            .map_collect(|dq, q| -> f64 { dq.iter().zip(q).map(|(dq, q)| dq.to_f64() * q.to_real().to_f64()).sum() });
        let mut rows = Array3::from_elem([batch, heads, queries], 0.0);
        let mut place = |rank: usize, products: ArrayView3<'_, f64>| {
            let mut first = 0;
            for range in self.partition.blocks_of_rank(rank) {
                let here = first..first + range.len();
                first = here.end;
                rows.slice_mut(s![.., .., range]).assign(&products.slice(s![.., .., here]));
            }
        };
        place(self.talk.rank(), products.view());
        let what = || "its part of the gradient on the scale".to_owned();
        let mut bytes = Vec::new();
        put(&mut bytes, &products.view().insert_axis(Axis(3)));
        self.others().try_for_each(|to| self.talk.send(to, (Kind::Tiles, 1), bytes.clone(), what))?;
        for from in self.others() {
            let shape = [batch, heads, self.partition.count(from), 1];
            let bytes = self.talk.receive_exactly(from, (Kind::Tiles, 1), 8 * shape.iter().product::<usize>(), what)?;
            place(from, get::<f64>(&mut &bytes[..], shape).remove_axis(Axis(3)).view());
        }
        Ok(rows.iter().sum())
    }

    /// Of some rows of this rank, which are these of the whole.
    fn sinks<E: Number>(&self, part: Part, batch: Range<usize>, rows: Range<usize>, given: &Given<'_, E>) -> Result<Option<Vec<f64>>> {
        let of = |x: &ArrayView4<'_, E>, rows: &Range<usize>| x.slice(s![batch.clone(), .., rows.clone(), ..]).to_owned();
        let [q, d_out] = [given.q, given.d_out].map(|x| of(x, &rows));
        let [k, v] = [given.k, given.v].map(|x| of(x, &(0..0)));
        let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|x| Array4::from_elem(x.raw_dim(), E::Real::ZERO));
        let sums = [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()];
        Ok(self.attention.backward_part(part, [q.view(), d_out.view()], [k.view(), v.view()], given.saved(&batch, &rows), sums)?)
    }
}

/// What a rank has.
struct Given<'x, E: Number> {
    q: &'x ArrayView4<'x, E>,
    k: &'x ArrayView4<'x, E>,
    v: &'x ArrayView4<'x, E>,
    saved: &'x Saved<E>,
    d_out: &'x ArrayView4<'x, E>,
}

impl<E: Number> Given<'_, E> {
    fn saved(&self, batch: &Range<usize>, rows: &Range<usize>) -> SavedView<'_, E> {
        let Saved { out, exact, row_max, row_sum } = self.saved;
        let number = s![batch.clone(), .., rows.clone()];
        let row = s![batch.clone(), .., rows.clone(), ..];
        let exact = exact.as_ref().map(|exact| exact.slice(row));
        SavedView { out: out.slice(row), exact, row_max: row_max.slice(number), row_sum: row_sum.slice(number) }
    }
}
