"""Attention for JAX on the CPU, with its gradient: ``regard.jax.attention(q, k, v, causal=True)`` inside ``jax.jit`` and ``jax.grad``.

Arrays are ``[batch, heads, tokens, dim]`` in float32, float64, float16 or bfloat16. ``mask`` and ``bias`` may be arrays, also traced ones; the other options
of :func:`regard.attention` are plain values.
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

_DTYPES = ("float32", "float64", "float16", "bfloat16")
#: Options that may be arrays, in the order of the arguments after q, k and v.
_ARRAYS = ("mask", "bias")


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and getattr(x, "ndim", 0) > 0


def _given(arrays: tuple[Any, ...]) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in zip(_ARRAYS, arrays) if x is not None}


def _floats(saved: tuple[Any, ...]) -> list[int]:
    """The places of the arguments that have gradients."""
    return [i for i, x in enumerate(saved) if x is not None and jnp.issubdtype(x.dtype, jnp.floating)]


@lru_cache(maxsize=256)
def _made(options: tuple[tuple[str, Any], ...]) -> Any:
    settings = dict(options)

    def forward(q: Any, k: Any, v: Any, *arrays: Any) -> np.ndarray:
        return np.asarray(regard.attention(np.asarray(q), np.asarray(k), np.asarray(v), **_given(arrays), **settings))

    def backward(d_out: Any, *saved: Any) -> tuple[np.ndarray, ...]:
        found = regard.attention_vjp(*(np.asarray(x) for x in (*saved[:3], d_out)), **_given(saved[3:]), **settings)
        all_of_them = (found.dq, found.dk, found.dv, found.d_mask, found.d_bias)
        return tuple(np.asarray(all_of_them[i]) for i in _floats(saved))

    @jax.custom_vjp
    def call(*operands: Any) -> Any:
        q, _, v, *_ = operands
        shape = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)
        return jax.pure_callback(forward, shape, *operands, vmap_method="sequential")

    def call_forward(*operands: Any) -> tuple[Any, Any]:
        return call(*operands), operands

    def call_backward(saved: Any, d_out: Any) -> Any:
        places = _floats(saved)
        shapes = tuple(jax.ShapeDtypeStruct(saved[i].shape, saved[i].dtype) for i in places)
        found = dict(zip(places, jax.pure_callback(backward, shapes, d_out, *saved, vmap_method="sequential")))
        # A bool mask has a gradient without elements.
        return tuple(None if x is None else found.get(i, np.zeros(x.shape, jax.dtypes.float0)) for i, x in enumerate(saved))

    call.defvjp(call_forward, call_backward)
    return call


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """``softmax(q k^T * scale) v`` by regard, differentiable by q, k, v, a float ``mask`` and ``bias``."""
    arrays = [jnp.asarray(options.pop(name)) if _is_array(options.get(name)) else None for name in _ARRAYS]
    for name, value in options.items():
        if _is_array(value):
            raise TypeError(f"{name} is an array: regard.jax takes arrays as q, k, v, mask and bias only, and other options as plain values")
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    if not q.dtype == k.dtype == v.dtype or str(q.dtype) not in _DTYPES:
        raise TypeError(f"q, k and v must all be of one of {', '.join(_DTYPES)}; they are {q.dtype}, {k.dtype}, {v.dtype}")
    plain = tuple(sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items()))
    return _made(plain)(q, k, v, *arrays)
