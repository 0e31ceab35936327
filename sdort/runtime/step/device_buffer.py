"""An array in the provider's memory, which bindings name by its address."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sdort.graph.signature import Array
from sdort.runtime.device_block import borrowed_value
from sdort.runtime.session import Session


class Buffer:
    """An array in the provider's memory, at one address for good."""

    def __init__(self, session: Session, values: Array) -> None:
        self._host = np.array(values, order="C")  # on the CPU the memory itself
        self._session = session
        self._value = session.upload(self._host)
        self.shape, self.dtype = self._host.shape, self._host.dtype

    def write(self, values: Array) -> None:
        content = np.ascontiguousarray(values, self.dtype).reshape(self.shape)
        self._session.guard(lambda: self._value.update_inplace(content))

    def write_from(self, first: int, values: Array) -> None:
        """Write what stands from ``[first]`` on, as far as the values go, and leave the rest."""
        content = np.ascontiguousarray(values, self.dtype).reshape(-1, *self.shape[1:])
        if content.shape[0] > self.shape[0] - first:
            raise ValueError(f"{content.shape[0]} rows for {self.shape[0] - first}")
        (device, number), provider = self._session.memory, self._session.provider
        address = self.binding_arguments(first)[-1]
        vendor = "" if device == "cpu" else provider.vendor
        part = borrowed_value(address, vendor, number, content.shape, self.dtype)
        self._session.guard(lambda: part.update_inplace(content))

    def fill(self, values: Array | float) -> None:
        """Write values that are repeated to the buffer's shape."""
        self.write(np.broadcast_to(values, self.shape))

    def read(self) -> Array:
        return np.array(self._session.download(self._value))  # a copy: on the CPU it would be the memory itself

    def binding_arguments(self, first: int = 0, shape: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Arguments of an ``IOBinding``: the device, type, shape and address of the part from ``[first]`` on."""
        inner = self.dtype.itemsize * math.prod(self.shape[1:])
        return (
            *self._session.memory,
            self.dtype,
            list(self.shape if shape is None else shape),
            self._value.data_ptr() + first * inner,
        )


def dims_of(arguments: Sequence[Any]) -> list[int]:
    """The dimensions in the arguments of an ``IOBinding`` (:meth:`Buffer.binding_arguments`)."""
    dims: list[int] = arguments[3]
    return dims
