"""onnxruntime-rocm 1.22.2, kernels as registered in the wheel's provider library.

Opset 18: the library registers Resize and Pad up to version 18 only, so at a later opset they would silently fall to
the CPU; it loads IR version 10 at most.
"""

from sdort.providers.kernels import argmax_of_floats
from sdort.providers.provider import NO_LIMIT, Option, Provider, address, flag, number, one_of
from sdort.providers.target import Target

TARGET = Target(
    name="rocm",
    execution_provider="ROCMExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=True,
    forms={"ArgMax": argmax_of_floats},
)

# What onnxruntime-rocm 1.22.2.post3's own get_provider_options() returns.
_OPTIONS: dict[str, Option] = {
    "arena_extend_strategy": one_of("kNextPowerOfTwo", "kSameAsRequested"),
    "device_id": number(0).owned_by("Use --device-id."),
    "do_copy_in_default_stream": flag(True),
    "enable_hip_graph": flag(False).owned_by("Use --graph."),
    "gpu_external_alloc": address(),
    "gpu_external_empty_cache": address(),
    "gpu_external_free": address(),
    "gpu_mem_limit": number(NO_LIMIT),
    "has_user_compute_stream": address(),
    "miopen_conv_exhaustive_search": flag(False),
    "miopen_conv_use_max_workspace": flag(True),
    "tunable_op_enable": flag(False),
    "tunable_op_max_tuning_duration_ms": number(0),
    "tunable_op_tuning_enable": flag(False),
    "user_compute_stream": address(),
}

PROVIDER = Provider(
    TARGET,
    rank=10,
    last_release="1.22",
    library="libonnxruntime_providers_rocm.so",
    device="cuda",  # the Python API of a ROCm build names its memory so
    options={"tunable_op_enable": "1"},
    tuning={
        "tunable_op_tuning_enable": "1",
        "miopen_conv_exhaustive_search": "1",
        "miopen_conv_use_max_workspace": "1",
    },
    searched="TunableOp and MIOpen",
    graph={"enable_hip_graph": "1"},
    stream="user_compute_stream",
    memory={"arena_extend_strategy": "kSameAsRequested"},
    uses_miopen=True,
    custom_kernels="rocm",
    no_bf16="onnxruntime-rocm 1.22.2 registers GroupNorm, SkipGroupNorm, NhwcConv, BiasAdd and BiasSplitGelu in fp32 "
    "and fp16 only",
    note="TunableOp is on: attention on ROCm does not run without it; --tuning also searches for the fastest kernels",
    vendor="amd",
    needs="Install ROCm 7 (HIP, hipBLAS, MIOpen, hipFFT, rocm_smi, roctracer) or add its lib folder to "
    "LD_LIBRARY_PATH; check with rocminfo that the GPU is visible.",
    # The library's NEEDED entries, and the packages of AMD's repository.
    libraries={
        "libamdhip64.so.7": "hip-runtime-amd",
        "libhipblas.so.3": "hipblas",
        "libMIOpen.so.1": "miopen-hip",
        "libhipfft.so.0": "hipfft",
        "librocm_smi64.so.1": "rocm-smi-lib",
        "libroctracer64.so.4": "roctracer",
    },
    # The code object bundles in the library, 190 of each.
    architectures=frozenset(["gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101", "gfx1200", "gfx1201"]),
    releases={"1.22": _OPTIONS},
)
