"""ONNX Runtime's rotary embeddings, as another tool has put them in, are ONNX's RotaryEmbedding."""

from itertools import product
from typing import Any

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "restore"
ANCHOR = "com.microsoft.RotaryEmbedding"
_BEFORE = """
g ({0} x, float[T, H] cos, float[T, H] sin{1}) => ({0} y) {2} {{
    y = com.microsoft.RotaryEmbedding <interleaved: int = @interleaved, num_heads: int = @number,
        rotary_embedding_dim: int = @turned, is_packed_batching: int = @packed, scale: float = @scale>
        (x, places, cos, sin)
}}"""
_AFTER = "y = RotaryEmbedding <interleaved: int = @interleaved, num_heads: int = @heads> "
_LOOKED_UP = f"""
g ({{0}} x, float[T, H] cos, float[T, H] sin, int64[B, S] places) => ({{0}} y) {{{{
    {_AFTER} (x, cos, sin, places)
}}}}"""
_FROM_FIRST = f"""
g ({{0}} x, float[T, H] cos, float[T, H] sin, int64[1] first, int64[2] ones) => ({{0}} y) {{{{
    count = Shape <start = 0, end = 1> (x)
    sizes = Concat <axis = 0> (count, ones)
    c1 = Unsqueeze (cos, first)
    s1 = Unsqueeze (sin, first)
    c3 = Expand (c1, sizes)
    s3 = Expand (s1, sizes)
    {_AFTER} (x, c3, s3)
}}}}"""
_ROWS = ("float[B, S, C]", "float[B, N, S, C]")
_PLACES = ((", int64[B, S] places", "", _LOOKED_UP), ("", "<int64[1] places = {0}>", _FROM_FIRST))
BEFORE = tuple(_BEFORE.format(rows, *places[:2]) for rows, places in product(_ROWS, _PLACES))
AFTER = tuple(places[2].format(rows) for rows, places in product(_ROWS, _PLACES))
EXAMPLE = {
    "B": 2, "S": 5, "T": (7, 5, 7, 5), "N": 3, "C": (24, 24, 8, 8), "H": 4, "interleaved": 1, "number": 3,
    "turned": 8, "packed": 0, "scale": 1.0, "places": [[0, 1, 2, 3, 4], [6, 5, 4, 3, 2]],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    if m.attrs["packed"] or m.attrs["scale"] not in (None, 1):
        return refuse("rotary embeddings of packed batches, or of a scale, are not known")
    if m.known("H") is None or m.known("C") is None or m.attrs["turned"] not in (None, 0, 2 * m.size("H")):
        return refuse("heads are not turned as a whole", m.attrs["turned"])
    if "N" not in m.dims and m.attrs["turned"] and m.size("C") != 2 * m.size("H") * (m.attrs["number"] or 0):
        return refuse("not the heads are turned that there are", m.attrs["number"])
    if "N" in m.dims and m.size("C") != 2 * m.size("H"):
        return refuse("the tables are not of a head's size", (m.dims["C"], m.dims["H"]))
    if m["places"].shape == (1,) and m.dims["T"] != m.dims["S"]:
        return refuse("the tables have more rows than the input", (m.dims["T"], m.dims["S"]))
    return None


def derive(m: Match) -> dict[str, Any]:
    heads = None if "N" in m.dims else m.size("C") // (2 * m.size("H"))
    return {"heads": heads, "first": m.editor.ints([0]), "ones": m.editor.ints([1, 1])}
