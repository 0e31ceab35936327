"""Disturbances of a measurement: other programs, heat, a battery, a slow clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sdort.machine.os_calls import os_calls

_SYSTEM = Path("/sys/devices/system/cpu")
_SHORTEST = 0.2
"""Seconds of which the kernel's counters, in hundredths of a second, tell a load."""
_MOST = 0.1
"""Share of the processors that others may use beside a measurement on them."""
_DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""With these, a governor named powersave goes up to the highest clock."""


@dataclass(frozen=True)
class Disturbance:
    """Something that makes times longer or less steady.

    Attributes:
        what: in words: ``other programs used 1.7 of 2 processors``.
        remedy: what to do about it: ``close other programs``.
    """

    what: str
    remedy: str


@dataclass(frozen=True)
class Conditions:
    """The state of a machine at one moment.

    Attributes:
        time: seconds of a clock.
        busy: seconds that all processors which this process may use have worked, for anybody.
        own: seconds that this process and its children have worked.
        processors: how many this process may use.
        throttled: times that the processors were slowed down by heat; 0 where it is not told.
        on_battery: whether the machine runs on a battery.
        slow_clock: whether the processors are kept at their lowest frequency.
    """

    time: float
    busy: float
    own: float
    processors: int
    throttled: int
    on_battery: bool
    slow_clock: bool


@contextmanager
def watch_machine(on_gpu: bool) -> Iterator[list[Disturbance]]:
    """A list that holds, when the block has ended, what disturbed it.

    Args:
        on_gpu: whether a GPU computes: one free processor is then enough.
    """
    disturbances: list[Disturbance] = []
    before = read_conditions()
    yield disturbances
    disturbances += find_disturbances(before, read_conditions(), on_gpu)


def find_disturbances(before: Conditions, after: Conditions, on_gpu: bool) -> list[Disturbance]:
    """Disturbances of a measurement between two moments."""
    disturbances = []
    seconds = after.time - before.time
    if seconds >= _SHORTEST:
        others = ((after.busy - before.busy) - (after.own - before.own)) / seconds
        if others > (after.processors - 1 if on_gpu else _MOST * after.processors):
            used = f"other programs used {others:.1f} of {after.processors} processors"
            disturbances.append(Disturbance(used, "close other programs"))
    if after.throttled > before.throttled:
        disturbances.append(Disturbance("the processor was slowed down by heat", "let it cool"))
    if after.on_battery:
        disturbances.append(Disturbance("the machine runs on its battery", "plug it in"))
    if after.slow_clock:
        disturbances.append(
            Disturbance("the processor is kept at its lowest frequency", "set the cpufreq governor to performance")
        )
    return disturbances


def read_conditions() -> Conditions:
    """The state of this machine now; what it does not tell counts as undisturbed."""
    import psutil

    usable = os_calls.usable_cpus()
    cpus = psutil.cpu_times(percpu=True)
    process = psutil.Process()
    own = sum(process.cpu_times()[:4])  # user and system time, its own and that of children which ended
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            own += sum(child.cpu_times()[:2])
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return Conditions(
        time.perf_counter(),
        sum(_busy(cpus[i]._asdict()) for i in usable if i < len(cpus)),
        own,
        len(usable),
        sum(int(_read(file)) for file in _SYSTEM.glob("cpu*/thermal_throttle/core_throttle_count")),
        battery is not None and battery.power_plugged is False,
        _read(_SYSTEM / "cpu0/cpufreq/scaling_governor") == "powersave"
        and _read(_SYSTEM / "cpu0/cpufreq/scaling_driver") not in _DYNAMIC_DRIVERS,
    )


def _busy(times: dict[str, float]) -> float:
    """Seconds that a processor worked, and those that a host took away; guests are part of ``user``."""
    return sum(times.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() or "0"
    except OSError:
        return "0"
