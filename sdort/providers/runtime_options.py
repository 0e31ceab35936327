"""Options of the runtime, as a user asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sdort.errors import UsageError
from sdort.errors.number_ranges import DEVICE_ID, THREADS, check_fields
from sdort.providers import AUTO, MEMORY


@dataclass(frozen=True)
class RuntimeOptions:
    """Options of the runtime, as a user asks for them.

    Turned into options of ONNX Runtime by :mod:`sdort.providers.session_settings` alone.
    """

    provider: str = AUTO
    tuning: bool = False
    tuning_ms: int = 100
    """How long TunableOp may try one kernel, in milliseconds."""
    fallback: bool | None = None
    """Whether the CPU may stand in. None: for single nodes that the provider has no kernel for, and for a whole
    provider only under ``auto``. True: also for a named provider that does not load or refuses a component, with a
    warning. False: for nothing but shape arithmetic."""
    device_id: int = 0
    custom_ops: str = "auto"
    """sdort's own operators: ``auto``, ``on``, ``off`` or a library's path (:func:`sdort.ops.library.resolve`)."""
    threads: int = 0
    """Threads within an operator on the CPU; 0 lets ONNX Runtime choose."""
    stream: int = 0
    """Address of a stream of the device that everything runs on, where the provider takes one
    (:attr:`sdort.providers.provider.Provider.stream`); with 0 it makes one of its own."""
    pool: int = 0
    """Which memory pool sessions share that never run at the same time, where the provider has pools; with 0 each has
    its own (:mod:`sdort.runtime.memory_pool`)."""
    graph: bool = False
    """Record a run as a graph of the device (HIP graph, CUDA graph) and replay it."""
    profile: str = ""
    """Where ONNX Runtime's profile of the session goes: what its file's name begins with; nowhere if empty."""
    provider_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the provider by the names that ONNX Runtime gives them; they replace sdort's own."""
    adapters: bool = False
    """Open the model so that its weights can be replaced while the session is open."""
    control_inputs: bool = False
    """Whether a UNet has its inputs for control images and for those of IP-Adapters; without them its graph has
    nothing of them either."""
    split: bool = True
    """Whether what steps of a UNet or ControlNet do not change is computed before them, once for a prompt and once for
    a schedule (:mod:`sdort.runtime.step_split`)."""
    deep_cut: int = 0
    """At which of its skip connections a UNet is cut, so that its outer part can run alone
    (:mod:`sdort.runtime.deep_cut`); 0 leaves it whole."""
    check: bool = True
    """Whether files are compared with what sdort wrote (:mod:`sdort.pipelines.content_check`)."""
    memory: str | None = None
    """One of :data:`MEMORY`: whether a pipeline's models stay in memory all together, or are loaded in turn. None
    decides for a run by what is free, and is ``normal`` elsewhere."""

    def __post_init__(self) -> None:
        check_fields(self, DEVICE_ID, THREADS)
        if self.memory not in (None, *MEMORY):
            raise UsageError(f"--memory {self.memory!r} is not one of {', '.join(MEMORY)}")

    @property
    def may_fall_back(self) -> bool:
        """Whether the CPU may stand in for a provider that does not load, or that refuses a component."""
        return self.fallback is True or (self.fallback is None and self.provider == AUTO)


def runtime_words(options: RuntimeOptions) -> list[object]:
    """Options of the runtime that differ from the command line's defaults, as words of it."""
    plain = RuntimeOptions()
    words: list[object] = ["--provider", options.provider] if options.provider != plain.provider else []
    words += ["--tuning"] if options.tuning else []
    words += ["--graph"] if options.graph else []
    words += [] if options.fallback is None else ["--fallback" if options.fallback else "--no-fallback"]
    words += ["--device-id", options.device_id] if options.device_id != plain.device_id else []
    for name, value in options.provider_options.items():
        words += ["--provider-option", f"{name}={value}"]
    words += ["--custom-ops", options.custom_ops] if options.custom_ops != plain.custom_ops else []
    words += [] if options.split else ["--no-split"]
    words += ["--memory", options.memory] if options.memory else []
    return [*words, *([] if options.check else ["--no-check"])]
