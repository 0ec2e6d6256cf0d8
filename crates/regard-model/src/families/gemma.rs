//! Gemma: a scaled embedding, gated GELU by tanh, tied. Files of transformers have the gains of norms less one; GGUF files have them whole.
//!
//! ```text
//! Gemma      norms before branches
//! Gemma 2    norms before and after each branch, softcaps, a window in every other block
//! Gemma 3    norms before and after each branch, norms of q and k, a window with its own rotary base in five of six blocks
//! ```

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
    ("blocks.#.attention.q_norm", "layers.#.self_attn.q_norm"),
    ("blocks.#.attention.k_norm", "layers.#.self_attn.k_norm"),
    ("blocks.#.attention.result_norm", "layers.#.post_attention_layernorm"),
    ("blocks.#.mlp.norm", "layers.#.pre_feedforward_layernorm"),
    ("blocks.#.mlp.result_norm", "layers.#.post_feedforward_layernorm"),
];
/// The same of the first version.
const NAMES_1: Table = &[("blocks.#.mlp.norm", "layers.#.post_attention_layernorm")];

struct Gemma {
    sizes: Sizes,
    wiring: BlockWiring,
    kv_heads: usize,
    head_dim: usize,
    head_norms: bool,
    eps: f64,
    /// Of blocks without a window, and of those with one.
    rotary: [Rotary; 2],
    activation: Activation,
    scalar: f64,
    softcap: Option<f64>,
    last_softcap: Option<f64>,
    windows: Vec<Option<usize>>,
}

fn parts(s: &Gemma) -> Result<TransformerConfig> {
    let Sizes { vocab, width, heads, hidden, .. } = s.sizes;
    divides("num_key_value_heads", heads, s.kv_heads)?;
    let attention = AttentionConfig {
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        projection: Projection::Separate,
        order: Order::OutIn,
        head_norms: s.head_norms.then_some(s.eps),
        scale: ScaleKind::Value(s.scalar.powf(-0.5)),
        softcap: s.softcap,
        ..AttentionConfig::new(width, heads)
    };
    let mlp = MlpConfig { gated: true, order: Order::OutIn, ..MlpConfig::new(width, hidden, s.activation) };
    let norm = (NormKind::Rms, s.eps);
    let block = |(number, window): (usize, &Option<usize>)| {
        let attention = AttentionConfig { window: *window, rotary: Some(s.rotary[usize::from(window.is_some())]), ..attention };
        BlockConfig::new(format!("blocks.{number}"), s.wiring, norm, attention, mlp)
    };
    Ok(TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab, width, scale: Some((width as f64).sqrt()), ..EmbeddingConfig::default() },
        blocks: s.windows.iter().enumerate().map(block).collect(),
        last_norm: Some(norm),
        head: Some(HeadConfig { tied: true, order: Order::OutIn, softcap: s.last_softcap, ..HeadConfig::default() }),
    })
}

/// A window in every block but each `period`-th; with a period of 2, from the first block on.
fn alternating(window: Option<usize>, layers: usize, period: usize) -> Vec<Option<usize>> {
    (0..layers).map(|number| window.filter(|_| !(number + 1).is_multiple_of(period))).collect()
}

/// Rotary positions of Gemma 3: transformers 5 has settings for each kind of block, older ones a base for each.
fn rotary_3(settings: Settings<'_>) -> Result<[Rotary; 2]> {
    let by_kind = |kind: &str| settings.within("rope_parameters").and_then(|inner| inner.within(kind));
    match (by_kind("full_attention"), by_kind("sliding_attention")) {
        (Some(full), Some(sliding)) => Ok([inner_rotary(full, 1e6)?, inner_rotary(sliding, 1e4)?]),
        _ => Ok([rotary(settings, 1e6)?, Rotary::rounded(settings.number(&["rope_local_base_freq"], 1e4)?)]),
    }
}

/// Settings of one kind of block, read as those of a whole model.
fn inner_rotary(settings: Settings<'_>, otherwise: f64) -> Result<Rotary> {
    rotary(Settings(&serde_json::json!({ "rope_parameters": settings.0 })), otherwise)
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(name: &str, settings: Settings<'_>) -> Result<Architecture> {
    // Files with an encoder of pictures have the settings of texts inside.
    let settings = settings.within("text_config").unwrap_or(settings);
    let version = if name == "gemma" {
        1
    } else if name == "gemma2" {
        2
    } else {
        3
    };
    let sizes = Sizes::of_settings(settings)?;
    let Sizes { layers, heads, .. } = sizes;
    let head_dim = settings.size_if(&["head_dim"])?.unwrap_or(256);
    let window = settings.size_if(&["sliding_window"])?.map(|size| size - 1);
    let windows = match version {
        1 => vec![None; layers],
        _ if settings.any(&["layer_types"]).is_some() => llama::windows(settings, layers, true)?,
        2 => alternating(window, layers, 2),
        _ => alternating(window, layers, settings.size_if(&["sliding_window_pattern"])?.unwrap_or(6)),
    };
    let model = Gemma {
        sizes,
        wiring: if version == 1 { BlockWiring::PreNorm } else { BlockWiring::Sandwich },
        kv_heads: settings.size_if(&["num_key_value_heads"])?.unwrap_or(heads),
        head_dim,
        head_norms: version == 3,
        eps: settings.epsilon(&["rms_norm_eps"], 1e-6)?,
        rotary: if version == 3 { rotary_3(settings)? } else { [rotary(settings, 1e4)?; 2] },
        activation: activation(settings, &["hidden_activation", "hidden_act"], "gelu_pytorch_tanh")?,
        scalar: settings.number(&["query_pre_attn_scalar"], head_dim as f64)?,
        softcap: settings.number_if(&["attn_logit_softcapping"])?,
        last_softcap: settings.number_if(&["final_logit_softcapping"])?,
        windows,
    };
    let (parts, context) = (parts(&model)?, settings.size_if(&["max_position_embeddings"])?.unwrap_or(8192));
    let names: &'static [Table] = if version == 1 { &[llama::SHARED_NAMES, NAMES_1] } else { &[llama::SHARED_NAMES, NAMES] };
    let prefixes = &["model.", "language_model.model.", "model.language_model.", ""];
    let decoder = Architecture::decoder(name, parts, names, prefixes, context);
    Ok(Architecture { gains_plus_one: true, ..decoder })
}

/// Gemma 2, of a GGUF file.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_gguf(settings: Settings<'_>) -> Result<Architecture> {
    let sizes = Sizes::of_gguf(settings)?;
    let Sizes { width, layers, heads, .. } = sizes;
    let head_dim = settings.size_if(&["attention.key_length"])?.unwrap_or(256);
    let model = Gemma {
        sizes,
        wiring: BlockWiring::Sandwich,
        kv_heads: settings.size_if(&["attention.head_count_kv"])?.unwrap_or(heads),
        head_dim,
        head_norms: false,
        eps: settings.epsilon(&["attention.layer_norm_rms_epsilon"], 1e-6)?,
        rotary: [Rotary::rounded(settings.number(&["rope.freq_base"], 1e4)?); 2],
        activation: Activation::GeluTanh,
        // The 27B model alone scales by the width that heads would share out.
        scalar: if layers == 46 { width as f64 / heads as f64 } else { head_dim as f64 },
        softcap: Some(settings.number(&["attn_logit_softcapping"], 50.0)?),
        last_softcap: Some(settings.number(&["final_logit_softcapping"], 30.0)?),
        windows: alternating(settings.size_if(&["attention.sliding_window"])?.map(|size| size - 1), layers, 2),
    };
    Ok(Architecture::gguf_decoder("gemma2", parts(&model)?, settings.size_if(&["context_length"])?.unwrap_or(8192)))
}
