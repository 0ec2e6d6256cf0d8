//! ALBERT: a narrow embedding that a layer widens, and one block over and over. Layers are counted by pass: layer 3 is the fourth time that
//! the block runs.

use super::bert::{Encoder, absolute_positions};
use super::{Architecture, Table, activation, divides};
use crate::error::{Error, Result};
use crate::formats::Archive;
use crate::settings::Settings;

/// Names in files of transformers; `#` is the group, of which there is usually one.
pub const NAMES: Table = &[
    ("tokens", "embeddings.word_embeddings"),
    ("positions", "embeddings.position_embeddings"),
    ("types", "embeddings.token_type_embeddings"),
    ("embedding_norm", "embeddings.LayerNorm"),
    ("widen", "encoder.embedding_hidden_mapping_in"),
    ("blocks.#.attention.q", "encoder.albert_layer_groups.#.albert_layers.0.attention.query"),
    ("blocks.#.attention.k", "encoder.albert_layer_groups.#.albert_layers.0.attention.key"),
    ("blocks.#.attention.v", "encoder.albert_layer_groups.#.albert_layers.0.attention.value"),
    ("blocks.#.attention.out", "encoder.albert_layer_groups.#.albert_layers.0.attention.dense"),
    ("blocks.#.attention.norm", "encoder.albert_layer_groups.#.albert_layers.0.attention.LayerNorm"),
    ("blocks.#.mlp.up", "encoder.albert_layer_groups.#.albert_layers.0.ffn"),
    ("blocks.#.mlp.down", "encoder.albert_layer_groups.#.albert_layers.0.ffn_output"),
    ("blocks.#.mlp.norm", "encoder.albert_layer_groups.#.albert_layers.0.full_layer_layer_norm"),
    ("transform", "/predictions.dense"),
    ("transform_norm", "/predictions.LayerNorm"),
    ("head", "/predictions"),
];

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    absolute_positions(settings)?;
    let (width, table) = (settings.size(&["hidden_size"])?, settings.size(&["embedding_size"])?);
    let refused =
        |name: &str, value: usize, reason: &str| Error::Setting { name: name.into(), value: value.to_string(), reason: reason.into() };
    let inner = settings.size_if(&["inner_group_num"])?.unwrap_or(1);
    if inner != 1 {
        return Err(refused("inner_group_num", inner, "blocks of one layer are known"));
    }
    if table == width {
        return Err(refused("embedding_size", table, "an embedding as wide as the stream, with a layer between, has no part here"));
    }
    let (layers, groups) = (settings.layers(&["num_hidden_layers"])?, settings.size_if(&["num_hidden_groups"])?.unwrap_or(1));
    let each = divides("num_hidden_groups", layers, groups)?;
    let context = settings.size(&["max_position_embeddings"])?;
    let activation = activation(settings, &["hidden_act"], "gelu_new")?;
    let encoder = Encoder {
        vocab: settings.size(&["vocab_size"])?,
        table,
        width,
        heads: settings.size(&["num_attention_heads"])?,
        hidden: settings.size(&["intermediate_size"])?,
        context,
        first_position: 0,
        types: Some(settings.size_if(&["type_vocab_size"])?.unwrap_or(2)),
        eps: settings.epsilon(&["layer_norm_eps"], 1e-12)?,
        activation,
        blocks: (0..layers).map(|number| format!("blocks.{}", number / each)).collect(),
        head: archive.has("predictions.dense.weight").then_some(activation),
    };
    Ok(Architecture::encoder("albert", encoder.parts()?, &[NAMES], &["albert.", ""], context))
}
