"""Statistics of attention weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._regard import head_similarity, statistics
from ._results import Table


def array(x: Any) -> np.ndarray:
    """A NumPy array from NumPy, PyTorch, JAX or any object with DLPack; other devices than the CPU are an error."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):
        x = x.detach()
        if getattr(x.device, "type", "cpu") != "cpu":
            raise ValueError(f"the array is on {x.device}; regard computes on the CPU: move it there with .cpu()")
        return x.float().numpy() if str(x.dtype) == "torch.bfloat16" else x.numpy()
    if hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        return np.from_dlpack(x)
    return np.asarray(x)


def like(x: Any, result: np.ndarray) -> Any:
    """A result as a torch tensor, if ``x`` is one."""
    if hasattr(x, "detach") and not isinstance(x, np.ndarray):
        import torch

        return torch.from_numpy(np.ascontiguousarray(result))
    return result


def as_heads(weights: Any) -> np.ndarray:
    """Weights as ``[heads, queries, keys]``: batches are concatenated."""
    weights = array(weights)
    if weights.ndim < 2:
        raise ValueError(f"weights have {weights.ndim} dimension(s); they need [queries, keys], [heads, queries, keys] or [batch, heads, queries, keys]")
    return weights.reshape(-1, *weights.shape[-2:]).astype(np.float64, copy=False)


def _nearest(apart: np.ndarray) -> np.ndarray:
    """The divergence from the nearest other head, of divergences ``[batch, heads, heads]``."""
    index = np.arange(apart.shape[-1])
    apart[..., index, index] = np.inf
    # Pairs without a row in which both see a key have no divergence.
    least = np.where(np.isnan(apart), np.inf, apart).min(axis=-1).ravel()
    return np.where(np.isinf(least), np.nan, least)


def _informed(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """``p ln(p / q)``, and 0 where p is 0."""
    return np.where(p > 0, p * np.log(np.where(p > 0, p, 1) / np.where(q > 0, q, 1)), 0)


def _ratio(local: np.ndarray) -> np.ndarray:
    """Local over global weight; infinite without any global weight."""
    with np.errstate(divide="ignore"):
        return local / np.maximum(1 - local, 0.0)


def analyze(weights: Any = None, *, q: Any = None, k: Any = None, local: int = 3, **options: Any) -> Table:
    """Statistics of each head, one row per head, by the names of :func:`regard.statistics`: ``max_weight``, ``entropy`` (nats), ``diagonal_mass``
    (own token), ``previous_token_mass``, ``first_token_mass``, ``local_mass`` (within ``local`` of the query), ``beyond`` (the rest), ``local_vs_global``
    (``local_mass / (1 - local_mass)``), ``mean_distance``, ``nearest_head`` (the Jensen-Shannon divergence, in nats, from the most similar other head: 0 for
    equal, ln 2 for disjoint; over rows in which both see a key), as means over rows that see any key.

    From weights, or from queries and keys in linear memory: ``analyze(q=q, k=k, causal=True)`` takes the options of
    :func:`regard.statistics`.

    >>> import numpy as np, regard
    >>> regard.analyze(np.eye(4)).diagonal_mass.tolist()
    [1.0]
    """
    if weights is None:
        if q is None or k is None:
            raise TypeError("analyze() needs weights, or q and k")
        q, k = (x[None, None] if x.ndim == 2 else x[None] if x.ndim == 3 else x for x in (array(q), array(k)))
        found = statistics(q, k, local_window=local, **options).heads
        heads = found.entropy.shape[1]
        columns = {
            "max_weight": found.max_weight, "entropy": found.entropy, "diagonal_mass": found.diagonal_mass,
            "previous_token_mass": found.previous_token_mass, "first_token_mass": found.first_token_mass, "local_mass": found.local_mass,
            "beyond": 1 - found.local_mass, "mean_distance": found.mean_distance,
        }
        columns = {name: np.asarray(values).ravel() for name, values in columns.items()}
        columns["local_vs_global"] = _ratio(columns["local_mass"])
        columns["nearest_head"] = np.full(found.entropy.size, np.nan)
        if heads > 1:
            columns["nearest_head"] = _nearest(np.array(head_similarity(q, k, **options).jensen_shannon))
        return Table(head=np.arange(len(columns["entropy"])), **columns)
    if q is not None or k is not None or options:
        raise TypeError("weights= excludes q=, k= and options; give either")
    given = array(weights)
    # Heads are compared with those of the same batch entry.
    if given.ndim == 4 and len(given) > 1:
        parts = [analyze(entry, local=local) for entry in given]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns}
        return Table(**{**joined, "head": np.arange(len(joined["head"]))})
    maps = as_heads(given)
    if np.isnan(maps).any() or (maps < 0).any():
        raise ValueError("weights have negative or NaN elements; give the weights after the softmax, not the scores")
    heads, n, m = maps.shape
    total = maps.sum(axis=2)
    if (np.abs(total[total > 0] - 1) > 1e-2).any():
        raise ValueError("rows of weights must sum to 1 (or to 0, without any visible key); give the weights after the softmax, not the scores")
    seen = total > 0
    count = np.maximum(seen.sum(axis=1), 1)

    def mean(rows: np.ndarray) -> np.ndarray:
        return (rows * seen).sum(axis=1) / count

    i, j = np.arange(n)[:, None], np.arange(m)[None, :]
    away = np.abs(i - j)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(maps > 0, maps * np.log(maps), 0).sum(axis=2)
    nearest = np.full(heads, np.nan)
    if heads > 1:
        apart = np.zeros((heads, heads))
        for a in range(heads):
            for b in range(a + 1, heads):
                both = seen[a] & seen[b]
                middle = (maps[a] + maps[b]) / 2
                rows = (_informed(maps[a], middle) + _informed(maps[b], middle)).sum(axis=1)[both]
                apart[a, b] = apart[b, a] = rows.mean() / 2 if both.any() else np.nan
        nearest = _nearest(apart[None])
    near = (maps * (away <= local)).sum(axis=2)
    return Table(
        head=np.arange(heads), max_weight=mean(maps.max(axis=2)), entropy=mean(entropy), diagonal_mass=mean((maps * (i == j)).sum(axis=2)),
        previous_token_mass=mean((maps * (i - j == 1)).sum(axis=2)), first_token_mass=mean(maps[:, :, 0]), local_mass=mean(near),
        beyond=mean(total - near), mean_distance=mean((maps * away).sum(axis=2)), local_vs_global=_ratio(mean(near)), nearest_head=nearest,
    )
