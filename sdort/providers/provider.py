"""What an execution provider is to the runtime, as data: what it is called, what it needs, what it can be asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


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


Options = Mapping[str, Option]
NO_LIMIT = (1 << 64) - 1
"""What memory limits are by default."""


@dataclass(frozen=True, eq=False)
class Provider:
    """One execution provider of ONNX Runtime.

    ``device`` is the name that ONNX Runtime's Python API gives to the provider's memory, None where inputs and
    outputs stay in host memory.
    """

    name: str
    ep: str
    library: str | None = None
    """The file in ONNX Runtime's package that has it, None where it is built in."""
    device: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Set on every run."""
    tuning: Mapping[str, str] = field(default_factory=dict)
    """Set in addition by ``--tuning``; empty where there is nothing to search."""
    graph: Mapping[str, str] = field(default_factory=dict)
    """Set in addition by ``--graph``; empty where the provider has no graphs."""
    bf16: Mapping[str, str] = field(default_factory=dict)
    """Set in addition for a model that was made for bf16; empty where the provider does not compute in it."""
    precisions: frozenset[str] = frozenset()
    """Those of its options that choose the precision of what it computes."""
    no_graph: str = ""
    """Why it has no graphs, in words for the user."""
    note: str = ""
    """Why ``options`` are set when ``--tuning`` is not, in words for the user."""
    vendor: str = ""
    """Whose GPU it needs: ``amd``, ``nvidia`` or nobody's."""
    needs: str = ""
    """What a user installs when the provider does not load."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Shared libraries of the vendor that the newest release needs, and the package that has each."""
    opened: frozenset[str] = field(default_factory=frozenset)
    """Those among ``libraries`` that it opens by name, and so does not list as needed."""
    architectures: frozenset[str] = field(default_factory=frozenset)
    """GPU architectures that its library has machine code for; empty where it compiles on the machine."""
    releases: Mapping[str, Options] = field(default_factory=dict)
    """The options that a release of ONNX Runtime (``1.22``) knows, oldest release first."""

    @property
    def on_gpu(self) -> bool:
        return self.ep != "CPUExecutionProvider"

    def known_options(self, version: str) -> tuple[str, Options]:
        """The release whose options hold for ``version``, and the options.

        That is the release itself or the next one that is known; for one newer than all, the newest. Options have
        only ever been added.
        """
        newest: tuple[str, Options] = (version, {})
        for newest in self.releases.items():
            if _numbers(version)[:2] <= _numbers(newest[0]):
                break
        return newest


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
