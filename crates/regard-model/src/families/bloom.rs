//! BLOOM: ALiBi, a norm of the embedding, q, k and v fused head by head, GELU by tanh, tied.

use super::{Architecture, Decoder, Sizes, Table, divides, needs};
use crate::error::Result;
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::stack::BlockWiring;
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig};
use regard_nn::tensors::Order;

/// Names in files of transformers.
const NAMES: Table = &[
    ("tokens", "word_embeddings"),
    ("embedding_norm", "word_embeddings_layernorm"),
    ("blocks.#.attention.norm", "h.#.input_layernorm"),
    ("blocks.#.attention.qkv", "h.#.self_attention.query_key_value"),
    ("blocks.#.attention.out", "h.#.self_attention.dense"),
    ("blocks.#.mlp.norm", "h.#.post_attention_layernorm"),
    ("blocks.#.mlp.up", "h.#.mlp.dense_h_to_4h"),
    ("blocks.#.mlp.down", "h.#.mlp.dense_4h_to_h"),
    ("last_norm", "ln_f"),
    ("head", "/lm_head"),
];

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>) -> Result<Architecture> {
    needs(settings, "apply_residual_connection_post_layernorm", false, false)?;
    let width = settings.size(&["hidden_size", "n_embed"])?;
    let sizes = Sizes {
        width,
        heads: settings.size(&["n_head", "num_attention_heads"])?,
        layers: settings.layers(&["n_layer", "num_hidden_layers"])?,
        vocab: settings.size(&["vocab_size"])?,
        hidden: 4 * width,
    };
    divides("n_head", width, sizes.heads)?;
    let norm = (NormKind::Layer, settings.epsilon(&["layer_norm_epsilon"], 1e-5)?);
    let decoder = Decoder {
        sizes,
        wiring: BlockWiring::PreNorm,
        norm,
        attention: AttentionConfig {
            bias: true,
            out_bias: true,
            projection: Projection::PerHead,
            order: Order::OutIn,
            alibi: true,
            ..AttentionConfig::new(width, sizes.heads)
        },
        windows: Vec::new(),
        mlp: MlpConfig { bias: true, order: Order::OutIn, ..MlpConfig::new(width, sizes.hidden, Activation::GeluTanh) },
        embedding: EmbeddingConfig { norm: Some(norm), ..EmbeddingConfig::default() },
        head: HeadConfig { tied: settings.flag("tie_word_embeddings", true), ..HeadConfig::default() },
    };
    let context = settings.size_if(&["seq_length"])?.unwrap_or(2048);
    Ok(Architecture::decoder("bloom", decoder.parts()?, &[NAMES], &["transformer.", ""], context))
}
