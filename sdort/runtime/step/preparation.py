"""The parts of a UNet that run before the steps: once for a prompt, and once for all timesteps of a schedule.

:mod:`sdort.runtime.step.step_split` makes their graphs. What the prompt's part makes stays in the provider's memory;
what is made of the timesteps is small, and goes to the host, which lays it out for the loop that needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sdort.console import detail
from sdort.families.family import Roles
from sdort.graph.signature import Array, TensorSpec
from sdort.runtime.step.step_caches import Mark, PromptCache, RowCache
from sdort.tables import size_text

ROWS = 64
"""Rows that the part of the timesteps takes at once, the last ones filled up: one shape for schedules of any length, to
be tuned or compiled once, and results that do not depend on that length."""


class Part(Protocol):
    """A session, as far as it is needed here."""

    ort: Any
    inputs: dict[str, TensorSpec]
    outputs: list[TensorSpec]

    @property
    def memory(self) -> tuple[str, int]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def openings(self) -> int: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]: ...
    def io_binding(self) -> Any: ...
    def run_bound(self, binding: Any, graph: int = 1) -> None: ...
    def upload(self, value: Array) -> Any: ...
    def download(self, value: Any) -> Array: ...
    def guard(self, call: Any) -> Any: ...
    def new_graph(self) -> int: ...
    def stop(self) -> None: ...


class BoundPart:
    """A part on inputs at fixed addresses. Its outputs have memory of their own from the first run on, which is here:
    the part can be closed.

    Args:
        inputs: arguments of ``IOBinding.bind_input`` by name, of the part's inputs and others.
    """

    def __init__(self, part: Part, inputs: Mapping[str, Sequence[Any]]) -> None:
        self._part = part
        self._inputs = {name: inputs[name] for name in part.inputs}
        binding = self._bound()
        for spec in part.outputs:
            binding.bind_output(spec.name, *part.memory)
        part.run_bound(binding)
        made = zip([spec.name for spec in part.outputs], binding.get_outputs(), strict=True)
        self.values: dict[str, Any] = {name: part.upload(np.array(part.download(value))) for name, value in made}
        """The outputs as ``OrtValue``, by name."""

    def _bound(self) -> Any:
        binding = self._part.io_binding()
        for name, arguments in self._inputs.items():
            binding.bind_input(name, *arguments)
        return binding

    def run(self) -> None:
        """Make the outputs of what the inputs are now."""
        binding = self._bound()
        for name, value in self.values.items():
            binding.bind_ortvalue_output(name, value)
        self._part.run_bound(binding)


_USUAL = Roles()


class Preparation:
    """The part of a denoising model that runs before the steps.

    Args:
        prompt, time: the parts, None where there is nothing of theirs.
        each_sample: as in :class:`sdort.runtime.step.step_split.StepSplit`.
        step: the step's inputs.
        roles: of the whole model's inputs.
    """

    def __init__(
        self,
        prompt: Part | None,
        time: Part | None,
        each_sample: Collection[str],
        step: Iterable[str],
        roles: Roles = _USUAL,
    ) -> None:
        self.roles = roles
        self.prompt = prompt
        self.time = time
        self.each_sample = each_sample
        self.frees = False
        """Whether parts give their memory back once the steps need nothing more of them."""
        self._take(step)
        self._prompts = PromptCache(_PromptArrays(prompt, roles.sample)) if prompt else None
        self._rows: RowCache[dict[str, Array]] = RowCache()

    def for_step(self, step: Iterable[str]) -> Preparation:
        """The same parts for another step, which takes no more of what they make.

        Args:
            step: its inputs.
        """
        other = copy(self)
        other._take(step)
        return other

    def _take(self, step: Iterable[str]) -> None:
        made = {spec.name for part in self.parts for spec in part.outputs}
        self.taken = list(step)
        """The step's inputs."""
        self.step = [name for name in self.taken if name not in made]
        """Those that are the whole model's too."""

    @property
    def parts(self) -> list[Part]:
        return [part for part in (self.prompt, self.time) if part]

    @property
    def beside(self) -> list[str]:
        """Further inputs of the timesteps' part, a row for each timestep."""
        return [name for name in self.time.inputs if name != self.roles.timestep] if self.time else []

    def rows(self, timesteps: Array, beside: Mapping[str, Array]) -> dict[str, Array]:
        """Tensors made of timesteps.

        Args:
            timesteps: [rows].
            beside: arrays [rows, ...] of :attr:`beside`.

        Returns:
            Arrays [rows, ...] by name.
        """
        if self.time is None:
            return {}
        found: dict[str, list[Array]] = {}
        for first in range(0, len(timesteps), ROWS):
            chosen = np.minimum(np.arange(first, first + ROWS), len(timesteps) - 1)
            fed = {self.roles.timestep: timesteps[chosen], **{name: beside[name][chosen] for name in self.beside}}
            for name, values in self.time.run(fed).items():
                found.setdefault(name, []).append(values[: len(timesteps) - first])
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def rest(self, *, prompts_change: bool) -> None:
        """Close the parts that are done, where :attr:`frees` says so; a later use opens them again.

        Args:
            prompts_change: whether steps are to come that take other prompts. A part of the prompts that was opened
                again stays open: others are going to come.
        """
        if self.time and self.frees:
            self._close(self.time, "the timesteps")
        if self.prompt and self.frees and not prompts_change and self.prompt.openings == 1:
            self._close(self.prompt, "the prompts")

    def _close(self, part: Part, what: str) -> None:
        if part.is_open:
            detail(f"the part of {what} is closed: {size_text(part.nbytes)} of weights")
            part.close()

    def forget(self) -> None:
        """Keep nothing that was made for earlier prompts and timesteps."""
        if self._prompts:
            self._prompts.forget()
        self._rows = RowCache()

    def step_feeds(self, feeds: Mapping[str, Any], version: int) -> dict[str, Any]:
        """The step's inputs.

        Args:
            feeds: the whole model's: arrays, or ``OrtValue``.
            version: of the weights; of other ones, other things are made.
        """
        made = self._prompts.of(feeds, version) if self._prompts else {}
        step = {name: feeds[name] for name in self.step}
        step |= {name: value for name, value in made.items() if name in self.taken}
        if self.time is None:
            return step
        beside = {name: _array(self.time, made.get(name, feeds.get(name))) for name in self.beside}
        timesteps = np.broadcast_to(
            _array(self.time, feeds[self.roles.timestep]).reshape(-1), _shape(feeds[self.roles.sample])[:1]
        )
        key = (timesteps.tobytes(), *[values.tobytes() for values in beside.values()], version)
        rows = self._rows.get(key)
        if rows is None:
            self._rows.keep(key, rows := self.rows(timesteps, beside))
        taken = {name: values for name, values in rows.items() if name in self.taken}
        return step | {name: values if name in self.each_sample else values[:1] for name, values in taken.items()}


@dataclass(frozen=True)
class OfShape:
    """A mark of an input whose values do not count, but its shape."""

    shape: tuple[int, ...]

    def is_of(self, value: Any) -> bool:
        """Whether a value has this shape."""
        return _shape(value) == self.shape


class _PromptArrays:
    """The part of the prompts on arrays of the host; what it makes is ``OrtValue`` by name.

    Args:
        sample: the name of the latents, of which the part takes the shape alone.
    """

    def __init__(self, part: Part, sample: str) -> None:
        self._part = part
        self._sample = sample

    @property
    def inputs(self) -> Collection[str]:
        return self._part.inputs.keys()

    def fitted(self, name: str, value: Any) -> Array:
        if name == self._sample:
            return np.zeros(_shape(value), self._part.inputs[name].dtype)
        return _array(self._part, value)

    def equal(self, kept: Array, value: Array) -> bool:
        return np.array_equal(kept, value, equal_nan=True)

    def mark(self, name: str, value: Any) -> Mark | None:
        """None but for the latents: whoever has an array may change it."""
        return OfShape(_shape(value)) if name == self._sample else None

    def make(self, fitted: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Any]]:
        part = self._part
        inputs = {name: part.upload(values) for name, values in fitted.items()}
        binding = part.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for spec in part.outputs:
            binding.bind_output(spec.name, *part.memory)
        part.run_bound(binding)
        made = dict(zip([spec.name for spec in part.outputs], binding.get_outputs(), strict=True))
        return {name: np.array(values) for name, values in fitted.items()}, made


def _array(part: Part, value: Any) -> Array:
    return value if isinstance(value, np.ndarray) else part.download(value)


def _shape(value: Any) -> tuple[int, ...]:
    # That of an OrtValue is a method, that of an array, NumPy's or torch's, a property.
    shape = value.shape
    return tuple(shape() if callable(shape) else shape)
