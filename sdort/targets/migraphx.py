"""onnxruntime-migraphx 1.27.1: the operators on its execution provider's own list.

MIGraphX fuses standard graphs itself, so what its list lacks (SkipGroupNorm, BiasSplitGelu, BiasAdd) stays in standard
operators, in channels-first.
"""

from sdort.targets.kernels import attention_on_rocm, unpacked_attention
from sdort.targets.target import NodeView, Target, any_form


def _attention(view: NodeView) -> str | None:
    return unpacked_attention(view) or attention_on_rocm(view)


TARGET = Target(
    name="migraphx",
    execution_provider="MIGraphXExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=False,
    kernels={
        "BiasGelu": any_form,
        "FastGelu": any_form,
        "MultiHeadAttention": _attention,
        "QuickGelu": any_form,
        "SkipLayerNormalization": any_form,
    },
)
