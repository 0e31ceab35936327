"""Weights that change while sessions are open: values in the provider's memory, each at one address for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from sdort.graph.signature import Array, Factors
from sdort.onnx_io.overridable import ReplaceableWeight
from sdort.runtime.placed_weights import THREADS, PlacedWeights
from sdort.runtime.weight_sums import WeightSums


class ReplacedWeights:
    """The values that sessions of a model have for some of its initializers, written in place.

    A session that is opened on them reads them where they are, so that a recorded graph of the device stays valid,
    nothing is bound for a run, and there is one copy of each.

    Args:
        replaceable: the initializers, by name; they begin with their own values.
        upload: puts an array into the provider's memory, as an ``OrtValue``.
        as_inputs: the model has no such initializers: every run takes the values as inputs.
        placed: these initializers, in the provider's memory already, in the place of ``upload``.
        sums: adds products to values where they are, if the provider can.

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
        placed: PlacedWeights | None = None,
        sums: WeightSums | None = None,
    ) -> None:
        self.replaceable = dict(replaceable or {})
        self._placed = placed
        self._sums = sums
        self.as_inputs = as_inputs and bool(self.replaceable)
        self._changed: set[str] = set()
        self.version = 0
        """Grows with every change: of other weights, other things are made."""
        self._values: Mapping[str, Any] = placed.initializers if placed else {}
        if upload:
            self._values = {name: upload(weight.stored.load()) for name, weight in self.replaceable.items()}

    @property
    def initializers(self) -> Mapping[str, Any]:
        """Weights that a session is opened on, as ``OrtValue`` by name."""
        return {} if self.as_inputs else self._values

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs of every run, as ``OrtValue`` by name."""
        return self._values if self.as_inputs else {}

    @property
    def changed(self) -> frozenset[str]:
        """Those that may have other values than the model's file."""
        return frozenset(self._changed)

    @property
    def nbytes(self) -> int:
        """Bytes of all values, in the provider's memory."""
        return sum(weight.stored.nbytes for weight in self.replaceable.values())

    @property
    def adds(self) -> bool:
        """Whether :meth:`add` is possible."""
        return self._sums is not None

    def write(self, name: str, values: Array) -> None:
        """Let ``name`` have other values, of the initializer's shape and dtype."""
        self._change(name)
        self._values[name].update_inplace(np.ascontiguousarray(values))

    def add(self, name: str, factors: Factors) -> float:
        """Add the product of two matrices to the values that ``name`` has, where they are.

        Returns:
            The largest magnitude of the sums in fp32, before they are rounded.

        Raises:
            ProviderError: the provider fails.
        """
        if self._sums is None:
            raise ValueError("nothing adds to these weights")
        self._change(name)
        return self._sums.add(self._values[name], self.replaceable[name].stored.dtype, factors)

    @contextmanager
    def restoring(self, names: Sequence[str]) -> Iterator[Callable[[str], None]]:
        """A block in which weights get the values of the model's file; at its end all of them have them.

        Args:
            names: of weights that were changed, in the order in which they are needed.

        Returns:
            A function that waits until one of the model's weights has the values, if it is among them. Where the
            weights are placed the others are read meanwhile.

        Raises:
            BadModelError: they cannot be read.
        """
        self.version += bool(names)
        pool = ThreadPoolExecutor(THREADS, "sdort-weights")
        read = {name: pool.submit(self._placed.load_one, name) for name in names} if self._placed else {}

        def wait(name: str) -> None:
            if name in read:
                read.pop(name).result()
                self._changed.remove(name)

        try:
            for name in names if not self._placed else ():
                self.write(name, self.replaceable[name].stored.load())
                self._changed.remove(name)
            yield wait
            for name in list(read):
                wait(name)
        finally:
            pool.shutdown(cancel_futures=True)

    def _change(self, name: str) -> None:
        self._changed.add(name)
        self.version += 1
