"""RotaryEmbedding for targets without one: x cos + turned(x) sin, with the elements of each pair changed by a Gather.

The tables are as wide as a head here, with each angle twice, and the sines of the first elements negated: what computes
them is the same for all layers, and stands in the graph once.
"""

from typing import Any

import numpy as np

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "lower"
ANCHOR = "RotaryEmbedding"
_PAIRS = """
    c5 = Reshape (cos, parted)
    s5 = Reshape (sin, parted)
    n5 = Neg (s5)
    cc = Concat <axis = -1> (c5, c5)
    ss = Concat <axis = -1> (n5, s5)
    wide_cos = Reshape (cc, wide)
    wide_sin = Reshape (ss, wide)"""
_HALVES = """
    n = Neg (sin)
    cc = Concat <axis = -1> (cos, cos)
    ss = Concat <axis = -1> (n, sin)
    wide_cos = Reshape (cc, wide)
    wide_sin = Reshape (ss, wide)"""
_TURN = """
    straight = Mul ({0}, wide_cos)
    other = Gather <axis = -1> ({0}, order)
    crossed = Mul (other, wide_sin)"""
_BEFORE = """
g ({0} x, float[A, T, H] cos, float[A, T, H] sin) => ({0} y) {{
    y = RotaryEmbedding <interleaved = {1}, num_heads: int = @heads> (x, cos, sin)
}}"""
_AFTER_ROWS = """
g (float[B, S, C] x, float[A, T, H] cos, float[A, T, H] sin, int64[] parted, int64[4] wide, int64[] order,
   int64[4] by_head, int64[3] flat) => (float[B, S, C] y) {{
    {0}
    x4 = Reshape (x, by_head)
    {1}
    y4 = Add (straight, crossed)
    y = Reshape (y4, flat)
}}"""
_AFTER_HEADS = """
g (float[B, N, S, C] x, float[A, T, H] cos, float[A, T, H] sin, int64[] parted, int64[4] wide, int64[] order)
=> (float[B, N, S, C] y) {{
    {0}
    {1}
    y = Add (straight, crossed)
}}"""
_ROWS, _HEADS = "float[B, S, C]", "float[B, N, S, C]"
BEFORE = tuple(_BEFORE.format(form, pairs) for form in (_ROWS, _HEADS) for pairs in (1, 0))
AFTER = (
    *(_AFTER_ROWS.format(tables, _TURN.format("x4")) for tables in (_PAIRS, _HALVES)),
    *(_AFTER_HEADS.format(tables, _TURN.format("x")) for tables in (_PAIRS, _HALVES)),
)
EXAMPLE = {
    "B": 2, "S": 5, "T": 5, "N": 3, "C": (24, 24, 8, 8), "H": 4, "A": 2, "heads": (3, 3, None, None),
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    size, heads = m.known("H"), m.dims.get("N", m.attrs["heads"])
    if size is None or m.dims["C"] != 2 * size * (1 if "N" in m.dims else heads or 0):
        return refuse("not whole heads are turned", (m.dims["C"], heads))
    if m.dims["T"] != m.dims["S"] or m.dims["A"] not in (1, m.dims["B"]):
        return refuse("the tables are not of as many rows", (m.dims["A"], m.dims["T"]))
    return None


def derive(m: Match) -> dict[str, Any]:
    half = m.size("H")
    pairs = any(node.attrs.get("interleaved") for node in m.nodes.values())
    steps = np.arange(2 * half)
    order = steps ^ 1 if pairs else np.roll(steps, half)
    heads = m.dims.get("N", m.attrs["heads"])
    first = "N" in m.dims
    return {
        "parted": m.editor.ints([0, 0, half, 1]),
        "wide": m.editor.ints([0, 1, -1, 2 * half] if first else [0, -1, 1, 2 * half]),
        "order": m.editor.constant(order, "order"),
        "by_head": m.editor.ints([0, 0, heads if isinstance(heads, int) else -1, 2 * half]),
        "flat": m.editor.ints([0, 0, 2 * half * heads if isinstance(heads, int) else -1]),
    }
