//! Mutants without a learner: each has a text that holds, none is right, and every listed mistake has a wrong answer in both languages.

use regard_learn::exercise::Judging;
use regard_learn::exercises::EXERCISES;
use regard_learn::formula::MANNERS;
use regard_learn::judge::{cases, compare, evaluate, expect};
use regard_learn::wrong::wrong_answers;

/// The mistakes that the judge must name.
const LISTED: [(&str, &str); 16] = [
    ("similarity", "only-q-norm l1-norm zero-nan distance dots-normalised transposed"),
    ("softmax", "no-max columns one-max clipped empty-nan logarithm base-2"),
    ("attention", "columns no-softmax no-scale scale-after keys-as-values no-max transposed-scores"),
    ("scaled_attention", "none times value-width fixed variances-ignored one-variance scale-after"),
    ("saturation", "bits zero-log-zero rows-independent deviation largest-of-draw relative-entropy no-scale"),
    ("causal_attention", "no-mask reversed one-ahead zero-scores offset-negated empty-nan empty-mean"),
    ("masked_attention", "inverted either length-inclusive padding-hides-queries nan-from-value nan-from-key empty-mean mask-transposed"),
    ("attention_backward", "no-scale dk-unscaled delta-columns dv-untransposed swapped delta-added unnormalised empty-nan"),
    ("multi_head", "split-untransposed interleaved model-width no-output-matrix averaged self-only"),
    ("grouped_attention", "first-for-all queries-averaged divided-by-hk no-scale few-heads backwards"),
    ("decode", "values-turned restart past-turned-again half-speed no-triangle cache-unturned new-first queries-unturned"),
    ("absorb", "sum-not-rescaled alpha-inverted hidden-nan normalised-each-time one-max alpha-on-the-new"),
    ("backward_tile", "tile-delta dv-undropped ds-dropped dk-unscaled divided-by-p max-forgotten"),
    ("diagnose", "weights-only always-healthy no-tolerance too-many-questions moves-the-last-token"),
    ("block", "post-norm no-residual norm-in-residual layer-norm no-mask parallel no-activation model-width gains-unused"),
    (
        "checkpoint",
        "offsets-from-start file-order first-layer big-endian bfloat16 out-transposed qkv-by-heads kv-exchanged unturned neighbours-paired \
         no-residual no-norm no-mask model-width",
    ),
];

#[test]
fn every_listed_mistake_has_a_wrong_answer_in_both_languages() {
    assert_eq!(LISTED.len(), EXERCISES.len());
    for (exercise, (name, ids)) in EXERCISES.iter().zip(LISTED) {
        assert_eq!(exercise.name, name);
        let python = wrong_answers(exercise.files.solution_py, exercise.files.wrong_py);
        let rust = wrong_answers(exercise.files.solution_rs, exercise.files.wrong_rs);
        for id in ids.split(' ') {
            assert!(python.iter().any(|w| w.id == id), "{name}: {id} in Python");
            assert!(rust.iter().any(|w| w.id == id), "{name}: {id} in Rust");
        }
    }
}

#[test]
fn every_mutant_has_a_text() {
    for exercise in EXERCISES {
        for mutant in exercise.mutants {
            assert!(
                mutant.starts_with(exercise.mistake(mutant).id) && !exercise.mistake(mutant).text.is_empty(),
                "{}: {mutant}",
                exercise.name
            );
        }
    }
}

#[test]
fn no_mutant_is_right_on_every_case() {
    let mut fitting = Vec::new();
    for exercise in EXERCISES.iter().filter(|e| matches!(e.judging, Judging::Numbers { .. })) {
        for seed in 1..=3 {
            let cases = cases(exercise, seed);
            let expected: Vec<_> = cases.iter().map(|case| expect(exercise, case).expect("the oracle answers")).collect();
            for mutant in exercise.mutants {
                for manners in MANNERS {
                    let differs = cases.iter().zip(&expected).any(|(case, right)| match evaluate(exercise, case, &[mutant], manners) {
                        Err(_) => true,
                        Ok(wrong) => {
                            let all = wrong.honest.into_iter().chain([wrong.values]);
                            all.into_iter().any(|values| compare(exercise, case, right, &Ok(values)).is_some())
                        }
                    });
                    if !differs {
                        fitting.push(format!("{} {mutant} {manners:?}, seed {seed}", exercise.name));
                    }
                }
            }
        }
    }
    assert!(fitting.is_empty(), "right on every case: {fitting:#?}");
}

#[test]
fn honest_evaluations_are_within_the_tolerance() {
    for exercise in EXERCISES.iter().filter(|e| matches!(e.judging, Judging::Numbers { .. })) {
        for case in cases(exercise, 7) {
            let right = expect(exercise, &case).expect("the oracle answers");
            for honest in &right.honest {
                let failure = compare(exercise, &case, &right, &Ok(honest.clone()));
                assert!(failure.is_none(), "{} {}: {failure:?}", exercise.name, case.label);
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_cases_and_another_gives_others() {
    for exercise in EXERCISES.iter().filter(|e| matches!(e.judging, Judging::Numbers { .. })) {
        let numbers = |seed| {
            cases(exercise, seed)
                .iter()
                .flat_map(|c| c.call.args.iter().flat_map(|a| a.data.iter().map(|x| x.to_bits()).collect::<Vec<_>>()))
                .collect::<Vec<u64>>()
        };
        assert!(numbers(1) == numbers(1) && numbers(1) != numbers(2), "{}", exercise.name);
    }
}

/// Value of a formula with `+ - * /`, brackets, `sqrt` and names.
fn value(text: &str, names: &dyn Fn(&str) -> f64) -> f64 {
    struct Parser<'a> {
        rest: &'a str,
        names: &'a dyn Fn(&str) -> f64,
    }
    impl Parser<'_> {
        fn take(&mut self, sign: char) -> bool {
            self.rest = self.rest.trim_start();
            let found = self.rest.starts_with(sign);
            self.rest = if found { &self.rest[1..] } else { self.rest };
            found
        }
        fn sum(&mut self) -> f64 {
            let mut total = self.product();
            loop {
                match () {
                    () if self.take('+') => total += self.product(),
                    () if self.take('-') => total -= self.product(),
                    () => return total,
                }
            }
        }
        fn product(&mut self) -> f64 {
            let mut total = self.factor();
            loop {
                match () {
                    () if self.take('*') => total *= self.factor(),
                    () if self.take('/') => total /= self.factor(),
                    () => return total,
                }
            }
        }
        fn factor(&mut self) -> f64 {
            if self.take('(') {
                let inner = self.sum();
                assert!(self.take(')'), "{}", self.rest);
                return inner;
            }
            let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            match word {
                "sqrt" => self.factor().sqrt(),
                _ => word.parse().unwrap_or_else(|_| (self.names)(word)),
            }
        }
    }
    let mut parser = Parser { rest: text, names };
    let total = parser.sum();
    assert!(parser.rest.trim().is_empty(), "{text}: {}", parser.rest);
    total
}

#[test]
fn the_formulas_in_the_texts_of_04_are_those_of_its_mutants() {
    let exercise = regard_learn::exercises::find("scaled_attention").expect("it is there");
    let mut checked = Vec::new();
    for mutant in exercise.mutants {
        let text = exercise.mistake(mutant).text;
        let Some(formula) = text.strip_prefix('`').and_then(|rest| rest.split('`').next()) else { continue };
        for case in cases(exercise, 1) {
            let [n, m, d, dv] = case.call.dims[..] else { panic!("four dimensions") };
            let names = |name: &str| match name {
                "n" => n as f64,
                "m" => m as f64,
                "d" => d as f64,
                "dv" => dv as f64,
                "var_q" => case.call.args[3].data[0],
                "var_k" => case.call.args[4].data[0],
                _ => panic!("{mutant}: {name}"),
            };
            let scale = evaluate(exercise, &case, &[mutant], MANNERS[0]).expect("it answers").values[0].data[0];
            let claimed = value(formula, &names);
            assert!((scale - claimed).abs() <= 1e-12 * scale.abs(), "{mutant}: {formula} is {claimed}, the scale {scale}");
        }
        checked.push(*mutant);
    }
    assert!(checked.len() >= 20 && checked.contains(&"no-root/without-variances"), "{checked:?}");
}

/// Forms `id/form` for which the sentence of their mistake holds as it stands.
const SHARED: &[&str] = &[
    "empty-mean",
    "added-epsilon",
    "length-floor",
    "product-floor",
    "length-threshold",
    "product-threshold",
    "rooted-epsilon",
    "log-epsilon",
    "clipped",
    "hard",
    "mask-transposed",
    "averaged",
];

#[test]
fn every_form_of_a_mistake_has_a_sentence_of_its_own_or_a_listed_one() {
    for exercise in EXERCISES {
        for mutant in exercise.mutants.iter().filter(|mutant| mutant.contains('/')) {
            let own = exercise.mistakes.iter().chain(regard_learn::exercise::COMMON).any(|m| m.id == *mutant);
            let id = exercise.mistake(mutant).id;
            assert!(own || SHARED.contains(&id), "{}: {mutant} borrows the sentence of {id}", exercise.name);
        }
    }
}

#[test]
fn mistakes_that_are_shared_with_the_judge_of_kernels_are_the_same_formula() {
    use regard_learn::kernels::catalogue::{SHARED, Switches};
    use regard_learn::kernels::{Align, Precision, Problem, Run, Takes, cases as kernel_cases, evaluate as kernel};
    use regard_learn::value::Value;
    for (name, id, _) in SHARED {
        let known = |e: &&&regard_learn::exercise::Exercise| *name == "*" || e.name == *name;
        let named = |e: &&regard_learn::exercise::Exercise| e.mutants.iter().any(|m| m.split('/').next() == Some(id));
        assert!(EXERCISES.iter().filter(known).any(named), "{name}: {id}");
    }
    // The same numbers from both programs, where one exercise and one kernel can be asked the same.
    let takes = Takes { features: vec!["scale".to_owned()], rank: 2, align: Align::TopLeft, seq_major: false, precision: Precision::F64 };
    let problems: Vec<Problem> = kernel_cases(&takes, 5).into_iter().filter(|p| !p.hard && p.work() < 2000).collect();
    let exercise = regard_learn::exercises::find("attention").expect("it is there");
    let Judging::Numbers { formula, .. } = &exercise.judging else { panic!("numbers") };
    let mut compared = 0;
    for (_, id, mistake) in SHARED.iter().filter(|(name, id, _)| ["*", "attention"].contains(name) && exercise.mutants.contains(id)) {
        if ["no-max", "scale-absolute"].contains(id) {
            continue;
        }
        // On top of a scale means that one is given.
        for p in problems.iter().filter(|p| p.scale.is_some() || *id != "scale-and-root") {
            let s = p.segments[0];
            let scale = p.scale.unwrap_or(1.0 / (p.dims[0] as f64).sqrt());
            let args = vec![
                Value::new(&[s.n, p.dims[0]], p.q.clone()),
                Value::new(&[s.m, p.dims[0]], p.k.clone()),
                Value::new(&[s.m, p.dims[1]], p.v.clone()),
                Value::number(scale),
            ];
            let call = regard_learn::value::Call { dims: vec![s.n, s.m, p.dims[0], p.dims[1]], args };
            let mutant = (formula.f64)(&call, &regard_learn::formula::How::with(&[*id])).expect("it answers");
            let switches = Switches::default().with(*mistake, 0);
            let same = kernel(p, Run { switches: &switches, precision: Precision::F64, backwards: false });
            let out = same.named("out").expect("an output");
            let apart = mutant[0].data.iter().zip(out).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(apart <= 1e-12 * mutant[0].data.iter().fold(1.0, |top: f64, x| top.max(x.abs())), "{id}, {}: {apart}", p.label);
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn titles_fit_a_line_of_the_list() {
    for exercise in EXERCISES {
        assert!(exercise.title.len() <= 48, "{}: {} columns", exercise.name, exercise.title.len());
    }
}

#[test]
fn pairs_of_mutants_answer_or_refuse_every_small_case() {
    for exercise in EXERCISES.iter().filter(|e| matches!(e.judging, Judging::Numbers { .. })) {
        let size = |case: &regard_learn::value::Case| case.call.args.iter().map(|a| a.data.len()).sum::<usize>();
        let small: Vec<_> = cases(exercise, 1).into_iter().filter(|case| size(case) <= 40).collect();
        let Judging::Numbers { formula, session } = &exercise.judging else { continue };
        for (at, first) in exercise.mutants.iter().enumerate() {
            for second in &exercise.mutants[at + 1..] {
                let how = regard_learn::formula::How::with(&[*first, *second]);
                for case in &small {
                    // A panic here would be one of the judge.
                    let _ = (session.f64)(case, &mut |call| (formula.f64)(call, &how));
                }
            }
        }
    }
}
