//! A call, cut into query tiles and shared out over threads. Where tiles are few and keys many, each split of the keys is a task of its own.

use super::attend::{AttendTile, Outcome, Splits, has_several_splits};
use super::softmax::{Observer, OwnedState};
use super::{Inputs, Outputs};
use crate::error::{Error, Result};
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
        let keys = scorer.all_keys();
        (tile, call.attend(&scorer, [keys.clone(), keys], Vec::new(), Vec::new(), Some(&mut output)).1)
    })
}

/// The states of the splits that begin among keys that are a part of a whole, by query tile.
pub(crate) fn run_ahead<E: Storage>(plan: &Plan<'_>, inputs: Inputs<'_, E>) -> Result<Vec<Splits<E::Real, ()>>> {
    let call = Call { plan, inputs: &inputs, observer: &|_, _| () };
    let scorers: Vec<_> =
        query_tiles(plan, 0..plan.dims.seq_q).into_iter().map(|tile| Scorer::new(plan, &inputs.q, &inputs.k, tile)).collect();
    call.splits(&scorers)
}

/// [`run`] for keys that are a part of a whole: the states go on from where they are, and with outputs they come to their end. `ahead` is what is known
/// of these keys from [`run_ahead`], or nothing.
pub(crate) fn run_part<E: Storage, O: Observer<E::Real>>(
    plan: &Plan<'_>,
    inputs: &Inputs<'_, E>,
    outputs: Option<Outputs<'_, E>>,
    states: &mut Running<E::Real, O>,
    ahead: Vec<Splits<E::Real, O>>,
    observer: &(dyn Fn(&QueryTile, usize) -> O + Sync),
) -> Result<Observed<E::Real, O>> {
    let call = Call { plan, inputs, observer };
    let tiles = query_tiles(plan, 0..plan.dims.seq_q);
    let (mut before, mut ahead) = (std::mem::take(states).into_iter(), ahead.into_iter());
    if before.len() > 0 {
        fits("query tiles", before.len(), tiles.len())?;
    }
    let mut outputs = outputs.map(|outputs| tasks(plan, outputs).into_iter().map(|(_, output)| output));
    let task =
        |tile| (tile, outputs.as_mut().and_then(Iterator::next), before.next().unwrap_or_default(), ahead.next().unwrap_or_default());
    let done = plan.for_tasks(tiles.into_iter().map(task).collect(), |(tile, mut output, before, splits)| {
        let scorer = Scorer::new(plan, &inputs.q, &inputs.k, tile);
        let (mut keys, of) = (scorer.all_keys(), 0..plan.part.whole[3]);
        let seen = scorer.key_range(of.clone());
        if !before.is_empty() {
            fits("sums of splits", before.len(), 1 + usize::from(has_several_splits(&seen)))?;
        }
        for state in &before {
            fits("rows", state.layout.rows, tile.rows())?;
            fits("dimensions of values", state.layout.dims, plan.dims.value_dim)?;
        }
        // Not where a split ends within what is seen: its sum is put away there, whether or not the rows see anything of this piece.
        if output.is_none() && seen.start.max(keys.start) >= seen.end.min(keys.end) {
            return Ok((before, (tile, Vec::new())));
        }
        keys.end = splits.first().map_or(keys.end, |(first, _)| first.start);
        let (after, rows) = call.attend(&scorer, [keys, of], before, splits, output.as_mut());
        Ok((after, (tile, rows)))
    })?;
    let (after, rows) = done.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
    *states = after;
    Ok(rows)
}

/// A state belongs to these rows.
fn fits(what: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::State { what, got, expected }) }
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
        before: Vec<OwnedState<E::Real, O>>,
        splits: Splits<E::Real, O>,
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
        let tasks = tasks.into_iter().zip(self.splits(&scorers)?).enumerate().collect();
        plan.for_tasks(tasks, |(t, ((tile, mut output), splits))| {
            (tile, self.attend(&scorers[t], [0..0, scorers[t].all_keys()], Vec::new(), splits, Some(&mut output)).1)
        })
    }

    /// The states of the splits that begin among the keys of the call, each a task of its own; by query tile.
    fn splits(&self, scorers: &[Scorer<'_, E>]) -> Result<Vec<Splits<E::Real, O>>> {
        let mut tasks = Vec::new();
        for (t, scorer) in scorers.iter().enumerate() {
            let (keys, seen) = (scorer.all_keys(), scorer.key_range(0..self.plan.part.whole[3]));
            // One that has begun before goes on from there.
            let mut first = if seen.start < keys.start { keys.start.next_multiple_of(KV_SPLIT) } else { seen.start };
            while first < seen.end.min(keys.end) {
                let end = ((first / KV_SPLIT + 1) * KV_SPLIT).min(seen.end).min(keys.end);
                tasks.push((t, first..end));
                first = end;
            }
        }
        let states = self.plan.for_tasks(tasks, |(t, keys)| {
            (t, keys.clone(), self.attend(&scorers[t], [keys.clone(), keys], Vec::new(), Vec::new(), None).0)
        })?;
        let mut by_tile: Vec<_> = scorers.iter().map(|_| Vec::new()).collect();
        states.into_iter().for_each(|(t, keys, state)| by_tile[t].extend(state.into_iter().map(|state| (keys.clone(), state))));
        Ok(by_tile)
    }
}
