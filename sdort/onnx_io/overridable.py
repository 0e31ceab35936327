"""Graphs whose weights can be replaced while a session on them is open.

An initializer that is a graph input too is a default: a run takes what is bound to it, and the initializer where
nothing is (https://github.com/onnx/onnx/blob/main/docs/IR.md#graphs). Without the initializer it is a plain input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from sdort.errors import BadModelError
from sdort.graph.stored_values import StoredValues
from sdort.onnx_io.component_file import ComponentFile
from sdort.onnx_io.external import ExternalData
from sdort.onnx_io.weight_origins import Expression, read_origins, shapes_of


@dataclass(frozen=True)
class ReplaceableWeight:
    """An initializer in the data file whose origin is recorded."""

    stored: StoredValues
    """Its values."""
    origin: Expression
    """The expression of parameters that they are made of."""
    parameters: Mapping[str, tuple[int, ...]]
    """The parameters in it, with their shapes."""


def replaceable_weights(file: ComponentFile) -> dict[str, ReplaceableWeight]:
    """Initializers of a model that adapters can replace, by name; empty where their origins are not recorded.

    Raises:
        BadModelError: the file or the record is broken, or the external data is missing.
    """
    origins = read_origins(file.metadata)
    external = ExternalData(file.path, file.component)
    return {
        tensor.name: _replaceable(tensor, _stored(tensor, external.locate(tensor)), origins[tensor.name], file)
        for tensor in file.graph.graph.initializer
        if tensor.name in origins and tensor.data_location == TensorProto.EXTERNAL
    }


def _replaceable(
    tensor: TensorProto, stored: StoredValues, origin: Expression, file: ComponentFile
) -> ReplaceableWeight:
    try:
        return ReplaceableWeight(stored, origin, shapes_of(origin))
    except ValueError as error:
        raise bad_origin(file.component, tensor.name, str(error)) from error


def bad_origin(component: str, name: str, reason: str) -> BadModelError:
    """The refusal of a weight whose record does not fit it."""
    return BadModelError(
        f"the record of what this weight is made of is wrong: {reason}",
        component=component,
        node=name,
        hint="The file was damaged or changed: export and optimize it again.",
    )


def _stored(tensor: TensorProto, place: tuple[Path, int]) -> StoredValues:
    return StoredValues(*place, tensor.dims, helper.tensor_dtype_to_np_dtype(tensor.data_type))


def weights_of(model: onnx.ModelProto, operators: Collection[str]) -> set[str]:
    """The names of what nodes of these operators take beside their first input."""
    return {name for node in model.graph.node if node.op_type in operators for name in node.input[1:]}


def computed_weights(model: onnx.ModelProto, operators: Collection[str]) -> int:
    """How many nodes of these operators take a weight that other nodes compute."""
    made = {name for node in model.graph.node for name in node.output}
    return sum(node.op_type in operators and node.input[1] in made for node in model.graph.node)


def make_overridable(model: onnx.ModelProto, weights: Mapping[str, ReplaceableWeight], *, required: bool) -> None:
    """Make ``weights`` inputs of a model, in place.

    Args:
        required: without the initializers, so that every run needs them.
    """
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.name in weights:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    if required:
        kept = [tensor for tensor in graph.initializer if tensor.name not in weights]
        del graph.initializer[:]
        graph.initializer.extend(kept)
