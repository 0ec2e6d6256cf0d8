//! GPT-J: attention and network read the same rows by one norm; neighbouring elements of the first part of each head are rotated.

use super::{Architecture, Decoder, Sizes, Table, activation, divides};
use crate::error::Result;
use crate::settings::Settings;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::{Pairs, Rotary};
use regard_nn::layers::stack::BlockWiring;
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig};
use regard_nn::tensors::Order;

/// Names in files of transformers.
const NAMES: Table = &[
    ("tokens", "wte"),
    ("blocks.#.attention.norm", "h.#.ln_1"),
    ("blocks.#.attention.q", "h.#.attn.q_proj"),
    ("blocks.#.attention.k", "h.#.attn.k_proj"),
    ("blocks.#.attention.v", "h.#.attn.v_proj"),
    ("blocks.#.attention.out", "h.#.attn.out_proj"),
    ("blocks.#.mlp.norm", "h.#.ln_1"),
    ("blocks.#.mlp.up", "h.#.mlp.fc_in"),
    ("blocks.#.mlp.down", "h.#.mlp.fc_out"),
    ("last_norm", "ln_f"),
    ("head", "/lm_head"),
];

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>) -> Result<Architecture> {
    let width = settings.size(&["n_embd", "hidden_size"])?;
    let sizes = Sizes {
        width,
        heads: settings.size(&["n_head", "num_attention_heads"])?,
        layers: settings.layers(&["n_layer", "num_hidden_layers"])?,
        vocab: settings.size(&["vocab_size"])?,
        hidden: settings.size_if(&["n_inner"])?.unwrap_or(4 * width),
    };
    let head_dim = divides("n_head", width, sizes.heads)?;
    let dims = settings.size_if(&["rotary_dim"])?.map(|dims| dims.min(head_dim) / 2 * 2);
    let attention = AttentionConfig {
        projection: Projection::Separate,
        order: Order::OutIn,
        rotary: Some(Rotary { dims, pairs: Pairs::Interleaved, ..Rotary::rounded(1e4) }),
        ..AttentionConfig::new(width, sizes.heads)
    };
    let activation = activation(settings, &["activation_function"], "gelu_new")?;
    let decoder = Decoder {
        sizes,
        wiring: BlockWiring::Parallel,
        norm: (NormKind::Layer, settings.epsilon(&["layer_norm_epsilon"], 1e-5)?),
        attention,
        windows: Vec::new(),
        mlp: MlpConfig { bias: true, order: Order::OutIn, ..MlpConfig::new(width, sizes.hidden, activation) },
        embedding: EmbeddingConfig::default(),
        head: HeadConfig { bias: true, tied: settings.flag("tie_word_embeddings", false), ..HeadConfig::default() },
    };
    let context = settings.size_if(&["n_positions", "max_position_embeddings"])?.unwrap_or(2048);
    Ok(Architecture::decoder("gptj", decoder.parts()?, &[NAMES], &["transformer.", ""], context))
}
