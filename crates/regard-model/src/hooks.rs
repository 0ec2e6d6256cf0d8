//! Hooks: read and change activations while a text is run, by TransformerLens' names.
//!
//! ```text
//! resid_pre -> q, k, v -> pattern -> z -> attn_out -> resid_mid -> mlp_out -> resid_post
//! ```
//!
//! In models that read attention and network from the same rows, `resid_mid` is the stream between the two sums.

use ndarray::ArrayViewMutD;

/// An activation of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// The residual stream before the layer, `[tokens, width]`.
    ResidPre,
    /// Queries after norms and positions, `[heads, tokens, head_dim]`.
    Q,
    /// Keys after norms and positions, `[kv_heads, tokens, head_dim]`.
    K,
    /// Values, `[kv_heads, tokens, head_dim]`.
    V,
    /// Weights after the softmax, `[heads, tokens, tokens]`.
    Pattern,
    /// Results of heads before W_O, `[heads, tokens, head_dim]`.
    Z,
    /// The attention's contribution to the stream, `[tokens, width]`.
    AttnOut,
    /// The residual stream between attention and network, `[tokens, width]`.
    ResidMid,
    /// The network's contribution to the stream, `[tokens, width]`.
    MlpOut,
    /// The residual stream after the layer, `[tokens, width]`.
    ResidPost,
}

impl Site {
    /// All sites, in the order of a pass.
    pub const ALL: [Self; 10] =
        [Self::ResidPre, Self::Q, Self::K, Self::V, Self::Pattern, Self::Z, Self::AttnOut, Self::ResidMid, Self::MlpOut, Self::ResidPost];

    /// The name of the site.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResidPre => "resid_pre",
            Self::Q => "q",
            Self::K => "k",
            Self::V => "v",
            Self::Pattern => "pattern",
            Self::Z => "z",
            Self::AttnOut => "attn_out",
            Self::ResidMid => "resid_mid",
            Self::MlpOut => "mlp_out",
            Self::ResidPost => "resid_post",
        }
    }

    /// It is of heads, not rows of the stream's width.
    pub fn has_heads(self) -> bool {
        matches!(self, Self::Q | Self::K | Self::V | Self::Pattern | Self::Z)
    }

    /// It is the residual stream, of which each row holds all that comes after it.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::ResidPre | Self::ResidMid | Self::ResidPost)
    }

    /// The site of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|site| site.name() == name)
    }
}

impl std::str::FromStr for Site {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::of_name(name).ok_or_else(|| format!("{name:?} is no activation; use one of {}", names()))
    }
}

/// Observes and edits activations of a run.
pub trait Hook: Sync {
    /// Whether [`Hook::at`] is to be called for a site.
    fn wants(&self, layer: usize, site: Site) -> bool;

    /// The activation, which may be changed; returns whether it was.
    fn at(&self, layer: usize, site: Site, x: ArrayViewMutD<'_, f32>) -> bool;
}
