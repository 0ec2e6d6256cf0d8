//! One training of a language model, without anything being looked at on the way: for experiments that compare what comes out.

use super::{CurvePoint, Watch, train_with_curve};
use regard_nn::Result;
use regard_nn::data::{Target, Text, Windows};
use regard_nn::layers::pass::{MaskKind, Pass};
use regard_nn::layers::stack::Keep;
use regard_nn::lm::LanguageModel;
use regard_nn::training::trainer::{TextTask, TrainConfig, Trainer};
use serde::{Deserialize, Serialize};

/// What a training came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// Training loss over time.
    pub curve: Vec<CurvePoint>,
    /// Loss on windows of the text that was learnt, as the model is used: nothing is dropped.
    pub train: f64,
    /// Loss on windows of the text that was not, the same for every seed.
    pub validation: f64,
}

/// Sequences that are evaluated together.
const CHUNK: usize = 64;

/// Mean loss of windows under a causal mask.
///
/// # Errors
/// When windows and model do not fit together.
pub fn causal_loss(model: &LanguageModel, p: &[f32], windows: &Windows) -> Result<f64> {
    let seq = model.config().context;
    let mut loss = regard_nn::loss::Loss::default();
    for (ids, targets) in windows.ids.chunks(CHUNK * seq).zip(windows.targets.chunks(CHUNK * seq)) {
        let batch = ids.len() / seq;
        let mut pass = model.plan(batch, seq, Keep::Discard);
        loss += model.loss(&model.weights(p), ids, targets, &Pass::new(batch, seq, MaskKind::Causal), &mut pass)?;
    }
    Ok(loss.mean())
}

/// Train `model` on next tokens; a curve point every `every` steps, `windows` windows per loss. Also returns the parameters.
///
/// # Errors
/// When a setting makes no sense, or the training does not go on.
pub fn learn(
    stage: &str,
    model: &LanguageModel,
    train: &TrainConfig,
    text: &Text,
    every: u64,
    windows: usize,
    watch: Watch<'_>,
) -> Result<(Learnt, Vec<f32>)> {
    let mut task = TextTask::new(model, text, MaskKind::Causal, Target::Next);
    let mut trainer = Trainer::new(model.layout(), train.clone())?;
    let curve = train_with_curve(stage, &mut trainer, &mut task, every, watch, |_, _| Ok(()))?;
    let seq = model.config().context;
    let on = |tokens: &[u32]| causal_loss(model, trainer.params(), &Windows::spread(tokens, windows, seq, Target::Next));
    Ok((Learnt { curve, train: on(&text.train)?, validation: on(&text.validation)? }, trainer.params().to_vec()))
}
