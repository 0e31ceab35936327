"""The layout of the data file: equal small constants become one initializer, equal expressions one region of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto
from onnx_graphsurgeon.exporters.onnx_exporter import dtype_to_onnx
from onnx_graphsurgeon.ir.tensor import LazyValues

from sdort.graph.overflow import count_overflow
from sdort.graph.weights import SMALL_BYTES, Absent, Cast, Inline, Reshaped, Weight, expression_key
from sdort.onnx_io.tensor_names import TensorNames


@dataclass
class Blob:
    """One region of the data file."""

    name: str
    """The first initializer that uses it."""
    weight: Weight
    offset: int

    @property
    def cost(self) -> int:
        """Bytes in memory while it is evaluated: what is read and what is written."""
        return self.weight.nbytes + sum(leaf.nbytes for leaf in self.weight.leaves())


class Initializers:
    """Collects the constants' protos (``protos``) and lays out the data file (``blobs`` up to byte ``end``).

    Small ones whose parameters have no values yet are in ``late``, and have none in their protos either.
    """

    def __init__(self, names: TensorNames, data_name: str) -> None:
        self.names = names
        self.data_name = data_name
        self.protos: list[TensorProto] = []
        self.blobs: list[Blob] = []
        self.end = 0
        self.overflow_counts: dict[str, int] = {}
        self.late: dict[str, Weight] = {}
        self.large: dict[str, Weight] = {}
        """Initializer -> what lies in the data file."""
        self._by_content: dict[Any, str] = {}
        self._regions: dict[Any, Blob] = {}

    def add(self, tensor: gs.Constant) -> None:
        """Give ``tensor`` an initializer, or another constant's if that has the same values."""
        weight = weight_of(tensor)
        is_small = weight.nbytes <= SMALL_BYTES
        is_late = is_small and any(isinstance(leaf, Absent) for leaf in weight.leaves())
        small = weight.load() if is_small and not is_late else None
        value = (small.tobytes(),) if small is not None else expression_key(weight)
        key = (weight.dtype.str if weight.dtype.kind != "V" else weight.dtype.name, weight.shape, value)
        if key in self._by_content and not self.names.is_fixed(tensor):
            self.names.alias(tensor, self._by_content[key])
            return
        name = self.names.of(tensor)
        self._by_content.setdefault(key, name)
        proto = TensorProto(name=name, dims=weight.shape, data_type=dtype_to_onnx(weight.dtype))
        if small is not None:
            proto.raw_data = small.tobytes()
            if overflowed := count_overflow(small, weight):
                self.overflow_counts[name] = overflowed
        elif is_late:
            self.late[name] = weight
        else:
            self._place(proto, weight)
        self.protos.append(proto)

    def _place(self, proto: TensorProto, weight: Weight) -> None:
        self.large[proto.name] = weight
        while isinstance(weight, Reshaped):  # the same bytes
            weight = weight.operand
        key = expression_key(weight)
        if key not in self._regions:
            offset = place_behind(self.end, weight.nbytes)
            self._regions[key] = Blob(proto.name, weight, offset)
            self.blobs.append(self._regions[key])
            self.end = offset + weight.nbytes
        proto.data_location = TensorProto.EXTERNAL
        entries = {"location": self.data_name, "offset": self._regions[key].offset, "length": weight.nbytes}
        for entry, value in entries.items():
            proto.external_data.add(key=entry, value=str(value))


def weight_of(tensor: gs.Constant) -> Weight:
    """The constant's values as a weight, whatever form onnx-graphsurgeon holds them in."""
    values = tensor._values
    if isinstance(values, LazyValues) and not isinstance(values, Weight):
        values = values.load()
    weight = values if isinstance(values, Weight) else Inline(values)
    exported = tensor._export_dtype
    if exported is None:
        return weight
    dtype = onnx.helper.tensor_dtype_to_np_dtype(exported) if isinstance(exported, int) else np.dtype(exported)
    return weight if dtype == weight.dtype else Cast(weight, dtype)


def place_behind(end: int, nbytes: int) -> int:
    """The offset of a region of ``nbytes`` in a data file whose last one ends at ``end``.

    Large ones start on a page, so that a runtime can map them.
    """
    alignment = 4096 if nbytes > 2**20 else 64
    return -(-end // alignment) * alignment
