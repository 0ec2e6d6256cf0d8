//! What rank 0 sends to the others before the first step: settings, tokens and state. So they need neither the model's folder nor the text.

use super::data::Text;
use super::folder::token_digest;
use super::optim::Adam;
use super::ranks::{Message, Ranks, Stage, copy_floats, is_about, others, receive};
use super::trainer::{TrainConfig, Trainer};
use crate::error::{Error, Result};
use crate::lm::LanguageModel;
use crate::models::config::ModelConfig;
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The first part of the message; tokens and state follow.
#[derive(Serialize, Deserialize)]
struct Settings {
    model: ModelConfig,
    train: TrainConfig,
    checkpoint_every: u64,
    step: u64,
    bos: Option<u32>,
    tokens: usize,
}

/// A training as a rank other than 0 has it.
pub(crate) struct RankState {
    pub(crate) model: LanguageModel,
    pub(crate) text: Text,
    pub(crate) trainer: Trainer,
    pub(crate) checkpoint_every: u64,
    /// SHA-256 of all tokens.
    pub(crate) tokens_sha256: String,
}

/// Send the state from rank 0 to all others.
pub(crate) fn send_state(
    ranks: &dyn Ranks,
    (model, text): (&LanguageModel, &Text),
    trainer: &Trainer,
    checkpoint_every: u64,
) -> Result<()> {
    let settings = Settings {
        model: model.config().clone(),
        train: trainer.config().clone(),
        checkpoint_every,
        step: trainer.step(),
        bos: text.bos,
        tokens: text.train.len() + text.validation.len(),
    };
    let settings = serde_json::to_string(&settings).unwrap_or_default();
    let (adam, what) = (trainer.adam(), || "an acknowledgement of the training's state".to_owned());
    // One after the other: at most one copy of the state is pending.
    for to in others(ranks) {
        let mut message = Message::new(0, Stage::Bootstrap).bytes(&(settings.len() as u64).to_le_bytes()).bytes(settings.as_bytes());
        for tokens in [&text.train, &text.validation] {
            message = message.bytes(bytemuck::cast_slice(tokens));
        }
        message.floats(trainer.params()).floats(&adam.first).floats(&adam.second).send(ranks, to, &what)?;
        receive(ranks, to, (0, Stage::Bootstrap), Some(0), &what)?;
    }
    Ok(())
}

/// Receive the state on any other rank.
pub(crate) fn receive_state(ranks: &dyn Ranks) -> Result<RankState> {
    let what = || "the training's state".to_owned();
    let bytes = loop {
        let bytes = ranks.receive(0, &what)?;
        if !is_about(&bytes, 0, Stage::Heartbeat) {
            break bytes;
        }
    };
    let state = read(&bytes).ok_or_else(|| {
        let problem = format!("rank {} cannot read the state of rank 0; start all ranks with the same program", ranks.rank());
        Error::Ranks { problem }
    })?;
    Message::new(0, Stage::Bootstrap).send(ranks, 0, &what)?;
    Ok(state)
}

/// `None` when the message is damaged.
fn read(bytes: &[u8]) -> Option<RankState> {
    let bytes = is_about(bytes, 0, Stage::Bootstrap).then(|| &bytes[super::ranks::HEAD..])?;
    let (length, bytes) = bytes.split_first_chunk()?;
    let (settings, bytes) = bytes.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let Settings { model, train, checkpoint_every, step, bos, tokens } = serde_json::from_slice(settings).ok()?;
    let (token_bytes, floats) = bytes.split_at_checked(tokens.checked_mul(4)?)?;
    let tokens: Vec<u32> = token_bytes.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token)).collect();
    let tokens_sha256 = token_digest(&tokens);
    let text = Text::split(tokens, model.context).ok()?.begun(bos);
    let model = LanguageModel::new(model).ok()?;
    let count = model.layout().len();
    if floats.len() != 12 * count {
        return None;
    }
    let mut vectors = floats.chunks_exact(4 * count).map(|bytes| {
        let mut vector = vec![0.0; count];
        copy_floats(bytes, &mut vector);
        vector
    });
    let (params, first, second) = (vectors.next()?, vectors.next()?, vectors.next()?);
    let trainer = Trainer::at(model.layout(), train, (params, Adam { start: 0, first, second }, step)).ok()?;
    Some(RankState { model, text, trainer, checkpoint_every, tokens_sha256 })
}

/// Work of rank 0 before it sends the state: a thread sends heartbeats to the others, so that they do not time out while it reads a long
/// text.
pub fn with_heartbeat<T>(ranks: &(dyn Ranks + Sync), every: Duration, work: impl FnOnce() -> T) -> T {
    if ranks.ranks() == 1 {
        return work();
    }
    let (done, over) = channel::<()>();
    std::thread::scope(|scope| {
        // Without the thread, the others wait until they time out.
        let heartbeat = std::thread::Builder::new().spawn_scoped(scope, move || {
            while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                // A rank that has disconnected is found when the state is sent.
                others(ranks)
                    .for_each(|to| drop(Message::new(0, Stage::Heartbeat).send(ranks, to, &|| "credit for a heartbeat".to_owned())));
            }
        });
        drop(heartbeat);
        let result = work();
        drop(done);
        result
    })
}
