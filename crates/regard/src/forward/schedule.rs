//! A call, cut into query tiles and shared out over threads. Where tiles are few and keys many, each split of the keys is a task of its own.

use super::attend::{AttendTile, Goal, Outcome};
use super::output::{Denominator, Output};
use super::softmax::Observer;
use super::{Inputs, Outputs};
use crate::arrays::cut;
use crate::error::Result;
use crate::plan::Plan;
use crate::walk::scores::{Scorer, tile_keys};
use crate::walk::tiling::{KV_SPLIT, QueryTile, tile_shape};
use ndarray::{ArrayViewMut3, ArrayViewMut4, Axis};
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
        let Outputs { mut out, exact, denominators } = outputs;
        out.fill(MaybeUninit::new(E::STORED_ZERO));
        if let Some(mut exact) = exact {
            exact.fill(MaybeUninit::new(E::Real::ZERO));
        }
        denominators.fill_empty();
        return Ok(Vec::new());
    }
    let tasks = tasks(plan, outputs);
    let call = Call { plan, inputs, observer };
    let threads = plan.threads();
    if d.seq_kv > KV_SPLIT && threads > 1 && tasks.len() < 2 * threads {
        return call.run_split(tasks);
    }
    plan.for_tasks(tasks, |(tile, output)| {
        let scorer = Scorer::new(plan, &inputs.q, &inputs.k, tile).with_cutoffs();
        (tile, call.rows(&scorer, Goal::Rows(output)))
    })
}

/// Query tiles with the part of the results that is their own, in order of batch entry, head and query.
fn tasks<'g, E: Storage>(plan: &Plan<'_>, outputs: Outputs<'g, E>) -> Vec<(QueryTile, Output<'g, E>)> {
    let (heads, queries) = tile_shape(plan);
    let d = plan.dims;
    let Outputs { out, exact, denominators } = outputs;
    let denominators = Denominator::by_batch(denominators, d.batch);
    let mut exact = exact.map(|exact| by_batch(exact).into_iter());
    let mut tasks = Vec::with_capacity(d.batch * (d.heads_q / heads) * d.seq_q.div_ceil(queries));
    for (batch, (out, denominator)) in by_batch(out).into_iter().zip(denominators).enumerate() {
        let exact = exact.as_mut().map(|exact| exact.next().expect("one per batch entry"));
        let mut by_heads = Output { out, exact, denominator };
        for head in (0..d.heads_q).step_by(heads) {
            let (mut rows, rest) = by_heads.split_at(Axis(0), heads);
            by_heads = rest;
            for first in (0..d.seq_q).step_by(queries) {
                let count = queries.min(d.seq_q - first);
                let (here, rest) = rows.split_at(Axis(1), count);
                rows = rest;
                let (batch, first) = (batch + plan.part.batch, first + plan.part.query);
                tasks.push((QueryTile { batch, head, heads, first, queries: count }, here));
            }
        }
    }
    tasks
}

fn by_batch<T>(view: ArrayViewMut4<'_, T>) -> Vec<ArrayViewMut3<'_, T>> {
    cut(view, 0, 1).into_iter().map(|one| one.index_axis_move(Axis(0), 0)).collect()
}

struct Call<'c, 'x, E, O> {
    plan: &'c Plan<'c>,
    inputs: &'c Inputs<'x, E>,
    observer: &'c (dyn Fn(&QueryTile, usize) -> O + Sync),
}

impl<E: Storage, O: Observer<E::Real>> Call<'_, '_, E, O> {
    fn attend(&self, scorer: &Scorer<'_, E>, goal: Goal<'_, E, O>) -> Outcome<E::Real, O> {
        let v = Rows::new(&tile_keys(self.plan, &self.inputs.v, &scorer.tile));
        let observer = |lanes: usize| (self.observer)(&scorer.tile, lanes);
        E::Real::dispatch(self.plan.level, AttendTile { scorer, v, observer: &observer, goal })
    }

    fn rows(&self, scorer: &Scorer<'_, E>, goal: Goal<'_, E, O>) -> Vec<O::Row> {
        match self.attend(scorer, goal) {
            Outcome::Rows(rows) => rows,
            Outcome::State(_) => unreachable!("the goal was rows"),
        }
    }

    /// Each split of the keys that a tile sees is a task; the states are combined in order.
    fn run_split(&self, tasks: Vec<(QueryTile, Output<'_, E>)>) -> Result<Vec<(QueryTile, Vec<O::Row>)>> {
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
        let states = plan.for_tasks(pairs, |(t, keys)| match self.attend(&scorers[t], Goal::State(keys)) {
            Outcome::State(state) => (t, state),
            Outcome::Rows(_) => unreachable!("the goal was a state"),
        })?;
        let mut by_tile: Vec<Vec<_>> = scorers.iter().map(|_| Vec::new()).collect();
        states.into_iter().for_each(|(t, state)| by_tile[t].push(state));
        let tasks = tasks.into_iter().zip(by_tile).enumerate().collect();
        plan.for_tasks(tasks, |(t, ((tile, output), states))| (tile, self.rows(&scorers[t], Goal::Combine(states, output))))
    }
}
