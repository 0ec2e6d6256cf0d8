//! Experiments: each a function from a configuration to plain results, the same results for the same seed.

pub mod ablate_scale;
pub mod explain;
pub mod heads;
pub mod attention_stats;
pub mod learn;
pub mod masks;
pub mod pairs;

use regard_nn::Result;
use regard_nn::training::trainer::{StepReport, Task, Trainer};

/// Where an experiment is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress<'p> {
    /// What is being done, in a few words.
    pub stage: &'p str,
    /// Steps done of this stage.
    pub step: u64,
    /// Steps of this stage.
    pub steps: u64,
    /// The last step's loss.
    pub loss: Option<f64>,
}

/// Progress callback.
pub type Watch<'w> = &'w mut dyn FnMut(&Progress<'_>);

/// The mean loss of the steps up to this one, since the point before.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CurvePoint {
    /// The step.
    pub step: u64,
    /// Mean training loss since the last point, in nats per token.
    pub loss: f64,
}

/// Train to the end, with a curve point after step 1 and after every `every` steps; `look` is called at each point.
fn train_with_curve(
    stage: &str,
    trainer: &mut Trainer,
    task: &mut dyn Task,
    every: u64,
    watch: Watch<'_>,
    mut look: impl FnMut(&Trainer, &StepReport) -> Result<()>,
) -> Result<Vec<CurvePoint>> {
    let (mut curve, mut sum, mut count) = (Vec::new(), 0.0, 0u64);
    let steps = trainer.config().steps;
    trainer.run(task, |trainer, report| {
        sum += report.loss;
        count += 1;
        watch(&Progress { stage, step: report.step, steps, loss: Some(report.loss) });
        if report.step == 1 || report.step % every.max(1) == 0 || report.step == steps {
            curve.push(CurvePoint { step: report.step, loss: sum / count as f64 });
            (sum, count) = (0.0, 0);
            look(trainer, report)?;
        }
        Ok(true)
    })?;
    Ok(curve)
}
