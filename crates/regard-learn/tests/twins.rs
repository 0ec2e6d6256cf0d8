//! Twins without guests: each has a text, none fits a right answer, and every mistake that is listed has a wrong answer in both languages.

use regard_learn::exercise::Judging;
use regard_learn::exercises::EXERCISES;
use regard_learn::formula::MANNERS;
use regard_learn::judge::{cases, compare, evaluate, expect};
use regard_learn::wrong::wrong_answers;

/// The mistakes that the judge must name.
const LISTED: [(&str, &str); 14] = [
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
fn every_twin_has_a_text() {
    for exercise in EXERCISES {
        for twin in exercise.twins {
            assert!(twin.starts_with(exercise.mistake(twin).id) && !exercise.mistake(twin).text.is_empty(), "{}: {twin}", exercise.name);
        }
    }
}

#[test]
fn no_twin_fits_a_right_answer() {
    let mut fitting = Vec::new();
    for exercise in EXERCISES.iter().filter(|e| matches!(e.judging, Judging::Numbers { .. })) {
        for seed in 1..=3 {
            let cases = cases(exercise, seed);
            let expected: Vec<_> = cases.iter().map(|case| expect(exercise, case).expect("the oracle answers")).collect();
            for twin in exercise.twins {
                for manners in MANNERS {
                    let differs = cases.iter().zip(&expected).any(|(case, right)| match evaluate(exercise, case, &[twin], manners) {
                        Err(_) => true,
                        Ok(wrong) => compare(exercise, case, right, &Ok(wrong.values)).is_some(),
                    });
                    if !differs {
                        fitting.push(format!("{} {twin} {manners:?}, seed {seed}", exercise.name));
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
