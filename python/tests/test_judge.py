"""The judge of attention functions, on functions of this process."""

import numpy as np
import pytest
import regard


def attention(q, k, v, causal=False, scale=None):
    scores = np.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    n, m = scores.shape[-2:]
    visible = np.ones((n, m), bool)
    if causal:
        visible = np.arange(m) <= np.arange(n)[:, None] + m - n
    out = np.zeros(q.shape[:-1] + v.shape[-1:], np.float32)
    for row in range(n):
        sees = visible[row]
        if sees.any():
            seen = scores[:, :, row, sees]
            weights = np.exp(seen - seen.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out[:, :, row] = np.einsum("bhj,bhjd->bhd", weights, v[:, :, sees])
    return out


def unscaled(q, k, v, causal=False, scale=None):
    return attention(q, k, v, causal, 1.0)


def test_a_right_function_is_accepted():
    verdict = regard.judge(attention)
    assert verdict.right and verdict.mistakes == [], verdict.text
    assert regard.testing.assert_attention(attention).right


def test_a_mistake_is_named():
    verdict = regard.judge(unscaled)
    assert not verdict.right and verdict.mistakes == ["scale-missing"], verdict.text
    with pytest.raises(AssertionError, match="scale-missing"):
        regard.testing.assert_attention(unscaled)


def test_what_cannot_be_called_is_an_error():
    with pytest.raises(ValueError, match="cannot be judged"):
        regard.judge(lambda one: one)


def weights_of(scores):
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def visible_only(weights, v):
    return np.where(weights[..., None] == 0, 0, weights[..., None] * v[..., None, :, :]).sum(-2)


def two_sides(q, k, v, causal=False, window_left=-1, window_right=-1):
    n, m, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    i, j = np.arange(n)[:, None] + m - n, np.arange(m)
    hidden = (causal & (j > i)) | ((window_left >= 0) & (i - j > window_left)) | ((window_right >= 0) & (j - i > window_right))
    return visible_only(weights_of(np.where(hidden, -np.inf, scores)), np.repeat(v, group, 1))


def scale_required(q, k, v, *, scale, mask=None):
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).swapaxes(-1, -2) * np.float32(scale)
    return visible_only(weights_of(scores if mask is None else np.where(mask, scores, -np.inf)), np.repeat(v, group, 1))


def packed(q, k, v, cu_seqlens_q, cu_seqlens_k):
    out, group = np.zeros(q.shape[:2] + v.shape[-1:], q.dtype), q.shape[1] // k.shape[1]
    for s in range(len(cu_seqlens_q) - 1):
        rows, keys = slice(*cu_seqlens_q[s : s + 2]), slice(*cu_seqlens_k[s : s + 2])
        scores = np.einsum("qhd,khd->hqk", q[rows], np.repeat(k[keys], group, 1)) * np.float32(q.shape[-1] ** -0.5)
        out[rows] = np.einsum("hqk,khd->qhd", weights_of(scores), np.repeat(v[keys], group, 1))
    return out


def layer(module, query, key, value, attention_mask, scaling, **kwargs):
    """As in transformers: a layer, an additive mask, the output with heads behind the sequence."""
    group = module.num_key_value_groups
    scores = query @ np.repeat(key, group, 1).swapaxes(-1, -2) * np.float32(scaling)
    if attention_mask is not None:
        scores = np.where(attention_mask, scores, -np.inf) if attention_mask.dtype == bool else scores + attention_mask
    weights = weights_of(scores)
    return visible_only(weights, np.repeat(value, group, 1)).swapaxes(1, 2), weights


@pytest.mark.parametrize("function", [two_sides, scale_required, packed, layer])
def test_signatures_of_other_libraries_are_understood(function):
    verdict = regard.judge(function)
    assert verdict.right, verdict.text


@pytest.mark.parametrize("function", [regard.attention, regard.attention_varlen, regard.merge])
def test_functions_of_this_package_are_right(function):
    verdict = regard.judge(function)
    assert verdict.right and verdict.limits == [], verdict.text


def backward(q, k, v, out, lse, dout, softmax_scale=None):
    """As in flash-attention: `[batch, seq, heads, dim]`, with what the forward pass kept."""
    group = q.shape[2] // k.shape[2]
    scale = np.float32(q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    keys, values = np.repeat(k, group, 2), np.repeat(v, group, 2)
    weights = np.exp(np.einsum("bqhd,bkhd->bhqk", q, keys) * scale - lse[..., None])
    delta = np.einsum("bqhd,bqhd->bhq", dout, out)[..., None]
    d_scores = weights * (np.einsum("bqhd,bkhd->bhqk", dout, values) - delta)

    def summed(x):
        return x.reshape(x.shape[:2] + (-1, group, x.shape[-1])).sum(3)

    dq = np.einsum("bhqk,bkhd->bqhd", d_scores, keys) * scale
    dk = np.einsum("bhqk,bqhd->bkhd", d_scores, q) * scale
    return dq, summed(dk), summed(np.einsum("bhqk,bqhd->bkhd", weights, dout))


def backward_unscaled(q, k, v, out, lse, dout, softmax_scale=None):
    dq, dk, dv = backward(q, k, v, out, lse, dout, softmax_scale)
    return dq, dk / np.float32(q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale), dv


def test_a_backward_function_is_judged_alone():
    verdict = regard.judge(backward)
    assert verdict.right, verdict.text
    assert regard.judge(backward_unscaled).mistakes == ["dk-unscaled"]


def test_arguments_without_a_default_get_a_value_that_changes_nothing():
    def with_sinks(q, k, v, scale, mask, sinks):
        scores = np.where(mask, q @ k.swapaxes(-1, -2) * np.float32(scale), -np.inf)
        sink = np.broadcast_to(sinks[:, None, None], scores.shape[:-1] + (1,))
        return visible_only(weights_of(np.concatenate([scores, sink], -1))[..., :-1], v)

    def outside_of_the_maximum(q, k, v, scale, mask, sinks):
        scores = np.where(mask, q @ k.swapaxes(-1, -2) * np.float32(scale), -np.inf)
        top = scores.max(-1, keepdims=True)
        e = np.exp(scores - np.where(np.isneginf(top), 0, top))
        return visible_only(e / (e.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None]), v)

    verdict = regard.judge(with_sinks)
    assert verdict.right, verdict.text
    verdict = regard.judge(outside_of_the_maximum)
    assert verdict.mistakes[0] == "sink-not-in-max", verdict.text


def test_a_mask_that_replaces_the_causal_one_is_named():
    def either(query, key, value, attn_mask=None, is_causal=False):
        scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        elif attn_mask is not None:
            scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
        return visible_only(weights_of(scores), value)

    assert regard.judge(either).mistakes == ["mask-lost-with-causal"]


def test_a_maximum_before_a_negative_scale_is_named():
    def before(query, key, value, scale=None):
        scores = query @ key.swapaxes(-1, -2)
        with np.errstate(all="ignore"):
            e = np.exp((scores - scores.max(-1, keepdims=True)) * np.float32(query.shape[-1] ** -0.5 if scale is None else scale))
            return e / e.sum(-1, keepdims=True) @ value

    assert regard.judge(before).mistakes == ["max-before-scale"]


def rows_of(q, k, v, visible, scale):
    """Heads in front; visible keys of each query."""
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).swapaxes(-1, -2) * np.float32(scale)
    return visible_only(weights_of(np.where(visible, scores, -np.inf)), np.repeat(v, group, 1))


def test_q_k_and_v_in_one_array():
    def packed(qkv, softmax_scale=None, causal=False, strict=False):
        q, k, v = (qkv[:, :, part].swapaxes(1, 2) for part in range(3))
        n = q.shape[2]
        seen = np.tri(n, k=-1 if strict else 0, dtype=bool) if causal else np.ones((n, n), bool)
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        return rows_of(q, k, v, seen, scale).swapaxes(1, 2)

    def exclusive(qkv, softmax_scale=None, causal=False):
        return packed(qkv, softmax_scale, causal, strict=True)

    verdict = regard.judge(packed)
    assert verdict.right, verdict.text
    assert regard.judge(exclusive).mistakes == ["causal-exclusive"]


def test_heads_and_head_dimension_in_one():
    def joined(query, key, value, num_heads, of_all=False):
        def split(x):
            return x.reshape(x.shape[:2] + (num_heads, -1)).swapaxes(1, 2)
        scale = (query.shape[-1] if of_all else query.shape[-1] // num_heads) ** -0.5
        return rows_of(split(query), split(key), split(value), True, scale).swapaxes(1, 2).reshape(query.shape[:2] + (-1,))

    def model_wide(query, key, value, num_heads):
        return joined(query, key, value, num_heads, of_all=True)

    verdict = regard.judge(joined)
    assert verdict.right, verdict.text
    assert regard.judge(model_wide).mistakes == ["scale-model-dim"]


def test_one_query_without_a_dimension_for_it():
    def decode(query, key_cache, value_cache, context_lens, scale, more=0):
        keys, values = key_cache.swapaxes(1, 2), value_cache.swapaxes(1, 2)
        seen = np.arange(keys.shape[2]) < np.asarray(context_lens)[:, None, None, None] + more
        return rows_of(query[:, :, None], keys, values, seen, scale)[:, :, 0]

    def inclusive(query, key_cache, value_cache, context_lens, scale):
        return decode(query, key_cache, value_cache, context_lens, scale, more=1)

    verdict = regard.judge(decode)
    assert verdict.right, verdict.text
    assert regard.judge(inclusive).mistakes == ["lengths-inclusive"]


def test_keys_in_pages():
    def paged(q, k_cache, v_cache, cache_seqlens, block_table, in_order=False):
        if in_order:
            block_table = np.arange(block_table.size).reshape(block_table.shape)
        k, v = (x[block_table].reshape((len(q), -1) + x.shape[2:]).swapaxes(1, 2) for x in (k_cache, v_cache))
        seen = np.arange(k.shape[2]) < np.asarray(cache_seqlens)[:, None, None, None]
        return rows_of(q.swapaxes(1, 2), k, v, seen, q.shape[-1] ** -0.5).swapaxes(1, 2)

    def in_the_order_of_memory(q, k_cache, v_cache, cache_seqlens, block_table):
        return paged(q, k_cache, v_cache, cache_seqlens, block_table, in_order=True)

    verdict = regard.judge(paged)
    assert verdict.right, verdict.text
    assert regard.judge(in_the_order_of_memory).mistakes == ["block-table-ignored"]


def test_a_mistake_of_some_calls_is_named_with_them():
    def decodes_otherwise(query, key, value, attn_mask=None, is_causal=False, scale=None):
        n, m = query.shape[2], key.shape[2]
        scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5 if scale is None else scale)
        if n == 1:
            scores = scores / np.float32(query.shape[-1] ** -0.5 if scale is None else scale)
        if attn_mask is not None:
            scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
        return visible_only(weights_of(np.where(np.tri(n, m, dtype=bool) | (not is_causal), scores, -np.inf)), value)

    verdict = regard.judge(decodes_otherwise)
    assert verdict.mistakes == ["scale-missing"], verdict.text
    assert verdict.record["mistakes"][0]["only"] == "only with one query"
