//! T5: relative positions by buckets, no scale, RMS norm before branches, no biases; version 1.1 with gated networks and an own head.

use super::{Architecture, Sizes, Table, Writing, activation};
use crate::error::{Error, Result};
use crate::formats::Archive;
use crate::settings::Settings;
use regard_nn::layers::attention::{AttentionConfig, Buckets, Projection, ScaleKind};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::Order;

/// Names that both sides have.
const NAMES: Table = &[
    ("tokens", "/shared"),
    ("tokens", "embed_tokens"),
    ("blocks.#.attention.norm", "block.#.layer.0.layer_norm"),
    ("blocks.#.attention.q", "block.#.layer.0.SelfAttention.q"),
    ("blocks.#.attention.k", "block.#.layer.0.SelfAttention.k"),
    ("blocks.#.attention.v", "block.#.layer.0.SelfAttention.v"),
    ("blocks.#.attention.out", "block.#.layer.0.SelfAttention.o"),
    // All blocks have the first one's.
    ("blocks.#.attention.relative", "block.0.layer.0.SelfAttention.relative_attention_bias"),
    ("last_norm", "final_layer_norm"),
    ("head", "/lm_head"),
];

const ENCODER: Table = &[
    ("blocks.#.mlp.norm", "block.#.layer.1.layer_norm"),
    ("blocks.#.mlp.gate", "block.#.layer.1.DenseReluDense.wi_0"),
    ("blocks.#.mlp.up", "block.#.layer.1.DenseReluDense.wi"),
    ("blocks.#.mlp.up", "block.#.layer.1.DenseReluDense.wi_1"),
    ("blocks.#.mlp.down", "block.#.layer.1.DenseReluDense.wo"),
];

const DECODER: Table = &[
    ("blocks.#.cross.norm", "block.#.layer.1.layer_norm"),
    ("blocks.#.cross.q", "block.#.layer.1.EncDecAttention.q"),
    ("blocks.#.cross.k", "block.#.layer.1.EncDecAttention.k"),
    ("blocks.#.cross.v", "block.#.layer.1.EncDecAttention.v"),
    ("blocks.#.cross.out", "block.#.layer.1.EncDecAttention.o"),
    ("blocks.#.mlp.norm", "block.#.layer.2.layer_norm"),
    ("blocks.#.mlp.gate", "block.#.layer.2.DenseReluDense.wi_0"),
    ("blocks.#.mlp.up", "block.#.layer.2.DenseReluDense.wi"),
    ("blocks.#.mlp.up", "block.#.layer.2.DenseReluDense.wi_1"),
    ("blocks.#.mlp.down", "block.#.layer.2.DenseReluDense.wo"),
];

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, generation: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    let sizes = Sizes {
        vocab: settings.size(&["vocab_size"])?,
        width: settings.size(&["d_model"])?,
        layers: settings.layers(&["num_layers"])?,
        heads: settings.size(&["num_heads"])?,
        hidden: settings.size(&["d_ff"])?,
    };
    let decoder_layers =
        if settings.any(&["num_decoder_layers"]).is_some() { settings.layers(&["num_decoder_layers"])? } else { sizes.layers };
    let feed_forward = settings.text("feed_forward_proj").unwrap_or("relu");
    let gated = feed_forward.starts_with("gated-");
    // The name `gated-gelu` has always meant the approximation.
    let function = match feed_forward {
        "gated-gelu" => regard_nn::layers::activation::Activation::GeluTanh,
        other => activation(
            Settings(&serde_json::json!({ "feed_forward_proj": other.trim_start_matches("gated-") })),
            &["feed_forward_proj"],
            "relu",
        )?,
    };
    let norm = (NormKind::Rms, settings.epsilon(&["layer_norm_epsilon"], 1e-6)?);
    let head_dim = settings.size(&["d_kv"])?;
    let buckets = Buckets {
        count: settings.size_if(&["relative_attention_num_buckets"])?.unwrap_or(32),
        most: settings.size_if(&["relative_attention_max_distance"])?.unwrap_or(128),
        both: true,
    };
    if buckets.count < 4 || buckets.most <= buckets.count / 2 || buckets.most > 1 << 16 {
        return Err(Error::Setting {
            name: "relative_attention_num_buckets".to_owned(),
            value: format!("{} for distances up to {}", buckets.count, buckets.most),
            reason: "at least 4, and distances of more than half of them up to 65536, are possible".to_owned(),
        });
    }
    let attention = AttentionConfig {
        head_dim,
        projection: Projection::Separate,
        order: Order::OutIn,
        scale: ScaleKind::Off,
        relative: Some(buckets),
        ..AttentionConfig::new(sizes.width, sizes.heads)
    };
    let mlp = MlpConfig { gated, order: Order::OutIn, ..MlpConfig::new(sizes.width, sizes.hidden, function) };
    // Newer settings say that every head is tied, and of version 1.1 that it is not scaled; older ones that its head is not tied.
    let scaled = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", true));
    let tied = scaled || !archive.has("lm_head.weight");
    let parts = |layers: usize, decoder: bool| {
        let attention = AttentionConfig { relative: Some(Buckets { both: !decoder, ..buckets }), ..attention };
        let block = |number: usize| BlockConfig {
            cross: decoder,
            ..BlockConfig::new(format!("blocks.{number}"), BlockWiring::PreNorm, norm, attention, mlp)
        };
        TransformerConfig {
            width: sizes.width,
            embedding: EmbeddingConfig { vocab: sizes.vocab, width: sizes.width, ..EmbeddingConfig::default() },
            blocks: (0..layers).map(block).collect(),
            last_norm: Some(norm),
            head: decoder.then(|| HeadConfig {
                tied,
                order: Order::OutIn,
                scale: scaled.then(|| (sizes.width as f64).powf(-0.5)),
                ..HeadConfig::default()
            }),
        }
    };
    let context = settings.size_if(&["n_positions"])?.unwrap_or(512);
    let encoder = Architecture::encoder("t5", parts(sizes.layers, false), &[NAMES, ENCODER], &["encoder."], context);
    let decoder = Architecture::decoder("t5", parts(decoder_layers, true), &[NAMES, DECODER], &["decoder."], context);
    let mut writing = Writing::of_settings(settings, generation)?;
    if writing.start.is_empty() {
        writing.start.push(settings.number(&["pad_token_id"], 0.0)? as u32);
    }
    Ok(Architecture { encoder: Some(Box::new(encoder)), writing, ..decoder })
}
