"""An image flattened to a sequence: [N, C, H*W] turned to [N, H*W, C] is the channels-last image, flattened."""

from typing import Any

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "raise"
ANCHOR = "Transpose"
RUN_AFTER = ("group_normalization_sequence",)
BEFORE = """
g (float[N, C, H, W] x, int64[] flat) => (float[N, S, C] y) <float[N, C, S] f> {
    f = Reshape (x, flat)
    y = Transpose <perm = [0, 2, 1]> (f)
}"""
AFTER = """
g (float[N, C, H, W] x, int64[3] target) => (float[N, S, C] y) {
    last = Transpose <perm = [0, 2, 3, 1]> (x)
    y = Reshape (last, target)
}"""
EXAMPLE = {"N": 2, "C": 4, "H": 3, "W": 5, "S": 15, "flat": [2, 4, -1]}


def check(m: Match) -> Refusal | None:
    return None if m.known("C") else refuse("the number of channels is not fixed", m.dims["C"])


def derive(m: Match) -> dict[str, Any]:
    return {"target": m.editor.ints([0, -1, m.size("C")])}
