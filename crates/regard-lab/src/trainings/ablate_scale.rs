//! What 1/sqrt(head_dim) does for a model that learns: the same language model with it and without it, at several head sizes.

use super::attention_stats::{AttentionStats, inspect};
use super::{CurvePoint, Watch, train_with_curve};
use regard_nn::Result;
use regard_nn::attention::ScaleKind;
use regard_nn::config::ModelConfig;
use regard_nn::data::{Target, Text, Windows};
use regard_nn::layers::pass::MaskKind;
use regard_nn::lm::LanguageModel;
use regard_nn::random::Draws;
use regard_nn::training::trainer::{TextTask, TrainConfig, Trainer};
use serde::{Deserialize, Serialize};

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct AblateConfig {
    /// The model; scale and head size are replaced.
    pub model: ModelConfig,
    /// The training of each.
    pub train: TrainConfig,
    /// Widths of a head to try.
    pub head_dims: Vec<usize>,
    /// Steps between two inspections.
    pub every: u64,
    /// Validation windows to look with.
    pub windows: usize,
}

impl Default for AblateConfig {
    fn default() -> Self {
        Self { model: ModelConfig::default(), train: TrainConfig::default(), head_dims: vec![4, 16, 64, 256], every: 100, windows: 64 }
    }
}

/// A look inside after a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Steps done; 0 is before training.
    pub step: u64,
    /// What was seen.
    pub inside: AttentionStats,
}

/// One training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AblateRun {
    /// Width of a head.
    pub head_dim: usize,
    /// With the scale, or without.
    pub scale: ScaleKind,
    /// Training loss over time.
    pub curve: Vec<CurvePoint>,
    /// Validation loss at the end.
    pub validation: f64,
    /// Over time.
    pub moments: Vec<Moment>,
}

/// Run all head sizes with the scale and without it.
///
/// # Errors
/// When a setting makes no sense.
pub fn ablate_scale(config: &AblateConfig, text: &Text, watch: Watch<'_>) -> Result<Vec<AblateRun>> {
    let mut runs = Vec::new();
    for &head_dim in &config.head_dims {
        for scale in [ScaleKind::InvSqrtDim, ScaleKind::Off] {
            runs.push(trained_heads(config, ModelConfig { head_dim: Some(head_dim), scale, ..config.model.clone() }, text, watch)?);
        }
    }
    Ok(runs)
}

/// One training of `model`, looked into all along: also what shows whether heads come to differ.
///
/// # Errors
/// When a setting makes no sense.
pub fn trained_heads(config: &AblateConfig, model: ModelConfig, text: &Text, watch: Watch<'_>) -> Result<AblateRun> {
    Ok(trained(config, &LanguageModel::new(model)?, text, watch)?.0)
}

/// The same, with the parameters that were learnt.
///
/// # Errors
/// When a setting makes no sense.
pub fn trained(config: &AblateConfig, model: &LanguageModel, text: &Text, watch: Watch<'_>) -> Result<(AblateRun, Vec<f32>)> {
    let (head_dim, scale) = (model.config().head_dim(), model.config().scale);
    let mut draws = Draws::at(config.train.seed, &[0xAB1A]);
    let windows = Windows::draw(&text.validation, config.windows, model.config().context, Target::Next, &mut draws);
    let mut task = TextTask::new(model, text, MaskKind::Causal, Target::Next);
    let mut trainer = Trainer::new(model.layout(), config.train.clone())?;
    let look = |p: &[f32], step| Ok::<_, regard_nn::Error>(Moment { step, inside: inspect(model, p, &windows, MaskKind::Causal)? });
    let mut moments = vec![look(trainer.params(), 0)?];
    let stage = format!("head size {head_dim}, {}", if scale == ScaleKind::Off { "no scale" } else { "scaled" });
    let curve = train_with_curve(&stage, &mut trainer, &mut task, config.every, watch, |trainer, report| {
        moments.push(look(trainer.params(), report.step)?);
        Ok(())
    })?;
    let validation = task.validate(trainer.params(), config.windows, config.train.seed)?.mean();
    Ok((AblateRun { head_dim, scale, curve, validation, moments }, trainer.params().to_vec()))
}
