//! GPT-2: learned positions, layer norm before branches, joined q, k and v with biases, GELU by tanh, tied. Its matrices lie `[in, out]`.

use super::{Architecture, Sizes, Table, activation, divides};
use crate::error::{Error, Result};
use crate::formats::{Archive, Gguf};
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, ScaleKind};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Positions;
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::Order;

/// Names in files of transformers.
pub const NAMES: Table = &[
    ("tokens", "wte"),
    ("positions", "wpe"),
    ("blocks.#.attention.norm", "h.#.ln_1"),
    ("blocks.#.attention.qkv", "h.#.attn.c_attn"),
    ("blocks.#.attention.out", "h.#.attn.c_proj"),
    ("blocks.#.mlp.norm", "h.#.ln_2"),
    ("blocks.#.mlp.up", "h.#.mlp.c_fc"),
    ("blocks.#.mlp.down", "h.#.mlp.c_proj"),
    ("last_norm", "ln_f"),
    ("head", "/lm_head"),
];

struct Gpt2 {
    sizes: Sizes,
    context: usize,
    eps: f64,
    activation: Activation,
    scale: ScaleKind,
    tied: bool,
    order: Order,
}

fn parts(s: &Gpt2) -> Result<TransformerConfig> {
    let Sizes { vocab, width, layers, heads, hidden } = s.sizes;
    divides("n_head", width, heads)?;
    let attention = AttentionConfig { bias: true, out_bias: true, order: s.order, scale: s.scale, ..AttentionConfig::new(width, heads) };
    let mlp = MlpConfig { bias: true, order: s.order, ..MlpConfig::new(width, hidden, s.activation) };
    let norm = (NormKind::Layer, s.eps);
    let block = |number: usize| BlockConfig::new(format!("blocks.{number}"), BlockWiring::PreNorm, norm, attention, mlp);
    Ok(TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab, width, positions: Positions::Learned, context: s.context, ..EmbeddingConfig::default() },
        blocks: (0..layers).map(block).collect(),
        last_norm: Some(norm),
        head: Some(HeadConfig { tied: s.tied, order: Order::OutIn, ..HeadConfig::default() }),
    })
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    if settings.flag("scale_attn_by_inverse_layer_idx", false) {
        let reason = "a scale by layer has no part here".to_owned();
        return Err(Error::Setting { name: "scale_attn_by_inverse_layer_idx".to_owned(), value: "true".to_owned(), reason });
    }
    let width = settings.size(&["n_embd", "hidden_size"])?;
    let context = settings.size(&["n_positions", "n_ctx", "max_position_embeddings"])?;
    let sizes = Sizes {
        vocab: settings.size(&["vocab_size"])?,
        width,
        layers: settings.layers(&["n_layer", "num_hidden_layers"])?,
        heads: settings.size(&["n_head", "num_attention_heads"])?,
        hidden: settings.size_if(&["n_inner"])?.unwrap_or(4 * width),
    };
    let model = Gpt2 {
        sizes,
        context,
        eps: settings.epsilon(&["layer_norm_epsilon"], 1e-5)?,
        activation: activation(settings, &["activation_function"], "gelu_new")?,
        scale: if settings.flag("scale_attn_weights", true) { ScaleKind::InvSqrtDim } else { ScaleKind::Off },
        tied: !archive.has("lm_head.weight") || settings.flag("tie_word_embeddings", true),
        order: Order::InOut,
    };
    Ok(Architecture::decoder("gpt2", parts(&model)?, &[NAMES], &["transformer.", ""], context))
}

/// Of a GGUF file, whose matrices lie `[out, in]`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_gguf(settings: Settings<'_>, file: &Gguf) -> Result<Architecture> {
    let context = settings.size(&["context_length"])?;
    let model = Gpt2 {
        sizes: Sizes::of_gguf(settings)?,
        context,
        eps: settings.epsilon(&["attention.layer_norm_epsilon"], 1e-5)?,
        activation: Activation::GeluTanh,
        scale: ScaleKind::InvSqrtDim,
        tied: !file.has("output.weight"),
        order: Order::OutIn,
    };
    Ok(Architecture::gguf_decoder("gpt2", parts(&model)?, context))
}
