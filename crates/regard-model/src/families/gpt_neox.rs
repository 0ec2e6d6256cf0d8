//! GPT-NeoX and Pythia: a part of each head is rotated, attention and network read the same rows. Files of transformers fuse q, k and v
//! head by head, GGUF's one after another.

use super::{Architecture, Sizes, Table, activation, divides, partial_rotary, rotary, rotated};
use crate::error::Result;
use crate::formats::{Archive, Gguf};
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Rotary;
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::Order;

/// Names in files of transformers.
pub const NAMES: Table = &[
    ("tokens", "embed_in"),
    ("blocks.#.attention.norm", "layers.#.input_layernorm"),
    ("blocks.#.attention.qkv", "layers.#.attention.query_key_value"),
    ("blocks.#.attention.out", "layers.#.attention.dense"),
    ("blocks.#.mlp.norm", "layers.#.post_attention_layernorm"),
    ("blocks.#.mlp.up", "layers.#.mlp.dense_h_to_4h"),
    ("blocks.#.mlp.down", "layers.#.mlp.dense_4h_to_h"),
    ("last_norm", "final_layer_norm"),
    ("head", "/embed_out"),
];

struct GptNeoX {
    sizes: Sizes,
    eps: f64,
    rotary: Rotary,
    bias: bool,
    parallel: bool,
    activation: Activation,
    projection: Projection,
    tied: bool,
}

fn parts(s: &GptNeoX) -> TransformerConfig {
    let Sizes { vocab, width, layers, heads, hidden } = s.sizes;
    let attention = AttentionConfig {
        bias: s.bias,
        out_bias: s.bias,
        order: Order::OutIn,
        projection: s.projection,
        rotary: Some(s.rotary),
        ..AttentionConfig::new(width, heads)
    };
    let mlp = MlpConfig { bias: true, order: Order::OutIn, ..MlpConfig::new(width, hidden, s.activation) };
    let (wiring, norm) = (if s.parallel { BlockWiring::Parallel } else { BlockWiring::PreNorm }, (NormKind::Layer, s.eps));
    let block = |number: usize| BlockConfig::new(format!("blocks.{number}"), wiring, norm, attention, mlp);
    TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab, width, ..EmbeddingConfig::default() },
        blocks: (0..layers).map(block).collect(),
        last_norm: Some(norm),
        head: Some(HeadConfig { tied: s.tied, order: Order::OutIn, ..HeadConfig::default() }),
    }
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    let sizes = Sizes::of_settings(settings)?;
    let head_dim = divides("num_attention_heads", sizes.width, sizes.heads)?;
    let model = GptNeoX {
        sizes,
        eps: settings.epsilon(&["layer_norm_eps"], 1e-5)?,
        rotary: Rotary { dims: Some(rotated(partial_rotary(settings, 0.25)?, head_dim)), ..rotary(settings, 1e4)? },
        bias: settings.flag("attention_bias", true),
        parallel: settings.flag("use_parallel_residual", true),
        activation: activation(settings, &["hidden_act"], "gelu")?,
        projection: Projection::PerHead,
        tied: !archive.has("embed_out.weight") || settings.flag("tie_word_embeddings", false),
    };
    let context = settings.size_if(&["max_position_embeddings"])?.unwrap_or(2048);
    Ok(Architecture::decoder("gpt_neox", parts(&model), &[NAMES], &["gpt_neox.", ""], context))
}

/// Of a GGUF file.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_gguf(settings: Settings<'_>, file: &Gguf) -> Result<Architecture> {
    let sizes = Sizes::of_gguf(settings)?;
    let head_dim = divides("attention.head_count", sizes.width, sizes.heads)?;
    let model = GptNeoX {
        sizes,
        eps: settings.epsilon(&["attention.layer_norm_epsilon"], 1e-5)?,
        rotary: Rotary {
            dims: Some(settings.size_if(&["rope.dimension_count"])?.unwrap_or(head_dim).min(head_dim) / 2 * 2),
            ..Rotary::rounded(settings.number(&["rope.freq_base"], 1e4)?)
        },
        bias: file.has("blk.0.attn_qkv.bias"),
        parallel: settings.flag("use_parallel_residual", true),
        activation: Activation::Gelu,
        projection: Projection::Joined,
        tied: !file.has("output.weight"),
    };
    Ok(Architecture::gguf_decoder("gpt_neox", parts(&model), settings.size_if(&["context_length"])?.unwrap_or(2048)))
}
