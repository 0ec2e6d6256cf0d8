"""Figures of attention weights, displayed by notebooks and saved as SVG or PNG.

>>> import numpy as np, regard
>>> figure = regard.plot.plot_attention(np.eye(3), tokens=["the", "cat", "sat"])
>>> figure.svg().startswith("<svg")
True

Each takes weights (NumPy, PyTorch, ...), or queries and keys of any length (``q=``, ``k=``: nothing quadratic is made), or a run of a model.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from ._analyze import analyze, array, as_heads
from ._regard import _plot_grid, _plot_lines, _plot_links, _plot_map, heat_map, weights as _weights
from ._results import Figure

__all__ = ["analyze", "plot_attention", "plot_change", "plot_curves", "plot_entropy", "plot_head_view", "plot_heads"]

#: Labels that fit beside a map.
_READABLE = 60
#: Cells per side of a pooled map.
_CELLS = 512


def _words(name: str, title: str, caption: str, value: str = "weight") -> dict[str, str]:
    return {"name": name, "title": title, "caption": caption, "value": value}


def _thinned(tokens: Sequence[str] | None, n: int) -> list[str] | None:
    """Labels of all tokens up to sixty; beyond that every n-th, and empty labels between."""
    if tokens is None:
        return None
    if len(tokens) != n:
        raise ValueError(f"there are {len(tokens)} tokens for {n} rows or columns of weights")
    step = -(-n // _READABLE)
    return [str(token).replace("\n", "\u21b5") if i % step == 0 else "" for i, token in enumerate(tokens)]


def _no_options(function: str, options: dict[str, Any]) -> None:
    """Options describe how weights are computed from q and k: beside finished weights they have no effect."""
    if options:
        names = ", ".join(f"{name}=" for name in options)
        raise TypeError(f"{function}() got {names}, which it takes only with q= and k= (options of regard.heat_map)")


def _four(x: Any) -> np.ndarray:
    x = array(x)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _map_of(weights: Any, q: Any, k: Any, run: Any, layer: int, head: int, options: dict[str, Any]) -> tuple[np.ndarray, int, int]:
    """A map of one head, with its numbers of queries and keys."""
    if run is not None:
        n = len(run.ids)
        values = np.asarray(run.weights(layer, head) if n <= _CELLS else run.heat_map(layer, head, rows=_CELLS).mean, np.float64)
        return values.reshape(values.shape[-2:]), n, n
    if weights is not None:
        maps = as_heads(weights)
        if not 0 <= head < len(maps):
            raise ValueError(f"head is {head}; there are {len(maps)} heads, from 0")
        return maps[head], *maps.shape[1:]
    if q is None or k is None:
        raise TypeError("give weights, or q and k, or run=")
    q, k = _four(q), _four(k)
    if not 0 <= head < q.shape[1]:
        raise ValueError(f"head is {head}; there are {q.shape[1]} heads, from 0")
    group = q.shape[1] // max(1, k.shape[1])
    made = heat_map(q[:1, head:head + 1], k[:1, head // max(1, group):head // max(1, group) + 1], rows=_CELLS, cols=_CELLS, **options)
    return np.asarray(made.mean, np.float64)[0, 0], q.shape[2], k.shape[2]


def plot_attention(
    weights: Any = None, tokens: Sequence[str] | None = None, *, key_tokens: Sequence[str] | None = None, q: Any = None, k: Any = None, run: Any = None,
    layer: int = 0, head: int = 0, title: str | None = None, **options: Any,
) -> Figure:
    """A heat map of one head: rows are queries, columns are keys.

    ``tokens`` label both sides (``key_tokens`` the keys, for cross-attention): all of them up to sixty, fewer beyond. With ``q`` and ``k`` the options of
    :func:`regard.heat_map` apply (``causal=True``, ``window=...``), and any length is pooled to at most 512 x 512 cells in linear memory.
    """
    if run is not None or weights is not None:
        _no_options("plot_attention", options)
    values, n, m = _map_of(weights, q, k, run, layer, head, options)
    if run is not None and tokens is None:
        tokens = run.tokens
    pooled = values.shape != (n, m)
    rows = None if pooled else _thinned(tokens, n)
    keys = None if pooled else _thinned(tokens if key_tokens is None else key_tokens, m)
    if rows is None or keys is None:
        rows = keys = None
    where = f"layer {layer}, head {head}" if run is not None else f"head {head}"
    caption = f"Rows are queries, columns are keys; {where}." + (f" {n} x {m} weights, means of cells." if pooled else "")
    words = _words("attention", title or "Attention weights", caption)
    return Figure(_plot_map(np.ascontiguousarray(values), words, rows, keys, (n, m) if pooled else None, None))


def plot_heads(
    weights: Any = None, tokens: Sequence[str] | None = None, *, key_tokens: Sequence[str] | None = None, q: Any = None, k: Any = None, run: Any = None,
    names: Sequence[str] | None = None, columns: int | None = None, title: str | None = None, cells: int = 64, **options: Any,
) -> Figure:
    """A grid of all heads: of weights ``[heads, n, n]``, of q and k, or of every head of a run; ``names`` are written above them.

    ``tokens`` are written at the left and at the bottom of the grid (``key_tokens`` at the bottom), for up to ``cells`` tokens: longer maps are
    means of cells.
    """
    if run is not None or weights is not None:
        _no_options("plot_heads", options)
    if run is not None:
        layers, heads = np.asarray(run.statistics.entropy).shape[:2]
        maps = [np.asarray(run.heat_map(layer, head, rows=cells).mean, np.float64) for layer in range(layers) for head in range(heads)]
        values = np.stack([x.reshape(x.shape[-2:]) for x in maps])
        n = m = len(run.ids)
        names = list(names) if names is not None else [f"{layer}.{head}" for layer in range(layers) for head in range(heads)]
        columns = columns or heads
    elif weights is not None:
        values = as_heads(weights)
        n, m = values.shape[1:]
        values = _pooled(values, cells)
        names = list(names) if names is not None else [str(i) for i in range(len(values))]
    elif q is not None and k is not None:
        made = np.asarray(heat_map(_four(q), _four(k), rows=cells, cols=cells, **options).mean, np.float64)
        values = made.reshape(-1, *made.shape[-2:])
        n, m = _four(q).shape[2], _four(k).shape[2]
        names = list(names) if names is not None else [str(i) for i in range(len(values))]
    else:
        raise TypeError("give weights, or q and k, or run=")
    if len(names) != len(values):
        raise ValueError(f"there are {len(names)} names for {len(values)} heads")
    if columns is not None and columns < 1:
        raise ValueError(f"columns is {columns}; it must be at least 1")
    words = _words("heads", title or "Every head", "Rows are queries, columns are keys; colour is the weight, from 0 to 1.")
    sides = _thinned(tokens, n), _thinned(tokens if key_tokens is None else key_tokens, m)
    labels = sides if sides[0] is not None and sides[1] is not None and values.shape[1:] == (n, m) else None
    return Figure(_plot_grid(np.ascontiguousarray(values), words, names, columns or min(8, max(1, int(np.ceil(np.sqrt(len(values)))))), labels))


def plot_head_view(
    weights: Any = None, tokens: Sequence[str] | None = None, *, key_tokens: Sequence[str] | None = None, q: Any = None, k: Any = None, run: Any = None,
    layer: int = 0, heads: int | Sequence[int] = 0, queries: int | Sequence[int] | None = None, title: str | None = None, **options: Any,
) -> Figure:
    """Lines between tokens: queries at the left, keys at the right, each weight a line of that opacity.

    ``heads`` may be several, a colour each; ``queries`` picks the tokens whose lines are drawn. For up to 120 tokens;
    :func:`plot_attention` draws longer texts as a map.

    >>> import numpy as np, regard
    >>> figure = regard.plot.plot_head_view(np.eye(3), ["the", "cat", "sat"], queries=[1, 2])
    >>> "cat looks at cat" in figure.svg()
    True
    """
    picked = [heads] if isinstance(heads, (int, np.integer)) else list(heads)
    if run is not None or weights is not None:
        _no_options("plot_head_view", options)
    if run is not None:
        tokens = run.tokens if tokens is None else tokens
        _short_enough(len(run.ids), len(run.ids))
        maps = np.stack([np.asarray(run.weights(layer, head), np.float64) for head in picked])
        maps = maps.reshape(len(picked), *maps.shape[-2:])
    else:
        if weights is None:
            if q is None or k is None:
                raise TypeError("give weights, or q and k, or run=")
            q, k = _four(q), _four(k)
            _short_enough(q.shape[2], k.shape[2])
            weights = _weights(q[:1], k[:1], **options)
        maps = as_heads(weights)
        _short_enough(*maps.shape[1:])
        if not picked or not all(0 <= head < len(maps) for head in picked):
            raise ValueError(f"heads are {picked}: there are {len(maps)}, from 0")
        maps = maps[picked]
    n, m = maps.shape[1:]
    sides = []
    for given, count in ((tokens, n), (tokens if key_tokens is None else key_tokens, m)):
        given = [str(i) for i in range(count)] if given is None else [str(token) for token in given]
        if len(given) != count:
            raise ValueError(f"there are {len(given)} tokens for {count} rows or columns of weights")
        sides.append(given)
    chosen = [] if queries is None else [queries] if isinstance(queries, (int, np.integer)) else list(queries)
    if not all(0 <= query < n for query in chosen):
        raise ValueError(f"queries are {chosen}: there are {n}, from 0")
    where = f"Layer {layer}. " if run is not None else ""
    caption = where + "Queries at the left, keys at the right; the opacity of a line is its weight. Weights below 0.01 have no line."
    words = _words("head_view", title or "Attention weights", caption)
    return Figure(_plot_links(np.ascontiguousarray(maps), words, [f"head {head}" for head in picked], (sides[0], sides[1]), chosen))


#: Upper bound of tokens in a head view.
_FOLLOWED = 120


def _short_enough(n: int, m: int) -> None:
    if max(n, m) > _FOLLOWED:
        raise ValueError(f"there are {n} x {m} weights; lines are drawn for up to {_FOLLOWED} tokens: plot_attention draws a map of any length")


def _pooled(maps: np.ndarray, cells: int) -> np.ndarray:
    """Means of cells, where there are more rows or columns than cells."""
    for axis in (1, 2):
        n = maps.shape[axis]
        if n > cells:
            edges = np.arange(cells) * n // cells
            counts = np.diff(np.append(edges, n))
            shape = [1, 1, 1]
            shape[axis] = cells
            maps = np.add.reduceat(maps, edges, axis=axis) / counts.reshape(shape)
    return maps


def plot_change(before: Any, after: Any, tokens: Sequence[str] | None = None, *, layer: int = 0, head: int = 0, title: str | None = None) -> Figure:
    """The change of a head by an edit: weights after minus weights before; arrays, or two runs of a model."""
    if hasattr(before, "heat_map"):
        tokens = before.tokens if tokens is None else tokens
        before, after = before.weights(layer, head), after.weights(layer, head)
    a, b = as_heads(before), as_heads(after)
    if a.shape != b.shape:
        raise ValueError(f"before is {list(a.shape)} and after {list(b.shape)}: they must have one shape")
    if len(a) == 1:
        head = 0
    if not 0 <= head < len(a):
        raise ValueError(f"head is {head}; there are {len(a)} heads, from 0")
    change = (b - a)[head]
    most = float(np.abs(change).max()) or 1.0
    rows, keys = _thinned(tokens, change.shape[0]), _thinned(tokens, change.shape[1])
    words = _words("change", title or "Change by the edit", "Weights after minus weights before.", "change of the weight")
    return Figure(_plot_map(np.ascontiguousarray(change), words, rows, keys, None, (-most, most)))


def plot_curves(x: Sequence[float], curves: dict[str, Sequence[float]], *, x_title: str = "x", y_title: str = "y", title: str = "", log: bool = False) -> Figure:
    """Curves over one axis, each with its name."""
    words = _words("curves", title, "", y_title)
    return Figure(_plot_lines(words, (x_title, [float(v) for v in x], log), [(str(name), [float(v) for v in array(y)]) for name, y in curves.items()]))


def plot_entropy(weights: Any = None, *, q: Any = None, k: Any = None, title: str | None = None, **options: Any) -> Figure:
    """Entropy and largest weight of each head."""
    found = analyze(weights, q=q, k=k, **options)
    return plot_curves(
        found["head"], {"entropy (nats)": found["entropy"], "largest weight": found["max_weight"]}, x_title="head", y_title="mean over rows",
        title=title or "Entropy and largest weight of each head",
    )
