//! Cache of runs, for the views of the page: the latest ones, within a limit of memory.

use crate::api::ApiError;
use regard_model::{Cancel, Edits, HeadStates, Input, Model, Run, Sink, Sources};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Share of the machine's free memory for the cache, and its bounds in bytes.
const SHARE_OF_MEMORY: u128 = 4;
const CACHE_BYTES: std::ops::RangeInclusive<u128> = 1 << 29..=1 << 34;
/// Cached runs, at most.
const COUNT: usize = 16;
/// Floating-point operations of one run, at most: minutes on two cores.
const OPERATIONS: f64 = 2e13;

/// Limits of memory, in bytes. The latest two runs, with and without edits, always stay: `cache = 2 (run + states)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// All runs with the states of their heads.
    cache: usize,
    /// One run.
    run: usize,
    /// The states of the heads of one run.
    states: usize,
}

impl Limits {
    pub(crate) fn of_cache(cache: usize) -> Self {
        Self { cache, run: cache / 3, states: cache / 6 }
    }

    pub(crate) fn of_this_machine() -> Self {
        let free = regard_lab::memory::available().unwrap_or(*CACHE_BYTES.start() * SHARE_OF_MEMORY);
        Self::of_cache((free / SHARE_OF_MEMORY).clamp(*CACHE_BYTES.start(), *CACHE_BYTES.end()) as usize)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first 64 bits of SHA-256 over the parts and their lengths, in hexadecimal.
pub(crate) fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a text, in hexadecimal.
pub(crate) fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a run of this model costs.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Bytes of a token: hidden states, and q, k, v and z of every layer.
    token_bytes: usize,
    /// Operations of a token outside of attention, and of a pair of tokens.
    token_operations: f64,
    pair_operations: f64,
}

impl Cost {
    fn of(model: &Model) -> Self {
        let shape = model.shape();
        let row = model.width() + shape.layers * 2 * (shape.heads + shape.kv_heads) * model.head_dim();
        let pairs = if model.is_causal() { 0.5 } else { 1.0 };
        Self {
            token_bytes: 4 * row,
            token_operations: 2.0 * model.parameters() as f64,
            pair_operations: 4.0 * pairs * (shape.layers * shape.heads * model.head_dim()) as f64,
        }
    }

    /// The longest text: the smaller of the limits of memory and of operations.
    fn most_tokens(self, limits: Limits) -> usize {
        let (a, b) = (self.pair_operations, self.token_operations);
        // The root of a n^2 + b n = OPERATIONS, without cancellation.
        let by_operations = 2.0 * OPERATIONS / (b + (b * b + 4.0 * a * OPERATIONS).sqrt());
        (limits.run / self.token_bytes).min(by_operations as usize)
    }
}

/// Which attention of an encoder-decoder is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Attending {
    #[default]
    Decoder,
    Encoder,
    Cross,
}

/// What is run: a text with edits; of an encoder-decoder, what its encoder reads, too.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunOf {
    pub(crate) text: String,
    pub(crate) edits: Edits,
    pub(crate) source: String,
    pub(crate) part: Attending,
}

impl RunOf {
    pub(crate) fn of_text(text: &str, edits: Edits) -> Self {
        Self { text: text.to_owned(), edits, ..Self::default() }
    }

    /// The name of its run: a hash of the model and all of it.
    pub(crate) fn name(&self, number: usize) -> String {
        let edits = self.edits.canonical();
        hash(&[&(number as u64).to_le_bytes(), self.text.as_bytes(), edits.as_bytes(), self.source.as_bytes(), &[self.part as u8]])
    }
}

/// The decoder of an encoder-decoder, once its encoder has read the source; another model as it is.
pub(crate) fn reading(model: &Model, source: &str, limits: Limits) -> Result<Model, ApiError> {
    let Some(encoder) = model.encoder() else { return Ok(model.clone()) };
    if encoder.front_kind().is_some() {
        let family = model.family();
        return Err(ApiError::unprocessable(format!(
            "the encoder of {family} reads sound, which the page cannot take; use `regard look --audio FILE`"
        )));
    }
    if source.trim().is_empty() {
        return Err(ApiError::unprocessable("the encoder has nothing to read: the source text is empty; type one"));
    }
    ids_within(encoder, source, limits)?;
    Ok(model.reading(&model.read(Input::Text(source), &Edits::default(), &Sources::default())?)?)
}

/// The tokens of a text that is short enough to be run; of a decoder, after those that it begins with.
pub(crate) fn ids_within(model: &Model, text: &str, limits: Limits) -> Result<Vec<u32>, ApiError> {
    let ids = if model.encoder().is_some() {
        let own = model.tokens(text)?.into_iter().filter(|token| !token.added).map(|token| token.id);
        model.start_ids().iter().copied().chain(own).collect()
    } else {
        model.ids(Input::Text(text))?
    };
    let most = Cost::of(model).most_tokens(limits);
    if ids.len() > most {
        return Err(ApiError::unprocessable(format!("the text is too long for the page: {} tokens; use at most {most}", ids.len())));
    }
    Ok(ids)
}

/// A run with its text, and what its views are computed from.
#[derive(Debug)]
pub(crate) struct CachedRun {
    /// Its name in requests.
    pub(crate) id: String,
    /// Index of its model.
    pub(crate) number: usize,
    /// What its tokens are of: of an encoder-decoder, the encoder, or the decoder after the encoder has read.
    pub(crate) model: Model,
    pub(crate) of: RunOf,
    pub(crate) ids: Vec<u32>,
    /// Loss of each next token in nats; empty for models that predict none.
    pub(crate) losses: Vec<f64>,
    run: Run,
    limits: Limits,
    run_bytes: usize,
    /// Layers that are done; all of them but for a run that is under way.
    pub(crate) layers: usize,
    states: Arc<States>,
}

type States = Mutex<HashMap<(usize, usize, Sink), Arc<HeadStates>>>;

impl CachedRun {
    /// Runs a text, until `cancel` is set. `done` gets the run after each layer: its heads can be looked at, and nothing else.
    pub(crate) fn make(
        number: usize,
        model: &Model,
        of: RunOf,
        limits: Limits,
        cancel: &Cancel,
        done: impl Fn(Self),
    ) -> Result<Self, ApiError> {
        let decoder = reading(&model.with_cancel(cancel), &of.source, limits)?;
        let states = Arc::<States>::default();
        let of_run = |model: &Model, run: Run, losses, layers| {
            let (id, ids) = (of.name(number), run.ids().to_vec());
            let (model, run_bytes) = (model.with_cancel(&Cancel::new()), Cost::of(model).token_bytes * ids.len());
            Self { id, number, model, of: of.clone(), ids, losses, run, limits, run_bytes, layers, states: states.clone() }
        };
        if let (Attending::Encoder, Some(read)) = (of.part, decoder.source_run()) {
            return Ok(of_run(read.model(), read.clone(), Vec::new(), read.model().shape().layers));
        }
        let ids = ids_within(&decoder, &of.text, limits)?;
        let layers = std::cell::Cell::new(0);
        let run = decoder.run_by_layers(&ids, &of.edits, &decoder.sources_of(&of.edits)?, |run| {
            layers.set(layers.get() + 1);
            // Cross-attention is looked at when all of it is there.
            if of.part != Attending::Cross {
                done(of_run(&decoder, run.clone(), Vec::new(), layers.get()));
            }
        })?;
        let predicts = model.has_head() && model.is_causal() && ids.len() > 1;
        let losses = if predicts { run.with_cancel(cancel).losses()? } else { Vec::new() };
        let cross = if of.part == Attending::Cross { run.cross() } else { None };
        Ok(of_run(&decoder, cross.unwrap_or(run), losses, layers.get()))
    }

    /// The text that its tokens are of.
    pub(crate) fn text(&self) -> &str {
        if self.of.part == Attending::Encoder { &self.of.source } else { &self.of.text }
    }

    /// Access for the views, whose work ends when `cancel` is set.
    pub(crate) fn view(&self, cancel: &Cancel) -> View<'_> {
        View { cached: self, model: self.model.with_cancel(cancel), run: self.run.with_cancel(cancel) }
    }

    /// Bytes of the run and of its heads' states.
    fn bytes(&self) -> usize {
        self.run_bytes + bytes_of(&lock(&self.states))
    }
}

/// A cached run with handles that can be cancelled.
#[derive(Debug)]
pub(crate) struct View<'c> {
    cached: &'c CachedRun,
    pub(crate) model: Model,
    run: Run,
}

impl std::ops::Deref for View<'_> {
    type Target = CachedRun;

    fn deref(&self) -> &CachedRun {
        self.cached
    }
}

impl View<'_> {
    pub(crate) fn with<R>(&self, view: impl FnOnce(&Run) -> R) -> R {
        view(&self.run)
    }

    /// The softmax denominators of a head's rows, computed once.
    pub(crate) fn states(&self, layer: usize, head: usize, sink: Sink) -> Result<Arc<HeadStates>, ApiError> {
        if let Some(states) = lock(&self.cached.states).get(&(layer, head, sink)) {
            return Ok(states.clone());
        }
        let made = Arc::new(self.run.head_states(layer, head, sink)?);
        let mut states = lock(&self.cached.states);
        if bytes_of(&states) + made.bytes() > self.cached.limits.states {
            states.clear();
        }
        states.insert((layer, head, sink), made.clone());
        Ok(made)
    }
}

fn bytes_of(states: &HashMap<(usize, usize, Sink), Arc<HeadStates>>) -> usize {
    states.values().map(|states| states.bytes()).sum()
}

/// The latest runs, the last used at the end.
#[derive(Debug)]
pub(crate) struct RunCache {
    pub(crate) limits: Limits,
    runs: Mutex<Vec<Arc<CachedRun>>>,
    /// The run that is under way, as far as it is done.
    under_way: Mutex<Option<Arc<CachedRun>>>,
}

impl RunCache {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, runs: Mutex::default(), under_way: Mutex::default() }
    }

    fn find(&self, is: impl Fn(&CachedRun) -> bool) -> Option<Arc<CachedRun>> {
        let mut runs = lock(&self.runs);
        let found = runs.iter().position(|run| is(run))?;
        let run = runs.remove(found);
        runs.push(run.clone());
        Some(run)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<CachedRun>> {
        self.find(|run| run.id == id)
    }

    /// The run that is under way.
    pub(crate) fn under_way(&self) -> Option<Arc<CachedRun>> {
        lock(&self.under_way).clone()
    }

    pub(crate) fn set_under_way(&self, run: Option<CachedRun>) {
        *lock(&self.under_way) = run.map(Arc::new);
    }

    /// A text by its hash.
    pub(crate) fn text(&self, wanted: &str) -> Option<String> {
        self.find(|run| hash(&[run.of.text.as_bytes()]) == wanted).map(|run| run.of.text.clone())
    }

    pub(crate) fn insert(&self, run: CachedRun) -> Arc<CachedRun> {
        let run = Arc::new(run);
        {
            let mut runs = lock(&self.runs);
            runs.retain(|cached| cached.id != run.id);
            runs.push(run.clone());
        }
        self.trim();
        run
    }

    /// Evicts the oldest runs until the limits hold; the latest two are A and B of the page.
    pub(crate) fn trim(&self) {
        let mut runs = lock(&self.runs);
        while runs.len() > COUNT || (runs.len() > 2 && runs.iter().map(|run| run.bytes()).sum::<usize>() > self.limits.cache) {
            runs.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str, limits: Limits) -> Result<CachedRun, ApiError> {
        let model = Model::built_in().expect("it is in the crate");
        CachedRun::make(0, &model, RunOf::of_text(text, Edits::default()), limits, &Cancel::new(), |_| ())
    }

    #[test]
    fn long_texts_are_refused_before_the_run() {
        let limits = Limits::of_cache(64 << 30);
        let error = made(&"Emma ".repeat(200_000), limits).expect_err("a million tokens take hours");
        assert!(error.1.contains("800001 tokens; use at most "), "{}", error.1);
        let error = made(&"Emma ".repeat(1000), Limits::of_cache(1 << 20)).expect_err("it does not fit");
        assert!(error.1.contains("; use at most "), "{}", error.1);
    }

    #[test]
    fn the_states_of_heads_count_as_memory() {
        let limits = Limits::of_cache(32 << 20);
        let run = made(&"Emma and David went. ".repeat(40), limits).expect("it fits");
        let before = run.bytes();
        run.view(&Cancel::new()).states(0, 0, Sink::Show).expect("a head");
        assert!(run.bytes() >= before + 8 * run.ids.len(), "{} after {before}", run.bytes());
        // Above their limit the states are dropped, and computed again when needed.
        let small = CachedRun { limits: Limits { states: 3 * 8 * run.ids.len(), ..limits }, ..run };
        for head in 0..4 {
            small.view(&Cancel::new()).states(0, head, Sink::Show).expect("a head");
            assert!(bytes_of(&lock(&small.states)) <= small.limits.states);
        }
    }

    #[test]
    fn a_cancelled_run_is_an_error() {
        let (model, cancel) = (Model::built_in().expect("it is in the crate"), Cancel::new());
        cancel.cancel();
        let limits = Limits::of_cache(1 << 30);
        assert!(CachedRun::make(0, &model, RunOf::of_text("Emma", Edits::default()), limits, &cancel, |_| ()).is_err());
    }
}
