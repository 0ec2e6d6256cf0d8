//! Wrong answers that no known mistake explains: what is said of them must be true.

mod common;

use common::{Judge, languages, said};
use regard_learn::exercise::Lang;
use regard_learn::exercises::find;
use regard_learn::judge::Status;

/// Exercise, what stands in the solution, what takes its place, what must be said, what must not.
const CHANGED: &[(&str, &str, &str, &str, &str)] = &[
    // All weights 0 where it is wrong: columns do not sum to 1 either.
    (
        "causal_attention",
        "    scores = np.where(visible",
        "    visible = visible & (scores != 0)\n    scores = np.where(visible",
        "weights is 0 everywhere in the cases where it is wrong",
        "columns of weights sum to 1",
    ),
    // Only in that case are some rows right.
    (
        "softmax",
        "np.exp(x - top)",
        "np.exp((x - top) / 2)",
        "in the case \"a row of -inf only\" only row(s) 0, 2 of 3 of weights are wrong",
        "in some rows only",
    ),
    // One head, repeated, is no other order.
    (
        "multi_head",
        "    mixed = weights",
        "    weights = np.repeat(weights[:1], heads, 0)\n    mixed = weights",
        "weights holds right parts only, but not each of them once",
        "in another order",
    ),
    // Rows of a batch are named by batch and row.
    ("masked_attention", "k[a][visible]", "k[0][visible]", "only row(s) [1, 0]", "row(s) 2"),
];

#[test]
fn what_is_said_is_true() {
    if !languages().contains(&Lang::Python) {
        return;
    }
    let judge = Judge::new();
    for (name, old, new, words, lie) in CHANGED {
        let exercise = find(name).expect("it is there");
        let source = exercise.solution(Lang::Python);
        assert!(source.contains(old), "{name}: {old}");
        let verdict = judge.check(exercise, Lang::Python, &source.replacen(old, new, 1));
        let text = regard_learn::show::verdict(&verdict, Default::default()).join("\n");
        assert_eq!(verdict.status, Status::Fail, "{name}");
        assert!(text.contains(words) && !text.contains(lie), "{name}\n{text}\n{}", said(&verdict));
    }
}

#[test]
fn squares_of_two_short_rows_underflow() {
    let rust = |length: &str| {
        let source = find("similarity").expect("it is there").solution(Lang::Rust);
        source.replace("dot(a, b) / length(a) / length(b)", length)
    };
    let judge = Judge::new();
    if languages().contains(&Lang::Rust) {
        let exercise = find("similarity").expect("it is there");
        let wrong = judge.check(exercise, Lang::Rust, &rust("dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()"));
        assert_eq!(wrong.status, Status::Fail, "{}", said(&wrong));
        let right = judge.check(exercise, Lang::Rust, &rust("dot(a, b) / (length(a) * length(b))"));
        assert_eq!(right.status, Status::Pass, "{}", said(&right));
    }
}
