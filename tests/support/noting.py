"""Stand-ins for functions, which note what they are called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def noting(calls: list[Any], answer: Any) -> Callable[..., Any]:
    """A function that adds the tuple of its arguments to ``calls`` and gives ``answer``."""

    def note(*given: Any) -> Any:
        calls.append(given)
        return answer

    return note
