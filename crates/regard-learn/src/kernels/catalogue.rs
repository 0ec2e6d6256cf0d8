//! The catalogue: known mistakes of attention kernels. Each is a switch of the reference program (`program.rs`).

use super::problem::Problem;
use super::when::When;

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

/// Blocks of queries and tiles of keys, as 1000 times the one plus the other; from a million on with another bound of the loop.
const CAUSAL_LOOPS: &[u32] =
    &[64_032, 128_064, 32_016, 128_032, 64_016, 16_008, 1_064_032, 1_128_064, 1_032_016, 1_128_032, 1_064_016, 1_016_008];
const WINDOW_LOOPS: &[u32] = &[
    16_016, 32_016, 32_032, 64_016, 64_032, 64_064, 128_016, 128_032, 128_064, 128_128, 16_032, 16_064, 32_064, 64_128, //
    1_016_016, 1_032_016, 1_032_032, 1_064_016, 1_064_032, 1_064_064, 1_128_064, 1_016_032, 1_016_064, 1_032_064, 1_064_128, //
    2_016_016, 2_032_016, 2_032_032, 2_064_016, 2_064_032, 2_064_064, 2_128_064, 2_016_032, 2_016_064, 2_032_064, 2_064_128,
];

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
    CausalLoopShort "causal-loop-short" "causal" CAUSAL_LOOPS,
        "with the causal mask the loop over keys ends too early: rows of a block of {queries} queries lose keys (tiles of {keys})",
        "tiles of keys up to the first query of the block", "https://github.com/jax-ml/jax/pull/17314";
    OffsetIgnored "offset-ignored" "offset" ONE, "the position of the first query is ignored: it is taken for 0",
        "j <= i in place of j <= i + offset",
        "https://github.com/pytorch/executorch/issues/9105";
    OffsetMore "offset-one-more" "offset" ONE, "the position of the first query is one too large", "j <= i + offset + 1", "";
    OffsetLess "offset-one-less" "offset" ONE, "the position of the first query is one too small", "j <= i + offset - 1", "";
    OffsetAllocated "offset-allocated" "offset" ONE, "the last query stands at the last allocated key, not at the last valid one",
        "i + allocated - n in place of i + length - n", "";
    OffsetLongest "offset-of-longest" "offset" TWO, "positions are those of the longest sequence, or of batch 0, for every batch",
        "i + max length - n in place of i + length - n", "";
    WindowLeftShort "window-left-short" "window" TWO, "the window is one key too short on the left: exclusive in place of inclusive",
        "i - j < left in place of i - j <= left", "https://github.com/huggingface/transformers/issues/39408";
    WindowLeftLong "window-left-long" "window" ONE, "the window is one key too long on the left", "i - j <= left + 1",
        "https://github.com/zml/zml/pull/763";
    WindowRightShort "window-right-short" "window" &[0, 1, 2], "the window is one key too short on the right", "j - i < right",
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
    WindowLoop "window-loop-bounds" "window" WINDOW_LOOPS,
        "the loop over keys begins or ends inside of the window of some rows of a block of {queries} queries (tiles of {keys} keys)",
        "bounds of the loop from the wrong row of the block", "https://github.com/tile-ai/TileOPs/pull/296";
    WindowChunks "window-by-chunks" "window" ONE, "the window is cut into chunks: a query sees the keys of its own chunk only",
        "i / size = j / size in place of i - j < size", "";
    WindowSymmetric "window-symmetric" "window" TWO, "the left size of the window is used on both sides", "|i - j| <= left", "";
    WindowKeepsFirst "window-keeps-first" "window" &[4, 1], "the first {form} keys stay visible outside of the window",
        "j < {form}, or in the window", "";
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
    BiasBase2 "bias-without-log2e" "bias" TWO, "the bias is not multiplied by log2(e) before powers of 2",
        "2^(s log2 e + bias) in place of 2^((s + bias) log2 e)",
        "https://github.com/meta-pytorch/segment-anything-fast/pull/71";
    BiasTwice "bias-twice" "bias" ONE, "the bias is added twice", "q.k * scale + 2 bias", "";
    BiasTransposed "bias-transposed" "bias" ONE, "the bias is read with queries and keys exchanged", "bias[j, i]", "";
    BiasAsFlags "bias-as-flags" "bias" &[0, 1], "a float mask is read as booleans", "bias != 0 decides who is visible", "";
    PlaneFirstBatch "mask-first-batch" "plane" TWO, "the mask or bias of batch 0 is used for every batch", "mask[0]",
        "https://github.com/tenstorrent/tt-metal/issues/42846";
    PlaneFirstHead "mask-first-head" "plane" TWO, "the mask or bias of head 0 is used for every head", "mask[b, 0]", "";
    PlaneFirstRow "mask-first-row" "plane" TWO, "the mask or bias of query 0 is used for every query", "mask[b, h, 0]", "";
    PlaneHeadsMixed "mask-heads-mixed" "plane" TWO, "the mask of a batch is repeated over the heads in the wrong order",
        "mask[(b * heads + h) % batches] in place of mask[b]", "";
    PlaneFirstTile "mask-first-tile" "plane" TILES, "each tile of {form} keys reads the mask of the first one", "mask[i, j % {form}]", "";
    PlaneKeyHead "mask-key-head" "plane" TWO, "a query head reads the mask or bias of its key head", "mask[b, h / group]", "";
    MaskPolarity "mask-polarity" "mask" ONE, "the mask is inverted: true hides", "visible where the mask is false",
        "https://github.com/rasbt/LLMs-from-scratch/issues/1061";
    MaskIgnored "mask-ignored" "mask" ONE, "the mask is not applied", "all keys are visible", "";
    MaskAdded "mask-as-number" "mask" ONE, "the boolean mask is added to the scores as 0 and 1",
        "s + 1 where visible, s + 0 where hidden", "";
    MaskZero "mask-zero-scores" "mask" ONE, "hidden scores are set to 0, and exp(0) = 1", "s * mask in place of -inf", "";
    MaskAfter "mask-after-softmax" "mask" ONE, "the mask is applied after the softmax: visible weights do not sum to 1",
        "softmax(s) * mask", "";
    MaskTransposed "mask-transposed" "mask" ONE, "the mask is read with queries and keys exchanged", "mask[j, i]", "";
    MaskAsLengths "mask-as-lengths" "mask" &[0, 1, 2, 3, 4],
        "the boolean mask is taken for padding: a number of visible keys takes the place of the mask itself",
        "j < number of true in a row", "https://github.com/microsoft/onnxruntime/issues/27885";
    HiddenFinite "hidden-finite" "empty" &[10_000, 10_009, 1_000_000_000, 1_000_000_009, 4_000_000_000, 4_000_000_009],
        "hidden scores are a finite number, not -inf: rows without a visible key average, and hidden keys can win",
        "-1e4, -1e9 or the lowest float in place of -inf", "https://github.com/pytorch/pytorch/issues/109517";
    GqaModulo "gqa-modulo" "gqa" ONE, "grouped heads are assigned by remainder, not by division",
        "key head h % heads_kv in place of h / group", "https://github.com/onnx/onnx/pull/7274";
    GqaFirst "gqa-first-head" "gqa" ONE, "all query heads read key head 0", "key head 0", "";
    GqaByHeads "gqa-wrong-divisor" "gqa" ONE, "grouped heads are divided by the number of key heads, not by the group size",
        "key head h / heads_kv", "";
    GqaValues "gqa-values" "gqa-values" &[0, 1, 2], "grouped heads read the values of another key head than their keys",
        "v of head h % heads_kv with k of head h / group", "";
    BatchFirst "batch-first" "batch" ONE, "every batch reads k and v of batch 0", "k[0], v[0]",
        "https://github.com/pytorch/pytorch/issues/191937";
    PagesInOrder "block-table-ignored" "batch" ONE, "the block table is ignored: pages are read in the order of memory",
        "page s * pages + p in place of table[s, p]", "https://github.com/tanishqkumar/ssd/issues/23";
    BatchLast "batch-last-missing" "batch-last" ONE, "the last batch or sequence is not computed: its output is 0", "0", "";
    LengthsIgnored "lengths-ignored" "lengths" TWO, "key lengths are ignored: padding is visible", "j < m in place of j < length", "";
    LengthsInclusive "lengths-inclusive" "lengths" TWO, "key lengths are inclusive: one key of padding is visible", "j <= length", "";
    LengthsShort "lengths-short" "lengths" TWO, "the last valid key is not visible", "j < length - 1", "";
    LengthsFirst "lengths-first" "lengths" ONE, "the key length of batch 0 is used for every batch", "j < lengths[0]", "";
    LengthsLongest "lengths-longest" "lengths" ONE, "the largest key length is used for every batch", "j < max lengths", "";
    LengthsRounded "lengths-rounded" "lengths" &[16, 32, 64, 8, 4],
        "key lengths are rounded up to tiles of {form} keys: padding is visible",
        "j < length rounded up to a multiple of {form}", "";
    LengthsTailLost "lengths-tail-lost" "lengths" &[16, 32, 64, 8, 4], "valid keys behind the last full tile of {form} keys are left out",
        "j < length / {form} * {form}", "";
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
    PackedGlobal "cu-seqlens-global-positions" "packed" ONE,
        "positions are those in the packed arrays, not those in the sequence", "cu_k[s] + j <= cu_q[s] + i", "";
    TailDropped "tail-dropped" "tail" &[16, 32, 64, 128, 8, 4, 256, 512, 1024],
        "the last, incomplete tile of {form} keys is left out", "keys 0 .. m / {form} * {form}", "";
    TailZeros "tail-zeros" "tail" &[8, 16, 32, 64, 128],
        "the last tile of {form} keys reads zeros past the end: they take part in the softmax",
        "m padded to a multiple of {form}", "https://github.com/pytorch/pytorch/issues/169222";
    TailNext "tail-past-end" "tail" TILES, "the last tile of {form} keys reads past the end, into the next head", "keys of the next head",
        "https://github.com/pytorch/pytorch/issues/169222";
    QueryTail "query-tail-zero" "tail" TILES, "the last, incomplete tile of {form} queries is not written",
        "rows 0 .. n / {form} * {form}", "";
    QueryTailBackward "query-tail-in-backward" "tail-backward" TILES,
        "dk and dv lack the queries of the last, incomplete tile of {form}", "sum over rows 0 .. n / {form} * {form}", "";
    FirstTileEmpty "first-tile-empty" "first" TILES, "a row whose first tile of {form} keys is hidden becomes NaN: exp(-inf - -inf)",
        "exp(old_max - new_max) with both -inf", "https://github.com/pytorch/executorch/issues/10466";
    FirstTileStops "first-tile-gives-up" "first" TILES, "a row whose first tile of {form} keys is hidden is given up: it becomes 0",
        "0 in place of the later tiles", "https://github.com/pytorch/executorch/issues/10466";
    LoopEnds "loop-ends-at-hidden-tile" "first" TILES, "the loop over keys ends at the first tile of {form} keys that a row does not see",
        "break in place of continue", "";
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
    MaxShared "max-of-all-rows" "max" TWO, "one maximum for all rows of a head: rows with smaller scores underflow",
        "exp(s - largest s of all rows)", "";
    Unnormalised "not-normalised" "sum" ONE, "the output is not divided by the row sum", "sum of exp(s - max) v", "";
    SumPlusOne "sum-plus-one" "sum" TWO, "the row sum has a 1 too much", "exp(s - max) / (1 + sum)", "";
    NoSoftmax "softmax-missing" "sum" ONE, "there is no softmax: the scores are the weights", "s v in place of softmax(s) v", "";
    SplitsPlain "splits-not-rescaled" "online" &[1002, 1003, 1004, 1102, 16, 32, 64, 128, 8, 4, 256],
        "parts of the keys have a softmax each, and their outputs are averaged without their log-sum-exp",
        "mean of the parts in place of their merge", "";
    SplitsLocal "splits-local-sums" "online" &[1002, 1003, 1004, 1102, 16, 32, 64, 128, 8, 4, 256],
        "parts of the keys are merged by their sums, each relative to its own maximum",
        "weights sum exp(s - max of the part)", "";
    SinkIgnored "sink-ignored" "sink" ONE, "the sink is not in the sum", "sum exp(s)", "";
    SinkNotInMax "sink-not-in-max" "sink" &[0, 1, 2], "the sink is in the sum but not in the maximum", "sum exp(s - max) + exp(sink)", "";
    SinkScaled "sink-scaled" "sink" ONE, "the sink is multiplied by the scale", "exp(sink * scale - max)", "";
    SinkFirst "sink-first-head" "sink" ONE, "the sink of head 0 is used for every head", "sink[0]", "";
    SinkKeyHead "sink-key-head" "sink" ONE, "the sink of the key head is used", "sink[h / group]", "";
    SinkBase2 "sink-without-log2e" "sink" TWO, "the sink is not multiplied by log2(e) before powers of 2", "2^(sink - max)", "";
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
    AlibiBase2 "alibi-without-log2e" "alibi" TWO, "the ALiBi bias is not multiplied by log2(e) before powers of 2",
        "2^(s log2 e - slope * distance)", "";
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
    DropoutKeepsP "dropout-keeps-p" "dropout-p" ONE, "p is taken for the probability that a weight is kept, not that it is dropped",
        "kept with probability p in place of 1 - p", "";
    DropoutIgnored "dropout-ignored" "dropout" ONE, "no weight is dropped", "w", "";
    DropoutBackward "dropout-backward-differs" "dropout" ONE, "the backward pass drops other weights than the forward pass", "another mask",
        "https://github.com/Dao-AILab/flash-attention/issues/612";
    DropoutBackwardNone "dropout-not-in-backward" "dropout" ONE, "the backward pass does not drop", "dv = w^T d_out", "";
    DqUnscaled "dq-unscaled" "dq" ONE, "dq lacks the scale", "dS k in place of dS k * scale", "";
    DqBase "dq-log2e" "dq" &[0, 1], "dq has a factor of powers of 2 too much", "dq * log2(e)", "";
    DkBase "dk-log2e" "dk" &[0, 1], "dk has a factor of powers of 2 too much", "dk * log2(e)", "";
    DkUnscaled "dk-unscaled" "dk" ONE, "dk lacks the scale", "dS^T q in place of dS^T q * scale", "";
    DqDefault "dq-default-scale" "dq" ONE, "dq is multiplied by 1/sqrt(d) whatever the scale is", "dS k / sqrt(d)", "";
    DkDefault "dk-default-scale" "dk" ONE, "dk is multiplied by 1/sqrt(d) whatever the scale is", "dS^T q / sqrt(d)", "";
    DqTwice "dq-scaled-twice" "dq" ONE, "dq is multiplied by the scale twice", "dS k * scale^2", "";
    DkTwice "dk-scaled-twice" "dk" ONE, "dk is multiplied by the scale twice", "dS^T q * scale^2", "";
    WeightsUnnormalised "backward-not-normalised" "backward-sum" ONE, "the backward pass does not divide the weights by the row sum",
        "exp(s - max) in place of exp(s - lse)", "";
    DeltaMissing "delta-missing" "delta" ONE, "dS lacks delta: the weights of a row compete", "w dP in place of w (dP - delta)", "";
    DeltaAdded "delta-added" "delta" ONE, "delta is added", "w (dP + delta)", "";
    DeltaOutside "delta-outside" "delta" ONE, "delta is not multiplied by the weights", "w dP - delta", "";
    DeltaTile "delta-by-tile" "delta" TILES, "delta is summed over the tile of {form} keys alone, not over the row",
        "delta of the tile", "";
    DeltaUndropped "delta-without-dropout" "delta" ONE, "delta is that of the weights before dropout", "sum of w (d_out . v)", "";
    ValuesTruncated "value-dim-in-backward" "delta-values" ONE,
        "the backward pass reads as many elements of a value as the head dimension has", "sum over c < d of d_out . v",
        "https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27";
    DsIsDp "softmax-not-differentiated" "delta" ONE, "the softmax is not differentiated", "dS = dP", "";
    DkDvSwapped "dk-dv-swapped" "order" ONE, "dk and dv are exchanged", "dv, dk", "";
    DqDkSwapped "dq-dk-swapped" "order" ONE, "dq and dk are exchanged", "dk, dq", "";
    SoftcapGradient "softcap-gradient-missing" "softcap-gradient" &[0, 1, 2], "the backward pass has not the derivative of the softcap",
        "1, 1 + tanh^2 or 1 - tanh in place of 1 - tanh^2", "";
    BiasGradient "bias-gradient-not-summed" "bias-gradient" &[0, 1, 2],
        "the bias gradient is not summed over the dimensions that were broadcast",
        "one of the terms in place of their sum", "";
    BiasGradientScaled "bias-gradient-scaled" "bias-scaled" ONE, "the bias gradient is multiplied by the scale", "dS * scale", "";
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
    MergeLse "merge-lse" "merge-lse" &[0, 1, 2], "the merged log-sum-exp is the larger one, the first one, or their sum",
        "max in place of log(e^a + e^b)", "";
    MergeNoMax "merge-without-max" "merge-max" ONE, "the merge overflows: the larger log-sum-exp is not subtracted", "exp(lse)", "";
    MergeEmptyNan "merge-empty-nan" "merge-empty" ONE, "merging two empty states gives NaN", "exp(-inf - -inf)",
        "https://github.com/flashinfer-ai/flashinfer/issues/4051";
    KScaleBlock "k-scale-by-block" "k-scale" TILES, "scales of k per row are read as scales per block of {form} rows",
        "scale[j / {form}]", "";
    KScaleFirst "k-scale-first-of-block" "k-scale" TILES, "a block of {form} rows of k uses the scale of its first row",
        "scale[j - j % {form}]", "";
    KScaleIgnored "k-scale-ignored" "k-scale" ONE, "the scales of k are ignored", "q.k8", "";
    KScaleHead "k-scale-first-head" "k-scale" ONE, "the scales of key head 0 are used for every head", "scale[j, 0]", "";
    KScaleInverted "k-scale-inverted" "k-scale" ONE, "k is divided by its scales", "q.k8 / scale", "";
    HeadDimTail "head-dim-tail-dropped" "dim" &[8, 16, 32, 64, 4],
        "the head dimension behind the last multiple of {form} is left out of the scores", "sum over c < d / {form} * {form}", "";
    HeadDimLimit "head-dim-limit" "dim" &[64, 128, 32], "the scores use the first {form} elements of the head dimension only",
        "sum over c < {form}", "";
    Rounded "half-precision-inside" "rounded" &[0, 1, 2, 3, 4, 5],
        "half precision inside: inputs, weights or output of f32 are rounded to 16 bits", "f16 or bf16 in place of f32", "";
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
    Mistake::MaxShared,
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

/// The parts of a kernel that make a mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    #[default]
    All,
    /// Output and log-sum-exp: the gradients are right.
    Forward,
    /// Gradients, from weights and delta that the right log-sum-exp and output give.
    Recomputed,
    /// Gradients, as if the forward pass had made the mistake, too.
    Gradients,
    Dq,
    DkDv,
    Dk,
    Dv,
}

impl Part {
    /// All that a mistake may be confined to.
    pub const CONFINED: [Part; 7] = [Part::Forward, Part::Recomputed, Part::Gradients, Part::Dq, Part::DkDv, Part::Dk, Part::Dv];

    /// Whether it makes this result, by its place in [`super::RESULTS`].
    pub fn makes(self, result: usize) -> bool {
        match self {
            Part::All => true,
            Part::Forward => result < 2,
            Part::Recomputed | Part::Gradients => result >= 2,
            Part::Dq => result == 2,
            Part::DkDv => result == 3 || result == 4,
            Part::Dk => result == 3,
            Part::Dv => result == 4,
        }
    }

    /// Whether it takes log-sum-exp and output from the forward pass.
    pub fn recomputes(self) -> bool {
        !matches!(self, Part::All | Part::Forward | Part::Gradients)
    }

    fn words(self) -> Option<&'static str> {
        match self {
            Part::All => None,
            Part::Forward => Some("in the forward pass"),
            Part::Recomputed | Part::Gradients => Some("in the backward pass"),
            Part::Dq => Some("in dq"),
            Part::DkDv => Some("in dk and dv"),
            Part::Dk => Some("in dk"),
            Part::Dv => Some("in dv"),
        }
    }
}

/// A mistake with its form, where it is made, and in which calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Occurrence {
    pub mistake: Mistake,
    pub form: u32,
    pub part: Part,
    pub when: When,
}

impl Occurrence {
    /// A mistake that is made everywhere and always.
    pub fn new(mistake: Mistake, form: u32) -> Self {
        Self { mistake, form, part: Part::All, when: When::default() }
    }

    /// Where it is made, if not everywhere: "only with the causal mask".
    pub fn only(&self) -> Option<String> {
        let words: Vec<&str> = self.part.words().into_iter().chain(self.when.words()).collect();
        (!words.is_empty()).then(|| format!("only {}", words.join(" and ")))
    }

    /// What restricts it, counted.
    pub fn restrictions(&self) -> usize {
        usize::from(self.part != Part::All) + self.when.words().count()
    }
}

/// A set of mistakes with their forms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches(Vec<Occurrence>);

impl Switches {
    pub fn of(set: &[Occurrence]) -> Self {
        set.iter().fold(Self::default(), |all, one| all.and(*one))
    }

    pub fn with(&self, mistake: Mistake, form: u32) -> Self {
        self.and(Occurrence::new(mistake, form))
    }

    pub fn and(&self, occurrence: Occurrence) -> Self {
        let mut more = self.clone();
        more.0.retain(|one| one.mistake != occurrence.mistake);
        more.0.push(occurrence);
        more.0.sort_unstable();
        more
    }

    /// Those that are made in this call.
    pub fn made_in(&self, problem: &Problem) -> Self {
        Self(self.0.iter().filter(|one| one.when.holds(problem)).map(|one| Occurrence { when: When::default(), ..*one }).collect())
    }

    /// Those that are made where this result is computed.
    pub fn made_for(&self, result: usize) -> Self {
        Self(self.0.iter().filter(|one| one.part.makes(result)).copied().collect())
    }

    pub fn on(&self, mistake: Mistake) -> bool {
        self.0.iter().any(|one| one.mistake == mistake)
    }

    pub fn form(&self, mistake: Mistake) -> Option<u32> {
        self.0.iter().find(|one| one.mistake == mistake).map(|one| one.form)
    }

    pub fn all(&self) -> &[Occurrence] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a mistake of the same group is among them.
    pub fn has_group(&self, group: &str) -> bool {
        self.0.iter().any(|one| one.mistake.entry().group == group)
    }

    /// Both sets; `None` where a group would occur twice.
    pub fn union(&self, other: &Self) -> Option<Self> {
        let mut all = self.clone();
        for one in &other.0 {
            if !all.0.contains(one) {
                if all.has_group(one.mistake.entry().group) {
                    return None;
                }
                all = all.and(*one);
            }
        }
        Some(all)
    }
}

/// Text or formula of a mistake with its form.
pub fn filled(text: &str, form: u32) -> String {
    let [queries, keys] = [form / 1000 % 1000, form % 1000].map(|size| size.to_string());
    text.replace("{form}", &form.to_string()).replace("{queries}", &queries).replace("{keys}", &keys)
}

impl Entry {
    /// Sizes of tiles that are tried where no mistake with a usual size explains a kernel.
    pub fn unusual_tiles(&self) -> impl Iterator<Item = u32> + '_ {
        let tiles = self.forms.contains(&16) && self.text.contains("{form}") && self.group != "scale";
        (1..=if tiles { 200 } else { 0 }).filter(move |size| !self.forms.contains(size))
    }
}
