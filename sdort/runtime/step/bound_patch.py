"""A patch of the image on its device, bound once for a batch, and what it has of the other patches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sdort.graph.signature import Array
from sdort.runtime.device_block import DeviceBlock
from sdort.runtime.device_stream import DeviceStream
from sdort.runtime.peer_copies import copy_block, reach_peer
from sdort.runtime.session import Session
from sdort.runtime.step.bound_unet import BoundBuffers
from sdort.runtime.step.device_buffer import Buffer
from sdort.runtime.step.patch_cut import given_by
from sdort.runtime.step.prepared_inputs import bind_prepared, step_inputs
from sdort.runtime.step.step_caches import aligned_places


class _Layout:
    """Places in a block of all that a patch gives.

    Args:
        arrays: the shape and dtype of each, by name.
    """

    def __init__(self, session: Session, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self._memory = session.memory
        self._arrays = dict(arrays)
        places, self.nbytes = aligned_places(map(self.bytes_of, self._arrays))
        self._places = dict(zip(self._arrays, places, strict=True))

    def bytes_of(self, name: str) -> int:
        """Bytes of an array."""
        shape, dtype = self._arrays[name]
        return math.prod(shape) * dtype.itemsize

    def arguments(self, name: str, address: int) -> tuple[Any, ...]:
        """Arguments of an ``IOBinding`` for an array at an address."""
        shape, dtype = self._arrays[name]
        return (*self._memory, dtype, list(shape), address)

    def within(self, block: DeviceBlock, name: str) -> tuple[Any, ...]:
        """The same for the array in a block."""
        return self.arguments(name, block.address + self._places[name])


class BoundPatch:
    """A patch of the image for the samples that its device has a part of.

    For each of these samples there is a block of memory for every patch: what this one gives, and what the others gave.
    The whole UNet, bound on the same device, writes all of them. What a patch takes of itself is the beginning of its
    own block, which is copied before a run writes there.

    Args:
        buffers: the whole UNet for the same samples, whose inputs but the latents it has.
        index: of the patch, from the top of the image.
        devices: numbers of the devices of all patches.
    """

    def __init__(self, buffers: BoundBuffers, index: int, devices: Sequence[int]) -> None:
        session, points = buffers.session.patch, buffers.session.patch_points
        assert session is not None
        assert points is not None
        self._session, self._points, self._buffers, self._index = session, points, buffers, index
        count, (_, channels, height, width) = buffers.share.stop - buffers.share.start, buffers.sample.shape
        rows = height // points.patches
        self._rows = slice(index * rows, (index + 1) * rows)
        self._sample = Buffer(session, np.zeros((count, channels, rows, width), buffers.sample.dtype))
        self._output = Buffer(session, np.zeros((count, buffers.output.shape[1], rows, width), buffers.output.dtype))
        device, self._number = session.memory
        self._vendor = "" if device == "cpu" else session.provider.vendor
        self._stream = DeviceStream(self._vendor, self._number) if self._vendor else None
        for other in devices if self._vendor else ():
            if other != self._number:
                reach_peer(self._vendor, self._number, other)
        self._layout, self._kept_layout = self._first_layouts()
        self._edge = self._block(max(map(self._layout.bytes_of, points.given)))
        """Zeros, in the place of rows beyond the edge of the image."""
        self._edge.write(0, np.zeros(self._edge.nbytes, np.uint8))
        self._edge.synchronize()
        self._blocks = [[self._block(self._layout.nbytes) for _ in range(points.patches)] for _ in buffers.slices]
        """For each sample a block of each patch."""
        self._kept = [self._block(self._kept_layout.nbytes) for _ in buffers.slices]
        """The beginning of its own block, for the next run."""
        for part, blocks in enumerate(self._blocks):
            given = {
                given_by(name, number): self._layout.within(block, name)
                for name in points.given
                for number, block in enumerate(blocks)
            }
            buffers.bind_outputs(part, given)
        self._bindings = [self._bind(part) for part in range(len(buffers.slices))]

    def _first_layouts(self) -> tuple[_Layout, _Layout]:
        """The layout of a sample's blocks, and of the beginning that a patch takes of itself, the same for all samples:
        a first run of the whole UNet tells the sizes."""
        made = self._buffers.further_outputs(0)
        dtypes = {spec.name: spec.dtype for spec in self._session.outputs}
        shapes = {name: tuple(made[given_by(name, 0)].shape()) for name in self._points.given}
        arrays = {name: (shape, dtypes[name]) for name, shape in shapes.items()}
        kept = {name: arrays[name] for name in self._points.kept}
        return _Layout(self._session, arrays), _Layout(self._session, kept)

    def _block(self, nbytes: int) -> DeviceBlock:
        return DeviceBlock(self._vendor, self._number, nbytes, "what patches give each other")

    def _bind(self, part: int) -> Any:
        """The patch of a sample."""
        session, buffers, blocks, samples = (
            self._session, self._buffers, self._blocks[part], self._buffers.slices[part]
        )  # fmt: skip
        binding, sources = session.io_binding(), self._points.sources(self._index)
        for name, (source, given) in sources.items():
            if source is None:
                taken = self._layout.arguments(given, self._edge.address)
            elif source == self._index:
                taken = self._kept_layout.within(self._kept[part], given)
            else:
                taken = self._layout.within(blocks[source], given)
            binding.bind_input(name, *taken)
        for name in [name for name in step_inputs(session) if name not in sources]:
            latents = name == buffers.roles.sample
            own = _rows(self._sample, samples) if latents else buffers.arguments(name, samples)
            binding.bind_input(name, *own)
        bind_prepared(binding, session, buffers.row, samples, buffers.prompts[part : part + 1])
        binding.bind_output(session.outputs[0].name, *_rows(self._output, samples))
        for name in self._points.given:
            binding.bind_output(name, *self._layout.within(blocks[self._index], name))
        return binding

    def run(self, sample: Array) -> Array:
        """The output of the patch's rows.

        Args:
            sample: the UNet's input for the device's samples, all rows.
        """
        self._sample.write(sample[:, :, self._rows])
        for blocks, kept in zip(self._blocks, self._kept, strict=True):
            copy_block(blocks[self._index], kept, self._stream)
        self.wait()
        for binding, graph in zip(self._bindings, self._buffers.graphs, strict=True):
            self._session.run_bound(binding, graph)
        return self._output.read()

    def records(self) -> bool:
        """Whether the next run records graphs of the device."""
        return any(self._session.records(graph) for graph in self._buffers.graphs)

    def give(self, other: BoundPatch) -> None:
        """Begin to copy what the last run gave to another patch's device. The copies are there when :meth:`wait` has
        returned, and the device may not run before."""
        for own, theirs in zip(self._blocks, other._blocks, strict=True):
            copy_block(own[self._index], theirs[self._index], self._stream)

    @property
    def given_bytes(self) -> int:
        """Bytes of what a run gives to each other patch."""
        return len(self._blocks) * self._layout.nbytes

    def wait(self) -> None:
        """Wait for the copies of :meth:`give`."""
        if self._stream:
            self._stream.wait()


def _rows(buffer: Buffer, samples: slice) -> tuple[Any, ...]:
    """Arguments of an ``IOBinding`` for the rows that some samples have."""
    return buffer.binding_arguments(samples.start, (samples.stop - samples.start, *buffer.shape[1:]))
