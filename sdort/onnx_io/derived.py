"""Values that follow from a thing that stays the same, found once and kept beside it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Derived:
    """Answers to questions about one thing, each found once. A question that raises is asked again.

    Args:
        most: answers that are kept, those that were last asked for.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, question: Hashable, find: Callable[[], T]) -> T:
        """The answer to ``question``, which ``find`` gives. Two threads that ask at once may both find it."""
        with self._lock:
            if question in self._known:
                self._known.move_to_end(question)
                known: T = self._known[question]
                return known
        found = find()
        with self._lock:
            self._known[question] = found
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return found
