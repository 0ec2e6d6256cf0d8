"""The functions of *The Attention Surgeon* under its own names, with its arguments in its order; NumPy arrays or torch tensors.

>>> import numpy as np
>>> from regard.documents import attention, create_causal_mask
>>> x = np.random.default_rng(0).standard_normal((1, 4, 8))
>>> output, weights = attention(x, x, x, create_causal_mask(4))
>>> weights.round(2)[0, 0].tolist()
[1.0, 0.0, 0.0, 0.0]

Each docstring names the wider function of the package: more masks, statistics, gradients, and lengths whose weights do not fit into memory.
"""

from __future__ import annotations

import sys
from typing import Any, Sequence

import numpy as np

from . import _regard
from ._analyze import analyze, array, as_heads, like
from ._results import Figure, Table
from .plot import plot_attention, plot_heads

__all__ = [
    "analyze_attention_patterns",
    "attention",
    "compare_masking",
    "create_causal_mask",
    "create_reverse_mask",
    "experiment_scaling_factor",
    "plot_attention_heatmap",
    "plot_multihead_attention",
]


def attention(Q: Any, K: Any, V: Any, mask: Any = None, scale: bool = True) -> tuple[Any, Any]:
    """``(output, weights)`` of scaled dot-product attention; ``scale=False`` leaves ``1 / sqrt(d_k)`` out.

    Q and K are ``[batch, tokens, d_k]``, V is ``[batch, tokens, d_v]``, ``mask`` is ``[batch, tokens, tokens]`` or ``[tokens, tokens]`` in one of three forms:

    * bool: True is visible;
    * 0 and 1 (integers, or floats with at least one 1): 0 is hidden;
    * other floats: added to the scores, as :func:`create_causal_mask` makes them (``-inf`` is hidden).

    A row that sees no key is zero. Torch tensors that require gradients give results that have them. The wider functions are :func:`regard.attention`
    (windows, grouped heads, dropout, statistics; the weights only on request) and :func:`regard.torch.scaled_dot_product_attention`.
    """
    mask = _mask(mask)
    if hasattr(Q, "detach"):
        from .torch import scaled_dot_product_attention

        import torch

        if mask is not None:
            mask = torch.as_tensor(np.ascontiguousarray(mask))
            mask = mask if mask.dtype is torch.bool else mask.to(Q.dtype)
        # Values that are the identity sum to the weights, with their gradients.
        keys = torch.eye(K.shape[-2], dtype=K.dtype).expand(*K.shape[:-2], -1, -1)
        return tuple(scaled_dot_product_attention(Q, K, values, mask, scale=scale) for values in (V, keys))
    Q, K, V = (np.asarray(x) for x in (Q, K, V))
    if mask is not None and mask.dtype != bool:
        mask = mask.astype(Q.dtype)
    return _regard.attention(Q, K, V, mask=mask, scale=scale, return_weights=True)


def _mask(mask: Any) -> np.ndarray | None:
    """A mask as bool, or as floats that are added."""
    if mask is None:
        return None
    mask = array(mask)
    if mask.dtype == bool:
        return mask
    zero_or_one = ((mask == 0) | (mask == 1)).all()
    if zero_or_one and (mask.dtype.kind in "iu" or (mask == 1).any()):
        return mask == 1
    if mask.dtype.kind in "iu":
        raise ValueError("mask has integers other than 0 and 1; give bool (True: visible), 0 and 1 (0: hidden), or floats to add to the scores")
    return mask


def plot_attention_heatmap(attention_weights: Any, tokens: Sequence[str], title: str = "Attention Weights") -> Figure:
    """A heat map of weights ``[tokens, tokens]``. The wider function is :func:`regard.plot_attention` (queries and keys of any length, runs of models)."""
    if array(attention_weights).ndim != 2:
        raise ValueError(f"attention_weights have shape {list(array(attention_weights).shape)}; one head has [tokens, tokens]: see plot_multihead_attention")
    return plot_attention(attention_weights, tokens, title=title)


def plot_multihead_attention(attention_weights: Any, tokens: Sequence[str], num_heads: int) -> Figure:
    """A grid of heat maps of weights ``[num_heads, tokens, tokens]``. The wider function is :func:`regard.plot_heads`."""
    heads = len(as_heads(attention_weights))
    if heads != num_heads:
        raise ValueError(f"num_heads is {num_heads}; attention_weights have {heads} heads")
    return plot_heads(attention_weights, tokens)


def analyze_attention_patterns(attention_weights: Any) -> dict[str, float]:
    """Statistics of weights ``[..., tokens, tokens]``, over all rows that see any key:

    * ``max_attention``: the largest weight;
    * ``entropy``: the mean entropy of a row, in nats;
    * ``diagonal_mass``: the mean share of a row on its own token;
    * ``local_vs_global``: the share within 3 tokens divided by the rest; infinite if there is no rest.

    The wider function is :func:`regard.analyze`: a row per head, and more columns.
    """
    found = analyze(attention_weights)
    rows = as_heads(attention_weights).sum(axis=2) > 0
    share = rows.sum(axis=1) / max(1, rows.sum())
    local = float(share @ found.local_mass)
    return {
        "max_attention": float(as_heads(attention_weights).max()),
        "entropy": float(share @ found.entropy),
        "diagonal_mass": float(share @ found.diagonal_mass),
        "local_vs_global": local / (1 - local) if local < 1 else float("inf"),
    }


def experiment_scaling_factor(d_k_values: Sequence[int] = (16, 64, 256, 1024)) -> Table:
    """Random queries and keys of each width, with and without ``1 / sqrt(d_k)``: the mean largest weight of a row (saturation), the gradient's norm by the queries and
    the median gradient through the softmax, and the mean entropy. The wider function is :func:`regard.lab.sweep` (seeds, intervals, the published table).

    >>> from regard.documents import experiment_scaling_factor
    >>> table = experiment_scaling_factor([16, 1024])
    >>> bool(table.max_attention[table.scaled].max() < 0.6 < 0.9 < table.max_attention[~table.scaled][-1])
    True
    """
    from . import lab

    found = lab.sweep(d_k=[int(d_k) for d_k in d_k_values], progress=False)
    return Table(
        d_k=found["d_k"], scaled=found["scaled"], max_attention=found["mean_max_weight"], gradient=found["grad_norm_q"],
        softmax_gradient=found["row_d_scores_median"], entropy=found["mean_entropy"],
    )


def create_causal_mask(seq_len: int, device: Any = "cpu") -> Any:
    """``[seq_len, seq_len]``: 0 where the key is not after the query, ``-inf`` elsewhere; added to the scores.

    A float32 torch tensor if PyTorch is imported, else a NumPy array (``device`` must be the CPU then). The wider form, which needs no matrix, is
    ``causal=True`` of :func:`regard.attention`, or :meth:`regard.Mask.causal`.
    """
    return _additive(np.tri(seq_len, dtype=bool), device)


def create_reverse_mask(seq_len: int, device: Any = "cpu") -> Any:
    """``[seq_len, seq_len]``: 0 where the key is not before the query, ``-inf`` elsewhere: anti-causal. See :func:`create_causal_mask`;
    the wider form is :meth:`regard.Mask.reverse`."""
    return _additive(np.tri(seq_len, dtype=bool).T, device)


def _additive(visible: np.ndarray, device: Any) -> Any:
    mask = np.where(visible, np.float32(0), np.float32(-np.inf))
    if "torch" in sys.modules:
        return like(sys.modules["torch"].empty(0), mask).to(device)
    if str(device) != "cpu":
        raise ValueError(f"device is {device}; without PyTorch the mask is a NumPy array on the CPU")
    return mask


def compare_masking(seq_len: int = 16, d_k: int = 64, seed: int = 0) -> Table:
    """The same random queries and keys under a causal mask, no mask and a reverse mask, a row each: mean weight on the past, on the own token and on the future,
    mean entropy of a row. What the masks do to a training is in :func:`regard.lab.mask_training`.

    >>> from regard.documents import compare_masking
    >>> compare_masking().future.round(2).tolist()[0]
    0.0
    """
    q, k = np.random.default_rng(seed).standard_normal((2, 1, seq_len, d_k))
    rows = []
    for mask in (create_causal_mask(seq_len), None, create_reverse_mask(seq_len)):
        weights = attention(q, k, k, None if mask is None else array(mask))[1]
        past, future = np.tril(weights, -1).sum(-1).mean(), np.triu(weights, 1).sum(-1).mean()
        rows.append((past, 1 - past - future, future, analyze(weights).entropy[0]))
    past, own, future, entropy = (np.array(column) for column in zip(*rows))
    return Table(mask=np.array(["causal", "none", "reverse"], object), past=past, own=own, future=future, entropy=entropy)
