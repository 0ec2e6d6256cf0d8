//! Tables with intervals: a column whose name begins with `~` is an estimate, and becomes three columns, the second and third of which
//! are the ends of its 95 % interval.

use crate::statistics::estimate::Estimate;
use regard_plot::{Column, Table, Value};

/// An empty table.
pub(crate) fn table(name: &str, caption: &str, columns: &[(&str, &str)]) -> Table {
    let mut table = Table::new(name, caption, &[]);
    for (name, title) in columns {
        let mut add = |name: String, title: String| table.columns.push(Column { name, title });
        match name.strip_prefix('~') {
            None => add((*name).to_owned(), (*title).to_owned()),
            Some(name) => {
                add(name.to_owned(), (*title).to_owned());
                add(format!("{name}_low"), format!("{title}, 95 % interval from"));
                add(format!("{name}_high"), format!("{title}, to"));
            }
        }
    }
    table
}

/// A row in the making.
#[derive(Default)]
pub(crate) struct Row(Vec<Value>);

impl Row {
    /// One cell.
    pub(crate) fn of(mut self, value: impl Into<Value>) -> Self {
        self.0.push(value.into());
        self
    }

    /// Several cells.
    pub(crate) fn all(mut self, values: impl IntoIterator<Item = impl Into<Value>>) -> Self {
        self.0.extend(values.into_iter().map(Into::into));
        self
    }

    /// An estimate: three cells.
    pub(crate) fn estimate(mut self, estimate: Estimate) -> Self {
        self.0.extend(estimate.values());
        self
    }

    /// An estimate, where there is one.
    pub(crate) fn maybe(self, estimate: Option<Estimate>) -> Self {
        match estimate {
            Some(estimate) => self.estimate(estimate),
            None => self.all([Value::Missing, Value::Missing, Value::Missing]),
        }
    }

    /// The mean of a sample, one number per seed, with five digits that count.
    pub(crate) fn mean(self, sample: &[f64]) -> Self {
        self.estimate(brief(Estimate::of_mean(sample)))
    }

    /// The same of shares: an interval of a share ends at 0 and 1.
    pub(crate) fn share(self, sample: &[f64]) -> Self {
        self.estimate(brief(Estimate::of_mean(sample).map(|x| x.clamp(0.0, 1.0))))
    }

    /// The mean difference of pairs of the same seed, and how many of them have its sign: four cells.
    pub(crate) fn paired(self, here: &[f64], there: &[f64]) -> Self {
        let differences: Vec<f64> = here.iter().zip(there).map(|(a, b)| a - b).collect();
        let sum: f64 = differences.iter().sum();
        self.mean(&differences).of(differences.iter().filter(|d| **d * sum > 0.0).count())
    }

    /// Into the table.
    pub(crate) fn put(self, table: &mut Table) {
        table.push(self.0);
    }
}

/// Five digits that count: more are noise, and bytes in a file.
fn brief(e: Estimate) -> Estimate {
    let brief = |x: f64| if x.is_finite() { format!("{x:.4e}").parse().unwrap_or(x) } else { x };
    Estimate { value: brief(e.value), low: brief(e.low), high: brief(e.high) }
}

/// The estimate that a row has in a column and the two after it.
pub(crate) fn estimate(table: &Table, row: &[Value], column: &str) -> Estimate {
    let end = |which: &str| table.number(row, &format!("{column}_{which}"));
    Estimate { value: table.number(row, column), low: end("low"), high: end("high") }
}
