//! Both scores of every head.

use crate::drawing::{CheckedFigure, part};
use crate::error::Result;
use crate::experiment::Drawn;
use crate::rules::PATTERN_EXCESS;
use regard_plot::Tables;
use regard_plot::figure::{Axis, Line, LinePlot, Names, Series, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (table, heads) = (tables.get("broadcast")?, tables.get("broadcast_heads")?);
    let mut plot = LinePlot::new("", Axis::linear("broadcast: excess weight"), Axis::linear("phrase: excess weight")).names(Names::Legend);
    let blocks = numbers(heads, "block")?.into_iter().fold(0.0, f64::max) as usize;
    for block in 0..=blocks {
        let rows = part(heads, &[("block", block.into())]);
        let series = Series::from_table(format!("heads of block {}", block + 1), &rows, "broadcast", "phrase")?;
        plot = plot.series(series.line(Line::None).colour(block));
    }
    let count = |pattern: &str| numbers(&part(table, &[("pattern", pattern.into())]), "named").map(|x| x.first().copied().unwrap_or(0.0));
    let (broadcast, phrase) = (count("broadcast")?, count("phrase")?);
    let all = heads.rows.len();
    let above = |column: &str| heads.rows.iter().filter(|row| heads.number(row, &format!("{column}_low")) > PATTERN_EXCESS).count() as f64;
    let counted = above("broadcast") == broadcast && above("phrase") == phrase;
    Ok(vec![
        CheckedFigure::new("broadcast", "Broadcast and phrase scores of trained heads")
            .title(format!("Of {all} heads {broadcast} broadcast a letter and {phrase} stay within the word"), counted)
            .panel(plot.vertical(PATTERN_EXCESS, "edge").horizontal(PATTERN_EXCESS, "edge"))
            .shows("A point is a trained head; its interval must lie beyond the edge.")
            .drawn(),
    ])
}
