"""WebGPU on any vendor's GPU, as the plugin onnxruntime-ep-webgpu brings it to any ONNX Runtime.

Kernels are those that version 0.4.0 registers itself. Its convolutions take channels-first tensors and turn them
themselves; group normalization is left in standard operators.
"""

from sdort.providers.provider import Option, Plugin, Provider, address, number, one_of, text
from sdort.providers.target import Target

TARGET = Target(
    name="webgpu",
    execution_provider="WebGpuExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=False,
    coarse_sines=True,  # SwiftShader's differ by 2e-4 from 0 to 1000
    # On SwiftShader, for heads of a size that is a multiple of 4; other sizes and fewer queries take another way, which
    # is right. Not tried on a GPU.
    doubted={
        "com.microsoft.MultiHeadAttention": "onnxruntime-ep-webgpu 0.4.0 gave an error of 0.8 to 1.3 standard "
        "deviations from 32 queries on, where it was tried"
    },
)

_BUFFERS = one_of("bucket", "disabled", "lazyRelease", "simple")
_CUSTOM = "It names an object of the running process, which no command line can know."

# The names that onnxruntime-ep-webgpu 0.4.0's library reads; it refuses other values, and goes on with other names as
# if they had not been given.
_OPTIONS: dict[str, Option] = {
    "dawnBackendType": one_of("Vulkan", "D3D12"),
    "dawnProcTable": address().owned_by(_CUSTOM),
    "defaultBufferCacheMode": _BUFFERS,
    "deviceId": number(0).owned_by(_CUSTOM),
    "enableGraphCapture": one_of("0", "1").owned_by(
        "Its graphs need all of a model on the GPU, and sizes are computed on the processor."
    ),
    "enableInt64": one_of("0", "1"),
    "enablePIXCapture": one_of("0", "1"),
    "enableRobustness": one_of("0", "1"),
    "forceCpuNodeNames": text(),
    "kvCacheQuantizationBits": one_of("0", "4", "8"),
    "maxNumPendingDispatches": Option("16", r"[1-9]\d*", "a whole number from 1 on"),
    "maxStorageBufferBindingSize": Option("0", r"\d+", "a whole number"),
    "multiRotaryCacheConcatOffset": Option("0", r"\d+", "a whole number"),
    "powerPreference": one_of("high-performance", "low-power"),
    "preferredLayout": one_of("NHWC", "NCHW"),
    "preserveDevice": one_of("0", "1"),
    "queryResolveBufferCacheMode": _BUFFERS,
    "sessionBufferPoolGenerations": Option("0", r"\d+", "a whole number"),
    "storageBufferCacheMode": _BUFFERS,
    "uniformBufferCacheMode": _BUFFERS,
    "validationMode": one_of("disabled", "wgpuOnly", "basic", "full"),
    "webgpuDevice": address().owned_by(_CUSTOM),
    "webgpuInstance": address().owned_by(_CUSTOM),
}

PLUGIN = Plugin(
    package="onnxruntime-ep-webgpu",
    execution_provider=TARGET.execution_provider,
    computes_on="GPUs with a driver for Vulkan, Direct3D 12 or Metal",
    options=_OPTIONS,
)

PROVIDER = Provider(
    TARGET,
    rank=510,
    package=PLUGIN.package,
    plugins=(PLUGIN,),
    on_request=True,
    rounds_as_gpus=True,
    # Two sessions that open or run at the same time end the process: a segmentation fault, or std::terminate.
    in_turn=True,
    no_graph="its graphs need all of a model on the GPU, and sizes are computed on the processor",
    no_bf16="WebGPU has no bf16 arithmetic",
    needs="Install the GPU's driver for Vulkan (on Linux; vulkaninfo shows it) and the plugin for this system, with an "
    "ONNX Runtime of at least 1.24.4.",
)
