"""The finished graph of an architecture, into which a checkpoint's weights go by name.

A traced graph is cleaned up once; what is kept is the serialised model and, for every initializer that comes from a
checkpoint, the expression over its parameters. A known architecture is exported without looking at the graph again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from sdort.model.weights import Absent, Cast, Concatenated, Inline, Reshaped, Scaled, Transposed, Weight
from sdort.onnx_io.data_file import Blob
from sdort.onnx_io.serialize import Serialized, serialize

StaticShape = tuple[int, ...]
Expression = dict[str, Any]
"""A weight as JSON."""


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
        return {name for weight in weights for name in _parameters(weight)}


def make_template(trace: Trace, component: str, data_name: str) -> Template:
    """Clean up a traced graph: fold constants and drop shape residue, which torch's own optimizer would have done.

    Args:
        trace: its proto is used up.
        component: the pipeline component, for messages.
        data_name: the data file's name.
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
    content = serialize(model, data_name)
    blobs = tuple(TemplateBlob(blob.name, blob.offset, _encode(blob.weight)) for blob in content.blobs)
    small = {name: _encode(weight) for name, weight in content.late.items()}
    proto = onnx.ModelProto.FromString(content.proto)
    return Template(proto, trace.parameters, content.data_bytes, blobs, small)


def fill(template: Template, weights: Mapping[str, Weight]) -> Serialized:
    """The model with a checkpoint's weights.

    Args:
        weights: parameter -> float32 weight of its shape, for all that are ``used``.

    Raises:
        BadModelError: a small weight cannot be read.
    """
    blobs = [Blob(blob.name, _decode(blob.weight, weights), blob.offset) for blob in template.blobs]
    proto = onnx.ModelProto()
    proto.CopyFrom(template.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in template.small:
            tensor.raw_data = _decode(template.small[tensor.name], weights).load().tobytes()
    return Serialized(proto.SerializeToString(deterministic=True), blobs, template.data_bytes, {})


def _absent(tensor: onnx.TensorProto, parameters: Mapping[str, StaticShape]) -> Weight | None:
    return Absent(tensor.name, parameters[tensor.name], np.float32) if tensor.name in parameters else None


def _encode(weight: Weight) -> Expression:
    match weight:
        case Absent():
            return {"parameter": weight.name}
        case Inline():
            values = base64.b64encode(weight.array.tobytes()).decode()
            return {"values": values, "dtype": _dtype(weight), "shape": list(weight.shape)}
        case Transposed():
            return {"transposed": _encode(weight.operand), "perm": list(weight.perm)}
        case Reshaped():
            return {"reshaped": _encode(weight.operand), "shape": list(weight.shape)}
        case Cast():
            return {"cast": _encode(weight.operand), "dtype": _dtype(weight)}
        case Scaled():
            return {"scaled": _encode(weight.operand), "factor": weight.factor}
        case Concatenated():
            return {"concatenated": [_encode(part) for part in weight.parts], "axis": weight.axis}
    raise TypeError(f"{weight} has no form in a template")


def _decode(entry: Expression, weights: Mapping[str, Weight]) -> Weight:
    match entry:
        case {"parameter": name}:
            return weights[name]
        case {"values": values, "dtype": dtype, "shape": shape}:
            array = np.frombuffer(base64.b64decode(values), helper.tensor_dtype_to_np_dtype(dtype))
            return Inline(array.reshape(shape))
        case {"transposed": operand, "perm": perm}:
            return Transposed(_decode(operand, weights), perm)
        case {"reshaped": operand, "shape": shape}:
            return Reshaped(_decode(operand, weights), shape)
        case {"cast": operand, "dtype": dtype}:
            return Cast(_decode(operand, weights), helper.tensor_dtype_to_np_dtype(dtype))
        case {"scaled": operand, "factor": factor}:
            return Scaled(_decode(operand, weights), factor)
        case {"concatenated": parts, "axis": axis}:
            return Concatenated([_decode(part, weights) for part in parts], axis)
    raise ValueError(f"{entry} is no weight")


def _dtype(weight: Weight) -> int:
    return int(helper.np_dtype_to_tensor_dtype(weight.dtype))


def _parameters(entry: Expression) -> Iterator[str]:
    if "parameter" in entry:
        yield entry["parameter"]
    for value in entry.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from _parameters(part)
