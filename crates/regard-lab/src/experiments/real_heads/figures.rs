//! Cost of edits, effect of each head of a small model, and attention to related words.

use super::relations::{ORDERS, RELATIONS};
use super::run::EDITS;
use crate::drawing::{CheckedFigure, estimate_at, part, with_ends};
use crate::error::Result;
use crate::experiment::Drawn;
use crate::rows::estimate;
use regard_plot::figure::{Axis, BarPlot, texts};
use regard_plot::{Table, Tables, Value};

/// A rate of false discoveries that is taken for certain.
const CERTAIN: f64 = 0.05;
/// Heads that are drawn.
const DRAWN: usize = 12;

/// The models of a table, in its order.
pub(super) fn models(table: &Table) -> Result<Vec<String>> {
    let mut names = texts(table, "model")?;
    names.dedup();
    Ok(names)
}

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (edits, screen, relations) = (tables.get("real_edits")?, tables.get("real_screen")?, tables.get("real_relations")?);
    let mut drawn = vec![edit_costs(edits)?];
    if let Some(model) = models(screen)?.first() {
        drawn.push(heads(&part(screen, &[("model", model.as_str().into())]), model)?);
    }
    drawn.push(looks(relations)?);
    Ok(drawn)
}

fn edit_costs(edits: &Table) -> Result<Drawn> {
    let mut costs = BarPlot::new("", "", EDITS.map(|(_, what)| what.to_owned()).to_vec(), Axis::linear("change of the loss (nats)"));
    for model in models(edits)? {
        let (values, ends) = with_ends(&part(edits, &[("model", model.as_str().into())]), "change")?;
        costs = costs.bars_with_intervals(model, values, ends);
    }
    let every = |edit: &str, holds: &dyn Fn(crate::statistics::estimate::Estimate) -> bool| -> Result<bool> {
        Ok(models(edits)?
            .iter()
            .all(|model| holds(estimate_at(edits, &[("model", model.as_str().into()), ("edit", edit.into())], "change"))))
    };
    let (scale, window) = (every("scale=off", &|e| e.low > 0.0)?, every("mask=window:15,0", &|e| e.low > 0.0)?);
    Ok(CheckedFigure::new("real_edits", "What edits of all heads cost")
        .title("Trained models are worse without their scale", scale)
        .panel(costs.lying())
        .shows("Change of the loss. Without the mask a token sees the word that it predicts.")
        .says("Each model uses tokens more than 15 back.", window)
        .drawn())
}

fn heads(rows: &Table, model: &str) -> Result<Drawn> {
    let of = |column: &str| rows.rows.iter().map(|row| rows.number(row, column)).collect::<Vec<f64>>();
    let (total, q) = (of("total"), of("q"));
    let certain = |holds: &dyn Fn(f64) -> bool| total.iter().zip(&q).filter(|(total, q)| **q < CERTAIN && holds(**total)).count();
    let (costly, harmful) = (certain(&|x| x > 0.0), certain(&|x| x < 0.0));
    let apart = rows
        .rows
        .iter()
        .filter(|row| {
            estimate(rows, row, "direct").low > estimate(rows, row, "total").high
                || estimate(rows, row, "direct").high < estimate(rows, row, "total").low
        })
        .count();
    let mut costliest = rows.clone();
    costliest.rows.truncate(DRAWN);
    let names = costliest.rows.iter().map(|row| costliest.text(row, "head").to_owned()).collect();
    let mut plot = BarPlot::new("", "", names, Axis::linear("change of the loss (nats)"));
    for (label, column) in [("total: later layers see that it is missing", "total"), ("direct: out of the last stream alone", "direct")] {
        let (values, ends) = with_ends(&costliest, column)?;
        plot = plot.bars_with_intervals(label, values, ends);
    }
    Ok(CheckedFigure::new("real_screen", format!("What each head of {model} is worth"))
        .title(format!("{costly} of the {} heads of {model} lower its loss significantly", total.len()), costly > 0 && costly < total.len())
        .panel(plot.lying())
        .shows(format!(
            "The {} costliest heads: loss without the head less the loss with it. Significant: q below {CERTAIN}.",
            costliest.rows.len()
        ))
        .says("Removing a head lowers the loss significantly in no case.", harmful == 0 && q.iter().all(|q| q.is_finite()))
        .says(format!("For {apart} heads direct and total effect differ."), apart > 0)
        .drawn())
}

fn looks(relations: &Table) -> Result<Drawn> {
    let names = models(relations)?;
    // Models in which the word that belongs there gets more than the other one, in both orders.
    let differ = |relation: &str| {
        let clear = |name: &&String| {
            let rows = part(relations, &[("model", name.as_str().into()), ("relation", relation.into())]);
            !rows.rows.is_empty() && rows.rows.iter().all(|row| estimate(&rows, row, "excess").low > 0.0)
        };
        names.iter().filter(clear).count()
    };
    let [subject, synonym] = RELATIONS.map(differ);
    let title = format!("One head looks at the subject of a verb wherever it stands: in {subject} of {} models", names.len());
    let mut figure =
        CheckedFigure::new("real_relations", "Attention of the best head to related words, in both word orders").title(title, subject > 0);
    for model in &names {
        let rows = part(relations, &[("model", model.as_str().into())]);
        let place = |row: &Vec<Value>| {
            let what = if rows.text(row, "relation") == RELATIONS[0] { "subject" } else { "synonym" };
            let stands = if rows.text(row, "order") == ORDERS[0] { "first" } else { "second" };
            format!("{what} {stands} ({})", rows.text(row, "head"))
        };
        let mut plot = BarPlot::new(model.clone(), "", rows.rows.iter().map(place).collect(), Axis::linear("weight").limits(0.0, 1.0));
        for (label, column) in [("the word that belongs there", "right"), ("the other word", "wrong")] {
            let (values, ends) = with_ends(&rows, column)?;
            plot = plot.bars_with_intervals(label, values, ends);
        }
        figure = figure.panel(plot.lying());
    }
    Ok(figure
        .shows("The head (in brackets) is chosen on half of the words and tested on the other half.")
        .says(format!("A synonym gets more than the other adjective in both orders: in {synonym} of {}.", names.len()), synonym > 0)
        .drawn())
}
