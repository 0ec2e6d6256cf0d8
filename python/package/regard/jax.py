"""Attention for JAX on the CPU, with its gradient: ``regard.jax.attention(q, k, v, causal=True)`` inside ``jax.jit`` and ``jax.grad``.

Arrays are ``[batch, heads, tokens, dim]`` in float32 or float64. The options of :func:`regard.attention` that hold no arrays are taken by name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ImportError as missing:
    raise ImportError(f"regard.jax needs JAX ({missing}): pip install jax") from missing

import regard

__all__ = ["attention"]


@lru_cache(maxsize=256)
def _made(options: tuple[tuple[str, Any], ...]) -> Any:
    settings = dict(options)

    def forward(q: Any, k: Any, v: Any) -> np.ndarray:
        return np.asarray(regard.attention(np.asarray(q), np.asarray(k), np.asarray(v), **settings))

    def backward(q: Any, k: Any, v: Any, d_out: Any) -> tuple[np.ndarray, ...]:
        gradients = regard.attention_vjp(np.asarray(q), np.asarray(k), np.asarray(v), np.asarray(d_out), **settings)
        return tuple(np.asarray(x) for x in gradients[:3])

    def shape(q: Any, v: Any) -> Any:
        return jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)

    @jax.custom_vjp
    def call(q: Any, k: Any, v: Any) -> Any:
        return jax.pure_callback(forward, shape(q, v), q, k, v, vmap_method="sequential")

    def call_forward(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        return call(q, k, v), (q, k, v)

    def call_backward(saved: Any, d_out: Any) -> Any:
        shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in saved)
        return jax.pure_callback(backward, shapes, *saved, d_out, vmap_method="sequential")

    call.defvjp(call_forward, call_backward)
    return call


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """``softmax(q k^T * scale) v`` by regard, differentiable by q, k and v."""
    for name, value in options.items():
        if hasattr(value, "shape") and getattr(value, "ndim", 0) > 0:
            raise TypeError(f"{name} is an array: regard.jax takes options that are plain values")
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"q, k and v must all be float32 or all float64; they are {q.dtype}, {k.dtype}, {v.dtype}")
    return _made(tuple(sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items())))(q, k, v)
