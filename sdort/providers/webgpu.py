"""WebGPU of any vendor's GPU: onnxruntime-ep-webgpu 0.4.0, kernels as it registers them itself.

Its convolutions take channels-first tensors and turn them itself. It has no group normalization.
"""

from sdort.providers.provider import Provider
from sdort.providers.target import Target

TARGET = Target(
    name="webgpu",
    execution_provider="WebGpuExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=False,
    # On SwiftShader, where the heads have a size of a multiple of 4; other sizes and fewer queries take another way,
    # which is right. Not tried on a GPU.
    doubted={
        "com.microsoft.MultiHeadAttention": "onnxruntime-ep-webgpu 0.4.0 gave an error of 0.8 to 1.3 standard "
        "deviations from 32 queries on, where it was tried"
    },
)

PROVIDER = Provider(
    TARGET,
    rank=50,
    package="onnxruntime-ep-webgpu",
    no_graph="its graphs need all of a model on the GPU, and sizes are computed on the processor",
    no_bf16="WebGPU has no bf16 arithmetic",
    needs="Install a Vulkan driver of the GPU (on Linux), and check that vulkaninfo lists it.",
)
