"""Root mean square norms of heads and the RotaryEmbedding that turns them as sdort's operator, in one pass."""

from typing import Any

from sdort.fusions.sdort_rotary_embedding import check as turned_refusal

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "fuse"
ANCHOR = "RotaryEmbedding"
BEFORE = """
g (float[B, S, N, D] x, float[A, T, H] cos, float[A, T, H] sin) => (float[B, S, C] y)
    <float[D] scale, int64[3] shape> {
    normal = RMSNormalization <axis = -1, epsilon: float = @epsilon> (x, scale)
    rows = Reshape (normal, shape)
    y = RotaryEmbedding <interleaved: int = @interleaved, num_heads: int = @heads> (rows, cos, sin)
}"""
AFTER = """
g (float[] x, float[] scale, float[] cos, float[] sin, int64[3] flat) => (float[] y) {
    rows = Reshape (x, flat)
    y = sdort.RMSNormRotaryEmbedding <epsilon: float = @epsilon, interleaved: int = @neighbours>
        (rows, scale, cos, sin)
}"""
EXAMPLE = {
    "B": 2, "S": 5, "T": 5, "N": 3, "D": 8, "C": 24, "H": 4, "A": 2, "interleaved": 1, "heads": 3, "epsilon": 1e-5,
    "shape": [2, 5, 24],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    refusal: Refusal | None = turned_refusal(m)
    if refusal is not None:
        return refusal
    if (m.dims["D"], m.dims["N"]) != (2 * m.size("H"), m.attrs["heads"]):
        return refuse("not the heads are normalized that are turned", (m.dims["D"], m.dims["N"]))
    return None


def derive(m: Match) -> dict[str, Any]:
    return {"neighbours": m.attrs["interleaved"] or 0, "flat": m.editor.ints([0, 0, m.size("C")])}
