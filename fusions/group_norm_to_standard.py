"""A channels-last GroupNorm of a form that the target's kernel refuses: decomposed into mean and variance.

As in the kernel, all is computed in fp32: sums over an image exceed fp16's range. Of an fp32 graph no Cast is left.
"""

from typing import Any

import numpy as np

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "lower"
ANCHOR = "com.microsoft.GroupNorm"
BEFORE = """
g (float[N, H, W, C] x, float[C] gamma, float[C] beta) => (float[N, H, W, C] y) {
    y = com.microsoft.GroupNorm <activation = 0, channels_last = 1, epsilon: float = @epsilon, groups: int = @groups>
        (x, gamma, beta)
}"""
AFTER = """
g (float[N, H, W, C] x, float[C] gamma, float[C] beta, int64[4] by_group, float small) => (float[N, H, W, C] y)
<int64[2] axes = {1, 3}> {
    wide = Cast <to = 1> (x)
    grouped = Reshape (wide, by_group)
    mean = ReduceMean <keepdims = 1> (grouped, axes)
    centered = Sub (grouped, mean)
    square = Mul (centered, centered)
    variance = ReduceMean <keepdims = 1> (square, axes)
    shifted = Add (variance, small)
    deviation = Sqrt (shifted)
    normal = Div (centered, deviation)
    size = Shape (x)
    back = Reshape (normal, size)
    scaled = Mul (back, gamma)
    shifted_back = Add (scaled, beta)
    y = CastLike (shifted_back, x)
}"""
EXAMPLE = {"N": 2, "H": 3, "W": 5, "C": 8, "epsilon": 1e-5, "groups": 8}


def check(m: Match) -> Refusal | None:
    groups, channels = m.attrs["groups"], m.known("C")
    if channels is None:
        return refuse("the number of channels is not fixed", m.dims["C"])
    if isinstance(groups, int) and groups > 0 and channels % groups == 0:
        return None
    return refuse("the channels are no multiple of the groups", (channels, groups))


def derive(m: Match) -> dict[str, Any]:
    groups = m.attrs["groups"]
    small = np.array(m.attrs["epsilon"], np.float32)
    return {
        "by_group": m.editor.ints([0, -1, groups, m.size("C") // groups]),
        "small": m.editor.constant(small, "epsilon"),
    }
