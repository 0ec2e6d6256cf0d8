//! StarCoder 2: rotary positions, layer norms before branches, grouped heads, a window, two layers with GELU by tanh, biases everywhere.

use super::{Architecture, Decoder, Sizes, Table, activation, llama, rotary};
use crate::error::Result;
use crate::formats::Archive;
use crate::settings::Settings;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::stack::BlockWiring;
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig};
use regard_nn::tensors::Order;

/// Names in files of transformers; the first table with a row counts.
const NAMES: Table = &[
    ("blocks.#.mlp.norm", "layers.#.post_attention_layernorm"),
    ("blocks.#.mlp.up", "layers.#.mlp.c_fc"),
    ("blocks.#.mlp.down", "layers.#.mlp.c_proj"),
    ("head", "/lm_head"),
];
/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    let (sizes, bias) = (Sizes::of_settings(settings)?, settings.flag("use_bias", true));
    let activation = activation(settings, &["hidden_act"], "gelu_pytorch_tanh")?;
    let decoder = Decoder {
        sizes,
        wiring: BlockWiring::PreNorm,
        norm: (NormKind::Layer, settings.epsilon(&["norm_epsilon"], 1e-5)?),
        attention: AttentionConfig {
            kv_heads: settings.size_if(&["num_key_value_heads"])?.unwrap_or(sizes.heads),
            bias,
            out_bias: bias,
            projection: Projection::Separate,
            order: Order::OutIn,
            rotary: Some(rotary(settings, 1e4)?),
            ..AttentionConfig::new(sizes.width, sizes.heads)
        },
        windows: llama::windows(settings, sizes.layers, true)?,
        mlp: MlpConfig { bias, order: Order::OutIn, ..MlpConfig::new(sizes.width, sizes.hidden, activation) },
        embedding: EmbeddingConfig::default(),
        head: HeadConfig { tied: !archive.has("lm_head.weight") || settings.flag("tie_word_embeddings", true), ..HeadConfig::default() },
    };
    let context = settings.size_if(&["max_position_embeddings"])?.unwrap_or(4096);
    Ok(Architecture::decoder("starcoder2", decoder.parts()?, &[NAMES, llama::SHARED_NAMES], &["model.", ""], context))
}
