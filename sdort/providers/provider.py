"""An execution provider as data: what it is called, what it needs, what it can be asked for."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sdort.machine.distributions import FALLBACK, REQUIREMENTS, install_commands, pip
from sdort.providers.target import Target


@dataclass(frozen=True)
class Option:
    """An option of an execution provider, as ONNX Runtime knows it.

    Attributes:
        default: what ONNX Runtime takes without it.
        values: a regular expression for its values; ONNX Runtime refuses others.
        words: the values in words.
        instead: where not empty, why users cannot set it and what they can do instead.
    """

    default: str
    values: str
    words: str
    instead: str = ""

    def owned_by(self, instead: str) -> Option:
        """The same option, which users set by other means or not at all."""
        return Option(self.default, self.values, self.words, instead)


def flag(default: bool) -> Option:
    # The six spellings that ONNX Runtime reads (core/common/parse_string.h).
    return Option(str(int(default)), "0|1|true|false|True|False", "0 or 1")


def number(default: int) -> Option:
    return Option(str(default), r"-?\d+", "a whole number")


def one_of(default: str, *others: str) -> Option:
    values = (default, *others)
    return Option(default, "|".join(map(re.escape, values)), f"one of {', '.join(values)}")


def text() -> Option:
    return Option("", "(?s:.*)", "text")


def address() -> Option:
    return number(0).owned_by("It is an address in the running process, which no command line can know.")


KnownOptions = Mapping[str, Option]
"""The options of a provider, by the names that ONNX Runtime gives them."""

NO_LIMIT = (1 << 64) - 1
"""Default of memory limits."""


@dataclass(frozen=True, eq=False)
class Plugin:
    """A library that brings an execution provider to any build of ONNX Runtime, which registers it at run time.

    Attributes:
        package: what pip installs; its module, the same name with underscores, says where the library is.
        execution_provider: ONNX Runtime's name of what it brings.
        computes_on: the devices that it takes, in words.
        options: those that it knows. ONNX Runtime takes every other name and goes on as if it had not.
        sets: those that sdort sets on every run with it.
        own_names: its names of options that the provider built in calls otherwise; both are taken.
    """

    package: str
    execution_provider: str
    computes_on: str
    options: KnownOptions
    sets: Mapping[str, str] = field(default_factory=dict)
    own_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The import name of its package."""
        return self.package.replace("-", "_")

    def own_name(self, option: str) -> str:
        """Its name of an option."""
        return self.own_names.get(option, option)


LAST = 1000
"""The rank of what ``auto`` takes when nothing else loads."""


@dataclass(frozen=True, eq=False)
class Provider:
    """One execution provider of ONNX Runtime."""

    target: Target
    """The target that it runs; ``--provider`` takes its name, ONNX Runtime that of its execution provider."""
    rank: int
    """Rank in the order in which ``auto`` tries the providers, the lowest first."""
    vendor: str = ""
    """Whose GPU it computes on (``amd``, ``nvidia``, another's name); empty where it computes on the processor."""
    device: str | None = None
    """The name that ONNX Runtime's Python API gives to its memory, None where inputs and outputs stay in the host's."""
    library: str | None = None
    """The file in ONNX Runtime's package that has it, None where it is built in."""
    package: str = ""
    """The package that pip installs to get it; where empty, that of sdort's extra of its name."""
    system: str = ""
    """The only operating system that it runs on, as ``platform.system()`` calls it; empty where that is not told."""
    kernel_table: str = ""
    """The release whose own list of kernels its target has, by which nodes are placed where it is not installed; empty
    where that list was not read."""
    last_release: str = ""
    """The last release of ONNX Runtime that has it (``1.22``); empty where every release has."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Set on every run."""
    memory: Mapping[str, str] = field(default_factory=dict)
    """Set on every run: how it takes memory, which changes nothing that is computed or tuned."""
    rounds_as_gpus: bool = False
    """Whether its kernels round as those of GPUs do, where no vendor's GPU is known to compute: limits are a GPU's."""
    in_turn: bool = False
    """Whether calls into it from several threads end the process: sessions open and run one at a time."""
    plans_shapes: bool = False
    """Whether a run of other shapes than those of the run before plans every convolution anew, in a second or so."""
    pools: bool = False
    """Whether its sessions allocate from a pool of sdort's (:mod:`sdort.runtime.memory_pool`)."""
    context_bytes: int = 0
    """Memory of the device that a process takes by using it: the driver's context and the libraries' kernels; 0 where
    that was not measured."""
    session_bytes: int = 0
    """The same that each session adds: handles of libraries, their workspaces, and kernels of its own."""
    workspace_bytes: int = 0
    """The same that kernels take in a step beside the tensors that are alive."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment that its libraries read once, when the first session of a process is made."""
    tuning: Mapping[str, str] = field(default_factory=dict)
    """Set in addition by ``--tuning``; empty where there is nothing to search."""
    searched: str = "the fastest kernels"
    """The search of ``tuning``, in words."""
    graph: Mapping[str, str] = field(default_factory=dict)
    """Set in addition by ``--graph``; empty where the provider has no graphs."""
    stream: str = ""
    """Its option for the address of a stream of its caller's; empty where it takes none."""
    bf16: Mapping[str, str] = field(default_factory=dict)
    """Set in addition for a model that was made for bf16; empty where the provider does not compute in it."""
    exact: Mapping[str, str] = field(default_factory=dict)
    """Set in addition where products have to be in full fp32; empty where they always are, without TF32."""
    precisions: frozenset[str] = frozenset()
    """Those of its options that choose the precision of what it computes."""
    programs: str = ""
    """Its option for the folder in which it keeps compiled programs; empty where it compiles none."""
    superseding: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment that take the place of its options, whatever a session asks for, and those options;
    empty for a variable beside which there is no option."""
    uses_miopen: bool = False
    """Whether MIOpen computes its convolutions, which keeps what it found in databases of its own."""
    custom_kernels: str = "cpu"
    """Whose kernels of sdort's operator library it runs: ``rocm``, ``cuda`` or ``cpu``."""
    no_graph: str = "nothing says that it has any"
    """Why it has no graphs, in words for the user."""
    no_bf16: str = "nothing says that it computes in it"
    """Why there is no bf16, in words for the user."""
    constant_weights: frozenset[str] = frozenset()
    """Operators whose weights it takes as constants alone."""
    note: str = ""
    """Why ``options`` are set when ``--tuning`` is not, in words for the user."""
    needs: str = "Install what its own documentation says that it needs."
    """The software that a user installs when the provider does not load."""
    preload: bool = False
    """Whether ONNX Runtime can load its libraries from pip packages (``onnxruntime.preload_dlls``)."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Shared libraries of the vendor that the newest release needs, and the package that has each."""
    opened: frozenset[str] = field(default_factory=frozenset)
    """Those among ``libraries`` that it opens by name, and so does not list as needed."""
    architectures: frozenset[str] = field(default_factory=frozenset)
    """GPU architectures that its library has machine code for; empty where it compiles on the machine."""
    releases: Mapping[str, KnownOptions] = field(default_factory=dict)
    """The options that a release of ONNX Runtime (``1.22``) knows, oldest release first."""
    plugins: tuple[Plugin, ...] = ()
    """Those that bring it to a build of ONNX Runtime without it, the first that is installed."""
    on_request: bool = False
    """Whether ``auto`` leaves it out, and it runs only where somebody names it."""

    @property
    def name(self) -> str:
        """The name that ``--provider`` takes."""
        return self.target.name

    @property
    def ep(self) -> str:
        """ONNX Runtime's name."""
        return self.target.execution_provider

    @property
    def execution_providers(self) -> tuple[str, ...]:
        """ONNX Runtime's names of all that may run it: its own, and those of plugins."""
        return self.ep, *(plugin.execution_provider for plugin in self.plugins)

    @property
    def is_fallback(self) -> bool:
        """Whether it is ONNX Runtime's own CPU provider: always there, never left for another, without options."""
        return self.ep == FALLBACK

    @property
    def copies_inputs(self) -> bool:
        """Whether it has memory of its own that no binding names: inputs are copied there when they are bound."""
        return self.device is None and not self.is_fallback

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU, and not on the processor."""
        return bool(self.vendor)

    @property
    def usual_precision(self) -> str:
        """``fp16`` on a GPU. A CPU computes fp16 in fp32, and takes longer for it."""
        return "fp16" if self.on_gpu else "fp32"

    @property
    def numbered(self) -> bool:
        """Whether it takes the id of one of several devices."""
        return any("device_id" in options for options in self.releases.values())

    @property
    def install(self) -> str:
        """The commands that install it, a line each (:func:`sdort.machine.distributions.install_commands`)."""
        return install_commands(self._requirement)

    @property
    def _requirement(self) -> str:
        return self.package or REQUIREMENTS[self.name]

    @property
    def how_to_get(self) -> str:
        """The next step for a user whose ONNX Runtime was built without it."""
        if self.system in ("", platform.system()):
            return f"Install the distribution that has it:\n{self.install}"
        return (
            f"It runs on {self.system} alone. There, install the distribution that has it:\n"
            f"{pip('install', self._requirement)}"
        )

    def known_options(self, version: str) -> tuple[str, KnownOptions]:
        """The release whose options hold for ``version``, and the options.

        That is the release itself or the next one that is known; for one newer than all, the newest. Options have
        only ever been added.
        """
        newest: tuple[str, KnownOptions] = (version, {})
        for newest in self.releases.items():
            if _numbers(version)[:2] <= _numbers(newest[0]):
                break
        return newest


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
