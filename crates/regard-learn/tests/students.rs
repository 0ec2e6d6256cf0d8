//! Answers in the style of students, not derived from the solutions: wrong ones fail and are named, right ones pass.

mod common;

use common::{Judge, languages, run_all, said};
use regard_learn::exercise::Lang;
use regard_learn::exercises::find;
use regard_learn::judge::Status;

#[test]
fn wrong_answers_of_students_are_named_and_right_ones_pass() {
    if !languages().contains(&Lang::Python) {
        return;
    }
    let answers: Vec<(&str, &str)> =
        include_str!("students.py.txt").split("### ").skip(1).map(|part| part.split_once('\n').expect("a head and a file")).collect();
    assert!(answers.len() >= 150, "{}", answers.len());
    run_all(answers.into_iter().map(|(head, source)| {
        move |judge: &Judge| {
            let (number, ids) = head.split_once(' ').expect("a number and ids");
            let verdict = judge.check(find(number).expect("an exercise"), Lang::Python, source);
            let said_ids: Vec<&str> = verdict.diagnosis.iter().flat_map(|d| d.mistakes.iter().map(|m| m.id)).collect();
            let status = if ids == "pass" { Status::Pass } else { verdict.status };
            let told = if verdict.status == Status::Pass { "pass".to_owned() } else { said_ids.join("+") };
            if verdict.status == status && told == ids { Ok(()) } else { Err(format!("{head}: {}", said(&verdict))) }
        }
    }));
}
