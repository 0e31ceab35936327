"""Nodes that fp16 cannot hold, whatever they are fed with: sums, what is squared for them, guards, what these guard.

Each tensor has a magnitude in terms of an activation's, which fp16 holds: a square is of degree 2, its reciprocal of
degree -2, a sum of many elements may be larger than any of them, a guard (``x + 1e-12``) may be all there is. Two walks
find the nodes:

* back from sums, roots, logarithms and guards to what computes a tensor there that fp16 would spoil;
* forward from these, as long as a result is no activation again: up to the division that normalizes it, to a function
  of bounded values, or to a product with weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.float16 import LARGEST, SMALLEST_NORMAL
from sdort.graph.signature import Array
from sdort.graph.symbolic import numbers
from sdort.rewrite.editor import Editor, array, producer

SUMS = frozenset(
    {"ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
     "ReduceProd", "CumSum", "LpNormalization", "MeanVarianceNormalization"}
)  # fmt: skip
"""Operators that add up many elements, or multiply them."""
_BENT = frozenset({"Sqrt", "Log", "Reciprocal"})
"""Operators of which small arguments decide the result."""
MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand", "Slice", "Split", "Gather",
     "GatherElements", "GatherND", "Concat", "Pad", "Tile", "Trilu", "DepthToSpace", "SpaceToDepth"}
)  # fmt: skip
"""Operators that move elements."""
_KEEPS = MOVES | {"Neg", "Abs", "Relu", "LeakyRelu", "ReduceMax", "ReduceMin", "TopK"}
"""Operators whose results are of their first input's magnitude, and exact but for LeakyRelu's."""
_JOINS = frozenset({"Add", "Sub", "Sum", "Mean", "Max", "Min", "Clip", "Where"})
"""Operators whose results are of the largest of their inputs' magnitudes."""
_BOUNDS = frozenset({"Max", "Min", "Clip"})
COMPARES = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"})
"""Operators that compare."""
_WITH_CONSTANTS = _JOINS | COMPARES | {"Mul", "Div", "Mod", "PRelu"}
"""Elementwise operators that a constant may be an input of."""
_SHRINKS = frozenset({"Softmax", "Sigmoid", "Exp", "Div", "Sub", "Softplus"})
"""Operators whose results may be far smaller than what they are computed from."""
BLIND = frozenset({"Shape", "Size"})
"""Operators that do not look at an element."""
_FEW = 16
"""A sum of up to so many activations is taken for one, as the sum of two is."""
_LIMIT = 1 << 14
"""Constants of up to so many elements are looked at."""


@dataclass(frozen=True)
class Magnitude:
    """A tensor's size, where an activation's is of degree 1 and a constant's of degree 0."""

    degree: float = 1.0
    large: bool = False
    """A sum of many, or of a constant beyond fp16."""
    least: float | None = None
    """The constant that keeps it, or what it is the reciprocal of, from zero."""

    @property
    def fits(self) -> bool:
        """Whether fp16 holds it."""
        if self.large or abs(self.degree) > 1:
            return False
        return self.degree >= 0 if self.least is None else self.least >= SMALLEST_NORMAL


ACTIVATION = Magnitude()


def unheld_nodes(editor: Editor) -> set[str]:
    """Names of the nodes that compute, or read, what fp16 does not hold."""
    kept = _seeds(editor)
    count = -1
    while count < len(kept):
        count = len(kept)
        _walk(editor, kept)
    kept.update(_between(editor, kept))
    return {node.name for node in kept.values()}


def _walk(editor: Editor, kept: dict[int, gs.Node]) -> None:
    """Add what reads a tensor that fp16 does not hold."""
    magnitudes, dividends = dict[str, Magnitude](), list[gs.Tensor]()
    for node in editor.graph.nodes:
        reads = [t for t in node.inputs if t.name in magnitudes]
        if node.op in BLIND or not (id(node) in kept or reads):
            continue
        kept[id(node)] = node
        if node.op == "Div" and node.inputs[1] in reads and _values(node.inputs[0]) is None:
            dividends.append(node.inputs[0])
        result = ACTIVATION if node.domain else _result(editor, node, magnitudes)
        magnitudes.update({t.name: result for t in node.outputs if t.name and not result.fits and _is_float(editor, t)})
    kept.update((id(n), n) for n in _spoiled(editor, dividends, True) if n.op == "MatMul")


# --- back from sums, roots and guards ---


def _seeds(editor: Editor) -> dict[int, gs.Node]:
    """Sums, roots, logarithms and guards, and what fp16 would spoil on the way to them, by ``id``."""
    nodes, read = list[gs.Node](), {False: list[gs.Tensor](), True: list[gs.Tensor]()}
    for node in editor.graph.nodes:
        if node.domain or not any(_is_float(editor, t) for t in node.inputs):
            continue
        if node.op in SUMS and _is_float(editor, node.outputs[0]):
            nodes.append(node)
            read[node.op == "ReduceLogSum"].append(node.inputs[0])
        elif (node.op in _BENT and node.op != "Reciprocal") or (node.op == "Pow" and _exponent(node) < 1):
            nodes.append(node)
            read[True].append(node.inputs[0])
        elif node.op in _WITH_CONSTANTS:
            nodes += _guarded(editor, node, read)
    nodes += [node for small, tensors in read.items() for node in _spoiled(editor, tensors, small)]
    return {id(node): node for node in nodes}


def _guarded(editor: Editor, node: gs.Node, read: dict[bool, list[gs.Tensor]]) -> Iterator[gs.Node]:
    """The node, if one of its constants is nothing in fp16, or beyond it, and what moves that.

    Args:
        read: takes what else the node is computed from, by whether small numbers count.
    """
    small = [id(t) for t in node.inputs if _small(editor, t)]
    unheld = {*small, *(id(t) for t in node.inputs if _beyond(editor, t))}
    yield from [node] if unheld else []
    for tensor in node.inputs if unheld else []:
        if id(tensor) in unheld:
            yield from _fillers(tensor)
        else:
            read[bool(small)].append(tensor)


def _spoiled(editor: Editor, tensors: Iterable[gs.Tensor], small: bool) -> list[gs.Node]:
    """The nodes that fp16 would spoil a tensor in, and those on the way from them to it.

    These are what squares and, where small numbers count, what makes small. Every node is visited once for all tensors.
    """
    behind, found = dict[int, list[gs.Node]](), dict[int, gs.Node]()
    stack: list[tuple[gs.Tensor, gs.Node | None]] = [(tensor, None) for tensor in tensors]
    while stack:
        current, reader = stack.pop()
        node = producer(current)
        if node is None or node.domain or not _is_float(editor, current):
            continue
        seen, readers = id(node) in behind, [] if reader is None else [reader]
        behind.setdefault(id(node), []).extend(readers)
        if id(node) in found:
            _mark(readers, behind, found)
        if seen:
            continue
        computed = [t for t in node.inputs if t.name and _is_float(editor, t) and _values(t) is None]
        spoils = _spoils(node, len(computed), small)
        if spoils:
            _mark([node], behind, found)
            chained = {"Mul": ("Mul", "Pow"), "Pow": ("Mul", "Pow")}.get(node.op)
            computed = [t for t in computed if chained is None or (producer(t) or node).op in chained]
        elif node.op not in _KEEPS | _JOINS | {"Mul", "Div"}:
            continue
        stack.extend((t, None if spoils else node) for t in computed if node.op not in SUMS)
    return list(found.values())


def _mark(nodes: Iterable[gs.Node], behind: dict[int, list[gs.Node]], found: dict[int, gs.Node]) -> None:
    """Take nodes and all that stands behind them for found."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if id(node) not in found:
            found[id(node)] = node
            stack.extend(behind[id(node)])


def _spoils(node: gs.Node, computed: int, small: bool) -> bool:
    if node.op in ("Mul", "MatMul"):
        return computed == 2 and (small or node.op == "Mul")
    return node.op in ("Pow", "Exp") or (small and node.op in _SHRINKS | SUMS)


def _fillers(tensor: gs.Tensor) -> Iterator[gs.Node]:
    """The nodes that move or repeat a constant."""
    node = producer(tensor)
    while node is not None:
        yield node
        node = producer(node.inputs[0]) if node.inputs else None


def _between(editor: Editor, kept: dict[int, gs.Node]) -> dict[int, gs.Node]:
    """The nodes that only hand on from one kept node to another."""
    from_kept, found = set[int](), dict[int, gs.Node]()
    for node in (n for n in editor.graph.nodes if n.op in _KEEPS and not n.domain and id(n) not in kept):
        if any(id(p) in kept or id(p) in from_kept for p in node.inputs[0].inputs):
            from_kept.add(id(node))
    for node in (n for n in reversed(editor.graph.nodes) if id(n) in from_kept and _is_float(editor, n.outputs[0])):
        if any(id(r) in kept or id(r) in found for t in node.outputs for r in t.outputs):
            found[id(node)] = node
    return found


# --- forward ---


def _result(editor: Editor, node: gs.Node, magnitudes: dict[str, Magnitude]) -> Magnitude:
    """The magnitude of what a node computes that stays in fp32."""
    of = [None if not t.name or _values(t) is not None else magnitudes.get(t.name, ACTIVATION) for t in node.inputs]
    first = of[0] or Magnitude(0)
    if node.op in _KEEPS:
        joined = [m for m in of if m is not None] if node.op == "Concat" else [first]
        return _joined(joined)
    if node.op in _JOINS:
        return _bounded(node, _joined([m for t, m in zip(node.inputs, of, strict=True) if m and _is_float(editor, t)]))
    if node.op in ("Mul", "Div"):
        return _product(node, *of)
    if node.op in ("Sqrt", "Pow", "Reciprocal"):
        return _power(first, {"Sqrt": 0.5, "Reciprocal": -1.0}.get(node.op) or _exponent(node))
    if node.op == "Exp":
        return Magnitude(large=True)
    if node.op in ("ReduceSum", "ReduceL1", "ReduceL2", "CumSum"):
        return replace(
            first, large=first.large or first.degree > 1 or node.op != "ReduceSum" or not _adds_few(editor, node)
        )
    if node.op == "ReduceMean":
        return first
    if node.op in ("ReduceSumSquare", "ReduceProd"):
        return Magnitude(2 * first.degree, large=True)
    return ACTIVATION


def _joined(magnitudes: list[Magnitude]) -> Magnitude:
    if not magnitudes:
        return Magnitude(0)
    least = [m.least for m in magnitudes if m.least is not None]
    degree = max((m.degree for m in magnitudes), key=abs)
    return Magnitude(degree, any(m.large for m in magnitudes), min(least) if least else None)


def _bounded(node: gs.Node, joined: Magnitude) -> Magnitude:
    """With a constant that is added, or that is a bound."""
    constants = [
        np.abs(v[np.isfinite(v)]) for t in node.inputs if (v := _values(t)) is not None and v.dtype.kind == "f"
    ]
    sizes = [float(v.max()) for v in constants if v.size and v.max()]
    large = joined.large or (node.op not in _BOUNDS and any(size > LARGEST for size in sizes))
    guards = [size for size in sizes if size <= LARGEST]
    return Magnitude(joined.degree, large, max(guards) if guards else joined.least)


def _product(node: gs.Node, left: Magnitude | None, right: Magnitude | None) -> Magnitude:
    """Of two factors, None for a constant; of a dividend and a divisor."""
    sign = -1 if node.op == "Div" else 1
    if left is not None and right is not None:
        degree = left.degree + sign * right.degree
        if degree == 0 or (sign < 0 and 0 < degree <= 1):
            return Magnitude(degree)  # normalized
        return Magnitude(degree, left.large or right.large, right.least if degree < 0 else None)
    values = _values(node.inputs[1 if right is None else 0])
    size = float(np.abs(values).max()) if values is not None and values.size else 1.0
    if right is None:
        known, factor = left or Magnitude(0), size if sign > 0 else 1 / size if size else 1.0
    elif sign < 0:
        return _power(right, -1.0)
    else:
        known, factor = right, size
    least = factor if factor < SMALLEST_NORMAL else known.least
    return Magnitude(known.degree, factor > LARGEST or (known.large and factor >= 1), least)


def _power(magnitude: Magnitude, exponent: float) -> Magnitude:
    least = None if magnitude.least is None else magnitude.least ** abs(exponent)
    return Magnitude(magnitude.degree * exponent, magnitude.large, least)


def _adds_few(editor: Editor, node: gs.Node) -> bool:
    before, axes = editor.shape(node.inputs[0]), None if len(node.inputs) < 2 else editor.dims(node.inputs[1])
    known = numbers(axes) if axes is not None else None
    sizes = None if before is None or not known else numbers(tuple(before[axis] for axis in known))
    return sizes is not None and int(np.prod(sizes)) <= _FEW


# --- constants ---


def _exponent(node: gs.Node) -> float:
    values = _values(node.inputs[1])
    return float(values.reshape(-1)[0]) if values is not None and values.size == 1 else 2.0


def _small(editor: Editor, tensor: gs.Tensor) -> bool:
    """Whether a constant is nothing but zeros and what is below fp16's normal numbers."""
    values = _values(tensor) if _is_float(editor, tensor) else None
    return values is not None and bool(0 < np.abs(values).max(initial=0.0) < SMALLEST_NORMAL)


def _beyond(editor: Editor, tensor: gs.Tensor) -> bool:
    """Whether a constant has a finite element that is larger than any of fp16."""
    values = _values(tensor) if _is_float(editor, tensor) else None
    return values is not None and bool((np.abs(values[np.isfinite(values)]) > LARGEST).any())


def _values(tensor: gs.Tensor) -> Array | None:
    """The values of a small constant, or of one that is moved or repeated."""
    node = producer(tensor)
    while node is not None and node.op in MOVES and node.op != "Concat" and not node.domain:
        tensor = node.inputs[0]
        node = producer(tensor)
    if node is not None and node.op == "ConstantOfShape":
        return np.asarray(node.attrs["value"].values) if "value" in node.attrs else np.zeros(1, np.float32)
    return array(tensor, _LIMIT)


def _is_float(editor: Editor, tensor: gs.Tensor) -> bool:
    return editor.dtype(tensor) == np.float32
