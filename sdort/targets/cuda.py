"""onnxruntime-gpu, CUDA execution provider."""

from sdort.targets.kernels import bias_split_gelu, group_norm, group_norm_of_two, multi_head_attention, nhwc_conv
from sdort.targets.provider import Provider
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
    own={"GroupNorm": group_norm_of_two},
)

# Option names: cuda_execution_provider_info.cc, 1.31.1.
PROVIDER = Provider(
    name="cuda",
    ep="CUDAExecutionProvider",
    library="libonnxruntime_providers_cuda.so",
    device="cuda",
    torch_device="cuda",
    graph={"enable_cuda_graph": "1"},
    needs="Install the CUDA and cuDNN libraries that this onnxruntime-gpu was built for "
    "(pip install 'onnxruntime-gpu[cuda,cudnn]'); check with nvidia-smi that the GPU is visible.",
)
