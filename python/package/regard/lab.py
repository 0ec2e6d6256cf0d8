"""The laboratory: every experiment is a function, with the options of its command as keyword arguments.

>>> import regard
>>> table = regard.lab.sweep(d_k=[4, 64])
>>> table["d_k"].tolist()
[4, 4, 64, 64]
>>> sorted(table.tables)
['attention_sweep_results', 'attention_sweep_weights']

``table`` is the first table of the experiment: columns as NumPy arrays, ``to_csv()``, ``to_pandas()``, ``to_polars()``.
``table.tables`` has all of them by name, ``table.figures`` the figures, ``table.claims`` the verdicts on published claims (None where the settings differ
from those of the claims, as above). ``regard.lab.experiments()`` lists the experiments.
"""

from __future__ import annotations

import inspect
import sys
import time
from typing import Any, Callable, overload

import numpy as np

from ._regard import _experiment, _experiments
from ._results import Figure, Table

__all__ = ["Result", "experiments"]


class Result(Table):
    """The first table of an experiment, with all its ``tables``, ``figures`` and ``claims``."""

    name: str
    caption: str
    origin: dict[str, str]
    tables: dict[str, Result]
    figures: dict[str, Figure]
    #: Whether the comparisons hold; None without any comparison.
    agrees: bool | None

    def __init__(self, raw: Any) -> None:
        titles = raw.columns
        super().__init__(**{name: _column(raw.column(i)) for i, (name, _) in enumerate(titles)})
        self.__dict__.update(name=raw.name, caption=raw.caption, origin=raw.origin, titles=dict(titles), _csv=bytes(raw.csv()), tables={raw.name: self}, figures={}, agrees=None)

    @property
    def claims(self) -> Result | None:
        """Verdicts on published claims, if the experiment judges any."""
        return self.tables.get("published_claims")

    @overload
    def to_csv(self, path: None = None, *, comments: bool = False) -> str: ...
    @overload
    def to_csv(self, path: Any, *, comments: bool = False) -> None: ...
    def to_csv(self, path: Any = None, *, comments: bool = False) -> str | None:
        """The table as CSV: written to ``path``, or returned; ``pandas.read_csv(path)`` reads it. With ``comments=True`` the bytes that the command writes,
        which begin with ``#`` lines on the origin (``pandas.read_csv(path, comment="#")``)."""
        csv: bytes = self.__dict__["_csv"]
        while not comments and csv.startswith(b"#"):
            csv = csv.partition(b"\n")[2]
        if path is None:
            return csv.decode()
        with open(path, "wb") as file:
            file.write(csv)
        return None

    def __repr__(self) -> str:
        """The columns without their intervals, as far as 120 characters go."""
        shown: dict[str, np.ndarray] = {}
        for name, values in self.columns.items():
            if name.endswith(("_low", "_high")):
                continue
            text = repr(Table(**shown, **{name: values}))
            if shown and max(map(len, text.splitlines())) > 120:
                break
            shown[name] = values
        hidden = len(self.columns) - len(shown)
        return repr(Table(**shown)) + (f"\n{hidden} more columns: see .columns" if hidden else "")

    def _repr_html_(self) -> str:
        from html import escape

        figures = "".join(figure._repr_html_() for figure in self.figures.values())
        return f"<p>{escape(self.caption)}</p>{super()._repr_html_()}{figures}"


def _column(values: list[Any]) -> np.ndarray:
    """A numeric array if all values are numbers (NaN: missing), else an array of objects."""
    kinds = {type(x) for x in values if x is not None}
    missing = any(x is None for x in values)
    if kinds == {bool} and not missing:
        return np.array(values, bool)
    if kinds == {int} and not missing:
        return np.array(values, np.int64)
    if kinds and kinds <= {int, float}:
        return np.array([np.nan if x is None else x for x in values], np.float64)
    return np.array(values, object)


class _Bar:
    """A progress bar with the remaining time, on terminals and in notebooks, for experiments of more than a second."""

    def __init__(self, name: str, wanted: bool | None) -> None:
        notebook = "ipykernel" in sys.modules
        self.name, self.all, self.done, self.begun, self.said = name, 0, 0, time.monotonic(), 0.0
        self.shown = sys.stderr is not None and ((sys.stderr.isatty() or notebook) if wanted is None else wanted)

    def __call__(self, kind: str, what: Any) -> None:
        if kind == "warn" and sys.stderr is None:
            return
        if kind == "warn":
            print(f"regard.lab.{self.name}: {what}", file=sys.stderr)
            return
        if kind == "expect":
            self.all += what
        else:
            self.done += what
        now = time.monotonic()
        if not self.shown or now - self.begun < 1 or now - self.said < 0.2 or not self.done:
            return
        self.said = now
        left = (now - self.begun) * max(0, self.all - self.done) / self.done
        share = min(1.0, self.done / max(1, self.all))
        print(f"\r{self.name} {'#' * round(30 * share):30} {share:4.0%}, {left:.0f} s left ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.said:
            print(f"\r{'':70}\r", end="", file=sys.stderr, flush=True)


def _word(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return str(value.item())
    if isinstance(value, (list, tuple, range, np.ndarray)):
        return ",".join(_word(x) for x in value)
    return str(value)


def _function(experiment: dict[str, Any]) -> Any:
    name = experiment["id"].replace("-", "_")
    options = {option["name"]: option for option in experiment["options"]}

    def run(*, progress: bool | None = None, **settings: Any) -> Result:
        words: list[str] = []
        for key, value in settings.items():
            if key not in options:
                raise TypeError(f"regard.lab.{name}() has no option {key!r}; it has {', '.join(options)}")
            option = options[key]
            long = f"--{option['long'] or key.replace('_', '-')}"
            if option["flag"]:
                words += [long] if value else []
            elif value is not None:
                words += [f"{long}={_word(value)}"]
        bar = _Bar(name, progress)
        try:
            tables, figures, agrees = _experiment(experiment["id"], words, bar)
        finally:
            bar.end()
        results = [Result(table) for table in tables]
        first = results[0]
        drawn = {figure.name: Figure(figure) for figure in figures}
        first.__dict__.update(tables={result.name: result for result in results}, figures=drawn, agrees=agrees)
        return first

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"{experiment['about']}\n\nOptions are those of the command; ``progress=False`` shows no bar.\n\n{experiment['help']}"
    parameters = [
        inspect.Parameter(option["name"], inspect.Parameter.KEYWORD_ONLY, default=False if option["flag"] else option["default"], annotation=Any)
        for option in options.values()
    ]
    parameters.append(inspect.Parameter("progress", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="bool | None"))
    run.__signature__ = inspect.Signature(parameters, return_annotation=Result)  # type: ignore[attr-defined]
    return run


def experiments() -> Table:
    """The experiments: name and description of each function."""
    known = _experiments()
    return Table(name=[one["id"].replace("-", "_") for one in known], about=[one["about"] for one in known])


for _one in _experiments():
    _made = _function(_one)
    globals()[_made.__name__] = _made
    __all__.append(_made.__name__)
del _one, _made


def __getattr__(name: str) -> Callable[..., Result]:
    # Called for missing names only.
    raise AttributeError(f"regard.lab has no experiment {name!r}; it has {', '.join(sorted(__all__))}")
