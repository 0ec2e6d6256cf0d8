//! The shape of a model.

use super::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use crate::attention::{AttentionConfig, ScaleKind};
use crate::error::{Error, Result};
use crate::layers::norm::EPS;
use crate::layers::positions::Rotary;
use crate::layers::stack::{BlockConfig, BlockWiring};
use crate::mlp::{MlpConfig, MlpKind};
use crate::norm::NormKind;
use crate::positions::Positions;
use crate::sublayer::NormPlace;
use serde::{Deserialize, Serialize};

/// The shape of a model: everything that decides which parameters there are and what they mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Tokens that the model sees at once.
    pub context: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; as many as `heads` when not given.
    pub kv_heads: Option<usize>,
    /// Width of a head; `width / heads` when not given.
    pub head_dim: Option<usize>,
    /// Blocks.
    pub layers: usize,
    /// Units of each block's network; `4 width` when not given.
    pub hidden: Option<usize>,
    /// Which normalisation.
    pub norm: NormKind,
    /// Where it stands.
    pub norm_place: NormPlace,
    /// Which network.
    pub mlp: MlpKind,
    /// Position encoding.
    pub positions: Positions,
    /// The last layer is the embedding's table.
    pub tied: bool,
    /// Biases in the projections of attention.
    pub attention_bias: bool,
    /// Probability of dropping, in training.
    pub dropout: f64,
    /// What scores are scaled by.
    pub scale: ScaleKind,
    /// Rows of tokens are multiplied by this before positions are added; the original transformer has sqrt(width).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_scale: Option<f64>,
}

impl Default for ModelConfig {
    /// The small model of the mask experiment, for 65 characters.
    fn default() -> Self {
        Self {
            vocab: 65,
            context: 64,
            width: 64,
            heads: 4,
            kv_heads: None,
            head_dim: None,
            layers: 2,
            hidden: None,
            norm: NormKind::Layer,
            norm_place: NormPlace::Pre,
            mlp: MlpKind::Gelu,
            positions: Positions::Learned,
            tied: false,
            attention_bias: false,
            dropout: 0.0,
            scale: ScaleKind::InvSqrtDim,
            embedding_scale: None,
        }
    }
}

impl ModelConfig {
    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.width / self.heads.max(1))
    }

    /// Units of each block's network.
    pub fn hidden(&self) -> usize {
        self.hidden.unwrap_or(4 * self.width)
    }

    /// Its embedding.
    pub(crate) fn embedding(&self) -> EmbeddingConfig {
        EmbeddingConfig {
            vocab: self.vocab,
            width: self.width,
            positions: self.positions,
            context: self.context,
            scale: self.embedding_scale,
            dropout: self.dropout,
            ..EmbeddingConfig::default()
        }
    }

    /// Its blocks, with cross-attention or without.
    pub(crate) fn blocks(&self, cross: bool) -> Vec<BlockConfig> {
        let attention = AttentionConfig {
            kv_heads: self.kv_heads(),
            head_dim: self.head_dim(),
            bias: self.attention_bias,
            out_bias: self.attention_bias,
            alibi: self.positions == Positions::Alibi,
            rotary: if let Positions::Rotary(base) = self.positions { Some(Rotary::new(base)) } else { None },
            scale: self.scale,
            dropout: self.dropout,
            ..AttentionConfig::new(self.width, self.heads)
        };
        let mlp = MlpConfig::named(self.mlp, self.width, self.hidden());
        let wiring = match self.norm_place {
            NormPlace::Pre => BlockWiring::PreNorm,
            NormPlace::Post => BlockWiring::PostNorm,
        };
        let block = |number: usize| BlockConfig {
            cross,
            dropout: self.dropout,
            ..BlockConfig::new(format!("blocks.{number}"), wiring, (self.norm, EPS), attention, mlp)
        };
        (0..self.layers).map(block).collect()
    }

    /// The norm after its last block: with pre-norm the stream itself has none.
    pub(crate) fn last_norm(&self) -> Option<(NormKind, f64)> {
        (self.norm_place == NormPlace::Pre).then_some((self.norm, EPS))
    }

    pub(crate) fn head(&self) -> HeadConfig {
        HeadConfig { tied: self.tied, bias: !self.tied, ..HeadConfig::default() }
    }

    /// A language model of this shape as a list of parts.
    pub fn parts(&self) -> TransformerConfig {
        TransformerConfig {
            width: self.width,
            embedding: self.embedding(),
            blocks: self.blocks(false),
            last_norm: self.last_norm(),
            head: Some(self.head()),
        }
    }

    /// Can such a model be built?
    ///
    /// # Errors
    /// [`Error::Config`] with the first setting that makes no sense.
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("vocab", self.vocab),
            ("context", self.context),
            ("width", self.width),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads()),
            ("head_dim", self.head_dim()),
            ("hidden", self.hidden()),
        ];
        let refuse = |name, value: String, requirement: &str| Err(Error::Config { name, value, requirement: requirement.to_owned() });
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return refuse(name, "0".to_owned(), "at least 1");
        }
        if self.vocab >= u32::MAX as usize {
            return refuse("vocab", self.vocab.to_string(), "below 2^32 - 1");
        }
        if self.head_dim.is_none() && !self.width.is_multiple_of(self.heads) {
            return refuse("width", self.width.to_string(), &format!("a multiple of heads ({}), or head_dim must be given", self.heads));
        }
        if !self.heads.is_multiple_of(self.kv_heads()) {
            return refuse("heads", self.heads.to_string(), &format!("a multiple of kv_heads ({})", self.kv_heads()));
        }
        match self.positions {
            Positions::Rotary(base) if !(base.is_finite() && base > 0.0) => {
                return refuse("the rotary base", base.to_string(), "finite and positive");
            }
            Positions::Rotary(_) if !self.head_dim().is_multiple_of(2) => {
                return refuse("head_dim", self.head_dim().to_string(), "even, for rotary positions");
            }
            _ => {}
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse("dropout", self.dropout.to_string(), "in [0, 1)");
        }
        Ok(())
    }
}
