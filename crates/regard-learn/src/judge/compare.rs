//! Whether numbers are right: |yours - oracle| <= 4 E + 16 eps A, NaN exactly where the oracle has NaN, zeros where zeros are demanded.
//!
//! E is the largest error of four honest f32 evaluations (sums forwards and backwards, the scale on q and on the scores), A the largest
//! value of the formula with absolute values; both per result.

use crate::exercise::{Exercise, Formula, Judging, Session, shape_text};
use crate::formula::{How, Manners};
use crate::real::Real;
use crate::value::{Case, Reply, Trouble, Value};

const EPS: f64 = f32::EPSILON as f64;

/// What a formula gives on a case: in f64, in f32 in four ways, and how far from the f64 values an honest answer may be.
pub struct Expected {
    /// The f64 values.
    pub values: Vec<Value<f64>>,
    /// The four f32 evaluations.
    pub honest: Vec<Vec<Value<f64>>>,
    /// Per result.
    pub tolerance: Vec<f64>,
}

/// Evaluates the formula of an exercise as a learner would, in every way that is honest.
pub fn expect(exercise: &Exercise, case: &Case) -> Result<Expected, Trouble> {
    evaluate(exercise, case, &[], Manners::default())
}

/// The same with mistakes.
pub fn evaluate(exercise: &Exercise, case: &Case, wrong: &[&'static str], manners: Manners) -> Result<Expected, Trouble> {
    let Judging::Numbers { formula, session } = &exercise.judging else { return Err(Trouble::Shapes) };
    evaluate_with(formula, session, case, &How { manners, ..How::with(wrong) }, exercise.floor)
}

/// The same for any formula.
pub(super) fn evaluate_with(formula: &Formula, session: &Session, case: &Case, how: &How, floor: f64) -> Result<Expected, Trouble> {
    let values = (session.f64)(case, &mut |call| (formula.f64)(call, how))?;
    let tracked = (session.tracked)(case, &mut |call| (formula.tracked)(call, how))?;
    let mut honest = Vec::new();
    for (backwards, scale_first) in [(false, false), (true, false), (false, true), (true, true)] {
        let how = How { backwards, scale_first, ..how.clone() };
        let results = (session.f32)(case, &mut |call| (formula.f32)(call, &how))?;
        honest.push(results.iter().map(Value::to).collect::<Vec<Value<f64>>>());
    }
    let tolerance = values.iter().enumerate().map(|(r, value)| {
        let errors = honest.iter().flat_map(|one| one[r].data.iter().zip(&value.data)).map(|(a, b)| (a - b).abs());
        let error = errors.filter(|e| e.is_finite()).fold(0.0, f64::max);
        let size = tracked[r].data.iter().map(|x| x.magnitude()).filter(|m| m.is_finite()).fold(0.0, f64::max);
        (4.0 * error + 16.0 * EPS * size).max(floor)
    });
    let tolerance = tolerance.collect();
    Ok(Expected { values, honest, tolerance })
}

/// How an answer fails a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// There are no numbers.
    Trouble(Trouble),
    /// A result has another shape.
    Shape {
        /// Which result.
        result: usize,
        /// Its shape, and the right one by name.
        text: String,
    },
    /// Numbers differ.
    Numbers {
        /// Which result.
        result: usize,
        /// The first wrong entry.
        at: usize,
        /// What it must be.
        expected: f64,
        /// What it is.
        got: f64,
        /// How far it may be.
        tolerance: f64,
        /// How many entries of this result are wrong.
        wrong: usize,
    },
    /// Hidden inputs change what must not change.
    Bits {
        /// Which result.
        result: usize,
        /// The first entry that changed.
        at: usize,
        /// By how much.
        by: f64,
        /// What was changed in the inputs.
        what: String,
    },
}

impl Failure {
    /// Failures of one kind are alike.
    pub fn kind(&self) -> String {
        match self {
            Failure::Trouble(Trouble::Raised { kind, .. }) => format!("raised {kind}"),
            Failure::Trouble(trouble) => format!("{:?}", std::mem::discriminant(trouble)),
            Failure::Shape { result, .. } => format!("shape {result}"),
            Failure::Numbers { result, got, .. } => format!("numbers {result} {}", got.is_finite()),
            Failure::Bits { result, .. } => format!("bits {result}"),
        }
    }
}

/// Whether one number may stand for another.
pub fn close(got: f64, expected: f64, tolerance: f64) -> bool {
    got == expected || (got.is_nan() && expected.is_nan()) || (got - expected).abs() <= tolerance
}

/// The first way in which results are not the expected ones.
pub fn compare(exercise: &Exercise, case: &Case, expected: &Expected, reply: &Reply<f64>) -> Option<Failure> {
    let got = match reply {
        Ok(got) => got,
        Err(trouble) => return Some(Failure::Trouble(trouble.clone())),
    };
    for (result, (want, have)) in expected.values.iter().zip(got).enumerate() {
        if want.shape != have.shape {
            let right = exercise.results.get(result).filter(|_| exercise.judged.is_empty());
            let right =
                right.map_or_else(|| format!("{:?}", want.shape), |output| shape_text(output, &exercise.shape(&case.call.dims, output)));
            let text = format!("{} has the shape {:?}; it must be {right}", exercise.judged(result), have.shape);
            return Some(Failure::Shape { result, text });
        }
    }
    let mut first: Option<Failure> = None;
    for (result, (want, have)) in expected.values.iter().zip(got).enumerate() {
        let allowed = |at: usize| if want.zeros.get(at) == Some(&true) { 0.0 } else { expected.tolerance[result] };
        let wrong: Vec<usize> = (0..want.data.len()).filter(|&at| !close(have.data[at], want.data[at], allowed(at))).collect();
        if let (Some(&at), None) = (wrong.first(), &first) {
            let (expected, got, tolerance) = (want.data[at], have.data[at], allowed(at));
            first = Some(Failure::Numbers { result, at, expected, got, tolerance, wrong: wrong.len() });
        }
    }
    first
}

/// Whether two results agree where they must: in every bit, or within a tolerance per result.
pub fn same_bits(case: &Case, first: &[Value<f64>], second: &Reply<f64>, tolerance: &[f64]) -> Option<Failure> {
    let again = case.again.as_ref()?;
    let second = match second {
        Ok(second) => second,
        Err(trouble) => return Some(Failure::Trouble(trouble.clone())),
    };
    for (result, keep) in again.keeps.iter().enumerate() {
        let (a, b) = (&first[result].data, &second[result].data);
        let changed = (0..keep.len().min(a.len()).min(b.len()))
            .find(|&at| keep[at] && !close(a[at], b[at], tolerance.get(result).copied().unwrap_or(0.0)));
        if let Some(at) = changed {
            return Some(Failure::Bits { result, at, by: (a[at] - b[at]).abs(), what: again.what.clone() });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::close;

    #[test]
    fn nan_is_close_to_nan_alone() {
        assert!(close(f64::NAN, f64::NAN, 0.0) && !close(f64::NAN, 0.0, 1e9) && !close(0.0, f64::NAN, f64::INFINITY.min(1e300)));
        assert!(!close(f64::INFINITY, 1.0, 1e300) && close(f64::INFINITY, f64::INFINITY, 0.0));
    }
}
