"""Rules of operators that compute element by element, and of casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.fact import BOOL, NOTHING, Elements, Fact, broadcast
from sdort.graph.symbolic import Dim, divide, is_natural, numbers
from sdort.rewrite.inference.rules import Rules, as_dtype

RULES = Rules()
rule = RULES.rule


@rule("Neg")
def _negative(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    value = facts[0].value
    return [Fact(facts[0].dtype, facts[0].shape, None if value is None else tuple(-v for v in value))]


@rule("Identity", "Sigmoid", "Erf", "Tanh", "Sqrt", "Exp", "Softmax", "Gelu", "Relu", "Sin", "Cos", "Abs")
@rule("LayerNormalization", "GroupNormalization", "InstanceNormalization", "Reciprocal", "Dropout", "Clip")
def _same(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    keep = facts[0] if node.op == "Identity" else Fact(facts[0].dtype, facts[0].shape)
    return [keep] + [NOTHING] * (len(node.outputs) - 1)


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


def _zip_values(a: Fact, b: Fact, function: Callable[[Dim, Dim], Dim | None]) -> Elements | None:
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
    dtype = as_dtype(node.attrs["to"])
    value = facts[0].value
    if dtype is None or dtype.kind != "i" or dtype.itemsize < 4 or not _fits(value or (), dtype):
        value = None
    return [Fact(dtype, facts[0].shape, value)]


def _fits(value: Elements, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return all(limits.min <= v <= limits.max for v in value if isinstance(v, int))
