"""A request to the runtime, and the provider options that it becomes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sdort.errors import UsageError
from sdort.errors.number_ranges import DEVICE_ID, THREADS, check_fields
from sdort.machine.distributions import flavour
from sdort.ops.library import register, resolve
from sdort.providers import AUTO, MEMORY, PROVIDERS
from sdort.providers.provider import KnownOptions, Provider


@dataclass(frozen=True)
class RuntimeOptions:
    """Options of the runtime, as a user asks for them.

    Turned into options by :func:`provider_options` and :func:`session_options` alone.
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


def provider_options(provider: Provider, options: RuntimeOptions) -> dict[str, str]:
    """The options that ONNX Runtime gets for ``provider``.

    Raises:
        UsageError: as :func:`check_options`.
    """
    check_options(provider, options)
    result = {"device_id": str(options.device_id)} if provider.numbered else {}
    result.update(provider.options)
    result.update(provider.memory)
    if options.tuning:
        result.update(provider.tuning)
    if "tunable_op_tuning_enable" in result:
        result["tunable_op_max_tuning_duration_ms"] = str(options.tuning_ms)
    if options.graph:
        result.update(provider.graph)
    if options.stream:
        result[provider.stream] = str(options.stream)
    return {**result, **options.provider_options}


def check_options(provider: Provider, options: RuntimeOptions) -> None:
    """Refuse what ``provider`` cannot be asked for, before a session is made.

    Raises:
        UsageError: ``options.graph`` where there are no graphs; ``options.stream`` where none is taken; one of
            ``options.provider_options`` that this release of the provider does not know, that has no such value, or
            that is set otherwise or to no effect.
    """
    if options.graph and not provider.graph:
        raise UsageError(
            f"--graph is not possible on {provider.name}: {provider.no_graph}",
            hint=f"Leave it out, or run on {' or '.join(name for name, known in PROVIDERS.items() if known.graph)}.",
        )
    if options.stream and not provider.stream:
        raise UsageError(f"{provider.name} takes no stream of its caller's")
    if not options.provider_options:
        return
    release, known = provider.known_options(flavour().version)
    for name, value in options.provider_options.items():
        _check_option(f"{provider.ep} of ONNX Runtime {release}", known, name, value)


def _check_option(ep: str, known: KnownOptions, name: str, value: str) -> None:
    option = known.get(name)
    if option is None:
        usable = ", ".join(usable_name for usable_name, rule in known.items() if not rule.instead) or "none at all"
        raise UsageError(f"{ep} has no option {name!r}", hint=f"It has: {usable}.")
    if option.instead:
        raise UsageError(f"{name} cannot be set by --provider-option", hint=option.instead)
    if not re.fullmatch(option.values, value):
        raise UsageError(f"--provider-option {name}={value}: the value is {option.words}")


def session_options(
    onnxruntime: Any, provider: Provider, options: RuntimeOptions, severity: int, left_out: Collection[str] = ()
) -> Any:
    """ONNX Runtime's ``SessionOptions`` for ``provider``, logging from ``severity`` (0 verbose ... 4 fatal) on.

    ``left_out`` names operators of sdort's library that are not registered.

    Raises:
        ProviderError: the custom operators are asked for and not built, or cannot be loaded.
        UsageError: ``options.custom_ops`` is no library.
    """
    result = onnxruntime.SessionOptions()
    result.log_severity_level = severity
    result.intra_op_num_threads = options.threads
    # After the first run of a shape it would take one block for all activations, beside what that run took.
    result.enable_mem_pattern = False
    # Its threads would otherwise go on spinning after a run and take the processor from the scheduler's torch threads.
    result.add_session_config_entry("session.force_spinning_stop", "1")
    if options.profile:
        result.enable_profiling = True
        result.profile_file_prefix = options.profile
    library = resolve(options.custom_ops)
    if library:
        register(result, library, provider.custom_kernels, left_out)
    return result


def can_tune(provider: Provider, options: RuntimeOptions) -> bool:
    """Whether there is something to search: the provider's kernels, or on a GPU sdort's own."""
    return bool(provider.tuning) or (provider.on_gpu and resolve(options.custom_ops) is not None)


def tuning_remark(provider: Provider, options: RuntimeOptions) -> str | None:
    """Remark on ``--tuning`` for the provider that is in use."""
    if options.tuning and not provider.tuning and can_tune(provider, options):
        return f"tuning on {provider.name}: the first steps try the variants of sdort's own kernels and take longer"
    if options.tuning and not provider.tuning:
        return f"--tuning has no effect on {provider.name}: that provider has nothing to search"
    if options.tuning:
        return f"tuning on {provider.name}: the first steps search for the fastest kernels and take longer"
    return provider.note or None
