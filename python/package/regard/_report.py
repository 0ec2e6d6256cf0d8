"""Which implementation has computed the attention of each module."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from typing import Any, Callable

import torch

from ._results import Table

#: Calls of each module by ``(who computed it, why not regard)``.
_calls: weakref.WeakKeyDictionary[torch.nn.Module, Counter[tuple[str, str]]] = weakref.WeakKeyDictionary()
#: Frames between a module and the function that it calls.
_DEPTH = 8


def noted(module: torch.nn.Module, by: str, why: str) -> None:
    """Count a call of a module."""
    if not torch.compiler.is_compiling():
        _count(_calls, module, by, why)


def _count(calls: Any, module: torch.nn.Module, by: str, why: str) -> None:
    found = calls.get(module)
    if found is None:
        found = calls[module] = Counter()
    found[by, why] += 1


def caller() -> torch.nn.Module | None:
    """The module whose code calls: the nearest frame with a module as ``module`` or ``self``."""
    frame = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return None
        for name in ("module", "self"):
            if name in frame.f_code.co_varnames:
                found = frame.f_locals.get(name)
                if isinstance(found, torch.nn.Module):
                    return found
        frame = frame.f_back
    return None


def is_attention(module: torch.nn.Module) -> bool:
    """Whether a module is an attention layer itself: by its name, and without another one inside."""
    named = lambda x: "Attention" in type(x).__name__ and not type(x).__name__.endswith(("Output", "Layer", "Block"))
    return named(module) and not any(named(child) for child in module.modules() if child is not module)


def table(model: torch.nn.Module, expected: Callable[[torch.nn.Module], tuple[str, str]], calls: Any = None) -> Table:
    """A row per layer and implementation: from the calls so far, else as expected."""
    calls = _calls if calls is None else calls
    rows: list[tuple[str, str, str, int, str]] = []
    for name, module in model.named_modules():
        found = calls.get(module)
        if found:
            rows += [(name, type(module).__name__, by, count, why) for (by, why), count in found.items()]
        elif is_attention(module):
            by, why = expected(module)
            rows.append((name, type(module).__name__, by, 0, why))
    columns = list(zip(*rows)) if rows else [()] * 5
    return Table(layer=columns[0], **{"class": columns[1]}, computed_by=columns[2], calls=columns[3], why=columns[4])
