"""Providers by card: generation of the card x operating system -> providers, each with its source.

The table of docs/guide/cards.md is made of it (``scripts/card_table.py``), and the order in which ``auto`` tries
providers (:mod:`sdort.runtime.recommendation`). It names ways that sdort has no provider for too: they are skipped
until there is one of that name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LINUX, WINDOWS, MACOS = SYSTEMS = ("Linux", "Windows", "Darwin")
"""As :func:`platform.system` names them."""


@dataclass(frozen=True)
class Way:
    """A provider on a card.

    Attributes:
        provider: the name that ``--provider`` takes, or would take where sdort has no such provider.
        package: what pip installs.
        why: what speaks for it or against it, in a few words.
        source: the public page of that fact.
    """

    provider: str
    package: str
    why: str
    source: str


@dataclass(frozen=True)
class Generation:
    """Cards that the same providers run.

    Attributes:
        name: as its vendor calls it.
        cards: some that people know.
        architectures: a regular expression of their architectures (``gfx1100``, ``sm_90``).
        ways: operating system -> providers, the best first; the CPU's is behind them and not listed.
    """

    name: str
    cards: str
    architectures: str
    ways: dict[str, tuple[Way, ...]]


def _pypi(name: str) -> str:
    return f"https://pypi.org/project/{name}/"


_UMBRELLA = "https://github.com/onnxruntime/onnxruntime-ep-amdgpu"
_ROCM = Way(
    "rocm",
    "onnxruntime-rocm",
    "its library has machine code for the card, and asks for ROCm 7",
    _pypi("onnxruntime-rocm"),
)
_MIGRAPHX = Way(
    "migraphx",
    "onnxruntime-migraphx",
    "compiles for the card, minutes for each size, and asks for ROCm 7",
    _pypi("onnxruntime-migraphx"),
)
_TO_MIGRAPHX = Way("amdgpu", "onnxruntime-ep-amdgpu", "AMD's plugin, which routes it to MIGraphX", _UMBRELLA)
_TO_DIRECTX = Way("amdgpu", "onnxruntime-ep-amdgpu", "AMD's plugin, which routes it to DirectX", _UMBRELLA)
_DIRECTML = Way("dml", "onnxruntime-directml", "1.24.4 is the last; no new features", _pypi("onnxruntime-directml"))
_WEBGPU = Way(
    "webgpu", "onnxruntime-ep-webgpu", "runs anywhere; nobody has published its speed", _pypi("onnxruntime-ep-webgpu")
)
_CUDA = Way("cuda", "onnxruntime-gpu", "needs CUDA 12 or 13 and its driver", _pypi("onnxruntime-gpu"))

_BOTH = {LINUX: (_ROCM, _MIGRAPHX), WINDOWS: (_TO_MIGRAPHX, _DIRECTML, _WEBGPU)}
_COMPILED = {LINUX: (_MIGRAPHX, _WEBGPU), WINDOWS: (_TO_MIGRAPHX, _DIRECTML, _WEBGPU)}

GENERATIONS = (
    Generation("CDNA 1 to 3", "Instinct MI100, MI200, MI300", "gfx908|gfx90a|gfx942", {LINUX: (_ROCM, _MIGRAPHX)}),
    Generation("CDNA 4", "Instinct MI350", "gfx950", {LINUX: (_MIGRAPHX,)}),
    Generation("RDNA 4", "Radeon RX 9000", "gfx1200|gfx1201", _BOTH),
    Generation("RDNA 3", "Radeon RX 7900, 7800, 7700", "gfx1100|gfx1101", _BOTH),
    Generation("RDNA 3, small; RDNA 3.5", "Radeon RX 7600, Ryzen AI", "gfx1102|gfx1103|gfx115[0-3]", _COMPILED),
    Generation("RDNA 3.5, gfx117x", "", "gfx117.", {LINUX: (_WEBGPU,), WINDOWS: (_TO_DIRECTX, _DIRECTML, _WEBGPU)}),
    Generation(
        "RDNA 2, large",
        "Radeon RX 6800, 6900",
        "gfx1030",
        {LINUX: (_ROCM, _MIGRAPHX), WINDOWS: (_TO_DIRECTX, _DIRECTML, _WEBGPU)},
    ),
    Generation(
        "RDNA 2, others",
        "Radeon RX 6700, 6600",
        "gfx103[1-6]",
        {LINUX: (_MIGRAPHX, _WEBGPU), WINDOWS: (_TO_DIRECTX, _DIRECTML, _WEBGPU)},
    ),
    Generation(
        "RDNA 1",
        "Radeon RX 5700, 5500",
        "gfx101.",
        {LINUX: (_WEBGPU,), WINDOWS: (_TO_DIRECTX, _DIRECTML, _WEBGPU)},
    ),
    Generation(
        "NVIDIA", "GeForce, RTX, datacenter", r"sm_\d+", {LINUX: (_CUDA, _WEBGPU), WINDOWS: (_CUDA, _DIRECTML, _WEBGPU)}
    ),
    Generation("any other", "Intel, Apple, older Radeon", "", dict.fromkeys(SYSTEMS, (_WEBGPU,))),
)
"""All of them, the last for cards of no other."""


def generation_of(architecture: str) -> Generation:
    """The generation of a card by its architecture; the last one for those that are not known."""
    found = (each for each in GENERATIONS if re.fullmatch(each.architectures, architecture))
    return next(found, GENERATIONS[-1])


def ways_on(architecture: str, system: str) -> Sequence[Way]:
    """The providers of a card, the best first; none where nothing is known of it.

    Args:
        system: the operating system, one of :data:`SYSTEMS`.
    """
    return generation_of(architecture).ways.get(system, ())
