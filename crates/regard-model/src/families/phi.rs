//! Phi 1 and 2: attention and network read the same rows by one norm, a part of each head is rotated, biases everywhere. Phi 3: as Llama,
//! with q, k and v in one matrix, gate and layer up in another, and a window.

use super::{Architecture, Decoder, Sizes, Table, activation, divides, llama, needs, partial_rotary, rotary, rotated};
use crate::error::Result;
use crate::formats::Archive;
use crate::settings::Settings;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Rotary;
use regard_nn::layers::stack::BlockWiring;
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig};
use regard_nn::tensors::Order;

/// Names in files of Phi 1 and 2.
const NAMES: Table = &[
    ("tokens", "embed_tokens"),
    ("blocks.#.attention.norm", "layers.#.input_layernorm"),
    ("blocks.#.attention.q", "layers.#.self_attn.q_proj"),
    ("blocks.#.attention.k", "layers.#.self_attn.k_proj"),
    ("blocks.#.attention.v", "layers.#.self_attn.v_proj"),
    ("blocks.#.attention.out", "layers.#.self_attn.dense"),
    ("blocks.#.mlp.norm", "layers.#.input_layernorm"),
    ("blocks.#.mlp.up", "layers.#.mlp.fc1"),
    ("blocks.#.mlp.down", "layers.#.mlp.fc2"),
    ("last_norm", "final_layernorm"),
    ("head", "/lm_head"),
];

/// Names in files of Phi 3 that Llama does not have.
const NAMES_3: Table = &[
    ("blocks.#.attention.qkv", "layers.#.self_attn.qkv_proj"),
    ("blocks.#.mlp.gate_up", "layers.#.mlp.gate_up_proj"),
    ("blocks.#.mlp.norm", "layers.#.post_attention_layernorm"),
    ("head", "/lm_head"),
];

/// Grouped heads with a rotated part, by settings that both have.
fn attention(settings: Settings<'_>, sizes: Sizes, share: f64) -> Result<AttentionConfig> {
    let head_dim = divides("num_attention_heads", sizes.width, sizes.heads)?;
    Ok(AttentionConfig {
        kv_heads: settings.size_if(&["num_key_value_heads"])?.unwrap_or(sizes.heads),
        order: Order::OutIn,
        rotary: Some(Rotary { dims: Some(rotated(partial_rotary(settings, share)?, head_dim)), ..rotary(settings, 1e4)? }),
        ..AttentionConfig::new(sizes.width, sizes.heads)
    })
}

/// Phi 1 and 2, of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>) -> Result<Architecture> {
    needs(settings, "qk_layernorm", false, false)?;
    let sizes = Sizes::of_settings(settings)?;
    let activation = activation(settings, &["hidden_act"], "gelu_new")?;
    let attention = attention(settings, sizes, 0.5)?;
    let decoder = Decoder {
        sizes,
        wiring: BlockWiring::Parallel,
        norm: (NormKind::Layer, settings.epsilon(&["layer_norm_eps"], 1e-5)?),
        attention: AttentionConfig { bias: true, out_bias: true, projection: Projection::Separate, ..attention },
        windows: Vec::new(),
        mlp: MlpConfig { bias: true, order: Order::OutIn, ..MlpConfig::new(sizes.width, sizes.hidden, activation) },
        embedding: EmbeddingConfig::default(),
        head: HeadConfig { bias: true, tied: settings.flag("tie_word_embeddings", false), ..HeadConfig::default() },
    };
    let context = settings.size_if(&["max_position_embeddings"])?.unwrap_or(2048);
    Ok(Architecture::decoder("phi", decoder.parts()?, &[NAMES], &["model.", ""], context))
}

/// Phi 3, of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings_3(settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    let sizes = Sizes::of_settings(settings)?;
    let activation = activation(settings, &["hidden_act"], "silu")?;
    let decoder = Decoder {
        sizes,
        wiring: BlockWiring::PreNorm,
        norm: (NormKind::Rms, settings.epsilon(&["rms_norm_eps"], 1e-5)?),
        attention: AttentionConfig { projection: Projection::Joined, ..attention(settings, sizes, 1.0)? },
        windows: llama::windows(settings, sizes.layers, true)?,
        mlp: MlpConfig { gated: true, joined: true, order: Order::OutIn, ..MlpConfig::new(sizes.width, sizes.hidden, activation) },
        embedding: EmbeddingConfig::default(),
        head: HeadConfig { tied: !archive.has("lm_head.weight") || settings.flag("tie_word_embeddings", false), ..HeadConfig::default() },
    };
    let context = settings.size_if(&["max_position_embeddings"])?.unwrap_or(4096);
    Ok(Architecture::decoder("phi3", decoder.parts()?, &[llama::SHARED_NAMES, NAMES_3], &["model.", ""], context))
}
