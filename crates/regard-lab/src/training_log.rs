//! The table of a training, one row per step, and its figure. No times: two runs with the same settings write the same bytes.

use crate::error::Result;
use regard_nn::training::folder::LOG;
use regard_nn::training::run::Journal;
use regard_nn::training::trainer::StepReport;
use regard_plot::figure::{Axis, Figure, LinePlot, Series, Theme, numbers};
use regard_plot::{Table, Value};
use std::path::Path;

const CAPTION: &str = "Each step of the training; losses in nats per token";
const COLUMNS: [(&str, &str); 6] = [
    ("step", "step"),
    ("loss", "loss of the step's tokens, before its update (nats)"),
    ("validation_loss", "loss on text that is not learned (nats)"),
    ("accuracy", "share of tokens that were the most likely"),
    ("gradient_norm", "norm of the gradient, before clipping"),
    ("rate", "learning rate"),
];

/// Above this number of steps, points are means of neighbours.
const DRAWN: usize = 500;

/// Log of a training, written step by step next to the model.
#[derive(Debug, Clone)]
pub struct TrainingLog {
    table: Table,
    floor: Option<f64>,
}

impl TrainingLog {
    /// An empty log of the training started by `command`; `floor` is the entropy of its text, if known.
    ///
    /// # Errors
    /// When the requested SIMD level is not available.
    pub fn new(command: &str, floor: Option<f64>) -> Result<Self> {
        let mut table = Table::new("training", CAPTION, &COLUMNS);
        let mut origin = vec![
            ("regard", env!("CARGO_PKG_VERSION").to_owned()),
            ("command", command.to_owned()),
            ("simd", regard::Level::preferred().map_err(regard::Error::from)?.name().to_owned()),
        ];
        origin.extend(floor.map(|floor| ("floor", format!("{floor:?}"))));
        table.origin = origin.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Ok(Self { table, floor })
    }

    /// Takes the rows up to `step` from an earlier run's file. Returns whether all were present.
    pub fn take_over(&mut self, folder: &Path, step: u64) -> bool {
        let Ok(earlier) = Table::read(&folder.join(LOG)) else { return step == 0 };
        if earlier.columns != self.table.columns {
            return step == 0;
        }
        let mut rows = earlier.rows;
        rows.truncate(usize::try_from(step).unwrap_or(usize::MAX));
        let whole = rows.len() as u64 == step && rows.iter().zip(1i64..).all(|(row, step)| row[0] == Value::Integer(step));
        if whole {
            self.table.rows = rows;
        }
        whole
    }

    /// The last number of a column.
    pub fn last(&self, column: &str) -> Option<f64> {
        self.table.rows.iter().rev().find_map(|row| self.table.value(row, column).number())
    }

    /// Loss and gradient norm against the step.
    fn figure(&self) -> Result<Figure> {
        let steps = numbers(&self.table, "step")?;
        let every = steps.len().div_ceil(DRAWN).max(1);
        let thinned = |column: &str| -> Result<Vec<f64>> { Ok(means(&numbers(&self.table, column)?, every)) };
        let x = means(&steps, every);
        let validation = numbers(&self.table, "validation_loss")?;
        let measured: Vec<usize> = (0..validation.len()).filter(|&i| validation[i].is_finite()).collect();
        let pick = |from: &[f64]| measured.iter().map(|&i| from[i]).collect::<Vec<_>>();
        let mut loss = LinePlot::new("Loss", Axis::linear("step"), Axis::linear("loss (nats per token)"))
            .series(Series::new("training", &x, &thinned("loss")?).without_markers())
            .series(Series::new("validation", &pick(&steps), &pick(&validation)));
        if let Some(floor) = self.floor {
            loss = loss.horizontal(floor, "entropy of the text");
        }
        let norm = LinePlot::new("Gradient", Axis::linear("step"), Axis::log10("norm before clipping"))
            .series(Series::new("", &x, &thinned("gradient_norm")?).without_markers());
        let note = if every > 1 { format!(" Each point of a line is the mean of {every} steps.") } else { String::new() };
        Ok(Figure::new("training", "A model learns").panel(loss).panel(norm).caption(format!("{CAPTION}.{note}")))
    }

    /// The figure as SVG and PNG.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub fn draw(&self) -> Result<[Vec<u8>; 2]> {
        let figure = self.figure()?;
        Ok([figure.svg()?.into_bytes(), figure.png(Theme::Light)?])
    }
}

impl Journal for TrainingLog {
    fn push(&mut self, report: &StepReport, validation: Option<f64>) {
        let step = i64::try_from(report.step).unwrap_or(i64::MAX);
        let StepReport { loss, accuracy, gradient_norm, rate, .. } = *report;
        self.table.push(vec![step.into(), loss.into(), validation.into(), accuracy.into(), gradient_norm.into(), rate.into()]);
    }

    fn to_csv(&self) -> Vec<u8> {
        self.table.to_csv()
    }
}

/// Means of `every` neighbours.
fn means(values: &[f64], every: usize) -> Vec<f64> {
    values.chunks(every).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: u64) -> StepReport {
        StepReport { step, loss: 3.0 / step as f64, accuracy: 0.5, gradient_norm: 1.0, rate: 1e-3, tokens: 8 }
    }

    #[test]
    fn a_log_goes_on_where_its_file_ends_and_begins_anew_where_steps_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = TrainingLog::new("regard train", Some(0.3)).unwrap();
        (1..=5).for_each(|step| log.push(&report(step), (step == 4).then_some(1.5)));
        std::fs::write(folder.path().join(LOG), log.to_csv()).unwrap();
        assert_eq!((log.last("loss"), log.last("validation_loss")), (Some(0.6), Some(1.5)));
        let mut later = TrainingLog::new("regard train", Some(0.3)).unwrap();
        assert!(later.take_over(folder.path(), 3), "the checkpoint is older than the log");
        assert_eq!((later.last("step"), later.last("validation_loss")), (Some(3.0), None));
        (4..=5).for_each(|step| later.push(&report(step), (step == 4).then_some(1.5)));
        assert_eq!(later.table.to_csv(), log.table.to_csv(), "the same bytes as without a stop");
        assert!(!TrainingLog::new("regard train", None).unwrap().take_over(folder.path(), 6), "a step is missing");
    }
}
