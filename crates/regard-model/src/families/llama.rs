//! Llama and those that differ from it in a few parts.
//!
//! ```text
//! Llama      rotary positions, RMS norm before branches, grouped heads, gated SiLU; SmolLM, TinyLlama, Llama 3's scaled angles
//! Mistral    a window
//! Qwen 2     biases of q, k and v
//! Qwen 3     heads of their own width, RMS norms of q and k per head before positions
//! OLMo 2     norms of results alone, and of whole rows of q and k
//! Mixtral    experts instead of one network
//! ```
//!
//! Files of transformers turn `(i, i + d/2)` of a head; llama2.c and GGUF's `llama` turn `(2 i, 2 i + 1)`, with rows in another order.

use super::{Architecture, Sizes, Table, activation, divides, rotary};
use crate::error::{Error, Result};
use crate::formats::{Archive, Gguf, llama2c};
use crate::settings::Settings;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::{ExpertsConfig, MlpConfig};
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::{Pairs, Rotary, Scaling};
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, TransformerConfig};
use regard_nn::tensors::{Order, Source};

/// Names in files of transformers that many families have.
pub(super) const SHARED_NAMES: Table = &[
    ("tokens", "embed_tokens"),
    ("blocks.#.attention.norm", "layers.#.input_layernorm"),
    ("blocks.#.attention.q", "layers.#.self_attn.q_proj"),
    ("blocks.#.attention.k", "layers.#.self_attn.k_proj"),
    ("blocks.#.attention.v", "layers.#.self_attn.v_proj"),
    ("blocks.#.attention.out", "layers.#.self_attn.o_proj"),
    ("blocks.#.mlp.gate", "layers.#.mlp.gate_proj"),
    ("blocks.#.mlp.up", "layers.#.mlp.up_proj"),
    ("blocks.#.mlp.down", "layers.#.mlp.down_proj"),
    ("last_norm", "norm"),
];

/// The others.
const NAMES: Table = &[
    ("blocks.#.attention.q_norm", "layers.#.self_attn.q_norm"),
    ("blocks.#.attention.k_norm", "layers.#.self_attn.k_norm"),
    ("blocks.#.mlp.norm", "layers.#.post_attention_layernorm"),
    ("head", "/lm_head"),
];

/// Those of OLMo 2: norms are of results.
const OLMO2_NAMES: Table = &[
    ("blocks.#.attention.norm", "layers.#.post_attention_layernorm"),
    ("blocks.#.attention.q_norm", "layers.#.self_attn.q_norm"),
    ("blocks.#.attention.k_norm", "layers.#.self_attn.k_norm"),
    ("blocks.#.mlp.norm", "layers.#.post_feedforward_layernorm"),
    ("head", "/lm_head"),
];

/// Those of Mixtral's experts.
const EXPERT_NAMES: Table = &[
    ("blocks.#.mlp.router", "layers.#.block_sparse_moe.gate"),
    ("blocks.#.mlp.experts.%.gate", "layers.#.block_sparse_moe.experts.%.w1"),
    ("blocks.#.mlp.experts.%.up", "layers.#.block_sparse_moe.experts.%.w3"),
    ("blocks.#.mlp.experts.%.down", "layers.#.block_sparse_moe.experts.%.w2"),
];

/// No model has more experts in a block.
const MOST_EXPERTS: usize = 1024;

/// What the family's members differ in.
#[derive(Debug, Clone)]
struct Llama {
    sizes: Sizes,
    kv_heads: usize,
    head_dim: usize,
    eps: f64,
    rotary: Rotary,
    bias: bool,
    out_bias: bool,
    mlp_bias: bool,
    head_norms: bool,
    /// Norms are of results alone, and of whole rows of queries and keys.
    result_norms: bool,
    experts: Option<ExpertsConfig>,
    tied: bool,
    activation: Activation,
    /// Of each block.
    windows: Vec<Option<usize>>,
}

fn parts(s: &Llama) -> Result<TransformerConfig> {
    let Sizes { vocab, width, layers, heads, hidden } = s.sizes;
    divides("num_key_value_heads", heads, s.kv_heads)?;
    if !s.rotary.dims.unwrap_or(s.head_dim).is_multiple_of(2) {
        return Err(Error::Setting {
            name: "head_dim".into(),
            value: s.head_dim.to_string(),
            reason: "rotary positions need an even one".into(),
        });
    }
    let attention = |window: Option<usize>| AttentionConfig {
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        bias: s.bias,
        out_bias: s.out_bias,
        projection: Projection::Separate,
        order: Order::OutIn,
        head_norms: (s.head_norms || s.result_norms).then_some(s.eps),
        whole_norms: s.result_norms,
        rotary: Some(s.rotary),
        window,
        ..AttentionConfig::new(width, heads)
    };
    let mlp =
        MlpConfig { gated: true, bias: s.mlp_bias, order: Order::OutIn, experts: s.experts, ..MlpConfig::new(width, hidden, s.activation) };
    let norm = (NormKind::Rms, s.eps);
    let block = |number: usize| {
        let attention = attention(s.windows.get(number).copied().flatten());
        let wiring = if s.result_norms { BlockWiring::ResultNorm } else { BlockWiring::PreNorm };
        BlockConfig::new(format!("blocks.{number}"), wiring, norm, attention, mlp)
    };
    Ok(TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab, width, ..EmbeddingConfig::default() },
        blocks: (0..layers).map(block).collect(),
        last_norm: Some(norm),
        head: Some(HeadConfig { tied: s.tied, order: Order::OutIn, ..HeadConfig::default() }),
    })
}

/// How many tokens before its own a token of each block sees; `None` all.
pub(crate) fn windows(settings: Settings<'_>, layers: usize, all: bool) -> Result<Vec<Option<usize>>> {
    let Some(size) = settings.size_if(&["sliding_window"])? else { return Ok(vec![None; layers]) };
    // The window counts the query's own token.
    let window = Some(size - 1);
    match settings.0.get("layer_types").and_then(|types| types.as_array()) {
        Some(types) if types.len() != layers => Err(Error::Setting {
            name: "layer_types".to_owned(),
            value: format!("a list of {}", types.len()),
            reason: format!("num_hidden_layers is {layers}: the two must agree"),
        }),
        Some(types) => Ok(types.iter().map(|kind| if kind == "sliding_attention" { window } else { None }).collect()),
        None => Ok(vec![if all { window } else { None }; layers]),
    }
}

/// How many experts there are, and how many each token takes.
fn experts(settings: Settings<'_>) -> Result<ExpertsConfig> {
    let count = settings.size_if(&["num_local_experts"])?.unwrap_or(8);
    let active = settings.size_if(&["num_experts_per_tok"])?.unwrap_or(2);
    if active <= count && count <= MOST_EXPERTS {
        return Ok(ExpertsConfig { count, active });
    }
    let reason = format!("at most {MOST_EXPERTS} experts are possible, and no more of them per token than there are");
    Err(Error::Setting { name: "num_local_experts".to_owned(), value: format!("{count}, {active} per token"), reason })
}

/// Of a `config.json`.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_settings(name: &str, settings: Settings<'_>, archive: &dyn Archive) -> Result<Architecture> {
    let sizes = Sizes::of_settings(settings)?;
    let Sizes { width, heads, layers, .. } = sizes;
    let head_dim = match settings.size_if(&["head_dim"])? {
        Some(dim) => dim,
        None if name == "qwen3" => 128,
        None => divides("num_attention_heads", width, heads)?,
    };
    let theta = if name.starts_with("qwen") || name == "mixtral" { 1e6 } else { 1e4 };
    let biased = settings.flag("attention_bias", false);
    let has_head = archive.has("lm_head.weight");
    let model = Llama {
        sizes,
        kv_heads: settings.size_if(&["num_key_value_heads"])?.unwrap_or(heads),
        head_dim,
        eps: settings.epsilon(&["rms_norm_eps"], if name == "mixtral" || name == "olmo2" { 1e-5 } else { 1e-6 })?,
        rotary: rotary(settings, theta)?,
        bias: biased || name == "qwen2",
        out_bias: biased && name != "qwen2",
        mlp_bias: settings.flag("mlp_bias", false),
        head_norms: name == "qwen3",
        result_norms: name == "olmo2",
        experts: if name == "mixtral" { Some(experts(settings)?) } else { None },
        tied: !has_head || settings.flag("tie_word_embeddings", false),
        activation: activation(settings, &["hidden_act"], "silu")?,
        windows: match name {
            "mistral" | "mixtral" => windows(settings, layers, true)?,
            "qwen2" | "qwen3" if settings.flag("use_sliding_window", false) => windows(settings, layers, false)?,
            _ => vec![None; layers],
        },
    };
    let (parts, context) = (parts(&model)?, settings.size_if(&["max_position_embeddings"])?.unwrap_or(2048));
    let names: &[Table] = match name {
        "olmo2" => &[SHARED_NAMES, OLMO2_NAMES],
        "mixtral" => &[SHARED_NAMES, EXPERT_NAMES, NAMES],
        _ => &[SHARED_NAMES, NAMES],
    };
    Ok(Architecture::decoder(name, parts, names, &["model.", ""], context))
}

/// Of a GGUF file.
///
/// # Errors
/// When a setting is missing or has no part here.
pub fn of_gguf(name: &str, settings: Settings<'_>, file: &Gguf) -> Result<Architecture> {
    let sizes = Sizes::of_gguf(settings)?;
    let Sizes { width, heads, layers, .. } = sizes;
    let head_dim = match settings.size_if(&["attention.key_length"])? {
        Some(dim) => dim,
        None => divides("attention.head_count", width, heads)?,
    };
    if settings.any(&["expert_count"]).is_some_and(|(_, count)| count.as_u64() > Some(0)) {
        return Err(Error::Family { name: name.to_owned(), missing: "its experts: what is missing is a mixture of networks".to_owned() });
    }
    let context = settings.size_if(&["context_length"])?.unwrap_or(2048);
    let rotary = Rotary {
        dims: settings.size_if(&["rope.dimension_count"])?,
        pairs: if name == "llama" { Pairs::Interleaved } else { Pairs::Halves },
        scaling: gguf_scaling(settings, file)?,
        ..Rotary::rounded(settings.number(&["rope.freq_base"], 1e4)?)
    };
    let model = Llama {
        sizes,
        kv_heads: settings.size_if(&["attention.head_count_kv"])?.unwrap_or(heads),
        head_dim,
        eps: settings.epsilon(&["attention.layer_norm_rms_epsilon"], 1e-5)?,
        rotary,
        bias: file.has("blk.0.attn_q.bias"),
        out_bias: file.has("blk.0.attn_output.bias"),
        mlp_bias: file.has("blk.0.ffn_up.bias"),
        head_norms: file.has("blk.0.attn_q_norm.weight"),
        result_norms: false,
        experts: None,
        tied: !file.has("output.weight"),
        activation: Activation::Silu,
        windows: vec![settings.size_if(&["attention.sliding_window"])?.map(|size| size - 1); layers],
    };
    Ok(Architecture::gguf_decoder(name, parts(&model)?, context))
}

/// Scaled angles of a GGUF file: as factors of its own, or by name.
fn gguf_scaling(settings: Settings<'_>, file: &Gguf) -> Result<Scaling> {
    if file.has("rope_freqs.weight") {
        let tensor = file.tensor("rope_freqs.weight")?;
        let mut factors = vec![0f64; tensor.numbers.len()];
        tensor.numbers.widen(0..factors.len(), &mut factors);
        return Scaling::factors(&factors).ok_or_else(|| Error::Setting {
            name: "rope_freqs.weight".to_owned(),
            value: format!("{} factors", factors.len()),
            reason: "up to 128 positive numbers are possible".to_owned(),
        });
    }
    match settings.text("rope.scaling.type") {
        None | Some("none") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear(settings.number(&["rope.scaling.factor"], 1.0)?)),
        Some(other) => Err(Error::Setting {
            name: "rope.scaling.type".to_owned(),
            value: other.to_owned(),
            reason: "linear, and factors in rope_freqs.weight, are known".to_owned(),
        }),
    }
}

/// Of a llama2.c file: what is not in it is always the same.
///
/// # Errors
/// When the header makes no sense.
pub fn of_header(header: &llama2c::Header) -> Result<Architecture> {
    let llama2c::Header { vocab, width, layers, heads, hidden, .. } = *header;
    let model = Llama {
        sizes: Sizes { vocab, width, layers, heads, hidden },
        kv_heads: header.kv_heads,
        head_dim: divides("heads", width, heads)?,
        eps: 1e-5,
        rotary: Rotary { pairs: Pairs::Interleaved, ..Rotary::rounded(1e4) },
        bias: false,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        result_norms: false,
        experts: None,
        tied: header.tied,
        activation: Activation::Silu,
        windows: Vec::new(),
    };
    Ok(Architecture::gguf_decoder("llama", parts(&model)?, header.context))
}
