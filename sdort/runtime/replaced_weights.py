"""Weights that change while sessions are open: values in the provider's memory, each at one address for good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdort.model.signature import Array
from sdort.onnx_io.overridable import ReplaceableWeight


class ReplacedWeights:
    """The values that sessions of a model have for some of its initializers, written in place.

    A session that is opened on them reads them where they are, so that a recorded graph of the device stays valid,
    nothing is bound for a run, and there is one copy of each.

    Args:
        replaceable: the initializers, by name; they begin with their own values.
        upload: puts an array into the provider's memory, as an ``OrtValue``.
        as_inputs: the model has no such initializers: every run takes the values as inputs.

    Raises:
        BadModelError: their own values cannot be read.
        ProviderError: they do not fit into the provider's memory.
    """

    def __init__(
        self,
        replaceable: Mapping[str, ReplaceableWeight] | None = None,
        upload: Callable[[Array], Any] | None = None,
        *,
        as_inputs: bool = False,
    ) -> None:
        self.replaceable = dict(replaceable or {})
        self.as_inputs = as_inputs and bool(self.replaceable)
        self._changed: set[str] = set()
        self.version = 0
        """Grows with every change: of other weights, other things are made."""
        self._values = (
            {name: upload(weight.stored.load()) for name, weight in self.replaceable.items()} if upload else {}
        )

    @property
    def initializers(self) -> Mapping[str, Any]:
        """What a session is opened on, as ``OrtValue`` by name."""
        return {} if self.as_inputs else self._values

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What every run takes, as ``OrtValue`` by name."""
        return self._values if self.as_inputs else {}

    @property
    def changed(self) -> frozenset[str]:
        """Those that may have other values than the model's file."""
        return frozenset(self._changed)

    @property
    def nbytes(self) -> int:
        """Bytes of all values, in the provider's memory."""
        return sum(weight.stored.nbytes for weight in self.replaceable.values())

    def write(self, name: str, values: Array) -> None:
        """Let ``name`` have other values, of the initializer's shape and dtype."""
        self._changed.add(name)
        self.version += 1
        self._values[name].update_inplace(np.ascontiguousarray(values))

    def restore(self, name: str) -> None:
        """Let ``name`` have the values of the model's file."""
        self.write(name, self.replaceable[name].stored.load())
        self._changed.remove(name)
