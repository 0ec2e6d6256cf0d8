//! What ablations of heads are judged by: the loss of a text, or the prediction after one of its tokens.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::run::row_losses;
use regard_nn::loss::softmax_sums;
use serde::{Deserialize, Serialize};

/// What is measured on each text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Metric {
    /// The mean loss of next tokens, in nats.
    #[default]
    Loss,
    /// A prediction: one entry for all texts, or one for each.
    Tokens(Vec<TokenMetric>),
}

/// The prediction of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenMetric {
    /// After which token of the text; by default the last.
    pub position: Option<usize>,
    /// Whose logit or probability.
    pub token: u32,
    /// The logit of this token is taken off: a difference of logits. Without, the probability is measured.
    pub minus: Option<u32>,
}

impl TokenMetric {
    fn row(&self, len: usize) -> usize {
        self.position.unwrap_or(len.saturating_sub(1))
    }

    fn of(&self, logits: &[f32]) -> f64 {
        let logit = |token: u32| f64::from(logits[token as usize]);
        match self.minus {
            Some(minus) => logit(self.token) - logit(minus),
            None => {
                let [max, sum, _] = softmax_sums(logits);
                (logit(self.token) - max).exp() / sum
            }
        }
    }
}

impl Metric {
    /// The name of its values, with their unit.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Loss => "loss (nats per token)",
            Self::Tokens(all) if all.iter().all(|of| of.minus.is_some()) => "difference of logits",
            Self::Tokens(_) => "probability of the token",
        }
    }

    /// Whether it can be measured on these texts.
    pub(crate) fn check(&self, model: &Model, texts: &[Vec<u32>]) -> Result<()> {
        let Self::Tokens(all) = self else { return texts.iter().try_for_each(|ids| model.check_loss(ids)) };
        if !model.has_head() {
            return Err(Error::NoHead { what: "logits" });
        }
        if all.len() != 1 && all.len() != texts.len() {
            let reason = format!("{} tokens are given for {} texts; give one, or one for each text", all.len(), texts.len());
            return Err(Error::Tokens { reason });
        }
        if all.iter().any(|of| of.minus.is_some() != all[0].minus.is_some()) {
            let reason = "a difference of logits and a probability cannot be compared; give one of both for all texts".to_owned();
            return Err(Error::Tokens { reason });
        }
        for (number, ids) in texts.iter().enumerate() {
            let of = self.of_text(all, number);
            model.check_tokens(&[of.token, of.minus.unwrap_or(of.token)])?;
            if of.row(ids.len()) >= ids.len() {
                return Err(Error::Outside { what: "row", number: of.row(ids.len()), count: ids.len() });
            }
        }
        Ok(())
    }

    fn of_text<'m>(&self, all: &'m [TokenMetric], number: usize) -> &'m TokenMetric {
        all.get(number).unwrap_or(&all[0])
    }

    /// The value of a text, by its number, from its final rows.
    pub(crate) fn value(&self, model: &Model, number: usize, ids: &[u32], rows: &[f32]) -> Result<f64> {
        let Self::Tokens(all) = self else {
            let losses = row_losses(model, ids, rows)?;
            return Ok(losses.iter().sum::<f64>() / losses.len() as f64);
        };
        let (of, width) = (self.of_text(all, number), model.width());
        let row = of.row(ids.len());
        Ok(of.of(&model.logits(&rows[row * width..(row + 1) * width])?))
    }

    /// The values of all texts: one product with the output head. `None` for losses.
    pub(crate) fn values(&self, model: &Model, texts: &[Vec<u32>], rows: &[Vec<f32>]) -> Result<Option<Vec<f64>>> {
        let Self::Tokens(all) = self else { return Ok(None) };
        let width = model.width();
        let of = |number: usize| self.of_text(all, number);
        let measured = texts.iter().zip(rows).enumerate().flat_map(|(number, (ids, rows))| {
            let row = of(number).row(ids.len());
            rows[row * width..(row + 1) * width].iter().copied()
        });
        let logits = model.logits(&measured.collect::<Vec<_>>())?;
        Ok(Some(logits.chunks(model.vocab()).enumerate().map(|(number, logits)| of(number).of(logits)).collect()))
    }
}
