"""The UNet with its inputs and output at fixed addresses in the provider's memory, bound once for a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sdort.errors import UsageError
from sdort.families.denoiser_arguments import timestep_shape
from sdort.families.known_families import roles_of
from sdort.graph.signature import Array, HasInputs, static_size
from sdort.machine.gpus import free_memory
from sdort.pipelines.conditioning import Conditioning
from sdort.runtime.session import UNRECORDED, Session
from sdort.runtime.step.device_buffer import Buffer, dims_of
from sdort.runtime.step.prepared_inputs import (
    StepRow,
    bind_prepared,
    bind_prompts,
    prepared_beside,
    prepared_rows,
    step_inputs,
    timed_rows,
)
from sdort.runtime.step.step_caches import RowTables
from sdort.runtime.step.step_conditions import Lengths, StepConditions
from sdort.workload.steering_inputs import zero_residuals

TABLE_BYTES = 1 << 27
"""Bytes of the rows of schedules that stay in the host's memory for later runs, of each shape of batch."""
IN_TURN_TABLE_BYTES = 1 << 30
"""The same where what makes them is closed: those of all batches of a run are made before."""
InputShapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Conditioning inputs by name, each with the shape of one sample."""


@dataclass(frozen=True)
class Batch:
    """Samples that the UNet runs on at once: ``copies`` prompts (with several, the negative one first) times
    ``images``."""

    copies: int
    images: int
    latent: tuple[int, int, int]
    """Channels, height, width."""
    extra: int = 0
    """Channels that the UNet takes beside those of the latents: a mask and the latents of what it leaves."""

    @property
    def samples(self) -> int:
        return self.copies * self.images

    @property
    def elements(self) -> int:
        """Number of elements of all images' latents."""
        return self.images * math.prod(self.latent)


def batch_slices(session: Session, name: str, total: int) -> list[slice]:
    """Slices of ``total`` samples: one, or parts of the batch that a static model has.

    Raises:
        UsageError: the static batch does not divide ``total``.
    """
    size = static_size(session.inputs[name].shape, 0) or total
    if total % size:
        raise UsageError(
            f"{session.component} was exported for {size} samples at once, which does not divide {total}",
            hint="With guidance every image is two samples, and one more for each AND: change --num-images, or export "
            "without --static.",
        )
    return [slice(first, first + size) for first in range(0, total, size)]


def _of_one_length(part: slice, lengths: Mapping[str, Sequence[int]]) -> list[slice]:
    """Parts of some samples that have the same numbers of tokens."""
    kinds = [tuple(each[sample] for each in lengths.values()) for sample in range(part.start, part.stop)]
    ends = [1 + index for index, (kind, following) in enumerate(pairwise(kinds)) if kind != following]
    return [slice(part.start + first, part.start + end) for first, end in pairwise([0, *ends, len(kinds)])]


class BoundBuffers:
    """The UNet's inputs and output for one batch, bound once.

    Args:
        shapes: the shape of one sample of each conditioning input.
        number: the number of the first graph that may be recorded here; each part of the batch has one of its own.
        share: the samples that it runs on, and is conditioned for; by default all.
        lengths: tokens of samples that do not all have as many: those in a row with the same number run at once.
        latents_of_all: whether the sample and the output have all samples, and not those of the share alone; for a
            share of the first ones.
    """

    def __init__(
        self,
        session: Session,
        batch: Batch,
        shapes: Mapping[str, tuple[int, ...]],
        number: int,
        share: slice | None = None,
        *,
        lengths: Lengths = (),
        latents_of_all: bool = True,
    ) -> None:
        self.session = session
        self.batch = batch
        self.share = share or slice(0, batch.samples)
        own = self.share.stop - self.share.start
        count = batch.samples if latents_of_all else own
        inputs, output, self.roles = session.inputs, session.outputs[0], roles_of(session.inputs)
        channels = static_size(output.shape, 1) or batch.latent[0]
        shape = (count, batch.latent[0] + batch.extra, *batch.latent[1:])
        self._lengths = {name: each[self.share] for name, each in lengths}
        whole = batch_slices(session, self.roles.sample, own)
        if session.patch:  # cut for one sample at a time
            whole = [slice(sample, sample + 1) for sample in range(own)]
        self.slices = [part for each in whole for part in _of_one_length(each, self._lengths)]
        self.sample = Buffer(session, np.zeros(shape, inputs[self.roles.sample].dtype))
        self.latents = self.sample
        """The channels of the sample that are latents, which is what a ControlNet reads."""
        if batch.extra:
            self.latents = Buffer(session, np.zeros((count, *batch.latent), self.sample.dtype))
        self.output = Buffer(session, np.zeros((count, channels, *batch.latent[1:]), output.dtype))
        self.conditioning = {
            name: Buffer(session, np.zeros((own, *shape), inputs[name].dtype)) for name, shape in shapes.items()
        }
        self.residuals = {
            name: Buffer(session, values) for name, values in zero_residuals(inputs, self.sample.shape).items()
        }
        clock = timestep_shape(inputs, self.slices[0].stop), inputs[self.roles.timestep].dtype
        self.row = StepRow(session, {self.roles.timestep: clock, **prepared_rows(session, own)})
        self.timesteps = np.zeros(0)
        self.changes = 0
        """Grows with every other conditioning, and with every other list of timesteps."""
        frees = bool(session.preparation and session.preparation.frees)
        self.rows = RowTables(IN_TURN_TABLE_BYTES if frees else TABLE_BYTES)
        """The rows of schedules, by all that they are made of."""
        self._written: tuple[int, dict[str, Array]] | None = None
        """The conditioning that the buffers have, and the version of the weights that prepared it."""
        for part in self.slices if session.programs else ():
            session.require_programs({name: dims_of(self.arguments(name, part)) for name in inputs})
        self.prompts = bind_prompts(session, self.slices, self.arguments)
        self.graphs = [number + index for index in range(len(self.slices))]
        self._bindings: list[Any] = []
        """From the first run on: they open the session."""
        self._shallow: list[Any] = []
        """Of the UNet without its deep part, from the first run on."""
        session.bound.add(self)

    def unbind(self) -> None:
        """Drop the session's bindings, before it is closed."""
        self._bindings, self._shallow = [], []

    def arguments(self, name: str, part: slice) -> tuple[Any, ...]:
        """Binding arguments of an input for some of the samples."""
        if name == self.roles.timestep:
            return self.row.binding_arguments(name)
        buffer = {self.roles.sample: self.sample, **self.conditioning, **self.residuals}[name]
        shape = (part.stop - part.start, *buffer.shape[1:])
        if name in self._lengths:
            shape = (shape[0], self._lengths[name][part.start], *shape[2:])
        return buffer.binding_arguments(part.start, shape)

    def _bind(self, session: Session, number: int, kept: Mapping[str, Any] | None = None) -> Any:
        """A part of the batch, bound to the UNet or to its outer part, which takes ``kept`` too, as ``OrtValue``."""
        binding, part = session.io_binding(), self.slices[number]
        for name, value in (kept or {}).items():
            binding.bind_ortvalue_input(name, value)
        for name in [name for name in step_inputs(session) if name not in (kept or {})]:
            binding.bind_input(name, *self.arguments(name, part))
        bind_prepared(binding, session, self.row, part, self.prompts[number : number + 1])
        rest = (part.stop - part.start, *self.output.shape[1:])
        binding.bind_output(session.outputs[0].name, *self.output.binding_arguments(part.start, rest))
        return binding

    def write_conditioning(self, samples: Conditioning) -> None:
        """Let all samples be conditioned by these arrays [samples, ...] from the next run on."""
        version = self.session.weights.version
        packed = {name: np.array(self._packed(name, values[self.share])) for name, values in samples.items()}
        if self._written and self._written[0] == version and _equal(self._written[1], packed):
            return
        self._written = None  # until all of it is there
        for name, values in packed.items():
            self.conditioning[name].write(values)
        for prompt in self.prompts:
            prompt.run()
        self._written = version, packed
        self.changes += 1

    def _packed(self, name: str, values: Array) -> Array:
        """An input [samples, tokens, width] of the share, with the tokens that each part has in one piece."""
        if name not in self._lengths:
            return values
        made = np.zeros_like(values)
        for part in self.slices:
            own = values[part, : self._lengths[name][part.start]]
            made[part].reshape(-1)[: own.size] = own.reshape(-1)
        return made

    def _own(self, name: str, values: Array, part: slice) -> Array:
        """A part's samples of an input that was read back."""
        if name not in self._lengths:
            return values[part]
        shape = (part.stop - part.start, self._lengths[name][part.start], *values.shape[2:])
        return values[part].reshape(-1)[: math.prod(shape)].reshape(shape)

    def step_rows(self, timesteps: Array, conditions: StepConditions) -> Array:
        """Conditioning of a row in each step, [steps, words]; it is written on the way.

        What makes them may be closed since then and opens again; where models load in turn and memory has no room for
        it beside the step, that closes.

        Args:
            timesteps: [steps].
            conditions: of every step.
        """
        shape, dtype = self.row.array(self.roles.timestep)
        times = (np.round(timesteps) if dtype.kind == "i" else timesteps).astype(dtype)
        self.timesteps, self.changes = times, self.changes + 1
        preparation, images = self.session.preparation, self.batch.images
        of_steps: dict[str, list[Array]] = {}
        for step in range(len(times)):
            if preparation and preparation.beside and conditions.changes(step):
                self.write_conditioning(repeated(conditions.at(step), images))
                written = {name: buffer.read() for name, buffer in self.conditioning.items()}
                beside = prepared_beside(self.session, self.prompts, written)
            for name in preparation.beside if preparation else ():
                of_steps.setdefault(name, []).append(beside[name])
        rows = {name: np.stack(values) for name, values in of_steps.items()}
        of_rows = [(name, values.tobytes()) for name, values in rows.items()]
        key = (times.dtype.str, times.tobytes(), self.session.weights.version, *of_rows)
        kept = self.rows.get(key)
        if kept is not None:
            return kept
        if preparation and preparation.time and not preparation.time.is_open:
            self._make_room(preparation.time.nbytes)
        made = timed_rows(self.session, times, rows)
        clock = np.broadcast_to(times.reshape(-1, *[1] * len(shape)), (len(times), *shape))
        packed = self.row.packed({self.roles.timestep: clock, **self.row.widened(made)})
        self.rows.keep(key, packed)
        return packed

    def _make_room(self, nbytes: int) -> None:
        """Close the step where the part of the timesteps is to open, and there is no room for both."""
        session = self.session
        free = free_memory(session.provider.vendor, session.options.device_id)
        if free is not None and free < nbytes:
            session.close()

    def begin(self, conditions: StepConditions) -> None:
        """Make what the first step takes, close what no step needs any more, and open the step.

        Args:
            conditions: of every step, as :meth:`step_rows` has them.
        """
        self.write_conditioning(repeated(conditions.at(0), self.batch.images))
        if self.session.preparation:
            changing = any(conditions.changes(step) for step in range(1, len(self.timesteps)))
            self.session.preparation.rest(prompts_change=changing)
        self.session.start()

    def write_sample(self, latents: Array, extra: Array | None = None) -> None:
        """Let the next run take these latents [images, channels, height, width], the same for all copies.

        Args:
            extra: [images, ``batch.extra``, height, width].
        """
        self.latents.write(np.concatenate([latents] * self.batch.copies))
        if extra is not None:
            self.sample.write(np.concatenate([np.concatenate([latents, extra], axis=1)] * self.batch.copies))

    def feeds(self) -> list[dict[str, Array]]:
        """Inputs of the next run by name, copied to the host: a dictionary for each part of the batch."""
        buffers = {self.roles.sample: self.sample, **self.conditioning, **self.residuals}
        whole = {name: buffer.read() for name, buffer in buffers.items()}
        clock = self.row.read(self.roles.timestep)
        parts = [{name: self._own(name, values, part) for name, values in whole.items()} for part in self.slices]
        return [{**part, self.roles.timestep: clock} for part in parts]

    def clear_residuals(self) -> None:
        """Take away what controls of an earlier run left in the UNet's residual inputs."""
        for buffer in self.residuals.values():
            buffer.fill(0.0)

    def run(self, step: int, whole: bool = True, *, wait: bool = True) -> None:
        """One run of the UNet from the buffers into the buffers.

        Args:
            step: which of the rows of :meth:`step_rows` it has.
            whole: with its deep part, and not with what the last whole run gave of that.
            wait: as :meth:`sdort.runtime.session.Session.run_bound` takes it.
        """
        session, bindings = self.session, self._bound()
        if session.shallow and not whole:
            session, bindings = session.shallow, self._shallow
        elif session.shallow and not self._shallow:
            self._shallow = [self._first_run(session, session.shallow, number) for number in range(len(bindings))]
            return
        for binding, graph in zip(bindings, self.graphs, strict=True):
            session.run_bound(binding, graph, wait=wait)

    def _bound(self) -> list[Any]:
        """The parts of the batch, bound to the UNet."""
        if not self._bindings:
            self._bindings = [self._bind(self.session, number) for number in range(len(self.slices))]
        return self._bindings

    def records(self, whole: bool = True) -> bool:
        """Whether the next such run records graphs of the device."""
        session = self.session.shallow if self.session.shallow and not whole else self.session
        return any(session.records(graph) for graph in self.graphs)

    def _first_run(self, session: Session, shallow: Session, number: int) -> Any:
        """A run that says how large the deep part's output is, which stays at its address; the outer part, bound."""
        kept = self.further_outputs(number)
        self._bindings[number].bind_ortvalue_output(session.kept, kept[session.kept])
        return self._bind(shallow, number, kept)

    def further_outputs(self, number: int) -> dict[str, Any]:
        """Outputs of a part of the batch beside the UNet's own, as ``OrtValue`` by name, where a run puts them that has
        the inputs as they are now."""
        binding, names = self._bound()[number], [spec.name for spec in self.session.outputs[1:]]
        for name in names:
            binding.bind_output(name, *self.session.memory)
        self.session.run_bound(binding, UNRECORDED)
        return dict(zip(names, binding.get_outputs()[1:], strict=True))

    def bind_outputs(self, number: int, outputs: Mapping[str, Sequence[Any]]) -> None:
        """Have such outputs written elsewhere.

        Args:
            outputs: arguments of ``IOBinding.bind_output`` by name.
        """
        for name, arguments in outputs.items():
            self._bindings[number].bind_output(name, *arguments)


def _equal(first: Conditioning, second: Conditioning) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def repeated(conditions: Sequence[Conditioning], images: int) -> Conditioning:
    """The conditioning of all samples: [conditions * images, ...] by input, every condition for all images in a row.

    Args:
        conditions: arrays [1, ...], the same for all images, or [images, ...].
    """
    return {
        name: np.concatenate(
            [np.broadcast_to(condition[name], (images, *condition[name].shape[1:])) for condition in conditions]
        )
        for name in conditions[0]
    }


def condition_width(unet: HasInputs) -> int | None:
    """Width of the embedding of the guidance scale, 0 for the scale itself; None if the denoiser takes neither."""
    spec = unet.inputs.get(roles_of(unet.inputs).guidance or "")
    if spec is None:
        return None
    return (static_size(spec.shape, 1) or 256) if len(spec.shape) > 1 else 0
