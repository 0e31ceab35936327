"""The facts of an ONNX graph at given sizes of its inputs, in one pass over its nodes.

Networks repeat their blocks: nodes of equal operators, attributes and inputs have equal results, so that the rules are
asked once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto, helper, numpy_helper

from sdort.graph.domains import IN_DEFAULT_DOMAIN, MICROSOFT
from sdort.graph.fact import MAX_VALUE, NOTHING, Fact
from sdort.graph.signature import Array
from sdort.onnx_io.evaluate import evaluate_nodes
from sdort.rewrite.inference.facts import Facts

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
_SCALES = 8
"""Floats that decide about shapes: a Resize has a scale for each axis, and twice as many bounds of its region."""


def facts_at(model: onnx.ModelProto, sizes: Mapping[str, tuple[int, ...]], component: str) -> dict[str, Fact]:
    """Known facts of all tensors by name, as far as the operators' rules tell.

    Args:
        model: its nodes in topological order; large weights may lack their values.
        sizes: the shapes of its inputs.
        component: the pipeline component, for messages.

    Raises:
        BadModelError: a node's inputs and attributes contradict each other at these sizes.
    """
    graph = model.graph
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    found = _Inference(opset, component, {tensor.name: tensor for tensor in graph.initializer})
    for info in graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        found.facts.setdefault(info.name, Fact(dtype, sizes.get(info.name)))
    for node in graph.node:
        found.infer(node)
    return found.facts


class _Inference:
    """The facts of tensors by name, and the rules' answers by all that they follow from."""

    def __init__(self, opset: int, component: str, weights: Mapping[str, TensorProto]) -> None:
        self.facts = {name: _described(weight) for name, weight in weights.items()}
        self._opset = opset
        self._component = component
        self._small = {name: values for name, weight in weights.items() if (values := _values(weight)) is not None}
        self._known: dict[Hashable, Sequence[Fact]] = {}

    def infer(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Constant" and not node.domain:
            weight = _constant(node)
            self.facts[node.output[0]], values = _described(weight), _values(weight)
            self._small |= {} if values is None else {node.output[0]: values}
            return
        feeds = {name: self._small[name] for name in node.input if name in self._small}
        if feeds and not node.domain and len(feeds) == len({*node.input} - {""}):  # exporters put scales together
            self._take(node, evaluate_nodes([node], feeds, self._opset))
        if node.output[0] in self._small:
            return
        key = self._key(node)
        found = self._known.get(key)
        if found is None:
            found = self._inferred(node)
            if all(
                isinstance(size, int) for fact in found for size in fact.shape or ()
            ):  # an unknown one is its node's
                self._known[key] = found
        self.facts.update((name, fact) for name, fact in zip(node.output, found, strict=True) if name)

    def _take(self, node: onnx.NodeProto, values: Array | None) -> None:
        """Take the values of a node's output, where they are known and few."""
        weight = None if values is None or len(node.output) > 1 else numpy_helper.from_array(values)
        kept = None if weight is None else _values(weight)
        if weight is not None and kept is not None:
            self.facts[node.output[0]], self._small[node.output[0]] = _described(weight), kept

    def _key(self, node: onnx.NodeProto) -> Hashable:
        attributes = tuple([attribute.SerializeToString() for attribute in node.attribute])
        values = tuple([self._small[name].tobytes() if name in self._small else name == "" for name in node.input])
        facts = tuple([self.facts.get(name) for name in node.input])
        return node.op_type, node.domain, attributes, values, facts, tuple([name == "" for name in node.output])

    def _inferred(self, node: onnx.NodeProto) -> Sequence[Fact]:
        rules = Facts(self._opset, self._component)
        tensors: dict[str, gs.Tensor] = {name: gs.Variable(name) for name in (*node.input, *node.output)}
        for name in filter(None, node.input):
            if name in self._small:
                tensors[name] = gs.Constant(name, self._small[name])
            else:
                rules.set(tensors[name], self.facts.get(name, NOTHING))
        inputs, outputs = ([tensors[name] for name in names] for names in (node.input, node.output))
        attributes = {attribute.name: _value(attribute) for attribute in node.attribute}
        domain = MICROSOFT if node.op_type in IN_DEFAULT_DOMAIN else node.domain or None
        rules.infer(gs.Node(node.op_type, node.name, attributes, inputs, outputs, domain=domain))
        return [rules.of(tensor) for tensor in outputs]


def _described(weight: TensorProto) -> Fact:
    values, dtype = _values(weight), helper.tensor_dtype_to_np_dtype(weight.data_type)
    elements = None if values is None or dtype.kind not in "iub" else tuple(map(int, values.reshape(-1)))
    return Fact(dtype, tuple(weight.dims), elements)


def _values(weight: TensorProto) -> Array | None:
    """The values of a weight that may decide about shapes, where they are in the file itself."""
    count = math.prod(weight.dims)
    most = _SCALES if weight.data_type in _FLOATS else MAX_VALUE
    stored = weight.raw_data or weight.int64_data or weight.int32_data or weight.float_data or weight.double_data
    if weight.data_location == TensorProto.EXTERNAL or count > most or (count and not stored):
        return None
    return np.asarray(numpy_helper.to_array(weight))


def _constant(node: onnx.NodeProto) -> TensorProto:
    (attribute,) = node.attribute
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return value
    return numpy_helper.from_array(np.array(value, np.float32 if "float" in attribute.name else np.int64))


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return gs.Constant(attribute.name, numpy_helper.to_array(value))
    return value.decode(errors="replace") if isinstance(value, bytes) else value
