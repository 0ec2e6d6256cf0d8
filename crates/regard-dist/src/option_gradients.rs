//! Gradients of options, which every rank gets: of sink logits and of the scale.

use crate::backward::Operands;
use crate::distributed::{Distributed, LocalBlock};
use crate::error::Result;
use crate::exchange::{Exchange, Kind, WireElement, get, put};
use ndarray::{Array3, Array4, ArrayView3, ArrayView4, Axis, Zip, s};
use regard::tiling::tile_queries;
use regard::{GlobalOffset, PartInputs, PartSums, Real};
use std::collections::HashMap;
use std::ops::Range;

/// Blocks of messages of kind [`Kind::Partials`].
const SINK: u32 = 0;
const SCALE: u32 = 1;

impl<X: Exchange> Distributed<'_, X> {
    /// The gradient of sink logits: partial sums of each batch entry and query tile, exchanged by all ranks and added in their order.
    pub(crate) fn sink_gradient<E: WireElement>(
        &self,
        scores: [usize; 4],
        local_blocks: &[LocalBlock],
        operands: &Operands<'_, E>,
    ) -> Result<Option<Vec<f64>>> {
        // A call without rows says whether there are sinks.
        let start = GlobalOffset { batch: 0, query: 0, key: 0, whole: scores };
        if self.sink_sums(start, 0..scores[0], 0..0, operands)?.is_none() {
            return Ok(None);
        }
        let tile = tile_queries(scores[2]);
        let mut tiles: HashMap<(usize, usize), Vec<f64>> = HashMap::new();
        let mut bytes = Vec::new();
        for block in local_blocks {
            for (batch, first) in (0..scores[0]).flat_map(|batch| block.range.clone().step_by(tile).map(move |first| (batch, first))) {
                let local = first - block.range.start + block.local.start;
                let rows = local..block.local.end.min(local + tile);
                let sums =
                    self.sink_sums(GlobalOffset { batch, query: first, ..start }, batch..batch + 1, rows, operands)?.unwrap_or_default();
                bytes.extend([batch as u64, first as u64].iter().flat_map(|x| x.to_le_bytes()));
                bytes.extend(sums.iter().flat_map(|x| x.to_le_bytes()));
                tiles.insert((batch, first), sums);
            }
        }
        let what = || "its part of the gradient of sinks".to_owned();
        self.others().try_for_each(|to| self.comm.send(to, (Kind::Partials, SINK), bytes.clone(), what))?;
        for from in self.others() {
            let rows: usize = self.partition.blocks_of_rank(from).map(|range| range.len().div_ceil(tile)).sum();
            let record = 8 * (2 + scores[1]);
            let bytes = self.comm.receive_exactly(from, (Kind::Partials, SINK), scores[0] * rows * record, what)?;
            for record in bytes.chunks_exact(record) {
                let mut words = record.as_chunks::<8>().0.iter();
                let mut place = || words.next().map_or(0, |word| u64::from_le_bytes(*word) as usize);
                let at = (place(), place());
                tiles.insert(at, words.map(|word| f64::from_le_bytes(*word)).collect());
            }
        }
        let mut order: Vec<_> = tiles.into_iter().collect();
        order.sort_by_key(|(at, _)| *at);
        let mut gradient = vec![0.0; scores[1]];
        for (_, sums) in order {
            gradient.iter_mut().zip(sums).for_each(|(to, x)| *to += x);
        }
        Ok(Some(gradient))
    }

    /// The sums of some rows of this rank, which `part` places in the sequence.
    fn sink_sums<E: WireElement>(
        &self,
        part: GlobalOffset,
        batch: Range<usize>,
        rows: Range<usize>,
        operands: &Operands<'_, E>,
    ) -> Result<Option<Vec<f64>>> {
        let of = |x: &ArrayView4<'_, E>, rows: &Range<usize>| x.slice(s![batch.clone(), .., rows.clone(), ..]).to_owned();
        let [q, d_out] = [operands.q, operands.d_out].map(|x| of(x, &rows));
        let [k, v] = [operands.k, operands.v].map(|x| of(x, &(0..0)));
        let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|x| Array4::from_elem(x.raw_dim(), E::Real::ZERO));
        let inputs = PartInputs { q: q.view(), k: k.view(), v: v.view(), d_out: d_out.view() };
        let sums = PartSums { dq: &mut dq.view_mut(), dk: &mut dk.view_mut(), dv: &mut dv.view_mut() };
        Ok(self.attention.backward_part(part, inputs, operands.saved_rows(&batch, &rows), sums)?)
    }

    /// The gradient of the scale: products of each row, exchanged by all ranks and added in their order.
    pub(crate) fn scale_gradient<E: WireElement>(&self, scores: [usize; 4], q: &ArrayView4<'_, E>, dq: &Array4<E::Real>) -> Result<f64> {
        let [batch, heads, queries, _] = scores;
        let products = Zip::from(dq.lanes(Axis(3)))
            .and(q.lanes(Axis(3)))
            .map_collect(|dq, q| -> f64 { dq.iter().zip(q).map(|(dq, q)| dq.to_f64() * q.to_real().to_f64()).sum() });
        let mut rows = Array3::from_elem([batch, heads, queries], 0.0);
        let mut place = |rank: usize, products: ArrayView3<'_, f64>| {
            let mut first = 0;
            for range in self.partition.blocks_of_rank(rank) {
                let local = first..first + range.len();
                first = local.end;
                rows.slice_mut(s![.., .., range]).assign(&products.slice(s![.., .., local]));
            }
        };
        place(self.comm.rank(), products.view());
        let what = || "its part of the gradient of the scale".to_owned();
        let mut bytes = Vec::new();
        put(&mut bytes, &products.view().insert_axis(Axis(3)));
        self.others().try_for_each(|to| self.comm.send(to, (Kind::Partials, SCALE), bytes.clone(), what))?;
        for from in self.others() {
            let shape = [batch, heads, self.partition.count(from), 1];
            let bytes = self.comm.receive_exactly(from, (Kind::Partials, SCALE), 8 * shape.iter().product::<usize>(), what)?;
            place(from, get::<f64>(&mut &bytes[..], shape).remove_axis(Axis(3)).view());
        }
        Ok(rows.iter().sum())
    }
}
