"""GroupNormalization as exporters below opset 21 write it: an InstanceNormalization over the grouped channels.

y = gamma * (x - mean_g) / sqrt(var_g + epsilon) + beta, mean and variance over each group's channels and pixels
(https://arxiv.org/abs/1803.08494), of tensors with any number of axes behind the channels.
"""

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.weights import Reshaped, as_weight
from sdort.rewrite.decomposed import is_grouped
from sdort.rewrite.editor import Editor
from sdort.rewrite.match import Match, Refusal, decline, refuse

STAGE = "raise"
ANCHOR = "InstanceNormalization"
MUST_FUSE = True
RUN_AFTER = ("group_normalization_parts",)
_BEFORE = """
g (float[] x, int64[] group, int64[] ungroup) => (float[] y) <float[G] ones, float[G] zeros{0}> {{
    grouped = Reshape (x, group)
    normal = InstanceNormalization <epsilon: float = @epsilon> (grouped, ones, zeros)
    {1}
}}"""
BEFORE = tuple(
    _BEFORE.format(*form)
    for form in (
        (
            ", float[] gamma, float[] beta",
            "back = Reshape (normal, ungroup)  scaled = Mul (back, gamma)  y = Add (scaled, beta)",
        ),
        (", float[] gamma", "back = Reshape (normal, ungroup)  y = Mul (back, gamma)"),
        ("", "y = Reshape (normal, ungroup)"),
    )
)
# x may be another view of the same elements; grouping reads them in memory order, so y's own shape is the one to take.
AFTER = """
g (float[] x, int64[] ungroup, float[C] scale, float[C] shift) => (float[] y) {
    view = Reshape (x, ungroup)
    y = GroupNormalization <epsilon: float = @epsilon, num_groups: int = @groups> (view, scale, shift)
}"""
EXAMPLE = {
    "x": [2, 8, 3, 5], "G": 4, "epsilon": 1e-5, "group": [0, 4, -1],
    "ungroup": ([2, 8, 3, 5], [2, 8, 15], [2, 8, 3, 1, 5]),
    "gamma": (np.linspace(0.5, 1.5, 8).reshape(8, 1, 1), np.linspace(0.5, 1.5, 8).reshape(8, 1), None),
    "beta": np.linspace(-1, 1, 8).reshape(8, 1, 1), "ones": [1.0] * 4, "zeros": [0.0] * 4,
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    for name, expected in (("ones", 1), ("zeros", 0)):
        if not m.is_filled(name, expected):
            return refuse(f"the inner normalization's {name} are not all {expected}")
    shape, grouped = m.editor.shape(m["y"]), m.editor.shape(m["grouped"])
    if shape is None or grouped is None or len(shape) < 2 or len(grouped) < 3 or shape[0] != grouped[0]:
        return decline("its views do not group the channels of an image", (shape, grouped))
    groups, channels = m.known("G"), shape[1]
    if not groups or grouped[1] != groups or not isinstance(channels, int) or channels % groups:
        return decline("the channels are no multiple of the groups", (channels, m.dims["G"]))
    for name in ("gamma", "beta"):
        if name in m.tensors and not _is_by_channel(m.editor.shape(m[name]), len(shape), channels):
            # Without the parameter a smaller form matches, which does not ask for it.
            return Refusal(f"{name} is not one for each channel", m.editor.shape(m[name]), applicable=False)
    return None


def _is_by_channel(shape: Any, rank: int, channels: int) -> bool:
    """Whether a constant's elements broadcast along the channels of a tensor of ``rank`` axes."""
    whole = [1] * (rank - len(shape or ())) + list(shape or ())
    return whole == [1, channels, *[1] * (rank - 2)]


def derive(m: Match) -> dict[str, Any]:
    channels, dtype = (m.editor.shape(m["y"]) or ())[1], np.dtype(m.precision() or np.float32)
    assert isinstance(channels, int)  # check has seen it
    made: dict[str, Any] = {}
    for key, name, default in (("scale", "gamma", np.ones), ("shift", "beta", np.zeros)):
        flat = default(channels, dtype)
        values = Reshaped(as_weight(m[name]._values), [channels]) if name in m.tensors else flat
        made[key] = m.editor.constant(values, key)
    return {**made, "groups": m.dims["G"]}


def concerns(editor: Editor, anchor: gs.Node) -> bool:
    return is_grouped(anchor)
