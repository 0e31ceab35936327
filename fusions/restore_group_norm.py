"""ONNX Runtime's GroupNorm, as another tool has put it in: channels-last or not, with the SiLU behind it or without.

Its gamma and beta are fp32 whatever the image is; those of ONNX's GroupNormalization are what the image is.
"""

from itertools import product
from typing import Any

from onnx import helper

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "restore"
ANCHOR = "com.microsoft.GroupNorm"
RUN_AFTER = ("restore_skip_group_norm",)
_BEFORE = """g (float[N, S, T, U] x, float[C] gamma, float[C] beta) => (float[] y) {{
    y = com.microsoft.GroupNorm <activation = {activation}, channels_last = {last}, epsilon: float = @epsilon,
                                 groups: int = @groups> (x, gamma, beta)
}}"""
_AFTER = """g (float[N, S, T, U] x, float[C] gamma, float[C] beta) => (float[] y) {{
    scale = Cast <to: int = @own> (gamma)
    shift = Cast <to: int = @own> (beta)
    {enter}
    {normal} = GroupNormalization <epsilon: float = @epsilon, num_groups: int = @groups> ({image}, scale, shift)
    {silu}
    {leave}
}}"""
_FORMS = tuple(product((0, 1), (0, 1)))


def _after(activation: int, last: int) -> str:
    result = "planes_out" if last else "y"
    return _AFTER.format(
        enter="planes = Transpose <perm = [0, 3, 1, 2]> (x)" if last else "",
        image="planes" if last else "x",
        normal="normal" if activation else result,
        silu=f"gate = Sigmoid (normal)  {result} = Mul (normal, gate)" if activation else "",
        leave=f"y = Transpose <perm = [0, 2, 3, 1]> ({result})" if last else "",
    )


BEFORE = tuple(_BEFORE.format(activation=activation, last=last) for activation, last in _FORMS)
AFTER = tuple(_after(activation, last) for activation, last in _FORMS)
EXAMPLE = {
    "N": 2, "S": (8, 3, 8, 3), "T": 5, "U": (3, 8, 3, 8), "C": 8, "epsilon": 1e-3, "groups": 4,
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    groups, channels = m.attrs["groups"], m.known("C")
    if not isinstance(groups, int) or groups < 1 or (channels is not None and channels % groups):
        return refuse("the channels are no multiple of the groups", (m.dims["C"], groups))
    return None


def derive(m: Match) -> dict[str, Any]:
    return {"own": helper.np_dtype_to_tensor_dtype(m.editor.dtype(m["x"]))}
