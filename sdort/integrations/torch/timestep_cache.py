"""Tensors made of timesteps before a step, cached for timesteps that come again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

import torch

from sdort.families.family import Roles
from sdort.integrations.torch.tensor_binding import PreparedInputs, TensorBinding, Tensors, piece_of
from sdort.runtime.step.step_caches import RowCache

KEPT_SCHEDULES = 4
"""Schedules whose numbers are known."""
LONGEST_SCHEDULE = 4096
"""Elements of a tensor whose numbers are read at once: schedulers have at most a thousand timesteps."""

_Made: TypeAlias = tuple[float, int, PreparedInputs | None, int]
"""The key of rows: a timestep, a number of samples, the tensors prepared of a prompt, a version of the weights."""


@dataclass(frozen=True)
class _Schedule:
    """A snapshot of a tensor's memory; holding it keeps torch from giving the memory to another tensor."""

    memory: torch.UntypedStorage
    dtype: torch.dtype
    changes: int
    numbers: tuple[float, ...]

    def is_of(self, timesteps: torch.Tensor) -> bool:
        if self.changes != timesteps._version or self.dtype != timesteps.dtype:
            return False
        return bool(self.memory.data_ptr() == timesteps.untyped_storage().data_ptr())


class KnownTimesteps:
    """The numbers in tensors of timesteps.

    Reading a GPU's memory has the host wait until everything is done. A step's timestep is a view of a schedule,
    mostly: all of that is read at once, and known for as long as torch counts no change in place, which it does for
    every operation but those through ``tensor.data``. The host's memory, which NumPy may share, is read each time.

    Args:
        waits: whether reading a tensor waits.
    """

    def __init__(self, waits: Callable[[torch.Tensor], bool]) -> None:
        self._waits = waits
        self._gpu = torch.cuda.is_available()  # where it is not, asking whether a graph is recorded raises
        self._schedules: list[_Schedule] = []

    def number(self, timesteps: torch.Tensor) -> float | None:
        """The number that all elements are, of one at least.

        None if they may differ, if torch counts no changes of the tensor (``torch.inference_mode``), if its memory is
        too large to be a schedule's, or while torch records a graph, which will be replayed with other numbers there.
        """
        if timesteps.numel() > 1 and any(
            stride and size > 1 for size, stride in zip(timesteps.shape, timesteps.stride(), strict=True)
        ):
            return None
        if not self._waits(timesteps):
            return float(timesteps if timesteps.numel() == 1 else timesteps[(0,) * timesteps.ndim])
        if timesteps.is_inference() or timesteps.is_neg():  # which torch negates when it reads it
            return None
        if self._gpu and torch.cuda.is_current_stream_capturing():
            return None
        offset = timesteps.storage_offset()
        found = next((each for each in self._schedules if each.is_of(timesteps)), None) or self._read(timesteps)
        return found.numbers[offset] if found else None

    def _read(self, timesteps: torch.Tensor) -> _Schedule | None:
        memory = timesteps.untyped_storage()
        elements = memory.nbytes() // timesteps.element_size()
        if elements > LONGEST_SCHEDULE:
            return None
        numbers = tuple(timesteps.as_strided((elements,), (1,), 0).tolist())
        read = _Schedule(memory, timesteps.dtype, timesteps._version, numbers)
        self._schedules = [read, *self._schedules][:KEPT_SCHEDULES]
        return read


class TimestepCache:
    """The outputs of the graph that timesteps decide, where the step reads them: a row for each sample, or one for all.

    Args:
        binding: of that graph.
        each_sample: outputs of which each sample has a row.
        timestep: the name of its input for timesteps.
    """

    def __init__(self, binding: TensorBinding, each_sample: Collection[str], timestep: str = Roles.timestep) -> None:
        self._binding = binding
        self._timestep = timestep
        self._each_sample = each_sample
        self._known = KnownTimesteps(waits=lambda timesteps: not timesteps.is_cpu)
        self._read: dict[int, tuple[PreparedInputs, torch.Tensor]] = {}
        self._kept: RowCache[torch.Tensor] = RowCache()

    def of(
        self, timesteps: torch.Tensor, samples: int, beside: Tensors, prepared: PreparedInputs | None, version: int
    ) -> PreparedInputs:
        """The rows: the same memory for as many samples, until the next call.

        Args:
            timesteps: one for all samples, or [samples].
            beside: the graph's other inputs that are not prepared, a row for each sample.
            prepared: those that are.
            version: of the weights.
        """
        number = None if beside else self._known.number(timesteps)
        made = None if number is None else (number, samples, prepared, version)
        kept = None if made is None else self._kept.get(made)
        if kept is None:
            with self._binding.order.making():
                return self._make(timesteps.reshape(-1).expand(samples), beside, prepared, made)
        inputs, piece = self._read[samples]
        piece.copy_(kept)
        return inputs

    def _make(
        self, timesteps: torch.Tensor, beside: Tensors, prepared: PreparedInputs | None, made: _Made | None
    ) -> PreparedInputs:
        samples, given = len(timesteps), [prepared] if prepared else []
        rows = self._binding.run({self._timestep: timesteps, **beside}, *given, in_place=True)
        if samples not in self._read:
            own = {name: values if name in self._each_sample else values[:1] for name, values in rows.items()}
            self._read[samples] = PreparedInputs(own, fixed=True), piece_of(rows)
        inputs, piece = self._read[samples]
        if made is not None:
            self._kept.keep(made, piece.clone())
        return inputs
