"""Why no target takes bf16 graphs, each in a sentence, and what there is instead.

Kernels and their types: ONNX Runtime's docs/OperatorKernels.md for CUDA and the CPU, the wheel's provider library for
ROCm. Without the fused norms and convolutions a bf16 graph would be slower than an fp16 graph with its islands.
"""

from __future__ import annotations

from sdort.errors import UsageError

_INSTEAD = "Take --fp16 auto: it keeps in fp32 what fp16 cannot hold."
REASONS = {
    "rocm": (
        "onnxruntime-rocm 1.22.2 registers GroupNorm, SkipGroupNorm, NhwcConv, BiasAdd and BiasSplitGelu in fp32 and "
        "fp16 only",
        _INSTEAD,
    ),
    "cuda": (
        "onnxruntime-gpu 1.31 has bf16 kernels of MultiHeadAttention and Gelu, but of GroupNorm, SkipGroupNorm, "
        "NhwcConv, BiasAdd and BiasSplitGelu only fp32 and fp16",
        _INSTEAD,
    ),
    "migraphx": (
        "MIGraphX converts the fp32 model itself when it compiles it",
        "Optimize without --fp16, and run with --provider-option migraphx_bf16_enable=1.",
    ),
    "cpu": ("ONNX Runtime's CPU provider has no bf16 arithmetic", _INSTEAD),
}
"""By target: why there is no bf16, and what to do."""


def refuse_bf16(provider: str) -> None:
    """Say why.

    Raises:
        UsageError: always.
    """
    reason, hint = REASONS[provider]
    raise UsageError(f"--bf16 is not possible for {provider}: {reason}", hint=hint)
