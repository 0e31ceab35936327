"""A channels-last image made twice as large by nearest neighbours, and the 3x3 convolution that reads it, in one.

Of the large image a 3x3 window covers 2x2 pixels of the small one, in four ways: one for each phase of its place (even
or odd row, even or odd column). So a 2x2 convolution of the small image with four times the filters, whose taps are
sums of the 3x3's, computes the same with 4/9 of the multiplications (https://arxiv.org/abs/1609.07009), and
sdort.InterleavePhases puts the four phases in their places.

A UNet's upsampler makes an image as large as a skip connection, of 2H rows or of 2H - 1. For an odd size the small
image's last row is there twice, from which InterleavePhases computes what the last row of the result has less.
"""

from typing import Any

import numpy as np

from sdort.graph.signature import Array
from sdort.graph.weights import Combined, Reshaped, Transposed, as_weight
from sdort.rewrite.match import Match, Refusal, decline

STAGE = "extend"
ANCHOR = "Resize"
_BEFORE = """
g (float[N, H, W, I] x{sizes}) => (float[N, P, Q, C] y)
<float[C, 3, 3, I] weight, float[N, P, Q, I] large{constants}> {{
    large = Resize <coordinate_transformation_mode: string = @coordinates, nearest_mode: string = @rounding> (x, {size})
    y = com.microsoft.NhwcConv <pads = [1, 1, 1, 1], strides: ints = @strides, dilations: ints = @dilations,
                                kernel_shape: ints = @kernel> (large, weight{bias})
}}"""
_SCALES = {"sizes": "", "size": ", scales"}
_SIZES = {"sizes": ", int64[4] sizes", "size": ", , sizes"}
_TWICE = ", float[4] scales = {1, 2, 2, 1}"
BEFORE = (
    _BEFORE.format(**_SCALES, bias=", bias", constants=f", float[C] bias{_TWICE}"),
    _BEFORE.format(**_SCALES, bias="", constants=_TWICE),
    _BEFORE.format(**_SIZES, bias=", bias", constants=", float[C] bias"),
    _BEFORE.format(**_SIZES, bias="", constants=""),
)
_AFTER = """
g (float[N, H, W, I] x{sizes}, float[F, 2, 2, I] filters, float[C] offset) => (float[N, P, Q, C] y) {constants} {{
    {padding}
    phases = com.microsoft.NhwcConv <pads = [1, 1, 1, 1], kernel_shape = [2, 2]> ({image}, filters)
    y = sdort.InterleavePhases (phases, offset, x)
}}"""
_EVEN = _AFTER.format(sizes="", constants="", padding="", image="x")
_ANY = _AFTER.format(
    sizes=", int64[4] sizes",
    constants="<int64[1] two = {2}, int64[4] sides = {0, 1, 1, 0}, int64[4] start = {0, 0, 0, 0}>",
    padding="""shape = Shape (x)
    doubled = Mul (shape, two)
    less = Sub (doubled, sizes)
    end = Mul (less, sides)
    pads = Concat <axis = 0> (start, end)
    image = Pad <mode = "edge"> (x, pads)""",
    image="image",
)
AFTER = (_EVEN, _EVEN, _ANY, _ANY)
EXAMPLE = {
    "N": 2, "H": 3, "W": 5, "I": 4, "P": (6, 6, 5, 6), "Q": (10, 10, 10, 9), "C": 8, "F": 32,
    "coordinates": "asymmetric", "rounding": "floor", "strides": [1, 1], "dilations": [1, 1], "kernel": [3, 3],
    "sizes": (None, None, [2, 5, 10, 4], [2, 6, 9, 4]),
}  # fmt: skip

_ALWAYS = ("asymmetric", "floor")
"""Settings of Resize that take pixel k // 2 for pixel k, at a size of 2H and of 2H - 1."""
TWICE_AS_LARGE = {_ALWAYS, ("asymmetric", "round_prefer_floor"), ("half_pixel", "round_prefer_floor")}
"""And those that do at 2H."""

TAPS = ((1, 0, 0), (0, 1, 1), (1, 1, 0), (0, 0, 1))
"""Of a row of three taps those that fall on the same pixel of the small image: even places' two, then odd places'."""


def phase_taps() -> Array:
    """The 3x3 taps of each 2x2 one: float64 [2, 2, 2, 2, 9], by phase of the row and column, then by tap of these."""
    taps = np.array(TAPS, np.float64)
    return np.kron(taps, taps).reshape(2, 2, 2, 2, 9).swapaxes(1, 2)


def concerns(editor: Any, anchor: Any) -> bool:
    return bool(anchor.attrs.get("mode", "nearest") == "nearest")


def check(m: Match) -> Refusal | None:
    # Strides and dilations other than 1 would change the size, and y is as large as what it is made of.
    sides = [(m.dims[small], m.dims[large]) for small, large in (("H", "P"), ("W", "Q"))]
    for small, large in sides:
        if (large + 1) // 2 != small:
            return decline("its image is not made twice as large", (small, large))
    settings = m.attrs["coordinates"], m.attrs["rounding"]
    twice = all(large == 2 * small for small, large in sides)
    if settings not in (TWICE_AS_LARGE if twice else {_ALWAYS}):
        return decline("its nearest neighbours are others than of pixel k pixel k // 2", settings)
    return None


def derive(m: Match) -> dict[str, Any]:
    weight = as_weight(m["weight"]._values)
    count, _, _, channels = weight.shape
    sums = Combined(Reshaped(weight, [count, 9, channels]), 1, phase_taps().reshape(16, 9).tolist())
    phases = Transposed(Reshaped(sums, [count, 4, 4 * channels]), [1, 0, 2])
    filters = m.editor.constant(Reshaped(phases, [4 * count, 2, 2, channels]), m["weight"].name)
    offset = m["bias"] if "bias" in m.tensors else m.editor.constant(np.zeros(count, weight.dtype), "no_bias")
    return {"filters": filters, "offset": offset}
