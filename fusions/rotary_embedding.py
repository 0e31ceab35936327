"""ONNX's RotaryEmbedding as ONNX Runtime's, which looks its tables up by the positions of the rows."""

from typing import Any

import numpy as np

from sdort.rewrite.match import Match, Refusal, refuse
from sdort.rewrite.rotary_tables import once_for_all

STAGE = "fuse"
ANCHOR = "RotaryEmbedding"
_BEFORE = """
g ({0} x, float[A, T, H] cos, float[A, T, H] sin) => ({0} y) {{
    y = RotaryEmbedding <interleaved: int = @interleaved, num_heads: int = @heads> (x, cos, sin)
}}"""
_LOOKED_UP = """
g ({0} x, float[T, H] cos, float[T, H] sin, int64[B, S] places) => ({0} y) {{
    y = RotaryEmbedding <interleaved: int = @interleaved, num_heads: int = @heads> (x, cos, sin, places)
}}"""
_ROWS = ("float[B, S, C]", "float[B, N, S, C]")
BEFORE = (*(_BEFORE.format(rows) for rows in _ROWS), *(_LOOKED_UP.format(rows) for rows in _ROWS))
_AFTER = """
g (float[] x, float[] c, float[] s, int64[] positions, int64[2] table) => (float[] y) {
    cos2 = Reshape (c, table)
    sin2 = Reshape (s, table)
    y = com.microsoft.RotaryEmbedding <interleaved: int = @interleaved> (x, positions, cos2, sin2)
}"""
_AFTER_LOOKED_UP = """
g (float[] x, float[] cos, float[] sin, int64[] places) => (float[] y) {
    y = com.microsoft.RotaryEmbedding <interleaved: int = @interleaved> (x, places, cos, sin)
}"""
AFTER = (_AFTER, _AFTER, _AFTER_LOOKED_UP, _AFTER_LOOKED_UP)
EXAMPLE = {
    "B": 2, "S": 5, "T": (5, 5, 7, 7), "N": 3, "C": (24, 8, 24, 8), "H": 4, "A": 2, "interleaved": 1,
    "heads": (3, None, 3, None), "places": [[0, 1, 2, 3, 4], [6, 5, 4, 3, 2]],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    size, heads = m.known("H"), m.dims.get("N", m.attrs["heads"])
    if size is None or m.dims["C"] != 2 * size * (1 if "N" in m.dims else heads or 0):
        return refuse("not whole heads are turned", (m.dims["C"], heads))
    if "places" in m.tensors:
        return None
    if m.dims["T"] != m.dims["S"] or m.dims["A"] not in (1, m.dims["B"]):
        return refuse("the tables are not of as many rows", (m.dims["A"], m.dims["T"]))
    open_sizes = [m.dims[name] for name in ("B", "S") if m.known(name) is None]
    if open_sizes and _once(m) is None:
        return refuse("images of an open number have angles of their own", tuple(open_sizes))
    return None


def _once(m: Match) -> tuple[Any, Any] | None:
    """The tables of one image that are those of all."""
    cos, sin = (once_for_all(m.editor, m[name]) for name in ("cos", "sin"))
    return None if cos is None or sin is None else (cos, sin)


def derive(m: Match) -> dict[str, Any]:
    made: dict[str, Any] = {"interleaved": m.attrs["interleaved"] or None}
    if "places" in m.tensors:
        return made
    tables = _once(m)
    if tables is None:
        tables = m["cos"], m["sin"]
        rows = np.arange(m.size("B") * m.size("S")).reshape(m.size("B"), m.size("S"))
        positions = m.editor.constant(rows, "positions")
    else:
        positions = m.editor.ints([0], "positions")
    return {**made, "c": tables[0], "s": tables[1], "positions": positions, "table": m.editor.ints([-1, m.size("H")])}
