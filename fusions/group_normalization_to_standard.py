"""GroupNormalization for targets without it: the InstanceNormalization form, with the weights per channel."""

from typing import Any

from sdort.rewrite.match import Match
from sdort.weights import Reshaped, as_weight

STAGE = "lower"
ANCHOR = "GroupNormalization"
MUST_FUSE = True
BEFORE = (
    """
g (float[N, C, H, W] x) => (float[N, C, H, W] y) <float[C] gamma, float[C] beta> {
    y = GroupNormalization <epsilon: float = @epsilon, num_groups: int = @groups> (x, gamma, beta)
}""",
    """
g (float[N, C, S] x) => (float[N, C, S] y) <float[C] gamma, float[C] beta> {
    y = GroupNormalization <epsilon: float = @epsilon, num_groups: int = @groups> (x, gamma, beta)
}""",
)
AFTER = """
g (float[] x, float[G] ones, float[G] zeros, float[] scale, float[] shift, int64[3] group) => (float[] y) {
    grouped = Reshape (x, group)
    normal = InstanceNormalization <epsilon: float = @epsilon> (grouped, ones, zeros)
    size = Shape (x)
    back = Reshape (normal, size)
    scaled = Mul (back, scale)
    y = Add (scaled, shift)
}"""
EXAMPLE = {"N": 2, "C": 8, "H": 3, "W": 5, "S": 15, "epsilon": 1e-5, "groups": 4}


def derive(m: Match) -> dict[str, Any]:
    import numpy as np

    groups = m.attrs["groups"]
    dtype = m.editor.dtype(m["x"])
    spatial = [1] * (2 if "H" in m.dims else 1)
    made = {"ones": np.ones(groups, dtype), "zeros": np.zeros(groups, dtype)}
    made |= {
        new: Reshaped(as_weight(m[old]._values), [*m[old].shape, *spatial])
        for new, old in (("scale", "gamma"), ("shift", "beta"))
    }
    return {**{k: m.editor.constant(v, k) for k, v in made.items()}, "group": m.editor.ints([0, groups, -1])}
