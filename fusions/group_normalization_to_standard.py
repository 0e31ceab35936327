"""GroupNormalization for targets without it: the InstanceNormalization form, with the weights per channel."""

from typing import Any

import numpy as np

from sdort.rewrite.match import Match, Refusal, decline

STAGE = "lower"
ANCHOR = "GroupNormalization"
MUST_FUSE = True
BEFORE = """
g (float[] x, float[C] gamma, float[C] beta) => (float[] y) {
    y = GroupNormalization <epsilon: float = @epsilon, num_groups: int = @groups> (x, gamma, beta)
}"""
AFTER = """
g (float[] x, float[C] gamma, float[C] beta, float[G] ones, float[G] zeros, int64[3] group, int64[D] column)
=> (float[] y) {
    grouped = Reshape (x, group)
    normal = InstanceNormalization <epsilon: float = @epsilon> (grouped, ones, zeros)
    size = Shape (x)
    back = Reshape (normal, size)
    scale = Reshape (gamma, column)
    shift = Reshape (beta, column)
    scaled = Mul (back, scale)
    y = Add (scaled, shift)
}"""
EXAMPLE = {"x": [2, 8, 3, 5], "C": 8, "epsilon": 1e-5, "groups": 4}


def check(m: Match) -> Refusal | None:
    return decline("the image's rank is not known") if m.editor.shape(m["x"]) is None else None


def derive(m: Match) -> dict[str, Any]:
    groups, dtype = m.attrs["groups"], m.editor.dtype(m["x"])
    axes = len(m.editor.shape(m["x"]) or ()) - 2
    made = {"ones": np.ones(groups, dtype), "zeros": np.zeros(groups, dtype)}
    sizes = {"group": [0, groups, -1], "column": [-1, *[1] * axes]}
    return {k: m.editor.constant(v, k) for k, v in made.items()} | {k: m.editor.ints(v, k) for k, v in sizes.items()}
