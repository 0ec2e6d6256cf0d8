//! Gemma 2: a scaled embedding, norms before and behind each branch, softcaps, a window in every other block, gated GELU by tanh, tied. Files of
//! transformers have the gains of norms less one; GGUF files have them whole.

use super::{GGUF_DECODER, Recipe, Table, activation, divides, llama, rotary};
use crate::error::Result;
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Projection, ScaleKind};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Rotary;
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::Order;

/// Names in files of transformers.
pub const NAMES: Table = &[
    ("tokens", "embed_tokens"),
    ("blocks.#.attention.norm", "layers.#.input_layernorm"),
    ("blocks.#.attention.q", "layers.#.self_attn.q_proj"),
    ("blocks.#.attention.k", "layers.#.self_attn.k_proj"),
    ("blocks.#.attention.v", "layers.#.self_attn.v_proj"),
    ("blocks.#.attention.out", "layers.#.self_attn.o_proj"),
    ("blocks.#.attention.result_norm", "layers.#.post_attention_layernorm"),
    ("blocks.#.mlp.norm", "layers.#.pre_feedforward_layernorm"),
    ("blocks.#.mlp.gate", "layers.#.mlp.gate_proj"),
    ("blocks.#.mlp.up", "layers.#.mlp.up_proj"),
    ("blocks.#.mlp.down", "layers.#.mlp.down_proj"),
    ("blocks.#.mlp.result_norm", "layers.#.post_feedforward_layernorm"),
    ("last_norm", "norm"),
];

struct Sizes {
    vocab: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    hidden: usize,
    eps: f64,
    rotary: Rotary,
    activation: Activation,
    scalar: f64,
    softcap: Option<f64>,
    last_softcap: Option<f64>,
    windows: Vec<Option<usize>>,
}

fn parts(s: &Sizes) -> Result<TransformerConfig> {
    divides("num_key_value_heads", s.heads, s.kv_heads)?;
    let attention = AttentionConfig {
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        projection: Projection::Separate,
        order: Order::OutIn,
        rotary: Some(s.rotary),
        scale: ScaleKind::Value(s.scalar.powf(-0.5)),
        softcap: s.softcap,
        ..AttentionConfig::new(s.width, s.heads)
    };
    let mlp = MlpConfig {
        width: s.width,
        hidden: s.hidden,
        activation: s.activation,
        gated: true,
        joined: false,
        bias: false,
        order: Order::OutIn,
    };
    let block = |(number, window): (usize, &Option<usize>)| BlockConfig {
        name: format!("blocks.{number}"),
        wiring: BlockWiring::Sandwich,
        norm: NormKind::Rms,
        eps: s.eps,
        attention: AttentionConfig { window: *window, ..attention },
        cross: false,
        mlp,
        dropout: 0.0,
    };
    Ok(TransformerConfig {
        width: s.width,
        embedding: EmbeddingConfig { vocab: s.vocab, width: s.width, scale: Some((s.width as f64).sqrt()), ..EmbeddingConfig::default() },
        blocks: s.windows.iter().enumerate().map(block).collect(),
        last_norm: Some((NormKind::Rms, s.eps)),
        head: Some(HeadConfig { tied: true, order: Order::OutIn, softcap: s.last_softcap, ..HeadConfig::default() }),
    })
}

/// Every other block has the window, from the first on.
fn alternating(window: Option<usize>, layers: usize) -> Vec<Option<usize>> {
    (0..layers).map(|number| window.filter(|_| number.is_multiple_of(2))).collect()
}

fn recipe(sizes: &Sizes, names: Table, prefixes: &'static [&'static str], context: usize, gains_plus_one: bool) -> Result<Recipe> {
    Ok(Recipe { family: "gemma2".to_owned(), parts: parts(sizes)?, names, prefixes, causal: true, context, gains_plus_one })
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>) -> Result<Recipe> {
    let (layers, heads) = (settings.layers(&["num_hidden_layers"])?, settings.size(&["num_attention_heads"])?);
    let head_dim = settings.size_if(&["head_dim"])?.unwrap_or(256);
    let windows = if settings.any(&["layer_types"]).is_some() {
        llama::windows(settings, layers, true)?
    } else {
        alternating(settings.size_if(&["sliding_window"])?.map(|size| size - 1), layers)
    };
    let sizes = Sizes {
        vocab: settings.size(&["vocab_size"])?,
        width: settings.size(&["hidden_size"])?,
        heads,
        kv_heads: settings.size_if(&["num_key_value_heads"])?.unwrap_or(heads),
        head_dim,
        hidden: settings.size(&["intermediate_size"])?,
        eps: settings.number(&["rms_norm_eps"], 1e-6)?,
        rotary: rotary(settings, 1e4)?,
        activation: activation(settings, &["hidden_activation", "hidden_act"], "gelu_pytorch_tanh")?,
        scalar: settings.number(&["query_pre_attn_scalar"], head_dim as f64)?,
        softcap: settings.number_if(&["attn_logit_softcapping"])?,
        last_softcap: settings.number_if(&["final_logit_softcapping"])?,
        windows,
    };
    recipe(&sizes, NAMES, &["model.", ""], settings.size_if(&["max_position_embeddings"])?.unwrap_or(8192), true)
}

/// Of a GGUF file.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_gguf(settings: Settings<'_>) -> Result<Recipe> {
    let (layers, heads) = (settings.layers(&["block_count"])?, settings.size(&["attention.head_count"])?);
    let width = settings.size(&["embedding_length"])?;
    let head_dim = settings.size_if(&["attention.key_length"])?.unwrap_or(256);
    let sizes = Sizes {
        vocab: settings.size(&["vocab_size"])?,
        width,
        heads,
        kv_heads: settings.size_if(&["attention.head_count_kv"])?.unwrap_or(heads),
        head_dim,
        hidden: settings.size(&["feed_forward_length"])?,
        eps: settings.number(&["attention.layer_norm_rms_epsilon"], 1e-6)?,
        rotary: Rotary::new(settings.number(&["rope.freq_base"], 1e4)?),
        activation: Activation::GeluTanh,
        // The 27B model alone scales by the width that heads would share out.
        scalar: if layers == 46 { width as f64 / heads as f64 } else { head_dim as f64 },
        softcap: Some(settings.number(&["attn_logit_softcapping"], 50.0)?),
        last_softcap: Some(settings.number(&["final_logit_softcapping"], 30.0)?),
        windows: alternating(settings.size_if(&["attention.sliding_window"])?.map(|size| size - 1), layers),
    };
    recipe(&sizes, GGUF_DECODER, &[""], settings.size_if(&["context_length"])?.unwrap_or(8192), false)
}
