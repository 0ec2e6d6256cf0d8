//! DistilBERT: BERT without token types, under other names.

use super::bert::Encoder;
use super::{Architecture, Table, activation};
use crate::error::Result;
use crate::formats::Archive;
use crate::settings::Settings;

/// Names in files of transformers.
pub const NAMES: Table = &[
    ("tokens", "embeddings.word_embeddings"),
    ("positions", "embeddings.position_embeddings"),
    ("embedding_norm", "embeddings.LayerNorm"),
    ("blocks.#.attention.q", "transformer.layer.#.attention.q_lin"),
    ("blocks.#.attention.k", "transformer.layer.#.attention.k_lin"),
    ("blocks.#.attention.v", "transformer.layer.#.attention.v_lin"),
    ("blocks.#.attention.out", "transformer.layer.#.attention.out_lin"),
    ("blocks.#.attention.norm", "transformer.layer.#.sa_layer_norm"),
    ("blocks.#.mlp.up", "transformer.layer.#.ffn.lin1"),
    ("blocks.#.mlp.down", "transformer.layer.#.ffn.lin2"),
    ("blocks.#.mlp.norm", "transformer.layer.#.output_layer_norm"),
    ("transform", "/vocab_transform"),
    ("transform_norm", "/vocab_layer_norm"),
    ("head", "/vocab_projector"),
];

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    let (width, context) = (settings.size(&["dim", "hidden_size"])?, settings.size(&["max_position_embeddings"])?);
    let activation = activation(settings, &["activation"], "gelu")?;
    let encoder = Encoder {
        vocab: settings.size(&["vocab_size"])?,
        table: width,
        width,
        heads: settings.size(&["n_heads", "num_attention_heads"])?,
        hidden: settings.size(&["hidden_dim"])?,
        context,
        first_position: 0,
        types: None,
        eps: 1e-12,
        activation,
        blocks: (0..settings.layers(&["n_layers", "num_hidden_layers"])?).map(|number| format!("blocks.{number}")).collect(),
        head: archive.has("vocab_transform.weight").then_some(activation),
    };
    Ok(Architecture::encoder("distilbert", encoder.parts()?, &[NAMES], &["distilbert.", ""], context))
}
