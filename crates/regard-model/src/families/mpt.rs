//! MPT: ALiBi, layer norms without shift before branches, joined q, k and v, no biases, GELU, tied.

use super::{Architecture, Decoder, Sizes, Table, divides};
use crate::error::{Error, Result};
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, ScaleKind};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::stack::BlockWiring;
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig};
use regard_nn::tensors::Order;

/// Names in files of transformers.
const NAMES: Table = &[
    ("tokens", "wte"),
    ("blocks.#.attention.norm", "blocks.#.norm_1"),
    ("blocks.#.attention.qkv", "blocks.#.attn.Wqkv"),
    ("blocks.#.attention.out", "blocks.#.attn.out_proj"),
    ("blocks.#.mlp.norm", "blocks.#.norm_2"),
    ("blocks.#.mlp.up", "blocks.#.ffn.up_proj"),
    ("blocks.#.mlp.down", "blocks.#.ffn.down_proj"),
    ("last_norm", "norm_f"),
    ("head", "/lm_head"),
];

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>) -> Result<Architecture> {
    let refuse = |name: &str, value: String, reason: &str| Err(Error::Setting { name: name.to_owned(), value, reason: reason.to_owned() });
    let inner = settings.within("attn_config").unwrap_or(settings);
    if let Some(x) = inner.number_if(&["clip_qkv"])? {
        return refuse("clip_qkv", x.to_string(), "only null is supported");
    }
    if !inner.flag("alibi", true) {
        return refuse("alibi", "false".to_owned(), "only true is supported");
    }
    if inner.number(&["alibi_bias_max"], 8.0)? != 8.0 {
        return refuse("alibi_bias_max", inner.number(&["alibi_bias_max"], 8.0)?.to_string(), "only 8 is supported");
    }
    if inner.flag("qk_ln", false) {
        return refuse("qk_ln", "true".to_owned(), "only false is supported");
    }
    let width = settings.size(&["d_model", "hidden_size"])?;
    let sizes = Sizes {
        width,
        heads: settings.size(&["n_heads", "num_attention_heads"])?,
        layers: settings.layers(&["n_layers", "num_hidden_layers"])?,
        vocab: settings.size(&["vocab_size"])?,
        hidden: settings.size_if(&["expansion_ratio"])?.unwrap_or(4) * width,
    };
    divides("n_heads", width, sizes.heads)?;
    let decoder = Decoder {
        sizes,
        wiring: BlockWiring::PreNorm,
        norm: (NormKind::Layer, settings.epsilon(&["layer_norm_epsilon"], 1e-5)?),
        attention: AttentionConfig {
            order: Order::OutIn,
            alibi: true,
            scale: inner.number_if(&["softmax_scale"])?.map_or(ScaleKind::InvSqrtDim, ScaleKind::Value),
            ..AttentionConfig::new(width, sizes.heads)
        },
        windows: Vec::new(),
        mlp: MlpConfig { order: Order::OutIn, ..MlpConfig::new(width, sizes.hidden, Activation::Gelu) },
        embedding: EmbeddingConfig::default(),
        head: HeadConfig { tied: settings.flag("tie_word_embeddings", true), ..HeadConfig::default() },
    };
    let context = settings.size_if(&["max_seq_len"])?.unwrap_or(2048);
    let decoder = Architecture::decoder("mpt", decoder.parts()?, &[NAMES], &["transformer.", ""], context);
    Ok(Architecture { zeros: &[".shift"], ..decoder })
}
