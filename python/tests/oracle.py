"""Textbook attention in NumPy, with the whole score matrix in memory.

    scores  = cap(q k^T * scale) + bias, then hidden keys taken out
    weights = softmax(scores) over the visible keys
    out     = weights v

Everything is computed in float64 unless `dtype` asks for the same steps in another precision;
the error of that naive run is the yardstick for `assert_as_good_as_naive`.
Rows without a visible key: out and weights 0, lse -inf.
"""

from types import SimpleNamespace

import numpy as np


def positions(batch, seq_q, seq_kv, causal=False, q_offset=None, kv_lens=None):
    """Place of every query on the key axis, [batch, seq_q], and the number of keys per batch entry."""
    lens = np.full(batch, seq_kv) if kv_lens is None else np.asarray(kv_lens, dtype=np.int64)
    if q_offset is None:
        q_offset = lens - seq_q if causal == "bottom_right" else 0
    first = np.broadcast_to(np.asarray(q_offset, dtype=np.int64), (batch,))
    return first[:, None] + np.arange(seq_q), lens


def structural_mask(batch, seq_q, seq_kv, *, causal=False, window=None, q_offset=None, kv_lens=None):
    """bool [batch, 1, seq_q, seq_kv]: what causal, window and lengths leave visible together."""
    place, lens = positions(batch, seq_q, seq_kv, causal, q_offset, kv_lens)
    ahead = np.arange(seq_kv) - place[:, :, None]
    seen = np.arange(seq_kv) < lens[:, None, None]
    seen = np.broadcast_to(seen, ahead.shape).copy()
    if causal:
        seen &= ahead <= 0
    if window is not None:
        left, right = (None if side == -1 else side for side in window)
        if left is not None:
            seen &= ahead >= -left
        if right is not None:
            seen &= ahead <= right
    return seen[:, None]


def keep_top(scores, visible, count):
    """Of the visible scores of each row, only the `count` greatest stay visible."""
    ranked = np.where(visible, scores, -np.inf)
    if count >= ranked.shape[-1]:
        return visible
    least = np.sort(ranked, axis=-1)[..., -count, None]
    return visible & (ranked >= least)


def dot_products(q, k):
    """Below float64 one chain of sums: a yardstick must not depend on how the NumPy of the day multiplies matrices."""
    if q.dtype == np.float64:
        return np.einsum("bhnd,bhmd->bhnm", q, k, optimize=True)
    scores = np.zeros((*q.shape[:3], k.shape[2]), dtype=q.dtype)
    for d in range(q.shape[3]):
        scores += q[..., :, None, d] * k[..., None, :, d]
    return scores


def attention(
    q, k, v, *, mask=None, bias=None, causal=False, scale=None, softcap=None, window=None,
    q_offset=None, kv_lens=None, top_k=None, sink=None, dtype=np.float64,
):
    """A namespace of out, weights, lse, visible and the scores after each stage (raw, softcap, bias)."""
    q, k, v = (np.asarray(x).astype(dtype) for x in (q, k, v))
    batch, heads_q, seq_q, head_dim = q.shape
    heads_kv, seq_kv = k.shape[1:3]
    group = heads_q // heads_kv
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    factor = dtype(scale if scale is not None else 1.0 / np.sqrt(max(head_dim, 1)))
    visible = structural_mask(
        batch, seq_q, seq_kv, causal=causal, window=window, q_offset=q_offset, kv_lens=kv_lens
    )
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        scores = dot_products(q, k) * factor
        raw = scores
        if softcap:
            scores = dtype(softcap) * np.tanh(scores / dtype(softcap))
        capped = scores
        for added in (mask, bias):
            if added is None:
                continue
            added = np.asarray(added)
            if added.dtype == bool:
                visible = visible & added
            else:
                added = added.astype(dtype)
                visible = visible & ~np.isneginf(added)
                scores = scores + added
        visible = np.broadcast_to(visible, scores.shape)
        if top_k is not None:
            visible = keep_top(scores, visible, top_k)
        scores = np.where(visible, scores, -np.inf)
        out, weights, lse = softmax_rows(scores, visible, v, sink)
    return SimpleNamespace(
        out=out, weights=weights, lse=lse, visible=visible, raw=raw, softcap=capped, bias=scores
    )


def softmax_rows(scores, visible, v, sink):
    row_max = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        extra = np.broadcast_to(np.asarray(sink, dtype=scores.dtype), scores.shape[1:2])
        extra = extra[None, :, None, None]
        row_max = np.maximum(row_max, extra)
    shift = np.where(np.isneginf(row_max), 0, row_max)
    grown = np.where(visible, np.exp(scores - shift), 0)
    row_sum = grown.sum(axis=-1, keepdims=True)
    if sink is not None:
        row_sum = row_sum + np.exp(extra - shift)
    weights = np.where(row_sum == 0, 0, grown / np.where(row_sum == 0, 1, row_sum))
    lse = (row_max + np.log(row_sum))[..., 0]
    return weighted_sum(weights, visible, v), weights, lse


def weighted_sum(weights, visible, v):
    if np.isfinite(v).all():
        return weights @ v
    out = np.zeros((*weights.shape[:3], v.shape[-1]), dtype=weights.dtype)
    for row in np.ndindex(*weights.shape[:3]):
        seen = visible[row]
        out[row] = weights[row][seen] @ v[row[:2]][seen]
    return out


def backward(q, k, v, dout, *, factors=None, dtype=np.float64, **options):
    """A namespace of dq, dk, dv, d_scores (as they enter the softmax), d_mask and d_sink, from the whole matrices.

        out = (weights * factors) v       dv = (weights * factors)^T dout
        weights = softmax(scores)         d_scores = weights * (d_weights - sum(d_weights * weights))
        scores = cap(raw) + mask          d_raw = d_scores * (1 - (capped / cap)^2)
        raw = q k^T * scale               dq = d_raw k * scale,  dk = d_raw^T q * scale
    """
    batch, heads_q, seq_q, head_dim = q.shape
    heads_kv, seq_kv = k.shape[1:3]
    group = heads_q // heads_kv
    forward = attention(q, k, v, dtype=dtype, **options)
    q, k, v, dout = (np.asarray(x).astype(dtype) for x in (q, k, v, dout))
    weights, many_k, many_v = forward.weights, k.repeat(group, axis=1), v.repeat(group, axis=1)
    factors = np.ones_like(weights) if factors is None else factors.astype(dtype)
    scale, softcap = options.get("scale"), options.get("softcap")
    scale = dtype(scale if scale is not None else 1.0 / np.sqrt(max(head_dim, 1)))
    d_weights = dout @ many_v.swapaxes(-1, -2) * factors
    delta = (d_weights * weights).sum(axis=-1, keepdims=True)
    d_scores = weights * (d_weights - delta)
    d_raw = d_scores * (1 - (forward.softcap / dtype(softcap)) ** 2) if softcap else d_scores
    by_kv_head = lambda x: x.reshape(batch, heads_kv, group, seq_kv, -1).sum(axis=2)
    result = SimpleNamespace(
        dq=d_raw @ many_k * scale, dk=by_kv_head(d_raw.swapaxes(-1, -2) @ q * scale),
        dv=by_kv_head((weights * factors).swapaxes(-1, -2) @ dout), d_scores=d_scores,
    )
    mask, sink = options.get("mask"), options.get("sink")
    if mask is not None and mask.dtype != bool:
        spread = tuple(range(4 - mask.ndim)) + tuple(4 - mask.ndim + i for i, n in enumerate(mask.shape) if n == 1)
        result.d_mask = d_scores.sum(axis=spread, keepdims=True).reshape(mask.shape)
    if sink is not None:
        share = np.exp(np.broadcast_to(sink, (heads_q,)).astype(dtype)[:, None] - forward.lse)
        result.d_sink = -(share * delta[..., 0]).sum(axis=(0, 2))
    return result


def gradients(*arrays, **options):
    """The tuple that regard.attention_vjp returns."""
    found = backward(*arrays, **options)
    return [getattr(found, name) for name in ("dq", "dk", "dv", "d_mask", "d_sink") if hasattr(found, name)]


def row_statistics(weights, place, local_window):
    """Per row [B, H, N]; `place` [B, N] is where each query stands on the key axis."""
    keys = np.arange(weights.shape[-1])
    distance = np.abs(keys - place[:, None, :, None])
    behind = place[:, None, :, None] - keys
    share = lambda chosen: (weights * chosen).sum(axis=-1)
    surprise = -np.log(np.where(weights > 0, weights, 1.0))
    return {
        "entropy": (weights * surprise).sum(axis=-1),
        "max_weight": weights.max(axis=-1),
        "argmax": weights.argmax(axis=-1),
        "sum_of_squares": (weights**2).sum(axis=-1),
        "diagonal_mass": share(behind == 0),
        "previous_token_mass": share(behind == 1),
        "first_token_mass": share(keys == 0),
        "local_mass": share(distance <= local_window),
        "mean_distance": share(distance),
    }


HALF_ULP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def assert_as_good_as_naive(got, exact, naive, what="out", factor=2.0, floor=2e-7):
    """Largest error at most `factor` times that of the naive computation, plus `floor` of the values' size."""
    got = np.asarray(got)
    assert got.shape == exact.shape, f"{what}: shape {got.shape}, expected {exact.shape}"
    if got.size == 0:
        return
    finite = np.isfinite(exact)
    size = np.abs(exact[finite]).max(initial=0.0)
    allowed = floor * max(size, 1.0) + HALF_ULP.get(str(got.dtype), 0.0) * size
    spread = np.abs(np.asarray(naive, dtype=np.float64) - exact)[finite]
    allowed += factor * spread[np.isfinite(spread)].max(initial=0.0)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0, atol=allowed, err_msg=what)


def check(got, q, k, v, **options):
    """`got` is right for these inputs, by the naive yardstick in the working precision of q."""
    exact = attention(q, k, v, **options).out
    working = np.float64 if q.dtype == np.float64 else np.float32
    naive = attention(q, k, v, dtype=working, **options).out
    assert got.dtype == q.dtype, f"out is {got.dtype}, q is {q.dtype}"
    assert_as_good_as_naive(got, exact, naive)
