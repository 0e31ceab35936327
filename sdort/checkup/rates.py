"""Published rates of cards: bytes and fp16 matrix operations a second, without sparsity, each with its source."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COUNTS = "custom_ops/COUNTS.md"
"""Which has the sources, and how the rates follow from them."""


@dataclass(frozen=True)
class Device:
    """Rates of a card.

    Attributes:
        name: as people call it.
        provider: whose graphs it runs.
        bandwidth: bytes a second.
        peak: operations a second of fp16 matrix instructions.
        architecture: ``gfx1100`` or ``sm_90``.
        source: where the rates are published; empty where they were measured.
        pattern: a regular expression that the driver's name of the card contains.
    """

    name: str
    provider: str
    bandwidth: float
    peak: float
    architecture: str = ""
    source: str = ""
    pattern: str = ""


H200 = Device(
    "H200", "cuda", 4.8e12, 989.4e12, "sm_90", "https://www.nvidia.com/en-us/data-center/h200/", r"\bH200\b(?! NVL)"
)
"""SXM."""
RX_7900_XTX = Device("RX 7900 XTX", "rocm", 960e9, 122.88e12, "gfx1100", _COUNTS, r"7900 XTX\b")
RX_9070_XT = Device("RX 9070 XT", "rocm", 640e9, 194.64192e12, "gfx1201", _COUNTS, r"9070 XT\b")
MI300X = Device("MI300X", "rocm", 5300e9, 1307.4432e12, "gfx942", _COUNTS, r"MI300X\b")
MI210 = Device("MI210", "rocm", 1638e9, 181.0432e12, "gfx90a", _COUNTS, r"MI210\b")

DEVICES = (H200, RX_7900_XTX, RX_9070_XT, MI300X, MI210)


def published_rates(card: str) -> Device | None:
    """The rates of a card by the name that its driver gives; None where they are not in :data:`DEVICES`."""
    return next((each for each in DEVICES if re.search(each.pattern, card)), None)
