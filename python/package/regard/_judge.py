"""``regard.judge``: the judge of attention functions, on a function of this process."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._regard import _command, _judge_harness


class Verdict:
    """What the judge found: ``right``, ``mistakes`` (ids), ``limits`` (ids), ``text``, and ``record``, all of it."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.right: bool = record["right"]
        self.mistakes: list[str] = [one["id"] for one in record["mistakes"]]
        self.alternatives: list[list[str]] = [[one["id"] for one in group] for group in record["alternatives"]]
        self.limits: list[str] = [one["id"] for one in record["limits"]]
        self.text: str = record["text"]

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        markdown: str = self.record["markdown"]
        return markdown


def _harness() -> types.ModuleType:
    module = types.ModuleType("regard._judge_harness")
    exec(compile(_judge_harness(), "<regard judge harness>", "exec"), module.__dict__)
    return module


def judge(
    function: Callable[..., Any],
    *,
    arguments: Mapping[str, str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    layout: str | None = None,
    framework: str | None = None,
    causal: str | None = None,
    dtype: str = "f32",
    allow: Sequence[str] = (),
    seed: int = 1,
) -> Verdict:
    """Judge an attention function: right within which tolerance, or which known mistake it makes.

    The function takes arrays of NumPy, PyTorch or JAX; the names of its arguments say what they mean. ``arguments``
    maps meanings to other names (``{"mask": "visible"}``), ``fixed`` has values that are always passed. ``causal`` is
    ``"top-left"`` or ``"bottom-right"``. The same as ``regard judge`` on the command line.
    """
    harness = _harness()
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}"
    with tempfile.TemporaryDirectory(prefix="regard-judge-") as folder:
        address, record = os.path.join(folder, "socket"), os.path.join(folder, "verdict.json")
        words = ["regard", "judge", name, "--attach", address, "--record", record, "--quiet"]
        words += ["--dtype", dtype, "--seed", str(seed)]
        for meaning, argument in (arguments or {}).items():
            words += ["--arg", f"{meaning}={argument}"]
        for argument, value in (fixed or {}).items():
            words += ["--set", f"{argument}={json.dumps(value)}"]
        for option, value in (("--layout", layout), ("--framework", framework), ("--causal", causal)):
            words += [option, value] if value is not None else []
        for mistake in allow:
            words += ["--allow", mistake]
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(1)
            codes: list[int] = []

            def run() -> None:
                try:
                    codes.append(_command(words))
                finally:
                    # The judge may have ended before it connected.
                    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                        try:
                            last.connect(address)
                        except OSError:
                            pass

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            link, _ = listener.accept()
            try:
                with link:
                    harness.Harness(harness.Link(link), function).serve()
            except OSError:
                pass  # Closed by the judge, which has its verdict or an error.
            thread.join()
        finally:
            listener.close()
        if not os.path.exists(record):
            raise ValueError(f"{name} cannot be judged (exit code {codes[0] if codes else 1}): the reason is on the standard error")
        with open(record, encoding="utf-8") as file:
            return Verdict(json.load(file))
