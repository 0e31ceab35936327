"""Weights of an open session that are not its file's: values in the provider's memory, each at one address for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sdort.model.signature import Array


class ReplacedWeights:
    """Values that runs of a session take instead of its model's weights, by initializer.

    What was once replaced keeps its memory, so that a recorded graph of the device stays valid, and is written again
    in place. While nothing is ``active``, runs take the model's own weights.

    Args:
        upload: puts an array into the provider's memory, as an ``OrtValue``.
        required: the model has no weights of its own: there is always something active.
    """

    def __init__(self, upload: Callable[[Array], Any], *, required: bool = False) -> None:
        self.required = required
        self.active = required
        self._upload = upload
        self._values: dict[str, Any] = {}
        self._bytes = 0

    @property
    def names(self) -> frozenset[str]:
        """Everything that has memory here."""
        return frozenset(self._values)

    @property
    def bound(self) -> frozenset[str]:
        """What runs take from here: all, or nothing."""
        return self.names if self.active else frozenset()

    @property
    def nbytes(self) -> int:
        """Bytes of all values, in the provider's memory."""
        return self._bytes

    def write(self, name: str, values: Array) -> None:
        """Let ``name`` have other values, of the initializer's shape and dtype."""
        if name in self._values:
            self._values[name].update_inplace(np.ascontiguousarray(values))
        else:
            # On the CPU the array is the memory itself, so it has to be nobody else's.
            self._values[name] = self._upload(np.array(values, order="C"))
            self._bytes += values.nbytes

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """What runs take: initializer and ``OrtValue``."""
        return iter(self._values.items() if self.active else ())
