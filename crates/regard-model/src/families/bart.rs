//! BART and Marian: encoder and decoder with norms of sums, biases, a head that is tied and has a bias. BART's positions are learned and
//! begin in row 2, Marian's are waves.

use super::{Architecture, Table, Writing, activation, divides};
use crate::error::Result;
use crate::settings::Settings;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Positions;
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::Order;

/// Names of both sides, which Whisper has too.
pub(super) const NAMES: Table = &[
    ("tokens", "embed_tokens"),
    ("tokens", "/model.shared"),
    ("tokens", "/shared"),
    ("positions", "embed_positions"),
    ("embedding_norm", "layernorm_embedding"),
    ("blocks.#.attention.norm", "layers.#.self_attn_layer_norm"),
    ("blocks.#.attention.q", "layers.#.self_attn.q_proj"),
    ("blocks.#.attention.k", "layers.#.self_attn.k_proj"),
    ("blocks.#.attention.v", "layers.#.self_attn.v_proj"),
    ("blocks.#.attention.out", "layers.#.self_attn.out_proj"),
    ("blocks.#.cross.norm", "layers.#.encoder_attn_layer_norm"),
    ("blocks.#.cross.q", "layers.#.encoder_attn.q_proj"),
    ("blocks.#.cross.k", "layers.#.encoder_attn.k_proj"),
    ("blocks.#.cross.v", "layers.#.encoder_attn.v_proj"),
    ("blocks.#.cross.out", "layers.#.encoder_attn.out_proj"),
    ("blocks.#.mlp.norm", "layers.#.final_layer_norm"),
    ("blocks.#.mlp.up", "layers.#.fc1"),
    ("blocks.#.mlp.down", "layers.#.fc2"),
    ("last_norm", "layer_norm"),
    ("head", "/lm_head"),
    ("head", "=/final_logits_bias"),
];

/// Prefixes of the two sides, which Whisper has too.
pub(super) const PREFIXES: [&[&str]; 2] = [&["model.encoder.", "encoder."], &["model.decoder.", "decoder."]];

/// Rows of a learned table before that of the first position.
const UNUSED_ROWS: usize = 2;

/// Encoder and decoder of a file with the settings that BART, Marian and Whisper share.
pub(super) struct Pair {
    pub(super) vocab: usize,
    pub(super) width: usize,
    pub(super) wiring: BlockWiring,
    pub(super) norm: (NormKind, f64),
    pub(super) activation: regard_nn::layers::activation::Activation,
    pub(super) last_norm: bool,
}

/// What one side has of its own.
pub(super) struct Side {
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) hidden: usize,
    pub(super) embedding: EmbeddingConfig,
    /// The head of a decoder.
    pub(super) head: Option<HeadConfig>,
}

impl Side {
    /// Layers, heads and units of a side from a `config.json`.
    pub(super) fn of_settings(settings: Settings<'_>, name: &str, embedding: EmbeddingConfig, head: Option<HeadConfig>) -> Result<Self> {
        Ok(Self {
            layers: settings.layers(&[&format!("{name}_layers")])?,
            heads: settings.size(&[&format!("{name}_attention_heads")])?,
            hidden: settings.size(&[&format!("{name}_ffn_dim")])?,
            embedding,
            head,
        })
    }
}

impl Pair {
    pub(super) fn parts(&self, side: Side) -> Result<TransformerConfig> {
        divides("attention_heads", self.width, side.heads)?;
        let attention = AttentionConfig {
            bias: true,
            out_bias: true,
            projection: Projection::Separate,
            order: Order::OutIn,
            ..AttentionConfig::new(self.width, side.heads)
        };
        let mlp = MlpConfig { bias: true, order: Order::OutIn, ..MlpConfig::new(self.width, side.hidden, self.activation) };
        let block = |number: usize| BlockConfig {
            cross: side.head.is_some(),
            ..BlockConfig::new(format!("blocks.{number}"), self.wiring, self.norm, attention, mlp)
        };
        Ok(TransformerConfig {
            width: self.width,
            embedding: EmbeddingConfig { vocab: self.vocab, width: self.width, ..side.embedding },
            blocks: (0..side.layers).map(block).collect(),
            last_norm: self.last_norm.then_some(self.norm),
            head: side.head,
        })
    }
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(name: &str, settings: Settings<'_>, generation: Settings<'_>) -> Result<Architecture> {
    super::needs(settings, "share_encoder_decoder_embeddings", true, true)?;
    super::needs(settings, "tie_word_embeddings", true, true)?;
    let (bart, norm) = (name == "bart", (NormKind::Layer, 1e-5));
    let width = settings.size(&["d_model"])?;
    let context = settings.size(&["max_position_embeddings"])?;
    let pair = Pair {
        vocab: settings.size(&["vocab_size"])?,
        width,
        wiring: BlockWiring::PostNorm,
        norm,
        activation: activation(settings, &["activation_function"], "gelu")?,
        last_norm: false,
    };
    let embedding = EmbeddingConfig {
        positions: if bart { Positions::Learned } else { Positions::SinusoidalHalves },
        context,
        first_position: if bart { UNUSED_ROWS } else { 0 },
        scale: settings.flag("scale_embedding", false).then(|| (width as f64).sqrt()),
        norm: bart.then_some(norm),
        ..EmbeddingConfig::default()
    };
    let head = HeadConfig { tied: true, bias: true, order: Order::OutIn, ..HeadConfig::default() };
    let encoder = pair.parts(Side::of_settings(settings, "encoder", embedding.clone(), None)?)?;
    let decoder = pair.parts(Side::of_settings(settings, "decoder", embedding, Some(head))?)?;
    let encoder = Architecture::encoder(name, encoder, &[NAMES], PREFIXES[0], context);
    let decoder = Architecture::decoder(name, decoder, &[NAMES], PREFIXES[1], context);
    Ok(Architecture { encoder: Some(Box::new(encoder)), writing: Writing::of_settings(settings, generation)?, ..decoder })
}
