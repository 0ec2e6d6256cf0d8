//! [`Model`]: a checkpoint that can be run, looked into and edited.

use crate::cancel::Cancel;
use crate::disk;
use crate::edits::{Dims, EditProbe, Edits, LayerActivations, Reference, Shape, Sources, Vectors};
use crate::error::{Error, Result};
use crate::families::{Architecture, RenamedTensors};
use crate::formats::TensorInfo;
use crate::front::FrontEnd;
use crate::front::image::Image;
use crate::front::sound::Sound;
use crate::hooks::Hook;
use crate::open::{self, Opened};
use crate::run::Run;
use crate::tokens::{Token, Tokenizer};
use ndarray::{ArrayView2, ArrayView3};
use regard_nn::cache::CacheType;
use regard_nn::generate::{Continuation, Sampling, Writer};
use regard_nn::layers::attention::{AttentionConfig, MultiHeadAttention};
use regard_nn::layers::probe::Probe;
use regard_nn::models::merged_logits::MergedLogits;
use regard_nn::models::transformer::Transformer;
use regard_nn::random::Draws;
use regard_nn::tensors::Weights;
use regard_nn::training::folder::Origin;
use regard_nn::{MaskKind, Pass};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub(crate) use crate::edits::{Memory, Remember};

/// How rows of a text become one vector: of sentence-transformers' folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pooling {
    /// The first token's row instead of the mean of all.
    pub first: bool,
    /// The vector has length one.
    pub normalised: bool,
}

impl Pooling {
    pub(crate) fn of_folder(folder: &Path) -> Result<Option<Self>> {
        let modules = disk::json_if_there(&folder.join("modules.json"))?;
        let pooling = disk::json_if_there(&folder.join("1_Pooling/config.json"))?;
        let Some(modules) = modules.as_array() else { return Ok(None) };
        let normalised = modules.iter().any(|module| module["type"].as_str().is_some_and(|kind| kind.ends_with("Normalize")));
        let (first, mean) = (pooling["pooling_mode_cls_token"] == true, pooling["pooling_mode_mean_tokens"] == true);
        Ok((first != mean).then_some(Self { first, normalised }))
    }
}

/// A checkpoint that can be run: a handle that is cheap to clone.
#[derive(Debug, Clone)]
pub struct Model {
    loaded: Arc<Loaded>,
    cancel: Cancel,
    /// What the decoder of an encoder-decoder reads.
    reading: Option<Arc<Run>>,
    /// The attention that is looked at is cross-attention.
    cross: bool,
    /// Vectors that edits may add.
    vectors: Arc<Vectors>,
}

/// What handles share.
#[derive(Debug)]
struct Loaded {
    transformer: Transformer,
    architecture: Architecture,
    pub(crate) source: RenamedTensors,
    tokenizer: Arc<std::result::Result<Tokenizer, String>>,
    /// What makes rows instead of tokens.
    front: Option<FrontEnd>,
    /// What the decoder of an encoder-decoder reads with.
    encoder: Option<Model>,
    /// Of its attention: the same in all layers, but for windows.
    attention: AttentionConfig,
    layers: usize,
    vocab: usize,
    width: usize,
    causal: bool,
    context: usize,
    /// Positions beyond the context make no sense.
    limited: bool,
    family: String,
    format: &'static str,
    path: PathBuf,
    eos_ids: Vec<u32>,
    pooling: Option<Pooling>,
    /// Logits are a sum over what is written to the stream.
    linear: bool,
    /// What `mean` and `resample` take from stories of our own, made when it is first needed.
    own_reference: OnceLock<Arc<Reference>>,
    trained: Option<TrainedOn>,
    /// Runs without edits, the newest last: runs of the same tokens with edits begin at the first layer that an edit is about.
    intact: Mutex<Vec<Arc<Intact>>>,
}

/// A run without edits: the stream before each sublayer and after the last, and what every head worked with.
#[derive(Debug)]
struct Intact {
    ids: Vec<u32>,
    streams: Vec<Vec<f32>>,
    hidden: Vec<f32>,
    heads: Vec<Arc<LayerActivations>>,
}

/// Elements of all streams that are kept of runs without edits.
const KEPT_STREAMS: usize = 32 << 20;

/// What a model of `regard train` was trained on.
#[derive(Debug, Clone)]
pub struct TrainedOn {
    /// The text and its tokens.
    pub origin: Origin,
    /// Training steps.
    pub step: u64,
    /// The weights have the checksum of the folder's summary.
    pub verified: bool,
}

/// Rows of one product with the output head: the flag of [`Cancel`] is checked before each.
const HEAD_ROWS: usize = 256;

/// What is run: a text or ids; by models of sound and of images, what these read.
#[derive(Debug, Clone, Copy)]
pub enum Input<'i> {
    /// Sound.
    Sound(&'i Sound),
    /// An image of any size.
    Image(&'i Image),
    /// Log-mel frames, `[mels, frames]`.
    Features(ArrayView2<'i, f32>),
    /// Normalised pixels, `[channels, height, width]`.
    Pixels(ArrayView3<'i, f32>),
    /// A text.
    Text(&'i str),
    /// Tokens as they are, without any added.
    Ids(&'i [u32]),
}

/// How text is generated.
#[derive(Debug, Clone, Copy)]
pub struct Generation {
    /// Tokens to write, at most.
    pub tokens: usize,
    /// How they are drawn.
    pub sampling: Sampling,
    /// Keys and values are cached; without, the visible text is read again for each token.
    pub cached: bool,
    /// Tokens that are visible at most, where fewer than the model's own limit: the older half of the text is dropped when they are full.
    pub context: Option<usize>,
    /// How the cache stores keys and values.
    pub cache_type: CacheType,
}

impl Generation {
    /// This number of tokens, each the most likely one.
    pub fn greedy(tokens: usize) -> Self {
        Self {
            tokens,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            cached: true,
            context: None,
            cache_type: CacheType::F32,
        }
    }
}

/// A story for at least this number of tokens.
fn story(seed: usize, tokens: usize) -> String {
    regard_nn::stories::write(8 * tokens, 0x5707 + seed as u64)
}

impl Model {
    /// Load whatever is at a path: a file, a folder, or a name in the local Hugging Face cache. Weights are mapped, not read.
    ///
    /// # Errors
    /// When there is no model, its family is not known, or a tensor is missing or has another shape.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::new(open::open(path)?, path.to_owned())
    }

    /// The path of the built-in model, which has no file.
    pub const BUILT_IN: &'static str = "regard's own model";

    /// The small model inside the crate: three layers of four heads over pieces of words, trained on stories and on random sequences that
    /// repeat.
    ///
    /// # Errors
    /// Never: its files are part of the crate and tested.
    pub fn built_in() -> Result<Self> {
        Self::new(open::built_in()?, PathBuf::from(Self::BUILT_IN))
    }

    /// Whether this is [`Model::built_in`].
    pub fn is_built_in(&self) -> bool {
        self.path() == Path::new(Self::BUILT_IN)
    }

    pub(crate) fn new(opened: Opened, path: PathBuf) -> Result<Self> {
        let Opened { format, archive, mut architecture, tokenizer, eos_ids, pooling, trained } = opened;
        let encoder = match architecture.encoder.take() {
            None => None,
            Some(encoder) => {
                let (archive, tokenizer, eos_ids) = (archive.clone(), tokenizer.clone(), Vec::new());
                let opened = Opened { format, archive, architecture: *encoder, tokenizer, eos_ids, pooling: None, trained: None };
                Some(Self::new(opened, path.clone())?)
            }
        };
        let mut transformer = Transformer::new(&architecture.parts);
        let source = RenamedTensors::new(archive, &architecture);
        // Bound once here, so that a missing tensor is an error before anything runs.
        transformer.read_tables(&transformer.bind::<f32>(&source)?);
        let front = architecture.front.map(|kind| FrontEnd::new(kind, architecture.parts.width));
        if let Some(front) = &front {
            Weights::<f32>::bind(front.layout(), &source)?;
        }
        source.check_all_used(transformer.layout(), architecture.parts.blocks.len())?;
        let first = architecture
            .parts
            .blocks
            .first()
            .ok_or_else(|| Error::NoModel { path: path.clone(), reason: "it has no blocks".to_owned() })?;
        let loaded = Loaded {
            source,
            tokenizer,
            front,
            encoder,
            attention: first.attention,
            layers: architecture.parts.blocks.len(),
            vocab: architecture.parts.embedding.vocab,
            width: architecture.parts.width,
            causal: architecture.causal,
            context: architecture.context,
            limited: !architecture.parts.embedding.positions.extends() || architecture.front.is_some(),
            family: architecture.family.clone(),
            format,
            path,
            eos_ids,
            pooling,
            linear: architecture.parts.last_norm.is_some()
                && architecture.parts.head.as_ref().is_some_and(|head| head.softcap.is_none() && head.transform.is_none()),
            own_reference: OnceLock::new(),
            transformer,
            architecture,
            trained,
            intact: Mutex::default(),
        };
        Ok(Self { loaded: Arc::new(loaded), cancel: Cancel::new(), reading: None, cross: false, vectors: Arc::default() })
    }

    /// The same model, whose work ends when the flag is set.
    #[must_use]
    pub fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self { cancel: cancel.clone(), ..self.clone() }
    }

    /// The same model, with named vectors that edits may add.
    #[must_use]
    pub fn with_vectors(&self, vectors: Vectors) -> Self {
        Self { vectors: Arc::new(vectors), ..self.clone() }
    }

    /// The same handle, whose attention is that of the decoder to what it reads.
    pub(crate) fn of_cross(&self) -> Self {
        Self { cross: true, ..self.clone() }
    }

    /// The encoder of an encoder-decoder: a model of its own, which reads.
    pub fn encoder(&self) -> Option<&Self> {
        self.loaded.encoder.as_ref()
    }

    /// What its decoder reads.
    pub fn source_run(&self) -> Option<&Run> {
        self.reading.as_deref()
    }

    /// Handles of one loaded model.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.loaded, &other.loaded)
    }

    pub(crate) fn with_reading(&self, run: Run) -> Self {
        Self { reading: Some(Arc::new(run)), ..self.clone() }
    }

    pub(crate) fn front(&self) -> Option<&FrontEnd> {
        self.loaded.front.as_ref()
    }

    /// The attention of its handle is cross-attention.
    pub(crate) fn is_cross_handle(&self) -> bool {
        self.cross
    }

    /// What a front end reads, instead of tokens.
    pub fn front_kind(&self) -> Option<crate::front::Front> {
        self.front().map(|front| front.kind)
    }

    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// What a model of `regard train` was trained on.
    pub fn trained(&self) -> Option<&TrainedOn> {
        self.loaded.trained.as_ref()
    }

    /// Layers, query heads and key and value heads.
    pub fn shape(&self) -> Shape {
        Shape { layers: self.loaded.layers, heads: self.loaded.attention.heads, kv_heads: self.loaded.attention.kv_heads }
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.loaded.attention.head_dim
    }

    /// The options of its attention.
    pub fn attention(&self) -> &AttentionConfig {
        &self.loaded.attention
    }

    /// Width of the residual stream.
    pub fn width(&self) -> usize {
        self.loaded.width
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.loaded.vocab
    }

    /// Tokens that it was trained for.
    pub fn context(&self) -> usize {
        self.loaded.context
    }

    /// Tokens see only those before them.
    pub fn is_causal(&self) -> bool {
        self.loaded.causal
    }

    /// It has logits.
    pub fn has_head(&self) -> bool {
        self.loaded.transformer.has_head()
    }

    /// As its file calls the family.
    pub fn family(&self) -> &str {
        &self.loaded.family
    }

    /// `safetensors`, `pickle`, `gguf`, `llama2.c`, `regard`.
    pub fn format(&self) -> &'static str {
        self.loaded.format
    }

    /// Where it came from.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// How rows of a text become one vector.
    pub fn pooling(&self) -> Option<Pooling> {
        self.loaded.pooling
    }

    /// Numbers in all its tensors.
    pub fn parameters(&self) -> usize {
        self.loaded.transformer.layout().len()
    }

    /// The tensors of its files.
    pub fn tensors(&self) -> Vec<TensorInfo> {
        self.loaded.source.archive.list()
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        (*self.loaded.tokenizer).as_ref().map_err(|reason| Error::NoTokenizer { reason: reason.clone() })
    }

    /// The tokens of a text, with those that the tokenizer adds.
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn tokens(&self, text: &str) -> Result<Vec<Token>> {
        self.tokenizer()?.encode(text)
    }

    /// The ids of these tokens.
    ///
    /// # Errors
    /// When there is no tokenizer for a text.
    pub fn ids(&self, input: Input<'_>) -> Result<Vec<u32>> {
        match input {
            Input::Text(text) => Ok(self.tokens(text)?.into_iter().map(|token| token.id).collect()),
            Input::Ids(ids) => Ok(ids.to_vec()),
            Input::Sound(_) | Input::Image(_) | Input::Features(_) | Input::Pixels(_) => {
                Err(Error::Tokens { reason: "sound and images have no tokens; read them with `Model::read`".to_owned() })
            }
        }
    }

    /// The only token of a text, without those that the tokenizer adds.
    ///
    /// # Errors
    /// When there is no tokenizer, or the text is not one token.
    pub fn token(&self, text: &str) -> Result<u32> {
        let tokens: Vec<u32> = self.tokens(text)?.into_iter().filter(|token| !token.added).map(|token| token.id).collect();
        match tokens.as_slice() {
            [token] => Ok(*token),
            _ => {
                let reason = format!("{text:?} is {} tokens; give a text that is one token, or its id", tokens.len());
                Err(Error::Tokens { reason })
            }
        }
    }

    /// A token for people; its number where there is no tokenizer. Rows of sound have their time, those of images their place.
    pub fn piece(&self, id: u32) -> String {
        if let Some(front) = self.front_kind() {
            return front.piece(id as usize);
        }
        (*self.loaded.tokenizer).as_ref().map_or_else(|_| id.to_string(), |tokenizer| tokenizer.piece(id))
    }

    /// What to say about texts of this length.
    pub fn warning(&self, len: usize) -> Option<String> {
        (len > self.loaded.context && !self.loaded.limited).then(|| {
            format!(
                "{len} tokens are more than the {} that the model was trained for: what it does there means little",
                self.loaded.context
            )
        })
    }

    pub(crate) fn tensor_source(&self) -> &RenamedTensors {
        &self.loaded.source
    }

    pub(crate) fn transformer(&self) -> &Transformer {
        &self.loaded.transformer
    }

    /// Its parts and names.
    pub(crate) fn architecture(&self) -> &Architecture {
        &self.loaded.architecture
    }

    pub(crate) fn is_linear(&self) -> bool {
        self.loaded.linear
    }

    /// The weights, in place.
    pub(crate) fn weights(&self) -> Result<Weights<'_, f32>> {
        crate::formats::check_unchanged(&*self.loaded.source.archive)?;
        Ok(self.loaded.transformer.bind(&self.loaded.source)?)
    }

    /// The attention of a layer.
    pub(crate) fn layer(&self, layer: usize) -> Option<&MultiHeadAttention> {
        let place = if self.has_cross() { 2 * layer + usize::from(self.cross) } else { layer };
        self.loaded.transformer.stack().attention_sublayers().nth(place).map(|(_, attention)| attention)
    }

    pub(crate) fn pass(&self, len: usize) -> Pass<'static> {
        let memory_seq = self.reading.as_ref().map_or(0, |run| run.len());
        Pass { memory_seq, ..Pass::new(1, len, if self.loaded.causal { MaskKind::Causal } else { MaskKind::Everything }) }
    }

    pub(crate) fn check(&self, ids: &[u32], edits: &Edits, sources: &Sources) -> Result<()> {
        if ids.is_empty() {
            return Err(Error::Tokens { reason: "there are no tokens: a text must have at least one".to_owned() });
        }
        self.check_reading()?;
        edits.check(self.shape())?;
        edits.check_rows(ids.len())?;
        sources.check(edits, ids.len(), Dims { shape: self.shape(), head_dim: self.head_dim(), width: self.width() })
    }

    /// Whether all ids are tokens of the model.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check_tokens(&self, ids: &[u32]) -> Result<()> {
        let vocab = self.vocab();
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(&token) => Err(regard_nn::Error::Token { token, vocab }.into()),
            None => Ok(()),
        }
    }

    /// One pass: the final rows, and what was to be remembered.
    pub(crate) fn forward(&self, ids: &[u32], edits: &Edits, sources: &Sources, remember: Remember) -> Result<(Vec<f32>, Memory)> {
        self.forward_with(ids, edits, sources, remember, None)
    }

    /// [`Model::forward`] with a hook.
    pub(crate) fn forward_with(
        &self,
        ids: &[u32],
        edits: &Edits,
        sources: &Sources,
        remember: Remember,
        hook: Option<&dyn Hook>,
    ) -> Result<(Vec<f32>, Memory)> {
        self.check(ids, edits, sources)?;
        let weights = self.weights()?;
        let probe = self.probe(edits, sources, remember).with_hook(hook);
        self.through(&weights, &self.embedded(&weights, ids)?, 0..self.sublayers(), probe)
    }

    /// Sublayers, two of them per layer.
    pub(crate) fn sublayers(&self) -> usize {
        self.loaded.transformer.stack().sublayers()
    }

    /// Tokens as rows of the stream before the first layer.
    pub(crate) fn embedded(&self, weights: &Weights<'_, f32>, ids: &[u32]) -> Result<Vec<f32>> {
        Ok(self.loaded.transformer.embedded(weights, ids, &self.pass(ids.len()))?)
    }

    /// Some sublayers, two of them per layer: from rows of the stream before the first of them to those after the last; after the last of
    /// all they are the final rows.
    pub(crate) fn through(
        &self,
        weights: &Weights<'_, f32>,
        rows: &[f32],
        sublayers: Range<usize>,
        probe: EditProbe<'_>,
    ) -> Result<(Vec<f32>, Memory)> {
        let len = rows.len() / self.width();
        probe.pass(0..len, len);
        // On a thread of the pool: parallel loops begin at once there.
        let rows =
            rayon::scope(|_| self.loaded.transformer.probe_part(weights, &self.pass(len), sublayers, (rows, self.memory()), &probe))?;
        if rows.iter().any(|x| !x.is_finite()) {
            return Err(Error::NotNumbers { what: "the hidden states" });
        }
        Ok((rows, probe.memory()))
    }

    /// All sublayers, over keys and values that a cache of this type stores: the final rows.
    pub(crate) fn through_cache(
        &self,
        weights: &Weights<'_, f32>,
        ids: &[u32],
        cache_type: CacheType,
        probe: &EditProbe<'_>,
    ) -> Result<Vec<f32>> {
        probe.pass(0..ids.len(), ids.len());
        let cache = match &self.reading {
            Some(run) => self.loaded.transformer.cache_reading(weights, 1, run.as_memory()),
            None => self.loaded.transformer.cache(weights, 1),
        };
        let mut cache = cache.stored_as(cache_type);
        let rows = rayon::scope(|_| self.loaded.transformer.extend_rows(weights, ids, &mut cache, probe).map(<[f32]>::to_vec))?;
        if rows.iter().any(|x| !x.is_finite()) {
            return Err(Error::NotNumbers { what: "the hidden states" });
        }
        Ok(rows)
    }

    /// Bytes of the keys and values of `tokens` tokens in a cache of this type.
    pub fn cache_bytes(&self, cache_type: CacheType, tokens: usize) -> usize {
        2 * self.loaded.layers * self.loaded.attention.kv_heads * tokens * cache_type.row_bytes(self.head_dim())
    }

    /// Run tokens, with edits, keeping what every head worked with.
    ///
    /// # Errors
    /// When tokens or edits do not fit the model.
    pub fn run(&self, ids: &[u32], edits: &Edits, sources: &Sources) -> Result<Run> {
        let (hidden, heads) = self.attended(ids, edits, sources)?;
        Ok(Run::new(self.with_cancel(&Cancel::new()), ids.to_vec(), edits.clone(), hidden, heads))
    }

    /// The final rows and what every head worked with. Layers before the first edit are those of an earlier run without edits of the same
    /// tokens, where that is kept: to the bit what they would be again.
    fn attended(&self, ids: &[u32], edits: &Edits, sources: &Sources) -> Result<(Vec<f32>, Vec<Arc<LayerActivations>>)> {
        self.check(ids, edits, sources)?;
        let weights = self.weights()?;
        if let Some((begun, rows, mut heads)) = self.before_edits(ids, edits) {
            if begun == self.sublayers() {
                return Ok((rows, heads));
            }
            let probe = self.probe(edits, sources, Remember { heads: true, ..Remember::default() });
            let (hidden, memory) = self.through(&weights, &rows, begun..self.sublayers(), probe)?;
            heads.extend(memory.heads);
            return Ok((hidden, heads));
        }
        let streams = self.keeps_streams(ids, edits);
        let (hidden, memory) = self.forward(ids, edits, sources, Remember { heads: true, streams, ..Remember::default() })?;
        if streams {
            self.keep(ids, memory.streams, &hidden, &memory.heads);
        }
        Ok((hidden, memory.heads))
    }

    /// An earlier run without edits of the same tokens. Runs are kept by tokens alone: not of decoders, which read something beside them.
    fn known(&self, ids: &[u32]) -> Option<Arc<Intact>> {
        self.intact().iter().find(|intact| self.reading.is_none() && intact.ids == ids).cloned()
    }

    /// What an earlier run without edits of the same tokens has of the layers before the first edit: the first sublayer that is left, the
    /// rows before it (the final ones, where none is left), and what the heads of these layers worked with.
    pub(crate) fn before_edits(&self, ids: &[u32], edits: &Edits) -> Option<(usize, Vec<f32>, Vec<Arc<LayerActivations>>)> {
        let intact = self.known(ids)?;
        Some(match edits.first_layer(self.loaded.layers) {
            None => (self.sublayers(), intact.hidden.clone(), intact.heads.clone()),
            Some(first) => (2 * first, intact.streams[2 * first].clone(), intact.heads[..first].to_vec()),
        })
    }

    /// Whether the streams of a run are kept for later ones.
    pub(crate) fn keeps_streams(&self, ids: &[u32], edits: &Edits) -> bool {
        let intact = self.reading.is_none() && edits.first_layer(self.loaded.layers).is_none();
        intact && self.stream_elements(ids.len()) <= KEPT_STREAMS
    }

    /// The stream before every sublayer and after the last one; up to the first edit those of an earlier run, where that is kept.
    pub(crate) fn streams(&self, ids: &[u32], edits: &Edits, sources: &Sources) -> Result<Vec<Vec<f32>>> {
        self.check(ids, edits, sources)?;
        let remember = Remember { streams: true, ..Remember::default() };
        let Some(intact) = self.known(ids) else { return Ok(self.forward(ids, edits, sources, remember)?.1.streams) };
        let Some(first) = edits.first_layer(self.loaded.layers) else { return Ok(intact.streams.clone()) };
        let probe = self.probe(edits, sources, remember);
        let (_, memory) = self.through(&self.weights()?, &intact.streams[2 * first], 2 * first..self.sublayers(), probe)?;
        Ok(intact.streams[..2 * first].iter().cloned().chain(memory.streams).collect())
    }

    fn intact(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Intact>>> {
        self.loaded.intact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Elements of the streams of a text.
    fn stream_elements(&self, tokens: usize) -> usize {
        (2 * self.loaded.layers + 1) * self.loaded.width * tokens
    }

    /// Keep a run without edits; the oldest ones go.
    pub(crate) fn keep(&self, ids: &[u32], streams: Vec<Vec<f32>>, hidden: &[f32], heads: &[Arc<LayerActivations>]) {
        let intact = Intact { ids: ids.to_vec(), streams, hidden: hidden.to_vec(), heads: heads.to_vec() };
        let mut kept = self.intact();
        kept.retain(|other| other.ids != intact.ids);
        kept.push(Arc::new(intact));
        while kept.iter().map(|intact| self.stream_elements(intact.ids.len())).sum::<usize>() > KEPT_STREAMS {
            kept.remove(0);
        }
    }

    /// The loss of each next token in nats, without keeping anything.
    ///
    /// # Errors
    /// When tokens or edits do not fit, there is no head, or fewer than two tokens.
    pub fn losses(&self, ids: &[u32], edits: &Edits, sources: &Sources) -> Result<Vec<f64>> {
        let (hidden, _) = self.forward(ids, edits, sources, Remember::default())?;
        crate::run::row_losses(self, ids, &hidden)
    }

    /// Logits of the last token of ids.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn logits(&self, rows: &[f32]) -> Result<Vec<f32>> {
        if !self.has_head() {
            return Err(Error::NoHead { what: "logits" });
        }
        let weights = self.weights()?;
        let mut logits = Vec::with_capacity(rows.len() / self.width() * self.vocab());
        for rows in rows.chunks(HEAD_ROWS * self.width()) {
            self.cancel.check()?;
            logits.extend(rayon::scope(|_| self.loaded.transformer.logits_of(&weights, rows)));
        }
        if logits.iter().any(|x| x.is_nan()) {
            return Err(Error::NotNumbers { what: "the logits" });
        }
        Ok(logits)
    }

    /// Whether there is a loss of next tokens.
    pub(crate) fn check_loss(&self, ids: &[u32]) -> Result<()> {
        if !self.loaded.causal {
            return Err(Error::NoHead { what: "a loss of next tokens: it reads in both directions" });
        }
        if ids.len() < 2 {
            return Err(Error::Tokens { reason: "a loss needs two tokens at least: the second is predicted from the first".to_owned() });
        }
        Ok(())
    }

    /// The loss of each row's target, from final rows.
    pub(crate) fn losses_of(&self, weights: &Weights<'_, f32>, rows: &[f32], targets: &[u32]) -> Result<Vec<f64>> {
        self.losses_with(weights, None, rows, targets)
    }

    /// The same, tokens that are alike taken together.
    pub(crate) fn losses_with(
        &self,
        weights: &Weights<'_, f32>,
        alike: Option<&MergedLogits<f32>>,
        rows: &[f32],
        targets: &[u32],
    ) -> Result<Vec<f64>> {
        if !self.has_head() {
            return Err(Error::NoHead { what: "a loss" });
        }
        let mut losses = Vec::with_capacity(targets.len());
        for (rows, targets) in rows.chunks(HEAD_ROWS * self.width()).zip(targets.chunks(HEAD_ROWS)) {
            self.cancel.check()?;
            losses.extend(rayon::scope(|_| match alike {
                Some(alike) => self.loaded.transformer.losses_merged(weights, alike, rows, targets),
                None => self.loaded.transformer.losses_of(weights, rows, targets),
            })?);
        }
        if losses.iter().any(|x| x.is_nan()) {
            return Err(Error::NotNumbers { what: "the logits" });
        }
        Ok(losses)
    }

    /// The loss of each row's target and whether it is the most likely token, from final rows.
    pub(crate) fn judge(&self, weights: &Weights<'_, f32>, rows: &[f32], targets: &[u32]) -> Result<Vec<(f64, bool)>> {
        if !self.has_head() {
            return Err(Error::NoHead { what: "a loss" });
        }
        let mut judged = Vec::with_capacity(targets.len());
        for (rows, targets) in rows.chunks(HEAD_ROWS * self.width()).zip(targets.chunks(HEAD_ROWS)) {
            self.cancel.check()?;
            judged.extend(rayon::scope(|_| self.loaded.transformer.judge(weights, rows, targets))?);
        }
        if judged.iter().any(|(loss, _)| loss.is_nan()) {
            return Err(Error::NotNumbers { what: "the logits" });
        }
        Ok(judged)
    }

    /// A second text for patches: what every head worked with.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn source(&self, sources: &mut Sources, name: &str, ids: &[u32]) -> Result<()> {
        let (_, heads) = self.attended(ids, &Edits::default(), &Sources::default())?;
        sources.texts.insert(name.to_owned(), heads);
        Ok(())
    }

    /// Results on other texts, for `mean` and `resample`.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn reference(&self, texts: &[Vec<u32>]) -> Result<Reference> {
        let mut reference = Reference::default();
        for ids in texts {
            let remember = Remember { heads: true, networks: true, streams: false };
            let (_, memory) = self.forward(ids, &Edits::default(), &Sources::default(), remember)?;
            reference.add(memory);
        }
        Ok(reference)
    }

    /// What edits need from elsewhere: for `mean` and `resample`, stories that are not judged; the vectors of [`Model::with_vectors`].
    ///
    /// # Errors
    /// As [`Model::reference`].
    pub fn sources_of(&self, edits: &Edits) -> Result<Sources> {
        let mut sources = Sources { vectors: (*self.vectors).clone(), ..Sources::default() };
        if edits.needs_reference() {
            let kept = self.loaded.own_reference.get().cloned();
            let made = kept.map_or_else(|| Ok::<_, Error>(Arc::new(self.reference(&self.own_texts(32, 256)?.split_off(16))?)), Ok)?;
            sources.reference = Some(self.loaded.own_reference.get_or_init(|| made).clone());
        }
        Ok(sources)
    }

    /// Default texts: stories, cut to `tokens` each, and to what the model was trained for.
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn own_texts(&self, count: usize, tokens: usize) -> Result<Vec<Vec<u32>>> {
        let text = |seed: usize| {
            let mut ids = self.ids(Input::Text(&story(seed, tokens)))?;
            ids.truncate(tokens.min(self.loaded.context));
            Ok(ids)
        };
        (0..count).map(text).collect()
    }

    /// Tokens that are drawn evenly, without a text: for models without a tokenizer.
    pub fn random_texts(&self, count: usize, tokens: usize, seed: u64) -> Vec<Vec<u32>> {
        let text = |number: usize| {
            let mut draws = Draws::at(seed, &[0x7E87, number as u64]);
            (0..tokens.min(self.loaded.context)).map(|_| draws.below(self.vocab()) as u32).collect()
        };
        (0..count).map(text).collect()
    }

    /// The stories of [`Model::own_texts`] as texts that have about as many tokens.
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn own_stories(&self, count: usize, tokens: usize) -> Result<Vec<String>> {
        let stories = (0..count).map(|seed| self.passages(&story(seed, tokens), tokens, 1));
        Ok(stories.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Generate tokens after `ids`, up to an end-of-text token, or until `watch` returns false.
    ///
    /// A model whose positions end with its context, and one that `regard train` made, drops the older half of the text when the context is
    /// full. Rows that edits name are rows of the whole text.
    ///
    /// # Errors
    /// When the model cannot write, tokens or edits do not fit, or an edit is a patch.
    pub fn generate(
        &self,
        ids: &[u32],
        options: &Generation,
        edits: &Edits,
        sources: &Sources,
        mut watch: impl FnMut(u32) -> bool,
    ) -> Result<Vec<u32>> {
        options.sampling.check()?;
        self.check(ids, edits, sources)?;
        if !self.has_head() || self.loaded.front.is_some() {
            return Err(Error::NoHead { what: "text" });
        }
        if !self.loaded.causal {
            return Err(Error::Encoder);
        }
        if let Some(edit) = edits.list().iter().find(|edit| matches!(edit.action, crate::edits::Action::Patch(..))) {
            let reason = "a patch needs the whole text; it is not possible while text is generated".to_owned();
            return Err(Error::Edit { edit: edit.to_string(), reason });
        }
        let (mut tokens, ends) = (options.tokens, self.loaded.limited || self.loaded.trained.is_some());
        if self.reading.is_some() && self.loaded.limited {
            // What a decoder writes is not dropped: it ends where its positions do.
            tokens = tokens.min((self.loaded.context + 1).saturating_sub(ids.len()));
        }
        let options = Continuation {
            sampling: options.sampling,
            context: options.context.unwrap_or(usize::MAX).min(if ends { self.loaded.context } else { usize::MAX }),
            bos: self.tokenizer().ok().and_then(Tokenizer::first),
            cached: options.cached,
            cache_type: options.cache_type,
        };
        let mut writer = Writer::with(&self.loaded.transformer, self.weights()?, ids, options)?;
        if let Some(run) = &self.reading {
            writer = writer.reading(run.as_memory());
        }
        let (probe, writing) = (self.probe(edits, sources, Remember::default()), &self.loaded.architecture.writing);
        let mut written = Vec::new();
        while written.len() < tokens {
            let first = written.is_empty() && ids.len() <= writing.start.len().max(1);
            let token = writer.next_token_of(&probe, |logits| writing.rule(first, logits))?;
            written.push(token);
            if !watch(token) || self.loaded.eos_ids.contains(&token) {
                break;
            }
        }
        Ok(written)
    }
}
