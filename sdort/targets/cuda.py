"""onnxruntime-gpu, CUDA execution provider."""

from sdort.targets.kernels import bias_split_gelu, group_norm, multi_head_attention, nhwc_conv
from sdort.targets.target import Target, any_form

TARGET = Target(
    name="cuda",
    execution_provider="CUDAExecutionProvider",
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
        "MultiHeadAttention": multi_head_attention,
        "NhwcConv": nhwc_conv,
        "QuickGelu": any_form,
        "SkipGroupNorm": group_norm,
        "SkipLayerNormalization": any_form,
    },
)
