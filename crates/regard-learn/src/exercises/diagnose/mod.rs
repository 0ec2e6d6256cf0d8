//! 14: which defect does a model have?

pub(crate) mod model;

use crate::exercise::{Exercise, Judging, Kind, Mistake, param};
use crate::files;

pub(crate) static EXERCISE: Exercise = Exercise {
    number: 14,
    name: "diagnose",
    title: "find the defect by asking",
    dims: &["vocab", "max_len", "heads"],
    params: &[param("vocab", Kind::Count, &[]), param("max_len", Kind::Count, &[]), param("heads", Kind::Count, &[])],
    results: &[("name", &[])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "weights-only", text: "it never changes a token: weights can look causal while values leak, and only another \
            question shows that" },
        Mistake { id: "always-healthy", text: "every model is called healthy" },
        Mistake { id: "no-tolerance", text: "without rounding it is right: numbers that are equal but for rounding (below 1e-4) are \
            equal" },
        Mistake { id: "too-many-questions", text: "it asks more than 40 questions about one model" },
        Mistake { id: "names-exchanged", text: "names are exchanged: each of these models is always called by the name of another" },
        Mistake { id: "names-missing", text: "some names are never given, and only their models are missed: each defect needs a test of \
            its own" },
        Mistake {
            id: "moves-the-last-token",
            text: "the only tokens that trade places include the last one: its own logits then belong to another question; exchange two \
                early ones",
        },
    ],
    mutants: &[],
    hints: [
        "Ask the same question twice.",
        "What must not change when only the last token does?",
        "What must change when two early tokens trade places, and what must not?",
    ],
    idea: "A leak shows by asking, not by looking: change what must not matter, and watch what does.",
    floor: 0.0,
    cases: |_| Vec::new(),
    possible: |_| true,
    judging: Judging::Models,
    custom: None,
    files: files!(),
};
