"""Attention with a mask that is added to the scores, or that says where they are replaced by a very low number.

torch writes 0 where softmax gives NaN: in rows that are masked completely, whose result is 0 in ONNX's Attention too.
"""

from itertools import product
from typing import Any

import numpy as np
from sdort.fusions.attention import check as check_sizes
from sdort.fusions.attention import concerns as concerns
from sdort.fusions.attention import derive as derive_scale

from sdort.rewrite.match import Match, Refusal, decline, refuse

STAGE = "raise"
ANCHOR = "Softmax"
RUN_AFTER = ("transpose_last_two", "safe_softmax", "attention_mask_sum")
_STRAIGHT = ("float[B, N, L, D] k", "[0, 1, 3, 2]", "", "k")
_TURNED = ("float[B, L, N, D] k", "[0, 2, 3, 1]", "heads = Transpose <perm = [0, 2, 1, 3]> (k)", "heads")
_BEFORE = """
g (float[B, N, S, D] q, {0}, float[B, N, L, E] v, {mask}) => (float[B, N, S, E] y)
<float scale, float low, float zero = {{0.0}}> {{
    kt = Transpose <perm = {1}> (k)
    {scores}
    {masking}
    p = Softmax <axis = -1> (masked)
    {end}
}}"""
_AFTER = """
g (float[B, N, S, D] q, {0}, float[B, N, L, E] v, {mask}{more}) => (float[B, N, S, E] y) {{
    {2}
    {made}
    y = Attention <scale: float = @factor> (q, {3}, v, {name})
}}"""
_SCORES = ("score = MatMul (q, kt)  logits = Mul (score, scale)", "logits = MatMul (q, kt)")
_ENDS = ("y = MatMul (p, v)", "bad = IsNaN (p)  safe = Where (bad, zero, p)  y = MatMul (safe, v)")
_FLOAT, _BOOL = "float[] mask", "bool[] open"
# Each: the mask, how the scores take it, the tensors that After adds, how it makes the mask, and the mask's name.
_MASKS = (
    (_FLOAT, "masked = Add (logits, mask)", "", "", "mask"),
    (_FLOAT, "masked = Sub (logits, mask)", "", "bias = Neg (mask)", "bias"),
    (_BOOL, "masked = Where (open, logits, low)", ", float low, float none", "bias = Where (open, none, low)", "bias"),
    (_BOOL, "masked = Where (open, low, logits)", ", float low, float none", "bias = Where (open, low, none)", "bias"),
)
_FORMS = tuple(product((_STRAIGHT, _TURNED), _SCORES, _MASKS, _ENDS))
BEFORE = tuple(_BEFORE.format(*k, mask=m[0], scores=s, masking=m[1], end=e) for k, s, m, e in _FORMS)
AFTER = tuple(_AFTER.format(*k, mask=m[0], more=m[2], made=m[3], name=m[4]) for k, _, m, _ in _FORMS)
EXAMPLE = {
    "B": 2, "N": 3, "S": 5, "L": 5, "D": 4, "E": 4, "scale": [0.3], "low": [-3e38],
    "mask": ([1, 1, 5, 5], "causal", [1, 1, 5, 5], [1, 1, 5, 5], None, None, None, None) * 4,
    "open": tuple(None if m[0] == _FLOAT else "causal" if m[1].endswith("low)") else "future" for _, _, m, _ in _FORMS),
}  # fmt: skip
ABSORBING = -1e30
"""To a number as low as this any score may be added, and it stays what it is."""


def check(m: Match) -> Refusal | None:
    name = "mask" if "mask" in m.tensors else "open"
    shape = m.editor.shape(m[name])
    if shape is None:
        return refuse("the mask's shape is not known", m[name].name)
    if not shape or shape[-1] != m.dims["L"]:
        return decline("one element of the mask is for all keys alike", list(shape))
    if name == "open" and not m.scalar("low") <= ABSORBING:
        return decline("a row of such scores alone would not be a row of equal ones", m.scalar("low"))
    refusal: Refusal | None = check_sizes(m)
    return refusal


def derive(m: Match) -> dict[str, Any]:
    none = np.zeros((), m.editor.dtype(m["q"]))
    return {**derive_scale(m), "none": m.editor.constant(none, "none")}
