//! Example texts of a model, each with a view that shows one thing.

use regard_model::Model;
use serde_json::{Value, json};

/// A text in the language of the built-in model, and one in plain English.
const STORY: &str = "Leo and Ben went to the library. The lazy cat sees the happy horses. They sleep at the library.";
const ENGLISH: &str = "Emma and David went to the market. Emma and David saw a red apple. Emma said, I like the red apple.";
const STORY_TWICE: &str = "Leo and Ben went to the library. Leo and Ben went to the library.";
const ENGLISH_TWICE: &str = "The quick green fox sold seven lamps. The quick green fox sold seven lamps.";

/// Title, explanation, whether the text repeats itself, the head of the built-in model, the view, the edits, the side.
struct Example(&'static str, &'static str, bool, [usize; 2], &'static str, &'static str, &'static str);

const EXAMPLES: [Example; 5] = [
    Example("Previous token", "This head attends to the token before: lines go one step up.", false, [1, 2], "head", "", "B"),
    Example("Induction", "The sentence is repeated: this head finds what followed last time.", true, [2, 2], "map", "", "B"),
    Example("First-token sink", "Most of this head's weight is on the first token.", false, [2, 3], "map", "", "B"),
    Example("Without the scale", "B is computed without 1/sqrt(d_k): compare the losses.", false, [1, 0], "heads", "scale=off", "B"),
    Example("Without the mask", "B sees later tokens, which it was never trained for.", false, [1, 2], "map", "mask=full", "B"),
];

pub(crate) fn is_built_in(model: &Model) -> bool {
    model.path() == std::path::Path::new(Model::BUILT_IN)
}

/// The text that the page begins with.
pub(crate) fn first_text(model: &Model) -> &'static str {
    if is_built_in(model) { STORY } else { ENGLISH }
}

/// Examples as the page's states. Heads are known for the built-in model; other models begin at their first head.
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
        let ([layer, head], view) = if own { (*head, *view) } else { ([0, 0], if edits.is_empty() { "heads" } else { *view }) };
        let what = if own || !edits.is_empty() { *what } else { "All heads of the model; Name the heads labels those that do this." };
        json!({ "title": title, "what": what, "text": text, "layer": layer, "head": head, "view": view, "edits": edits, "side": side })
    };
    // A mask of its own and a sink are properties of models that read forwards.
    let fits = |example: &&Example| model.is_causal() || example.5 == "scale=off";
    Value::Array(EXAMPLES.iter().filter(fits).map(state).collect())
}
