"""ONNX's RotaryEmbedding of rows as sdort's operator."""

from typing import Any

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "fuse"
ANCHOR = "RotaryEmbedding"
BEFORE = """
g (float[B, S, C] x, float[A, T, H] cos, float[A, T, H] sin) => (float[B, S, C] y) {
    y = RotaryEmbedding <interleaved: int = @interleaved, num_heads: int = @heads> (x, cos, sin)
}"""
AFTER = """
g (float[] x, float[] cos, float[] sin) => (float[] y) {
    y = sdort.RotaryEmbedding <interleaved: int = @neighbours> (x, cos, sin)
}"""
EXAMPLE = {"B": 2, "S": 5, "T": 5, "C": 24, "H": 4, "A": 2, "interleaved": 1, "heads": 3}


def check(m: Match) -> Refusal | None:
    if m.attrs["interleaved"] not in (None, 0, 1):
        return refuse("neither neighbours nor halves are turned", m.attrs["interleaved"])
    size, width = m.known("H"), m.known("C")
    if size is None or width is None or width != 2 * size * (m.attrs["heads"] or 0):
        return refuse("not whole heads are turned", (m.dims["C"], m.attrs["heads"]))
    if m.dims["T"] != m.dims["S"] or m.dims["A"] not in (1, m.dims["B"]):
        return refuse("the tables are not of as many rows", (m.dims["A"], m.dims["T"]))
    return None


def derive(m: Match) -> dict[str, Any]:
    return {"neighbours": m.attrs["interleaved"] or 0}
