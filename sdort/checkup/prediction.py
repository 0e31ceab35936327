"""The time that a step should take on a card: the rooflines of its nodes, and how near kernels come to them.

How near is taken from five runs on one H200 that were measured kernel by kernel; docs/measurements.md has them, the
error of the method, and what it assumes of other cards.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from sdort.checkup.graphs import Load, shaped
from sdort.checkup.rates import Device
from sdort.checkup.work import KINDS, Totals, Work, works_of
from sdort.operator_library.library import source_folder

OWN = {"attention": "attention", "GroupNorm": "group_norm", "BiasSplitGelu": "bias_split_gelu", "sums": "bias_add",
       "LayerNorm": "skip_layer_norm", "phases": "interleave_phases"}  # fmt: skip
"""Kind -> the operator of sdort's library that does it on AMD GPUs."""


@dataclass(frozen=True)
class Fit:
    """Time of a kind of kernel: ``factor`` times the rooflines, and ``launch`` microseconds for each node."""

    factor: float
    launch: float

    def microseconds(self, rooflines: float, nodes: int, factor: float = 0) -> float:
        """Time of some nodes; with ``factor`` if it is more than the fit's."""
        return max(self.factor, factor) * rooflines + self.launch * nodes


FITS: Mapping[str, Fit] = {
    "convolutions": Fit(1.411, 12.34),
    "products": Fit(1.296, 3.54),
    "attention": Fit(2.620, 5.20),
    "GroupNorm": Fit(1.781, 3.18),
    "LayerNorm": Fit(1.223, 1.36),
    "BiasSplitGelu": Fit(1.266, 0.80),
    "sums": Fit(1.213, 1.47),
    "phases": Fit(1.045, 0.73),
}
"""Of the runs on the H200 (``scripts/predict_times.py``, which refuses other values)."""
BETWEEN = 0.0692
"""The part of the time that is in no kernel of a kind: gaps, memory that is set, others."""


def predicted(
    of_run: Totals,
    fits: Mapping[str, Fit] = FITS,
    between: float = BETWEEN,
    shares: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Microseconds by kind, and of what runs in no kernel of a kind: the part ``between`` of the whole.

    Args:
        shares: as :func:`shares_of`.
    """
    times = {
        kind: fits[kind].microseconds(*of_run[kind], 1 / (shares or {}).get(OWN.get(kind, ""), 1.0))
        for kind in KINDS
        if kind in of_run and kind in fits
    }
    return {**times, "between": sum(times.values()) * between / (1 - between)}


@cache
def shares_of(architecture: str) -> dict[str, float]:
    """Operator of sdort's library -> the part of its time at best that the roofline is, the median of its shapes; empty
    for cards whose instructions were not counted (custom_ops/COUNTS.md)."""
    table = (
        (source_folder() / "COUNTS.md")
        .read_text(encoding="utf-8")
        .partition(f"({architecture})")[2]
        .partition("\n## ")[0]
    )
    found: dict[str, list[float]] = defaultdict(list)
    operator = ""
    for line in table.splitlines() if architecture else ():
        cells = [cell.strip() for cell in line.split("|")]
        operator = cells[1].split()[0] if len(cells) > 2 and cells[1] else operator
        if len(cells) > 2 and (share := re.fullmatch(r"(\d+)%", cells[-2])):
            found[operator].append(min(float(share[1]) / 100, 1.0))
    return {operator: statistics.median(values) for operator, values in found.items()}


@cache
def counted(load: Load, provider: str, *, half: bool, own: bool) -> tuple[Work, ...]:
    """The nodes of a component at one size, as it is optimized for a provider (:func:`sdort.checkup.graphs.shaped`)."""
    return tuple(works_of(shaped(load, provider, half=half, own=own)))


def expected_ms(of_run: Totals, device: Device) -> float:
    """Milliseconds that a step or a decode should take on a card."""
    return sum(predicted(of_run, shares=shares_of(device.architecture)).values()) / 1e3


def roofline_ms(of_run: Totals) -> float:
    """Milliseconds that it takes at least."""
    return sum(each for each, _ in of_run.values()) / 1e3
