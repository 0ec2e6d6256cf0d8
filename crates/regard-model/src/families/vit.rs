//! ViT: patches of an image as tokens after one of the class, learned positions, layer norm before branches, GELU.

use super::{Architecture, Table, activation, divides};
use crate::error::{Error, Result};
use crate::formats::Archive;
use crate::front::Front;
use crate::settings::Settings;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::Order;

const NAMES: Table = &[
    ("patches", "embeddings.patch_embeddings.projection"),
    ("class", "=embeddings.cls_token"),
    ("frames", "=embeddings.position_embeddings"),
    ("blocks.#.attention.norm", "encoder.layer.#.layernorm_before"),
    ("blocks.#.attention.q", "encoder.layer.#.attention.attention.query"),
    ("blocks.#.attention.k", "encoder.layer.#.attention.attention.key"),
    ("blocks.#.attention.v", "encoder.layer.#.attention.attention.value"),
    ("blocks.#.attention.out", "encoder.layer.#.attention.output.dense"),
    ("blocks.#.mlp.norm", "encoder.layer.#.layernorm_after"),
    ("blocks.#.mlp.up", "encoder.layer.#.intermediate.dense"),
    ("blocks.#.mlp.down", "encoder.layer.#.output.dense"),
    ("last_norm", "layernorm"),
    ("head", "/classifier"),
];

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    super::needs(settings, "qkv_bias", true, true)?;
    let (width, heads) = (settings.size(&["hidden_size"])?, settings.size(&["num_attention_heads"])?);
    divides("num_attention_heads", width, heads)?;
    let (side, patch) = (settings.size(&["image_size"])?, settings.size(&["patch_size"])?);
    let per_side = divides("patch_size", side, patch)?;
    if per_side > 1024 {
        let reason = "at most 1024 patches a side are possible".to_owned();
        return Err(Error::Setting { name: "image_size".to_owned(), value: side.to_string(), reason });
    }
    let attention = AttentionConfig {
        bias: true,
        out_bias: true,
        projection: Projection::Separate,
        order: Order::OutIn,
        ..AttentionConfig::new(width, heads)
    };
    let function = activation(settings, &["hidden_act"], "gelu")?;
    let mlp = MlpConfig { bias: true, order: Order::OutIn, ..MlpConfig::new(width, settings.size(&["intermediate_size"])?, function) };
    let norm = (NormKind::Layer, settings.epsilon(&["layer_norm_eps"], 1e-12)?);
    let block = |number: usize| BlockConfig::new(format!("blocks.{number}"), BlockWiring::PreNorm, norm, attention, mlp);
    let classes = archive.list().into_iter().find(|tensor| tensor.name == "classifier.weight").and_then(|t| t.shape.first().copied());
    let parts = TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab: classes.unwrap_or(0), width, rows: true, ..EmbeddingConfig::default() },
        blocks: (0..settings.layers(&["num_hidden_layers"])?).map(block).collect(),
        last_norm: Some(norm),
        head: classes.map(|_| HeadConfig { bias: true, order: Order::OutIn, ..HeadConfig::default() }),
    };
    let front = Front::Image { channels: settings.size_if(&["num_channels"])?.unwrap_or(3), side, patch };
    let architecture = Architecture::encoder("vit", parts, &[NAMES], &["vit.", ""], 1 + per_side * per_side);
    Ok(Architecture { front: Some(front), ..architecture })
}
