"""Finding a pattern in a graph, and saying how far it got where it is not."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sdort.model.symbolic import Dim
from sdort.model.weights import Array, Weight
from sdort.rewrite.editor import Editor, array, producer, scalar
from sdort.rewrite.pattern import COMMUTATIVE, Capture, Pattern, PatternNode, TensorType, default_attribute, has_default


@dataclass(frozen=True)
class Refusal:
    """Why a match is not rewritten: a reason and the value that caused it."""

    reason: str
    value: Any = None
    applicable: bool = True
    """False where the fusion simply does not concern this place (no miss)."""
    by_target: bool = False
    """Whether it was the target that has no kernel for the result."""

    def __str__(self) -> str:
        return self.reason if self.value is None else f"{self.reason} ({self.value})"


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
        """What goes when the match is rewritten."""
        return [*self.nodes.values(), *self.casts.values()]

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
    tensors: int = 0
    """How many tensors were bound: of two attempts that matched as many nodes, it tells which came further."""

    def note(self, match: Match, tensor: gs.Tensor | gs.Node, reason: str) -> None:
        reached = len(match.nodes), len(match.tensors)
        if reached > (self.matched, self.tensors):
            self.matched, self.tensors = reached
            self.node, self.reason = tensor.name, reason


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
    for match in _solve(pattern, [goal], Match(editor, through_casts=through_casts), progress):
        if _apart(pattern, match, progress) and _closed(pattern, match, progress) and _typed(pattern, match, progress):
            return match
    return None


def _solve(pattern: Pattern, goals: list[tuple[str, gs.Tensor]], match: Match, progress: Progress) -> Iterator[Match]:
    """Depth-first search over (pattern name, tensor) goals; branches only at commutative operators."""
    while goals:
        (name, tensor), goals = goals[0], goals[1:]
        if match.through_casts:
            inner = name in pattern.producers
            tensor, casts = behind_casts(match.editor, tensor, exactly=not inner)
            if inner:
                match.casts.update((id(cast), cast) for cast in casts)
        bound = match.tensors.get(name)
        if bound is not None:
            if not same_tensor(bound, tensor):
                progress.note(match, tensor, f"{name!r} would have to be {bound.name!r} here too")
                return
            continue
        if name not in pattern.producers:
            if not _leaf(pattern, name, tensor, match, progress):
                return
            match.tensors[name] = tensor
            continue
        index = pattern.producers[name]
        node = _producer(pattern.nodes[index], name, tensor, match, progress)
        attrs = None if node is None else _attributes(pattern.nodes[index], node, match, progress)
        if node is None or attrs is None:
            return
        match.tensors.update(_outputs(pattern.nodes[index], node))
        match.attrs.update(attrs)
        match.nodes[index] = node
        orders = list(_input_orders(pattern.nodes[index], node, match, progress))
        if len(orders) != 1:
            for order in orders:
                yield from _solve(pattern, [*order, *goals], _copy(match), progress)
            return
        goals = [*orders[0], *goals]
    yield match


def _copy(match: Match) -> Match:
    """A match that goes on by itself: what one order of inputs binds is not bound in the other."""
    return Match(
        match.editor,
        dict(match.tensors),
        dict(match.attrs),
        dict(match.nodes),
        dict(match.dims),
        dict(match.casts),
        match.through_casts,
    )


def behind_casts(editor: Editor, tensor: gs.Tensor, *, exactly: bool = False) -> tuple[gs.Tensor, list[gs.Node]]:
    """What Casts between floats were made of, and the Casts; ``exactly``: only of those that round nothing."""
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


def _leaf(pattern: Pattern, name: str, tensor: gs.Tensor, match: Match, progress: Progress) -> bool:
    if name in pattern.inputs:
        return True
    if not isinstance(tensor, gs.Constant):
        progress.note(match, tensor, f"{name!r} has to be a constant, {tensor.name!r} is computed")
        return False
    wanted = pattern.values.get(name)
    if wanted is None:
        return True
    found = array(tensor)
    if found is not None and _same_values(found, wanted):
        return True
    shown = "a large tensor" if found is None else found.reshape(-1)[:4].tolist()
    progress.note(match, tensor, f"{name!r} has to be {wanted.reshape(-1)[:4].tolist()}, found {shown}")
    return False


def _same_values(found: Array, wanted: Array) -> bool:
    if found.size != wanted.size or (wanted.size > 1 and found.shape != wanted.shape):
        return False
    if not is_float(found.dtype) or not is_float(wanted.dtype):
        return bool(np.array_equal(found.reshape(-1), wanted.reshape(-1)))
    values = found.reshape(-1).astype(np.float64)
    return all(_is_rounded(v, float(w), found.dtype) for v, w in zip(values, wanted.reshape(-1), strict=True))


FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 23}
"""Of the types that constants come in; a pattern's own numbers are float32."""


def _is_rounded(value: float, wanted: float, dtype: np.dtype[Any]) -> bool:
    """Whether ``value`` is ``wanted`` in the precision of ``dtype``.

    Exporters fold constants in their own precision: 1/sqrt(2) comes as fp16's 0.70703125, and where it was rounded
    twice it may be one unit in the last place off. What every type holds exactly, such as 0.5, has to be just that.
    """
    bits = FRACTION_BITS.get(dtype.name)
    if bits is None:
        return False
    mantissa, exponent = math.frexp(wanted)
    if not math.isfinite(wanted) or (mantissa * 2 ** (FRACTION_BITS["bfloat16"] + 1)).is_integer():
        return value == wanted
    return abs(value - wanted) <= 2.0 ** (exponent - 1 - bits)


def _producer(wanted: PatternNode, name: str, tensor: gs.Tensor, match: Match, progress: Progress) -> gs.Node | None:
    node = producer(tensor)
    if node is None:
        found = "a constant" if isinstance(tensor, gs.Constant) else "a graph input"
        progress.note(match, tensor, f"expected {wanted.op} -> {name!r}, found {found} {tensor.name!r}")
        return None
    if node.op != wanted.op or (node.domain or "") != wanted.domain:
        progress.note(match, node, f"expected {wanted.op} -> {name!r}, found {node.op}")
        return None
    if node.outputs.index(tensor) != wanted.outputs.index(name):
        progress.note(match, node, f"{name!r} is another output of {node.op}")
        return None
    return node


def _outputs(wanted: PatternNode, node: gs.Node) -> dict[str, gs.Tensor]:
    return {n: t for n, t in zip(wanted.outputs, node.outputs, strict=False) if n and t.name}


def _attributes(wanted: PatternNode, node: gs.Node, match: Match, progress: Progress) -> dict[str, Any] | None:
    captured: dict[str, Any] = {}
    for key in {*wanted.attrs, *node.attrs}:
        default = default_attribute(wanted.op, wanted.domain, key)
        found = node.attrs.get(key, default)
        expected = wanted.attrs.get(key, default)
        if isinstance(expected, Capture):
            value = found if has_default(found) else None
            before = match.attrs.get(expected.name, value)
            if before != value:
                progress.note(match, node, f"{node.op} has {key}={value!r}, expected {before!r} as before")
                return None
            captured[expected.name] = value
        elif not _equal(found, expected):
            shown = f"{key}={found!r}" if has_default(found) else f"no {key}"
            progress.note(
                match, node, f"{node.op} has {shown}, expected {expected if has_default(expected) else 'none'}"
            )
            return None
    return captured


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, (int, float)):
        return bool(np.isclose(found, expected, rtol=1e-6, atol=0))
    return bool(found == expected)


def _input_orders(
    wanted: PatternNode, node: gs.Node, match: Match, progress: Progress
) -> Iterator[list[tuple[str, gs.Tensor]]]:
    inputs = list(node.inputs)
    while inputs and not inputs[-1].name:
        inputs.pop()
    if len(inputs) != len(wanted.inputs):
        progress.note(match, node, f"{node.op} has {len(inputs)} inputs, expected {len(wanted.inputs)}")
        return
    for index, (name, tensor) in enumerate(zip(wanted.inputs, inputs, strict=True)):
        if bool(name) != bool(tensor.name):
            given, expected = ("absent", "one") if name else ("given", "none")
            progress.note(match, node, f"input {index} of {node.op} is {given}, expected {expected}")
            return
    yield [(n, t) for n, t in zip(wanted.inputs, inputs, strict=True) if n]
    if wanted.op in COMMUTATIVE and not wanted.domain and len(inputs) == 2:
        yield [(n, t) for n, t in zip(wanted.inputs, reversed(inputs), strict=True)]


def _apart(pattern: Pattern, match: Match, progress: Progress) -> bool:
    """Whether what flows in comes from outside: ``Add (h, h)`` reads, as an input too, the ``h`` that would go."""
    inside = {id(node) for node in match.removed}
    for name in pattern.inputs:
        tensor = match.tensors.get(name)
        if tensor is not None and any(id(node) in inside for node in tensor.inputs):
            progress.note(match, tensor, f"{name!r} is {tensor.name!r}, which the match itself computes")
            return False
    return True


def _closed(pattern: Pattern, match: Match, progress: Progress) -> bool:
    """Whether nothing outside the match reads what the rewrite would remove.

    A reader outside that only hands a size back into the match, as the ``Shape`` of a tensor on its way to a Reshape
    of the match does, goes with it.
    """
    inside = {id(node) for node in match.removed}
    last = max(match.editor.position(node) for node in match.removed)
    public = {id(match.tensors[name]) for name in pattern.outputs if name in match.tensors}
    for node in match.removed:
        for tensor in node.outputs:
            if id(tensor) in public:
                continue
            outsider = next(
                (c for c in tensor.outputs if id(c) not in inside and not _returns(c, inside, last, match.editor)), None
            )
            if outsider is not None or match.editor.is_output(tensor):
                reader = f"{outsider.op} {outsider.name!r}" if outsider is not None else "the graph's output"
                progress.note(match, tensor, f"{tensor.name!r} is also read by {reader}")
                return False
    return True


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


def _typed(pattern: Pattern, match: Match, progress: Progress) -> bool:
    """Whether all stated types and shapes hold; binds the named dims."""
    for name, wanted in pattern.types.items():
        tensor = match.tensors.get(name)
        if tensor is None:
            continue
        problem = _unify(wanted, match.editor, tensor, match.dims)
        if problem:
            progress.note(match, tensor, f"{name!r} ({tensor.name}): {problem}")
            return False
    return True


def _kind(dtype: np.dtype[Any]) -> str:
    """The letter of :class:`TensorType`."""
    return "f" if is_float(dtype) else "i" if dtype.kind == "u" else dtype.kind


def _unify(wanted: TensorType, editor: Editor, tensor: gs.Tensor, dims: dict[str, Dim]) -> str | None:
    fact = editor.facts.of(tensor)
    if fact.dtype is not None and _kind(fact.dtype) != wanted.kind:
        return f"its type is {fact.dtype}"
    if wanted.dims is None:
        return None
    if fact.shape is None:
        return "its shape is not known"
    if not wanted.dims and isinstance(tensor, gs.Constant) and all(d == 1 for d in fact.shape):
        return None  # a one-element constant of any rank is a scalar
    if len(fact.shape) != len(wanted.dims):
        return f"its shape is {list(fact.shape)}, expected {list(wanted.dims)}"
    for found, name in zip(fact.shape, wanted.dims, strict=True):
        expected = dims.setdefault(name, found) if isinstance(name, str) else name
        if expected != found:
            bound = f" with {name} = {expected}" if isinstance(name, str) else ""
            return f"its shape is {list(fact.shape)}, expected {list(wanted.dims)}{bound}"
    return None
