"""Rotary embedding as a complex product of pairs, in real numbers, as Z-Image and Lumina write it -> RotaryEmbedding.

(a + b i) (cos + i sin) for each pair of elements (https://arxiv.org/abs/2104.09864), which are neighbours, or half a
head apart. The tables are half as wide as a head.
"""

from itertools import product
from typing import Any

from sdort.fusions.rotary_pairs import AFTER as _AFTER
from sdort.fusions.rotary_pairs import derived

from sdort.rewrite.match import Match, Refusal, decline, refuse

STAGE = "raise"
ANCHOR = "Sub"
_PRODUCT = """
    c = Mul (a, cos)
    d = Mul (b, sin)
    real = Sub (c, d)
    e = Mul (a, sin)
    f = Mul (b, cos)
    imaginary = Add (e, f)
"""
_PAIRS = """
    pairs = Reshape (x, apart)
    a5, b5 = Split <axis = -1, num_outputs = 2> (pairs)
    a = Reshape (a5, inner)
    b = Reshape (b5, inner)
    {0}
    real5 = Reshape (real, outer)
    imaginary5 = Reshape (imaginary, outer)
    joined = Concat <axis = -1> (real5, imaginary5)
    y = Reshape (joined, back)
"""
_HALVES = """
    a, b = Split <axis = -1, num_outputs = 2> (x)
    {0}
    y = Concat <axis = -1> (real, imaginary)
"""
_SHAPES = """<float[B, {0}, H, 2] pairs, float[B, {0}, H] a, float[B, {0}, H] b, float[B, {0}, H, 1] real5,
float[B, {0}, H, 1] imaginary5>"""
_TARGETS = ", int64[5] apart, int64[4] inner, int64[5] outer, int64[4] back"
_BEFORE = """
g (float[B, {0}, D] x, float[A, {1}, H] cos, float[A, {1}, H] sin{2}) => (float[B, {0}, D] y) {3} {{ {4} }}"""
_LAYOUTS = (("S, N", "S, 1"), ("N, S", "1, S"))
_FORMS = ((_TARGETS, _SHAPES, _PAIRS.format(_PRODUCT)), ("", "", _HALVES.format(_PRODUCT)))
BEFORE = tuple(
    _BEFORE.format(x, table, more, inner.format(x), lines)
    for (x, table), (more, inner, lines) in product(_LAYOUTS, _FORMS)
)
AFTER = tuple(text for text in _AFTER for _ in _FORMS)
EXAMPLE = {
    "B": 2, "S": 5, "N": 3, "D": 8, "A": 2, "H": 4, "apart": ([2, 5, 3, 4, 2], None, [2, 3, 5, 4, 2], None),
    "inner": ([2, 5, 3, 4], None, [2, 3, 5, 4], None), "outer": ([2, 5, 3, 4, 1], None, [2, 3, 5, 4, 1], None),
    "back": ([2, 5, 3, 8], None, [2, 3, 5, 8], None),
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    if m.known("N") is None or m.known("D") is None or m.known("H") is None:
        return refuse("the heads are not fixed", (m.dims["N"], m.dims["D"]))
    if 2 * m.size("H") != m.size("D"):
        return decline("the tables are not of one angle for each pair", (m.size("H"), m.size("D")))
    return None


def derive(m: Match) -> dict[str, Any]:
    found: dict[str, Any] = derived(m, {"cos": m["cos"], "sin": m["sin"]}, pairs="pairs" in m.tensors)
    return found
