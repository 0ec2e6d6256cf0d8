//! Forward scheduling: query tiles over threads. With few tiles and many keys, each split of the keys is a task.

use super::attend::{AttendTile, Outcome, Split, Splits, has_several_splits};
use super::softmax::{Observer, OwnedState};
use super::{Inputs, Outputs};
use crate::error::{Error, Result};
use crate::mainloop::scores::{KeyRows, Scorer};
use crate::mainloop::tiling::{KV_SPLIT, QueryTile, forward_tiles, query_tiles};
use crate::plan::Plan;
use regard_simd::{Real, Storage};
use std::mem::MaybeUninit;
use std::ops::Range;

/// The states of every query tile after some keys of a whole.
pub(crate) type Running<T, O> = Vec<Vec<OwnedState<T, O>>>;

/// The observer's summaries of the rows, by query tile.
pub(crate) type Observed<T, O> = Vec<(QueryTile, Vec<<O as Observer<T>>::Row>)>;

/// Compute. On success every element of the outputs has been written. `observer` makes the observer of a tile for a number of lanes.
pub(crate) fn run<E: Storage, K: KeyRows<E>, O: Observer<E::Real>>(
    plan: &Plan<'_>,
    inputs: &Inputs<'_, E, K>,
    outputs: Outputs<'_, E>,
    observer: &(dyn Fn(&QueryTile, usize) -> O + Sync),
) -> Result<Observed<E::Real, O>> {
    let d = plan.dims;
    if d.batch == 0 || d.heads_q == 0 || d.seq_q == 0 {
        return Ok(Vec::new());
    }
    if d.seq_kv == 0 && !plan.has_sink() {
        let Outputs { mut out, out_unrounded, lse, row_max, row_sum } = outputs;
        out.fill(MaybeUninit::new(E::STORED_ZERO));
        out_unrounded.into_iter().for_each(|mut out_unrounded| out_unrounded.fill(MaybeUninit::new(E::Real::ZERO)));
        [lse, row_max].into_iter().flatten().for_each(|mut rows| rows.fill(E::Real::NEG_INFINITY));
        row_sum.into_iter().for_each(|mut rows| rows.fill(E::Real::ZERO));
        return Ok(Vec::new());
    }
    // Results of observers are combined per query tile: there the tiles have the same size everywhere.
    let tiles = if size_of::<O>() == 0 { forward_tiles::<E>(plan) } else { query_tiles(plan, 0..d.seq_q) };
    let tasks = tasks(plan, tiles, outputs);
    let call = Call { plan, inputs, observer };
    let threads = plan.threads();
    if d.seq_kv > KV_SPLIT && threads > 1 && tasks.len() < 2 * threads {
        return call.run_split(tasks);
    }
    plan.for_tasks(tasks, |(tile, mut output)| {
        let scorer = Scorer::new(plan, &inputs.q, &inputs.k, tile).with_cutoffs();
        let keys = scorer.all_keys();
        (tile, call.attend(&scorer, [keys.clone(), keys], &[], &[], Some(&mut output)).1)
    })
}

/// The states of the splits that begin among keys that are a part of a whole, by query tile.
pub(crate) fn run_splits_ahead<E: Storage>(plan: &Plan<'_>, inputs: Inputs<'_, E>) -> Result<Vec<Splits<E::Real, ()>>> {
    let call = Call { plan, inputs: &inputs, observer: &|_, _| () };
    let scorers: Vec<_> =
        query_tiles(plan, 0..plan.dims.seq_q).into_iter().map(|tile| Scorer::new(plan, &inputs.q, &inputs.k, tile)).collect();
    call.splits(&scorers)
}

/// [`run`] for keys that are a part of a whole: updates the states, and finishes them if there are outputs. `ahead` has the precomputed
/// splits of these keys from [`run_splits_ahead`], or is empty. After an error, states are unchanged.
pub(crate) fn run_part<E: Storage, O: Observer<E::Real>>(
    plan: &Plan<'_>,
    inputs: &Inputs<'_, E>,
    outputs: Option<Outputs<'_, E>>,
    states: &mut Running<E::Real, O>,
    ahead: &[Splits<E::Real, O>],
    observer: &(dyn Fn(&QueryTile, usize) -> O + Sync),
) -> Result<Observed<E::Real, O>> {
    let call = Call { plan, inputs, observer };
    let tiles = query_tiles(plan, 0..plan.dims.seq_q);
    if !states.is_empty() {
        fits("query tiles", states.len(), tiles.len())?;
    }
    let mut outputs = outputs.map(|outputs| tasks(plan, tiles.clone(), outputs).into_iter().map(|(_, output)| output));
    let task = |(t, tile)| {
        let (before, splits) = (states.get(t).map_or(&[][..], Vec::as_slice), ahead.get(t).map_or(&[][..], Vec::as_slice));
        (tile, outputs.as_mut().and_then(Iterator::next), before, splits)
    };
    let done = plan.for_tasks(tiles.into_iter().enumerate().map(task).collect(), |(tile, mut output, before, splits)| {
        let scorer = Scorer::new(plan, &inputs.q, &inputs.k, tile);
        let (mut keys, of) = (scorer.all_keys(), 0..plan.part.whole[3]);
        let seen = scorer.key_range(of.clone());
        if !before.is_empty() {
            fits("sums of splits", before.len(), 1 + usize::from(has_several_splits(&seen)))?;
        }
        for state in before {
            fits("rows", state.layout.rows, tile.rows())?;
            fits("dimensions of values", state.layout.dims, plan.dims.value_dim)?;
        }
        // Not where a split ends within what is seen: its sum is put away there, whether or not the rows see anything of this piece.
        if output.is_none() && seen.start.max(keys.start) >= seen.end.min(keys.end) {
            return Ok((None, (tile, Vec::new())));
        }
        keys.end = splits.first().map_or(keys.end, |(first, _)| first.start);
        let (after, rows) = call.attend(&scorer, [keys, of], before, splits, output.as_mut());
        Ok((Some(after), (tile, rows)))
    })?;
    let done = done.into_iter().collect::<Result<Vec<_>>>()?;
    states.resize_with(done.len(), Vec::new);
    let keep = |(state, (after, rows)): (&mut Vec<_>, (Option<_>, _))| {
        after.into_iter().for_each(|after| *state = after);
        rows
    };
    Ok(states.iter_mut().zip(done).map(keep).collect())
}

/// A state belongs to these rows.
fn fits(what: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::State { what, got, expected }) }
}

/// Query tiles with the part of the results that is their own, in order of batch entry, head and query.
fn tasks<'g, E: Storage>(plan: &Plan<'_>, tiles: Vec<QueryTile>, mut outputs: Outputs<'g, E>) -> Vec<(QueryTile, Outputs<'g, E>)> {
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
    tiles.into_iter().map(task).collect()
}

struct Call<'c, 'x, E, K, O> {
    plan: &'c Plan<'c>,
    inputs: &'c Inputs<'x, E, K>,
    observer: &'c (dyn Fn(&QueryTile, usize) -> O + Sync),
}

impl<E: Storage, K: KeyRows<E>, O: Observer<E::Real>> Call<'_, '_, E, K, O> {
    fn attend(
        &self,
        scorer: &Scorer<'_, E>,
        [keys, of]: [Range<usize>; 2],
        before: &[OwnedState<E::Real, O>],
        splits: &[Split<E::Real, O>],
        output: Option<&mut Outputs<'_, E>>,
    ) -> Outcome<E::Real, O> {
        let v = self.inputs.v.of_tile(self.plan, &scorer.tile);
        let observer = |lanes: usize| (self.observer)(&scorer.tile, lanes);
        E::dispatch_stored(self.plan.level, AttendTile { scorer, v, observer: &observer, keys, of, before, splits, output })
    }

    /// Each split of the keys that a tile sees is a task; the states are combined in order.
    fn run_split(&self, tasks: Vec<(QueryTile, Outputs<'_, E>)>) -> Result<Observed<E::Real, O>> {
        let (plan, inputs) = (self.plan, self.inputs);
        let scorers = plan.for_tasks(tasks.iter().map(|(tile, _)| *tile).collect(), |tile| {
            Scorer::new(plan, &inputs.q, &inputs.k, tile).with_cutoffs()
        })?;
        let tasks = tasks.into_iter().zip(self.splits(&scorers)?).enumerate().collect();
        plan.for_tasks(tasks, |(t, ((tile, mut output), splits))| {
            (tile, self.attend(&scorers[t], [0..0, scorers[t].all_keys()], &[], &splits, Some(&mut output)).1)
        })
    }

    /// The states of the splits that begin among the keys of the call, each a task of its own; by query tile.
    fn splits(&self, scorers: &[Scorer<'_, E>]) -> Result<Vec<Splits<E::Real, O>>> {
        let mut tasks = Vec::new();
        for (t, scorer) in scorers.iter().enumerate() {
            let (keys, seen) = (scorer.all_keys(), scorer.key_range(0..self.plan.part.whole[3]));
            // A split that began before this piece continues from its state.
            let mut first = if seen.start < keys.start { keys.start.next_multiple_of(KV_SPLIT) } else { seen.start };
            while first < seen.end.min(keys.end) {
                let end = ((first / KV_SPLIT + 1) * KV_SPLIT).min(seen.end).min(keys.end);
                tasks.push((t, first..end));
                first = end;
            }
        }
        let states =
            self.plan.for_tasks(tasks, |(t, keys)| (t, keys.clone(), self.attend(&scorers[t], [keys.clone(), keys], &[], &[], None).0))?;
        let mut by_tile: Vec<_> = scorers.iter().map(|_| Vec::new()).collect();
        states.into_iter().for_each(|(t, keys, state)| by_tile[t].extend(state.into_iter().map(|state| (keys.clone(), state))));
        Ok(by_tile)
    }
}
