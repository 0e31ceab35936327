"""GroupNormalization as exporters below opset 21 write it: an InstanceNormalization over the grouped channels.

y = gamma * (x - mean_g) / sqrt(var_g + epsilon) + beta, mean and variance over each group's channels and pixels
(https://arxiv.org/abs/1803.08494).
"""

from typing import Any

from sdort.model.weights import Reshaped, as_weight
from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "raise"
ANCHOR = "InstanceNormalization"
MUST_FUSE = True
_BODY = """
    grouped = Reshape (x, group)
    normal = InstanceNormalization <epsilon: float = @epsilon> (grouped, ones, zeros)
    back = Reshape (normal, ungroup)
    scaled = Mul (back, gamma)
    y = Add (scaled, beta)
}"""
_IMAGE = """
g (float[] x, int64[] group, int64[] ungroup) => (float[N, C, H, W] y)
<float[G] ones, float[G] zeros, float[C, 1, 1] gamma, float[C, 1, 1] beta, float[N, G, K] grouped> {"""
_SEQUENCE = """
g (float[] x, int64[] group, int64[] ungroup) => (float[N, C, S] y)
<float[G] ones, float[G] zeros, float[C, 1] gamma, float[C, 1] beta, float[N, G, K] grouped> {"""
BEFORE = (_IMAGE + _BODY, _SEQUENCE + _BODY)
# x may be another view of the same elements; grouping reads them in memory order, so y's own shape is the one to take.
AFTER = """
g (float[] x, int64[] ungroup, float[C] scale, float[C] shift) => (float[] y) {
    view = Reshape (x, ungroup)
    y = GroupNormalization <epsilon: float = @epsilon, num_groups: int = @groups> (view, scale, shift)
}"""
EXAMPLE = {
    "x": [2, 8, 3, 5], "N": 2, "C": 8, "H": 3, "W": 5, "S": 15, "G": 4, "K": 30, "epsilon": 1e-5, "group": [0, 4, -1],
    "ungroup": ([2, 8, 3, 5], [2, 8, 15]),
    "ones": [1.0] * 4, "zeros": [0.0] * 4,
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    for name, expected in (("ones", 1), ("zeros", 0)):
        values = m.array(name)
        if values is None or not (values == expected).all():
            return refuse(f"the inner normalization's {name} are not all {expected}", values)
    return None


def derive(m: Match) -> dict[str, Any]:
    flat = {k: Reshaped(as_weight(m[n]._values), [m.size("C")]) for k, n in (("scale", "gamma"), ("shift", "beta"))}
    return {**{k: m.editor.constant(w, k) for k, w in flat.items()}, "groups": m.dims["G"]}
