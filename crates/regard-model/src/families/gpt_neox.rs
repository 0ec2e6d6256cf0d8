//! GPT-NeoX and Pythia: a part of each head is rotated, attention and network read the same rows. Files of transformers fuse q, k and v head by head,
//! GGUF's one after another.

use super::{GGUF_DECODER, Recipe, Table, activation, divides, rotary};
use crate::archives::{Archive, Gguf};
use crate::error::Result;
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

struct Sizes {
    vocab: usize,
    width: usize,
    layers: usize,
    heads: usize,
    hidden: usize,
    eps: f64,
    rotary: Rotary,
    bias: bool,
    parallel: bool,
    activation: Activation,
    projection: Projection,
    tied: bool,
}

fn parts(s: &Sizes) -> TransformerConfig {
    let attention = AttentionConfig {
        bias: s.bias,
        out_bias: s.bias,
        order: Order::OutIn,
        projection: s.projection,
        rotary: Some(s.rotary),
        ..AttentionConfig::new(s.width, s.heads)
    };
    let mlp = MlpConfig {
        width: s.width,
        hidden: s.hidden,
        activation: s.activation,
        gated: false,
        joined: false,
        bias: true,
        order: Order::OutIn,
    };
    let block = |number: usize| BlockConfig {
        name: format!("blocks.{number}"),
        wiring: if s.parallel { BlockWiring::Parallel } else { BlockWiring::PreNorm },
        norm: NormKind::Layer,
        eps: s.eps,
        attention,
        cross: false,
        mlp,
        dropout: 0.0,
    };
    TransformerConfig {
        width: s.width,
        embedding: EmbeddingConfig { vocab: s.vocab, width: s.width, ..EmbeddingConfig::default() },
        blocks: (0..s.layers).map(block).collect(),
        last_norm: Some((NormKind::Layer, s.eps)),
        head: Some(HeadConfig { tied: s.tied, order: Order::OutIn, ..HeadConfig::default() }),
    }
}

/// The even number of a head's numbers that are turned.
fn turned(share: f64, head_dim: usize) -> usize {
    ((head_dim as f64 * share) as usize).min(head_dim) / 2 * 2
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, archive: &dyn Archive) -> Result<Recipe> {
    let (width, heads) = (settings.size(&["hidden_size"])?, settings.size(&["num_attention_heads"])?);
    let head_dim = divides("num_attention_heads", width, heads)?;
    let share = settings.number(&["rotary_pct", "partial_rotary_factor"], 0.25)?;
    let share = match settings.within("rope_parameters") {
        Some(inner) => inner.number(&["partial_rotary_factor"], share)?,
        None => share,
    };
    let sizes = Sizes {
        vocab: settings.size(&["vocab_size"])?,
        width,
        layers: settings.layers(&["num_hidden_layers"])?,
        heads,
        hidden: settings.size(&["intermediate_size"])?,
        eps: settings.number(&["layer_norm_eps"], 1e-5)?,
        rotary: Rotary { dims: Some(turned(share, head_dim)), ..rotary(settings, 1e4)? },
        bias: settings.flag("attention_bias", true),
        parallel: settings.flag("use_parallel_residual", true),
        activation: activation(settings, &["hidden_act"], "gelu")?,
        projection: Projection::PerHead,
        tied: !archive.has("embed_out.weight") || settings.flag("tie_word_embeddings", false),
    };
    Ok(Recipe {
        family: "gpt_neox".to_owned(),
        parts: parts(&sizes),
        names: NAMES,
        prefixes: &["gpt_neox.", ""],
        causal: true,
        context: settings.size_if(&["max_position_embeddings"])?.unwrap_or(2048),
        gains_plus_one: false,
    })
}

/// Of a GGUF file.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_gguf(settings: Settings<'_>, file: &Gguf) -> Result<Recipe> {
    let (width, heads) = (settings.size(&["embedding_length"])?, settings.size(&["attention.head_count"])?);
    let head_dim = divides("attention.head_count", width, heads)?;
    let sizes = Sizes {
        vocab: settings.size(&["vocab_size"])?,
        width,
        layers: settings.layers(&["block_count"])?,
        heads,
        hidden: settings.size(&["feed_forward_length"])?,
        eps: settings.number(&["attention.layer_norm_epsilon"], 1e-5)?,
        rotary: Rotary {
            dims: Some(settings.size_if(&["rope.dimension_count"])?.unwrap_or(head_dim).min(head_dim) / 2 * 2),
            ..Rotary::new(settings.number(&["rope.freq_base"], 1e4)?)
        },
        bias: file.has("blk.0.attn_qkv.bias"),
        parallel: settings.flag("use_parallel_residual", true),
        activation: Activation::Gelu,
        projection: Projection::Joined,
        tied: !file.has("output.weight"),
    };
    Ok(Recipe {
        family: "gpt_neox".to_owned(),
        parts: parts(&sizes),
        names: GGUF_DECODER,
        prefixes: &[""],
        causal: true,
        context: settings.size_if(&["context_length"])?.unwrap_or(2048),
        gains_plus_one: false,
    })
}
