//! Runs that were made, to be looked at: the latest few, as many as fit.

use crate::answers::Refusal;
use regard_model::{Edits, HeadStates, Input, Model, Run, RunParts, Sink};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of all runs that are kept, and of one.
const KEPT: usize = 1 << 30;
const ONE: usize = 2 << 30;
/// How many, at most.
const COUNT: usize = 16;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sixteen letters that stand for a text, or for a run.
pub(crate) fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A run with its text.
#[derive(Debug)]
pub(crate) struct Kept {
    /// What it is called in requests.
    pub(crate) id: String,
    /// The number of its model.
    pub(crate) number: usize,
    pub(crate) model: Arc<Model>,
    pub(crate) text: String,
    pub(crate) edits: Edits,
    pub(crate) ids: Vec<u32>,
    bytes: usize,
    run: Mutex<RunParts>,
    states: Mutex<HashMap<(usize, usize, Sink), Arc<HeadStates>>>,
}

impl Kept {
    /// Run a text.
    pub(crate) fn make(number: usize, model: Arc<Model>, text: String, edits: Edits) -> Result<Self, Refusal> {
        let ids = model.ids(Input::Text(&text))?;
        let shape = model.shape();
        let row = model.width() + shape.layers * 2 * (shape.heads + shape.kv_heads) * model.head_dim();
        let bytes = 4 * row * ids.len();
        if bytes > ONE {
            return Err(Refusal::unusable(format!(
                "{} tokens are too many to be looked at in this model: {} would fit",
                ids.len(),
                ONE / (4 * row)
            )));
        }
        let run = model.run(&ids, &edits, &model.sources_of(&edits)?)?.into_parts();
        let id = name(number, &text, &edits);
        Ok(Self { id, number, model, text, edits, ids, bytes, run: Mutex::new(run), states: Mutex::default() })
    }

    /// Look at it.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&Run<'_>) -> R) -> R {
        lock(&self.run).with(&self.model, look)
    }

    /// What the rows of a head are divided by, made at the first time.
    pub(crate) fn states(&self, run: &Run<'_>, layer: usize, head: usize, sink: Sink) -> Result<Arc<HeadStates>, Refusal> {
        if let Some(states) = lock(&self.states).get(&(layer, head, sink)) {
            return Ok(states.clone());
        }
        let made = Arc::new(run.head_states(layer, head, sink)?);
        lock(&self.states).insert((layer, head, sink), made.clone());
        Ok(made)
    }
}

/// What a run is called: the same text, model and edits always the same.
pub(crate) fn name(number: usize, text: &str, edits: &Edits) -> String {
    hash(&[&number.to_le_bytes(), text.as_bytes(), edits.canonical().as_bytes()])
}

/// The latest runs, the last used at the end.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<Vec<Arc<Kept>>>);

impl Runs {
    fn find(&self, is: impl Fn(&Kept) -> bool) -> Option<Arc<Kept>> {
        let mut runs = lock(&self.0);
        let found = runs.iter().position(|run| is(run))?;
        let run = runs.remove(found);
        runs.push(run.clone());
        Some(run)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Kept>> {
        self.find(|run| run.id == id)
    }

    /// A text by its hash.
    pub(crate) fn text(&self, wanted: &str) -> Option<String> {
        self.find(|run| hash(&[run.text.as_bytes()]) == wanted).map(|run| run.text.clone())
    }

    pub(crate) fn keep(&self, run: Kept) -> Arc<Kept> {
        let run = Arc::new(run);
        let mut runs = lock(&self.0);
        runs.retain(|kept| kept.id != run.id);
        runs.push(run.clone());
        // The last two are what A and B are.
        while runs.len() > COUNT || (runs.len() > 2 && runs.iter().map(|run| run.bytes).sum::<usize>() > KEPT) {
            runs.remove(0);
        }
        run
    }
}
