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
