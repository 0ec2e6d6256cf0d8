"""Packed sequences: each is what it is alone, forward and backward."""

import numpy as np
import pytest

import regard
from regard import Mask

ENDS_Q = np.array([0, 5, 5, 6, 40, 43])
ENDS_K = np.array([0, 7, 7, 70, 70, 80])

OPTIONS = {
    "full": {},
    "causal": dict(causal=True),
    "bottom_right": dict(causal="bottom_right"),
    "window": dict(window=(3, 1)),
    "offsets": dict(causal=True, q_offset=np.array([2, 0, 60, 0, 7])),
    "lengths": dict(kv_lens=np.array([3, 0, 50, 0, 10])),
    "softcap_scale_sink": dict(softcap=2.0, scale=0.3, sink=np.array([0.1, -0.2, 0.5, 1.0])),
    "slopes": dict(alibi=True),
    "table": dict(relative=np.linspace(-1, 1, 4 * 7, dtype=np.float32).reshape(4, 7)),
    "top_k": dict(top_k=3),
    "rule": dict(mask=Mask.causal() & (Mask.first_keys(1) | Mask.window(2, 0))),
}


def inputs(normal, dtype):
    return [normal(*shape).astype(dtype) for shape in ((43, 4, 8), (80, 2, 8), (80, 2, 6), (43, 4, 6))]


def alone(arrays, options, i):
    """Sequence i as tensors [1, heads, seq, dim], and its options."""
    ends = [ENDS_Q, ENDS_K, ENDS_K, ENDS_Q]
    parts = [x[at[i] : at[i + 1]].swapaxes(0, 1)[None] for x, at in zip(arrays, ends)]
    own = {name: x[i : i + 1] if name in ("q_offset", "kv_lens") else x for name, x in options.items()}
    return parts, own


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_sequence_is_what_it_is_alone(normal, name, dtype):
    arrays, options = inputs(normal, dtype), OPTIONS[name]
    out, lse = regard.attention_varlen(*arrays[:3], ENDS_Q, ENDS_K, return_lse=True, **options)
    gradients = regard.attention_varlen_vjp(*arrays, ENDS_Q, ENDS_K, **options)
    assert out.shape == (43, 4, 6) and lse.shape == (4, 43) and out.dtype == dtype
    sums = {}
    for i in range(len(ENDS_Q) - 1):
        (q, k, v, dout), own = alone(arrays, options, i)
        rows, keys = slice(ENDS_Q[i], ENDS_Q[i + 1]), slice(ENDS_K[i], ENDS_K[i + 1])
        expected, expected_lse = regard.attention(q, k, v, return_lse=True, **own)
        np.testing.assert_array_equal(out[rows].swapaxes(0, 1), expected[0])
        np.testing.assert_array_equal(lse[:, rows], expected_lse[0])
        right = regard.attention_vjp(q, k, v, dout, **own)
        for mine, part, which in zip(gradients, right, (rows, keys, keys)):
            np.testing.assert_array_equal(mine[which].swapaxes(0, 1), part[0])
        for field in ("d_sink", "d_relative"):
            if getattr(right, field) is not None:
                sums[field] = sums.get(field, 0) + getattr(right, field).astype(np.float64)
    for field, total in sums.items():
        np.testing.assert_allclose(getattr(gradients, field), total, rtol=1e-5, atol=1e-6)


def test_dropout_is_that_of_the_batch_entry(normal):
    x = normal(12, 2, 8)
    ends = [0, 5, 12]
    packed = regard.attention_varlen(x, x, x, ends, ends, dropout_p=0.5, seed=4)
    padded = np.zeros((2, 7, 2, 8), np.float32)
    padded[0, :5], padded[1] = x[:5], x[5:]
    batch = padded.swapaxes(1, 2)
    together = regard.attention(batch, batch, batch, kv_lens=[5, 7], dropout_p=0.5, seed=4)
    np.testing.assert_array_equal(packed[:5].swapaxes(0, 1), together[0, :, :5])
    np.testing.assert_array_equal(packed[5:].swapaxes(0, 1), together[1])


def test_threads_do_not_change_a_bit(normal):
    x, ends = normal(900, 4, 32), [0, 1, 300, 310, 900]
    one = regard.attention_varlen(x, x, x, ends, ends, causal=True, threads=1)
    for threads in (2, 3):
        np.testing.assert_array_equal(regard.attention_varlen(x, x, x, ends, ends, causal=True, threads=threads), one)


REFUSED = {
    "not_all_tokens": (dict(cu_seqlens_q=[0, 5, 42]), ValueError, ["cu_seqlens_q", "42", "43"]),
    "falling": (dict(cu_seqlens_k=[0, 81, 80]), ValueError, ["cu_seqlens_k"]),
    "not_from_zero": (dict(cu_seqlens_q=[1, 5, 43]), ValueError, ["cu_seqlens_q"]),
    "empty": (dict(cu_seqlens_q=[]), ValueError, ["cu_seqlens_q"]),
    "negative": (dict(cu_seqlens_q=[0, -5, 43]), ValueError, ["cu_seqlens_q[1]", "-5"]),
    "floats": (dict(cu_seqlens_q=[0.0, 5.0, 43.0]), TypeError, ["cu_seqlens_q"]),
    "other_count": (dict(cu_seqlens_k=[0, 80]), ValueError, ["cu_seqlens_k"]),
    "four_axes": (dict(q=np.zeros((1, 43, 4, 8), np.float32)), ValueError, ["q", "1, 43, 4, 8", "token"]),
    "array_mask": (dict(mask=np.ones((43, 80), bool)), ValueError, ["mask", "regard.Mask"]),
    "lengths_per_sequence": (dict(kv_lens=[1, 2, 3]), ValueError, ["kv_lens", "3", "2"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_text_that_helps(normal, name):
    change, error, words = REFUSED[name]
    good = dict(zip("qkv", inputs(normal, np.float32))) | dict(cu_seqlens_q=[0, 5, 43], cu_seqlens_k=[0, 7, 80])
    with pytest.raises(error) as caught:
        regard.attention_varlen(**(good | change))
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{caught.value} does not say {missing}"
