"""Results of the instruments: named NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Tuple

import numpy as np


@dataclass(frozen=True, eq=False, repr=False)
class _WeightStatistics:
    entropy: np.ndarray
    max_weight: np.ndarray
    sum_of_squares: np.ndarray
    diagonal_mass: np.ndarray
    previous_token_mass: np.ndarray
    first_token_mass: np.ndarray
    local_mass: np.ndarray
    mean_distance: np.ndarray

    def _summary(self, rows):
        lines = []
        for field in fields(_WeightStatistics):
            values = getattr(self, field.name)[rows]
            if values.size:
                # + 0.0 turns the -0 of a one-hot row's entropy into 0.
                low, mean, high = (x + 0.0 for x in (values.min(), values.mean(dtype=np.float64), values.max()))
                lines.append(f"  {field.name:<20} mean {mean:.4g}  from {low:.4g} to {high:.4g}")
        return "\n".join(lines)


def _long(shape: tuple[int, ...], names: tuple[str, ...], columns: dict[str, np.ndarray]) -> Table:
    """A table with a row per element of arrays of one shape, and its indices."""
    places = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij")
    return Table(**{name: place.ravel() for name, place in zip(names[-len(shape) :], places)}, **{name: values.ravel() for name, values in columns.items()})


@dataclass(frozen=True, eq=False, repr=False)
class HeadStatistics(_WeightStatistics):
    """Means over the rows of a head that see any key, each float64 ``[batch, heads_q]``."""

    def __repr__(self) -> str:
        return f"HeadStatistics of {list(self.entropy.shape)} heads\n{self._summary(...)}"


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(_WeightStatistics):
    """Statistics of the weights, row by row, each ``[batch, heads_q, seq_q]``; :func:`regard.statistics` has the definitions."""

    argmax: np.ndarray
    top_keys: np.ndarray
    top_weights: np.ndarray
    heads: HeadStatistics
    out: np.ndarray | None
    lse: np.ndarray

    def __repr__(self) -> str:
        seen = self.argmax >= 0
        empty = seen.size - int(seen.sum())
        title = f"Statistics of {list(self.entropy.shape)} rows"
        if empty:
            title += f", {empty} of them without any visible key (left out below)"
        return f"{title}\n{self._summary(seen)}"

    def to_csv(self, path: Any = None) -> str | None:
        """A row per query: written to ``path``, or returned. ``entry`` is that of the batch; of a model's run it is the layer."""
        columns = {field.name: getattr(self, field.name) for field in fields(_WeightStatistics)}
        return _long(self.argmax.shape, ("entry", "head", "row"), {**columns, "argmax": self.argmax, "lse": self.lse}).to_csv(path)


@dataclass(frozen=True, eq=False, repr=False)
class _Named:
    def __repr__(self) -> str:
        parts = (f"{f.name}: {getattr(self, f.name).dtype} {list(getattr(self, f.name).shape)}" for f in fields(self))
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class HeatMap(_Named):
    """The weight matrix at the size of a picture, each ``[batch, heads_q, rows, cols]``."""

    mean: np.ndarray
    max: np.ndarray

    def to_csv(self, path: Any = None) -> str | None:
        """A row per cell: written to ``path``, or returned."""
        return _long(self.mean.shape, ("entry", "head", "row", "col"), {"mean": self.mean, "max": self.max}).to_csv(path)

    def _repr_svg_(self) -> str:
        from .plot import plot_attention, plot_heads

        maps = self.mean.reshape((-1, *self.mean.shape[-2:])).astype(np.float64)
        return plot_attention(maps[0]).svg() if len(maps) == 1 else plot_heads(maps).svg()


@dataclass(frozen=True, eq=False, repr=False)
class RowStates(_Named):
    """Softmax maximum and denominator of each row, each ``[batch, heads_q, seq_q]``; :func:`regard.row_states` has the definition."""

    row_max: np.ndarray
    row_sum: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class HeadSimilarity(_Named):
    """How alike the heads attend, each float64 ``[batch, heads_q, heads_q]``."""

    centred_cosine: np.ndarray
    jensen_shannon: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class GradientStatistics:
    """Euclidean norms of the gradients; :func:`regard.gradient_statistics` has the definitions."""

    dq_rows: np.ndarray
    dk_rows: np.ndarray
    dv_rows: np.ndarray
    d_scores_rows: np.ndarray
    dq_norm: float
    dk_norm: float
    dv_norm: float
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray

    def share_below(self, threshold: float) -> float:
        """The share of the rows of dq whose norm is below a threshold; NaN when there are no rows."""
        return float(np.mean(self.dq_rows < threshold)) if self.dq_rows.size else float("nan")

    def __repr__(self) -> str:
        title = f"GradientStatistics of {list(self.dq_rows.shape)} rows"
        norms = f"  norms: dq {self.dq_norm:.4g}, dk {self.dk_norm:.4g}, dv {self.dv_norm:.4g}"
        lines = [title, norms]
        for name in ("dq_rows", "dk_rows", "dv_rows", "d_scores_rows"):
            rows = getattr(self, name)
            if rows.size:
                lines.append(f"  {name:<13} median {np.median(rows):.4g}  from {rows.min():.4g} to {rows.max():.4g}")
        return "\n".join(lines)


def _check_columns(columns: dict[str, np.ndarray]) -> None:
    lengths = {name: len(values) if values.ndim == 1 else -1 for name, values in columns.items()}
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in columns.items())
        raise ValueError(f"columns of a table must have one dimension and one length; they are {shapes}")


class Table:
    """Columns by name, NumPy arrays of one length: ``t.columns``, ``t["loss"]`` or ``t.loss``; ``t.to_csv()``."""

    columns: dict[str, np.ndarray]

    def __init__(self, **columns: Any) -> None:
        self.columns = {name: np.asarray(values) for name, values in columns.items()}
        _check_columns(self.columns)

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self.__dict__["columns"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def to_csv(self, path: Any = None) -> str | None:
        """The table as CSV: written to ``path``, or returned."""
        import csv
        import io

        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*(values.tolist() for values in self.columns.values())))
        if path is None:
            return buffer.getvalue()
        with open(path, "w", newline="", encoding="utf-8") as file:
            file.write(buffer.getvalue())
        return None

    def to_pandas(self) -> Any:
        """The table as a pandas data frame."""
        try:
            import pandas
        except ImportError as missing:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from missing
        return pandas.DataFrame(self.columns)

    def to_polars(self) -> Any:
        """The table as a polars data frame, handed over by the Arrow C interface."""
        try:
            import polars
        except ImportError as missing:
            raise ImportError("to_polars() needs polars: pip install polars") from missing
        return polars.DataFrame(self)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        from ._arrow import stream

        # The dictionary is public and may have been changed.
        _check_columns(self.columns)
        return stream(self.columns)

    def _cells(self, most):
        def shown(x):
            return f"{x:.4g}" if isinstance(x, float) else str(x)

        return [[shown(values[i].item() if hasattr(values[i], "item") else values[i]) for values in self.columns.values()] for i in range(min(len(self), most))]

    def __repr__(self) -> str:
        rows = [list(self.columns), *self._cells(20)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        if len(self) > 20:
            lines.append(f"... {len(self)} rows")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._cells(200))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True, eq=False, repr=False)
class Lens:
    """The logit lens, predictions after each layer: ids ``top`` and ``probability`` ``[layers + 1, n, top]``, ``loss`` of the next token and ``entropy``
    ``[layers + 1, n]`` in nats. Layer 0 is the embedding."""

    tokens: list[str]
    words: list[str]
    top: np.ndarray
    probability: np.ndarray
    loss: np.ndarray
    entropy: np.ndarray

    def to_csv(self, path: Any = None) -> str | None:
        """A row per layer and token: written to ``path``, or returned."""
        layers, n, k = self.top.shape
        words = np.asarray(self.words, dtype=object).reshape(layers, n, k)
        layer, row = (x.ravel() for x in np.meshgrid(np.arange(layers), np.arange(n), indexing="ij"))
        table = Table(
            layer=layer, row=row, token=[self.tokens[i] for i in row], best=words[:, :, 0].ravel(), probability=self.probability[:, :, 0].ravel(),
            loss=self.loss.ravel(), entropy=self.entropy.ravel(),
        )
        return table.to_csv(path)

    def _repr_html_(self) -> str:
        from html import escape

        layers, n, k = self.top.shape
        words, first = np.asarray(self.words, dtype=object).reshape(layers, n, k), max(0, n - 24)
        head = "<th>layer</th>" + "".join(f"<th>{escape(token)}</th>" for token in self.tokens[first:])
        rows = ((layer, zip(words[layer, first:, 0], self.probability[layer, first:, 0])) for layer in range(layers))
        body = "".join(f"<tr><th>{layer}</th>" + "".join(f"<td>{escape(word)} {p:.2f}</td>" for word, p in row) + "</tr>" for layer, row in rows)
        caption = "The most likely next token after each layer, and its probability" + (f"; the last {n - first} of {n} tokens" if first else "")
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        layers, n, k = self.top.shape
        words = np.asarray(self.words, dtype=object).reshape(layers, n, k)
        lines = [f"Lens of {n} tokens, {layers - 1} layers; the most likely token after each layer, at the last row:"]
        lines += [f"  {layer:>3}  {words[layer, -1, 0]!r} {self.probability[layer, -1, 0]:.3f}" for layer in range(layers)]
        return "\n".join(lines)


class Gradients(Tuple[Any, ...]):
    """``(dq, dk, dv)`` and the further gradients of the call, also by name; a name without a gradient is None.

    The names, in order: ``dq``, ``dk``, ``dv``, ``d_mask``, ``d_bias``, ``d_alibi``, ``d_relative``, ``d_sink``, ``d_scale``.
    """

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    d_mask: np.ndarray | None = None
    d_bias: np.ndarray | None = None
    d_alibi: np.ndarray | None = None
    d_relative: np.ndarray | None = None
    d_sink: np.ndarray | None = None
    d_scale: float | None = None
    _fields: tuple[str, ...]

    def __new__(cls, values: tuple[Any, ...], names: tuple[str, ...]) -> Gradients:
        self = super().__new__(cls, values)
        self._fields = names
        vars(self).update(zip(names, values))
        return self

    def __getnewargs__(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return tuple(self), self._fields

    def __repr__(self) -> str:
        def shown(x):
            return f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else repr(x)

        return f"Gradients({', '.join(f'{name}: {shown(x)}' for name, x in zip(self._fields, self))})"


class Figure:
    """A figure, displayed by notebooks; ``save("x.svg")`` or ``save("x.png")``."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    @property
    def name(self) -> str:
        """The name of the figure."""
        return self._raw.name

    @property
    def alt(self) -> str:
        """The alternative text of the figure."""
        return self._raw.alt

    def svg(self) -> str:
        """The figure as SVG."""
        return self._raw.svg()

    def png(self) -> bytes:
        """The figure as PNG."""
        return bytes(self._raw.png())

    def save(self, path: Any) -> None:
        """Write the figure; the suffix of the path selects SVG or PNG."""
        text = str(path).lower()
        if not text.endswith((".svg", ".png")):
            raise ValueError(f"{path!s} must end in .svg or .png")
        data = self.svg().encode() if text.endswith(".svg") else self.png()
        with open(path, "wb") as file:
            file.write(data)

    def to_matplotlib(self, ax: Any = None) -> Any:
        """Draw the figure as an image into axes of matplotlib; without ``ax``, into new axes."""
        try:
            import matplotlib.pyplot as plt
        except ImportError as missing:
            raise ImportError("to_matplotlib() needs matplotlib: pip install matplotlib") from missing
        import io

        if ax is None:
            _, ax = plt.subplots()
        ax.imshow(plt.imread(io.BytesIO(self.png()), format="png"))
        ax.set_axis_off()
        return ax

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        from html import escape

        return f"<figure><figcaption><b>{escape(self._raw.title)}</b></figcaption>{self.svg()}<figcaption>{escape(self._raw.caption)}</figcaption></figure>"

    def __repr__(self) -> str:
        return f"Figure({self.name!r}: {self.alt})"
