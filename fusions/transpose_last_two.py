"""A transpose of the last two axes, written with the leading axes merged (torch's dynamo exporter, opset 18).

The leading axes may be others before they are merged, as of heads that were repeated.
"""

from typing import Any

from sdort.rewrite.match import Match, Refusal

STAGE = "raise"
ANCHOR = "Transpose"
_BEFORE = """
g ({0} x, int64[] merge, int64[] split) => (float[B, N, D, L] y) <float[M, L, D] merged> {{
    merged = Reshape (x, merge)
    turned = Transpose <perm = [0, 2, 1]> (merged)
    y = Reshape (turned, split)
}}"""
BEFORE = (_BEFORE.format("float[B, N, L, D]"), _BEFORE.format("float[]"))
AFTER = (
    "g (float[B, N, L, D] x) => (float[B, N, D, L] y) { y = Transpose <perm = [0, 1, 3, 2]> (x) }",
    """
g (float[] x, int64[4] sizes) => (float[B, N, D, L] y) {
    apart = Reshape (x, sizes)
    y = Transpose <perm = [0, 1, 3, 2]> (apart)
}""",
)
EXAMPLE = {
    "x": (None, [2, 3, 1, 5, 4]), "B": 2, "N": 3, "L": 5, "D": 4, "M": 6, "merge": [6, 5, 4], "split": [2, 3, 4, 5],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    sizes = _sizes(m)
    # Constant targets of the match's own views allow no two; computed ones might.
    return Refusal("two sizes are open", tuple(sizes), applicable=False) if sizes.count(-1) > 1 else None


def _sizes(m: Match) -> list[int]:
    """A Reshape target of the four axes: an open one that the input has in its place is copied."""
    before = m.editor.shape(m["x"]) or ()
    dims = [m.dims[name] for name in "BNLD"]
    copied = [0 if before[axis : axis + 1] == (size,) else -1 for axis, size in enumerate(dims)]
    return [size if isinstance(size, int) else other for size, other in zip(dims, copied, strict=True)]


def derive(m: Match) -> dict[str, Any]:
    return {"sizes": m.editor.ints(_sizes(m))}
