//! Tokens per word against the vocabulary.

use crate::drawing::{CheckedFigure, part};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, LinePlot, Names, Series, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("tokenizers")?;
    let of = |name: &str| part(table, &[("tokenizer", name.into())]);
    let mut plot = LinePlot::new("", Axis::linear("tokens of the vocabulary"), Axis::linear("tokens per word")).names(Names::Legend);
    for (colour, name) in ["BPE", "WordPiece"].into_iter().enumerate() {
        plot = plot.series(Series::from_table(name, &of(name), "vocabulary", "per_word")?.colour(colour));
    }
    let characters = numbers(&of("characters"), "per_word")?.first().copied().unwrap_or(f64::NAN);
    let last = |name: &str| Ok::<_, crate::Error>(numbers(&of(name), "per_word")?.last().copied().unwrap_or(f64::NAN));
    let fewer = last("BPE")? < 0.6 * characters && last("WordPiece")? < 0.6 * characters;
    Ok(vec![
        CheckedFigure::new("tokenizers", "Tokens per word")
            .title("Both need far fewer tokens than there are characters", fewer)
            .panel(plot.horizontal(characters, "characters"))
            .shows("Held-out text. A space is part of a BPE token, and of no WordPiece token.")
            .drawn(),
    ])
}
