"""The inner part of a group normalization, taken apart into mean and variance, as an InstanceNormalization."""

from typing import Any

import numpy as np
from sdort.fusions.layer_normalization import CENTERED

from sdort.rewrite.match import Match, Refusal, decline

STAGE = "raise"
ANCHOR = "ReduceMean"
RUN_AFTER = ("norm_square", "norm_root", "norm_division")
_BEFORE = """
g (float[] x, int64[] group, int64[] ungroup) => (float[] y) <float epsilon, int64[] axes> {{
    grouped = Reshape (x, group)
    mean = ReduceMean <keepdims = 1> (grouped, axes)
    {0}
    square = Mul ({1}, {1})
    variance = ReduceMean <keepdims = 1> (square, axes)
    shifted = Add (variance, epsilon)
    deviation = Sqrt (shifted)
    normal = Div (centered, deviation)
    y = Reshape (normal, ungroup)
}}"""
BEFORE = tuple(_BEFORE.format(lines.format(x="grouped"), squared) for lines, squared in CENTERED)
AFTER = """
g (float[] x, int64[] group, int64[] ungroup, float[G] ones, float[G] zeros) => (float[] y) {
    grouped = Reshape (x, group)
    normal = InstanceNormalization <epsilon: float = @eps> (grouped, ones, zeros)
    y = Reshape (normal, ungroup)
}"""
EXAMPLE = {
    "x": [2, 8, 3, 5], "group": [2, 4, 30], "ungroup": [2, 8, 3, 5], "axes": [-1], "epsilon": [1e-5],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    shape, grouped, axes = m.editor.shape(m["y"]), m.editor.shape(m["grouped"]), m.editor.dims(m["axes"])
    if shape is None or grouped is None or axes is None or len(shape) < 3 or shape[0] != grouped[0]:
        return decline("its views do not group the channels of an image", (shape, grouped))
    rank, groups, channels = len(grouped), grouped[1] if len(grouped) > 1 else None, shape[1]
    places = sorted(axis % rank for axis in axes if isinstance(axis, int))
    if rank < 3 or places != list(range(2, rank)):
        return decline("the mean is not over all axes behind the groups", list(axes))
    if not isinstance(groups, int) or not isinstance(channels, int) or channels % groups:
        return decline("the channels are no multiple of the groups", (channels, groups))
    return None


def derive(m: Match) -> dict[str, Any]:
    groups, dtype = (m.editor.shape(m["grouped"]) or ())[1], np.dtype(m.precision() or np.float32)
    assert isinstance(groups, int)  # check has seen it
    made = {"ones": np.ones(groups, dtype), "zeros": np.zeros(groups, dtype)}
    return {"eps": m.scalar("epsilon")} | {name: m.editor.constant(values, name) for name, values in made.items()}
