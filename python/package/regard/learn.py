"""``regard.learn.check(3, attention)``: the judge of the exercises, on a function of this notebook.

The judge runs in a process of its own, with the cases of ``regard learn check``; the function stays here, and is called with
arrays of NumPy, or with tensors of PyTorch (``lang="torch"``).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from ._regard import _command

__all__ = ["Verdict", "check"]

# The answer that the judge runs: it asks the function of the other process.
_PROXY = """
import pickle
from multiprocessing.connection import Client

_link = Client({address!r}, "AF_UNIX", {key!r})


def _send(value):
    # Plain pickles: PyTorch's own way between processes shares memory with children only.
    _link.send_bytes(pickle.dumps(value))


class _Elsewhere:
    def __init__(self, name):
        self.name = name

    def __call__(self, *arguments):
        asks = [index for index, one in enumerate(arguments) if callable(one)]
        _send((self.name, [None if callable(one) else one for one in arguments], asks))
        while True:
            kind, value = pickle.loads(_link.recv_bytes())
            if kind == "ask":
                _send(arguments[asks[0]](value))
            elif kind == "result":
                return value
            elif kind == "todo":
                raise NotImplementedError
            else:
                raise type(value[0], (Exception,), {{}})(value[1])


{name} = _Elsewhere({name!r})
"""
# Seconds of a call, as in the judge.
_CALL = 2.0


class Verdict:
    """What the judge said: ``passed``, ``status``, ``mistakes`` (ids), ``points``, ``text``, and ``record``, all of it."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.status: str = record["status"]
        self.passed: bool = self.status == "pass"
        diagnosis = record["diagnosis"]
        self.mistakes: list[str] = [one["id"] for one in [diagnosis, *diagnosis["also"]]] if diagnosis else []
        self.points: int = record["points"]
        self.text: str = record["text"]

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text


class _Timeout(BaseException):
    """A call takes too long."""


def _limited(function: Callable[..., Any], arguments: list[Any]) -> Any:
    """Calls a function; after two seconds it is interrupted, where the system and the thread allow it."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return function(*arguments)

    def late(_signal: int, _frame: Any) -> None:
        raise _Timeout

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _CALL)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _answer(link: Connection, function: Callable[..., Any]) -> None:
    """Answers the calls of one check until the judge hangs up."""

    def send(value: Any) -> None:
        link.send_bytes(pickle.dumps(value))

    while True:
        try:
            _, arguments, asks = pickle.loads(link.recv_bytes())
        except (EOFError, OSError):
            return

        def ask(tokens: Any) -> Any:
            send(("ask", tokens))
            return pickle.loads(link.recv_bytes())

        for index in asks:
            arguments[index] = ask
        try:
            reply: tuple[str, Any] = ("result", _limited(function, arguments))
        except NotImplementedError:
            reply = ("todo", None)
        except _Timeout:
            reply = ("error", ("TimeoutError", f"no answer after {_CALL:.0f} s"))
        except Exception as error:
            reply = ("error", (type(error).__name__, str(error)))
        try:
            send(reply)
        except (BrokenPipeError, OSError):
            return
        except Exception as error:
            send(("error", (type(error).__name__, f"the result cannot be sent: {error}")))


def check(exercise: int | str, function: Callable[..., Any], *, lang: str = "python", seed: int = 1, points: int = 1) -> Verdict:
    """Judge ``function`` as the answer to an exercise, by number or name.

    The verdict is true if the function passes, and shows itself in a notebook. With ``lang="torch"`` the function takes
    tensors. Exercises 08 and 13 in PyTorch ask for a class: judge them as files, with ``regard learn check``.

    >>> import regard
    >>> verdict = regard.learn.check(2, softmax)  # doctest: +SKIP
    >>> assert verdict, verdict.text  # doctest: +SKIP
    """
    if not callable(function):
        raise TypeError(f"function must be callable, not {type(function).__name__}; pass the function itself: check(2, softmax)")
    with tempfile.TemporaryDirectory(prefix="regard-learn-") as folder:
        record = Path(folder) / "verdict.json"
        address, key = str(Path(folder) / "link"), os.urandom(16)
        listener = Listener(address, "AF_UNIX", authkey=key)
        name = _name_of(exercise, Path(folder))
        answer = Path(folder) / "answer.py"
        answer.write_text(_PROXY.format(address=address, key=key, name=name), encoding="utf-8")
        words = ["regard", "learn", "check", str(exercise), "--file", str(answer), "--lang", lang, "--json", "--plain"]
        words += ["--seed", str(seed), "--points", str(points), "--record", str(record), "--quiet", "--python", sys.executable]
        codes: list[int] = []

        def run() -> None:
            try:
                codes.append(_command(words))
            finally:
                # The command may have ended before its runner connected: this ends the wait for it.
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as unblock:
                    unblock.connect(address)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            # A connection that is closed before its key was checked is that of `run`.
            with contextlib.suppress(EOFError, OSError), listener.accept() as link:
                _answer(link, function)
        finally:
            thread.join()
            listener.close()
        if not record.exists():
            raise ValueError(f"exercise {exercise} cannot be judged (exit code {codes[0] if codes else 1}): the reason is on the standard error")
        return Verdict(json.loads(record.read_text(encoding="utf-8")))


def _name_of(exercise: int | str, folder: Path) -> str:
    """Name of the function that an exercise asks for."""
    listed = folder / "list.json"
    if _command(["regard", "learn", "list", "--json", "--dir", str(folder), "--record", str(listed)]) != 0:
        raise ValueError(f"no list of exercises for {exercise}: the reason is on the standard error")
    names: list[dict[str, Any]] = json.loads(listed.read_text(encoding="utf-8"))
    word = str(exercise)
    for one in names:
        if word in (one["name"], str(one["number"]), f"{one['number']:02}", f"{one['number']:02}_{one['name']}"):
            return str(one["name"])
    raise ValueError(f"there is no exercise {exercise!r}; numbers are 1 to {len(names)}")
