"""Tensors prepared for the steps of a denoising model, in the provider's memory at fixed addresses.

What is made of prompts stays where the part that makes it puts it. What is made of timesteps is a table with a row for
each step; one copy of a row moves all of it to where the step reads it, so that a graph of the device can replay the
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sdort.graph.signature import Array
from sdort.runtime.opener import create_session
from sdort.runtime.session import Session
from sdort.runtime.step.device_buffer import Buffer
from sdort.runtime.step.preparation import BoundPart
from sdort.runtime.step.step_caches import aligned_places

_WORD = np.dtype(np.int32)


class StepRow:
    """Arrays that are others in every step, in one piece of memory, so that one copy changes all of them.

    Args:
        arrays: the shape and dtype of each, by name.
    """

    def __init__(self, session: Session, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self._arrays = dict(arrays)
        places, end = aligned_places([math.prod(shape) * dtype.itemsize for shape, dtype in self._arrays.values()])
        self._places = dict(zip(self._arrays, places, strict=True))
        self.words = Buffer(session, np.zeros(end // _WORD.itemsize, _WORD))
        """The memory, in words that are copied as they are."""

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def binding_arguments(self, name: str, samples: slice | None = None) -> tuple[Any, ...]:
        """Arguments of an ``IOBinding``: an array, or the part of its rows that these samples have."""
        shape, dtype = self._arrays[name]
        first = 0 if samples is None else samples.start
        shape = shape if samples is None else (samples.stop - samples.start, *shape[1:])
        device, number, _, _, address = self.words.binding_arguments()
        return (
            device,
            number,
            dtype,
            list(shape),
            address + self._places[name] + first * dtype.itemsize * math.prod(shape[1:]),
        )

    def array(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of an array."""
        return self._arrays[name]

    def read(self, name: str) -> Array:
        """An array as it is now."""
        shape, dtype = self._arrays[name]
        first = self._places[name]
        content = self.words.read().view(np.uint8)[first : first + math.prod(shape) * dtype.itemsize]
        return content.view(dtype).reshape(shape)

    def widened(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays [steps, 1 or samples, ...], with all samples where the row has them."""
        return {name: np.broadcast_to(each, (len(each), *self._arrays[name][0])) for name, each in values.items()}

    def packed(self, values: Mapping[str, Array]) -> Array:
        """The words of many steps, [steps, words]; ``values`` has arrays [steps, ...] by name."""
        steps = len(next(iter(values.values())))
        content = np.zeros((steps, self.words.shape[0] * _WORD.itemsize), np.uint8)
        for name, (_, dtype) in self._arrays.items():
            each = np.ascontiguousarray(values[name], dtype).reshape(steps, -1).view(np.uint8)
            content[:, self._places[name] : self._places[name] + each.shape[1]] = each
        return content.view(_WORD)


class RowCopies:
    """A table of rows, of which one is copied to a :class:`StepRow` before each step."""

    def __init__(self, session: Session, row: StepRow) -> None:
        from onnx import parser

        model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
            row (int32[W] time) => (int32[W] now) { now = Identity (time) }""")
        options = replace(session.options, graph=False, custom_ops="off", adapters=False)
        ort = session.guard(lambda: create_session(model.SerializeToString(), session.provider, options))
        self._session = Session(ort, Path("row"), session.component, session.provider, options)
        self._row = row
        self._table: Buffer | None = None
        self._bindings: list[Any] = []

    def write(self, values: Mapping[str, Array]) -> None:
        """Let the table have these arrays [steps, 1 or samples, ...]."""
        content = self._row.packed(self._row.widened(values))
        if self._table is not None and self._table.shape == content.shape:
            self._table.write(content)
            return
        self._table = table = Buffer(self._session, content)
        self._bindings = [self._bind(table, step) for step in range(len(content))]

    def _bind(self, table: Buffer, step: int) -> Any:
        binding = self._session.io_binding()
        binding.bind_input("time", *table.binding_arguments(step, self._row.words.shape))
        binding.bind_output("now", *self._row.words.binding_arguments())
        return binding

    def run(self, step: int) -> None:
        """Copy the row of a step."""
        self._session.run_bound(self._bindings[step])


def step_inputs(session: Session) -> Collection[str]:
    """The names of what a run of the open graph takes and nothing prepares."""
    return session.preparation.step if session.preparation else session.inputs


def prepared_rows(session: Session, samples: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of what is prepared of a timestep, for so many samples."""
    preparation = session.preparation
    if preparation is None or preparation.time is None:
        return {}
    counts = {spec.name: samples if spec.name in preparation.each_sample else 1 for spec in preparation.time.outputs}
    rests = {spec.name: tuple(int(size or 0) for size in spec.shape[1:]) for spec in preparation.time.outputs}
    return {spec.name: ((counts[spec.name], *rests[spec.name]), spec.dtype) for spec in preparation.time.outputs}


def bind_prompts(
    session: Session, parts: Sequence[slice], arguments: Callable[[str, slice], Sequence[Any]]
) -> list[BoundPart]:
    """Tensors prepared of prompts, bound for each part of a batch; nothing where there are none.

    Args:
        arguments: of an ``IOBinding``, for an input of the model and a part of the batch.
    """
    if session.preparation is None or session.preparation.prompt is None:
        return []
    prompt = session.preparation.prompt
    return [BoundPart(prompt, {name: arguments(name, part) for name in prompt.inputs}) for part in parts]


def bind_prepared(
    binding: Any, session: Session, row: StepRow | None, part: slice, prompts: Sequence[BoundPart]
) -> None:
    """Bind what is prepared to a step of some samples."""
    preparation = session.preparation
    for prompt in prompts:
        for name, value in prompt.values.items():
            if preparation and name in preparation.taken:
                binding.bind_ortvalue_input(name, value)
    if row is None or preparation is None:
        return
    for name in filter(preparation.taken.__contains__, prepared_rows(session, 1)):
        binding.bind_input(name, *row.binding_arguments(name, part if name in preparation.each_sample else None))


def prepared_beside(
    session: Session, prompts: Sequence[BoundPart], conditioning: Mapping[str, Array]
) -> dict[str, Array]:
    """Further inputs of the timesteps' part for the current samples, [samples, ...] by name."""
    found = {}
    for name in session.preparation.beside if session.preparation else ():
        parts = [session.download(prompt.values[name]) for prompt in prompts if name in prompt.values]
        found[name] = np.concatenate(parts) if parts else conditioning[name]
    return found


def timed_rows(session: Session, timesteps: Array, beside: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors prepared of timesteps, [steps, samples, ...], or [steps, 1, ...] where all samples have the same.

    Args:
        beside: arrays [steps, samples, ...] of what the part of the timesteps takes beside these.
    """
    if session.preparation is None:
        return {}
    samples = next((values.shape[1] for values in beside.values()), 1)
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in beside.items()}
    rows = session.preparation.rows(np.repeat(timesteps, samples), flat)
    steps = len(timesteps)
    shaped = {name: values.reshape(steps, samples, *values.shape[1:]) for name, values in rows.items()}
    return {
        name: values if name in session.preparation.each_sample else values[:, :1] for name, values in shaped.items()
    }
