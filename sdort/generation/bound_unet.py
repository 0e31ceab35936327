"""The UNet with its inputs and output at fixed addresses in the provider's memory, bound once for a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdort.errors import UsageError
from sdort.model.signature import Array, static_size, timestep_shape
from sdort.pipelines.families import Conditioning
from sdort.runtime.session import Session
from sdort.workload.residuals import zero_residuals

InputShapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Conditioning inputs by name, each with the shape of one sample."""


class Buffer:
    """An array in the provider's memory, at one address for good."""

    def __init__(self, session: Session, values: Array) -> None:
        self._host = np.array(values, order="C")  # on the CPU the memory itself
        self._session = session
        self._value = session.upload(self._host)
        self.shape, self.dtype = self._host.shape, self._host.dtype

    def write(self, values: Array) -> None:
        content = np.ascontiguousarray(values, self.dtype).reshape(self.shape)
        self._session.guard(lambda: self._value.update_inplace(content))

    def fill(self, values: Array | float) -> None:
        """Write values that are repeated to the buffer's shape."""
        self.write(np.broadcast_to(values, self.shape))

    def read(self) -> Array:
        return np.array(self._session.download(self._value))  # a copy: on the CPU it would be the memory itself

    def binding_arguments(self, first: int = 0, shape: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Arguments of an ``IOBinding``: the device, type, shape and address of the part from ``[first]`` on."""
        inner = self.dtype.itemsize * math.prod(self.shape[1:])
        return (
            *self._session.memory,
            self.dtype,
            list(self.shape if shape is None else shape),
            self._value.data_ptr() + first * inner,
        )


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


class BoundBuffers:
    """The UNet's inputs and output for one batch, bound once.

    Args:
        shapes: the shape of one sample of each conditioning input.
        number: the number of the first graph that may be recorded here; each part of the batch has one of its own.
    """

    def __init__(self, session: Session, batch: Batch, shapes: Mapping[str, tuple[int, ...]], number: int) -> None:
        self.session = session
        self.batch = batch
        inputs, output = session.inputs, session.outputs[0]
        channels = static_size(output.shape, 1) or batch.latent[0]
        shape = (batch.samples, batch.latent[0] + batch.extra, *batch.latent[1:])
        self.slices = batch_slices(session, "sample", batch.samples)
        samples = self.slices[0].stop
        self.sample = Buffer(session, np.zeros(shape, inputs["sample"].dtype))
        self.output = Buffer(session, np.zeros((batch.samples, channels, *batch.latent[1:]), output.dtype))
        self.timestep = Buffer(session, np.zeros(timestep_shape(inputs, samples), inputs["timestep"].dtype))
        self.conditioning = {
            name: Buffer(session, np.zeros((batch.samples, *shape), inputs[name].dtype))
            for name, shape in shapes.items()
        }
        self.residuals = {
            name: Buffer(session, values) for name, values in zero_residuals(inputs, self.sample.shape).items()
        }
        self.graphs = [number + index for index in range(len(self.slices))]
        self._bindings = [self._bind(part) for part in self.slices]

    def _bind(self, part: slice) -> Any:
        binding = self.session.io_binding()
        for name, buffer in {"sample": self.sample, **self.conditioning, **self.residuals}.items():
            binding.bind_input(name, *buffer.binding_arguments(part.start, (part.stop - part.start, *buffer.shape[1:])))
        binding.bind_input("timestep", *self.timestep.binding_arguments())
        rest = (part.stop - part.start, *self.output.shape[1:])
        binding.bind_output(self.session.outputs[0].name, *self.output.binding_arguments(part.start, rest))
        return binding

    def write_conditioning(self, samples: Conditioning) -> None:
        """Let all samples be conditioned by these arrays [samples, ...] from the next run on."""
        for name, values in samples.items():
            self.conditioning[name].write(values)

    def clear_residuals(self) -> None:
        """Take away what controls of an earlier run left in the UNet's residual inputs."""
        for buffer in self.residuals.values():
            buffer.fill(0.0)

    def run(self) -> None:
        """One run of the UNet from the buffers into the buffers."""
        for binding, graph in zip(self._bindings, self.graphs, strict=True):
            self.session.run_bound(binding, graph)


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


def condition_width(unet: Session) -> int | None:
    """Width of the embedding of the guidance scale; None if the UNet does not take one."""
    spec = unet.inputs.get("timestep_cond")
    return (static_size(spec.shape, 1) or 256) if spec else None
