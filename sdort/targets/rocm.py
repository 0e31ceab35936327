"""onnxruntime-rocm 1.22.2, kernels as registered in the wheel's provider library.

Opset 18: the library registers Resize and Pad up to version 18 only, so at a later opset they would silently fall to
the CPU; it loads IR version 10 at most.
"""

from sdort.targets.kernels import attention_on_rocm, bias_split_gelu, group_norm, nhwc_conv
from sdort.targets.target import Target, any_form

TARGET = Target(
    name="rocm",
    execution_provider="ROCMExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=True,
    kernels={
        "Attention": any_form,
        "BiasAdd": any_form,
        "BiasGelu": any_form,
        "BiasSplitGelu": bias_split_gelu,
        "FastGelu": any_form,
        "Gelu": any_form,
        "GroupNorm": group_norm,
        "MultiHeadAttention": attention_on_rocm,
        "NhwcConv": nhwc_conv,
        "QuickGelu": any_form,
        "SkipGroupNorm": group_norm,
        "SkipLayerNormalization": any_form,
    },
)
