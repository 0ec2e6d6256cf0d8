"""Exact scaled dot-product attention for CPUs, and instruments to look inside it.

>>> import numpy as np, regard
>>> q = k = v = np.ones((1, 8, 128, 64), np.float32)
>>> regard.attention(q, k, v, causal=True).shape
(1, 8, 128, 64)
"""

from typing import TYPE_CHECKING, Any

from ._regard import (
    ActivationGradients,
    Mask,
    Model,
    Run,
    __version__,
    alibi_slopes,
    attention,
    attention_varlen,
    attention_varlen_vjp,
    attention_vjp,
    column_sums,
    get_num_threads,
    gradient_statistics,
    head_similarity,
    heat_map,
    load,
    merge,
    row_states,
    set_num_threads,
    simd_level,
    statistics,
    weights,
)
from ._results import Figure, Gradients, GradientStatistics, HeadSimilarity, HeadStatistics, HeatMap, Lens, RowStates, Statistics, Table

__all__ = [
    "ActivationGradients",
    "Figure",
    "GradientStatistics",
    "Gradients",
    "HeadSimilarity",
    "HeadStatistics",
    "HeatMap",
    "Lens",
    "Mask",
    "Model",
    "RowStates",
    "Run",
    "Statistics",
    "Table",
    "__version__",
    "alibi_slopes",
    "analyze",
    "attention",
    "attention_varlen",
    "attention_varlen_vjp",
    "attention_vjp",
    "column_sums",
    "documents",
    "get_num_threads",
    "gradient_statistics",
    "head_similarity",
    "heat_map",
    "judge",
    "lab",
    "learn",
    "load",
    "merge",
    "nn",
    "plot",
    "plot_attention",
    "plot_heads",
    "row_states",
    "set_num_threads",
    "simd_level",
    "statistics",
    "testing",
    "weights",
]


if TYPE_CHECKING:
    from . import documents, jax, lab, learn, nn, plot, testing, torch, transformers
    from ._judge import judge
    from .plot import analyze, plot_attention, plot_heads


def __getattr__(name: str) -> Any:
    # Imported on first use: `import regard` stays fast.
    from importlib import import_module

    if name == "judge":
        return import_module("._judge", __name__).judge
    if name in ("documents", "lab", "learn", "nn", "plot", "testing"):
        return import_module(f".{name}", __name__)
    if name in ("analyze", "plot_attention", "plot_heads"):
        return getattr(import_module(".plot", __name__), name)
    if name in ("torch", "jax", "transformers"):
        try:
            return import_module(f".{name}", __name__)
        except ImportError as missing:
            other = {"torch": "PyTorch", "jax": "JAX", "transformers": "PyTorch and transformers"}[name]
            raise AttributeError(f"regard.{name} needs {other} ({missing}): pip install {name}") from missing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from importlib.util import find_spec

    return sorted({*globals(), *__all__, *(name for name in ("jax", "torch", "transformers") if find_spec(name))})
