"""Patterns written in ONNX's text syntax.

A pattern is a graph::

    g (float[B, S, C] x) => (float[B, S, H] y) <float[C] bias, float half = {0.5}> {
        biased = Add (x, bias)
        ...
    }

* names in ``( )`` are tensors that flow in; they bind to anything of that type and shape;
* names in ``< >`` that no node computes are constants: with a value, exactly that value (a scalar matches a
  one-element tensor of any rank; where that gives the result more axes, nothing is rewritten), without one, any
  constant;
* names in ``< >`` that a node computes state that tensor's shape;
* a dim is a number, or a name that stands for the same size wherever it occurs; ``float[]`` is any shape;
* ``float`` means any floating-point type;
* an attribute has to have the stated value; ``epsilon: float = @eps`` captures it. An attribute that the pattern does
  not mention has to be at its default.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs, numpy_helper, parser

from sdort.graph.operator import REQUIRED
from sdort.operators import find_operator

OPSET = 23
"""Patterns, and graphs while they are rewritten, are in this opset of the default domain."""

COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Equal"})


@dataclass(frozen=True)
class Capture:
    """An attribute value that is taken from (Before) or given to (After) the match under this name."""

    name: str


@dataclass(frozen=True)
class TensorType:
    """``float[B, S, 320]``: kind is ``f``, ``i`` or ``b``; dims are None for any shape."""

    kind: str
    dims: tuple[int | str, ...] | None


@dataclass(frozen=True)
class PatternNode:
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]


@dataclass
class Pattern:
    """One parsed graph text."""

    text: str
    nodes: list[PatternNode] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    values: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)

    @property
    def constants(self) -> list[str]:
        """Names in ``< >`` that no node computes."""
        declared = [*self.values, *(n for n in self.types if n not in self.inputs and n not in self.outputs)]
        return [n for n in dict.fromkeys(declared) if n not in self.producers]

    @property
    def read(self) -> frozenset[str]:
        """Names that its nodes or its readers read; other outputs of its nodes are not asked for."""
        return frozenset([*self.outputs, *(name for node in self.nodes for name in node.inputs)])

    @property
    def root(self) -> PatternNode:
        return self.nodes[self.producers[self.outputs[0]]]

    def reader(self, seen: Collection[int]) -> tuple[int, str] | None:
        """The first other node that reads what one of ``seen`` computes, and the name of that; None without one."""
        for index, node in enumerate(self.nodes):
            name = next((name for name in node.inputs if self.producers.get(name) in seen), None)
            if index not in seen and name is not None:
                return index, name
        return None


def parse_pattern(text: str) -> Pattern:
    """Parse one graph text.

    Raises:
        ValueError: the text is no graph, or a node cannot be reached from the first output.
    """
    try:
        graph = parser.parse_graph(text)
    except parser.ParseError as error:
        raise ValueError(f"not an ONNX graph text: {error}\n{text}") from error
    pattern = Pattern(text)
    for info in (*graph.input, *graph.output, *graph.value_info):
        pattern.types[info.name] = _tensor_type(info.type.tensor_type)
    pattern.values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    pattern.inputs = [i.name for i in graph.input]
    pattern.outputs = [o.name for o in graph.output]
    for node in graph.node:
        pattern.producers.update({name: len(pattern.nodes) for name in node.output if name})
        attrs = {a.name: _attribute(a) for a in node.attribute}
        pattern.nodes.append(PatternNode(node.op_type, node.domain, tuple(node.input), tuple(node.output), attrs))
    return pattern


def check_connected(pattern: Pattern) -> None:
    """Every node of a Before graph has to be reachable from its first output, where matching starts, or read what is.

    Raises:
        ValueError: one is not.
    """
    seen: set[int] = set()
    stack = [pattern.producers[pattern.outputs[0]]]
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            stack.extend(pattern.producers[n] for n in pattern.nodes[index].inputs if n in pattern.producers)
        if not stack:
            further = pattern.reader(seen)
            stack += [] if further is None else [further[0]]
    for index, node in enumerate(pattern.nodes):
        if index not in seen:
            raise ValueError(f"{node.op} -> {node.outputs} cannot be reached from {pattern.outputs[0]!r}")


def _tensor_type(proto: onnx.TypeProto.Tensor) -> TensorType:
    kinds: dict[int, str] = {onnx.TensorProto.INT64: "i", onnx.TensorProto.INT32: "i", onnx.TensorProto.BOOL: "b"}
    dims = None
    if proto.HasField("shape"):
        dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in proto.shape.dim)
    return TensorType(kinds.get(proto.elem_type, "f"), dims)


def _attribute(proto: onnx.AttributeProto) -> Any:
    if proto.ref_attr_name:
        return Capture(proto.ref_attr_name)
    value = onnx.helper.get_attribute_value(proto)
    return value.decode() if isinstance(value, bytes) else list(value) if not isinstance(value, (int, float)) else value


_MISSING = object()


def default_attribute(op: str, domain: str, name: str) -> Any:
    """The schema's default of an attribute; ``_MISSING`` if there is none."""
    operator = find_operator(domain, op)
    if operator is not None:
        default = operator.attributes.get(name, REQUIRED)
        return _MISSING if default is REQUIRED else default
    if domain or not defs.has(op, OPSET):
        return _MISSING
    attribute = defs.get_schema(op, OPSET).attributes.get(name)
    if attribute is None or not attribute.default_value.type:
        return CONVENTIONAL_DEFAULTS.get((op, name), _MISSING)
    return _attribute(attribute.default_value)


# Defaults that the specification gives in words only, or per rank.
CONVENTIONAL_DEFAULTS: dict[tuple[str, str], Any] = {("Attention", "scale"): None}


def has_default(value: Any) -> bool:
    return value is not _MISSING
