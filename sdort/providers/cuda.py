"""onnxruntime-gpu, CUDA execution provider."""

from sdort.providers.kernels import argmax_of_floats
from sdort.providers.provider import NO_LIMIT, Option, Provider, address, flag, number, one_of
from sdort.providers.target import Target

TARGET = Target(
    name="cuda",
    execution_provider="CUDAExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=True,
    forms={"ArgMax": argmax_of_floats},
)

# What onnxruntime-gpu 1.31.1's own get_provider_options() returns, and one that it takes and does not return.
_OPTIONS: dict[str, Option] = {
    "arena_extend_strategy": one_of("kNextPowerOfTwo", "kSameAsRequested"),
    "cudnn_conv1d_pad_to_nc1d": flag(False),
    "cudnn_conv_algo_search": one_of("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "cudnn_conv_use_max_workspace": flag(True),
    "device_id": number(0).owned_by("Use --device-id."),
    "do_copy_in_default_stream": flag(True),
    "enable_cuda_graph": flag(False).owned_by("Use --graph."),
    "enable_cudnn": flag(True),
    "enable_skip_layer_norm_strict_mode": flag(False),
    "external_data_loader_reading_threads": number(4),
    "fuse_conv_bias": flag(False),
    "gpu_external_alloc": address(),
    "gpu_external_empty_cache": address(),
    "gpu_external_free": address(),
    "gpu_mem_limit": number(NO_LIMIT),
    "has_user_compute_stream": address(),
    "prefer_nhwc": flag(False),
    "sdpa_kernel": number(0),
    "tunable_op_enable": flag(False),
    "tunable_op_max_tuning_duration_ms": number(0),
    "tunable_op_tuning_enable": flag(False),
    "use_ep_level_unified_stream": flag(False),
    "use_tf32": flag(True),
    "user_compute_stream": address(),
}
# Names that onnxruntime-gpu 1.22.0's library does not contain.
_NEWER = {"enable_cudnn", "external_data_loader_reading_threads"}

PROVIDER = Provider(
    TARGET,
    rank=30,
    library="libonnxruntime_providers_cuda.so",
    device="cuda",
    graph={"enable_cuda_graph": "1"},
    stream="user_compute_stream",
    memory={"arena_extend_strategy": "kSameAsRequested"},
    # onnxruntime-gpu 1.31.1 on an H200: a decoder of SD 1.5 whose two sizes take turns needs 940 and 1,060 ms for 5.5
    # and 8.1. Each convolution has cuDNN's plan for one shape.
    plans_shapes=True,
    pools=True,
    # On one H200 with onnxruntime-gpu 1.31 all of SD 1.5's run took 3,263 MiB, of which 2,034 were weights and 324 its
    # pool; of SDXL's, about 8,900, 6,607 and 1,288. A context alone was 526 to 620. Steps took 6 and 4 to 12 MiB more
    # than their tensors.
    context_bytes=640 << 20,
    session_bytes=96 << 20,
    workspace_bytes=12 << 20,
    # Two buffers of 4 MiB and eight of 16 KiB for each handle of cuBLAS, of which a session has two; by itself it takes
    # 64 MiB for each on Hopper.
    variables={"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"},
    exact={"use_tf32": "0"},
    custom_kernels="cuda",
    no_bf16="onnxruntime-gpu 1.31 has bf16 kernels of MultiHeadAttention and Gelu, but of GroupNorm, SkipGroupNorm, "
    "NhwcConv, BiasAdd and BiasSplitGelu only fp32 and fp16",
    # Seen on onnxruntime-gpu 1.31.1: it drops an NhwcConv to the CPU whose weight is an input.
    constant_weights=frozenset({"NhwcConv"}),
    vendor="nvidia",
    preload=True,
    needs="Check with nvidia-smi that the GPU is visible; install the CUDA and cuDNN libraries that this "
    "onnxruntime-gpu was built for:\n    python -m pip install 'onnxruntime-gpu[cuda,cudnn]'",
    # The library's NEEDED entries and what it opens by name, and the packages on PyPI.
    libraries={
        "libcuda.so.1": "the NVIDIA driver",
        "libcudart.so.13": "nvidia-cuda-runtime",
        "libcublas.so.13": "nvidia-cublas",
        "libcublasLt.so.13": "nvidia-cublas",
        "libcurand.so.10": "nvidia-curand",
        "libcudnn.so.9": "nvidia-cudnn-cu13",
    },
    opened=frozenset({"libcudnn.so.9"}),
    releases={"1.22": {name: option for name, option in _OPTIONS.items() if name not in _NEWER}, "1.31": _OPTIONS},
)
