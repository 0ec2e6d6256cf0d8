//! Exercises of sets: the oracle is the set's solution, the mutants are its wrong answers.

use super::compare::{Expected, close};
use super::{Diagnosis, NoVerdict, Seen, Task};
use crate::error::Error;
use crate::exercise::{Exercise, Lang, Programs};
use crate::formula::Manners;
use crate::runner::{Runner, Start, StartError};
use crate::value::{Case, Trouble, Value};
use std::path::Path;

fn started<'a>(task: &Task<'a>, file: &'a Path) -> Result<Runner<'a>, Error> {
    let Task { exercise, python, builds, stop, .. } = *task;
    let runner = Runner::start(&Start { exercise, lang: Lang::Python, file, python, builds, stop });
    runner.map_err(|failed| match failed {
        StartError::Error(error) => error,
        StartError::Trouble(_) => Error::Usage(format!("{} cannot be loaded; run it with Python to see why", file.display())),
    })
}

/// The solution of the set at work.
pub(super) struct Oracle<'a> {
    exercise: &'static Exercise,
    runner: Runner<'a>,
}

impl<'a> Oracle<'a> {
    pub(super) fn start(task: &Task<'a>, programs: &'a Programs) -> Result<Self, NoVerdict> {
        Ok(Self { exercise: task.exercise, runner: started(task, &programs.solution)? })
    }

    /// Results with float64, and 4 E + 16 eps A, where E is the error with float32 and A the largest result.
    pub(super) fn expect(&mut self, case: &Case) -> Result<Expected, Trouble> {
        self.runner.begin_check();
        self.runner.wide = true;
        let values = self.runner.call(&case.call, false);
        self.runner.wide = false;
        let values = self.exercise.shaped(&case.call.dims, values?)?;
        let narrow = self.exercise.shaped(&case.call.dims, self.runner.call(&case.call, false)?)?;
        let finite = |value: &Value<f64>| value.data.iter().filter(|x| x.is_finite()).fold(0.0, |top: f64, x| top.max(x.abs()));
        let tolerance = |(wide, narrow): (&Value<f64>, &Value<f64>)| {
            let errors = wide.data.iter().zip(&narrow.data).map(|(a, b)| (a - b).abs());
            4.0 * errors.filter(|e| e.is_finite()).fold(0.0, f64::max) + 16.0 * f64::from(f32::EPSILON) * finite(wide)
        };
        let tolerance = values.iter().zip(&narrow).map(tolerance).collect();
        Ok(Expected { values, honest: vec![narrow], tolerance })
    }
}

/// The wrong answer of the set that gives the learner's numbers on every case.
pub(super) fn diagnose<'a>(task: &Task<'a>, programs: &'a Programs, seen: &[Seen]) -> Option<Diagnosis> {
    programs.wrong.iter().find_map(|(mistake, file)| {
        let mut runner = started(task, file).ok()?;
        let explains = seen.iter().all(|one| {
            runner.begin_check();
            let reply = runner.call(&one.case.call, one.case.strided);
            match (&one.reply, &reply) {
                (Ok(got), Ok(wrong)) => {
                    let alike = |((a, b), tolerance): ((&Value<f64>, &Value<f64>), &f64)| {
                        a.shape == b.shape && a.data.iter().zip(&b.data).all(|(a, b)| close(*a, *b, tolerance.max(1e-5 * b.abs())))
                    };
                    got.len() == wrong.len() && got.iter().zip(wrong).zip(&one.expected.tolerance).all(alike)
                }
                (Err(Trouble::Raised { .. } | Trouble::Form { .. }), Err(Trouble::Raised { .. } | Trouble::Form { .. })) => true,
                _ => false,
            }
        });
        let found = || Diagnosis { mutants: Vec::new(), mistakes: vec![*mistake], manners: Manners::default(), explains: seen.len() };
        explains.then(found)
    })
}
