//! Families of models: for each a table of names and a list of parts. Computing is regard-nn's.
//!
//! A row of a table is `(ours, theirs)`, where `#` stands for the number of a block and a name with a `/` in front is taken as it is,
//! without the prefix that all others share. The last part of a name is mapped too: `gain` and `table` are `weight`, `shift` is `bias`; old
//! files say `gamma` and `beta`. A name with a `=` in front is a whole one, without a last part; `%` stands for the number of an expert. Of
//! several rows for one part, the first whose tensor is there counts.

pub mod albert;
pub mod bart;
pub mod bert;
pub mod bloom;
pub mod distilbert;
pub mod gemma;
pub mod gpt2;
pub mod gpt_neox;
pub mod gptj;
pub mod llama;
pub mod mpt;
pub mod opt;
pub mod phi;
pub mod stablelm;
pub mod starcoder2;
pub mod t5;
pub mod vit;
pub mod whisper;

use crate::error::{Error, Result};
use crate::formats::{Archive, Gguf};
use crate::front::Front;
use crate::front::image::Pixels;
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::AttentionConfig;
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::{Rotary, Scaling};
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::{Layout, Numbers, Order, Source, Tensor};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

/// Rows of names.
pub type Table = &'static [(&'static str, &'static str)];

/// A model as a list of parts and a table of names.
#[derive(Debug, Clone)]
pub struct Architecture {
    /// As its file calls the family.
    pub family: String,
    /// The parts.
    pub parts: TransformerConfig,
    /// The names: the first table that has a part's row counts.
    pub names: &'static [Table],
    /// What names may begin with; the first that fits is taken.
    pub prefixes: &'static [&'static str],
    /// Tokens see only what is before them.
    pub causal: bool,
    /// Tokens that it was trained for.
    pub context: usize,
    /// Gains of norms are one more than what the file has.
    pub gains_plus_one: bool,
    /// Vectors whose names end so are not in the file: they are zero.
    pub zeros: &'static [&'static str],
    /// What makes rows of sound or images, instead of tokens.
    pub front: Option<Front>,
    /// How images become what it reads.
    pub pixels: Pixels,
    /// What the decoder reads, of an encoder-decoder.
    pub encoder: Option<Box<Architecture>>,
    /// How its decoder begins to write.
    pub writing: Writing,
}

/// How the decoder of an encoder-decoder writes.
#[derive(Debug, Clone, Default)]
pub struct Writing {
    /// Tokens that it begins with.
    pub start: Vec<u32>,
    /// The first token that is written, where it is always the same.
    pub forced: Option<u32>,
    /// Tokens that are never written.
    pub suppressed: Vec<u32>,
    /// Tokens that are not written first.
    pub suppressed_first: Vec<u32>,
    /// Tokens that end a text, where the file does not say so itself.
    pub ends: Vec<u32>,
}

impl Writing {
    /// Of a `config.json`, and of the `generation_config.json` beside it.
    pub(crate) fn of_settings(settings: Settings<'_>, generation: Settings<'_>) -> Result<Self> {
        let id = |name: &str| match [generation, settings].iter().find_map(|s| s.any(&[name])) {
            None => Ok(None),
            Some((name, value)) => match value.as_u64().and_then(|id| u32::try_from(id).ok()) {
                Some(id) => Ok(Some(id)),
                None => Err(Error::Setting { name, value: value.to_string(), reason: "the id of a token is needed".to_owned() }),
            },
        };
        let ids = |name: &str| -> Vec<u32> {
            let list = [generation, settings].iter().find_map(|s| s.any(&[name])).and_then(|(_, value)| value.as_array());
            list.into_iter().flatten().filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
        };
        // Words of one token; longer ones depend on what is before them.
        let bad = [generation, settings].iter().find_map(|s| s.any(&["bad_words_ids"])).and_then(|(_, words)| words.as_array());
        let bad = bad.into_iter().flatten().filter_map(|word| match word.as_array()?.as_slice() {
            [id] => u32::try_from(id.as_u64()?).ok(),
            _ => None,
        });
        let bad: Vec<u32> = bad.collect();
        Ok(Self {
            start: id("decoder_start_token_id")?.or(id("bos_token_id")?).into_iter().collect(),
            forced: id("forced_bos_token_id")?,
            suppressed: [ids("suppress_tokens"), bad].concat(),
            suppressed_first: ids("begin_suppress_tokens"),
            ends: Vec::new(),
        })
    }
}

impl Architecture {
    /// Tokens see only what is before them, gains are what the file has.
    pub(crate) fn decoder(
        family: &str,
        parts: TransformerConfig,
        names: &'static [Table],
        prefixes: &'static [&'static str],
        context: usize,
    ) -> Self {
        Self {
            family: family.to_owned(),
            parts,
            names,
            prefixes,
            causal: true,
            context,
            gains_plus_one: false,
            zeros: &[],
            front: None,
            pixels: Pixels::default(),
            encoder: None,
            writing: Writing::default(),
        }
    }

    /// Tokens, or rows of a front end, see all others.
    fn encoder(family: &str, parts: TransformerConfig, names: &'static [Table], prefixes: &'static [&'static str], context: usize) -> Self {
        Self { causal: false, ..Self::decoder(family, parts, names, prefixes, context) }
    }

    /// A decoder under GGUF's names.
    fn gguf_decoder(family: &str, parts: TransformerConfig, context: usize) -> Self {
        Self::decoder(family, parts, &[GGUF_DECODER], &[""], context)
    }
}

/// The sizes that every decoder has.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    vocab: usize,
    width: usize,
    layers: usize,
    heads: usize,
    /// Of each block's network.
    hidden: usize,
}

impl Sizes {
    /// Of a `config.json` with the names that most families have.
    fn of_settings(settings: Settings<'_>) -> Result<Self> {
        Ok(Self {
            width: settings.size(&["hidden_size"])?,
            heads: settings.size(&["num_attention_heads"])?,
            layers: settings.layers(&["num_hidden_layers"])?,
            vocab: settings.size(&["vocab_size"])?,
            hidden: settings.size(&["intermediate_size"])?,
        })
    }

    /// Of a GGUF file.
    fn of_gguf(settings: Settings<'_>) -> Result<Self> {
        Ok(Self {
            width: settings.size(&["embedding_length"])?,
            heads: settings.size(&["attention.head_count"])?,
            layers: settings.layers(&["block_count"])?,
            vocab: settings.size(&["vocab_size"])?,
            hidden: settings.size(&["feed_forward_length"])?,
        })
    }
}

/// A setting that has no part here unless it has one value.
fn needs(settings: Settings<'_>, name: &str, value: bool, otherwise: bool) -> Result<()> {
    if settings.flag(name, otherwise) == value {
        return Ok(());
    }
    Err(Error::Setting { name: name.to_owned(), value: (!value).to_string(), reason: format!("only {value} is supported") })
}

/// A decoder whose blocks differ in their windows only.
struct Decoder {
    sizes: Sizes,
    wiring: BlockWiring,
    norm: (NormKind, f64),
    attention: AttentionConfig,
    /// Of each block; none where empty.
    windows: Vec<Option<usize>>,
    mlp: MlpConfig,
    embedding: EmbeddingConfig,
    head: HeadConfig,
}

impl Decoder {
    fn parts(self) -> Result<TransformerConfig> {
        let (Self { wiring, norm, attention, mlp, .. }, Sizes { vocab, width, layers, .. }) = (&self, self.sizes);
        divides("num_key_value_heads", attention.heads, attention.kv_heads)?;
        let block = |number: usize| {
            let attention = AttentionConfig { window: self.windows.get(number).copied().flatten(), ..*attention };
            BlockConfig::new(format!("blocks.{number}"), *wiring, *norm, attention, *mlp)
        };
        Ok(TransformerConfig {
            width,
            blocks: (0..layers).map(block).collect(),
            last_norm: Some(*norm),
            embedding: EmbeddingConfig { vocab, width, ..self.embedding },
            head: Some(HeadConfig { order: Order::OutIn, ..self.head }),
        })
    }
}

/// The names of decoders in GGUF files, and in our view of llama2.c's.
pub const GGUF_DECODER: Table = &[
    ("tokens", "token_embd"),
    ("positions", "position_embd"),
    ("blocks.#.attention.norm", "blk.#.attn_norm"),
    ("blocks.#.attention.qkv", "blk.#.attn_qkv"),
    ("blocks.#.attention.q", "blk.#.attn_q"),
    ("blocks.#.attention.k", "blk.#.attn_k"),
    ("blocks.#.attention.v", "blk.#.attn_v"),
    ("blocks.#.attention.q_norm", "blk.#.attn_q_norm"),
    ("blocks.#.attention.k_norm", "blk.#.attn_k_norm"),
    ("blocks.#.attention.out", "blk.#.attn_output"),
    ("blocks.#.attention.result_norm", "blk.#.post_attention_norm"),
    ("blocks.#.mlp.norm", "blk.#.ffn_norm"),
    ("blocks.#.mlp.gate", "blk.#.ffn_gate"),
    ("blocks.#.mlp.up", "blk.#.ffn_up"),
    ("blocks.#.mlp.down", "blk.#.ffn_down"),
    ("blocks.#.mlp.result_norm", "blk.#.post_ffw_norm"),
    ("last_norm", "output_norm"),
    ("head", "output"),
];

/// The architecture of a `config.json`, and of the `generation_config.json` beside it.
///
/// # Errors
/// [`Error::Family`] and [`Error::Setting`].
pub fn of_settings(settings: Settings<'_>, generation: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    // Very old files say nothing: the names of their tensors do.
    let guessed =
        || ["", "bert."].iter().any(|p| archive.has(&format!("{p}encoder.layer.0.attention.self.query.weight"))).then_some("bert");
    let name = settings.text("model_type").or_else(guessed).unwrap_or_default();
    match name {
        "gpt2" => gpt2::of_settings(settings, archive),
        "llama" | "mistral" | "qwen2" | "qwen3" | "olmo2" | "mixtral" => llama::of_settings(name, settings, archive),
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" => gemma::of_settings(name, settings),
        "phi" => phi::of_settings(settings),
        "phi3" => phi::of_settings_3(settings, archive),
        "stablelm" => stablelm::of_settings(settings, archive),
        "starcoder2" => starcoder2::of_settings(settings, archive),
        "gptj" => gptj::of_settings(settings),
        "opt" => opt::of_settings(settings),
        "bloom" => bloom::of_settings(settings),
        "mpt" => mpt::of_settings(settings),
        "gpt_neox" => gpt_neox::of_settings(settings, archive),
        "bert" | "roberta" | "camembert" | "xlm-roberta" => bert::of_settings(name, settings, archive),
        "distilbert" => distilbert::of_settings(settings, archive),
        "albert" => albert::of_settings(settings, archive),
        "t5" => t5::of_settings(settings, generation, archive),
        "bart" | "marian" => bart::of_settings(name, settings, generation),
        "whisper" => whisper::of_settings(settings, generation),
        "vit" => vit::of_settings(settings, archive),
        _ => Err(unknown(name, "config.json's model_type")),
    }
}

/// The architecture of a GGUF file.
///
/// # Errors
/// [`Error::Family`] and [`Error::Setting`].
pub fn of_gguf(file: &Gguf) -> Result<Architecture> {
    let name = file.text("general.architecture").unwrap_or_default();
    let prefix = format!("{name}.");
    // Its settings as a JSON object, by the last part of their names.
    let mut object = serde_json::Map::new();
    for key in file.keys().into_iter().filter(|key| key.starts_with(&prefix)) {
        let value =
            file.text(key).map(Value::from).or_else(|| file.flag(key).map(Value::from)).or_else(|| file.integer(key).map(Value::from));
        let number = file.number(key);
        // JSON has no NaN: it would count as missing.
        if let Some(x) = number.filter(|x| !x.is_finite()) {
            return Err(Error::Setting { name: key.to_owned(), value: x.to_string(), reason: "a finite number is needed".to_owned() });
        }
        if let Some(value) = value.or_else(|| number.map(Value::from)) {
            object.insert(key[prefix.len()..].to_owned(), value);
        }
    }
    let table = file.list().into_iter().find(|tensor| tensor.name == "token_embd.weight");
    if let Some(&tokens) = table.as_ref().and_then(|table| table.shape.first()) {
        object.insert("vocab_size".to_owned(), tokens.into());
    }
    let object = Value::Object(object);
    let settings = Settings(&object);
    match name {
        "llama" | "qwen2" | "qwen3" => llama::of_gguf(name, settings, file),
        "gemma2" => gemma::of_gguf(settings),
        "gpt2" => gpt2::of_gguf(settings, file),
        "gptneox" => gpt_neox::of_gguf(settings, file),
        _ => Err(unknown(name, "general.architecture")),
    }
}

fn unknown(name: &str, place: &str) -> Error {
    const KNOWN: &str = "gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3, phi, phi3, stablelm, starcoder2, gptj, gpt_neox, opt, \
                         bloom, mpt, olmo2, mixtral, bert, roberta, distilbert, albert, t5, bart, marian, whisper, vit";
    let known_missing = [
        ("mt5", "a table of names for this version"),
        ("mbart", "norms before branches and after the last block"),
        ("wav2vec2", "an encoder of raw sound"),
        ("clip", "an encoder of images beside one of texts"),
        ("deepseek", "latent attention and a mixture of experts"),
        ("mamba", "a state space instead of attention"),
        ("phimoe", "a mixture of experts"),
        ("phi", "a table of names for this version"),
        ("gemma", "a table of names for this version"),
        ("falcon", "q, k and v fused by groups, parallel wiring"),
    ];
    let missing = known_missing.iter().find(|(family, _)| name.starts_with(family)).map_or("a list of its parts", |(_, missing)| missing);
    let missing = if name.is_empty() {
        format!("{place} says nothing. Known are {KNOWN}")
    } else {
        format!("what is missing is {missing}. Known are {KNOWN}")
    };
    Error::Family { name: name.to_owned(), missing }
}

/// The architecture of a file without settings, by the names and shapes of its tensors.
///
/// # Errors
/// [`Error::Setting`].
pub(crate) fn of_names(archive: &dyn Archive) -> Result<Option<Architecture>> {
    if archive.has("encoder.conv1.weight") { whisper::of_tensors(archive).map(Some) } else { Ok(None) }
}

/// An activation by the name that transformers has for it.
pub(crate) fn activation(settings: Settings<'_>, names: &[&str], otherwise: &str) -> Result<Activation> {
    let (name, value) = match settings.any(names) {
        Some((name, value)) => (name, value.as_str().unwrap_or_default().to_owned()),
        None => (names[0].to_owned(), otherwise.to_owned()),
    };
    match value.as_str() {
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_python_tanh" => Ok(Activation::GeluTanh),
        "silu" | "swish" => Ok(Activation::Silu),
        "relu" => Ok(Activation::Relu),
        _ => {
            Err(Error::Setting { name, value, reason: "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, silu and relu are known".to_owned() })
        }
    }
}

/// The even number of a head's elements that are rotated, of a share.
fn rotated(share: f64, head_dim: usize) -> usize {
    ((head_dim as f64 * share) as usize).min(head_dim) / 2 * 2
}

/// The share of a head that is rotated.
fn partial_rotary(settings: Settings<'_>, otherwise: f64) -> Result<f64> {
    let share = settings.number(&["rotary_pct", "partial_rotary_factor"], otherwise)?;
    settings.within("rope_parameters").map_or(Ok(share), |inner| inner.number(&["partial_rotary_factor"], share))
}

/// Rotary positions of a `config.json`: of transformers 5 (`rope_parameters`) or before (`rope_theta`, `rope_scaling`).
pub(crate) fn rotary(settings: Settings<'_>, otherwise: f64) -> Result<Rotary> {
    let inner = settings.within("rope_parameters");
    let base = match inner {
        Some(inner) => inner.number(&["rope_theta"], settings.number(&["rope_theta"], otherwise)?)?,
        None => settings.number(&["rope_theta", "rotary_emb_base"], otherwise)?,
    };
    let scaled = inner.or_else(|| settings.within("rope_scaling"));
    let kind = scaled.and_then(|s| s.text("rope_type").or_else(|| s.text("type"))).unwrap_or("default");
    let number = |name: &str| match scaled.and_then(|s| s.number_if(&[name]).transpose()) {
        Some(x) => x,
        None => Err(Error::Setting { name: name.to_owned(), value: "null".to_owned(), reason: format!("rope type {kind} needs it") }),
    };
    let scaling = match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear(number("factor")?),
        "llama3" => Scaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            context: number("original_max_position_embeddings")?,
        },
        other => {
            let reason = "default, linear and llama3 are known".to_owned();
            return Err(Error::Setting { name: "rope_type".to_owned(), value: other.to_owned(), reason });
        }
    };
    if base <= 0.0 {
        return Err(Error::Setting { name: "rope_theta".to_owned(), value: base.to_string(), reason: "it must be positive".to_owned() });
    }
    Ok(Rotary { scaling, ..Rotary::rounded(base) })
}

/// A part that must divide another.
pub(crate) fn divides(what: &str, whole: usize, part: usize) -> Result<usize> {
    if part == 0 || !whole.is_multiple_of(part) {
        let reason = format!("{whole} cannot be shared out over it");
        return Err(Error::Setting { name: what.to_owned(), value: part.to_string(), reason });
    }
    Ok(whole / part)
}

/// Tensors of blocks that are no weights: tables that a model computes itself.
const IGNORED: [&str; 6] = ["attn.bias", "attention.bias", "masked_bias", "rotary_emb.inv_freq", "position_ids", "rotary_emb.cos_cached"];

/// An archive under our names.
#[derive(Debug)]
pub struct RenamedTensors {
    /// The tensors.
    pub archive: Arc<dyn Archive>,
    names: &'static [Table],
    prefix: &'static str,
    gains_plus_one: bool,
    zeros: &'static [&'static str],
}

impl RenamedTensors {
    /// The tensors of an architecture.
    pub fn new(archive: Arc<dyn Archive>, architecture: &Architecture) -> Self {
        let Architecture { names, gains_plus_one, zeros, .. } = *architecture;
        let mut named = Self { archive, names, prefix: "", gains_plus_one, zeros };
        for prefix in architecture.prefixes {
            named.prefix = prefix;
            let is_there = |part: &str| named.theirs(part).is_some_and(|name| named.archive.has(&name));
            if ["tokens.table", "blocks.0.attention.q.weight"].into_iter().any(is_there) {
                break;
            }
        }
        named
    }

    /// Every tensor inside a block belongs to the model: a file with more blocks or parts than its settings name is another model.
    ///
    /// # Errors
    /// [`Error::Setting`] with the first tensor that is left over.
    pub fn check_all_used(&self, layout: &Layout, blocks: usize) -> Result<()> {
        let used: HashSet<String> = layout.entries().iter().filter_map(|entry| self.theirs(&entry.name)).collect();
        // What names of blocks begin with, as in `blk.` of `blk.#.attn_q`.
        let starts: HashSet<String> = (self.names.iter().copied().flatten())
            .filter_map(|(_, theirs)| theirs.split_once('#'))
            .map(|(start, _)| start.strip_prefix('/').map_or_else(|| format!("{}{start}", self.prefix), str::to_owned))
            .collect();
        let in_block = |name: &str| {
            let number = starts.iter().find_map(|start| name.strip_prefix(start.as_str()))?.split('.').next()?;
            number.parse::<usize>().ok()
        };
        let left = |name: &String| !used.contains(name) && !IGNORED.iter().any(|end| name.ends_with(end));
        match self.archive.list().into_iter().map(|tensor| tensor.name).find(|name| left(name) && in_block(name).is_some()) {
            None => Ok(()),
            Some(name) => Err(Error::Setting {
                name: "number of blocks".to_owned(),
                value: blocks.to_string(),
                reason: format!("its tensor {name} belongs to no part of such a model: check the settings against the file"),
            }),
        }
    }

    /// Their name for ours: the first way to write it that is there, else the first.
    fn theirs(&self, ours: &str) -> Option<String> {
        // Models of our own have our names.
        if self.names.is_empty() {
            return Some(ours.to_owned());
        }
        let (module, end) = ours.rsplit_once('.')?;
        let (pattern, number) = match module.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
            Some((number, rest)) => (format!("blocks.#.{rest}"), number),
            None => (module.to_owned(), ""),
        };
        let (pattern, expert) = match pattern.split_once(".experts.").and_then(|(start, rest)| Some((start, rest.split_once('.')?))) {
            Some((start, (expert, rest))) => (format!("{start}.experts.%.{rest}"), expert),
            None => (pattern, ""),
        };
        let rows = self.names.iter().copied().flatten().filter(|(ours, _)| *ours == pattern);
        let mut written = rows.flat_map(|(_, theirs)| self.written(theirs, end, [number, expert]));
        let first = written.next()?;
        Some(if self.archive.has(&first) { first } else { written.find(|name| self.archive.has(name)).unwrap_or(first) })
    }

    /// The names of a row's tensor with this last part, in files of any age.
    fn written(&self, theirs: &str, end: &str, [number, expert]: [&str; 2]) -> Vec<String> {
        let (whole, theirs) = theirs.strip_prefix('=').map_or((false, theirs), |name| (true, name));
        let prefix = if theirs.starts_with('/') { "" } else { self.prefix };
        let stem = format!("{prefix}{}", theirs.trim_start_matches('/').replace('#', number).replace('%', expert));
        if whole {
            return vec![stem];
        }
        let ends: &[&str] = match end {
            "gain" => &["weight", "gamma"],
            "shift" => &["bias", "beta"],
            "table" => &["weight"],
            other => &[other],
        };
        ends.iter().map(|end| format!("{stem}.{end}")).collect()
    }
}

/// The shape of a tensor as a matrix: without ones in front, and with the rest side by side (convolutions); a vector where it is a bias.
fn as_matrix(mut shape: Vec<usize>, bias: bool) -> Vec<usize> {
    while shape.len() > if bias { 1 } else { 2 } && shape[0] == 1 {
        shape.remove(0);
    }
    if shape.len() > 2 && !bias {
        let rest = shape[1..].iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        shape = vec![shape[0], rest.unwrap_or(usize::MAX)];
    }
    shape
}

impl Source for RenamedTensors {
    fn tensor(&self, name: &str) -> regard_nn::Result<Tensor<'_>> {
        let refused = |reason: String| regard_nn::Error::Tensor { name: name.to_owned(), reason };
        if self.zeros.iter().any(|end| name.ends_with(end)) {
            // As long as the outputs of the matrix, or the gain, beside it.
            let (part, end) = name.rsplit_once('.').unwrap_or_default();
            let beside = self.tensor(&format!("{part}.{}", if end == "shift" { "gain" } else { "weight" }))?;
            let shape = vec![beside.shape.first().copied().unwrap_or_default()];
            return Ok(Tensor { numbers: Numbers::F32(Cow::Owned(vec![0f32; shape[0]])), shape });
        }
        let theirs = self.theirs(name).ok_or_else(|| refused("the family has no name for it".to_owned()))?;
        let mut tensor = self.archive.tensor(&theirs).map_err(|error| match error {
            regard_nn::Error::Tensor { reason, .. } => regard_nn::Error::Tensor { name: theirs.clone(), reason },
            other => other,
        })?;
        tensor.shape = as_matrix(tensor.shape, name.ends_with(".bias"));
        if self.gains_plus_one && name.ends_with(".gain") {
            let mut gains = vec![0f32; tensor.numbers.len()];
            tensor.numbers.widen(0..gains.len(), &mut gains);
            gains.iter_mut().for_each(|gain| *gain += 1.0);
            return Ok(Tensor { shape: tensor.shape, numbers: Numbers::F32(Cow::Owned(gains)) });
        }
        Ok(tensor)
    }
}
