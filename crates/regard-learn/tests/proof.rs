//! What is claimed of the judge, in every language: solutions pass, stubs are `todo`, every listed wrong answer fails with its id first,
//! odd but right answers pass.
//!
//! `REGARD_LEARN_PYTHON` names a Python with NumPy, and with PyTorch; what is missing is skipped aloud.

mod common;

use common::{Judge, exercises, languages, run_all};
use regard_learn::judge::Status;
use regard_learn::wrong::wrong_answers;

#[test]
fn solutions_pass_on_twenty_seeds() {
    for lang in languages() {
        run_all(exercises().into_iter().map(|e| {
            move |judge: &Judge| {
                let verdict = judge.seeds(e, lang, e.solution(lang), 20);
                common::is_pass(&verdict)
            }
        }));
    }
}

#[test]
fn stubs_are_todo() {
    for lang in languages() {
        run_all(exercises().into_iter().map(|e| {
            move |judge: &Judge| {
                let verdict = judge.check(e, lang, e.stub(lang));
                (verdict.status == Status::Todo)
                    .then_some(())
                    .ok_or_else(|| format!("{} {}: {}", e.name, lang.name(), common::said(&verdict)))
            }
        }));
    }
}

#[test]
fn every_listed_wrong_answer_fails_with_its_id_first() {
    let all = languages().into_iter().flat_map(|lang| {
        exercises()
            .into_iter()
            .flat_map(move |e| wrong_answers(e.solution(lang), e.wrong(lang)).into_iter().map(move |wrong| (e, lang, wrong)))
    });
    {
        run_all(all.map(|(e, lang, wrong)| {
            move |judge: &Judge| {
                let verdict = judge.check(e, lang, &wrong.source);
                let id = verdict.diagnosis.as_ref().and_then(|d| d.mistakes.first()).map_or("none", |m| m.id);
                let fails = verdict.status != Status::Pass;
                let told = format!("{} {} {}: said {id}: {}", e.name, lang.name(), wrong.id, common::said(&verdict));
                if fails && id == wrong.id && verdict.diagnosis.as_ref().is_some_and(|d| d.mistakes.len() == 1) {
                    Ok(())
                } else {
                    Err(told)
                }
            }
        }));
    }
}
