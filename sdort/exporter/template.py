"""The finished graph of an architecture, into which a checkpoint's weights go by name.

A traced graph is cleaned up once; what is kept is the serialised model and, for every initializer that comes from a
checkpoint, the expression over its parameters. A known architecture is exported without looking at the graph again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx

from sdort.graph.weights import SMALL_BYTES, Absent, Inline, Weight
from sdort.onnx_io.check_nodes import check_attributes
from sdort.onnx_io.check_tensors import check_tensor, tensor_nbytes
from sdort.onnx_io.data_file import Blob, place_behind
from sdort.onnx_io.expression_json import decode, encode, numpy_dtype
from sdort.onnx_io.serialize import Serialized, serialize
from sdort.onnx_io.weight_origins import Expression, parameters_of
from sdort.onnx_io.wire import parse_graph

StaticShape = tuple[int, ...]
DATA_NAME = "model.onnx.data"
"""The data file's name, as :func:`sdort.onnx_io.save.data_file` calls that of ``model.onnx``."""

_ALIGNED = 4096
"""Bytes between regions of the data file, at the most."""
_MOST_DATA = 4
"""How many times as large as its parameters a data file can be; that of a real graph holds each once."""


@dataclass(frozen=True)
class Trace:
    """A graph as torch traced it.

    ``parameters`` are all parameters of the traced module, also those that the graph does not use (the two halves of
    an autoencoder share one checkpoint). Those that it uses are external initializers of the same name.
    """

    proto: onnx.ModelProto
    parameters: Mapping[str, StaticShape]


class TemplateBlob(NamedTuple):
    """An initializer in the data file: its name, its offset in bytes, and its weight; in JSON a list of the three."""

    name: str
    offset: int
    weight: Expression


@dataclass(frozen=True)
class Template:
    """A finished model without weights."""

    proto: onnx.ModelProto
    """The model; its initializers of ``small`` have no values."""
    parameters: Mapping[str, StaticShape]
    """As of :class:`Trace`."""
    data_bytes: int
    blobs: tuple[TemplateBlob, ...]
    """The data file's content."""
    small: Mapping[str, Expression]
    """Initializer -> weight."""

    @property
    def used(self) -> set[str]:
        """The parameters that the graph uses."""
        weights = [*(blob.weight for blob in self.blobs), *self.small.values()]
        return {name for weight in weights for name in parameters_of(weight)}


def make_template(trace: Trace, component: str) -> Template:
    """Clean up a traced graph: fold constants and drop shape residue, which torch's own optimizer would have done.

    Args:
        trace: its proto is used up.
        component: the pipeline component, for messages.
    """
    from sdort.onnx_io.load import from_proto
    from sdort.passes import tidy, upgrade
    from sdort.passes.target_opset import declare_opset
    from sdort.rewrite.editor import Editor
    from sdort.rewrite.pattern import OPSET

    model = from_proto(trace.proto, lambda tensor: _absent(tensor, trace.parameters), component)
    opset = model.graph.opset
    # sdort's passes know operators up to their own opset; a newer graph stays as torch wrote it.
    if opset <= OPSET:
        editor = Editor(model)
        upgrade.run(editor)
        tidy.run(editor)
        declare_opset(model, opset)
    content = serialize(model, DATA_NAME)
    blobs = tuple(TemplateBlob(blob.name, blob.offset, encode(blob.weight)) for blob in content.blobs)
    small = {name: encode(weight) for name, weight in content.late.items()}
    proto = onnx.ModelProto.FromString(content.proto)
    return Template(proto, trace.parameters, content.data_bytes, blobs, small)


def resized(template: Template, parameters: Mapping[str, StaticShape]) -> Template:
    """The template of an architecture that differs in the rows of tables alone, which its graph looks up by number.

    Args:
        parameters: as of :class:`Trace`.
    """
    old, new = (_absent_weights(shapes) for shapes in (template.parameters, parameters))
    moved, blobs, end = {}, [], 0
    for blob in template.blobs:
        before, weight = decode(blob.weight, old), decode(blob.weight, new)
        offset = place_behind(end, weight.nbytes)
        moved[str(blob.offset)] = offset, weight, weight.shape != before.shape
        blobs.append(blob._replace(offset=offset))
        end = offset + weight.nbytes
    proto = onnx.ModelProto()
    proto.CopyFrom(template.proto)
    for tensor in proto.graph.initializer:
        if tensor.external_data:
            entries = {entry.key: entry for entry in tensor.external_data}
            offset, weight, changed = moved[entries["offset"].value]
            entries["offset"].value, entries["length"].value = str(offset), str(weight.nbytes)
            tensor.dims[:] = weight.shape if changed else tensor.dims
    return Template(proto, parameters, end, tuple(blobs), template.small)


def fill(template: Template, weights: Mapping[str, Weight]) -> Serialized:
    """The model with a checkpoint's weights.

    Args:
        weights: parameter -> float32 weight of its shape, for all that are ``used``.

    Raises:
        BadModelError: a small weight cannot be read.
    """
    blobs = [Blob(blob.name, decode(blob.weight, weights), blob.offset) for blob in template.blobs]
    proto = onnx.ModelProto()
    proto.CopyFrom(template.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in template.small:
            tensor.raw_data = decode(template.small[tensor.name], weights).load().tobytes()
    return Serialized(proto.SerializeToString(deterministic=True), blobs, template.data_bytes, {})


def pack(template: Template) -> bytes:
    """A template as a line of JSON and a serialised model."""
    header = vars(template) | {"parameters": dict(template.parameters), "small": dict(template.small)}
    proto = header.pop("proto").SerializeToString(deterministic=True)
    return json.dumps(header).encode() + b"\n" + bytes(proto)


def unpack(content: bytes, component: str) -> Template:
    """The template that :func:`pack` made, checked as a stranger's.

    Raises:
        BadModelError, and those of :data:`sdort.onnx_io.expression_json.UNREADABLE`: it is none.
    """
    header, _, proto = content.partition(b"\n")
    parts = json.loads(header)
    template = Template(
        parse_graph(proto, "the trace", component),
        {name: tuple(shape) for name, shape in parts["parameters"].items()},
        parts["data_bytes"],
        tuple(TemplateBlob(*blob) for blob in parts["blobs"]),
        parts["small"],
    )
    _check(template, component)
    return template


def _check(template: Template, component: str) -> None:
    """Refuse a template whose parts do not agree: every initializer has its values, and the data file no holes.

    Raises:
        BadModelError, and those of :data:`sdort.onnx_io.expression_json.UNREADABLE`: which part.
    """
    _check_nodes(template.proto, component)
    absent = _absent_weights(template.parameters)
    regions = _check_regions(template, absent)
    small = {name: decode(entry, absent) for name, entry in template.small.items()}
    for tensor in template.proto.graph.initializer:
        weight = small.pop(tensor.name, None)
        if weight is None and not tensor.external_data:
            check_tensor(tensor, component)
            continue
        if weight is None:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            weight = regions[int(entries.pop("offset"))]
            if entries != {"location": DATA_NAME, "length": str(weight.nbytes)}:
                raise ValueError(f"{tensor.name} lies elsewhere")
        elif weight.nbytes > SMALL_BYTES or tensor.raw_data:
            raise ValueError(f"{tensor.name} is no small weight")
        if (tensor_nbytes(tensor, component), numpy_dtype(tensor.data_type)) != (weight.nbytes, weight.dtype):
            raise ValueError(f"{tensor.name} has values of another size")
    if small:
        raise ValueError(f"the graph has no {min(small)}")


def _check_nodes(model: onnx.ModelProto, component: str) -> None:
    """Refuse values that lie elsewhere in what is written as it is: only initializers have external data here."""
    if model.functions or model.training_info or model.graph.sparse_initializer:
        raise ValueError("it holds more than nodes and initializers")
    for node in model.graph.node:
        check_attributes(node, component)
        if any(attribute.t.external_data for attribute in node.attribute):
            raise ValueError(f"the values of an attribute of {node.name or node.op_type} lie elsewhere")


def _check_regions(template: Template, absent: Mapping[str, Weight]) -> dict[int, Weight]:
    """The data file's content by its offsets, in order and without overlaps."""
    regions, end = {}, 0
    for blob in template.blobs:
        weight = decode(blob.weight, absent)
        if type(blob.offset) is not int or blob.offset < end:
            raise ValueError(f"{blob.name} begins at {blob.offset!r}")
        regions[blob.offset], end = weight, blob.offset + weight.nbytes
    own = [leaf for weight in regions.values() for leaf in weight.leaves() if isinstance(leaf, Inline)]
    most = sum(weight.nbytes + _ALIGNED for weight in (*absent.values(), *own)) + len(template.blobs) * _ALIGNED
    if template.data_bytes != end or end > _MOST_DATA * most:
        raise ValueError(f"its data would have {template.data_bytes!r} bytes")
    return regions


def _absent(tensor: onnx.TensorProto, parameters: Mapping[str, StaticShape]) -> Weight | None:
    return Absent(tensor.name, parameters[tensor.name], np.float32) if tensor.name in parameters else None


def _absent_weights(parameters: Mapping[str, StaticShape]) -> dict[str, Weight]:
    return {name: Absent(name, shape, np.float32) for name, shape in parameters.items()}
