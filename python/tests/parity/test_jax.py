"""regard.jax against the formula in JAX, where JAX is installed (pip install jax)."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import regard  # noqa: E402
import regard.jax as rj  # noqa: E402

RNG = np.random.default_rng(7)
VISIBLE = np.tri(6, dtype=bool) | (RNG.random((6, 6)) < 0.3)


def formula(q, k, v, mask=None, bias=None):
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
    return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, -1), v)


def operands(dtype=jnp.float32):
    return [jnp.asarray(RNG.standard_normal((2, 3, 6, 8)), dtype) for _ in range(3)]


@pytest.mark.parametrize("kind", ["plain", "bool", "float", "bias", "both"])
def test_arrays_and_their_gradients(kind):
    q, k, v = operands()
    numbers = jnp.asarray(RNG.standard_normal((3, 6, 6)), jnp.float32)
    more = {"plain": {}, "bool": {"mask": VISIBLE}, "float": {"mask": numbers}, "bias": {"bias": numbers}, "both": {"mask": VISIBLE, "bias": numbers}}[kind]
    fixed = {name: x for name, x in more.items() if x.dtype == bool}
    traced = {name: x for name, x in more.items() if x.dtype != bool}

    def loss(of):
        return jax.jit(jax.value_and_grad(lambda q, k, v, given: jnp.sum(jnp.sin(of(q, k, v, **given, **fixed))), argnums=(0, 1, 2, 3)))

    got, expected = (loss(of)(q, k, v, traced) for of in (rj.attention, formula))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_floats(dtype):
    q, k, v = operands(dtype)
    out = rj.attention(q, k, v, mask=VISIBLE)
    assert out.dtype == dtype
    np.testing.assert_allclose(out.astype(np.float32), formula(*(x.astype(np.float32) for x in (q, k, v)), mask=VISIBLE), atol=2e-2)
    assert jax.grad(lambda q: rj.attention(q, k, v).sum().astype(np.float32))(q).dtype == dtype


def test_described_masks_and_other_arrays():
    q, k, v = operands()
    np.testing.assert_array_equal(rj.attention(q, k, v, mask=regard.Mask.causal()), rj.attention(q, k, v, causal=True))
    with pytest.raises(TypeError, match="sink"):
        rj.attention(q, k, v, sink=np.zeros(3))
