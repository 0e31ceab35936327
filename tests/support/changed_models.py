"""A model, changed in one place after the other: its constants, attributes, shapes, operands and readers.

What a fusion matches is changed this way to see whether it looks at all that it relies on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, ValueInfoProto, defs, helper, numpy_helper

from sdort.graph.domains import IN_DEFAULT_DOMAIN

Array = npt.NDArray[Any]
Changed = tuple[str, onnx.ModelProto]
"""What was changed, and the whole model with that change."""


OPEN = "size"
"""Before the number of a size that is open."""


def changed_models(model: onnx.ModelProto) -> Iterator[Changed]:
    """Every change, each alone. Not all of them leave a model that can be computed."""
    for change in (constants, computed_constants, attributes, shapes, open_sizes, operands, readers):
        yield from change(model)


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    made: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    return made


def constants(model: onnx.ModelProto) -> Iterator[Changed]:
    """Other values, in all elements and in the last alone, and other shapes of as many or fewer elements."""
    for index, tensor in enumerate(model.graph.initializer):
        for what, values in _other_values(numpy_helper.to_array(tensor)):
            made = copy(model)
            made.graph.initializer[index].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))
            yield f"{tensor.name} {what}", made


def _other_values(values: Array) -> Iterator[tuple[str, Array]]:
    last = values.copy()
    if values.dtype == np.bool_:
        last.reshape(-1)[-1] ^= True
        yield "with its last element flipped", last
        yield "inverted", ~values
        return
    if values.dtype.kind == "i":
        for step in (1, -1):
            last = values.copy()
            last.reshape(-1)[-1] += step
            yield f"with {step} added to its last element", last
        yield "in reverse", values[..., ::-1] if values.ndim else values - 2
        if values.size > 1:
            yield (
                "with its last two elements as one",
                np.append(values[..., :-2], values[..., -2:].prod()).astype(np.int64),
            )
        return
    yield "larger by 1 %", (values * 1.01 + 0.01).astype(values.dtype)
    if values.size > 1:
        last.reshape(-1)[-1] = 0.5 if np.isinf(last.reshape(-1)[-1]) else last.reshape(-1)[-1] + 0.5
        yield "with another last element", last
        yield "with one element alone", values.reshape(-1)[:1]
        yield "as a column", values.reshape(*values.shape, 1)
        yield "as a row", values.reshape(1, *values.shape)
    else:
        yield "of five axes", values.reshape(1, 1, 1, 1, 1)


def computed_constants(model: onnx.ModelProto) -> Iterator[Changed]:
    """A constant that comes in as an input, with whatever values."""
    for index, tensor in enumerate(model.graph.initializer):
        if tensor.data_type == TensorProto.FLOAT:
            made = copy(model)
            del made.graph.initializer[index]
            made.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            yield f"{tensor.name} as an input", made


def attributes(model: onnx.ModelProto) -> Iterator[Changed]:
    """Each attribute at another value, left out, and those that are not there apart from their defaults."""
    for index, node in enumerate(model.graph.node):
        for place, attribute in enumerate(node.attribute):
            made = copy(model)
            del made.graph.node[index].attribute[place]
            yield f"{node.op_type} without {attribute.name}", made
            for value in _other_attributes(helper.get_attribute_value(attribute)):
                made = copy(model)
                made.graph.node[index].attribute[place].CopyFrom(helper.make_attribute(attribute.name, value))
                yield f"{node.op_type} with {attribute.name} = {value}", made
        given = {attribute.name for attribute in node.attribute}
        for name, value in _optional_attributes(node, model):
            if name not in given:
                made = copy(model)
                made.graph.node[index].attribute.append(helper.make_attribute(name, value))
                yield f"{node.op_type} with {name} = {value}", made


def _other_attributes(value: Any) -> Iterator[Any]:
    if isinstance(value, float):
        yield value * 1.1
    elif isinstance(value, int):
        yield from {value - 1, value + 1, value + 2, 0, 1} - {value}
    elif isinstance(value, list):
        for first in range(len(value)):
            for second in range(first):
                order = list(value)
                order[first], order[second] = order[second], order[first]
                if order != value:
                    yield order
        yield [each + 1 for each in value]


def _optional_attributes(node: onnx.NodeProto, model: onnx.ModelProto) -> Iterator[tuple[str, Any]]:
    """Of the standard operators: numbers that differ from their defaults, and the words that Gelu knows."""
    if node.domain or node.op_type in IN_DEFAULT_DOMAIN:
        return
    schema = defs.get_schema(node.op_type, model.opset_import[0].version)
    for name, attribute in schema.attributes.items():
        default = helper.get_attribute_value(attribute.default_value) if attribute.default_value.type else None
        if attribute.type == defs.OpSchema.AttrType.INT:
            yield name, 1 if default in (0, None) else 0
        elif attribute.type == defs.OpSchema.AttrType.FLOAT:
            yield name, (default or 0.5) * 2
        elif name == "approximate":
            yield name, "tanh"


def shapes(model: onnx.ModelProto) -> Iterator[Changed]:
    """Each input with an axis of size one, of twice the size, without its first axis, and with one more before it."""
    for index, info in enumerate(model.graph.input):
        sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
        others = [
            [*sizes[:axis], size, *sizes[axis + 1 :]] for axis in range(len(sizes)) for size in (1, 2 * sizes[axis])
        ]
        for dims in [*others, sizes[1:], [1, *sizes]]:
            if dims != sizes:
                made = copy(model)
                made.graph.input[index].CopyFrom(_info(info, dims))
                yield f"{info.name} of shape {dims}", made


def open_sizes(model: onnx.ModelProto) -> Iterator[Changed]:
    """Each size of the inputs that is not known before they come, wherever it occurs, and all of them."""
    sizes = {d.dim_value for info in model.graph.input for d in info.type.tensor_type.shape.dim}
    for open_ in [*({size} for size in sorted(sizes)), sizes]:
        made = copy(model)
        for info in made.graph.input:
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_value in open_:
                    dim.dim_param = f"{OPEN}{dim.dim_value}"
        yield f"sizes {sorted(open_)} open", made


def operands(model: onnx.ModelProto) -> Iterator[Changed]:
    """The first two inputs of a node in the other order, and one of them in both places."""
    for index, node in enumerate(model.graph.node):
        first, second = [*node.input[:2], "", ""][:2]
        if first and second:
            for pair in ((second, first), (first, first), (second, second)):
                made = copy(model)
                made.graph.node[index].input[:2] = pair
                yield f"{node.op_type} of {', '.join(pair)}", made


def readers(model: onnx.ModelProto) -> Iterator[Changed]:
    """Each value inside the graph as an output too."""
    outputs = {info.name for info in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in outputs:
                made = copy(model)
                kind = TensorProto.BOOL if node.op_type == "IsNaN" else TensorProto.FLOAT
                kind = TensorProto.INT64 if node.op_type in ("ArgMax", "Shape") else kind
                made.graph.output.append(helper.make_tensor_value_info(name, kind, None))
                yield f"{name} as an output", made


def _info(info: ValueInfoProto, dims: list[int]) -> ValueInfoProto:
    made: ValueInfoProto = helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, dims)
    return made
