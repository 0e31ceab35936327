"""onnxruntime-rocm 1.22.2, kernels as registered in the wheel's provider library.

Opset 18: the library registers Resize and Pad up to version 18 only, so at a later opset they would silently fall to
the CPU; it loads IR version 10 at most.
"""

from sdort.targets.kernels import attention_on_rocm, bias_split_gelu, group_norm, group_norm_of_two, nhwc_conv
from sdort.targets.provider import Provider
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
    own={"GroupNorm": group_norm_of_two},
)

# Option names: rocm_execution_provider_info.cc, 1.22.2.
PROVIDER = Provider(
    name="rocm",
    ep="ROCMExecutionProvider",
    library="libonnxruntime_providers_rocm.so",
    device="cuda",  # the Python API of a ROCm build names its memory so
    torch_device="cuda",
    options={"tunable_op_enable": "1"},
    tuning={
        "tunable_op_tuning_enable": "1",
        "miopen_conv_exhaustive_search": "1",
        "miopen_conv_use_max_workspace": "1",
    },
    graph={"enable_hip_graph": "1"},
    note="TunableOp is on: attention on ROCm does not run without it; --tuning also searches for the fastest kernels",
    needs="Install ROCm 7 (HIP, hipBLAS, MIOpen, hipFFT, rocm_smi, roctracer) or add its lib folder to "
    "LD_LIBRARY_PATH; check with rocminfo that the GPU is visible.",
)
