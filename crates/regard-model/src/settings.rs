//! The settings of a model's file by name, with limits: sizes are positive and small enough that no product of them overflows.

use crate::error::{Error, Result};
use serde_json::Value;

/// No width, vocabulary or context is larger.
const MOST: u64 = 1 << 24;
/// No model has more blocks.
const MOST_LAYERS: usize = 4096;

fn refuse<T>(name: &str, value: &Value, reason: &str) -> Result<T> {
    Err(Error::Setting { name: name.to_owned(), value: value.to_string(), reason: reason.to_owned() })
}

/// `config.json`.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'j>(pub &'j Value);

impl<'j> Settings<'j> {
    /// The first of these names that is there and not null.
    pub fn any(&self, names: &[&str]) -> Option<(String, &'j Value)> {
        names.iter().find_map(|name| self.0.get(name).filter(|v| !v.is_null()).map(|v| ((*name).to_owned(), v)))
    }

    fn checked_size((name, value): (String, &Value)) -> Result<usize> {
        match value.as_u64() {
            Some(x @ 1..=MOST) => Ok(x as usize),
            _ => refuse(&name, value, "a whole number from 1 to 16777216 is needed"),
        }
    }

    /// A size that must be there, under one of these names.
    pub fn size(&self, names: &[&str]) -> Result<usize> {
        match self.any(names) {
            Some(found) => Self::checked_size(found),
            None => refuse(names[0], &Value::Null, "it is missing"),
        }
    }

    /// The same where it may be missing.
    pub fn size_if(&self, names: &[&str]) -> Result<Option<usize>> {
        self.any(names).map(Self::checked_size).transpose()
    }

    /// Blocks.
    pub fn layers(&self, names: &[&str]) -> Result<usize> {
        let layers = self.size(names)?;
        if layers > MOST_LAYERS { refuse(names[0], &layers.into(), "at most 4096 blocks are possible") } else { Ok(layers) }
    }

    /// A finite number.
    pub fn number(&self, names: &[&str], otherwise: f64) -> Result<f64> {
        match self.any(names) {
            None => Ok(otherwise),
            Some((name, value)) => match value.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(x),
                None => refuse(&name, value, "a number is needed"),
            },
        }
    }

    /// The epsilon of a norm: from 0 to 1.
    pub fn epsilon(&self, names: &[&str], otherwise: f64) -> Result<f64> {
        let eps = self.number(names, otherwise)?;
        if (0.0..=1.0).contains(&eps) { Ok(eps) } else { refuse(names[0], &eps.into(), "from 0 to 1 is possible") }
    }

    /// The same where null and missing mean that there is none.
    pub fn number_if(&self, names: &[&str]) -> Result<Option<f64>> {
        if self.any(names).is_some() { self.number(names, 0.0).map(Some) } else { Ok(None) }
    }

    /// Yes or no.
    pub fn flag(&self, name: &str, otherwise: bool) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(otherwise)
    }

    /// A text.
    pub fn text(&self, name: &str) -> Option<&'j str> {
        self.0.get(name)?.as_str()
    }

    /// Settings inside these.
    pub fn within(&self, name: &str) -> Option<Settings<'j>> {
        self.0.get(name).filter(|v| v.is_object()).map(Settings)
    }
}
