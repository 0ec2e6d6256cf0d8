"""Attention layers over NumPy with parameters and gradients, and the training of small language models (the files are those of ``regard train``).

>>> import numpy as np
>>> from regard.nn import MultiHeadAttention
>>> layer = MultiHeadAttention(width=16, heads=4, seed=0)
>>> layer(np.ones((2, 5, 16), np.float32), causal=True).shape
(2, 5, 16)
"""

from __future__ import annotations

import csv
import operator
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Callable
from zipfile import BadZipFile

import numpy as np

from ._analyze import array, like
from ._regard import Model, attention, attention_vjp, load, weights

__all__ = ["AttentionOptions", "MultiHeadAttention", "ScaledAttention", "fit", "load", "sinusoidal_encoding"]


class AttentionOptions:
    """Options of :func:`regard.attention`, kept for several calls: ``AttentionOptions(causal=True)(q, k, v)``. It has no parameters;
    :class:`ScaledAttention` and :class:`MultiHeadAttention` have."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __call__(self, q: Any, k: Any, v: Any) -> np.ndarray:
        return attention(array(q), array(k), array(v), **self.options)

    def weights(self, q: Any, k: Any) -> np.ndarray:
        """The weights, ``[batch, heads, queries, keys]``: quadratic in memory."""
        return weights(array(q), array(k), **self.options)

    def vjp(self, q: Any, k: Any, v: Any, d_out: Any) -> Any:
        """Gradients by q, k and v, given the gradient ``d_out`` by the result."""
        return attention_vjp(array(q), array(k), array(v), array(d_out), **self.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"


class MultiHeadAttention:
    """Several heads with projections, as NumPy arrays in ``parameters``: ``w_q``, ``w_k``, ``w_v`` ``[width, heads * head_dim]`` and ``w_o`` back (and
    ``b_q`` ... with ``bias=True``). Fewer ``kv_heads`` share keys and values: with one, multi-query attention."""

    def __init__(self, width: int, heads: int, *, kv_heads: int | None = None, head_dim: int | None = None, bias: bool = False, seed: int = 0, dtype: Any = np.float32) -> None:
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"{heads} heads with kv_heads = {kv_heads}; kv_heads must divide heads")
        if head_dim is None:
            if width % heads:
                raise ValueError(f"width is {width}, which {heads} heads do not divide; give head_dim")
            head_dim = width // heads
        self.width: int = width
        self.heads: int = heads
        self.kv_heads: int = kv_heads
        self.head_dim: int = head_dim
        rng = np.random.default_rng(seed)
        inner, shared = heads * head_dim, kv_heads * head_dim
        shapes = {"w_q": (width, inner), "w_k": (width, shared), "w_v": (width, shared), "w_o": (inner, width)}
        self.parameters: dict[str, np.ndarray] = {name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(dtype) for name, shape in shapes.items()}
        if bias:
            self.parameters.update({f"b_{name[2:]}": np.zeros(shape[1], dtype) for name, shape in shapes.items()})

    def _project(self, x: np.ndarray, name: str) -> np.ndarray:
        out = x @ self.parameters[f"w_{name}"]
        return out + self.parameters[f"b_{name}"] if f"b_{name}" in self.parameters else out

    def _split(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], -1, self.head_dim).swapaxes(1, 2)

    def _join(self, x: np.ndarray) -> np.ndarray:
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def _heads(self, x: Any, memory: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        x = array(x)
        memory = x if memory is None else array(memory)
        for what, given in (("x", x), ("memory", memory)):
            if given.ndim != 3 or given.shape[2] != self.width:
                raise ValueError(f"{what} has the shape {list(given.shape)}; it needs [batch, tokens, {self.width}]")
        return x, memory, [self._split(self._project(given, name)) for given, name in ((x, "q"), (memory, "k"), (memory, "v"))]

    def __call__(self, x: Any, memory: Any = None, **options: Any) -> np.ndarray:
        """``[batch, tokens, width]``; with ``memory``, keys and values come from there (cross-attention)."""
        _, _, (q, k, v) = self._heads(x, memory)
        return self._output(self._join(attention(q, k, v, **options)))

    def _output(self, z: np.ndarray) -> np.ndarray:
        return self._project(z, "o")

    def _output_vjp(self, z: np.ndarray, d_out: np.ndarray, through: Any) -> np.ndarray:
        return through("o", z, d_out)

    def weights(self, x: Any, memory: Any = None, **options: Any) -> np.ndarray:
        """The weights of every head, ``[batch, heads, tokens, keys]``."""
        _, _, (q, k, _) = self._heads(x, memory)
        return weights(q, k, **options)

    def vjp(self, x: Any, d_out: Any, memory: Any = None, **options: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The result, and gradients by ``x``, ``memory`` (where given) and every parameter."""
        given, kept, (q, k, v) = self._heads(x, memory)
        d_out = array(d_out)
        z = self._join(attention(q, k, v, **options))
        out = self._output(z)
        found: dict[str, np.ndarray] = {}

        def through(name: str, source: np.ndarray, gradient: np.ndarray) -> np.ndarray:
            found[f"w_{name}"] = np.einsum("bni,bnj->ij", source, gradient)
            if f"b_{name}" in self.parameters:
                found[f"b_{name}"] = gradient.sum(axis=(0, 1))
            return gradient @ self.parameters[f"w_{name}"].T

        d_z = self._split(self._output_vjp(z, d_out, through))
        dq, dk, dv = attention_vjp(q, k, v, np.ascontiguousarray(d_z), **options)[:3]
        d_x = through("q", given, self._join(dq))
        d_memory = through("k", kept, self._join(dk)) + through("v", kept, self._join(dv))
        if memory is None:
            found["x"] = d_x + d_memory
        else:
            found["x"], found["memory"] = d_x, d_memory
        return out, found

    def save(self, path: Any) -> None:
        """Write the parameters as NumPy's .npz."""
        np.savez(path, heads=self.heads, kv_heads=self.kv_heads, **self.parameters)

    @classmethod
    def load(cls, path: Any) -> MultiHeadAttention:
        """Read a file of :meth:`save`."""
        try:
            with np.load(path, allow_pickle=False) as kept:
                parameters = {name: kept[name] for name in kept.files}
            heads, kv_heads = int(parameters.pop("heads")), int(parameters.pop("kv_heads"))
            width, inner = parameters["w_q"].shape
            made = cls(width, heads, kv_heads=kv_heads, head_dim=inner // heads, bias="b_q" in parameters)
        except (KeyError, ValueError, ZeroDivisionError, TypeError, AttributeError, EOFError, BadZipFile) as wrong:
            raise ValueError(f"{path} is not a file of MultiHeadAttention: {wrong}") from wrong
        for name, right in made.parameters.items():
            if name not in parameters or parameters[name].shape != right.shape or parameters[name].dtype.kind != "f":
                raise ValueError(f"{path} is not a file of MultiHeadAttention: {name} is missing or has another shape")
        made.parameters = {name: parameters[name] for name in made.parameters}
        return made

    def __repr__(self) -> str:
        return f"MultiHeadAttention(width={self.width}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim})"


class ScaledAttention(MultiHeadAttention):
    """One head with projections of queries, keys and values, ``[n_embd, n_embd]`` without biases in ``parameters`` (``w_q``, ``w_k``, ``w_v``), and no
    projection of the output: ``softmax(Q K^T * n_embd ** -0.5) V``. ``scale=False`` leaves the factor out.

    ``x`` is ``[batch, tokens, n_embd]``, or a torch tensor, whose result is a torch tensor (without a gradient; :meth:`vjp` has it). With several heads and
    an output projection: :class:`MultiHeadAttention`.

    >>> import numpy as np, regard.nn
    >>> layer = regard.nn.ScaledAttention(8)
    >>> x = np.ones((1, 3, 8), np.float32)
    >>> layer(x).shape, layer.weights(x).shape
    ((1, 3, 8), (1, 3, 3))
    """

    def __new__(cls, n_embd: int | None = None, **options: Any) -> Any:
        if n_embd is None:
            warnings.warn("ScaledAttention without n_embd is now AttentionOptions", DeprecationWarning, stacklevel=2)
            return AttentionOptions(**options)
        return super().__new__(cls)

    def __init__(self, n_embd: int, *, scale: bool | float = True, seed: int = 0, dtype: Any = np.float32) -> None:
        super().__init__(n_embd, 1, seed=seed, dtype=dtype)
        del self.parameters["w_o"]
        self.scale = scale

    def _output(self, z: np.ndarray) -> np.ndarray:
        return z

    def _output_vjp(self, z: np.ndarray, d_out: np.ndarray, through: Any) -> np.ndarray:
        return d_out

    def __call__(self, x: Any, memory: Any = None, **options: Any) -> Any:
        """``[batch, tokens, n_embd]``; with ``memory``, keys and values come from there (cross-attention). Options of :func:`regard.attention`."""
        return like(x, super().__call__(x, memory, **{"scale": self.scale, **options}))

    def weights(self, x: Any, memory: Any = None, **options: Any) -> Any:
        """The weights, ``[batch, tokens, keys]``."""
        return like(x, super().weights(x, memory, **{"scale": self.scale, **options})[:, 0])

    def vjp(self, x: Any, d_out: Any, memory: Any = None, **options: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The result, and gradients by ``x``, ``memory`` (where given) and every parameter."""
        return super().vjp(x, d_out, memory, **{"scale": self.scale, **options})

    @classmethod
    def load(cls, path: Any) -> Any:
        raise TypeError("ScaledAttention has no files; save its parameters with numpy.savez(path, **layer.parameters)")

    def save(self, path: Any) -> None:
        raise TypeError("ScaledAttention has no files; save its parameters with numpy.savez(path, **layer.parameters)")

    def __repr__(self) -> str:
        return f"ScaledAttention({self.width}, scale={self.scale})"


def sinusoidal_encoding(n: int, d: int, *, base: float = 10000.0, dtype: Any = np.float32) -> np.ndarray:
    """Sinusoidal position encoding, ``[n, d]``: ``sin(p / base ** (2 i / d))`` in column ``2 i`` of row ``p``, the cosine in column ``2 i + 1``.

    >>> import regard.nn
    >>> regard.nn.sinusoidal_encoding(2, 4).round(3)
    array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.01 , 1.   ]], dtype=float32)
    """
    for name, value in (("n", n), ("d", d)):
        if operator.index(value) < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    angle = np.arange(n)[:, None] / base ** (np.arange(0, d, 2) / d)
    return np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(n, -1)[:, :d].astype(dtype)


def _rows(path: Path, after: int) -> list[dict[str, float]]:
    """Rows of a training's log after step ``after``."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for row in csv.DictReader(lines):
        try:
            numbers = {name: float(value) for name, value in row.items() if name and value not in (None, "")}
        except ValueError:
            # An incomplete last line.
            continue
        if numbers.get("step", 0) > after:
            found.append(numbers)
    return found


def _stamp(path: Path) -> tuple[int, int] | None:
    """Modification time and size of a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def fit(out: Any = "model", *, text: Any = None, callback: Callable[[dict[str, float]], Any] | None = None, progress: bool | None = None, **settings: Any) -> Model:
    """Train a small language model, as ``regard train`` does, into the folder ``out``, and load it.

    ``text`` is a text, or a path to one; by default, stories of the built-in grammar. Settings are those of the command, with ``_`` for ``-``:
    ``steps=300, width=64, layers=2, heads=4, positions="rotary"``. ``callback`` is called with a dictionary per step (``step``, ``loss``, ...); if it
    returns False, the training is saved and stopped. Ctrl-C saves it, too; ``resume=True`` resumes it.
    """
    folder = Path(out)
    words = [sys.executable, "-m", "regard", "train", "--out", str(folder)]
    given = None
    if text is not None:
        if isinstance(text, os.PathLike) or (isinstance(text, str) and len(text) < 1000 and Path(text).is_file()):
            words += ["--text", os.fspath(text)]
        else:
            words += ["--text", "-"]
            given = str(text).encode()
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True and name in ("resume", "overwrite"):
            words.append(flag)
        elif value is not False and value is not None:
            words.append(f"{flag}={str(value).lower() if isinstance(value, bool) else value}")
    bar = bool(sys.stderr and sys.stderr.isatty()) if progress is None else progress
    log = folder / "training.csv"
    # Skip the steps of an earlier training.
    known = _rows(log, 0)
    seen = int(known[-1]["step"]) if known and settings.get("resume") else 0
    before = _stamp(log)
    if not bar:
        words.append("--quiet")
    # A session of its own: Ctrl-C reaches the child once, from here, and the child saves its state.
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=None if bar else subprocess.PIPE, start_new_session=True)
    stopped = False
    try:
        assert child.stdin is not None
        try:
            child.stdin.write(given or b"")
            child.stdin.close()
        except BrokenPipeError:
            # The child has ended; its error is on its stderr.
            pass
        while True:
            ended = child.poll() is not None
            if callback is not None and not stopped and _stamp(log) != before:
                for row in _rows(log, seen):
                    seen = int(row["step"])
                    if callback(row) is False:
                        stopped = True
                        child.send_signal(signal.SIGINT)
                        break
            if ended:
                break
            time.sleep(0.1)
    except BaseException:
        # The child saves its state before it ends.
        child.send_signal(signal.SIGINT)
        child.wait()
        raise
    said = child.stderr.read().decode(errors="replace") if child.stderr else ""
    if child.returncode != 0 and not (stopped and child.returncode in (130, -signal.SIGINT)):
        raise ValueError(said.strip().removeprefix("error: ") or f"the training ended with code {child.returncode}")
    return load(folder)
