"""bf16: which targets compute in it, and how a model says that it was made for it.

MIGraphX rounds an fp32 model's weights and results to bf16 itself when it compiles it. Such a model is an fp32 model,
whose metadata says ``bf16``: :mod:`sdort.providers.bf16` sets the provider's option when it is opened.

No other target takes bf16 graphs. Kernels and their types: ONNX Runtime's docs/OperatorKernels.md for CUDA and the CPU,
the wheel's provider library for ROCm. Without the fused norms and convolutions a bf16 graph would be slower than an
fp16 graph with its islands.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from sdort.errors import BadModelError, UsageError
from sdort.onnx_io.component_file import read_component

KEY = "sdort.precision"
"""In the model's ``metadata_props``, with the value :data:`BF16`."""
BF16 = "bf16"

_INSTEAD = "Take --fp16 auto: it keeps in fp32 what fp16 cannot hold."
REASONS = {
    "rocm": (
        "onnxruntime-rocm 1.22.2 registers GroupNorm, SkipGroupNorm, NhwcConv, BiasAdd and BiasSplitGelu in fp32 and "
        "fp16 only",
        f"{_INSTEAD} For an AMD GPU also: --provider migraphx.",
    ),
    "cuda": (
        "onnxruntime-gpu 1.31 has bf16 kernels of MultiHeadAttention and Gelu, but of GroupNorm, SkipGroupNorm, "
        "NhwcConv, BiasAdd and BiasSplitGelu only fp32 and fp16",
        _INSTEAD,
    ),
    "cpu": ("ONNX Runtime's CPU provider has no bf16 arithmetic", _INSTEAD),
}
"""By target: why there is no bf16, and what to do."""


def refuse_bf16(provider: str) -> None:
    """Say why, where a target has no bf16.

    Raises:
        UsageError: it has none.
    """
    if provider in REASONS:
        reason, hint = REASONS[provider]
        raise UsageError(f"--bf16 is not possible for {provider}: {reason}", hint=hint)


def says_bf16(model: onnx.ModelProto) -> bool:
    """Whether a model was made for bf16."""
    return any(entry.key == KEY and entry.value == BF16 for entry in model.metadata_props)


def made_for_bf16(path: Path) -> bool:
    """:func:`says_bf16` of a file; what cannot be read was made for nothing, and who opens it says why."""
    try:
        return read_component(path).metadata.get(KEY) == BF16
    except BadModelError:
        return False
