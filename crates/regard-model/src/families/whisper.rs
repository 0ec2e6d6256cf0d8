//! Whisper: an encoder of sound and a decoder of text, in files of transformers and of OpenAI. Keys have no bias.

use super::bart::{NAMES, PREFIXES, Pair, Side};
use super::{Architecture, Table, Writing, activation};
use crate::error::{Error, Result};
use crate::formats::Archive;
use crate::front::Front;
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Positions;
use regard_nn::layers::stack::BlockWiring;
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig};
use regard_nn::tensors::Order;

/// The front end in files of transformers.
const FRONT: Table = &[("conv1", "conv1"), ("conv2", "conv2"), ("frames", "embed_positions")];

/// Names in OpenAI's files.
const OPENAI: Table = &[
    ("conv1", "conv1"),
    ("conv2", "conv2"),
    ("frames", "=positional_embedding"),
    ("tokens", "token_embedding"),
    ("positions", "=positional_embedding"),
    ("blocks.#.attention.norm", "blocks.#.attn_ln"),
    ("blocks.#.attention.q", "blocks.#.attn.query"),
    ("blocks.#.attention.k", "blocks.#.attn.key"),
    ("blocks.#.attention.v", "blocks.#.attn.value"),
    ("blocks.#.attention.out", "blocks.#.attn.out"),
    ("blocks.#.cross.norm", "blocks.#.cross_attn_ln"),
    ("blocks.#.cross.q", "blocks.#.cross_attn.query"),
    ("blocks.#.cross.k", "blocks.#.cross_attn.key"),
    ("blocks.#.cross.v", "blocks.#.cross_attn.value"),
    ("blocks.#.cross.out", "blocks.#.cross_attn.out"),
    ("blocks.#.mlp.norm", "blocks.#.mlp_ln"),
    ("blocks.#.mlp.up", "blocks.#.mlp.0"),
    ("blocks.#.mlp.down", "blocks.#.mlp.2"),
    ("last_norm", "ln"),
    ("last_norm", "ln_post"),
];

/// Width of a head in all of OpenAI's models, whose files do not have it among their tensors.
const HEAD_DIM: usize = 64;
/// Tokens of the vocabulary in English; others have one more, and several languages.
const ENGLISH: usize = 51864;
/// Tokens of times.
const TIMES: u32 = 1501;
/// The token of a space.
const SPACE: u32 = 220;

/// Sizes of the two sides.
struct Whisper {
    pair: Pair,
    mels: usize,
    frames: usize,
    context: usize,
}

impl Whisper {
    fn embeddings(&self) -> [EmbeddingConfig; 2] {
        [
            EmbeddingConfig { rows: true, ..EmbeddingConfig::default() },
            EmbeddingConfig { positions: Positions::Learned, context: self.context, ..EmbeddingConfig::default() },
        ]
    }

    fn architecture(&self, sides: [Side; 2], names: &'static [Table], writing: Writing) -> Result<Architecture> {
        let [encoder, decoder] = sides.map(|side| self.pair.parts(side));
        let zeros: &'static [&'static str] = &[".k.bias"];
        let encoder = Architecture {
            front: Some(Front::Sound { mels: self.mels, frames: self.frames }),
            zeros,
            ..Architecture::encoder("whisper", encoder?, names, PREFIXES[0], self.frames)
        };
        let decoder = Architecture::decoder("whisper", decoder?, names, PREFIXES[1], self.context);
        Ok(Architecture { encoder: Some(Box::new(encoder)), zeros, writing, ..decoder })
    }
}

fn pair(vocab: usize, width: usize, activation: Activation) -> Pair {
    Pair { vocab, width, wiring: BlockWiring::PreNorm, norm: (NormKind::Layer, 1e-5), activation, last_norm: true }
}

fn head() -> HeadConfig {
    HeadConfig { tied: true, order: Order::OutIn, ..HeadConfig::default() }
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, generation: Settings<'_>) -> Result<Architecture> {
    super::needs(settings, "scale_embedding", false, false)?;
    let whisper = Whisper {
        pair: pair(settings.size(&["vocab_size"])?, settings.size(&["d_model"])?, activation(settings, &["activation_function"], "gelu")?),
        mels: settings.size_if(&["num_mel_bins"])?.unwrap_or(80),
        frames: settings.size_if(&["max_source_positions"])?.unwrap_or(1500),
        context: settings.size_if(&["max_target_positions"])?.unwrap_or(448),
    };
    let [read, written] = whisper.embeddings();
    let sides = [Side::of_settings(settings, "encoder", read, None)?, Side::of_settings(settings, "decoder", written, Some(head()))?];
    let mut writing = Writing::of_settings(settings, generation)?;
    // Language, task and the token that leaves times out, where the files say so.
    let forced = generation.0.get("forced_decoder_ids").or_else(|| settings.0.get("forced_decoder_ids"));
    writing.start.extend(forced.and_then(|x| x.as_array()).into_iter().flatten().filter_map(|pair| u32::try_from(pair[1].as_u64()?).ok()));
    let no_times = generation.0.get("no_timestamps_token_id").and_then(|id| u32::try_from(id.as_u64()?).ok());
    writing.start.extend(no_times.filter(|id| !writing.start.contains(id)));
    whisper.architecture(sides, &[NAMES, FRONT], writing)
}

/// Of OpenAI's file: sizes are those of its tensors.
///
/// # Errors
/// When a tensor is missing.
pub fn of_tensors(archive: &dyn Archive) -> Result<Architecture> {
    let tensors = archive.list();
    let shape = |name: &str, dims: usize| {
        let found = tensors.iter().find(|tensor| tensor.name == name && tensor.shape.len() == dims);
        let missing = || Error::Setting { name: name.to_owned(), value: "null".to_owned(), reason: "such a tensor is missing".to_owned() };
        found.map(|tensor| tensor.shape.clone()).ok_or_else(missing)
    };
    let layers =
        |side: &str| (0..tensors.len()).take_while(|number| archive.has(&format!("{side}.blocks.{number}.attn.query.weight"))).count();
    let (conv, tokens) = (shape("encoder.conv1.weight", 3)?, shape("decoder.token_embedding.weight", 2)?);
    let (width, vocab) = (tokens[1], tokens[0]);
    let whisper = Whisper {
        pair: pair(vocab, width, Activation::Gelu),
        mels: conv[1],
        frames: shape("encoder.positional_embedding", 2)?[0],
        context: shape("decoder.positional_embedding", 2)?[0],
    };
    let side = |name: &str, embedding, head| {
        let hidden = shape(&format!("{name}.blocks.0.mlp.0.weight"), 2)?[0];
        Ok::<_, Error>(Side { layers: layers(name), heads: (width / HEAD_DIM).max(1), hidden, embedding, head })
    };
    let [read, written] = whisper.embeddings();
    let sides = [side("encoder", read, None)?, side("decoder", written, Some(head()))?];
    whisper.architecture(sides, &[OPENAI], Special::of(vocab).writing())
}

/// The special tokens of OpenAI's vocabularies: end, start, languages, two tasks, three others, one that leaves times out, times.
#[derive(Debug, Clone, Copy)]
struct Special {
    end: u32,
    languages: u32,
    vocab: u32,
}

impl Special {
    fn of(vocab: usize) -> Self {
        let end = if vocab == ENGLISH { 50256 } else { 50257 };
        Self { end, languages: (vocab as u32).saturating_sub(end + 8 + TIMES), vocab: vocab as u32 }
    }

    fn start(self) -> u32 {
        self.end + 1
    }

    fn transcribe(self) -> u32 {
        self.start() + self.languages + 2
    }

    fn no_times(self) -> u32 {
        self.start() + self.languages + 6
    }

    /// How models write: in English, without times.
    fn writing(self) -> Writing {
        let start = match self.vocab as usize {
            ENGLISH => vec![self.start(), self.no_times()],
            _ => vec![self.start(), self.start() + 1, self.transcribe(), self.no_times()],
        };
        Writing {
            start,
            forced: None,
            suppressed: (self.start()..self.vocab).collect(),
            suppressed_first: vec![SPACE, self.end],
            ends: vec![self.end],
        }
    }
}

/// The file of tokens that OpenAI's package has for a model.
pub(crate) fn tokens_file(model: &Architecture) -> &'static str {
    if model.parts.embedding.vocab == ENGLISH { "gpt2.tiktoken" } else { "multilingual.tiktoken" }
}

/// Special tokens by name, of OpenAI's vocabularies.
pub(crate) fn special_tokens(model: &Architecture) -> Vec<(u32, &'static str)> {
    let special = Special::of(model.parts.embedding.vocab);
    vec![
        (special.end, "<|endoftext|>"),
        (special.start(), "<|startoftranscript|>"),
        (special.start() + 1, "<|en|>"),
        (special.transcribe(), "<|transcribe|>"),
        (special.no_times(), "<|notimestamps|>"),
    ]
}
