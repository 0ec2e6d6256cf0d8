//! Example texts of a model, each with a view that shows one thing.

use regard_model::Model;
use serde_json::{Value, json};

/// A text in the language of the built-in model, and one in plain English. Both end within a sentence: the next tokens continue it.
const STORY: &str = "Leo and Ben went to the library. The lazy cat sees the happy horses. Leo and Ben";
const ENGLISH: &str =
    "Once upon a time, there was a little girl named Lily. She loved to play with her toys in the park. One day, she saw a big red";
/// Words that it never saw: the second time they can only be looked up.
const STORY_TWICE: &str = "Zorb quix met Vlad jump kiwi. Zorb quix met Vlad jump kiwi.";
const ENGLISH_TWICE: &str = "The quick green fox sold seven lamps. The quick green fox sold seven lamps.";

/// Title, explanation, whether the text repeats itself, the head of the built-in model, the view, the edits, the side.
struct Example(&'static str, &'static str, bool, [usize; 2], &'static str, &'static str, &'static str);

/// What the page looks for in the heads of other models, by title, and how it says so.
const FOUND: [(&str, &str, &str); 3] = [
    ("Previous token", "previous", "The head of this model that most looks at the token before: every line goes one step up."),
    ("Induction", "repeats", "Unknown words, twice: the head that most looks up what followed the first time."),
    ("First-token sink", "first", "The head that most rests on the first token: a bright first column."),
];

const EXAMPLES: [Example; 5] = [
    Example("Previous token", "This head looks at the token before: every line goes one step up.", false, [1, 2], "head", "", "B"),
    Example(
        "Induction",
        "Unknown words, twice: this head looks up what followed the first time, so the second time surprises less.",
        true,
        [2, 0],
        "map",
        "",
        "B",
    ),
    Example(
        "First-token sink",
        "With nothing to look for, this head rests on the first token: a bright first column.",
        false,
        [2, 3],
        "map",
        "",
        "B",
    ),
    Example(
        "Without the scale",
        "Scores are not divided by √d_k: the next tokens and the loss get worse.",
        false,
        [1, 0],
        "heads",
        "scale=off",
        "B",
    ),
    Example(
        "Without the mask",
        "Every token sees the later ones, which the model never learned to use.",
        false,
        [1, 2],
        "map",
        "mask=full",
        "B",
    ),
];

pub(crate) fn is_built_in(model: &Model) -> bool {
    model.path() == std::path::Path::new(Model::BUILT_IN)
}

/// The text that the page begins with.
pub(crate) fn first_text(model: &Model) -> &'static str {
    match (is_built_in(model), model.encoder()) {
        (true, _) => STORY,
        // It writes for itself.
        (false, Some(_)) => "",
        (false, None) => ENGLISH,
    }
}

/// What the encoder of an encoder-decoder reads first; T5 is told what to do.
pub(crate) fn first_source(model: &Model) -> &'static str {
    match (model.encoder(), model.family()) {
        (None, _) => "",
        (Some(_), "t5") => "translate English to German: The little girl saw a big red ball in the park.",
        (Some(_), _) => "The little girl saw a big red ball in the park.",
    }
}

/// Examples as the page's states. Heads are known for the built-in model; in others the page finds them.
pub(crate) fn of(model: &Model) -> Value {
    let own = is_built_in(model);
    let state = |example: &Example| {
        let Example(title, what, twice, head, view, edits, side) = example;
        let text = match (own, twice) {
            (true, false) => STORY,
            (true, true) => STORY_TWICE,
            (false, false) => ENGLISH,
            (false, true) => ENGLISH_TWICE,
        };
        let [layer, head] = if own { *head } else { [0, 0] };
        let found = FOUND.iter().find(|(of, ..)| !own && of == title);
        let what = match (model.is_causal(), found) {
            (false, _) => "Scores are not divided by √d_k: each token looks at fewer others.",
            (true, Some((.., what))) => what,
            (true, None) => *what,
        };
        json!({
            "title": title, "what": what, "text": text, "layer": layer, "head": head, "view": view, "edits": edits, "side": side,
            "find": found.map(|(_, find, _)| find),
        })
    };
    // A mask of its own and a sink are properties of models that read forwards.
    let fits = |example: &&Example| model.encoder().is_none() && (model.is_causal() || example.5 == "scale=off");
    Value::Array(EXAMPLES.iter().filter(fits).map(state).collect())
}
