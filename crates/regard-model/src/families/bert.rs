//! BERT and RoBERTa: learned positions and token types, a norm of the embedding, norms of sums, GELU. RoBERTa's positions begin after its
//! padding token.

use super::{Architecture, Table, activation, divides};
use crate::error::{Error, Result};
use crate::formats::Archive;
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Positions;
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::Order;

/// Names of BERT and RoBERTa in files of transformers, but for the head.
pub const NAMES: Table = &[
    ("tokens", "embeddings.word_embeddings"),
    ("positions", "embeddings.position_embeddings"),
    ("types", "embeddings.token_type_embeddings"),
    ("embedding_norm", "embeddings.LayerNorm"),
    ("blocks.#.attention.q", "encoder.layer.#.attention.self.query"),
    ("blocks.#.attention.k", "encoder.layer.#.attention.self.key"),
    ("blocks.#.attention.v", "encoder.layer.#.attention.self.value"),
    ("blocks.#.attention.out", "encoder.layer.#.attention.output.dense"),
    ("blocks.#.attention.norm", "encoder.layer.#.attention.output.LayerNorm"),
    ("blocks.#.mlp.up", "encoder.layer.#.intermediate.dense"),
    ("blocks.#.mlp.down", "encoder.layer.#.output.dense"),
    ("blocks.#.mlp.norm", "encoder.layer.#.output.LayerNorm"),
];

/// Names of BERT's head.
const BERT_HEAD: Table = &[
    ("transform", "/cls.predictions.transform.dense"),
    ("transform_norm", "/cls.predictions.transform.LayerNorm"),
    ("head", "/cls.predictions"),
];

/// Names of RoBERTa's.
const ROBERTA_HEAD: Table = &[("transform", "/lm_head.dense"), ("transform_norm", "/lm_head.layer_norm"), ("head", "/lm_head")];

/// The shape of an encoder with norms of sums, which DistilBERT and ALBERT have too.
pub(crate) struct Encoder {
    pub(crate) vocab: usize,
    /// Of the embedding's table.
    pub(crate) table: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) hidden: usize,
    pub(crate) context: usize,
    pub(crate) first_position: usize,
    pub(crate) types: Option<usize>,
    pub(crate) eps: f64,
    pub(crate) activation: Activation,
    /// Names of the blocks in order; the same name is the same weights.
    pub(crate) blocks: Vec<String>,
    /// The activation of the head's layer, where there is a head.
    pub(crate) head: Option<Activation>,
}

impl Encoder {
    pub(crate) fn parts(&self) -> Result<TransformerConfig> {
        divides("num_attention_heads", self.width, self.heads)?;
        let attention = AttentionConfig {
            bias: true,
            out_bias: true,
            projection: Projection::Separate,
            order: Order::OutIn,
            ..AttentionConfig::new(self.width, self.heads)
        };
        let (width, hidden, activation) = (self.width, self.hidden, self.activation);
        let mlp = MlpConfig { bias: true, order: Order::OutIn, ..MlpConfig::new(width, hidden, activation) };
        let norm = (NormKind::Layer, self.eps);
        let block = |name: &String| BlockConfig::new(name.clone(), BlockWiring::PostNorm, norm, attention, mlp);
        Ok(TransformerConfig {
            width,
            embedding: EmbeddingConfig {
                vocab: self.vocab,
                width: self.table,
                positions: Positions::Learned,
                context: self.context,
                first_position: self.first_position,
                types: self.types,
                norm: Some(norm),
                ..EmbeddingConfig::default()
            },
            blocks: self.blocks.iter().map(block).collect(),
            last_norm: None,
            head: self.head.map(|activation| HeadConfig {
                tied: true,
                bias: true,
                order: Order::OutIn,
                transform: Some((activation, self.eps)),
                ..HeadConfig::default()
            }),
        })
    }
}

/// Only positions that are added to the embedding have a part here.
pub(crate) fn absolute_positions(settings: Settings<'_>) -> Result<()> {
    match settings.text("position_embedding_type") {
        None | Some("absolute") => Ok(()),
        Some(other) => Err(Error::Setting {
            name: "position_embedding_type".to_owned(),
            value: other.to_owned(),
            reason: "absolute is known".to_owned(),
        }),
    }
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(name: &str, settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    absolute_positions(settings)?;
    let (width, roberta) = (settings.size(&["hidden_size"])?, name != "bert");
    let first_position = if roberta { (settings.number(&["pad_token_id"], 1.0)? as usize).saturating_add(1) } else { 0 };
    let rows = settings.size(&["max_position_embeddings"])?;
    if first_position >= rows {
        let reason = format!("its first {first_position} rows are not used");
        return Err(Error::Setting { name: "max_position_embeddings".to_owned(), value: rows.to_string(), reason });
    }
    let activation = activation(settings, &["hidden_act"], "gelu")?;
    let head = if roberta { "lm_head.dense.weight" } else { "cls.predictions.transform.dense.weight" };
    let encoder = Encoder {
        vocab: settings.size(&["vocab_size"])?,
        table: width,
        width,
        heads: settings.size(&["num_attention_heads"])?,
        hidden: settings.size(&["intermediate_size"])?,
        context: rows - first_position,
        first_position,
        types: Some(settings.size_if(&["type_vocab_size"])?.unwrap_or(2)),
        eps: settings.epsilon(&["layer_norm_eps"], 1e-12)?,
        activation,
        blocks: (0..settings.layers(&["num_hidden_layers"])?).map(|number| format!("blocks.{number}")).collect(),
        head: archive.has(head).then_some(if roberta { Activation::Gelu } else { activation }),
    };
    let names: &[Table] = if roberta { &[NAMES, ROBERTA_HEAD] } else { &[NAMES, BERT_HEAD] };
    let prefixes: &[&str] = if roberta { &["roberta.", ""] } else { &["bert.", ""] };
    Ok(Architecture::encoder(name, encoder.parts()?, names, prefixes, encoder.context))
}
