"""From an ONNX file to a :class:`sdort.model.Model`, without reading its weights.

An ONNX file is untrusted: :func:`load_model` runs every check of :mod:`sdort.untrusted` and :mod:`sdort.external`
before a byte of weights is read. Tensors above 1 KiB become :class:`sdort.weights.Weight` objects, smaller ones numpy
arrays.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto
from onnx_graphsurgeon.logger import G_LOGGER

from sdort.errors import BadModelError
from sdort.external import ExternalData
from sdort.functions import inline_functions
from sdort.importing import finish_graph
from sdort.layout import find_components, recognise
from sdort.model import Model
from sdort.untrusted import check_model, tensor_nbytes
from sdort.weights import Array, Inline, Stored, Weight

__all__ = ["SMALL", "Resolve", "find_components", "from_proto", "load_model", "read_proto"]

SMALL = 1024
"""Tensors of at most this many bytes are kept as arrays: shapes, axes, scalars, epsilons."""

Resolve = Callable[[TensorProto], "Weight | None"]

_COPY_AGAIN = "Check that the file is an ONNX model and was copied or downloaded completely."


def load_model(path: Path, component: str | None = None) -> Model:
    """Read an ONNX file.

    Args:
        path: the ``.onnx`` file; its external data lies in the same directory.
        component: the pipeline component it is, for messages; guessed if not given.

    Raises:
        BadModelError: the file is no ONNX model, is broken, unsafe, or has parts that sdort does not support.
    """
    path = Path(path)
    proto = read_proto(path, component or path.stem)
    try:
        component = component or recognise(proto, path) or path.stem
        return from_proto(proto, None, component, path)
    except UnicodeDecodeError:
        raise BadModelError(
            f"{path} has names that are not text", component=component or path.stem, hint=_COPY_AGAIN
        ) from None


def read_proto(path: Path, component: str) -> onnx.ModelProto:
    """Parse the file; external data stays where it is."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadModelError(f"{path} is not a file", component=component)
        data = path.read_bytes()
    except OSError as error:
        raise BadModelError(f"cannot read {path}: {error.strerror or error}", component=component) from None
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise BadModelError(f"{path} is not an ONNX model", component=component, hint=_COPY_AGAIN) from None
    if not proto.HasField("graph"):
        raise BadModelError(f"{path} has no graph", component=component, hint=_COPY_AGAIN)
    return proto


def from_proto(proto: onnx.ModelProto, resolve: Resolve | None, component: str, path: Path | None = None) -> Model:
    """Build the graph of a model.

    Args:
        proto: the model; it belongs to this function now and may be changed.
        resolve: maps a tensor that is above 1 KiB or external to its weight; None, or a weight of None, takes the
            values in ``proto``, or the external data beside ``path``.
        component: the pipeline component, for messages.
        path: the file it was read from.

    Raises:
        BadModelError: as for :func:`load_model`.
    """
    proto = inline_functions(proto, component)
    reader = _Reader(resolve, component, path)
    order = check_model(proto, component, trusted_values=resolve is not None)
    values = {tensor.name: reader.describe(tensor) for tensor in proto.graph.initializer}
    attributes = [
        {a.name: reader.describe(a.t) for a in node.attribute if a.type == AttributeProto.TENSOR}
        for node in proto.graph.node
    ]
    reader.check()
    _drop_untyped_value_info(proto.graph)
    with G_LOGGER.suppress():  # it would print a line about every dtype that numpy lacks
        graph = gs.import_onnx(proto)
    for node, tensors in zip(graph.nodes, attributes, strict=True):
        node.attrs.update({name: gs.Constant("", reader.read_small(value)) for name, value in tensors.items()})
    constants = {name: reader.read_small(value) for name, value in values.items()}
    finish_graph(graph, constants, order)
    return Model(graph, component, path, {entry.key: entry.value for entry in proto.metadata_props})


class _Reader:
    """Decides for each tensor of a model where its values come from."""

    def __init__(self, resolve: Resolve | None, component: str, path: Path | None) -> None:
        self.resolve = resolve
        self.component = component
        self.external = ExternalData(path, component) if path else None

    def describe(self, tensor: TensorProto) -> Array | Weight:
        """The tensor's values or where they are; reads nothing outside ``tensor``."""
        outside = tensor.data_location == TensorProto.EXTERNAL
        nbytes = tensor_nbytes(tensor, self.component)
        if self.resolve and (outside or nbytes > SMALL):
            weight = self.resolve(tensor)
            if weight is not None:
                return weight
        if outside:
            if self.external is None:
                raise BadModelError("external data of a model without a file", component=self.component, node=tensor.name)
            return self.external.resolve(tensor)
        array = onnx.numpy_helper.to_array(tensor)
        return Inline(array) if nbytes > SMALL else np.array(array)

    def check(self) -> None:
        """What can only be seen when every tensor was described."""
        if self.external:
            self.external.check_overlaps()

    def read_small(self, value: Array | Weight) -> Array | Weight:
        if isinstance(value, (Stored, Inline)) and value.nbytes <= SMALL:
            return value.load()
        return value


def _drop_untyped_value_info(graph: onnx.GraphProto) -> None:
    """An entry without an element type says nothing, and onnx-graphsurgeon cannot read it."""
    typed = [info for info in graph.value_info if info.type.tensor_type.elem_type]
    if len(typed) < len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(typed)
