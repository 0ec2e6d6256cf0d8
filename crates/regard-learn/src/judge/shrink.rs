//! The smallest case: dimensions towards 1, numbers towards small whole numbers, while the answer fails in the same way.

use crate::exercise::{Exercise, Kind};
use crate::value::{Case, Value};

/// Upper bound on calls.
const CALLS: usize = 240;

/// Shrinks a case; `still` says whether a smaller one fails in the same way.
pub fn shrink(exercise: &Exercise, case: &Case, still: &mut dyn FnMut(&Case) -> bool) -> Case {
    let mut best = case.clone();
    let mut left = CALLS;
    let mut attempt = |best: &mut Case, smaller: Case| {
        if left == 0 {
            return false;
        }
        left -= 1;
        let fails = still(&smaller);
        if fails {
            *best = smaller;
        }
        fails
    };
    if case.again.is_none() {
        shrink_dims(exercise, &mut best, &mut attempt);
    }
    if case.again.is_none() {
        shrink_numbers(exercise, &mut best, &mut attempt);
        shrink_dims(exercise, &mut best, &mut attempt);
    }
    best
}

type Attempt<'a> = &'a mut dyn FnMut(&mut Case, Case) -> bool;

fn shrink_dims(exercise: &Exercise, best: &mut Case, attempt: Attempt<'_>) {
    loop {
        let mut moved = false;
        for at in 0..exercise.dims.len() {
            let size = best.call.dims[at];
            // Half of it, then one by one, from the end and from the front.
            for (from, count) in [(size / 2, size - size / 2), (0, size / 2), (size.saturating_sub(1), 1), (0, 1)] {
                if let Some(smaller) = without(exercise, best, at, from, count) {
                    moved |= attempt(best, smaller);
                    if best.call.dims[at] != size {
                        break;
                    }
                }
            }
        }
        if !moved {
            return;
        }
    }
}

/// The case without some indices of one dimension.
fn without(exercise: &Exercise, case: &Case, at: usize, from: usize, count: usize) -> Option<Case> {
    let (name, size) = (exercise.dims[at], case.call.dims[at]);
    if count == 0 || count >= size || from + count > size {
        return None;
    }
    let mut smaller = case.clone();
    smaller.call.dims[at] = size - count;
    if !(exercise.possible)(&smaller.call.dims) {
        return None;
    }
    for (param, value) in exercise.inputs().iter().zip(&mut smaller.call.args) {
        for (axis, _) in param.dims.iter().enumerate().filter(|(_, dim)| **dim == name) {
            *value = drop_indices(value, axis, from, count);
        }
        if param.kind == Kind::Count && param.name == name {
            value.data[0] = (size - count) as f64;
        }
        if param.kind == Kind::Lengths {
            // Tokens stay within the vocabulary, lengths within the keys.
            let most = match exercise.size(&smaller.call.dims, "vocab") {
                0 => exercise.size(&smaller.call.dims, "m"),
                vocab => vocab - 1,
            } as f64;
            value.data.iter_mut().for_each(|length| *length = length.min(most));
        }
    }
    // Pieces cut t; fewer keys, fewer pieces.
    if name == "t" {
        let mut left = size - count;
        smaller.pieces = case
            .pieces
            .iter()
            .map(|piece| {
                let taken = (*piece).min(left);
                left -= taken;
                taken
            })
            .filter(|p| *p > 0)
            .collect();
    }
    Some(smaller)
}

fn drop_indices(value: &Value<f64>, axis: usize, from: usize, count: usize) -> Value<f64> {
    let inner: usize = value.shape[axis + 1..].iter().product();
    let size = value.shape[axis];
    let kept = |at: usize| !(from..from + count).contains(&(at / inner.max(1) % size));
    let mut shape = value.shape.clone();
    shape[axis] = size - count;
    Value::new(&shape, (0..value.data.len()).filter(|&at| kept(at)).map(|at| value.data[at]).collect())
}

fn shrink_numbers(exercise: &Exercise, best: &mut Case, attempt: Attempt<'_>) {
    let arrays: Vec<usize> = exercise.inputs().iter().enumerate().filter(|(_, p)| p.kind == Kind::Array).map(|(at, _)| at).collect();
    // Whole arrays first, then number by number.
    for &arg in &arrays {
        for simpler in [|_: f64| 0.0, |_: f64| 1.0, |x: f64| x.round(), |x: f64| (2.0 * x).round() / 2.0] {
            let mut smaller = best.clone();
            smaller.call.args[arg].data.iter_mut().filter(|x| x.is_finite()).for_each(|x| *x = simpler(*x));
            if smaller.call.args[arg] != best.call.args[arg] && attempt(best, smaller) {
                break;
            }
        }
    }
    for &arg in &arrays {
        for at in 0..best.call.args[arg].data.len() {
            let x = best.call.args[arg].data[at];
            for simpler in [0.0, 1.0, x.round()] {
                if !x.is_finite() || x == simpler || (x.fract() == 0.0 && x.abs() <= simpler.abs()) {
                    continue;
                }
                let mut smaller = best.clone();
                smaller.call.args[arg].data[at] = simpler;
                if attempt(best, smaller) {
                    break;
                }
            }
        }
    }
}
