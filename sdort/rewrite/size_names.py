"""Sizes as exporters name them: ``batch``, ``2*h``, ``4*((2*h - 1)//4) + 4``, ``floor(height/8 + 1/2)``.

torch, optimum and onnx write the arithmetic of Python or sympy into a ``dim_param``. What is no such arithmetic is a
name like any other, ``Max(1, h)`` as well as ``batch size``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from sdort.graph.symbolic import Dim, Expr, divide, is_natural, symbol

LONGEST_NAME = 200
"""Longer names are not read: nobody writes them, and reading takes time and stack."""
MOST_TERMS = 64
"""A product of more terms is left a name: the powers of a sum grow without end."""
HIGHEST_POWER = 8
_READABLE = re.compile(r"[\w\s+*/(),-]*", re.ASCII)
_LABEL = re.compile(r"\w-\w|\b\d+[A-Za-z_]", re.ASCII)
"""``sequence-length`` is a name, ``length - 1`` a difference; ``0x1`` and ``1e5`` are no numbers here."""

Fraction: TypeAlias = tuple[Dim, int]
"""A numerator and a positive denominator."""
SizeOf: TypeAlias = Callable[[str], Dim]


class _Unreadable(Exception):
    """The name is not arithmetic that a :data:`Dim` can hold."""


def read_names(names: Iterable[str]) -> dict[str, Dim]:
    """The sizes that the names of a graph's input dims stand for.

    All are read together, for a size is at least 1, but what it is made of may be 0: an input of ``past + 1`` tokens
    allows no past. Where nothing says that ``past`` is at least 1, it is written ``'past + 1' - 1``, so that the sizes
    that :mod:`sdort.graph.symbolic` names are never 0.
    """
    trees = {name: _parse(name) for name in dict.fromkeys(names)}
    parts = {node.id for tree in trees.values() if tree for node in ast.walk(tree) if isinstance(node, ast.Name)}
    positive = {part for part in parts if any(_needs(tree, part) for tree in trees.values())}

    def part_size(part: str) -> Dim:
        return symbol(part) if part in positive else _perhaps_none(part)

    readings = {name: (_size(tree, part_size), tree) for name, tree in trees.items()}
    return {
        name: size if isinstance(size, Expr) and not is_natural(-size) else symbol(_plain(tree, name))
        for name, (size, tree) in readings.items()
    }


def size_at(name: str, sizes: Mapping[str, int]) -> int | None:
    """The size that a name stands for where it, or each of its parts, is known; None where one is not."""
    if name in sizes:
        return sizes[name]

    def part_size(part: str) -> Dim:
        if part not in sizes:
            raise _Unreadable
        return sizes[part]

    size = _size(_parse(name), part_size)
    return size if isinstance(size, int) else None


def _perhaps_none(part: str) -> Dim:
    """A size that is at least 0."""
    return symbol(f"{part} + 1") - 1


def _needs(tree: ast.expr | None, part: str) -> bool:
    """Whether the size would be below 1 if the part were 0."""
    size = _size(tree, lambda name: 0 if name == part else _perhaps_none(name))
    return size is not None and is_natural(-size)


def _plain(tree: ast.expr | None, name: str) -> str:
    """The normal form of a name that is not read: without regard to its spaces."""
    return ast.unparse(tree) if tree else name


def _parse(name: str) -> ast.expr | None:
    if len(name) > LONGEST_NAME or not _READABLE.fullmatch(name) or _LABEL.search(name):
        return None
    try:
        return ast.parse(name.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _size(tree: ast.expr | None, sizes: SizeOf) -> Dim | None:
    """The size that a tree spells, with its parts' sizes put in; a size is whole, so what is left of it is cut off."""
    if tree is None:
        return None
    try:
        numerator, denominator = _read(tree, sizes)
    except _Unreadable:
        return None
    return numerator // denominator


def _read(node: ast.expr, sizes: SizeOf) -> Fraction:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool) and number < 2**31:
            return number, 1
        case ast.Name(id=name):
            return sizes(name), 1
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _times(_read(operand, sizes), (-1, 1))
        case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 < power <= HIGHEST_POWER:
            return _power(_read(base, sizes), power)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _OPERATORS[type(operator)](_read(left, sizes), _read(right, sizes))
        case ast.Call(func=ast.Name(id="floor"), args=[ratio]):
            return _floor(_read(ratio, sizes))
        case ast.Call(func=ast.Name(id="ceiling" | "ceil"), args=[ratio]):
            return _times(_floor(_times(_read(ratio, sizes), (-1, 1))), (-1, 1))
    raise _Unreadable


def _product(a: Dim, b: Dim) -> Dim:
    if isinstance(a, Expr) and isinstance(b, Expr) and len(a.terms) * len(b.terms) > MOST_TERMS:
        raise _Unreadable
    return a * b


def _times(a: Fraction, b: Fraction) -> Fraction:
    return _product(a[0], b[0]), a[1] * b[1]


def _plus(a: Fraction, b: Fraction) -> Fraction:
    return a[0] * b[1] + b[0] * a[1], a[1] * b[1]


def _minus(a: Fraction, b: Fraction) -> Fraction:
    return _plus(a, _times(b, (-1, 1)))


def _over(a: Fraction, b: Fraction) -> Fraction:
    """By a positive number, or by a size where that is exact."""
    numerator, denominator = a[0] * b[1], b[0]
    if isinstance(denominator, int) and denominator > 0:
        return numerator, a[1] * denominator
    exact = divide(numerator, denominator)
    if exact is None:
        raise _Unreadable
    return exact, a[1]


def _floor(a: Fraction) -> Fraction:
    return a[0] // a[1], 1


def _power(base: Fraction, exponent: int) -> Fraction:
    total = base
    for _ in range(exponent - 1):
        total = _times(total, base)
    return total


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: _plus,
    ast.Sub: _minus,
    ast.Mult: _times,
    ast.Div: _over,
    ast.FloorDiv: lambda a, b: _floor(_over(a, b)),
}
