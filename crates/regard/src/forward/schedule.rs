//! A call, cut into query tiles and shared out over threads. Where tiles are few and keys many, each split of the keys is a task of its own.

use super::attend::{AttendTile, Goal, Outcome};
use super::softmax::Observer;
use super::{Inputs, Outputs};
use crate::error::Result;
use crate::plan::Plan;
use crate::walk::scores::{Scorer, tile_keys};
use crate::walk::tiling::{KV_SPLIT, QueryTile, query_tiles};
use regard_simd::strided::Rows;
use regard_simd::{Real, Storage};
use std::mem::MaybeUninit;

/// Compute. On success every element of the outputs has been written. `observer` makes the observer of a tile with so many lanes; what it
/// says of the rows is returned, tile by tile.
pub(crate) fn run<E: Storage, O: Observer<E::Real>>(
    plan: &Plan<'_>,
    inputs: &Inputs<'_, E>,
    outputs: Outputs<'_, E>,
    observer: &(dyn Fn(&QueryTile, usize) -> O + Sync),
) -> Result<Vec<(QueryTile, Vec<O::Row>)>> {
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
        (tile, call.attend(&scorer, Goal::Rows(&mut output)).1)
    })
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
    fn attend(&self, scorer: &Scorer<'_, E>, goal: Goal<'_, '_, E, O>) -> Outcome<E::Real, O> {
        let v = Rows::new(&tile_keys(self.plan, &self.inputs.v, &scorer.tile));
        let observer = |lanes: usize| (self.observer)(&scorer.tile, lanes);
        E::Real::dispatch(self.plan.level, AttendTile { scorer, v, observer: &observer, goal })
    }

    /// Each split of the keys that a tile sees is a task; the states are combined in order.
    fn run_split(&self, tasks: Vec<(QueryTile, Outputs<'_, E>)>) -> Result<Vec<(QueryTile, Vec<O::Row>)>> {
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
        let states = plan.for_tasks(pairs, |(t, keys)| (t, self.attend(&scorers[t], Goal::State(keys)).0))?;
        let mut by_tile: Vec<Vec<_>> = scorers.iter().map(|_| Vec::new()).collect();
        states.into_iter().for_each(|(t, state)| by_tile[t].extend(state));
        let tasks = tasks.into_iter().zip(by_tile).enumerate().collect();
        plan.for_tasks(tasks, |(t, ((tile, mut output), states))| (tile, self.attend(&scorers[t], Goal::Combine(states, &mut output)).1))
    }
}
