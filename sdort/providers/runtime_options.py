"""Options of the runtime, as a user asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from sdort.errors import UsageError
from sdort.options.declared_options import option
from sdort.options.number_ranges import DEVICE_ID, THREADS, check_fields
from sdort.providers import AUTO, LOW, MEMORY, NORMAL, PROVIDER_NAMES, PROVIDERS, check_plugins

_SEARCHED = ", ".join(f"{provider.searched} on {name}" for name, provider in PROVIDERS.items() if provider.tuning)
_COMPILING = ", ".join(name for name, provider in PROVIDERS.items() if provider.programs)
_WITH_GRAPHS = ", ".join(name for name, provider in PROVIDERS.items() if provider.graph)


@dataclass(frozen=True)
class ExecutionOptions:
    """Where and how models run: options of every command that runs them."""

    provider: str = option(
        AUTO,
        section="Execution",
        choices=(AUTO, *PROVIDER_NAMES),
        help="Execution provider. auto takes the best one that really loads, and says which.",
        doc="The execution provider: ``rocm``, ``migraphx``, ``cuda``, ``cpu``, or ``auto``, the best that loads.",
    )
    tuning: bool = option(
        False,
        section="Execution",
        help=f"Search for the fastest kernels first: {_SEARCHED}.",
        doc="Search for the fastest kernels first: TunableOp and MIOpen on rocm, exhaustive tuning on migraphx.",
    )
    graph: bool = option(
        False,
        section="Execution",
        help=f"Record the UNet's step as a HIP or CUDA graph and replay it ({_WITH_GRAPHS}).",
        doc="Record the UNet's step as a HIP or CUDA graph and replay it (rocm, cuda).",
    )
    compile: bool = option(
        False,
        section="Execution",
        help=f"Compile what is not compiled yet, in a process of its own, and keep it ({_COMPILING}). Without it such "
        "a size is refused.",
        doc="Compile what is not compiled yet, in a process of its own, and keep it (migraphx); without it such a size "
        "is refused, with what it took the last time.",
    )
    fallback: bool | None = option(
        None,
        section="Execution",
        negated=True,
        unset="a named provider must load; single nodes may run on the CPU",
        help="--fallback: continue on the CPU if the named provider does not load. --no-fallback: run nothing but "
        "shape arithmetic on the CPU.",
        doc="Whether the CPU may stand in for a named provider that does not load, or that refuses a component: None "
        "raises, and leaves to the CPU only nodes that the provider has no kernel for; True warns and goes on; False "
        "raises for any node on the CPU that is not shape arithmetic. ``auto`` goes on in any case but False.",
    )
    device_id: int = option(
        0, section="Execution", within=DEVICE_ID, help="Number of the GPU.", doc="The number of the GPU."
    )
    device_kind: str | None = option(
        None,
        section="Execution",
        metavar="NAME",
        unset="any",
        help="Kind (cpu, gpu, npu) or vendor of the device, for a provider that a plugin brings and that has several; "
        "--device-id counts those. sdort doctor --devices lists them.",
        doc="The kind (``cpu``, ``gpu``, ``npu``) or vendor of the device, for a provider that a plugin brings and "
        "that has several; ``device_id`` counts those.",
    )
    provider_options: Mapping[str, str] = option(
        factory=dict,
        section="Execution",
        flags=("--provider-option",),
        metavar="NAME=VALUE",
        help="Option of the execution provider, by the name that ONNX Runtime gives it (repeatable).",
        doc="Options of the execution provider, by ONNX Runtime's names for them; they replace sdort's own.",
    )
    ep_libraries: Mapping[str, str] = option(
        factory=dict,
        section="Execution",
        flags=("--ep-library",),
        metavar="NAME=PATH",
        help="Library of a plugin that brings a provider to ONNX Runtime, by the name that --provider takes "
        "(repeatable). Installed packages onnxruntime-ep-* are found without it.",
        doc="Libraries of plugins that bring a provider to ONNX Runtime, by the provider's name. Installed packages "
        "``onnxruntime-ep-*`` are found without it.",
    )
    custom_ops: str = option(
        "auto",
        section="Execution",
        after="split",
        metavar="auto|on|off|PATH",
        help="Library of sdort's own operators (sdort ops build). auto registers the library where it is built.",
        doc="sdort's own operators: ``auto`` (where they are built), ``on``, ``off``, or a library's path.",
    )
    split: bool = option(
        True,
        section="Execution",
        flags=("--no-split",),
        help="Compute everything in every step. By default, values that depend only on prompts and timesteps are "
        "computed once, before the steps.",
        doc="Compute what prompts and timesteps alone decide before the steps; without it, in every step.",
    )
    check: bool = option(
        True,
        section="Execution",
        after="custom_ops",
        flags=("--no-check",),
        help="Accept files that are not as sdort.json records them: edited files, and damaged files.",
        doc="Compare the files with what sdort wrote, where its ``sdort.json`` lists them.",
    )
    trials: bool = option(
        True,
        section="Execution",
        after="check",
        flags=("--no-trials",),
        help="Believe a provider's kernels untried. By default each operator that is not ONNX's own runs once on this "
        "machine, on small inputs, and one that computes something else is refused.",
        doc="Try each operator of a provider that is not ONNX's own once on this machine, on small inputs, and refuse "
        "models with one that computes something else.",
    )


def read_devices(devices: str | Sequence[int]) -> tuple[int, ...]:
    """The numbers of GPUs in a list, or in a text with commas.

    Raises:
        UsageError: it has no number, one that is none of a GPU, or one twice.
    """
    given = [DEVICE_ID.parse(part.strip()) for part in devices.split(",")] if isinstance(devices, str) else devices
    problem = next(filter(None, map(DEVICE_ID.problem, given)), None)
    if problem or not len(given):
        raise UsageError(f"--devices {problem or 'has no number'}", hint="Name GPUs by their numbers, such as 0,1.")
    numbers = DEVICE_ID.check_all(given)
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise UsageError(f"--devices has {twice} twice", hint="Name each GPU once.")
    return numbers


@dataclass(frozen=True)
class RuntimeOptions(ExecutionOptions):
    """Options of the runtime, and what sdort says beside them where it opens a session.

    Turned into options of ONNX Runtime by :mod:`sdort.providers.session_settings` alone.
    """

    adapters: bool = option(
        False,
        doc="Open the models so that adapters can change their weights; without it, the first adapter makes them load "
        "again.",
    )
    memory: str | None = option(
        None,
        section="Execution",
        choices=MEMORY,
        unset="normal, or low if the run fits only so",
        help="low: load the models in turn. The memory of the largest one then suffices, and each run of images takes "
        "the time of loading.",
        doc="``normal`` (the default) loads all models now, and they stay in memory; ``low`` loads them in turn in "
        "each call, and what follows of failures to load then happens there.",
    )
    offload: bool = option(
        False,
        section="Execution",
        after="memory",
        help="Let a denoiser draw that the GPU's memory does not hold: of its weights as many stay there as there is "
        "room for, the others are copied from the host's memory in every step. With --memory low, which it takes.",
        doc="Let a denoiser draw that the GPU's memory does not hold: of its weights as many stay there as there is "
        "room for, the others are copied from the host's memory in every step. ``memory`` is then ``low``.",
    )
    nearest_size: bool = option(
        False,
        section="Execution",
        after="compile",
        help=f"Take the nearest size that is compiled, where the one asked for is not ({_COMPILING}).",
        doc="Take the nearest size that is compiled, where the one asked for is not (migraphx).",
    )
    devices: str | Sequence[int] | None = option(
        None,
        section="Execution",
        form="text",
        after="device_id",
        metavar="N,N,...",
        unset="the one of --device-id",
        help="Numbers of GPUs that compute each image together, such as 0,1: they share the samples of a step (with "
        "guidance an image has two), and the images or --vae-tiling's tiles that are decoded. Each GPU holds the UNet "
        "and the decoder, the first one all models.",
        doc='Numbers of GPUs that compute each image together, as ``"0,1"`` or a list: they share the samples of a '
        "step (with guidance an image has two), and the images or tiles that are decoded. Each has the UNet and the "
        "decoder, the first one all models. By default ``device_id`` alone.",
    )
    tuning_ms: int = 100
    """How long TunableOp may try one kernel, in milliseconds."""
    threads: int = 0
    """Threads within an operator on the CPU; 0 lets ONNX Runtime choose."""
    stream: int = 0
    """Address of a stream of the device that everything runs on, where the provider takes one
    (:attr:`sdort.providers.provider.Provider.stream`); with 0 it makes one of its own."""
    pool: int = 0
    """Which memory pool and stream sessions share that never run at the same time, where the provider has them; with 0
    each has its own (:mod:`sdort.runtime.memory_pool`, :mod:`sdort.runtime.device_stream`)."""
    compiles: bool = False
    """Whether this process compiles programs itself, as one that may be killed
    (:mod:`sdort.runtime.compiled_programs`)."""
    profile: str = ""
    """Where ONNX Runtime's profile of the session goes: what its file's name begins with; nowhere if empty."""
    control_inputs: bool = False
    """Whether a UNet has its inputs for control images and for those of IP-Adapters; without them its graph has
    nothing of them either."""
    deep_cut: int = 0
    """At which of its skip connections a UNet is cut, so that its outer part can run alone
    (:mod:`sdort.runtime.step.deep_cut`); 0 leaves it whole."""
    step_bytes: int = 0
    """Bytes of the device's memory that a step takes beside the denoiser's weights; with :attr:`offload` as many stay
    free."""
    patch_cut: int = 0
    """Into how many patches of the image a UNet is cut, so that as many devices share a sample
    (:mod:`sdort.runtime.step.patch_cut`); 0 leaves it whole."""

    def __post_init__(self) -> None:
        check_fields(self, DEVICE_ID, THREADS)
        check_plugins(self.ep_libraries, "--ep-library")
        if self.memory not in (None, *MEMORY):
            raise UsageError(f"--memory {self.memory!r} is not one of {', '.join(MEMORY)}")
        if self.offload:
            self._check_offload()
        if self.devices is not None:
            self._check_devices(read_devices(self.devices))

    def _check_devices(self, numbers: tuple[int, ...]) -> None:
        if self.device_id not in (0, numbers[0]):
            raise UsageError(
                f"--device-id {self.device_id} is not the first of --devices", hint="Leave --device-id out."
            )
        if self.memory == LOW and len(numbers) > 1:
            raise UsageError(
                "--memory low loads models in turn, and --devices keeps them loaded on each GPU", hint="Leave one out."
            )
        object.__setattr__(self, "devices", ",".join(map(str, numbers)))
        object.__setattr__(self, "device_id", numbers[0])

    def _check_offload(self) -> None:
        refused = {
            "--memory normal loads all models together": self.memory == NORMAL,
            "--graph records a step that is one graph": self.graph,
            "weights that adapters change stay in the GPU's memory": self.adapters,
            "--devices has each of several GPUs hold the denoiser": bool(self.other_devices),
            "--deep-cache runs a part of the denoiser alone": bool(self.deep_cut),
            "--patches has each of several GPUs hold the denoiser": bool(self.patch_cut),
        }
        reason = next((reason for reason, is_so in refused.items() if is_so), None)
        if reason:
            raise UsageError(f"--offload copies weights in every step, and {reason}", hint="Leave one of the two out.")
        object.__setattr__(self, "memory", LOW)

    @property
    def all_devices(self) -> tuple[int, ...]:
        """Numbers of all GPUs that compute."""
        return self.device_id, *self.other_devices

    @property
    def other_devices(self) -> tuple[int, ...]:
        """Numbers of the GPUs beside ``device_id``."""
        return () if self.devices is None else read_devices(self.devices)[1:]

    @property
    def may_fall_back(self) -> bool:
        """Whether the CPU may stand in for a provider that does not load, or that refuses a component."""
        return self.fallback is True or (self.fallback is None and self.provider == AUTO)


# Written by scripts/option_keywords.py from what is declared above.


class ExecutionKeywords(TypedDict, total=False):
    """Options of the functions that run models."""

    provider: str
    """The execution provider: ``rocm``, ``migraphx``, ``cuda``, ``cpu``, or ``auto``, the best that loads."""
    tuning: bool
    """Search for the fastest kernels first: TunableOp and MIOpen on rocm, exhaustive tuning on migraphx."""
    graph: bool
    """Record the UNet's step as a HIP or CUDA graph and replay it (rocm, cuda)."""
    compile: bool
    """Compile what is not compiled yet, in a process of its own, and keep it (migraphx); without it such a size is
    refused, with what it took the last time."""
    fallback: bool | None
    """Whether the CPU may stand in for a named provider that does not load, or that refuses a component: None raises,
    and leaves to the CPU only nodes that the provider has no kernel for; True warns and goes on; False raises for any
    node on the CPU that is not shape arithmetic. ``auto`` goes on in any case but False."""
    device_id: int
    """The number of the GPU."""
    device_kind: str | None
    """The kind (``cpu``, ``gpu``, ``npu``) or vendor of the device, for a provider that a plugin brings and that has
    several; ``device_id`` counts those."""
    provider_options: Mapping[str, str] | None
    """Options of the execution provider, by ONNX Runtime's names for them; they replace sdort's own."""
    ep_libraries: Mapping[str, str] | None
    """Libraries of plugins that bring a provider to ONNX Runtime, by the provider's name. Installed packages
    ``onnxruntime-ep-*`` are found without it."""
    custom_ops: str
    """sdort's own operators: ``auto`` (where they are built), ``on``, ``off``, or a library's path."""
    split: bool
    """Compute what prompts and timesteps alone decide before the steps; without it, in every step."""
    check: bool
    """Compare the files with what sdort wrote, where its ``sdort.json`` lists them."""
    trials: bool
    """Try each operator of a provider that is not ONNX's own once on this machine, on small inputs, and refuse models
    with one that computes something else."""


class LoadOptions(ExecutionKeywords, total=False):
    """Options of :func:`sdort.load`."""

    adapters: bool
    """Open the models so that adapters can change their weights; without it, the first adapter makes them load
    again."""
    memory: str | None
    """``normal`` (the default) loads all models now, and they stay in memory; ``low`` loads them in turn in each call,
    and what follows of failures to load then happens there."""
    offload: bool
    """Let a denoiser draw that the GPU's memory does not hold: of its weights as many stay there as there is room for,
    the others are copied from the host's memory in every step. ``memory`` is then ``low``."""
    nearest_size: bool
    """Take the nearest size that is compiled, where the one asked for is not (migraphx)."""
    devices: str | Sequence[int] | None
    """Numbers of GPUs that compute each image together, as ``"0,1"`` or a list: they share the samples of a step (with
    guidance an image has two), and the images or tiles that are decoded. Each has the UNet and the decoder, the first
    one all models. By default ``device_id`` alone."""
