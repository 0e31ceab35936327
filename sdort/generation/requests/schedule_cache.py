"""Schedules as numbers. Those of diffusers' schedulers are kept between runs: who asks for a known one again imports no
diffusers, which takes seconds. Those of sdort's own samplers are computed for each open pipeline, in milliseconds.

An entry is a line of JSON and the arrays of :class:`Recurrence` behind it. Its key has everything that the numbers
depend on: the scheduler's config, all that a request says of it (its ``scheduler_options``; a scheduler is made of
nothing else), and the sources of diffusers' schedulers and of sdort's own part.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import numpy as np

from sdort.files.json_text import parse_json
from sdort.files.package_sources import PackageSources, package_folder, process_start_ns, read_sources
from sdort.files.user_folders import schedules_folder
from sdort.files.verified_cache import VerifiedCache
from sdort.generation.requests.request import Request, sampler_of
from sdort.generation.schedules.recurrence import MAX_STEPS, Recurrence, find_recurrence
from sdort.generation.schedules.schedule_part import Part
from sdort.generation.schedules.schedulers import check_installed, choose_scheduler, has_formulas
from sdort.graph.signature import Array
from sdort.machine.version import __version__
from sdort.pipelines.folder import PipelineFolder
from sdort.samplers.sampler import Sampler

_FORMAT = 2
_LIMIT = 4 * 2**20
"""Bytes of an entry: 500 steps and more. Longer schedules are computed every time, which is little beside their run."""
_SOURCES: Mapping[str, Mapping[str, Collection[str]]] = {
    "diffusers": {"": ("schedulers", "utils")},
    "sdort": {"": ("checkpoints", "generation", "pipelines", "samplers")},
}
"""Packages -> the folders of theirs that make the numbers."""
_TIMES = ("int64", "int32", "float64", "float32")


@dataclass(frozen=True)
class ScheduleCounts:
    """How many calls of the UNet a schedule has, and how many of them a step takes."""

    calls: int
    order: int


@dataclass(frozen=True)
class CachedSchedule:
    """The schedule of a request.

    Attributes:
        folder: the pipeline whose scheduler it is.
        request: names the scheduler, or leaves it to the folder.
        steps: of the whole schedule.
        size: height and width in pixels, by which flow matching may shift noise levels; None where that is no matter.
    """

    folder: PipelineFolder
    request: Request
    steps: int
    size: tuple[int, int] | None = None

    @property
    def told_by(self) -> tuple[Hashable, ...]:
        """All that makes it another schedule of the same pipeline."""
        return (self.steps, self.size, *self.request.scheduler_options.items())

    def counts(self) -> ScheduleCounts:
        """The number of its calls.

        Raises:
            BadModelError, UsageError: as :func:`sampler_of`.
        """
        kept = self._is_kept()
        known = _counts(_cache().load_json("schedule", self._key(None))) if kept else None
        if known is None:
            sampler = self.sampler()
            known = ScheduleCounts(len(sampler.timesteps), sampler.order)
            if kept:
                self._store(None, json.dumps([known.calls, known.order]).encode())
        return known

    def recurrence(self, part: Part) -> Recurrence | None:
        """As :func:`find_recurrence`."""
        if not self._is_kept():
            return find_recurrence(self.sampler, part)
        content = _cache().load("schedule", self._key(part))
        known = None if content is None else _unpack(content)
        if known is None:
            known = find_recurrence(self.sampler, part)
            packed = b"" if known is None else _pack(known)
            if known is not None and len(packed) < _LIMIT // 2:
                self._store(part, packed)
        return known

    def sampler(self) -> Sampler:
        """The sampler, a new one each time."""
        return sampler_of(self.folder, self.request, self.steps, self.size)

    def _is_kept(self) -> bool:
        """Whether it is one of diffusers' schedulers.

        Raises:
            UsageError: it is, and diffusers is not installed.
        """
        choice = choose_scheduler(self.folder, **self.request.scheduler_options)
        if has_formulas(choice):
            return False
        check_installed(choice)
        return True

    def _store(self, part: Part | None, content: bytes) -> None:
        latest = process_start_ns() + 1_000_000_000
        if all(sources.changed_ns <= latest for sources in _sources().values()):
            _cache().store("schedule", self._key(part), content)

    def _key(self, part: Part | None) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "versions": _versions(),
            "sources": {name: sources.digest for name, sources in _sources().items()},
            "config": hashlib.sha256(
                json.dumps(self.folder.scheduler, sort_keys=True).encode()
            ).hexdigest(),  # may hold Infinity
            "options": self.request.scheduler_options,
            "steps": self.steps,
            "part": part and [part.first, part.last, part.begin.value, part.masked],
        }


def cached_counts(folder: PipelineFolder, request: Request, steps: int) -> ScheduleCounts:
    """As :meth:`CachedSchedule.counts`, found once for an open pipeline."""
    known = CachedSchedule(folder, request, steps)
    return folder.derived.get(("counts", *known.told_by), known.counts)


def cached_recurrence(
    folder: PipelineFolder, request: Request, steps: int, part: Part, size: tuple[int, int]
) -> Recurrence | None:
    """As :meth:`CachedSchedule.recurrence`, found once for an open pipeline; of every size alike where none is asked
    for by the scheduler's config."""
    known = CachedSchedule(folder, request, steps, size if folder.scheduler.get("use_dynamic_shifting") else None)
    return folder.derived.get(("recurrence", part, *known.told_by), partial(known.recurrence, part))


def _cache() -> VerifiedCache:
    return VerifiedCache(schedules_folder(), "the schedule", ".schedule", _LIMIT)


@cache
def _versions() -> list[str]:
    return [__version__, version("torch"), np.__version__]


@cache
def _sources() -> dict[str, PackageSources]:
    """Of this process, which imports each of them once."""
    memo = VerifiedCache(schedules_folder(), "the hash of sources", ".sources", 4096)
    return {name: read_sources(package_folder(name), memo, only) for name, only in _SOURCES.items()}


def _counts(known: Any) -> ScheduleCounts | None:
    """Stored counts; None where there are none, or a stranger wrote something else."""
    if not isinstance(known, list) or len(known) != 2:
        return None
    if not all(type(count) is int and 0 < count <= 2 * MAX_STEPS for count in known):
        return None
    return ScheduleCounts(*known)


def _pack(recurrence: Recurrence) -> bytes:
    arrays = [recurrence.timesteps, recurrence.inputs, recurrence.result]
    if recurrence.outside is not None:
        arrays.append(recurrence.outside)
    header = [recurrence.takes_image, str(arrays[0].dtype), [list(array.shape) for array in arrays]]
    return json.dumps(header).encode() + b"\n" + b"".join(array.tobytes() for array in arrays)


def _unpack(content: bytes) -> Recurrence | None:
    """A stored recurrence; None where a stranger wrote something else."""
    line, _, values = content.partition(b"\n")
    try:
        takes_image, times, shapes = parse_json(line)
        arrays = list(_arrays(values, times, shapes))
        steps, rows = arrays[1].shape
        expected = [(steps,), (steps, rows), (rows,), (steps + 1, 2)][: len(arrays)]
        sound = [array.shape for array in arrays] == expected and rows > steps > 0 and type(takes_image) is bool
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return None
    if not sound or len(arrays) < 3 or not all(np.isfinite(array).all() for array in arrays):
        return None
    return Recurrence(arrays[0], arrays[1], arrays[2], takes_image, *arrays[3:])


def _arrays(values: bytes, times: str, shapes: list[list[int]]) -> Iterator[Array]:
    """The arrays that follow one another in ``values``, which end with them."""
    begin = 0
    for number, shape in enumerate(shapes):
        dtype = np.dtype(_TIMES[_TIMES.index(times)] if number == 0 else "float64")
        count = math.prod(shape)
        yield np.frombuffer(values, dtype, count, begin).reshape(shape)
        begin += count * dtype.itemsize
    if begin != len(values):
        raise ValueError(f"{len(values) - begin} bytes are left")
