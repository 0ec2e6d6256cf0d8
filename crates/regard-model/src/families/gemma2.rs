//! Gemma 2: a scaled embedding, norms before and after each branch, softcaps, a window in every other block, gated GELU by tanh, tied.
//! Files of transformers have the gains of norms less one; GGUF files have them whole.

use super::{Architecture, Sizes, Table, activation, divides, llama, rotary};
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

/// Names in files of transformers, beside those that Llama has too.
const NAMES: Table = &[
    ("blocks.#.attention.result_norm", "layers.#.post_attention_layernorm"),
    ("blocks.#.mlp.norm", "layers.#.pre_feedforward_layernorm"),
    ("blocks.#.mlp.result_norm", "layers.#.post_feedforward_layernorm"),
];

struct Gemma2 {
    sizes: Sizes,
    kv_heads: usize,
    head_dim: usize,
    eps: f64,
    rotary: Rotary,
    activation: Activation,
    scalar: f64,
    softcap: Option<f64>,
    last_softcap: Option<f64>,
    windows: Vec<Option<usize>>,
}

fn parts(s: &Gemma2) -> Result<TransformerConfig> {
    let Sizes { vocab, width, heads, hidden, .. } = s.sizes;
    divides("num_key_value_heads", heads, s.kv_heads)?;
    let attention = AttentionConfig {
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        projection: Projection::Separate,
        order: Order::OutIn,
        rotary: Some(s.rotary),
        scale: ScaleKind::Value(s.scalar.powf(-0.5)),
        softcap: s.softcap,
        ..AttentionConfig::new(width, heads)
    };
    let mlp = MlpConfig { gated: true, order: Order::OutIn, ..MlpConfig::new(width, hidden, s.activation) };
    let norm = (NormKind::Rms, s.eps);
    let block = |(number, window): (usize, &Option<usize>)| {
        let attention = AttentionConfig { window: *window, ..attention };
        BlockConfig::new(format!("blocks.{number}"), BlockWiring::Sandwich, norm, attention, mlp)
    };
    Ok(TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab, width, scale: Some((width as f64).sqrt()), ..EmbeddingConfig::default() },
        blocks: s.windows.iter().enumerate().map(block).collect(),
        last_norm: Some(norm),
        head: Some(HeadConfig { tied: true, order: Order::OutIn, softcap: s.last_softcap, ..HeadConfig::default() }),
    })
}

/// Every other block has the window, from the first on.
fn alternating(window: Option<usize>, layers: usize) -> Vec<Option<usize>> {
    (0..layers).map(|number| window.filter(|_| number.is_multiple_of(2))).collect()
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>) -> Result<Architecture> {
    let sizes = Sizes::of_settings(settings)?;
    let Sizes { layers, heads, .. } = sizes;
    let head_dim = settings.size_if(&["head_dim"])?.unwrap_or(256);
    let windows = if settings.any(&["layer_types"]).is_some() {
        llama::windows(settings, layers, true)?
    } else {
        alternating(settings.size_if(&["sliding_window"])?.map(|size| size - 1), layers)
    };
    let model = Gemma2 {
        sizes,
        kv_heads: settings.size_if(&["num_key_value_heads"])?.unwrap_or(heads),
        head_dim,
        eps: settings.epsilon(&["rms_norm_eps"], 1e-6)?,
        rotary: rotary(settings, 1e4)?,
        activation: activation(settings, &["hidden_activation", "hidden_act"], "gelu_pytorch_tanh")?,
        scalar: settings.number(&["query_pre_attn_scalar"], head_dim as f64)?,
        softcap: settings.number_if(&["attn_logit_softcapping"])?,
        last_softcap: settings.number_if(&["final_logit_softcapping"])?,
        windows,
    };
    let (parts, context) = (parts(&model)?, settings.size_if(&["max_position_embeddings"])?.unwrap_or(8192));
    let decoder = Architecture::decoder("gemma2", parts, &[llama::SHARED_NAMES, NAMES], &["model.", ""], context);
    Ok(Architecture { gains_plus_one: true, ..decoder })
}

/// Of a GGUF file.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_gguf(settings: Settings<'_>) -> Result<Architecture> {
    let sizes = Sizes::of_gguf(settings)?;
    let Sizes { width, layers, heads, .. } = sizes;
    let head_dim = settings.size_if(&["attention.key_length"])?.unwrap_or(256);
    let model = Gemma2 {
        sizes,
        kv_heads: settings.size_if(&["attention.head_count_kv"])?.unwrap_or(heads),
        head_dim,
        eps: settings.epsilon(&["attention.layer_norm_rms_epsilon"], 1e-6)?,
        rotary: Rotary::rounded(settings.number(&["rope.freq_base"], 1e4)?),
        activation: Activation::GeluTanh,
        // The 27B model alone scales by the width that heads would share out.
        scalar: if layers == 46 { width as f64 / heads as f64 } else { head_dim as f64 },
        softcap: Some(settings.number(&["attn_logit_softcapping"], 50.0)?),
        last_softcap: Some(settings.number(&["final_logit_softcapping"], 30.0)?),
        windows: alternating(settings.size_if(&["attention.sliding_window"])?.map(|size| size - 1), layers),
    };
    Ok(Architecture::gguf_decoder("gemma2", parts(&model)?, settings.size_if(&["context_length"])?.unwrap_or(8192)))
}
