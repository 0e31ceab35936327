"""NVIDIA's management library with GPUs of a test's own."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sdort.machine.nvml import Nvml


@dataclass
class Card:
    """A GPU as the binding ``pynvml`` tells of it; None for what it refuses to tell."""

    name: str = "A card"
    capability: tuple[int, int] | None = (9, 0)
    total: int | None = 0
    free: int | None = None
    used: int = 0
    identity: str = ""
    clock: int | None = None
    top_clock: int | None = None
    watts: tuple[float | None, float | None, float | None] = (None, None, None)
    """Power, its limit, and the limit that it comes with."""
    reasons: int = 0
    """Bits of why its clock is lowered."""


class NVMLError(Exception):
    """The binding's own."""


def nvml(*cards: Card) -> Nvml:
    """The library of a machine with these GPUs, in the order of the bus."""

    def known(value: Any) -> Any:
        if value is None:
            raise NVMLError
        return value

    def memory(card: Card) -> Any:
        told = known(card.total if card.free is None else card.free)
        return SimpleNamespace(total=card.total, free=told, used=card.used)

    def milliwatts(card: Card, index: int) -> int:
        return int(known(card.watts[index]) * 1000)

    return Nvml(
        SimpleNamespace(
            NVMLError=NVMLError,
            nvmlDeviceGetCount=lambda: len(cards),
            nvmlDeviceGetHandleByIndex=lambda index: known(dict(enumerate(cards)).get(index)),
            nvmlDeviceGetHandleByUUID=lambda name: known({card.identity: card for card in cards}.get(name)),
            nvmlDeviceGetName=lambda card: card.name,
            nvmlDeviceGetCudaComputeCapability=lambda card: known(card.capability),
            nvmlDeviceGetMemoryInfo=memory,
            nvmlDeviceGetClockInfo=lambda card, kind: known(card.clock),
            nvmlDeviceGetMaxClockInfo=lambda card, kind: known(card.top_clock),
            nvmlDeviceGetPowerUsage=lambda card: milliwatts(card, 0),
            nvmlDeviceGetPowerManagementLimit=lambda card: milliwatts(card, 1),
            nvmlDeviceGetPowerManagementDefaultLimit=lambda card: milliwatts(card, 2),
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: card.reasons,
        )
    )
