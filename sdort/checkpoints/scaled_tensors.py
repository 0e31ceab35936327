"""Weights of 8 bits with scales beside them, as ComfyUI reads and writes them: described as what they stand for.

A layer's ``scale_weight`` or ``weight_scale`` is what its weight is multiplied by: one number, or one for each row. A
layer without one is taken as it is. ComfyUI's ``comfy/quant_ops.py``; Comfy-Org's files have ``comfy_quant`` beside
them, which names the format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from sdort.errors import BadModelError
from sdort.graph.weights import Cast, Dequantized, Reshaped, Stored, Weight

_SCALES = (".scale_weight", ".weight_scale")
_UNREAD = re.compile(r"(.+\.)?(scaled_fp8|scale_input|input_scale|comfy_quant)")
"""Marks, and scales of what a layer takes: fp32 needs none."""
_FP8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))


def dequantized(tensors: Mapping[str, Stored]) -> dict[str, Weight]:
    """The tensors of a file without scales: those of 8 bits as expressions in fp32, the others as they are.

    Raises:
        BadModelError: a scale is of no weight of 8 bits, or of another number of rows.
    """
    found: dict[str, Weight] = {}
    scales = {name: tensor for name, tensor in tensors.items() if name.endswith(_SCALES)}
    if other := next((name for name in tensors if name.endswith(".weight_scale_2")), None):
        raise _strange(other, "is a scale of scales")
    for name, tensor in tensors.items():
        if name in scales or _UNREAD.fullmatch(name):
            continue
        layer = name.removesuffix(".weight")
        scale = next((each for end in _SCALES if name != layer and (each := scales.pop(layer + end, None))), None)
        if scale is None:
            found[name] = Cast(tensor, np.float32) if tensor.dtype in _FP8 else tensor
        else:
            found[name] = _scaled(name, tensor, scale)
    if scales:
        raise _strange(next(iter(scales)), "is a scale without a weight")
    return found


def _scaled(name: str, tensor: Stored, scale: Stored) -> Weight:
    if tensor.dtype not in _FP8:
        raise _strange(name, f"has a scale beside it, and is stored as {tensor.dtype}")
    count = math.prod(scale.shape)
    if scale.dtype.kind not in "fV" or scale.dtype in _FP8 or count not in (1, tensor.shape[0] if tensor.shape else 1):
        raise _strange(name, f"of shape {list(tensor.shape)} has a scale of shape {list(scale.shape)}")
    return Dequantized(tensor, Cast(Reshaped(scale, (count,)), np.float32), None, 0)


def _strange(name: str, what: str) -> BadModelError:
    return BadModelError(
        f"its tensor {name!r} {what}: a quantized format that sdort does not read",
        hint="Get the same model in float32, float16, bfloat16, or as fp8 with one scale a layer.",
    )
