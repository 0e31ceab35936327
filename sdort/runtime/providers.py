"""Execution providers as data, and the one place that turns a request into provider and session options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sdort.errors import UsageError
from sdort.ops.library import register, resolve

AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Provider:
    """One execution provider of ONNX Runtime.

    ``device`` is the name that ONNX Runtime's Python API gives to the provider's memory, None where inputs and
    outputs stay in host memory; ``torch_device`` is torch's name for the same device.
    """

    name: str
    ep: str
    library: str | None = None
    device: str | None = None
    torch_device: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Set on every run."""
    tuning: Mapping[str, str] = field(default_factory=dict)
    """Set in addition by ``--tuning``."""
    note: str = ""
    """Why ``options`` are set when ``--tuning`` is not, in words for the user."""
    needs: str = ""
    """What a user installs when the provider does not load."""

    @property
    def on_gpu(self) -> bool:
        return self.ep != "CPUExecutionProvider"


# The option names are those that the providers' own parsers know: rocm_execution_provider_info.cc (1.22.2),
# migraphx_execution_provider_info.h (1.27.1), cuda_execution_provider_info.cc (1.31.1).
ROCM = Provider(
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
    note="TunableOp is on: attention on ROCm does not run without it; --tuning also searches for the fastest kernels",
    needs="Install ROCm 7 (HIP, hipBLAS, MIOpen, hipFFT, rocm_smi, roctracer) or add its lib folder to "
    "LD_LIBRARY_PATH; check with rocminfo that the GPU is visible.",
)
MIGRAPHX = Provider(
    name="migraphx",
    ep="MIGraphXExecutionProvider",
    library="libonnxruntime_providers_migraphx.so",
    # Its memory belongs to vendor AMD, which IOBinding.bind_output cannot name, so tensors pass through host memory.
    device=None,
    torch_device=None,
    tuning={"migraphx_exhaustive_tune": "1"},
    needs="Install ROCm 7 with MIGraphX or add its lib folder to LD_LIBRARY_PATH; "
    "check with rocminfo that the GPU is visible.",
)
CUDA = Provider(
    name="cuda",
    ep="CUDAExecutionProvider",
    library="libonnxruntime_providers_cuda.so",
    device="cuda",
    torch_device="cuda",
    needs="Install the CUDA and cuDNN libraries that this onnxruntime-gpu was built for "
    "(pip install 'onnxruntime-gpu[cuda,cudnn]'); check with nvidia-smi that the GPU is visible.",
)
CPU = Provider(name="cpu", ep="CPUExecutionProvider")

PROVIDERS = {provider.name: provider for provider in (ROCM, MIGRAPHX, CUDA, CPU)}
"""By name, best first: the order in which ``auto`` tries them."""


@dataclass(frozen=True)
class RuntimeOptions:
    """What a user asked of the runtime.

    Saved tuning results, compiled-program caches and device graphs will be further fields here, turned into options
    by :func:`provider_options` and :func:`session_options` alone.
    """

    provider: str = AUTO
    tuning: bool = False
    tuning_ms: int = 100
    """How long TunableOp may try one kernel, in milliseconds."""
    no_fallback: bool = False
    device_id: int = 0
    custom_ops: str = "auto"
    """sdort's own operators: ``auto``, ``on``, ``off`` or a library's path (:func:`sdort.ops.library.resolve`)."""
    threads: int = 0
    """Threads within an operator on the CPU; 0 lets ONNX Runtime choose."""


def find_provider(name: str) -> Provider:
    """The provider of that name.

    Raises:
        UsageError: no such provider.
    """
    if name not in PROVIDERS:
        raise UsageError(
            f"there is no execution provider {name!r}", hint=f"Choose one of: {', '.join((AUTO, *PROVIDERS))}."
        )
    return PROVIDERS[name]


def provider_options(provider: Provider, options: RuntimeOptions) -> dict[str, str]:
    """The options that ONNX Runtime gets for ``provider``."""
    if not provider.on_gpu:
        return {}
    result = {"device_id": str(options.device_id), **provider.options}
    if options.tuning:
        result |= provider.tuning
    if "tunable_op_tuning_enable" in result:
        result["tunable_op_max_tuning_duration_ms"] = str(options.tuning_ms)
    return result


def session_options(onnxruntime: Any, provider: Provider, options: RuntimeOptions, severity: int) -> Any:
    """ONNX Runtime's ``SessionOptions`` for ``provider``, logging from ``severity`` (0 verbose ... 4 fatal) on.

    Raises:
        ProviderError: the custom operators are asked for and not built, or cannot be loaded.
        UsageError: ``options.custom_ops`` is no library.
    """
    result = onnxruntime.SessionOptions()
    result.log_severity_level = severity
    result.intra_op_num_threads = options.threads
    # Its threads would otherwise go on spinning after a run and take the processor from the scheduler's torch threads.
    result.add_session_config_entry("session.force_spinning_stop", "1")
    library = resolve(options.custom_ops)
    if library:
        register(result, library, provider.name)
    return result


def tuning_remark(provider: Provider, options: RuntimeOptions) -> str | None:
    """What to tell the user about ``--tuning`` on the provider that is in use."""
    if options.tuning and not provider.tuning:
        return f"--tuning has no effect on {provider.name}: that provider has nothing to search"
    if options.tuning:
        return f"tuning on {provider.name}: the first steps search for the fastest kernels and take longer"
    return provider.note or None
