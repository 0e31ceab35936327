"""A number for each channel that is added to a convolution without a bias is its bias."""

from typing import Any

from sdort.graph.weights import Reshaped, as_weight
from sdort.rewrite.match import Match

STAGE = "raise"
ANCHOR = "Conv"
_SETTINGS = """<auto_pad: string = @auto_pad, dilations: ints = @dilations, group: int = @group,
    kernel_shape: ints = @kernel, pads: ints = @pads, strides: ints = @strides>"""
BEFORE = f"""g (float[N, I, H, W] x) => (float[N, C, P, Q] y) <float[C, D, K, L] weight, float[C, 1, 1] column> {{
    convolved = Conv {_SETTINGS} (x, weight)
    y = Add (convolved, column)
}}"""
AFTER = f"""g (float[N, I, H, W] x, float[C, D, K, L] weight, float[C] bias) => (float[N, C, P, Q] y) {{
    y = Conv {_SETTINGS} (x, weight, bias)
}}"""
EXAMPLE = {
    "N": 2, "I": 4, "H": 5, "W": 6, "C": 8, "D": 2, "K": 3, "L": 1, "P": 3, "Q": 6, "auto_pad": "NOTSET",
    "dilations": [1, 1], "group": 2, "kernel": [3, 1], "pads": [1, 0, 1, 0], "strides": [2, 1],
}  # fmt: skip


def concerns(editor: object, anchor: object) -> bool:
    """Most convolutions have their bias, or none."""
    return False


def derive(m: Match) -> dict[str, Any]:
    return {"bias": m.editor.constant(Reshaped(as_weight(m["column"]._values), [m.size("C")]), m["column"].name)}
