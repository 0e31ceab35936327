"""Rotary embedding of neighbouring elements as diffusers writes it for Flux, x cos + turned(x) sin -> RotaryEmbedding.

turned(x) has -x[2i + 1] where x has x[2i], and x[2i] behind it (https://arxiv.org/abs/2104.09864). The tables are as
wide as a head, with each angle twice.
"""

from typing import Any

import onnx_graphsurgeon as gs

from sdort.rewrite.match import Match, Refusal, decline, refuse
from sdort.rewrite.rotary_tables import for_each, half_table

STAGE = "raise"
ANCHOR = "Neg"
_TURNED = """
    pairs = Reshape (x, apart)
    even, odd = Split <axis = -1, num_outputs = 2> (pairs)
    odd4 = Reshape (odd, inner)
    minus = Neg (odd4)
    minus5 = Reshape (minus, outer)
    swapped = Concat <axis = -1> (minus5, even)
    turned = Reshape (swapped, back)
    straight = Mul (x, cos)
    crossed = Mul (turned, sin)
    y = Add (straight, crossed)
"""
_SHAPES = ", int64[5] apart, int64[4] inner, int64[5] outer, int64[4] back"
BEFORE = (
    f"""
g (float[B, S, N, D] x, float[A, S, 1, D] cos, float[A, S, 1, D] sin{_SHAPES}) => (float[B, S, N, D] y)
<float[B, S, N, H, 2] pairs> {{ {_TURNED} }}""",
    f"""
g (float[B, N, S, D] x, float[A, 1, S, D] cos, float[A, 1, S, D] sin{_SHAPES}) => (float[B, N, S, D] y)
<float[B, N, S, H, 2] pairs> {{ {_TURNED} }}""",
)
_TABLES = "c3 = Reshape (c, table)  s3 = Reshape (s, table)"
AFTER = (
    f"""
g (float[B, S, N, D] x, float[] c, float[] s, int64[3] table, int64[3] flat, int64[4] by_head)
=> (float[B, S, N, D] y) {{
    rows = Reshape (x, flat)
    {_TABLES}
    rotated = RotaryEmbedding <interleaved: int = @interleaved, num_heads: int = @heads> (rows, c3, s3)
    y = Reshape (rotated, by_head)
}}""",
    f"""
g (float[B, N, S, D] x, float[] c, float[] s, int64[3] table) => (float[B, N, S, D] y) {{
    {_TABLES}
    y = RotaryEmbedding <interleaved: int = @interleaved> (x, c3, s3)
}}""",
)
EXAMPLE = {
    "B": 2, "S": 5, "N": 3, "D": 8, "A": 2, "H": 4, "cos": "pairs", "sin": "pairs",
    "apart": ([2, 5, 3, 4, 2], [2, 3, 5, 4, 2]), "inner": ([2, 5, 3, 4], [2, 3, 5, 4]),
    "outer": ([2, 5, 3, 4, 1], [2, 3, 5, 4, 1]), "back": ([2, 5, 3, 8], [2, 3, 5, 8]),
}  # fmt: skip
PAIRS = True


def check(m: Match) -> Refusal | None:
    return check_tables(m, PAIRS)


def check_tables(m: Match, pairs: bool) -> Refusal | None:
    """The reason against tables of full width, in which each angle has to be twice."""
    if m.known("N") is None or m.known("D") is None or m.size("D") % 2:
        return refuse("the heads are not fixed, or not of pairs", (m.dims["N"], m.dims["D"]))
    for name in ("cos", "sin"):
        if half_table(m.editor, m[name], pairs) is None:
            return decline("the two elements of a pair may have angles of their own", m[name].name)
    return None


def derive(m: Match) -> dict[str, Any]:
    return derive_tables(m, PAIRS)


def derive_tables(m: Match, pairs: bool) -> dict[str, Any]:
    """Tables of half the width, and whatever else :func:`derived` gives."""
    built = {name: half_table(m.editor, m[name], pairs) for name in ("cos", "sin")}
    return derived(m, {name: build() for name, build in built.items() if build is not None}, pairs)


def derived(m: Match, tables: dict[str, gs.Tensor], pairs: bool) -> dict[str, Any]:
    """The names of AFTER: tables for each image, the targets of views between heads and rows, the number of heads.

    Args:
        tables: cosines and sines of half the width.
    """
    heads, size = m.size("N"), m.size("D")
    each = {name[0]: for_each(m.editor, table, m.dims["B"], m["x"]) for name, table in tables.items()}
    return {
        **each,
        "interleaved": 1 if pairs else None,
        "heads": heads,
        "table": m.editor.ints([0, -1, size // 2]),
        "flat": m.editor.ints([0, 0, heads * size]),
        "by_head": m.editor.ints([0, 0, heads, size]),
    }
