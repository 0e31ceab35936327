"""Finding a pattern in a graph, and saying how far it got where it is not."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.signature import Array
from sdort.graph.symbolic import Dim
from sdort.graph.weights import Weight
from sdort.rewrite.editor import Editor, array, producer, scalar
from sdort.rewrite.pattern import COMMUTATIVE, Capture, Pattern, PatternNode, TensorType, default_attribute, has_default


@dataclass(frozen=True)
class Refusal:
    """A refusal to rewrite a match: a reason and the value that caused it."""

    reason: str
    value: Any = None
    applicable: bool = True
    """False where the fusion simply does not concern this place (no miss)."""
    by_target: bool = False
    """Whether it was the target that has no kernel for the result."""

    def __str__(self) -> str:
        if self.value is None:
            return self.reason
        value = ", ".join(map(str, self.value)) if isinstance(self.value, tuple) else self.value
        return f"{self.reason} ({value})"


def refuse(reason: str, value: Any = None) -> Refusal:
    """This place should have fused and cannot: a miss."""
    return Refusal(reason, value)


def decline(reason: str, value: Any = None) -> Refusal:
    """This place is not the fusion's business."""
    return Refusal(reason, value, applicable=False)


@dataclass
class Match:
    """A pattern found in a graph.

    ``m["x"]`` is the tensor bound to the pattern's ``x``; ``dims``, ``attrs`` and ``nodes`` are what the names in
    shapes, the captured attributes and the pattern's nodes are bound to. ``casts`` are the Casts between floats that
    stand between two of the nodes: they go with them.
    """

    editor: Editor
    tensors: dict[str, gs.Tensor] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    nodes: dict[int, gs.Node] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    casts: dict[int, gs.Node] = field(default_factory=dict)
    through_casts: bool = False
    """Whether its nodes and tensors may be of several floating-point types."""

    @property
    def removed(self) -> list[gs.Node]:
        """The nodes that go when the match is rewritten."""
        return [*self.nodes.values(), *self.casts.values()]

    def copy(self) -> Match:
        """A match that goes on by itself: what is bound in it is not bound in this one."""
        return replace(
            self,
            tensors=dict(self.tensors),
            attrs=dict(self.attrs),
            nodes=dict(self.nodes),
            dims=dict(self.dims),
            casts=dict(self.casts),
        )

    def precision(self) -> np.dtype[Any] | None:
        """The widest type that any of the nodes computes floats in; None if there is none, or one is not known."""
        dtypes = {self.editor.dtype(t) for node in self.nodes.values() for t in node.outputs if t.name}
        return widest({d for d in dtypes if d is None or is_float(d)})

    def __getitem__(self, name: str) -> gs.Tensor:
        return self.tensors[name]

    def scalar(self, name: str) -> float:
        """The value of a one-element constant; the check has made sure that it is one."""
        value = scalar(self.tensors[name])
        assert value is not None
        return value

    def array(self, name: str) -> Array | None:
        """The values of a small constant; None where they are not at hand."""
        return array(self.tensors[name])

    def is_filled(self, name: str, value: float) -> bool:
        """Whether every element of a constant is ``value``, whatever its size."""
        return self.editor.filling(self.tensors[name]) == value

    def known(self, dim: str) -> int | None:
        """A dim's value where it is a number."""
        value = self.dims[dim]
        return value if isinstance(value, int) else None

    def size(self, dim: str) -> int:
        """A dim's number; the check has made sure that it is one."""
        value = self.dims[dim]
        assert isinstance(value, int)
        return value


@dataclass
class Progress:
    """The furthest that any attempt came: nodes matched, the node it stopped at, and why."""

    matched: int = -1
    node: str = ""
    reason: str = ""
    kind: str = ""
    """The reason without what only this graph has, its names and sizes: places with one cause share it."""
    tensors: int = 0
    """How many tensors were bound: of two attempts that matched as many nodes, it tells which came further."""
    anchor: gs.Node | None = None
    """The node that is to be explained; of two attempts that matched as many nodes, one of its own says why."""
    own: int = 0
    """How much the attempt is the anchor's own: 2 where it matched the anchor, 1 where it stopped at it."""

    @property
    def reached(self) -> tuple[int, int, int]:
        """Nodes, then whether the anchor is among them, then tensors: of two attempts the larger came further."""
        return self.matched, self.own, self.tensors

    def note(self, match: Match, tensor: gs.Tensor | gs.Node, reason: str, kind: str) -> None:
        own = 2 if any(node is self.anchor for node in match.nodes.values()) else int(tensor is self.anchor)
        reached = len(match.nodes), own, len(match.tensors)
        if reached > self.reached:
            self.matched, self.own, self.tensors = reached
            self.node, self.reason, self.kind = tensor.name, reason, kind


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is a floating-point one; to numpy bfloat16 is a plain lump of bytes."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def widest(dtypes: Collection[np.dtype[Any] | None]) -> np.dtype[Any] | None:
    """The floating-point type that holds the values of all; None where one is not known, or there is none."""
    known = [d for d in dtypes if d is not None]
    if not known or len(known) < len(dtypes):
        return None
    if len(set(known)) == 1:
        return known[0]
    return np.dtype(np.float64) if np.dtype(np.float64) in known else np.dtype(np.float32)


def find(
    editor: Editor, pattern: Pattern, root: gs.Node, progress: Progress, *, through_casts: bool = False
) -> Match | None:
    """Match ``pattern`` with its first output at ``root``.

    Args:
        progress: takes note of the furthest attempt.
        through_casts: Casts between floats count for nothing. Graphs in half precision have them around what is
            computed in single; who rewrites the match has to compute in its :meth:`Match.precision`.
    """
    node = pattern.root
    if root.op != node.op or (root.domain or "") != node.domain or not root.outputs:
        return None
    goal = (pattern.outputs[0], root.outputs[node.outputs.index(pattern.outputs[0])])
    return _Search(pattern, Match(editor, through_casts=through_casts), progress).run([goal])


Goal: TypeAlias = "tuple[str, gs.Tensor]"
"""A name of the pattern and the tensor that it would have to stand for."""


@dataclass
class _Search:
    """One candidate of a depth-first search, which branches at commutative operators, and where it goes downstream.

    Branches share the pattern and the progress; what one of them binds is not bound in another.
    """

    pattern: Pattern
    match: Match
    progress: Progress

    def fail(self, at: gs.Tensor | gs.Node, reason: str, kind: str = "") -> Literal[False]:
        """Note why the candidate goes no further; always False.

        Args:
            kind: the reason without the graph's own names and sizes, where it has any.
        """
        self.progress.note(self.match, at, reason, kind or reason)
        return False

    def run(self, goals: list[Goal]) -> Match | None:
        """Reach all goals; the first candidate that does and that may be rewritten is the match."""
        while goals:
            (name, tensor), *goals = goals
            orders = self._bind(name, tensor)
            if len(orders) != 1:
                branches = (_Search(self.pattern, self.match.copy(), self.progress) for _ in orders)
                matches = (branch.run([*order, *goals]) for branch, order in zip(branches, orders, strict=True))
                return next((match for match in matches if match is not None), None)
            goals = [*orders[0], *goals]
        further = self.pattern.reader(self.match.nodes)
        if further is not None:
            return self._downstream(*further)
        return self.match if self._is_apart() and self._is_closed() and self._is_typed() else None

    def _downstream(self, index: int, name: str) -> Match | None:
        """Go on with a node that no output leads to: one of the readers of what is bound."""
        node, matched = self.pattern.nodes[index], {id(each) for each in self.match.nodes.values()}
        place = next(place for place, output in enumerate(node.outputs) if output)
        for reader in self.match.tensors[name].outputs:
            if id(reader) in matched or len(reader.outputs) <= place:
                continue
            branch = _Search(self.pattern, self.match.copy(), self.progress)
            found = branch.run([(node.outputs[place], reader.outputs[place])])
            if found is not None:
                return found
        self.fail(self.match.tensors[name], f"expected {node.op} after {name!r}")
        return None

    def _bind(self, name: str, tensor: gs.Tensor) -> list[list[Goal]]:
        """Bind one name. Returns the goals that follow, once for each order of inputs; no order if it cannot be."""
        match, pattern = self.match, self.pattern
        if match.through_casts:
            inner = name in pattern.producers
            tensor, casts = behind_casts(match.editor, tensor, exactly=not inner)
            if inner:
                match.casts.update((id(cast), cast) for cast in casts)
        bound = match.tensors.get(name)
        if bound is not None:
            if same_tensor(bound, tensor):
                return [[]]
            self.fail(tensor, f"{name!r} would have to be {bound.name!r} here too", f"{name!r} is two tensors")
            return []
        if name in pattern.producers:
            return self._bind_node(name, tensor)
        if not self._is_leaf(name, tensor):
            return []
        match.tensors[name] = tensor
        return [[]]

    def _bind_node(self, name: str, tensor: gs.Tensor) -> list[list[Goal]]:
        index = self.pattern.producers[name]
        expected = self.pattern.nodes[index]
        node = self._producer(expected, name, tensor)
        attrs = None if node is None else self._attributes(expected, node)
        if node is None or attrs is None:
            return []
        outputs = zip(expected.outputs, node.outputs, strict=False)
        self.match.tensors.update({n: t for n, t in outputs if n and t.name})
        self.match.attrs.update(attrs)
        self.match.nodes[index] = node
        return self._input_orders(expected, node)

    # --- one tensor, one node ---

    def _is_leaf(self, name: str, tensor: gs.Tensor) -> bool:
        if name in self.pattern.inputs:
            return True
        if not isinstance(tensor, gs.Constant):
            problem = f"{name!r} has to be a constant"
            return self.fail(tensor, f"{problem}, {tensor.name!r} is computed", problem)
        expected = self.pattern.values.get(name)
        if expected is None:
            return True
        values = array(tensor)
        if values is not None and _same_values(values, expected):
            return True
        shown = "a large tensor" if values is None else values.reshape(-1)[:4].tolist()
        return self.fail(tensor, f"{name!r} has to be {expected.reshape(-1)[:4].tolist()}, found {shown}")

    def _producer(self, expected: PatternNode, name: str, tensor: gs.Tensor) -> gs.Node | None:
        node = producer(tensor)
        if node is None:
            kind = "a constant" if isinstance(tensor, gs.Constant) else "a graph input"
            problem = f"expected {expected.op} -> {name!r}, found {kind}"
            self.fail(tensor, f"{problem} {tensor.name!r}", problem)
            return None
        if node.op != expected.op or (node.domain or "") != expected.domain:
            self.fail(node, f"expected {expected.op} -> {name!r}, found {node.op}")
            return None
        if node.outputs.index(tensor) != expected.outputs.index(name):
            self.fail(node, f"{name!r} is another output of {node.op}")
            return None
        return node

    def _attributes(self, expected: PatternNode, node: gs.Node) -> dict[str, Any] | None:
        """The captured attributes; None where one of the node's is not as the pattern says."""
        captured: dict[str, Any] = {}
        for key in {*expected.attrs, *node.attrs}:
            default = default_attribute(expected.op, expected.domain, key)
            value, stated = node.attrs.get(key, default), expected.attrs.get(key, default)
            if isinstance(stated, Capture):
                value = value if has_default(value) else None
                before = self.match.attrs.get(stated.name, value)
                if before != value:
                    self.fail(node, f"{node.op} has {key}={value!r}, expected {before!r} as before")
                    return None
                captured[stated.name] = value
            elif not _equal(value, stated):
                shown = f"{key}={value!r}" if has_default(value) else f"no {key}"
                self.fail(node, f"{node.op} has {shown}, expected {stated if has_default(stated) else 'none'}")
                return None
        return captured

    def _input_orders(self, expected: PatternNode, node: gs.Node) -> list[list[Goal]]:
        inputs = list(node.inputs)
        while inputs and not inputs[-1].name:
            inputs.pop()
        if len(inputs) != len(expected.inputs):
            self.fail(node, f"{node.op} has {len(inputs)} inputs, expected {len(expected.inputs)}")
            return []
        for index, (name, tensor) in enumerate(zip(expected.inputs, inputs, strict=True)):
            if bool(name) != bool(tensor.name):
                state, other = ("absent", "one") if name else ("given", "none")
                self.fail(node, f"input {index} of {node.op} is {state}, expected {other}")
                return []
        orders = [inputs]
        if expected.op in COMMUTATIVE and not expected.domain and len(inputs) == 2:
            orders.append(inputs[::-1])
        return [[(n, t) for n, t in zip(expected.inputs, order, strict=True) if n] for order in orders]

    # --- the whole candidate ---

    def _is_apart(self) -> bool:
        """Whether what flows in comes from outside: ``Add (h, h)`` reads, as an input too, the ``h`` that would go."""
        inside = {id(node) for node in self.match.removed}
        for name in self.pattern.inputs:
            tensor = self.match.tensors.get(name)
            if tensor is not None and any(id(node) in inside for node in tensor.inputs):
                problem = "which the match itself computes"
                return self.fail(tensor, f"{name!r} is {tensor.name!r}, {problem}", f"{name!r} is a tensor {problem}")
        return True

    def _is_closed(self) -> bool:
        """Whether nothing outside the match reads what the rewrite would remove.

        A reader outside that only hands a size back into the match, as the ``Shape`` of a tensor on its way to a
        Reshape of the match does, goes with it.
        """
        match, editor = self.match, self.match.editor
        inside = {id(node) for node in match.removed}
        last = max(editor.position(node) for node in match.removed)
        public = {id(match.tensors[name]) for name in self.pattern.outputs if name in match.tensors}
        for tensor in (t for node in match.removed for t in node.outputs if id(t) not in public):
            outsiders = (c for c in tensor.outputs if id(c) not in inside and not _returns(c, inside, last, editor))
            outsider = next(outsiders, None)
            if outsider is not None or editor.is_output(tensor):
                reader = outsider.op if outsider is not None else "the graph's output"
                own = f" {outsider.name!r}" if outsider is not None else ""
                name = next((n for n, bound in match.tensors.items() if bound is tensor), tensor.name)
                problem = f"is also read by {reader}"
                return self.fail(tensor, f"{tensor.name!r} {problem}{own}", f"{name!r} {problem}")
        return True

    def _is_typed(self) -> bool:
        """Whether all stated types and shapes hold; binds the named dims."""
        for name, stated in self.pattern.types.items():
            tensor = self.match.tensors.get(name)
            problem = None if tensor is None else _unify(stated, self.match.editor, tensor, self.match.dims)
            if tensor is not None and problem:
                kind = problem.partition(" is ")[0]  # "its shape", "its type"
                return self.fail(tensor, f"{name!r} ({tensor.name}): {problem}", f"{name!r}: {kind}")
        return True


def behind_casts(editor: Editor, tensor: gs.Tensor, *, exactly: bool = False) -> tuple[gs.Tensor, list[gs.Node]]:
    """The tensor behind Casts between floats, and the Casts; ``exactly``: only behind those that round nothing."""
    casts: list[gs.Node] = []
    while (node := producer(tensor, "Cast")) is not None:
        before, after = (editor.dtype(t) for t in (node.inputs[0], tensor))
        if before is None or after is None or not (is_float(before) and is_float(after)):
            break
        if exactly and widest({before, after}) != after:
            break
        casts.append(node)
        tensor = node.inputs[0]
    return tensor, casts


def same_tensor(a: gs.Tensor, b: gs.Tensor) -> bool:
    """Whether two tensors are one, or constants of equal value."""
    if a is b:
        return True
    if not isinstance(a, gs.Constant) or not isinstance(b, gs.Constant):
        return False
    left, right = a._values, b._values
    if isinstance(left, Weight) or isinstance(right, Weight):
        return left is right
    return left.dtype == right.dtype and np.array_equal(left, right)


def _same_values(values: Array, expected: Array) -> bool:
    if values.size != expected.size or (expected.size > 1 and values.shape != expected.shape):
        return False
    if not is_float(values.dtype) or not is_float(expected.dtype):
        return bool(np.array_equal(values.reshape(-1), expected.reshape(-1)))
    numbers = values.reshape(-1).astype(np.float64)
    return all(_is_rounded(v, float(w), values.dtype) for v, w in zip(numbers, expected.reshape(-1), strict=True))


FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 23}
"""Fraction bits of the types that constants come in; a pattern's own numbers are float32."""


def _is_rounded(value: float, expected: float, dtype: np.dtype[Any]) -> bool:
    """Whether ``value`` is ``expected`` in the precision of ``dtype``.

    Exporters fold constants in their own precision: 1/sqrt(2) comes as fp16's 0.70703125, and where it was rounded
    twice it may be one unit in the last place off. What every type holds exactly, such as 0.5, has to be just that.
    """
    bits = FRACTION_BITS.get(dtype.name)
    if bits is None:
        return False
    mantissa, exponent = math.frexp(expected)
    if not math.isfinite(expected) or (mantissa * 2 ** (FRACTION_BITS["bfloat16"] + 1)).is_integer():
        return value == expected
    return abs(value - expected) <= 2.0 ** (exponent - 1 - bits)


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(value, float) and isinstance(expected, (int, float)):
        return bool(np.isclose(value, expected, rtol=1e-6, atol=0))
    return bool(value == expected)


def _returns(node: gs.Node, inside: set[int], last: int, editor: Editor) -> bool:
    """Whether a Shape's sizes end up nowhere but in nodes of ``inside``, the last of which is at position ``last``."""
    if node.op != "Shape":
        return False
    stack, seen = [node], {id(node)}
    while stack:
        sizes = stack.pop().outputs
        readers = [reader for tensor in sizes for reader in tensor.outputs]
        if any(map(editor.is_output, sizes)):
            return False
        for reader in readers:
            if id(reader) not in inside and id(reader) not in seen:
                if editor.position(reader) > last:
                    return False
                seen.add(id(reader))
                stack.append(reader)
    return True


def _kind(dtype: np.dtype[Any]) -> str:
    """The letter of :class:`TensorType`."""
    return "f" if is_float(dtype) else "i" if dtype.kind == "u" else dtype.kind


def _unify(stated: TensorType, editor: Editor, tensor: gs.Tensor, dims: dict[str, Dim]) -> str | None:
    fact = editor.facts.of(tensor)
    if fact.dtype is not None and _kind(fact.dtype) != stated.kind:
        return f"its type is {fact.dtype}"
    if stated.dims is None:
        return None
    if fact.shape is None:
        return "its shape is not known"
    if not stated.dims and isinstance(tensor, gs.Constant) and all(d == 1 for d in fact.shape):
        return None  # a one-element constant of any rank is a scalar
    if len(fact.shape) != len(stated.dims):
        return f"its shape is {list(fact.shape)}, expected {list(stated.dims)}"
    for size, name in zip(fact.shape, stated.dims, strict=True):
        expected = dims.setdefault(name, size) if isinstance(name, str) else name
        if expected != size:
            bound = f" with {name} = {expected}" if isinstance(name, str) else ""
            return f"its shape is {list(fact.shape)}, expected {list(stated.dims)}{bound}"
    return None
