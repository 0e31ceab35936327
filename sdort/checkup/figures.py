"""The file that ``sdort doctor --measure --json`` makes: what was measured on a machine, fit to be sent to others.

It holds no path, no name of a user or a host, and no text of a stranger: names of cards and drivers are cut to plain
characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from sdort.console import document

MOST_LETTERS = 80
"""Of a name in the file."""
_PLAIN = re.compile(r"[^\w .,+()@-]", re.ASCII)


def plain(text: str) -> str:
    """A name of a card, driver or package in letters, digits and a few signs, cut to :data:`MOST_LETTERS`."""
    return " ".join(_PLAIN.sub(" ", text).split())[:MOST_LETTERS]


@dataclass(frozen=True)
class Figure:
    """One component at one size."""

    model: str
    """``demo``, or ``sd15``: Stable Diffusion 1.5's shape with random weights."""
    component: str
    """``unet`` (one step) or ``vae_decoder`` (one decode)."""
    samples: int
    """Samples at once; a step with guidance has two."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    precision: str
    """``fp16`` or ``fp32``, of the weights."""
    opened_s: float
    """Seconds to open the model."""
    first_s: float
    """Seconds of the first run, which searches for kernels or compiles them."""
    again_s: float | None
    """Seconds of the first run of a second process, which finds what the first kept; None where there was none."""
    runs: int
    """Runs that were timed."""
    median_ms: float
    """Median milliseconds of a run."""
    least_ms: float
    """The fastest run."""
    processors: float
    """Processors that the process used meanwhile."""
    roofline_ms: float
    """The least that it can take at the rates of the card."""
    expected_ms: float
    """Milliseconds that it should take there."""
    on_cpu: dict[str, int]
    """Operators that the CPU computed though the model ran elsewhere: nodes of each. Arithmetic on sizes is none."""

    @property
    def factor(self) -> float:
        """How many times as long it takes as it should."""
        return self.median_ms / self.expected_ms


@dataclass(frozen=True)
class Reason:
    """Something that is wrong."""

    code: str
    """Its name, such as ``nodes-on-cpu``."""
    evidence: Literal["measured", "found"]
    """Whether a measurement shows it, or a setting of the machine."""
    value: float | None
    """The number behind it, such as a share or a factor; None where there is none."""
    message: str = field(metadata={"json": None})
    """In words, which may name files of this machine: not in the file."""
    next_step: str = field(metadata={"json": None})
    """The next step; commands stand on lines of their own."""


@document("machine-figures", 1)
@dataclass(frozen=True)
class MachineFigures:
    """Figures that were measured on a machine."""

    sdort: str
    """Version of sdort."""
    day: str
    """The day, as YYYY-MM-DD."""
    system: str
    """The operating system: ``Linux``, ``Windows`` or ``Darwin``."""
    machine: str
    """The kind of processor: ``x86_64``."""
    python: str
    """Version of Python."""
    runtime: str
    """The distribution of ONNX Runtime."""
    runtime_version: str
    """Its version."""
    provider: str
    """The execution provider."""
    card: str
    """The card, or the processor where that computes."""
    architecture: str
    """``gfx1100`` or ``sm_90``; empty of a processor."""
    memory_gib: int
    """Memory of the card; 0 where nothing tells, and of a processor."""
    driver: str
    """Version of the card's driver; empty of a processor."""
    toolkit: str
    """Version of ROCm where it is installed; else empty."""
    processors: int
    """Processors that the process may use."""
    operators: bool
    """Whether sdort's own operators were used."""
    clock_mhz: float | None
    """Highest clock of the card that was seen while it computed."""
    top_clock_mhz: float | None
    """The highest that it has."""
    power_w: float | None
    """Highest power that was seen."""
    power_limit_w: float | None
    """The most that it may take."""
    usual_limit_w: float | None
    """The limit that it comes with."""
    copy_gbs: float
    """Gigabytes (10^9) a second of a large copy, read and written."""
    product_tflops: float
    """TFLOP/s of a large matrix product: fp16 on a GPU, fp32 on a processor."""
    published_gbs: float | None
    """The card's published memory rate; None where sdort does not know it, and the measured rates are used."""
    published_tflops: float | None
    """The card's published fp16 rate."""
    figures: list[Figure]
    """The components that were measured."""
    reasons: list[Reason]
    """Everything that is wrong, the best evidence first."""
    recommended: str
    """The provider that is recommended for this machine."""
    package: str
    """The package that has it."""

    @property
    def true_size(self) -> list[Figure]:
        """Those of the model of a true size, by which a machine is judged."""
        return [figure for figure in self.figures if figure.model != "demo"]
