"""For tests: ``assert_attention(function)`` fails where the judge finds a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._judge import Verdict, judge

__all__ = ["Verdict", "assert_attention", "judge"]


def assert_attention(function: Callable[..., Any], **options: Any) -> Verdict:
    """Judge an attention function and raise ``AssertionError`` with the verdict if it is wrong.

    The options are those of ``regard.judge``. In a test::

        def test_kernel():
            regard.testing.assert_attention(my_attention, causal="bottom-right")
    """
    __tracebackhide__ = True
    verdict = judge(function, **options)
    if not verdict.right:
        raise AssertionError("\n" + verdict.text)
    return verdict
