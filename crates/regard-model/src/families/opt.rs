//! OPT: learned positions whose table begins with two unused rows, layer norms before branches, ReLU, tied.

use super::{Architecture, Decoder, Sizes, Table, activation, divides, needs};
use crate::error::{Error, Result};
use crate::settings::Settings;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Positions;
use regard_nn::layers::stack::BlockWiring;
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig};
use regard_nn::tensors::Order;

/// Names in files of transformers.
const NAMES: Table = &[
    ("tokens", "embed_tokens"),
    ("positions", "embed_positions"),
    ("blocks.#.attention.norm", "layers.#.self_attn_layer_norm"),
    ("blocks.#.attention.q", "layers.#.self_attn.q_proj"),
    ("blocks.#.attention.k", "layers.#.self_attn.k_proj"),
    ("blocks.#.attention.v", "layers.#.self_attn.v_proj"),
    ("blocks.#.attention.out", "layers.#.self_attn.out_proj"),
    ("blocks.#.mlp.norm", "layers.#.final_layer_norm"),
    ("blocks.#.mlp.up", "layers.#.fc1"),
    ("blocks.#.mlp.down", "layers.#.fc2"),
    ("last_norm", "final_layer_norm"),
    ("head", "/lm_head"),
];

/// Rows of the table of positions before that of position 0.
const UNUSED_ROWS: usize = 2;

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>) -> Result<Architecture> {
    needs(settings, "do_layer_norm_before", true, true)?;
    needs(settings, "_remove_final_layer_norm", false, false)?;
    let (width, bias) = (settings.size(&["hidden_size"])?, settings.flag("enable_bias", true));
    let table = settings.size_if(&["word_embed_proj_dim"])?.unwrap_or(width);
    if table != width {
        let reason = format!("only the hidden size, {width}, is supported");
        return Err(Error::Setting { name: "word_embed_proj_dim".to_owned(), value: table.to_string(), reason });
    }
    let sizes = Sizes {
        width,
        heads: settings.size(&["num_attention_heads"])?,
        layers: settings.layers(&["num_hidden_layers"])?,
        vocab: settings.size(&["vocab_size"])?,
        hidden: settings.size(&["ffn_dim"])?,
    };
    divides("num_attention_heads", width, sizes.heads)?;
    let context = settings.size_if(&["max_position_embeddings"])?.unwrap_or(2048);
    let decoder = Decoder {
        sizes,
        wiring: BlockWiring::PreNorm,
        norm: (NormKind::Layer, 1e-5),
        attention: AttentionConfig {
            bias,
            out_bias: bias,
            projection: Projection::Separate,
            order: Order::OutIn,
            ..AttentionConfig::new(width, sizes.heads)
        },
        windows: Vec::new(),
        mlp: MlpConfig {
            bias,
            order: Order::OutIn,
            ..MlpConfig::new(width, sizes.hidden, activation(settings, &["activation_function"], "relu")?)
        },
        embedding: EmbeddingConfig { positions: Positions::Learned, context, first_position: UNUSED_ROWS, ..EmbeddingConfig::default() },
        head: HeadConfig { tied: settings.flag("tie_word_embeddings", true), ..HeadConfig::default() },
    };
    Ok(Architecture::decoder("opt", decoder.parts()?, &[NAMES], &["model.decoder.", "decoder.", ""], context))
}
