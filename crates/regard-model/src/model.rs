//! [`Model`]: a checkpoint that can be run, looked into and edited.

use crate::archives::TensorInfo;
use crate::edits::{Edits, Reference, Shape, Sources, Surgeon};
use crate::error::{Error, Result};
use crate::families::Named;
use crate::open::{self, Opened};
use crate::run::Run;
use crate::tokens::{Token, Tokenizer};
use regard_nn::generate::Sampling;
use regard_nn::layers::attention::{AttentionConfig, MultiHeadAttention};
use regard_nn::models::alike::Alike;
use regard_nn::models::transformer::Transformer;
use regard_nn::random::Draws;
use regard_nn::tensors::Weights;
use regard_nn::{MaskKind, Pass};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

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
    pub(crate) fn of_folder(folder: &Path) -> Option<Self> {
        let read = |path: PathBuf| -> Option<serde_json::Value> { serde_json::from_slice(&std::fs::read(path).ok()?).ok() };
        let modules = read(folder.join("modules.json"))?;
        let pooling = read(folder.join("1_Pooling/config.json"))?;
        let normalised = modules.as_array()?.iter().any(|module| module["type"].as_str().is_some_and(|kind| kind.ends_with("Normalize")));
        let (first, mean) = (pooling["pooling_mode_cls_token"] == true, pooling["pooling_mode_mean_tokens"] == true);
        (first != mean).then_some(Self { first, normalised })
    }
}

/// A checkpoint that can be run.
#[derive(Debug)]
pub struct Model {
    transformer: Transformer,
    source: Named,
    tokenizer: std::result::Result<Tokenizer, String>,
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
    ends: Vec<u32>,
    pooling: Option<Pooling>,
    /// Logits are a sum over what is written to the stream.
    linear: bool,
    /// What `mean` and `resample` take from stories of our own, made when it is first needed.
    own_reference: OnceLock<Arc<Reference>>,
}

/// Tokens to be run: a text or ids.
#[derive(Debug, Clone, Copy)]
pub enum Input<'i> {
    /// A text.
    Text(&'i str),
    /// Tokens as they are, without any added.
    Ids(&'i [u32]),
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

    /// The small model inside the crate: three layers of four heads that read pieces of words, trained on stories and on sequences that are said again and again.
    ///
    /// # Errors
    /// None, short of a defect.
    pub fn built_in() -> Result<Self> {
        Self::new(open::built_in()?, PathBuf::from("regard's own model"))
    }

    pub(crate) fn new(opened: Opened, path: PathBuf) -> Result<Self> {
        let Opened { format, archive, recipe, tokenizer, ends, pooling } = opened;
        let transformer = Transformer::new(&recipe.parts);
        let source = Named::new(archive, &recipe);
        // Once now, so that what is missing is said before anything is run.
        transformer.bind::<f32>(&source)?;
        let first =
            recipe.parts.blocks.first().ok_or_else(|| Error::NoModel { path: path.clone(), reason: "it has no blocks".to_owned() })?;
        Ok(Self {
            source,
            tokenizer,
            attention: first.attention,
            layers: recipe.parts.blocks.len(),
            vocab: recipe.parts.embedding.vocab,
            width: recipe.parts.width,
            causal: recipe.causal,
            context: recipe.context,
            limited: !recipe.parts.embedding.positions.extends(),
            family: recipe.family,
            format,
            path,
            ends,
            pooling,
            linear: recipe.parts.last_norm.is_some()
                && recipe.parts.head.as_ref().is_some_and(|head| head.softcap.is_none() && head.transform.is_none()),
            own_reference: OnceLock::new(),
            transformer,
        })
    }

    /// Layers, query heads and key and value heads.
    pub fn shape(&self) -> Shape {
        Shape { layers: self.layers, heads: self.attention.heads, kv_heads: self.attention.kv_heads }
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.attention.head_dim
    }

    /// The options of its attention.
    pub fn attention(&self) -> &AttentionConfig {
        &self.attention
    }

    /// Width of the residual stream.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Tokens that it was trained for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Tokens see only those before them.
    pub fn is_causal(&self) -> bool {
        self.causal
    }

    /// It has logits.
    pub fn has_head(&self) -> bool {
        self.transformer.has_head()
    }

    /// As its file calls the family.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// `safetensors`, `pickle`, `gguf`, `llama2.c`, `regard`.
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// Where it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How rows of a text become one vector.
    pub fn pooling(&self) -> Option<Pooling> {
        self.pooling
    }

    /// Numbers in all its tensors.
    pub fn parameters(&self) -> usize {
        self.transformer.layout().len()
    }

    /// The tensors of its files.
    pub fn tensors(&self) -> Vec<TensorInfo> {
        self.source.archive.list()
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().map_err(|reason| Error::NoTokenizer { reason: reason.clone() })
    }

    /// The tokens of a text, with those that the tokenizer adds.
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn tokens(&self, text: &str) -> Result<Vec<Token>> {
        self.tokenizer()?.encode(text)
    }

    /// The numbers of these tokens, or the ids themselves.
    ///
    /// # Errors
    /// When there is no tokenizer for a text.
    pub fn ids(&self, input: Input<'_>) -> Result<Vec<u32>> {
        match input {
            Input::Text(text) => Ok(self.tokens(text)?.into_iter().map(|token| token.id).collect()),
            Input::Ids(ids) => Ok(ids.to_vec()),
        }
    }

    /// A token for people; its number where there is no tokenizer.
    pub fn piece(&self, id: u32) -> String {
        self.tokenizer.as_ref().map_or_else(|_| id.to_string(), |tokenizer| tokenizer.piece(id))
    }

    /// What to say about texts of this length.
    pub fn warning(&self, len: usize) -> Option<String> {
        (len > self.context && !self.limited).then(|| {
            format!("{len} tokens are more than the {} that the model was trained for: what it does there means little", self.context)
        })
    }

    pub(crate) fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    pub(crate) fn is_linear(&self) -> bool {
        self.linear
    }

    /// The weights, in place.
    pub(crate) fn weights(&self) -> Result<Weights<'_, f32>> {
        Ok(self.transformer.bind(&self.source)?)
    }

    /// The attention of a layer.
    pub(crate) fn layer(&self, layer: usize) -> Option<&MultiHeadAttention> {
        self.transformer.stack().attention_sublayers().nth(layer).map(|(_, attention)| attention)
    }

    pub(crate) fn pass(&self, len: usize) -> Pass<'static> {
        Pass::new(1, len, if self.causal { MaskKind::Causal } else { MaskKind::Everything })
    }

    fn check(&self, ids: &[u32], edits: &Edits, sources: &Sources) -> Result<()> {
        if ids.is_empty() {
            return Err(Error::Tokens { reason: "there are no tokens: a text must have at least one".to_owned() });
        }
        edits.check(self.shape())?;
        edits.check_rows(ids.len())?;
        sources.check(edits, ids.len())
    }

    /// One pass: the final rows, and what was to be remembered.
    pub(crate) fn forward(&self, ids: &[u32], edits: &Edits, sources: &Sources, remember: Remember) -> Result<(Vec<f32>, Memory)> {
        self.check(ids, edits, sources)?;
        let weights = self.weights()?;
        let surgeon = Surgeon::new(edits, sources, self.shape(), remember);
        self.through(&weights, &self.embedded(&weights, ids)?, 0..self.transformer.stack().sublayers(), surgeon)
    }

    /// Tokens as rows of the stream before the first layer.
    pub(crate) fn embedded(&self, weights: &Weights<'_, f32>, ids: &[u32]) -> Result<Vec<f32>> {
        Ok(self.transformer.embedded(weights, ids, &self.pass(ids.len()))?)
    }

    /// Some sublayers, two of them per layer: from rows of the stream before the first of them to those behind the last; behind the last of all they are the
    /// final rows.
    pub(crate) fn through(
        &self,
        weights: &Weights<'_, f32>,
        rows: &[f32],
        sublayers: Range<usize>,
        surgeon: Surgeon<'_>,
    ) -> Result<(Vec<f32>, Memory)> {
        let len = rows.len() / self.width;
        // On a thread of the pool: parallel loops begin at once there.
        let (rows, surgeon) = rayon::scope(move |_| -> Result<_> {
            surgeon.expect(len, len);
            Ok((self.transformer.probe_part(weights, &self.pass(len), sublayers, rows, &surgeon)?, surgeon))
        })?;
        if rows.iter().any(|x| !x.is_finite()) {
            return Err(Error::NotNumbers { what: "the hidden states" });
        }
        Ok((rows, surgeon.memory()))
    }

    /// Run tokens, with edits, keeping what every head worked with.
    ///
    /// # Errors
    /// When tokens or edits do not fit the model.
    pub fn run(&self, ids: &[u32], edits: &Edits, sources: &Sources) -> Result<Run<'_>> {
        let (hidden, memory) = self.forward(ids, edits, sources, Remember { heads: true, ..Remember::default() })?;
        Ok(Run::new(self, ids.to_vec(), edits.clone(), hidden, memory.heads))
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
        let logits = rayon::scope(|_| self.transformer.logits_of(&weights, rows));
        if logits.iter().any(|x| x.is_nan()) {
            return Err(Error::NotNumbers { what: "the logits" });
        }
        Ok(logits)
    }

    /// Whether there is a loss of next tokens.
    pub(crate) fn check_loss(&self, ids: &[u32]) -> Result<()> {
        if !self.causal {
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
        alike: Option<&Alike<f32>>,
        rows: &[f32],
        targets: &[u32],
    ) -> Result<Vec<f64>> {
        if !self.has_head() {
            return Err(Error::NoHead { what: "a loss" });
        }
        let losses = rayon::scope(|_| match alike {
            Some(alike) => self.transformer.losses_alike(weights, alike, rows, targets),
            None => self.transformer.losses_of(weights, rows, targets),
        })?;
        if losses.iter().any(|x| x.is_nan()) {
            return Err(Error::NotNumbers { what: "the logits" });
        }
        Ok(losses)
    }

    /// A second text for patches: what every head worked with.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn source(&self, sources: &mut Sources, name: &str, ids: &[u32]) -> Result<()> {
        let (_, memory) = self.forward(ids, &Edits::default(), &Sources::default(), Remember { heads: true, ..Remember::default() })?;
        sources.texts.insert(name.to_owned(), memory.heads);
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

    /// What edits need from other texts: for `mean` and `resample`, stories that are not judged.
    ///
    /// # Errors
    /// As [`Model::reference`].
    pub fn sources_of(&self, edits: &Edits) -> Result<Sources> {
        let mut sources = Sources::default();
        if edits.needs_reference() {
            let kept = self.own_reference.get().cloned();
            let made = kept.map_or_else(|| Ok::<_, Error>(Arc::new(self.reference(&self.own_texts(32, 256)?.split_off(16))?)), Ok)?;
            sources.reference = Some(self.own_reference.get_or_init(|| made).clone());
        }
        Ok(sources)
    }

    /// Texts of our own, where nobody gave any: stories, cut to `tokens` each, and to what the model was trained for.
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn own_texts(&self, count: usize, tokens: usize) -> Result<Vec<Vec<u32>>> {
        let text = |seed: usize| {
            let story = regard_nn::stories::write(8 * tokens, 0x5707 + seed as u64);
            let mut ids = self.ids(Input::Text(&story))?;
            ids.truncate(tokens.min(self.context));
            Ok(ids)
        };
        (0..count).map(text).collect()
    }

    /// Write up to `count` more tokens, the past in a cache; writing stops behind a token that ends texts.
    ///
    /// # Errors
    /// When the model cannot write, tokens or edits do not fit, or an edit is a patch.
    pub fn generate(
        &self,
        ids: &[u32],
        count: usize,
        edits: &Edits,
        sources: &Sources,
        sampling: &Sampling,
        mut watch: impl FnMut(u32) -> bool,
    ) -> Result<Vec<u32>> {
        sampling.check()?;
        self.check(ids, edits, sources)?;
        if !self.has_head() {
            return Err(Error::NoHead { what: "text" });
        }
        if !self.causal {
            return Err(Error::Encoder);
        }
        if let Some(edit) = edits.list().iter().find(|edit| matches!(edit.action, crate::edits::Action::Patch(..))) {
            let reason = "a patch is of a text that is there; it cannot be made while writing".to_owned();
            return Err(Error::Edit { edit: edit.to_string(), reason });
        }
        let weights = self.weights()?;
        let mut cache = self.transformer.cache(&weights, 1);
        let mut draws = Draws::at(sampling.seed, &[0x6E4]);
        let (mut written, mut logits) = (Vec::new(), Vec::new());
        let mut new = ids.to_vec();
        let mut surgeon = Surgeon::new(edits, sources, self.shape(), Remember::default());
        while written.len() < count {
            let len = ids.len() + written.len();
            let (transformer, weights) = (&self.transformer, &weights);
            (cache, logits, surgeon) = rayon::scope(|_| -> Result<_> {
                let (mut cache, mut logits, surgeon) = (cache, logits, surgeon);
                surgeon.expect(new.len(), len);
                transformer.extend_probed(weights, &new, &mut cache, &mut logits, &surgeon)?;
                Ok((cache, logits, surgeon))
            })?;
            let token = sampling.draw(&logits, &mut draws)?;
            written.push(token);
            new = vec![token];
            if !watch(token) || self.ends.contains(&token) {
                break;
            }
        }
        Ok(written)
    }
}
