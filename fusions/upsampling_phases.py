"""An image made twice as large by nearest neighbours, and the 3x3 convolution that reads it: four 2x2 ones, on the CPU.

:mod:`sdort.fusions.upsampling_convolution` channels-first and in standard operators: each phase of a pixel's place is a
convolution of the small image with its own pads, and DepthToSpace puts the four side by side. One convolution with four
times the filters would pad all phases alike, and cutting its border off is another pass over the large image.

The filters are one weight, which ONNX Runtime splits when it opens the graph: of all its sums an adapter finds the 3x3
filters again, of one phase's it does not.
"""

from typing import Any

from sdort.fusions.upsampling_convolution import TWICE_AS_LARGE, phase_taps

from sdort.graph.weights import Combined, Reshaped, Transposed, as_weight
from sdort.rewrite.match import Match, Refusal, decline

STAGE = "fuse"
ANCHOR = "Resize"
PROVIDERS = ("cpu",)
_BEFORE = """
g (float[N, I, H, W] x{sizes}) => (float[N, C, P, Q] y)
<float[C, I, 3, 3] weight, float[N, I, P, Q] large{constants}> {{
    large = Resize <coordinate_transformation_mode: string = @coordinates, nearest_mode: string = @rounding> (x, {size})
    y = Conv <pads = [1, 1, 1, 1], strides: ints = @strides, dilations: ints = @dilations,
              kernel_shape: ints = @kernel> (large, weight{bias})
}}"""
_SCALES = {"sizes": "", "size": ", scales"}
_SIZES = {"sizes": ", int64[4] sizes", "size": ", , sizes"}
_TWICE = ", float[4] scales = {1, 1, 2, 2}"
BEFORE = (
    _BEFORE.format(**_SCALES, bias=", bias", constants=f", float[C] bias{_TWICE}"),
    _BEFORE.format(**_SCALES, bias="", constants=_TWICE),
    _BEFORE.format(**_SIZES, bias=", bias", constants=", float[C] bias"),
    _BEFORE.format(**_SIZES, bias="", constants=""),
)
_AFTER = """
g (float[N, I, H, W] x, float[C, F, 2, 2] filters) => (float[N, C, P, Q] y) {constants} {{
    w00, w01, w10, w11 = Split <axis = 1, num_outputs = 4> (filters)
    y00 = Conv <pads = [1, 1, 0, 0], kernel_shape = [2, 2]> (x, w00{bias})
    y01 = Conv <pads = [1, 0, 0, 1], kernel_shape = [2, 2]> (x, w01{bias})
    y10 = Conv <pads = [0, 1, 1, 0], kernel_shape = [2, 2]> (x, w10{bias})
    y11 = Conv <pads = [0, 0, 1, 1], kernel_shape = [2, 2]> (x, w11{bias})
    phases = Concat <axis = 1> (y00, y01, y10, y11)
    y = DepthToSpace <blocksize = 2> (phases)
}}"""
_BIASED, _PLAIN = _AFTER.format(constants="<float[C] bias>", bias=", bias"), _AFTER.format(constants="", bias="")
AFTER = (_BIASED, _PLAIN, _BIASED, _PLAIN)
EXAMPLE = {
    "N": 2, "H": 3, "W": 5, "I": 4, "P": 6, "Q": 10, "C": 8, "F": 16,
    "coordinates": "asymmetric", "rounding": "floor", "strides": [1, 1], "dilations": [1, 1], "kernel": [3, 3],
    "sizes": (None, None, [2, 4, 6, 10], [2, 4, 6, 10]),
}  # fmt: skip


def concerns(editor: Any, anchor: Any) -> bool:
    return bool(anchor.attrs.get("mode", "nearest") == "nearest")


def check(m: Match) -> Refusal | None:
    # Strides and dilations other than 1 would change the size, and y is as large as what it is made of.
    for small, large in (("H", "P"), ("W", "Q")):
        if m.dims[large] != 2 * m.dims[small]:
            return decline("its image is not always made twice as large", (m.dims[small], m.dims[large]))
    if (settings := (m.attrs["coordinates"], m.attrs["rounding"])) not in TWICE_AS_LARGE:
        return decline("its nearest neighbours are others than of pixel k pixel k // 2", settings)
    return None


def derive(m: Match) -> dict[str, Any]:
    weight = as_weight(m["weight"]._values)
    count, channels, *_ = weight.shape
    sums = Combined(Reshaped(weight, [count, channels, 9]), 2, phase_taps().reshape(16, 9).tolist())
    phases = Transposed(Reshaped(sums, [count, channels, 4, 4]), [0, 2, 1, 3])
    return {"filters": m.editor.constant(Reshaped(phases, [count, 4 * channels, 2, 2]), m["weight"].name)}
