//! A call, cut into query tiles and shared out over threads. Where tiles are few and keys many, each split of the keys is a task of its own.

use super::attend::{AttendTile, Outcome};
use super::softmax::{Observer, OwnedState};
use super::{Inputs, Outputs};
use crate::error::Result;
use crate::plan::Plan;
use crate::walk::scores::{Scorer, tile_keys};
use crate::walk::tiling::{KV_SPLIT, QueryTile, query_tiles};
use regard_simd::strided::Rows;
use regard_simd::{Real, Storage};
use std::mem::MaybeUninit;
use std::ops::Range;

/// The states of every query tile after some keys of a whole.
pub(crate) type Running<T, O> = Vec<Vec<OwnedState<T, O>>>;

/// What the observer says of the rows, tile by tile.
pub(crate) type Observed<T, O> = Vec<(QueryTile, Vec<<O as Observer<T>>::Row>)>;

/// Compute. On success every element of the outputs has been written. `observer` makes the observer of a tile with so many lanes.
pub(crate) fn run<E: Storage, O: Observer<E::Real>>(
    plan: &Plan<'_>,
    inputs: &Inputs<'_, E>,
    outputs: Outputs<'_, E>,
    observer: &(dyn Fn(&QueryTile, usize) -> O + Sync),
) -> Result<Observed<E::Real, O>> {
    let d = plan.dims;
    if d.batch == 0 || d.heads_q == 0 || d.seq_q == 0 {
        return Ok(Vec::new());
    }
    if d.seq_kv == 0 && !plan.has_sink() {
        let Outputs { mut out, exact, lse, row_max, row_sum } = outputs;
        out.fill(MaybeUninit::new(E::STORED_ZERO));
        exact.into_iter().for_each(|mut exact| exact.fill(MaybeUninit::new(E::Real::ZERO)));
        [lse, row_max].into_iter().flatten().for_each(|mut rows| rows.fill(E::Real::MASKED));
        row_sum.into_iter().for_each(|mut rows| rows.fill(E::Real::ZERO));
        return Ok(Vec::new());
    }
    let tasks = tasks(plan, outputs);
    let call = Call { plan, inputs, observer };
    let threads = plan.threads();
    if d.seq_kv > KV_SPLIT && threads > 1 && tasks.len() < 2 * threads {
        return call.run_split(tasks);
    }
    plan.for_tasks(tasks, |(tile, mut output)| {
        let scorer = Scorer::new(plan, &inputs.q, &inputs.k, tile).with_cutoffs();
        (tile, call.attend(&scorer, [scorer.all_keys(), scorer.all_keys()], Default::default(), Some(&mut output)).1)
    })
}

/// The same for keys that are a part of a whole: the states go on from where they are, and with outputs they come to their end.
pub(crate) fn run_part<E: Storage, O: Observer<E::Real>>(
    plan: &Plan<'_>,
    inputs: &Inputs<'_, E>,
    outputs: Option<Outputs<'_, E>>,
    states: &mut Running<E::Real, O>,
    observer: &(dyn Fn(&QueryTile, usize) -> O + Sync),
) -> Result<Observed<E::Real, O>> {
    let call = Call { plan, inputs, observer };
    let mut before = std::mem::take(states).into_iter();
    let mut outputs = outputs.map(|outputs| tasks(plan, outputs).into_iter().map(|(_, output)| output));
    let tasks: Vec<_> = query_tiles(plan, 0..plan.dims.seq_q)
        .into_iter()
        .map(|tile| (tile, outputs.as_mut().and_then(Iterator::next), before.next().unwrap_or_default()))
        .collect();
    let done = plan.for_tasks(tasks, |(tile, mut output, before)| {
        let scorer = Scorer::new(plan, &inputs.q, &inputs.k, tile);
        let (keys, of) = (scorer.all_keys(), 0..plan.part.whole[3]);
        let seen = scorer.key_range(of.clone());
        // Not where a split ends within what is seen: its sum is put away there, whether or not the rows see anything of this piece.
        if output.is_none() && seen.start.max(keys.start) >= seen.end.min(keys.end) {
            return (tile, (before, Vec::new()));
        }
        (tile, call.attend(&scorer, [keys, of], [before, Vec::new()], output.as_mut()))
    })?;
    let (after, rows) = done.into_iter().map(|(tile, (after, rows))| (after, (tile, rows))).unzip();
    *states = after;
    Ok(rows)
}

/// Query tiles with the part of the results that is their own, in order of batch entry, head and query.
fn tasks<'g, E: Storage>(plan: &Plan<'_>, mut outputs: Outputs<'g, E>) -> Vec<(QueryTile, Outputs<'g, E>)> {
    let (mut of_entry, mut of_heads) = (outputs.take(0, 0), outputs.take(0, 0));
    let task = |tile: QueryTile| {
        let [_, head, first] = tile.place(plan, 0);
        if [head, first] == [0; 2] {
            of_entry = outputs.take(0, 1);
        }
        if first == 0 {
            of_heads = of_entry.take(1, tile.heads);
        }
        (tile, of_heads.take(2, tile.queries))
    };
    query_tiles(plan, 0..plan.dims.seq_q).into_iter().map(task).collect()
}

struct Call<'c, 'x, E, O> {
    plan: &'c Plan<'c>,
    inputs: &'c Inputs<'x, E>,
    observer: &'c (dyn Fn(&QueryTile, usize) -> O + Sync),
}

impl<E: Storage, O: Observer<E::Real>> Call<'_, '_, E, O> {
    fn attend(
        &self,
        scorer: &Scorer<'_, E>,
        [keys, of]: [Range<usize>; 2],
        [before, splits]: [Vec<OwnedState<E::Real, O>>; 2],
        output: Option<&mut Outputs<'_, E>>,
    ) -> Outcome<E::Real, O> {
        let v = Rows::new(&tile_keys(self.plan, &self.inputs.v, &scorer.tile));
        let observer = |lanes: usize| (self.observer)(&scorer.tile, lanes);
        E::Real::dispatch(self.plan.level, AttendTile { scorer, v, observer: &observer, keys, of, before, splits, output })
    }

    /// Each split of the keys that a tile sees is a task; the states are combined in order.
    fn run_split(&self, tasks: Vec<(QueryTile, Outputs<'_, E>)>) -> Result<Observed<E::Real, O>> {
        let (plan, inputs) = (self.plan, self.inputs);
        let scorers = plan.for_tasks(tasks.iter().map(|(tile, _)| *tile).collect(), |tile| {
            Scorer::new(plan, &inputs.q, &inputs.k, tile).with_cutoffs()
        })?;
        let mut pairs = Vec::new();
        for (t, scorer) in scorers.iter().enumerate() {
            let seen = scorer.key_range(scorer.all_keys());
            let splits = if seen.is_empty() { 0..0 } else { seen.start / KV_SPLIT..(seen.end - 1) / KV_SPLIT + 1 };
            pairs.extend(splits.map(|split| (t, seen.start.max(split * KV_SPLIT)..seen.end.min((split + 1) * KV_SPLIT))));
        }
        let states = plan.for_tasks(pairs, |(t, keys)| (t, self.attend(&scorers[t], [keys.clone(), keys], Default::default(), None).0))?;
        let mut by_tile: Vec<Vec<_>> = scorers.iter().map(|_| Vec::new()).collect();
        states.into_iter().for_each(|(t, state)| by_tile[t].extend(state));
        let tasks = tasks.into_iter().zip(by_tile).enumerate().collect();
        plan.for_tasks(tasks, |(t, ((tile, mut output), splits))| {
            (tile, self.attend(&scorers[t], [0..0, 0..0], [Vec::new(), splits], Some(&mut output)).1)
        })
    }
}
