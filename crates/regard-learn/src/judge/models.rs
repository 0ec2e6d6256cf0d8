//! Exercise 14: models with and without a defect, questions counted, and which model was mistaken for which.

use super::mutants::Diagnosis;
use super::{NoVerdict, Status, Task, Verdict, blank};
use crate::exercises::diagnose::model::{HEADS, MAX_LEN, Model, NAMES, VOCAB};
use crate::formula::Manners;
use crate::rng::Rng;
use crate::runner::Runner;
use crate::value::Trouble;
use std::collections::BTreeMap;

/// Questions a model.
pub const QUESTIONS: usize = 40;
/// Models of each name.
const EACH: usize = 3;
/// How many models are judged.
pub const MODELS: usize = NAMES.len() * EACH;

/// What was asked about a model, and what it was taken for.
struct Asked {
    name: &'static str,
    taken_for: String,
    questions: Vec<Vec<usize>>,
}

pub(super) fn judge(task: &Task<'_>, runner: &mut Runner<'_>, seed: u64) -> Result<Verdict, NoVerdict> {
    let mut verdict = blank(task.exercise, task.lang);
    verdict.cases = MODELS;
    let all = match ask_all(runner, seed, true) {
        Ok(all) => all,
        Err((_, Trouble::Stopped)) => return Err(NoVerdict::Stopped),
        Err((asked, trouble)) => {
            verdict.failed = 1;
            let number = asked.len();
            let place = format!("in model {number}");
            verdict.case_number = number;
            verdict.told(task.file, &place, &trouble);
            if asked.last().is_some_and(|a| a.questions.len() > QUESTIONS) && runner.alive() {
                verdict.status = Status::Fail;
                verdict.diagnosis = Some(diagnosis(task, "too-many-questions"));
            }
            return Ok(verdict);
        }
    };
    verdict.failed = all.iter().filter(|a| wrong(a)).count();
    if verdict.failed == 0 {
        verdict.status = Status::Pass;
        return Ok(verdict);
    }
    verdict.status = Status::Fail;
    verdict.facts = confusion(&all);
    let id = known(&all).or_else(|| {
        runner.begin_check();
        let exact = ask_all(runner, seed, false).ok()?;
        (!exact.iter().any(wrong)).then_some("no-tolerance")
    });
    let id = id.or_else(|| by_names(&all));
    verdict.diagnosis = id.map(|id| diagnosis(task, id));
    Ok(verdict)
}

fn diagnosis(task: &Task<'_>, id: &'static str) -> Diagnosis {
    Diagnosis { mutants: vec![id], mistakes: vec![task.exercise.mistake(id)], manners: Manners::default(), explains: MODELS }
}

fn wrong(asked: &Asked) -> bool {
    asked.taken_for != asked.name || asked.questions.len() > QUESTIONS
}

/// Goes through all models in an order that says nothing about their names.
fn ask_all(runner: &mut Runner<'_>, seed: u64, rounding: bool) -> Result<Vec<Asked>, (Vec<Asked>, Trouble)> {
    let mut rng = Rng::new(seed, "diagnose");
    let mut order: Vec<&'static str> = NAMES.iter().flat_map(|name| [*name; EACH]).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, rng.size(0, at));
    }
    let mut all = Vec::new();
    for name in order {
        let mut model = Model::new(name, &mut rng, rounding);
        let mut questions: Vec<Vec<usize>> = Vec::new();
        let reply = runner.diagnose(&[VOCAB, MAX_LEN, HEADS], &mut |tokens| {
            questions.push(tokens.to_vec());
            if questions.len() > QUESTIONS {
                return Err(format!("only {QUESTIONS} questions are answered about one model"));
            }
            model.answer(tokens)
        });
        let failed = reply.as_ref().err().cloned();
        all.push(Asked { name, taken_for: reply.unwrap_or_default(), questions });
        if let Some(trouble) = failed {
            return Err((all, trouble));
        }
    }
    Ok(all)
}

/// Mistakes that the questions and answers themselves show.
fn known(all: &[Asked]) -> Option<&'static str> {
    if all.iter().any(|a| a.questions.len() > QUESTIONS) {
        return Some("too-many-questions");
    }
    if all.iter().all(|a| a.taken_for == "healthy") {
        return Some("always-healthy");
    }
    let within = |a: &Vec<usize>, b: &Vec<usize>| a.iter().zip(b).all(|(x, y)| x == y);
    let missed: Vec<&Asked> = all.iter().filter(|a| wrong(a)).collect();
    let unseen = |a: &&Asked| ["hidden_leak", "no_positions"].contains(&a.name) && a.taken_for == "healthy";
    if missed.iter().all(unseen) && missed.iter().all(|a| a.questions.iter().all(|x| a.questions.iter().all(|y| within(x, y)))) {
        return Some("weights-only");
    }
    let traded = |a: &&Asked| {
        let pairs = a.questions.iter().flat_map(|x| a.questions.iter().map(move |y| (x, y)));
        let swaps: Vec<bool> = pairs.filter_map(|(x, y)| swap_moves_last(x, y)).collect();
        !swaps.is_empty() && swaps.iter().all(|last| *last)
    };
    let taken = |a: &&Asked| a.name == "no_positions" && a.taken_for == "healthy";
    (missed.iter().all(taken) && missed.iter().all(traded)).then_some("moves-the-last-token")
}

/// What the names say that were given, where no better known mistake explains them.
fn by_names(all: &[Asked]) -> Option<&'static str> {
    let missed: Vec<&Asked> = all.iter().filter(|a| wrong(a)).collect();
    let given: Vec<&str> = all.iter().map(|a| a.taken_for.as_str()).collect();
    let names: Vec<&str> = missed.iter().map(|a| a.name).collect();
    let calls: BTreeMap<&str, Vec<&str>> =
        names.iter().map(|name| (*name, all.iter().filter(|a| a.name == *name).map(|a| &*a.taken_for).collect())).collect();
    let one_to_one = calls.values().all(|calls| calls.iter().all(|call| call == &calls[0] && names.contains(call)));
    let different: std::collections::BTreeSet<&str> = calls.values().map(|calls| calls[0]).collect();
    if one_to_one && different.len() == calls.len() {
        return Some("names-exchanged");
    }
    names.iter().all(|name| !given.contains(name)).then_some("names-missing")
}

/// Whether two questions differ by two tokens that trade places, and then whether the last one is among these.
fn swap_moves_last(x: &[usize], y: &[usize]) -> Option<bool> {
    let places: Vec<usize> = (0..x.len().min(y.len())).filter(|&at| x[at] != y[at]).collect();
    let [a, b] = places[..] else { return None };
    (x.len() == y.len() && x[a] == y[b] && x[b] == y[a]).then_some(b + 1 == x.len())
}

/// Which model was mistaken for which.
fn confusion(all: &[Asked]) -> Vec<String> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for asked in all.iter().filter(|a| a.taken_for != a.name) {
        *counts.entry((asked.name, &asked.taken_for)).or_default() += 1;
    }
    let unknown = |name: &str| if NAMES.contains(&name) { "" } else { ", which is none of the names" };
    counts.iter().map(|((name, taken), count)| format!("{name} was taken for {taken:?}{} ({count} of {EACH})", unknown(taken))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest difference of two answers.
    fn apart(a: &(crate::value::Value<f64>, crate::value::Value<f64>), b: &(crate::value::Value<f64>, crate::value::Value<f64>)) -> f64 {
        let pairs = a.0.data.iter().zip(&b.0.data).chain(a.1.data.iter().zip(&b.1.data));
        pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn a_defect_moves_numbers_by_a_hundredth_and_rounding_by_less_than_a_ten_thousandth() {
        let tokens: Vec<usize> = (0..MAX_LEN).map(|i| (3 * i + 1) % VOCAB).collect();
        for seed in 0..20 {
            for name in NAMES {
                let make = |name, rounding| Model::new(name, &mut Rng::new(seed, "x"), rounding).answer(&tokens).expect("tokens it has");
                assert!(apart(&make(name, false), &make(name, true)) < 1e-4, "{name}");
                if name != "healthy" {
                    assert!(apart(&make(name, false), &make("healthy", false)) > 1e-2, "{name}");
                }
            }
        }
    }
}
