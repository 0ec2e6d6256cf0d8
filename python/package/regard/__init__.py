"""Exact scaled dot-product attention for CPUs, and instruments to look inside it.

>>> import numpy as np, regard
>>> q = k = v = np.ones((1, 8, 128, 64), np.float32)
>>> regard.attention(q, k, v, causal=True).shape
(1, 8, 128, 64)
"""

from ._regard import (
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
from ._results import Gradients, GradientStatistics, HeadSimilarity, HeadStatistics, HeatMap, Lens, RowStates, Statistics, Table

__all__ = [
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
    "attention",
    "attention_varlen",
    "attention_varlen_vjp",
    "attention_vjp",
    "column_sums",
    "get_num_threads",
    "gradient_statistics",
    "head_similarity",
    "heat_map",
    "load",
    "merge",
    "row_states",
    "set_num_threads",
    "simd_level",
    "statistics",
    "weights",
]


def __getattr__(name):
    # Here, and not above: NumPy users shall not wait for the import of PyTorch.
    if name == "torch":
        from importlib import import_module

        try:
            return import_module(".torch", __name__)
        except ImportError as missing:
            raise AttributeError(f"regard.torch needs PyTorch ({missing}): pip install torch") from missing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
