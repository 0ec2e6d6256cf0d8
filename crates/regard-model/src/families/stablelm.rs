//! StableLM: as Llama, with layer norms, a rotated part of each head and, in some files, attention and network side by side.

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

/// The norm of the network, beside names that Llama has too.
const IN_SEQUENCE: Table = &[("blocks.#.mlp.norm", "layers.#.post_attention_layernorm"), ("head", "/lm_head")];
const IN_PARALLEL: Table = &[("blocks.#.mlp.norm", "layers.#.input_layernorm"), ("head", "/lm_head")];

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    needs(settings, "qk_layernorm", false, false)?;
    let (sizes, parallel) = (Sizes::of_settings(settings)?, settings.flag("use_parallel_residual", false));
    let head_dim = divides("num_attention_heads", sizes.width, sizes.heads)?;
    let activation = activation(settings, &["hidden_act"], "silu")?;
    let decoder = Decoder {
        sizes,
        wiring: if parallel { BlockWiring::Parallel } else { BlockWiring::PreNorm },
        norm: (NormKind::Layer, settings.epsilon(&["layer_norm_eps"], 1e-5)?),
        attention: AttentionConfig {
            kv_heads: settings.size_if(&["num_key_value_heads"])?.unwrap_or(sizes.heads),
            bias: settings.flag("use_qkv_bias", false),
            projection: Projection::Separate,
            order: Order::OutIn,
            rotary: Some(Rotary { dims: Some(rotated(partial_rotary(settings, 0.25)?, head_dim)), ..rotary(settings, 1e4)? }),
            ..AttentionConfig::new(sizes.width, sizes.heads)
        },
        windows: Vec::new(),
        mlp: MlpConfig { gated: true, order: Order::OutIn, ..MlpConfig::new(sizes.width, sizes.hidden, activation) },
        embedding: EmbeddingConfig::default(),
        head: HeadConfig { tied: !archive.has("lm_head.weight") || settings.flag("tie_word_embeddings", false), ..HeadConfig::default() },
    };
    let context = settings.size_if(&["max_position_embeddings"])?.unwrap_or(4096);
    let names: &'static [Table] = if parallel { &[llama::SHARED_NAMES, IN_PARALLEL] } else { &[llama::SHARED_NAMES, IN_SEQUENCE] };
    Ok(Architecture::decoder("stablelm", decoder.parts()?, names, &["model.", ""], context))
}
