"""Preparation of a model, so that it opens with the library as it opens without it.

A library that registers operators of ONNX Runtime changes two things for every model, whether it has such operators
or not:

- ONNX Runtime takes a domain that a model does not import at the newest version that is registered. For libraries that
  is 1000, at which ONNX Runtime finds none of its own operators, so that its own fusions (FusedMatMul, QuickGelu,
  FusedConv) end in "not a registered function/op". Importing version 1, the only one there is, makes up for it.
- An operator of the library stands in for ONNX Runtime's own wherever that stands, in forms that the library has no
  kernel for too: the operator is not registered for a model that has, or may be given, such a form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import onnx
from onnx import TensorProto

from sdort.console import say
from sdort.files.input_file import read_input
from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Operator
from sdort.onnx_io.component_file import read_component
from sdort.operators import load_operators

LAYER_NORMALIZATION = "LayerNormalization"

_SERVED = (TensorProto.FLOAT, TensorProto.FLOAT16)


def unserved_layer_norm(proto: onnx.ModelProto) -> str | None:
    """The first form in the model that the library has no kernel for; None where it has one for all.

    A mean of what a Cast makes is one too: if it is part of a layer normalization in single operators, ONNX Runtime
    fuses that to a LayerNormalization of two types.
    """
    types = dict(_types(proto.graph))
    casts = {node.output[0] for node in proto.graph.node if node.op_type == "Cast"}
    for node in proto.graph.node:
        if node.op_type == "ReduceMean" and node.input[0] in casts:
            return f"ReduceMean {node.name!r} of a Cast may become a {LAYER_NORMALIZATION} of two types"
        if node.op_type == LAYER_NORMALIZATION and not node.domain and (reason := _reason(node, types)):
            return f"{LAYER_NORMALIZATION} {node.name!r} has {reason}"
    return None


def _reason(node: onnx.NodeProto, types: dict[str, tuple[int, int | None]]) -> str | None:
    statistics = [name for name in node.output[1:] if name]
    if statistics:
        return ", ".join(statistics)
    kind, rank = types.get(node.input[1], (TensorProto.UNDEFINED, None))
    if kind not in _SERVED:
        return f"a scale of the type {TensorProto.DataType.Name(kind)}"
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    if axis < 0 and rank not in (None, -axis):
        return f"a scale of {rank} dimensions for {-axis} of its input"
    return None


def _types(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int, int | None]]]:
    """Type and, where it is known, number of dimensions of the graph's tensors, as far as the graph tells them."""
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        yield value.name, (tensor.elem_type, len(tensor.shape.dim) if tensor.HasField("shape") else None)
    for weight in graph.initializer:
        yield weight.name, (weight.data_type, len(weight.dims))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                yield node.output[0], (attribute.i, None)
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], (attribute.t.data_type, len(attribute.t.dims))


CONTRIB_OPSET = 1
"""Of com.microsoft, the only one that there is."""


MAX_PROTOBUF = 2**31 - 1
"""Upper bound in bytes of a file that a protobuf parser, as ONNX Runtime's, takes."""


def prepare_model(model: str | bytes) -> tuple[str | bytes, Path | None, dict[str, str]]:
    """A model as it is opened with the library.

    Args:
        model: the path of an ``.onnx`` file, or a serialized model.

    Returns:
        The path or serialized model to open; the folder of its external data if it was a path and is none any more;
        and :func:`unserved`.

    Raises:
        BadModelError: the file is no ONNX model.
    """
    path = Path(model) if isinstance(model, str) else None
    proto = read_component(path).proto if path else onnx.ModelProto.FromString(model)
    left_out = unserved(proto)
    if not lacks_domain(proto):
        return model, None, left_out
    content = read_input(path, limit=MAX_PROTOBUF) if path else bytes(model)  # type: ignore[arg-type]
    # Two messages in a row are one to protobuf: what repeats, as imports do, is appended.
    return content + import_domain(onnx.ModelProto()).SerializeToString(), path.parent if path else None, left_out


def lacks_domain(proto: onnx.ModelProto) -> bool:
    """Whether the model does not say which version of com.microsoft it takes."""
    return all(entry.domain != MICROSOFT for entry in proto.opset_import)


def import_domain(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, which now imports com.microsoft."""
    if lacks_domain(proto):
        proto.opset_import.add(domain=MICROSOFT, version=CONTRIB_OPSET)
    return proto


def unserved(proto: onnx.ModelProto) -> dict[str, str]:
    """The library's operators that have no kernel for a form of theirs in this model -> what it is; each is told."""
    forms_used: dict[str, str] = {}
    forms = [(operator, *form) for operator in load_operators().values() for form in operator.unserved.items()]
    for node in _nodes(proto):
        for served, name, parameters in forms:
            present = _given(parameters, node, served) if node.op_type == name else []
            if present and served.name not in forms_used:
                forms_used[served.name] = f"{name} {node.name!r} has {', '.join(present)}"
    if reason := unserved_layer_norm(proto):
        forms_used[LAYER_NORMALIZATION] = reason
    for operator, form in forms_used.items():
        _tell(f"ONNX Runtime's own {operator} runs, sdort's has no kernel for it: {form}")
    return forms_used


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from proto.graph.node
    for function in proto.functions:
        yield from function.node


def _given(parameters: Collection[str], node: onnx.NodeProto, operator: Operator) -> list[str]:
    """Those of ``parameters`` of the operator, or of the standard one that it stands in for, that the node has, each
    with its tensor."""
    inputs, outputs = operator.inputs, operator.outputs
    if node.op_type != operator.name:
        schema = onnx.defs.get_schema(node.op_type)
        inputs, outputs = (tuple(parameter.name for parameter in names) for names in (schema.inputs, schema.outputs))
    pairs = [*zip(inputs, node.input, strict=False), *zip(outputs, node.output, strict=False)]
    return [f"{parameter} ({tensor})" for parameter, tensor in pairs if tensor and parameter in parameters]


@cache  # a model is opened again and again
def _tell(message: str) -> None:
    say(message)
