"""The facts of all tensors of a graph: symbolic shape and value inference, node by node.

ONNX's own inference leaves a dimension unknown as soon as it was computed; here ``Shape``, ``Gather``, ``Concat``,
``Mul`` and so on carry :mod:`sdort.graph.symbolic` dims as *values*, so that a Reshape to
``[batch, height*width, 320]`` has exactly that shape. Standard operators whose shape needs no arithmetic are left to
``onnx.shape_inference.infer_node_outputs``; fused ones state their rule in their file (:mod:`sdort.operators`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import checker, defs, helper, shape_inference

from sdort.errors import BadModelError
from sdort.graph.fact import MAX_VALUE, NOTHING, Fact
from sdort.graph.operator import Call, standard_call
from sdort.graph.symbolic import (
    Atom,
    Dim,
    Equalities,
    Expr,
    Shape,
    atoms,
    name_unknown,
    preference,
    unknown,
    unknowns_made,
)
from sdort.graph.weights import Weight
from sdort.operators import find_operator
from sdort.rewrite.equal_sizes import equal_sizes
from sdort.rewrite.inference import elementwise, indexing, layers, reshaping
from sdort.rewrite.inference.rules import as_dtype
from sdort.rewrite.size_names import read_names

RULES = {**elementwise.RULES, **indexing.RULES, **reshaping.RULES, **layers.RULES}
"""The rules of standard operators, by name."""


class _Seen(NamedTuple):
    """Everything that the facts of a node's outputs are inferred from, as it was when they last were."""

    node: gs.Node
    op: str
    domain: str | None
    inputs: list[gs.Tensor]
    facts: list[Fact]
    outputs: list[str]
    attrs: dict[str, Any]

    def holds(self, node: gs.Node, facts: list[Fact]) -> bool:
        """Whether all is as it was; an attribute or a fact that was made anew is another."""
        attrs, inputs = self.attrs, self.inputs
        return (
            len(inputs) == len(facts)
            and all(map(is_, self.facts, facts))
            and all(map(is_, inputs, node.inputs))
            and self.op == node.op
            and self.domain == node.domain
            and self.outputs == [tensor.name for tensor in node.outputs]
            and len(attrs) == len(node.attrs)
            and all(attrs.get(name) is value for name, value in node.attrs.items())
        )


class Facts:
    """The facts of all tensors of a graph, by tensor name.

    An inferred fact stays: a tensor's facts are replaced by others only where these say as much. ``changed`` takes
    every tensor of which something else is known than before; whoever follows changes empties it.

    Args:
        opset: the default domain's opset.
        component: the pipeline component, for messages.
    """

    def __init__(self, opset: int, component: str) -> None:
        self.opset = opset
        self.component = component
        self.changed: dict[str, gs.Tensor] = {}
        self._facts: dict[str, Fact] = {}
        self._tensors: dict[str, gs.Tensor] = {}
        self._mentions: dict[Atom, set[str]] = {}
        self._dims: dict[str, Dim] = {}
        self._equal = Equalities()
        self._seen: dict[int, _Seen] = {}

    def of(self, tensor: gs.Tensor) -> Fact:
        known = self._facts.get(tensor.name)
        if known is None and isinstance(tensor, gs.Constant):
            known = self._facts[tensor.name] = _constant_fact(tensor)
        return known or NOTHING

    def shape(self, tensor: gs.Tensor) -> Shape | None:
        return self.of(tensor).shape

    def set(self, tensor: gs.Tensor, fact: Fact) -> None:
        """Take a fact of a tensor, as far as it does not say less than what is known already."""
        before = self._facts.get(tensor.name, NOTHING)
        dtype = fact.dtype if fact.dtype is not None else before.dtype
        shape, value = self._clearer(before.shape, fact.shape), self._clearer(before.value, fact.value)
        now = Fact(dtype, shape, value)
        if now != before:
            self._keep(tensor, now)

    def _clearer(self, before: Shape | None, inferred: Shape | None) -> Shape | None:
        if inferred is None:
            return before
        inferred = tuple(map(self._equal.apply, inferred))
        if before is None or before == inferred or len(before) != len(inferred):
            return inferred
        return tuple(b if preference(b) < preference(f) else f for b, f in zip(before, inferred, strict=True))

    def _keep(self, tensor: gs.Tensor, fact: Fact) -> None:
        self._facts[tensor.name] = fact
        self._tensors[tensor.name] = self.changed[tensor.name] = tensor
        for dim in (*(fact.shape or ()), *(fact.value or ())):
            for atom in atoms(dim):
                self._mentions.setdefault(atom, set()).add(tensor.name)

    def declare(self, tensors: Sequence[gs.Variable]) -> None:
        """Take the graph inputs' declared types; their symbolic dims become named sizes and what is made of them."""
        spelled = [dim for tensor in tensors for dim in tensor.shape or () if _names_a_size(dim)]
        sizes = read_names(spelled)
        for tensor in tensors:
            dims = None
            if tensor.shape is not None:
                dims = tuple(
                    d if isinstance(d, int) and d >= 0 else sizes[d] if _names_a_size(d) else unknown()
                    for d in tensor.shape
                )
            (fact,) = _name_unknowns([tensor], [Fact(as_dtype(tensor.dtype), dims)])
            self.set(tensor, fact)

    def infer(self, node: gs.Node) -> None:
        """Compute the facts of the node's outputs from those of its inputs, unless these are what they were last time.

        Raises:
            BadModelError: the node's inputs and attributes contradict each other.
        """
        facts, seen = [self.of(tensor) for tensor in node.inputs], self._seen.get(id(node))
        if seen is None or not seen.holds(node, facts):
            outputs = [tensor.name for tensor in node.outputs]
            seen = _Seen(node, node.op, node.domain, list(node.inputs), facts, outputs, dict(node.attrs))
            self._infer(node)
            self._seen[id(node)] = seen

    def _infer(self, node: gs.Node) -> None:
        before = unknowns_made()
        try:
            facts = self._by_rule(node)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise BadModelError(
                f"the inputs and attributes of this {node.op} do not fit together",
                component=self.component,
                node=node.name,
            ) from error
        if facts is None:
            facts = self._by_onnx(node)
        if unknowns_made() > before:
            facts = _name_unknowns(node.outputs, facts)
        for tensor, fact in zip(node.outputs, facts, strict=False):  # a rule states the outputs it knows
            if tensor.name:
                self.set(tensor, fact)

    def _by_rule(self, node: gs.Node) -> Sequence[Fact] | None:
        for a, b in equal_sizes(node, [self.shape(t) for t in node.inputs]):
            self._learn(a, b)
        if node.domain:
            operator = find_operator(node.domain, node.op)
            return operator.infer(operator.call(*self._parts(node))) if operator else None
        rule = RULES.get(node.op)
        return rule(node, [self.of(t) for t in node.inputs]) if rule else None

    def call(self, node: gs.Node) -> Call:
        """A node as its operator's file sees it; the parameters of a standard one are called as in ONNX's schema.

        Raises:
            LookupError: of such an operator nothing is known.
        """
        if not node.domain and defs.has(node.op, self.opset):
            return standard_call(node.op, self.opset, *self._parts(node))
        operator = find_operator(node.domain, node.op)
        if operator is None:
            raise LookupError(f"no file of sdort/operators/ is {node.domain or 'ai.onnx'}.{node.op}")
        return operator.call(*self._parts(node))

    def _parts(self, node: gs.Node) -> tuple[list[Fact | None], list[bool], dict[str, Any]]:
        facts = [self.of(tensor) if tensor.name else None for tensor in node.inputs]
        return facts, [bool(tensor.name) for tensor in node.outputs], node.attrs

    def _learn(self, a: Dim, b: Dim) -> None:
        """Take two sizes for equal; whatever is written with one of them is written anew."""
        size = self._equal.learn(a, b)
        for name in self._mentions.pop(size, ()) if size is not None else ():
            fact, apply = self._facts[name], self._equal.apply
            shape, value = (None if dims is None else tuple(map(apply, dims)) for dims in (fact.shape, fact.value))
            self._keep(self._tensors[name], Fact(fact.dtype, shape, value))

    def _by_onnx(self, node: gs.Node) -> Sequence[Fact]:
        nothing = [NOTHING] * len(node.outputs)
        if node.domain or not defs.has(node.op, self.opset):
            return nothing
        schema = defs.get_schema(node.op, self.opset, "")
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        for tensor in node.inputs:
            if not tensor.name:
                continue
            fact = self.of(tensor)
            if fact.dtype is None:
                return nothing
            types[tensor.name] = self._type(fact)
            array = fact.array()
            if array is not None:
                data[tensor.name] = onnx.numpy_helper.from_array(array, tensor.name)
        proto = helper.make_node(
            node.op, [t.name for t in node.inputs], [t.name for t in node.outputs], **plain_attributes(node)
        )
        try:
            inferred = shape_inference.infer_node_outputs(schema, proto, types, data)
        except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError, TypeError):
            return nothing
        return [self._fact(inferred.get(t.name)) for t in node.outputs]

    def type_proto(self, tensor: gs.Tensor) -> onnx.TypeProto | None:
        """A tensor's type as ONNX states it; None if its dtype is not known."""
        fact = self.of(tensor)
        return None if fact.dtype is None else self._type(fact)

    def _type(self, fact: Fact) -> onnx.TypeProto:
        dims: list[int | str] | None = None
        if fact.shape is not None:
            dims = []
            for dim in fact.shape:
                if isinstance(dim, Expr):
                    self._dims[str(dim)] = dim
                    dims.append(str(dim))
                else:
                    dims.append(dim)
        return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(fact.dtype), dims)

    def _fact(self, proto: onnx.TypeProto | None) -> Fact:
        if proto is None or not proto.HasField("tensor_type"):
            return NOTHING
        tensor = proto.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else None
        if not tensor.HasField("shape"):
            return Fact(dtype)
        dims = tuple(
            d.dim_value if d.HasField("dim_value") else self._dims.get(d.dim_param) or unknown()
            for d in tensor.shape.dim
        )
        return Fact(dtype, dims)


def _name_unknowns(tensors: Sequence[gs.Tensor], facts: Sequence[Fact]) -> Sequence[Fact]:
    """A size that nobody could tell is called after its place, so that it is the same size when inferred again."""
    named: dict[Atom, Expr] = {}
    out = []
    for tensor, fact in zip(tensors, facts, strict=False):
        shape, value = fact.shape, fact.value
        if shape is not None:
            shape = tuple(name_unknown(d, f"{tensor.name}.{i}", named) for i, d in enumerate(shape))
        if value is not None:
            value = tuple(name_unknown(d, f"{tensor.name}[{i}]", named) for i, d in enumerate(value))
        out.append(Fact(fact.dtype, shape, value))
    return out


def plain_attributes(node: gs.Node) -> dict[str, Any]:
    """The node's attributes as ``onnx.helper.make_node`` takes them."""
    return {
        key: onnx.numpy_helper.from_array(np.asarray(value.values)) if isinstance(value, gs.Constant) else value
        for key, value in node.attrs.items()
    }


def _names_a_size(dim: Any) -> bool:
    """Tools write ``?`` or ``-1`` where they know no size: two of these need not be equal."""
    return isinstance(dim, str) and any(map(str.isalpha, dim))


def _constant_fact(tensor: gs.Constant) -> Fact:
    values = tensor._values
    shape = tuple(int(d) for d in values.shape)
    value = None
    if not isinstance(values, Weight) and math.prod(shape) <= MAX_VALUE and np.asarray(values).dtype.kind in "iub":
        value = tuple(int(v) for v in np.asarray(values).reshape(-1))
    return Fact(as_dtype(values.dtype), shape, value)


# --- rules: (node, input facts) -> output facts, or None to leave the node to ONNX ---
