//! The catalogue: known mistakes of attention kernels. Each is a switch of the reference program (`program.rs`).

/// A known mistake.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub mistake: Mistake,
    pub id: &'static str,
    /// At most one mistake of a group is made at a time.
    pub group: &'static str,
    /// Variants of the mistake by number: tile sizes, constants, places. `&[0]` where there is one.
    pub forms: &'static [u32],
    pub text: &'static str,
    /// The wrong formula, beside the right one.
    pub formula: &'static str,
    /// A public bug with this mistake; empty where none is known.
    pub seen: &'static str,
}

macro_rules! catalogue {
    ($($variant:ident $id:literal $group:literal $forms:expr, $text:literal, $formula:literal, $seen:literal;)*) => {
        /// Names of the mistakes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mistake { $($variant),* }

        /// All of them, the likelier first.
        pub static CATALOGUE: &[Entry] = &[$(Entry {
            mistake: Mistake::$variant, id: $id, group: $group, forms: $forms, text: $text, formula: $formula, seen: $seen,
        }),*];
    };
}

const ONE: &[u32] = &[0];
/// Tile sizes that kernels use.
const TILES: &[u32] = &[16, 32, 64, 128, 8, 4, 256];
/// As written, and with positions, gradients or causal windows as they are in what is right.
const TWO: &[u32] = &[0, 1];

catalogue! {
    ScaleMissing "scale-missing" "scale" ONE, "the scores are not scaled", "q.k in place of q.k * scale", "";
    ScaleInverted "scale-inverted" "scale" ONE, "the scores are divided by the scale", "q.k / scale in place of q.k * scale", "";
    ScaleIgnored "scale-ignored" "scale" ONE, "the scale argument is ignored: the scores are multiplied by 1/sqrt(d)",
        "q.k / sqrt(d) in place of q.k * scale", "";
    ScaleLost "scale-lost-with-mask" "scale" ONE, "the scale argument is ignored where a mask or bias is given",
        "q.k / sqrt(d) with a mask", "";
    ScaleOnTop "scale-on-top" "scale" ONE, "1/sqrt(d) is applied on top of the scale argument", "q.k * scale / sqrt(d)", "";
    ScaleValueDim "scale-value-dim" "scale" ONE, "the default scale is that of the value dimension", "1/sqrt(dv) in place of 1/sqrt(d)", "";
    ScaleModelDim "scale-model-dim" "scale" ONE, "the default scale is that of all heads together", "1/sqrt(heads * d)", "";
    ScaleWidth "scale-no-root" "scale" ONE, "the default scale lacks the root", "1/d in place of 1/sqrt(d)", "";
    ScalePadded "scale-padded-dim" "scale" &[8, 16, 32, 64, 128],
        "the default scale is that of the head dimension padded to a multiple of {form}",
        "1/sqrt(padded d)", "";
    ScaleFixed "scale-fixed" "scale" &[64, 128], "the default scale is fixed at that of a head dimension of {form}", "1/sqrt({form})", "";
    ScaleLength "scale-length" "scale" &[0, 1], "the default scale depends on the sequence length", "1/sqrt(length)", "";
    ScaleTwice "scale-twice" "scale" ONE, "the scale is applied twice", "q.k * scale^2", "";
    ScaleRoot "scale-root" "scale" ONE, "the root of the scale is applied", "q.k * sqrt(scale)", "";
    ScaleAfter "scale-after" "scale" ONE, "the scale multiplies the weights after the softmax", "softmax(q.k) * scale", "";
    ScaleSign "scale-sign" "scale" ONE, "the sign of the scale is lost", "q.k * |scale|",
        "https://github.com/pytorch/pytorch/issues/105190";
    ScaleNegative "scale-negative-nan" "scale-root" ONE, "the root of the scale multiplies q and k: a negative scale becomes NaN",
        "sqrt(scale) q . sqrt(scale) k", "https://github.com/pytorch/pytorch/issues/105190";
    OverQueries "softmax-over-queries" "axis" &[0, 1], "the softmax runs over the queries: columns sum to 1, not rows",
        "e^s / sum over i in place of sum over j", "";
    OverHeads "softmax-over-heads" "axis" ONE, "the softmax runs over the heads", "e^s / sum over h in place of sum over j", "";
    HeadsViewed "heads-not-transposed" "strides" &[0, 1, 2],
        "the order of heads and sequence is changed by a reshape without a transpose: heads and tokens are mixed",
        "reshape(b, h, n, d) in place of transpose(1, 2)", "";
    Base2 "softmax-base-2" "base" ONE, "powers of 2 in place of e: the factor log2(e) is missing", "2^(s - max) in place of e^(s - max)",
        "";
    BaseTwice "softmax-log2e-twice" "base" ONE, "the factor log2(e) is applied to powers of e", "e^(s log2 e)", "";
    CausalTopLeft "causal-top-left" "causal" &[0, 1],
        "the causal mask starts at the top left; with unequal lengths it must end at the bottom right",
        "j <= i in place of j <= i + keys - queries", "https://github.com/ml-explore/mlx/issues/2967";
    CausalBottomRight "causal-bottom-right" "causal" &[0, 1],
        "the causal mask ends at the bottom right; with unequal lengths it must start at the top left",
        "j <= i + keys - queries in place of j <= i", "https://github.com/microsoft/onnxruntime/issues/29020";
    CausalExclusive "causal-exclusive" "causal" ONE, "the causal mask hides the diagonal: a query does not see its own position",
        "j < i", "";
    CausalAhead "causal-one-ahead" "causal" ONE, "the causal mask shows one future key", "j <= i + 1", "";
    CausalReversed "causal-reversed" "causal" ONE, "the causal mask is reversed: a query sees the future", "j >= i", "";
    CausalIgnored "causal-ignored" "causal" ONE, "the causal mask is not applied", "all keys are visible", "";
    CausalAlways "causal-always" "causal" TWO, "the causal mask is applied where it is not asked for", "j <= i without causal", "";
    CausalLostWithMask "causal-lost-with-mask" "causal-mask" ONE, "the causal mask is dropped where another mask is given",
        "mask in place of mask and causal", "";
    MaskLostWithCausal "mask-lost-with-causal" "causal-mask" TWO, "the mask is dropped where causal is set",
        "causal in place of mask and causal", "";
    CausalTiles "causal-by-tiles" "causal" TILES, "the causal mask hides whole tiles of {form} keys only", "j / {form} <= i / {form}", "";
    OffsetIgnored "offset-ignored" "offset" ONE, "the position of the first query is ignored: it is taken for 0",
        "j <= i in place of j <= i + offset",
        "https://github.com/pytorch/executorch/issues/9105";
    OffsetMore "offset-one-more" "offset" ONE, "the position of the first query is one too large", "j <= i + offset + 1", "";
    OffsetLess "offset-one-less" "offset" ONE, "the position of the first query is one too small", "j <= i + offset - 1", "";
    OffsetAllocated "offset-allocated" "offset" ONE, "the last query stands at the last allocated key, not at the last valid one",
        "i + allocated - n in place of i + length - n", "";
    WindowLeftShort "window-left-short" "window" ONE, "the window is one key too short on the left: exclusive in place of inclusive",
        "i - j < left in place of i - j <= left", "https://github.com/huggingface/transformers/issues/39408";
    WindowLeftLong "window-left-long" "window" ONE, "the window is one key too long on the left", "i - j <= left + 1",
        "https://github.com/zml/zml/pull/763";
    WindowRightShort "window-right-short" "window" TWO, "the window is one key too short on the right", "j - i < right",
        "https://github.com/huggingface/transformers/pull/47162";
    WindowRightLong "window-right-long" "window" ONE, "the window is one key too long on the right", "j - i <= right + 1", "";
    WindowBothShort "window-both-short" "window" ONE, "the window is one key too short on both sides", "|i - j| < size", "";
    WindowBothLong "window-both-long" "window" ONE, "the window is one key too long on both sides", "|i - j| <= size + 1", "";
    WindowIgnored "window-ignored" "window" ONE, "the window is not applied", "all keys are visible",
        "https://github.com/jax-ml/jax/issues/32300";
    WindowLeftIgnored "window-left-ignored" "window" ONE, "the left side of the window is not applied", "j - i <= right alone", "";
    WindowRightIgnored "window-right-ignored" "window" ONE, "the right side of the window is not applied", "i - j <= left alone", "";
    WindowLostAlone "window-lost-alone" "window" ONE, "the window is applied only together with the causal mask",
        "no window without causal",
        "https://github.com/jax-ml/jax/issues/32300";
    WindowLostCausal "window-lost-with-causal" "window" ONE, "the window is dropped where causal is set", "causal alone", "";
    WindowSwapped "window-swapped" "window" ONE, "the left and the right side of the window are exchanged",
        "i - j <= right and j - i <= left", "";
    WindowTopLeft "window-top-left" "window" ONE, "the window counts queries from 0, not from their position",
        "i - j in place of i + offset - j", "";
    WindowHalf "window-half" "window" ONE, "each side of the window is half of what is asked for", "i - j <= left / 2", "";
    SoftcapAfterMask "softcap-after-mask" "softcap" &[0, 1, 2, 3],
        "the softcap is applied after the mask: hidden scores become -softcap, not -inf",
        "c tanh((s + mask) / c) in place of c tanh(s / c) + mask", "https://github.com/onnx/onnx/issues/7865";
    SoftcapMissing "softcap-missing" "softcap" ONE, "the softcap is not applied", "s in place of c tanh(s / c)", "";
    SoftcapAfterBias "softcap-after-bias" "softcap" ONE, "the softcap also caps the bias", "c tanh((s + bias) / c)", "";
    SoftcapBeforeScale "softcap-before-scale" "softcap" ONE, "the softcap is applied before the scale", "c tanh(q.k / c) * scale", "";
    SoftcapNotMultiplied "softcap-not-multiplied" "softcap" ONE, "tanh is not multiplied by the softcap", "tanh(s / c)", "";
    SoftcapNotDivided "softcap-not-divided" "softcap" ONE, "the scores are not divided by the softcap before tanh", "c tanh(s)", "";
    SoftcapFixed "softcap-fixed" "softcap" &[50, 30, 20, 15, 1, 5, 10, 25, 100], "the softcap is fixed at {form}",
        "{form} tanh(s / {form})", "";
    SoftcapClamp "softcap-clamp" "softcap" ONE, "scores are clamped in place of tanh", "clamp(s, -c, c)", "";
    BiasBeforeScale "bias-before-scale" "bias" ONE, "the bias is added before the scale and is scaled too", "(q.k + bias) * scale", "";
    BiasIgnored "bias-ignored" "bias" ONE, "the bias is not added", "q.k * scale", "";
    BiasSign "bias-sign" "bias" ONE, "the bias is subtracted", "q.k * scale - bias", "";
    BiasBase2 "bias-without-log2e" "bias" ONE, "the bias is not multiplied by log2(e) before powers of 2",
        "2^(s log2 e + bias) in place of 2^((s + bias) log2 e)",
        "https://github.com/meta-pytorch/segment-anything-fast/pull/71";
    BiasTwice "bias-twice" "bias" ONE, "the bias is added twice", "q.k * scale + 2 bias", "";
    BiasAsFlags "bias-as-flags" "bias" &[0, 1], "a float mask is read as booleans", "bias != 0 decides who is visible", "";
    PlaneFirstBatch "mask-first-batch" "plane" TWO, "the mask or bias of batch 0 is used for every batch", "mask[0]",
        "https://github.com/tenstorrent/tt-metal/issues/42846";
    PlaneFirstHead "mask-first-head" "plane" TWO, "the mask or bias of head 0 is used for every head", "mask[b, 0]", "";
    PlaneFirstRow "mask-first-row" "plane" TWO, "the mask or bias of query 0 is used for every query", "mask[b, h, 0]", "";
    PlaneHeadsMixed "mask-heads-mixed" "plane" TWO, "the mask of a batch is repeated over the heads in the wrong order",
        "mask[(b * heads + h) % batches] in place of mask[b]", "";
    PlaneFirstTile "mask-first-tile" "plane" TILES, "each tile of {form} keys reads the mask of the first one", "mask[i, j % {form}]", "";
    MaskPolarity "mask-polarity" "mask" ONE, "the mask is inverted: true hides", "visible where the mask is false",
        "https://github.com/rasbt/LLMs-from-scratch/issues/1061";
    MaskIgnored "mask-ignored" "mask" ONE, "the mask is not applied", "all keys are visible", "";
    MaskAdded "mask-as-number" "mask" ONE, "the boolean mask is added to the scores as 0 and 1",
        "s + 1 where visible, s + 0 where hidden", "";
    MaskZero "mask-zero-scores" "mask" ONE, "hidden scores are set to 0, and exp(0) = 1", "s * mask in place of -inf", "";
    MaskAfter "mask-after-softmax" "mask" ONE, "the mask is applied after the softmax: visible weights do not sum to 1",
        "softmax(s) * mask", "";
    MaskTransposed "mask-transposed" "mask" ONE, "the mask is read with queries and keys exchanged", "mask[j, i]", "";
    HiddenFinite "hidden-finite" "empty" &[10_000, 10_009, 1_000_000_000, 1_000_000_009, 4_000_000_000, 4_000_000_009],
        "hidden scores are a finite number, not -inf: rows without a visible key average, and hidden keys can win",
        "-1e4, -1e9 or the lowest float in place of -inf", "https://github.com/pytorch/pytorch/issues/109517";
    GqaModulo "gqa-modulo" "gqa" ONE, "grouped heads are assigned by remainder, not by division",
        "key head h % heads_kv in place of h / group", "https://github.com/onnx/onnx/pull/7274";
    GqaFirst "gqa-first-head" "gqa" ONE, "all query heads read key head 0", "key head 0", "";
    GqaByHeads "gqa-wrong-divisor" "gqa" ONE, "grouped heads are divided by the number of key heads, not by the group size",
        "key head h / heads_kv", "";
    BatchFirst "batch-first" "batch" ONE, "every batch reads k and v of batch 0", "k[0], v[0]",
        "https://github.com/pytorch/pytorch/issues/191937";
    LengthsIgnored "lengths-ignored" "lengths" TWO, "key lengths are ignored: padding is visible", "j < m in place of j < length", "";
    LengthsInclusive "lengths-inclusive" "lengths" TWO, "key lengths are inclusive: one key of padding is visible", "j <= length", "";
    LengthsShort "lengths-short" "lengths" TWO, "the last valid key is not visible", "j < length - 1", "";
    LengthsFirst "lengths-first" "lengths" ONE, "the key length of batch 0 is used for every batch", "j < lengths[0]", "";
    PackedEndShort "cu-seqlens-end-short" "packed" TWO, "the last key of each sequence is left out", "keys cu[s] .. cu[s+1] - 1", "";
    PackedEndLong "cu-seqlens-end-long" "packed" TWO, "each sequence sees the first key of the next one", "keys cu[s] ..= cu[s+1]", "";
    PackedStartLate "cu-seqlens-start-late" "packed" ONE, "the first key of each sequence is left out", "keys cu[s] + 1 .. cu[s+1]", "";
    PackedStartEarly "cu-seqlens-start-early" "packed" ONE, "each sequence sees the last key of the one before",
        "keys cu[s] - 1 .. cu[s+1]", "";
    PackedIgnored "cu-seqlens-ignored" "packed" ONE, "sequences are not separated: all of them attend to all keys", "one sequence", "";
    PackedQueryCu "cu-seqlens-of-queries" "packed" ONE, "the cumulative lengths of queries are used for keys",
        "keys cu_q[s] .. cu_q[s+1]", "";
    PackedMaxOffset "cu-seqlens-max-offset" "packed" ONE, "the causal offset is that of the longest sequences",
        "max_seqlen_k - max_seqlen_q", "";
    TailDropped "tail-dropped" "tail" TILES, "the last, incomplete tile of {form} keys is left out", "keys 0 .. m / {form} * {form}", "";
    TailZeros "tail-zeros" "tail" &[8, 16, 32, 64, 128],
        "the last tile of {form} keys reads zeros past the end: they take part in the softmax",
        "m padded to a multiple of {form}", "https://github.com/pytorch/pytorch/issues/169222";
    TailNext "tail-past-end" "tail" TILES, "the last tile of {form} keys reads past the end, into the next head", "keys of the next head",
        "https://github.com/pytorch/pytorch/issues/169222";
    QueryTail "query-tail-zero" "tail" TILES, "the last, incomplete tile of {form} queries is not written",
        "rows 0 .. n / {form} * {form}", "";
    FirstTileEmpty "first-tile-empty" "first" TILES, "a row whose first tile of {form} keys is hidden becomes NaN: exp(-inf - -inf)",
        "exp(old_max - new_max) with both -inf", "https://github.com/pytorch/executorch/issues/10466";
    NoRescale "rescale-missing" "online" TILES, "older tiles of {form} keys are not rescaled when the maximum rises",
        "acc + p v in place of acc * alpha + p v", "";
    SumNoRescale "rescale-sum-missing" "online-sum" TILES, "the row sum of older tiles of {form} keys is not rescaled",
        "sum + p in place of sum * alpha + p", "";
    NoMax "no-max" "max" ONE, "exp overflows: the row maximum is not subtracted", "exp(s) / sum exp(s)", "";
    MaxUnscaled "max-before-scale" "max" ONE,
        "the maximum is that of the scores before the scale: with a negative scale exp overflows",
        "exp((q.k - max q.k) * scale)", "https://github.com/pytorch/pytorch/issues/105190";
    MaxFromZero "max-from-zero" "max" &[0, 1], "the running maximum starts at 0, not at -inf: very negative rows underflow", "max(0, s)",
        "";
    SplitsPlain "splits-not-rescaled" "online" &[1002, 1003, 1004, 1102, 16, 32, 64, 128, 8, 4, 256],
        "parts of the keys have a softmax each, and their outputs are averaged without their log-sum-exp",
        "mean of the parts in place of their merge", "";
    SinkIgnored "sink-ignored" "sink" ONE, "the sink is not in the sum", "sum exp(s)", "";
    SinkNotInMax "sink-not-in-max" "sink" &[0, 1, 2], "the sink is in the sum but not in the maximum", "sum exp(s - max) + exp(sink)", "";
    SinkScaled "sink-scaled" "sink" ONE, "the sink is multiplied by the scale", "exp(sink * scale - max)", "";
    SinkFirst "sink-first-head" "sink" ONE, "the sink of head 0 is used for every head", "sink[0]", "";
    AlibiIgnored "alibi-ignored" "alibi" ONE, "the ALiBi bias is not added", "s", "";
    AlibiSign "alibi-sign" "alibi" ONE, "the ALiBi bias has the wrong sign", "s + slope * distance", "";
    AlibiSigned "alibi-signed" "alibi" ONE, "the ALiBi distance has a sign: keys after the query get a bonus",
        "i - j in place of |i - j|", "";
    AlibiTopLeft "alibi-top-left" "alibi" ONE, "ALiBi counts queries from 0, not from their position",
        "|i - j| in place of |i + offset - j|", "";
    AlibiScaled "alibi-scaled" "alibi" ONE, "the ALiBi bias is scaled too", "(q.k - slope * distance) * scale", "";
    AlibiFirst "alibi-first-head" "alibi" ONE, "the slope of head 0 is used for every head", "slope[0]", "";
    AlibiSlopes "alibi-key-head" "alibi" ONE, "the slope of the key head is used", "slope[h / group]",
        "https://github.com/ml-explore/mlx/issues/343";
    LseBase2 "lse-base-2" "lse" ONE, "the log-sum-exp is in base 2", "log2 in place of ln",
        "https://github.com/vllm-project/vllm/issues/15492";
    LseNoMax "lse-without-max" "lse" ONE, "the log-sum-exp lacks the row maximum", "ln(sum) in place of max + ln(sum)", "";
    LseMaxOnly "lse-max-only" "lse" ONE, "the log-sum-exp is the row maximum", "max", "";
    LseUnscaled "lse-unscaled" "lse" ONE, "the log-sum-exp is divided by the scale", "lse / scale", "";
    LseSinkless "lse-without-sink" "lse" ONE, "the log-sum-exp leaves out the sink", "ln sum exp(s)", "";
    DropoutNotScaled "dropout-not-scaled" "dropout" ONE, "kept weights are not divided by 1 - p", "w in place of w / (1 - p)", "";
    DropoutScaleBackward "dropout-scale-not-in-backward" "dropout" ONE, "the backward pass does not divide kept weights by 1 - p",
        "dP in place of dP / (1 - p)", "";
    DropoutByP "dropout-divided-by-p" "dropout" ONE, "kept weights are divided by p", "w / p", "";
    DropoutRenormalised "dropout-renormalised" "dropout" ONE, "kept weights are normalised again", "w / sum of kept w", "";
    DropoutIgnored "dropout-ignored" "dropout" ONE, "no weight is dropped", "w", "";
    DropoutBackward "dropout-backward-differs" "dropout" ONE, "the backward pass drops other weights than the forward pass", "another mask",
        "https://github.com/Dao-AILab/flash-attention/issues/612";
    DropoutBackwardNone "dropout-not-in-backward" "dropout" ONE, "the backward pass does not drop", "dv = w^T d_out", "";
    DqUnscaled "dq-unscaled" "dq" ONE, "dq lacks the scale", "dS k in place of dS k * scale", "";
    DqBase "dq-log2e" "dq" &[0, 1], "dq has a factor of powers of 2 too much", "dq * log2(e)", "";
    DkBase "dk-log2e" "dk" &[0, 1], "dk has a factor of powers of 2 too much", "dk * log2(e)", "";
    DkUnscaled "dk-unscaled" "dk" ONE, "dk lacks the scale", "dS^T q in place of dS^T q * scale", "";
    DeltaMissing "delta-missing" "delta" ONE, "dS lacks delta: the weights of a row compete", "w dP in place of w (dP - delta)", "";
    DeltaAdded "delta-added" "delta" ONE, "delta is added", "w (dP + delta)", "";
    DeltaOutside "delta-outside" "delta" ONE, "delta is not multiplied by the weights", "w dP - delta", "";
    DsIsDp "softmax-not-differentiated" "delta" ONE, "the softmax is not differentiated", "dS = dP", "";
    DkDvSwapped "dk-dv-swapped" "order" ONE, "dk and dv are exchanged", "dv, dk", "";
    DqDkSwapped "dq-dk-swapped" "order" ONE, "dq and dk are exchanged", "dk, dq", "";
    SoftcapGradient "softcap-gradient-missing" "softcap-gradient" ONE, "the backward pass lacks the derivative of the softcap",
        "1 in place of 1 - tanh^2", "";
    BiasGradient "bias-gradient-not-summed" "bias-gradient" &[0, 1, 2],
        "the bias gradient is not summed over the dimensions that were broadcast",
        "one of the terms in place of their sum", "";
    GqaGradient "gqa-gradient-not-summed" "gqa-gradient" &[0, 1, 2], "dk and dv are not summed over the query heads of a group",
        "one head in place of the sum", "";
    BackwardUnmasked "mask-not-in-backward" "backward-mask" ONE, "the backward pass does not apply the mask",
        "exp(s - lse) of hidden keys", "";
    GradientZero "gradient-severed" "severed" &[0, 1, 2, 3], "a gradient is zero or missing: autograd is severed", "0",
        "https://github.com/huggingface/candle/issues/3569";
    MergePlain "merge-not-rescaled" "merge" &[0, 1, 2], "states are merged without rescaling by their log-sum-exp", "(a + b) / 2",
        "";
    MergeBase2 "merge-base-2" "merge" ONE, "the merge reads the log-sum-exp in base 2", "2^(lse - max)",
        "https://github.com/vllm-project/vllm/issues/15492";
    MergeSwapped "merge-swapped" "merge" ONE, "the weights of the two states are exchanged", "b exp(lse_a) + a exp(lse_b)", "";
    MergeNoMax "merge-without-max" "merge-max" ONE, "the merge overflows: the larger log-sum-exp is not subtracted", "exp(lse)", "";
    MergeEmptyNan "merge-empty-nan" "merge-empty" ONE, "merging two empty states gives NaN", "exp(-inf - -inf)",
        "https://github.com/flashinfer-ai/flashinfer/issues/4051";
    KScaleBlock "k-scale-by-block" "k-scale" TILES, "scales of k per row are read as scales per block of {form} rows",
        "scale[j / {form}]", "";
    KScaleFirst "k-scale-first-of-block" "k-scale" TILES, "a block of {form} rows of k uses the scale of its first row",
        "scale[j - j % {form}]", "";
    KScaleIgnored "k-scale-ignored" "k-scale" ONE, "the scales of k are ignored", "q.k8", "";
    KeysLimit "keys-limit" "wide" &[65_535, 65_536, 32_767, 32_768], "keys beyond {form} are not seen", "16-bit index",
        "https://github.com/pytorch/pytorch/issues/162588";
    Strides "strides-ignored" "strides" ONE, "strides are ignored: the arrays are read as if they were contiguous",
        "memory order in place of strides",
        "https://github.com/pytorch/pytorch/issues/187504";
    EmptyNan "empty-nan" "empty" &[0, 1], "a row that sees no key becomes NaN: it must be 0", "0 / 0",
        "https://github.com/pytorch/pytorch/issues/103749";
    EmptyOther "empty-not-zero" "empty" ONE, "a row that sees no key is not 0", "not 0",
        "https://github.com/Dao-AILab/flash-attention/issues/1778";
    NanKey "nan-from-key" "nan-key" &[0, 1, 2], "a NaN in a hidden key leaks: -inf is added to NaN", "NaN + -inf",
        "https://github.com/pytorch/pytorch/issues/101967";
    NanValue "nan-from-value" "nan-value" &[0, 1, 2], "a NaN in a hidden value leaks: 0 times NaN is NaN", "0 * NaN",
        "https://github.com/pytorch/pytorch/issues/101967";
    NanLeak "nan-leaks" "nan-any" ONE, "a NaN in hidden input leaks", "NaN of hidden input",
        "https://github.com/pytorch/pytorch/issues/101967";
    NanSwallowed "nan-swallowed" "swallowed" &[0, 1, 2, 3], "a visible NaN disappears: its row must be NaN", "0 in place of NaN",
        "https://github.com/pytorch/pytorch/issues/141128";
}

/// Number of mistakes.
pub const COUNT: usize = Mistake::NanSwallowed as usize + 1;

/// Mistakes that only rows without keys, NaN, overflow, strides and very long inputs show.
pub const HARD: &[Mistake] = &[
    Mistake::EmptyNan,
    Mistake::NanValue,
    Mistake::NanKey,
    Mistake::HiddenFinite,
    Mistake::NoMax,
    Mistake::MaxUnscaled,
    Mistake::MaxFromZero,
    Mistake::NanSwallowed,
    Mistake::Strides,
    Mistake::KeysLimit,
    Mistake::FirstTileEmpty,
    Mistake::MergeEmptyNan,
    Mistake::MergeNoMax,
    Mistake::ScaleSign,
    Mistake::ScaleNegative,
    Mistake::NanLeak,
    Mistake::EmptyOther,
];

/// Mistakes of the exercises that are these: exercise (or `*` for all that name it so), its id, the entry.
pub const SHARED: &[(&str, &str, Mistake)] = &[
    ("*", "no-scale", Mistake::ScaleMissing),
    ("*", "scale-inverted", Mistake::ScaleInverted),
    ("attention", "own-scale", Mistake::ScaleIgnored),
    ("attention", "scale-twice", Mistake::ScaleTwice),
    ("attention", "scale-rooted", Mistake::ScaleRoot),
    ("*", "scale-after", Mistake::ScaleAfter),
    ("attention", "scale-and-root", Mistake::ScaleOnTop),
    ("attention", "scale-absolute", Mistake::ScaleSign),
    ("*", "width-scale", Mistake::ScaleWidth),
    ("*", "value-width", Mistake::ScaleValueDim),
    ("*", "model-width", Mistake::ScaleModelDim),
    ("*", "base-2", Mistake::Base2),
    ("*", "columns", Mistake::OverQueries),
    ("*", "no-max", Mistake::NoMax),
    ("*", "empty-nan", Mistake::EmptyNan),
    ("*", "empty-mean", Mistake::HiddenFinite),
    ("causal_attention", "no-mask", Mistake::CausalIgnored),
    ("causal_attention", "reversed", Mistake::CausalReversed),
    ("causal_attention", "one-ahead", Mistake::CausalAhead),
    ("causal_attention", "one-behind", Mistake::CausalExclusive),
    ("causal_attention", "offset-ignored", Mistake::OffsetIgnored),
    ("causal_attention", "ends-aligned", Mistake::CausalBottomRight),
    ("masked_attention", "no-mask", Mistake::MaskIgnored),
    ("masked_attention", "inverted", Mistake::MaskPolarity),
    ("masked_attention", "mask-transposed", Mistake::MaskTransposed),
    ("masked_attention", "length-inclusive", Mistake::LengthsInclusive),
    ("*", "mask-after", Mistake::MaskAfter),
    ("*", "zero-scores", Mistake::MaskZero),
    ("*", "nan-from-value", Mistake::NanValue),
    ("*", "nan-from-key", Mistake::NanKey),
    ("*", "nan-swallowed", Mistake::NanSwallowed),
    ("grouped_attention", "first-for-all", Mistake::GqaFirst),
    ("grouped_attention", "divided-by-hk", Mistake::GqaByHeads),
    ("multi_head", "split-untransposed", Mistake::HeadsViewed),
    ("attention_backward", "dq-unscaled", Mistake::DqUnscaled),
    ("*", "dk-unscaled", Mistake::DkUnscaled),
    ("*", "delta-missing", Mistake::DeltaMissing),
    ("*", "delta-added", Mistake::DeltaAdded),
    ("attention_backward", "delta-outside", Mistake::DeltaOutside),
    ("attention_backward", "softmax-skipped", Mistake::DsIsDp),
    ("attention_backward", "kv-exchanged", Mistake::DkDvSwapped),
    ("attention_backward", "swapped", Mistake::DqDkSwapped),
    ("absorb", "never-rescaled", Mistake::NoRescale),
    ("absorb", "sum-not-rescaled", Mistake::SumNoRescale),
    ("absorb", "hidden-nan", Mistake::FirstTileEmpty),
    ("absorb", "max-from-zero", Mistake::MaxFromZero),
    ("backward_tile", "unscaled-dropout", Mistake::DropoutNotScaled),
    ("backward_tile", "divided-by-p", Mistake::DropoutByP),
    ("backward_tile", "no-dropout", Mistake::DropoutIgnored),
];

/// The entry of a mistake of an exercise.
pub fn of_exercise(exercise: &str, id: &str) -> Option<&'static Entry> {
    let own = |name: &str| SHARED.iter().find(|(of, known, _)| *of == name && *known == id);
    own(exercise).or_else(|| own("*")).map(|(_, _, mistake)| mistake.entry())
}

impl Mistake {
    pub fn entry(self) -> &'static Entry {
        &CATALOGUE[self as usize]
    }
}

/// A set of mistakes with their forms.
#[derive(Clone, PartialEq, Eq)]
pub struct Switches([Option<u32>; COUNT]);

impl Default for Switches {
    fn default() -> Self {
        Self([None; COUNT])
    }
}

impl std::fmt::Debug for Switches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all().map(|(mistake, form)| (mistake.entry().id, form))).finish()
    }
}

impl Switches {
    pub fn with(&self, mistake: Mistake, form: u32) -> Self {
        let mut more = self.clone();
        more.0[mistake as usize] = Some(form);
        more
    }

    pub fn on(&self, mistake: Mistake) -> bool {
        self.0[mistake as usize].is_some()
    }

    pub fn form(&self, mistake: Mistake) -> Option<u32> {
        self.0[mistake as usize]
    }

    pub fn all(&self) -> impl Iterator<Item = (Mistake, u32)> + '_ {
        CATALOGUE.iter().filter_map(|entry| self.form(entry.mistake).map(|form| (entry.mistake, form)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Whether a mistake of the same group is among them.
    pub fn has_group(&self, group: &str) -> bool {
        self.all().any(|(mistake, _)| mistake.entry().group == group)
    }

    /// Both sets; `None` where a group would occur twice.
    pub fn union(&self, other: &Self) -> Option<Self> {
        let mut all = self.clone();
        for (mistake, form) in other.all() {
            match all.form(mistake) {
                Some(same) if same == form => {}
                Some(_) => return None,
                None if all.has_group(mistake.entry().group) => return None,
                None => all = all.with(mistake, form),
            }
        }
        Some(all)
    }
}

/// Text or formula of a mistake with its form.
pub fn filled(text: &str, form: u32) -> String {
    text.replace("{form}", &form.to_string())
}

impl Entry {
    /// Sizes of tiles that are tried where no mistake with a usual size explains a kernel.
    pub fn unusual_tiles(&self) -> impl Iterator<Item = u32> + '_ {
        let tiles = self.forms.contains(&16) && self.text.contains("{form}") && self.group != "scale";
        (1..=if tiles { 200 } else { 0 }).filter(move |size| !self.forms.contains(size))
    }
}
