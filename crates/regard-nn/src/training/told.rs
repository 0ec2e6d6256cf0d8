//! What the first rank tells the others before the first step: settings, tokens and state. So they need neither the model's folder nor the text.

use super::data::Text;
use super::folder::token_digest;
use super::optim::Adam;
use super::ranks::{Message, Ranks, Stage, copy_numbers, is_about, others, receive};
use super::trainer::{TrainConfig, Trainer};
use crate::error::{Error, Result};
use crate::lm::LanguageModel;
use crate::models::config::ModelConfig;
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// In front of the numbers.
#[derive(Serialize, Deserialize)]
struct Settings {
    model: ModelConfig,
    train: TrainConfig,
    checkpoint_every: u64,
    step: u64,
    bos: Option<u32>,
    tokens: usize,
}

/// A training as a rank has it that was told.
pub(crate) struct Told {
    pub(crate) model: LanguageModel,
    pub(crate) text: Text,
    pub(crate) trainer: Trainer,
    pub(crate) checkpoint_every: u64,
    /// Of all tokens.
    pub(crate) tokens_sha256: String,
}

/// Of the first rank, to all others.
pub(crate) fn tell(ranks: &dyn Ranks, (model, text): (&LanguageModel, &Text), trainer: &Trainer, checkpoint_every: u64) -> Result<()> {
    let settings = Settings {
        model: model.config().clone(),
        train: trainer.config().clone(),
        checkpoint_every,
        step: trainer.step(),
        bos: text.bos,
        tokens: text.train.len() + text.validation.len(),
    };
    let settings = serde_json::to_string(&settings).unwrap_or_default();
    let (adam, what) = (trainer.adam(), || "a sign that it knows what is trained".to_owned());
    // One after the other: no more than one copy of the state lies there to be sent.
    for to in others(ranks) {
        let mut message = Message::new(0, Stage::Told).bytes(&(settings.len() as u64).to_le_bytes()).bytes(settings.as_bytes());
        for tokens in [&text.train, &text.validation] {
            message = message.bytes(bytemuck::cast_slice(tokens));
        }
        message.numbers(trainer.params()).numbers(&adam.first).numbers(&adam.second).send(ranks, to, &what)?;
        receive(ranks, to, (0, Stage::Told), Some(0), &what)?;
    }
    Ok(())
}

/// Of any other.
pub(crate) fn hear(ranks: &dyn Ranks) -> Result<Told> {
    let what = || "what is trained".to_owned();
    let bytes = loop {
        let bytes = ranks.receive(0, &what)?;
        if !is_about(&bytes, 0, Stage::Wait) {
            break bytes;
        }
    };
    let told = read(&bytes).ok_or_else(|| {
        let problem = format!("rank {} cannot read what is trained, which rank 0 told it: all ranks need the same program", ranks.rank());
        Error::Ranks { problem }
    })?;
    Message::new(0, Stage::Told).send(ranks, 0, &what)?;
    Ok(told)
}

/// Where the message is whole.
fn read(bytes: &[u8]) -> Option<Told> {
    let bytes = is_about(bytes, 0, Stage::Told).then(|| &bytes[super::ranks::HEAD..])?;
    let (length, bytes) = bytes.split_first_chunk()?;
    let (settings, bytes) = bytes.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let Settings { model, train, checkpoint_every, step, bos, tokens } = serde_json::from_slice(settings).ok()?;
    let (told, numbers) = bytes.split_at_checked(tokens.checked_mul(4)?)?;
    let tokens: Vec<u32> = told.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token)).collect();
    let tokens_sha256 = token_digest(&tokens);
    let text = Text::split(tokens, model.context).ok()?.begun(bos);
    let model = LanguageModel::new(model).ok()?;
    let count = model.layout().len();
    if numbers.len() != 12 * count {
        return None;
    }
    let mut state = numbers.chunks_exact(4 * count).map(|bytes| {
        let mut numbers = vec![0.0; count];
        copy_numbers(bytes, &mut numbers);
        numbers
    });
    let (params, first, second) = (state.next()?, state.next()?, state.next()?);
    let trainer = Trainer::at(model.layout(), train, (params, Adam { start: 0, first, second }, step)).ok()?;
    Some(Told { model, text, trainer, checkpoint_every, tokens_sha256 })
}

/// Work of the first rank while all others wait for what it will tell them: every so often they hear that it is still there. Then nobody takes it for gone who reads a long text.
pub fn while_others_wait<T>(ranks: &(dyn Ranks + Sync), every: Duration, work: impl FnOnce() -> T) -> T {
    if ranks.ranks() == 1 {
        return work();
    }
    let (done, over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                // Who is gone is found out when there is something to tell.
                others(ranks).for_each(|to| drop(Message::new(0, Stage::Wait).send(ranks, to, &|| "patience".to_owned())));
            }
        });
        let result = work();
        drop(done);
        result
    })
}
