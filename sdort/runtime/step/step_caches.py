"""Caches of what is computed before a step: tensors made of prompts, and tensors made of timesteps.

They are the same for every memory: arrays and values of ONNX Runtime (:mod:`sdort.runtime.step.preparation`), tensors
of torch (:mod:`sdort.integrations.torch.prompt_tensors`). Of other weights nothing is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sdort.graph.signature import Array

KEPT = 4
"""Prompts of which what was prepared is kept."""
KEPT_ROWS = 128
"""Timesteps of which it is, some ten to a hundred kilobytes a sample; the oldest give way."""

Value = TypeVar("Value")
Made = TypeVar("Made")
Output = TypeVar("Output", covariant=True)


class Mark(Protocol):
    """A prompt's input as it was, by which it is known again without reading it."""

    def is_of(self, value: Any) -> bool:
        """Whether this is the same object, and unchanged."""
        ...


class PromptPart(Protocol[Value, Output]):
    """The part of a model that prompts decide, in one kind of memory."""

    @property
    def inputs(self) -> Collection[str]:
        """The names of its inputs."""
        ...

    def fitted(self, name: str, value: Any) -> Value:
        """An input as the part reads it."""
        ...

    def equal(self, kept: Value, value: Value) -> bool:
        """Whether two inputs have the same values."""
        ...

    def mark(self, name: str, value: Any) -> Mark | None:
        """A mark of an input as the caller has it; None where it has to be compared by value."""
        ...

    def make(self, fitted: Mapping[str, Value]) -> tuple[Mapping[str, Value], Output]:
        """Copies of inputs for later comparisons, and what the part makes of them."""
        ...


@dataclass(eq=False)
class _Kept(Generic[Value, Made]):
    """Attributes:
    marks: of the inputs that last had these values.
    """

    version: int
    copies: Mapping[str, Value]
    made: Made
    marks: Mapping[str, Mark | None]


class PromptCache(Generic[Value, Made]):
    """Results of a part on prompts, cached for the last :data:`KEPT`."""

    def __init__(self, part: PromptPart[Value, Made]) -> None:
        self._part = part
        self._kept: list[_Kept[Value, Made]] = []

    def of(self, feeds: Mapping[str, Any], version: int) -> Made:
        """Results of prompts: the same object for the same prompts.

        Args:
            feeds: the whole model's inputs, as the caller has them.
            version: of the weights.
        """
        if not (self._kept and self._kept[0].version == version and self._is_of(self._kept[0], feeds)):
            known = [kept for kept in self._kept if kept.version == version]
            found = next((kept for kept in known if self._is_of(kept, feeds)), None) or self._other(
                known, feeds, version
            )
            self._kept = [found, *(kept for kept in known if kept is not found)][:KEPT]
        return self._kept[0].made

    def forget(self) -> None:
        """Keep nothing of earlier prompts."""
        self._kept.clear()

    def _is_of(self, kept: _Kept[Value, Made], feeds: Mapping[str, Any]) -> bool:
        """Whether something was made of these inputs, as far as that is known without reading those with marks."""
        for name, mark in kept.marks.items():
            value = feeds[name]
            if mark is None:
                if not self._part.equal(kept.copies[name], self._part.fitted(name, value)):
                    return False
            elif not mark.is_of(value):
                return False
        return True

    def _other(self, known: Sequence[_Kept[Value, Made]], feeds: Mapping[str, Any], version: int) -> _Kept[Value, Made]:
        """Results of equal values in other memory, or new ones."""
        part = self._part
        fitted = {name: part.fitted(name, feeds[name]) for name in part.inputs}
        marks = {name: part.mark(name, feeds[name]) for name in part.inputs}
        for kept in known:
            if all(part.equal(kept.copies[name], value) for name, value in fitted.items()):
                kept.marks = marks
                return kept
        return _Kept(version, *part.make(fitted), marks)


class RowCache(Generic[Made]):
    """Results of timesteps, cached for the last :data:`KEPT_ROWS`."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Made] = {}

    def get(self, key: Hashable) -> Made | None:
        """The result of a key, if it is kept."""
        return self._kept.get(key)

    def keep(self, key: Hashable, made: Made) -> None:
        """Keep what was made for a key: all that it was made of."""
        if len(self._kept) == KEPT_ROWS:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = made


class RowTables:
    """Rows of whole schedules, cached up to a number of bytes; the last one is kept whatever it has.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Hashable, Array] = {}

    @property
    def is_full(self) -> bool:
        """Whether another one as large as the largest would take the place of one."""
        sizes = [table.nbytes for table in self._kept.values()]
        return bool(sizes) and sum(sizes) + max(sizes) > self._most

    def get(self, key: Hashable) -> Array | None:
        """The table of a key, if it is kept."""
        return self._kept.get(key)

    def keep(self, key: Hashable, table: Array) -> None:
        """Keep a table; the oldest give way."""
        self._kept[key] = table
        while len(self._kept) > 1 and sum(table.nbytes for table in self._kept.values()) > self._most:
            del self._kept[next(iter(self._kept))]


_ALIGNED = 256
"""Bytes at multiples of which arrays in one piece of memory begin, as allocations of every device do at the least."""


def aligned_places(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Places in one piece of memory for arrays of so many bytes, and the bytes of it all."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    return places, end
