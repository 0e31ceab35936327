"""Loader of an ONNX file as a :class:`sdort.graph.model.Model`, without reading its weights.

An ONNX file is untrusted: :func:`load_model` runs every check of :mod:`sdort.onnx_io.check_model` and
:mod:`sdort.onnx_io.external` before a byte of weights is read. Tensors above 1 KiB become
:class:`sdort.graph.weights.Weight` objects, smaller ones numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, TensorProto
from onnx_graphsurgeon.logger import G_LOGGER

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.graph.weights import SMALL_BYTES, Inline, Stored, Unwritten, Weight
from sdort.onnx_io.branches import inline_branches
from sdort.onnx_io.check_inference import check_inference
from sdort.onnx_io.check_model import check_model
from sdort.onnx_io.check_nodes import shorten_domains
from sdort.onnx_io.check_tensors import check_tensor, tensor_nbytes
from sdort.onnx_io.component_file import copied, read_component
from sdort.onnx_io.components import recognise
from sdort.onnx_io.constant_weights import refuse_constant
from sdort.onnx_io.external import ExternalData
from sdort.onnx_io.functions import inline_functions
from sdort.onnx_io.graph_import import finish_graph
from sdort.onnx_io.weight_origins import ORIGINS_KEY, read_origins, region_of

Resolve = Callable[[TensorProto], "Weight | None"]


def load_model(path: Path, component: str | None = None, weights: Mapping[str, Weight] | None = None) -> Model:
    """Read an ONNX file.

    Args:
        path: the ``.onnx`` file; its external data lies in the same directory.
        component: the pipeline component it is, for messages; guessed if not given.
        weights: initializer -> weight, of those whose data was not written.

    Raises:
        BadModelError: the file is no ONNX model, is broken, unsafe, or has parts that sdort does not support.
    """
    file = read_component(path, component)
    name = component or recognise(file.proto, file.path) or file.component
    resolve = (lambda tensor: weights.get(tensor.name)) if weights else None
    return from_proto(copied(file.proto), resolve, name, file.path)


def from_proto(proto: onnx.ModelProto, resolve: Resolve | None, component: str, path: Path | None = None) -> Model:
    """Build the graph of a model.

    Args:
        proto: the model; it belongs to this function now and may be changed.
        resolve: maps an initializer to its weight, and None takes the values in ``proto`` or the external data beside
            ``path``. An initializer that it maps may lack its values.
        component: the pipeline component, for messages.
        path: the file it was read from.

    Raises:
        BadModelError: as for :func:`load_model`.
    """
    shorten_domains(proto)
    proto = inline_branches(inline_functions(proto, component), component)
    reader = _Reader(resolve, component, path)
    order = check_model(proto, component)
    values = {tensor.name: reader.initializer(tensor) for tensor in proto.graph.initializer}
    attributes = [
        {a.name: reader.tensor(a.t) for a in node.attribute if a.type == AttributeProto.TENSOR}
        for node in proto.graph.node
    ]
    reader.check()
    refuse_constant(values.values(), component)
    constants = {name: reader.read_small(value) for name, value in values.items()}
    _clean_value_info(proto.graph)
    if path is not None:  # else the graph comes from this process: traced, or a test's
        small = {name: value for name, value in constants.items() if isinstance(value, np.ndarray)}
        check_inference(proto, order, small, component)
    with G_LOGGER.suppress():  # it would print a line about every dtype that numpy lacks
        graph = gs.import_onnx(proto)
    for node, tensors in zip(graph.nodes, attributes, strict=True):
        node.attrs.update({name: gs.Constant("", reader.read_small(value)) for name, value in tensors.items()})
    finish_graph(graph, constants, order)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    recorded = read_origins(metadata)
    metadata.pop(ORIGINS_KEY, None)
    origins = {
        region_of(value): recorded[name]
        for name, value in values.items()
        if isinstance(value, (Stored, Unwritten)) and name in recorded
    }
    return Model(graph, component, path, metadata, origins)


class _Reader:
    """Values or weights for the tensors of a model."""

    def __init__(self, resolve: Resolve | None, component: str, path: Path | None) -> None:
        self.resolve = resolve
        self.component = component
        self.external = ExternalData(path, component) if path else None

    def initializer(self, tensor: TensorProto) -> Array | Weight:
        """The initializer's values or where they are; reads nothing outside ``tensor``."""
        nbytes = tensor_nbytes(tensor, self.component)
        weight = self.resolve(tensor) if self.resolve else None
        if weight is None:
            return self.tensor(tensor)
        if weight.nbytes != nbytes:
            raise BadModelError(
                f"a weight of shape {weight.shape} for an initializer of shape {tuple(tensor.dims)}",
                component=self.component,
                node=tensor.name,
            )
        return weight

    def tensor(self, tensor: TensorProto) -> Array | Weight:
        """:meth:`initializer` for any tensor."""
        check_tensor(tensor, self.component)
        if tensor.data_location != TensorProto.EXTERNAL:
            array = onnx.numpy_helper.to_array(tensor)
            return Inline(array) if array.nbytes > SMALL_BYTES else np.array(array)
        if self.external is None:
            raise BadModelError("external data of a model without a file", component=self.component, node=tensor.name)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return Stored(*self.external.locate(tensor), tensor.dims, dtype)

    def check(self) -> None:
        """Checks of all tensors together, once each was described."""
        if self.external:
            self.external.check_overlaps()

    def read_small(self, value: Array | Weight) -> Array | Weight:
        """Small stored values as an array, all else as it is."""
        if isinstance(value, (Stored, Unwritten, Inline)) and value.nbytes <= SMALL_BYTES:
            return value.load()
        return value


def _clean_value_info(graph: onnx.GraphProto) -> None:
    """One typed entry a name, and none for inputs, outputs and initializers, which describe themselves.

    onnx-graphsurgeon cannot read an entry without an element type, and would believe the last of several.
    """
    seen = {value.name for values in (graph.input, graph.output, graph.initializer) for value in values}
    kept = []
    for info in graph.value_info:
        if info.name not in seen and info.type.tensor_type.elem_type:
            seen.add(info.name)
            kept.append(info)
    if len(kept) < len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(kept)
