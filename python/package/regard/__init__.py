"""Exact scaled dot-product attention for CPUs, and instruments to look inside it.

>>> import numpy as np, regard
>>> q = k = v = np.ones((1, 8, 128, 64), np.float32)
>>> regard.attention(q, k, v, causal=True).shape
(1, 8, 128, 64)
"""

from ._regard import (
    __version__,
    alibi_slopes,
    attention,
    attention_vjp,
    column_sums,
    get_num_threads,
    gradient_statistics,
    head_similarity,
    heat_map,
    merge,
    set_num_threads,
    simd_level,
    statistics,
)
from ._results import GradientStatistics, HeadSimilarity, HeadStatistics, HeatMap, Statistics

__all__ = [
    "GradientStatistics",
    "HeadSimilarity",
    "HeadStatistics",
    "HeatMap",
    "Statistics",
    "__version__",
    "alibi_slopes",
    "attention",
    "attention_vjp",
    "column_sums",
    "get_num_threads",
    "gradient_statistics",
    "head_similarity",
    "heat_map",
    "merge",
    "set_num_threads",
    "simd_level",
    "statistics",
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
