"""Symbolic shape and value inference, node by node.

ONNX's own inference leaves a dimension unknown as soon as it was computed; here ``Shape``, ``Gather``, ``Concat``,
``Mul`` and so on carry :mod:`sdort.model.symbolic` dims as *values*, so that a Reshape to
``[batch, height*width, 320]`` has exactly that shape. Operators whose shape needs no arithmetic are left to
``onnx.shape_inference.infer_node_outputs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import checker, defs, helper, shape_inference

from sdort.errors import BadModelError
from sdort.model.symbolic import (
    Atom,
    Dim,
    Equalities,
    Expr,
    Shape,
    atoms,
    divide,
    is_natural,
    name_unknown,
    numbers,
    preference,
    product,
    symbol,
    unknown,
    unknowns_made,
)
from sdort.model.weights import Array, Weight
from sdort.rewrite.equal_sizes import equal_sizes
from sdort.rewrite.size_names import read_names

MAX_VALUE = 64
"""Integer tensors up to this many elements are followed as values."""

Value = tuple[Dim, ...]


@dataclass(frozen=True)
class Fact:
    """What is known of a tensor: dtype, shape (a tuple of dims) and, for small integer tensors, its elements."""

    dtype: np.dtype[Any] | None = None
    shape: Shape | None = None
    value: Value | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def array(self) -> Array | None:
        """The tensor, where every element is a known number."""
        if self.value is None or self.shape is None or self.dtype is None:
            return None
        values, shape = numbers(self.value), numbers(self.shape)
        if values is None or shape is None:
            return None
        try:
            return np.array(values, self.dtype).reshape(shape)
        except OverflowError:  # the dtype wraps around where Python's integers do not
            return None


NOTHING = Fact()


class Facts:
    """The facts of all tensors of a graph, by tensor name.

    What was found once stays: a tensor's facts are replaced by others only where these say as much. ``changed`` takes
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

    def of(self, tensor: gs.Tensor) -> Fact:
        known = self._facts.get(tensor.name)
        if known is None and isinstance(tensor, gs.Constant):
            known = self._facts[tensor.name] = _constant_fact(tensor)
        return known or NOTHING

    def shape(self, tensor: gs.Tensor) -> Shape | None:
        return self.of(tensor).shape

    def set(self, tensor: gs.Tensor, fact: Fact) -> None:
        """Take what was found of a tensor, as far as it does not say less than what is known already."""
        before = self._facts.get(tensor.name, NOTHING)
        dtype = fact.dtype if fact.dtype is not None else before.dtype
        shape, value = self._clearer(before.shape, fact.shape), self._clearer(before.value, fact.value)
        now = Fact(dtype, shape, value)
        if now != before:
            self._keep(tensor, now)

    def _clearer(self, before: Shape | None, found: Shape | None) -> Shape | None:
        if found is None:
            return before
        found = tuple(map(self._equal.apply, found))
        if before is None or before == found or len(before) != len(found):
            return found
        return tuple(b if preference(b) < preference(f) else f for b, f in zip(before, found, strict=True))

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
            (fact,) = _name_unknowns([tensor], [Fact(_dtype(tensor.dtype), dims)])
            self.set(tensor, fact)

    def infer(self, node: gs.Node) -> None:
        """Compute the facts of the node's outputs from those of its inputs.

        Raises:
            BadModelError: the node's inputs and attributes contradict each other.
        """
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
        rule = _RULES.get((node.domain or "", node.op))
        return rule(node, [self.of(t) for t in node.inputs]) if rule else None

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


def _dtype(dtype: Any) -> np.dtype[Any] | None:
    if isinstance(dtype, int):
        return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
    return None if dtype is None else np.dtype(dtype)


def _constant_fact(tensor: gs.Constant) -> Fact:
    values = tensor._values
    shape = tuple(int(d) for d in values.shape)
    value = None
    if not isinstance(values, Weight) and math.prod(shape) <= MAX_VALUE and np.asarray(values).dtype.kind in "iub":
        value = tuple(int(v) for v in np.asarray(values).reshape(-1))
    return Fact(_dtype(values.dtype), shape, value)


# --- rules: (node, input facts) -> output facts, or None to leave the node to ONNX ---

Rule = Callable[[gs.Node, list[Fact]], "Sequence[Fact] | None"]
_RULES: dict[tuple[str, str], Rule] = {}
INT64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)


def rule(*ops: str, domain: str = "") -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for op in ops:
            _RULES[domain, op] = function
        return function

    return register


def broadcast(*shapes: Shape | None) -> Shape | None:
    """Numpy broadcasting; of two different symbolic dims the result is unknown."""
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes):
        return None
    rank = max(len(s) for s in known)
    out: list[Dim] = []
    for axis in range(-rank, 0):
        dims = {s[axis] for s in known if len(s) >= -axis} - {1}
        # A known size beats a symbol: they must agree at run time, or the symbol is 1.
        fixed = [d for d in dims if isinstance(d, int)]
        out.append(1 if not dims else fixed[0] if fixed else next(iter(dims)) if len(dims) == 1 else unknown())
    return tuple(out)


def _axes(node: gs.Node, facts: list[Fact], index: int = 1) -> list[int] | None:
    if "axes" in node.attrs:
        return list(node.attrs["axes"])
    if len(facts) > index and facts[index].value is not None:
        return numbers(facts[index].value or ())
    return None


@rule("Neg")
def _negative(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    value = facts[0].value
    return [Fact(facts[0].dtype, facts[0].shape, None if value is None else tuple(-v for v in value))]


@rule("Identity", "Sigmoid", "Erf", "Tanh", "Sqrt", "Exp", "Softmax", "Gelu", "Relu", "Sin", "Cos", "Abs")
@rule("LayerNormalization", "GroupNormalization", "InstanceNormalization", "Reciprocal", "Dropout", "Clip")
@rule("QuickGelu", "FastGelu", "BiasGelu", "Gelu", "BiasAdd", "GroupNorm", domain="com.microsoft")
def _same(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    keep = facts[0] if node.op == "Identity" else Fact(facts[0].dtype, facts[0].shape)
    return [keep] + [NOTHING] * (len(node.outputs) - 1)


@rule("SkipGroupNorm", domain="com.microsoft")
def _same_twice(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    return [Fact(facts[0].dtype, facts[0].shape)] * len(node.outputs)


@rule("GroupNorm", domain="sdort")
def _group_norm_of_two(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    x, x2 = facts[0], facts[1]
    if not node.inputs[1].name:
        return [Fact(x.dtype, x.shape)] * len(node.outputs)
    if x.shape is None or x2.shape is None:
        return [Fact(x.dtype)] * len(node.outputs)
    return [Fact(x.dtype, (*x.shape[:-1], x.shape[-1] + x2.shape[-1]))] * len(node.outputs)


@rule("SkipLayerNormalization", domain="com.microsoft")
def _skip_layer_norm(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    whole = Fact(facts[0].dtype, facts[0].shape)
    return [whole, NOTHING, NOTHING, whole][: len(node.outputs)]


def _arithmetic(op: str, a: Dim, b: Dim) -> Dim | None:
    if op == "Add":
        return a + b
    if op == "Sub":
        return a - b
    if op == "Mul":
        return a * b
    if op == "Div":
        return _divide(a, b)
    if op in ("Min", "Max"):
        larger = a if is_natural(a - b) else b if is_natural(b - a) else None
        return larger if larger is None or op == "Max" else a + b - larger
    return None


def _divide(a: Dim, b: Dim) -> Dim | None:
    """ONNX rounds towards 0, not down: a size that does not come out even must be known not to be negative."""
    exact = divide(a, b)
    if exact is not None or not isinstance(b, int) or b <= 0:
        return exact
    return a // b if is_natural(a) else -(-a // b) if is_natural(-a) else None


def _zip_values(a: Fact, b: Fact, function: Callable[[Dim, Dim], Dim | None]) -> Value | None:
    """Apply ``function`` element by element to two integer values of rank 0 or 1."""
    if a.value is None or b.value is None or max(a.rank or 0, b.rank or 0) > 1:
        return None
    size = max(len(a.value), len(b.value))
    if len(a.value) not in (1, size) or len(b.value) not in (1, size):
        return None
    left = a.value * (size if len(a.value) == 1 else 1)
    right = b.value * (size if len(b.value) == 1 else 1)
    out = [function(x, y) for x, y in zip(left, right, strict=True)]
    return None if any(v is None for v in out) else tuple(v for v in out if v is not None)


@rule("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mod")
def _binary(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    value = None
    if len(facts) == 2 and facts[0].dtype is not None and facts[0].dtype.kind in "iu":
        value = _zip_values(facts[0], facts[1], lambda a, b: _arithmetic(node.op, a, b))
    return [Fact(facts[0].dtype, broadcast(*(f.shape for f in facts)), value)]


def _compare(op: str, a: Dim, b: Dim) -> Dim | None:
    """1 or 0 where that is so for all sizes, else None."""
    if op in ("Greater", "GreaterOrEqual"):
        return _compare(op.replace("Greater", "Less"), b, a)
    below, above = is_natural(b - a - 1), is_natural(a - b - 1)
    if op == "Equal":
        return 1 if a == b else 0 if below or above else None
    if op == "Less":
        return 1 if below else 0 if is_natural(a - b) else None
    return 1 if is_natural(b - a) else 0 if above else None


@rule("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or")
def _comparison(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    value = None
    if node.op not in ("And", "Or"):
        value = _zip_values(facts[0], facts[1], lambda a, b: _compare(node.op, a, b))
    return [Fact(BOOL, broadcast(facts[0].shape, facts[1].shape), value)]


@rule("Where")
def _where(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    condition, yes, no = facts
    value = None
    picks = numbers(condition.value or ())
    if picks and yes.value and no.value and len(picks) == len(yes.value) == len(no.value):
        value = tuple(y if c else n for c, y, n in zip(picks, yes.value, no.value, strict=True))
    return [Fact(yes.dtype, broadcast(*(f.shape for f in facts)), value)]


@rule("Cast")
def _cast(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    dtype = _dtype(node.attrs["to"])
    value = facts[0].value
    if dtype is None or dtype.kind != "i" or dtype.itemsize < 4 or not _fits(value or (), dtype):
        value = None
    return [Fact(dtype, facts[0].shape, value)]


def _fits(value: Value, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return all(limits.min <= v <= limits.max for v in value if isinstance(v, int))


@rule("Shape")
def _shape(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(INT64)]
    dims = facts[0].shape[node.attrs.get("start", 0) : node.attrs.get("end", None)]
    return [Fact(INT64, (len(dims),), dims)]


@rule("Size")
def _size(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    shape = facts[0].shape
    return [Fact(INT64, (), None if shape is None else (product(shape),))]


@rule("Gather")
def _gather(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, index = facts
    if data.shape is None or index.shape is None:
        return [Fact(data.dtype)]
    axis = node.attrs.get("axis", 0) % len(data.shape)
    shape = data.shape[:axis] + index.shape + data.shape[axis + 1 :]
    value = None
    if data.value is not None and len(data.shape) == 1 and index.value is not None:
        picks = [v for v in index.value if isinstance(v, int)]
        value = tuple(data.value[v] for v in picks) if len(picks) == len(index.value) else None
    return [Fact(data.dtype, shape, value)]


@rule("GatherND")
def _gather_nd(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, index = facts
    if data.shape is None or index.shape is None or not isinstance(index.shape[-1], int):
        return [Fact(data.dtype)]
    indexed = node.attrs.get("batch_dims", 0) + index.shape[-1]
    return [Fact(data.dtype, index.shape[:-1] + data.shape[indexed:])]


@rule("ScatterND")
def _scatter_nd(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, index, updates = facts
    value = None
    if data.value is not None and index.value is not None and updates.value is not None and data.rank == 1:
        elements = list(data.value)
        for place, element in zip(index.value, updates.value, strict=True):
            if not isinstance(place, int) or node.attrs.get("reduction", "none") != "none":
                return [Fact(data.dtype, data.shape)]
            elements[place] = element
        value = tuple(elements)
    return [Fact(data.dtype, data.shape, value)]


@rule("TopK")
def _top_k(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, count = facts
    shape: Shape | None = None
    if data.shape is not None and count.value is not None:
        axis = node.attrs.get("axis", -1) % len(data.shape)
        shape = (*data.shape[:axis], *count.value, *data.shape[axis + 1 :])
    return [Fact(data.dtype, shape), Fact(INT64, shape)]


@rule("Concat")
def _concat(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    shapes = [f.shape for f in facts if f.shape is not None]
    if len(shapes) != len(facts):
        return [Fact(facts[0].dtype)]
    axis = node.attrs["axis"] % len(shapes[0])
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
    # Along the other axes the inputs agree at run time; one of their spellings is the most useful.
    others = [min((s[i] for s in shapes), key=preference) for i in range(len(shapes[0]))]
    out = (*others[:axis], total, *others[axis + 1 :])
    value = None
    if all(f.value is not None for f in facts) and len(out) == 1:
        value = tuple(v for f in facts for v in (f.value or ()))
    return [Fact(facts[0].dtype, out, value)]


@rule("Unsqueeze")
def _unsqueeze(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    axes = _axes(node, facts)
    if axes is None or facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    rank = len(facts[0].shape) + len(axes)
    new = {a % rank for a in axes}
    old = iter(facts[0].shape)
    return [Fact(facts[0].dtype, tuple(1 if i in new else next(old) for i in range(rank)), facts[0].value)]


@rule("Squeeze")
def _squeeze(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    rank = len(facts[0].shape)
    axes = _axes(node, facts)
    if axes is None and len(node.inputs) > 1 and node.inputs[1].name:  # computed
        count = (facts[1].shape or (None,))[0]
        return [Fact(facts[0].dtype, tuple(unknown() for _ in range(rank - count)) if isinstance(count, int) else None)]
    if axes is None and any(not isinstance(d, int) for d in facts[0].shape):
        return [Fact(facts[0].dtype)]
    drop = {i for i, d in enumerate(facts[0].shape) if d == 1} if axes is None else {a % rank for a in axes}
    shape = tuple(d for i, d in enumerate(facts[0].shape) if i not in drop)
    return [Fact(facts[0].dtype, shape, facts[0].value)]


def _span(length: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """The number of elements of ``range(start, end, step)`` clipped to ``length``, for positive steps."""
    first, last = _bound(length, start), _bound(length, end)
    if first is None or last is None:  # of equal sizes the same cut is as long
        return symbol(f"?{length}[{start}:{end}:{step}]")
    size = last - first
    if isinstance(size, int):
        return -(-max(size, 0) // step)
    return -(-size // step) if is_natural(size) else unknown()


def _bound(length: Dim, value: Dim) -> Dim | None:
    """Where a start or end falls on the axis; None if that depends on how long the axis is."""
    if isinstance(value, int) and value < 0:
        value = length + value
        if isinstance(value, int):
            return max(value, 0)
    elif isinstance(value, int) and (isinstance(length, int) or value >= 2**31 - 1):
        return min(value, length) if isinstance(length, int) else length
    elif isinstance(value, int):
        return value if is_natural(length - value) else None
    return value if is_natural(value) else None  # a computed size is taken to lie within the axis


def _numbers(facts: list[Fact], index: int, default: list[int]) -> list[int] | None:
    """The elements of an optional input: the default where it is absent, None where they are not known."""
    if len(facts) <= index or facts[index].shape is None:
        return default
    value = facts[index].value
    return None if value is None else numbers(value)


@rule("Slice")
def _slice(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data = facts[0]
    starts, ends = (facts[i].value if len(facts) > i else None for i in (1, 2))
    if data.shape is None or starts is None or ends is None:
        return [Fact(data.dtype, None if data.shape is None else tuple(unknown() for _ in data.shape))]
    axes = _numbers(facts, 3, list(range(len(starts))))
    steps = _numbers(facts, 4, [1] * len(starts))
    if axes is None or steps is None or min(steps) <= 0:
        return [Fact(data.dtype, tuple(unknown() for _ in data.shape))]
    shape = list(data.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        shape[axis] = _span(shape[axis], start, end, step)
    value = None
    if data.value is not None and len(shape) == 1 and isinstance(starts[0], int) and isinstance(ends[0], int):
        value = data.value[starts[0] : ends[0] : steps[0]]
    return [Fact(data.dtype, tuple(shape), value)]


@rule("Reshape")
def _reshape(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, target = facts
    if target.value is None:
        rank = target.shape[0] if target.shape and isinstance(target.shape[0], int) else None
        return [Fact(data.dtype, None if rank is None else tuple(unknown() for _ in range(rank)))]
    dims: list[Dim | None] = []
    for axis, dim in enumerate(target.value):
        if dim == 0 and not node.attrs.get("allowzero", 0):
            dims.append(data.shape[axis] if data.shape is not None and axis < len(data.shape) else unknown())
        else:
            dims.append(None if dim == -1 else dim)
    if None in dims:
        rest = product(d for d in dims if d is not None)
        whole = None if data.shape is None else divide(product(data.shape), rest)
        dims[dims.index(None)] = unknown() if whole is None else whole
    return [Fact(data.dtype, tuple(d for d in dims if d is not None), data.value)]


@rule("Flatten")
def _flatten(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    axis = node.attrs.get("axis", 1)
    return [Fact(facts[0].dtype, (product(facts[0].shape[:axis]), product(facts[0].shape[axis:])))]


@rule("Expand")
def _expand(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    return [Fact(facts[0].dtype, broadcast(facts[0].shape, facts[1].value))]


@rule("Tile")
def _tile(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    shape, times = facts[0].shape, facts[1].value
    if shape is None or times is None:
        return [Fact(facts[0].dtype, None if shape is None else tuple(unknown() for _ in shape))]
    return [Fact(facts[0].dtype, tuple(dim * count for dim, count in zip(shape, times, strict=True)))]


@rule("ConstantOfShape")
def _constant_of_shape(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    fill = np.asarray(node.attrs["value"].values) if "value" in node.attrs else np.zeros(1, np.float32)
    shape = facts[0].value
    value = None
    if shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] <= MAX_VALUE:
        value = (int(fill[0]),) * shape[0] if fill.dtype.kind in "iub" else None
    return [Fact(fill.dtype, shape, value)]


@rule("Range")
def _range(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    start, limit, step = (f.value for f in facts)
    if start is None or limit is None or step != (1,):
        return [Fact(facts[0].dtype, (unknown(),))]
    return [Fact(facts[0].dtype, (limit[0] - start[0],))]


@rule("Transpose")
def _transpose(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    perm = node.attrs.get("perm", list(range(len(facts[0].shape)))[::-1])
    return [Fact(facts[0].dtype, tuple(facts[0].shape[p] for p in perm))]


@rule("MatMul")
def _matmul(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    a, b = (f.shape for f in facts[:2])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = broadcast(a[:-2], b[:-2])
    return [Fact(facts[0].dtype, None if batch is None else (*batch, a[-2], b[-1]))]


@rule("FusedMatMul", domain="com.microsoft")
def _fused_matmul(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    a, b = (f.shape for f in facts[:2])
    turned_batch = node.attrs.get("transBatchA", 0) or node.attrs.get("transBatchB", 0)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or turned_batch:
        return [Fact(facts[0].dtype)]
    batch = broadcast(a[:-2], b[:-2])
    rows, columns = a[-1 if node.attrs.get("transA", 0) else -2], b[-2 if node.attrs.get("transB", 0) else -1]
    return [Fact(facts[0].dtype, None if batch is None else (*batch, rows, columns))]


def _windows(node: gs.Node, sizes: Shape, kernel: Shape) -> Shape:
    """The spatial sizes that a convolution leaves of ``sizes``."""
    axes, mode = len(sizes), node.attrs.get("auto_pad", "NOTSET")
    strides: list[int] = node.attrs.get("strides", [1] * axes)
    if mode.startswith("SAME"):
        return tuple((size + stride - 1) // stride for size, stride in zip(sizes, strides, strict=True))
    pads: list[int] = node.attrs.get("pads", [0] * (2 * axes)) if mode == "NOTSET" else [0] * (2 * axes)
    dilations: list[int] = node.attrs.get("dilations", [1] * axes)
    reach = [dilations[i] * (kernel[i] - 1) + 1 for i in range(axes)]
    return tuple((sizes[i] + pads[i] + pads[i + axes] - reach[i]) // strides[i] + 1 for i in range(axes))


@rule("Conv")
def _conv(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    x, w = facts[0].shape, facts[1].shape
    if x is None or w is None:
        return None
    return [Fact(facts[0].dtype, (x[0], w[0], *_windows(node, x[2:], w[2:])))]


@rule("NhwcConv", domain="com.microsoft")
def _nhwc_conv(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    x, w = facts[0].shape, facts[1].shape
    if x is None or w is None:
        return [Fact(facts[0].dtype)]
    return [Fact(facts[0].dtype, (x[0], *_windows(node, x[1:3], w[1:3]), w[0]))]


@rule("Resize")
def _resize(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    x = facts[0].shape
    # By aspect ratio the sizes are bounds, and of a crop the scales apply to its region.
    bounds = node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    if x is None or bounds or node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    axes = node.attrs.get("axes", range(len(x)))
    shape = list(x)
    if len(facts) > 3 and facts[3].value is not None:
        for axis, size in zip(axes, facts[3].value, strict=True):
            shape[axis] = size
        return [Fact(facts[0].dtype, tuple(shape))]
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if not isinstance(scales, gs.Constant) or not np.size(scales.values):  # empty: left out
        return None
    for axis, scale in zip(axes, np.asarray(scales.values).tolist(), strict=True):
        whole = float(scale).is_integer()
        shape[axis] = shape[axis] * int(scale) if whole else unknown()
    return [Fact(facts[0].dtype, tuple(shape))]


@rule("Attention")
def _attention(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    q, v = facts[0].shape, facts[2].shape
    if q is None or v is None:
        return [Fact(facts[0].dtype)] * len(node.outputs)
    if len(q) == 3:
        heads, kv_heads = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
        width = divide(v[2] * heads, kv_heads)
        return [Fact(facts[0].dtype, (q[0], q[1], unknown() if width is None else width))]
    return [Fact(facts[0].dtype, (q[0], q[1], q[2], v[3]))] + [NOTHING] * (len(node.outputs) - 1)


@rule("MultiHeadAttention", domain="com.microsoft")
def _multi_head_attention(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    q = facts[0].shape
    if q is None:
        return [Fact(facts[0].dtype)]
    if len(q) == 5:
        return [Fact(facts[0].dtype, (q[0], q[1], q[2] * q[4]))]
    v = facts[2].shape if len(facts) > 2 else None
    return [Fact(facts[0].dtype, (q[0], q[1], v[2] if v is not None and len(v) == 3 else q[2]))]


@rule("Attention", domain="com.microsoft")
def _packed_attention(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    x, w = facts[0].shape, facts[1].shape
    if x is None or w is None:
        return [Fact(facts[0].dtype)]
    width = divide(w[1], 3)
    return [Fact(facts[0].dtype, (x[0], x[1], unknown() if width is None else width))]


@rule("BiasSplitGelu", domain="com.microsoft")
def _bias_split_gelu(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    half = divide(facts[0].shape[-1], 2)
    return [Fact(facts[0].dtype, (*facts[0].shape[:-1], unknown() if half is None else half))]


@rule("Pad")
def _pad(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    shape, pads = facts[0].shape, facts[1].value if len(facts) > 1 else None
    if shape is None or pads is None or len(node.inputs) > 3 or len(pads) != 2 * len(shape):
        return None
    return [Fact(facts[0].dtype, tuple(d + pads[i] + pads[i + len(shape)] for i, d in enumerate(shape)))]
