"""One graph of ONNX Runtime on torch tensors: inputs are read where they lie, outputs are memory of torch's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from sdort.graph.signature import TensorSpec
from sdort.integrations.torch.torch_place import TorchPlace
from sdort.runtime.session import UNRECORDED
from sdort.runtime.step.preparation import Part

Tensors = Mapping[str, torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]
ALIGNMENT = 256
"""Bytes of which the addresses of tensors in one piece of memory are multiples, as those of allocators are."""


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Torch's dtype of numpy's."""
    return torch.from_numpy(np.zeros(0, dtype)).dtype


def shapes_of(values: Tensors) -> Shapes:
    """The shapes of tensors, in their order."""
    return tuple(tuple(value.shape) for value in values.values())


def in_one_piece(values: Tensors) -> dict[str, torch.Tensor]:
    """Copies of tensors of one device that share a piece of memory, which is copied at once (:func:`piece_of`)."""
    starts, end = [], 0
    for value in values.values():
        starts.append(end)
        end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
    memory = torch.empty(end, dtype=torch.uint8, device=next(iter(values.values())).device)
    made = {
        name: memory[start : start + value.nbytes].view(value.dtype).view(value.shape)
        for start, (name, value) in zip(starts, values.items(), strict=True)
    }
    for name, value in values.items():
        made[name].copy_(value)
    return made


def piece_of(values: Tensors) -> torch.Tensor:
    """The memory that tensors of :func:`in_one_piece` share, as bytes."""
    one = next(iter(values.values()))
    return torch.empty(0, dtype=torch.uint8, device=one.device).set_(one.untyped_storage())


@dataclass(frozen=True, eq=False)
class PreparedInputs:
    """Inputs that another graph has made: bound once for as long as they are the same object.

    Attributes:
        values: as the graph reads them.
        fixed: whether their memory is for good and its content changes; else the content stays as it is.
    """

    values: Tensors
    fixed: bool

    @cached_property
    def shapes(self) -> Shapes:
        return shapes_of(self.values)


@dataclass(frozen=True)
class _Graph:
    """A graph, and where it and torch meet.

    Attributes:
        inputs, outputs: numpy's and torch's dtype of each.
        recorded: whether runs are recorded as a graph of the device.
    """

    session: Part
    place: TorchPlace
    inputs: Mapping[str, tuple[np.dtype[Any], torch.dtype]]
    outputs: Mapping[str, tuple[np.dtype[Any], torch.dtype]]
    recorded: bool

    def bind_input(self, binding: Any, name: str, value: torch.Tensor) -> None:
        """Let an ``IOBinding`` read an input where it is."""
        binding.bind_input(name, *self.place.memory, self.inputs[name][0], list(value.shape), value.data_ptr())

    def bind_output(self, binding: Any, name: str, value: torch.Tensor) -> None:
        """Let an ``IOBinding`` write an output where it is."""
        binding.bind_output(name, *self.place.memory, self.outputs[name][0], list(value.shape), value.data_ptr())

    def allocated(self, sizes: Shapes) -> dict[str, torch.Tensor]:
        """Memory for outputs of these sizes."""
        return {
            name: torch.empty(size, dtype=dtype, device=self.place.device)
            for (name, (_, dtype)), size in zip(self.outputs.items(), sizes, strict=True)
        }


class TensorBinding:
    """A session's graph alone, without what is prepared for it. One thread at a time.

    A tensor is bound by its address: nothing is copied where it is contiguous, of the dtype that the graph declares and
    on the place's device. Outputs are allocated by torch; their sizes are those of the first run on inputs of the same
    sizes, whose outputs pass through the host.

    Args:
        session: an open one, of which this is the graph, or a part of a split one.
        inputs: those of the graph, which are others than those of a session whose graph is a step.
        graph: whether runs are recorded as a graph of the device, one for inputs of each size. It has inputs and
            outputs at addresses of its own; a copy on the device each leads to it and away.
    """

    def __init__(self, session: Part, inputs: Collection[TensorSpec], place: TorchPlace, graph: bool) -> None:
        read = {spec.name: (spec.dtype, torch_dtype(spec.dtype)) for spec in inputs}
        written = {spec.name: (spec.dtype, torch_dtype(spec.dtype)) for spec in session.outputs}
        self._graph = _Graph(session, place, read, written, graph)
        self._sized: dict[tuple[Shapes, ...], _SizedRuns] = {}

    @property
    def inputs(self) -> Collection[str]:
        """The names of the inputs."""
        return self._graph.inputs.keys()

    def fitted(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """An input as the graph reads it: the same tensor where it already is so."""
        dtype, device = self._graph.inputs[name][1], self._graph.place.device
        if value.dtype is dtype and value.device == device and value.is_contiguous() and not value.is_neg():
            return value
        if value.is_floating_point() and not dtype.is_floating_point:
            value = value.round()  # timesteps: cut off, 998.9999 would be 998
        # Views that torch negates when it reads them are read here by their address.
        return value.to(device, dtype).resolve_neg().contiguous()

    def run(self, values: Tensors, *prepared: PreparedInputs, in_place: bool = False) -> dict[str, torch.Tensor]:
        """The outputs by name, on the place's device.

        Args:
            values: the inputs that are not prepared.
            prepared: the others.
            in_place: whether the outputs are the same tensors in every run on inputs of the same sizes, and share a
                piece of memory.

        Raises:
            BadModelError, ProviderError: as :meth:`sdort.runtime.session.Session.run`.
        """
        fitted = {name: self.fitted(name, value) for name, value in values.items()}
        sizes = (shapes_of(fitted), *(each.shapes for each in prepared))
        if sizes in self._sized:
            return self._sized[sizes].run(fitted, prepared, in_place)
        made = self._first(fitted, prepared)
        if in_place:
            made = in_one_piece(made)
        self._sized[sizes] = _SizedRuns(self._graph, shapes_of(made), made if in_place else None)
        return made

    def _first(self, fitted: Tensors, prepared: Sequence[PreparedInputs]) -> dict[str, torch.Tensor]:
        """The outputs of inputs of new sizes, which ONNX Runtime allocates."""
        binding = self._graph.session.io_binding()
        for values in (fitted, *(each.values for each in prepared)):
            for name, value in values.items():
                self._graph.bind_input(binding, name, value)
        for name in self._graph.outputs:
            binding.bind_output(name)
        self._graph.session.run_bound(binding, UNRECORDED)
        self._graph.session.guard(binding.synchronize_outputs)
        made = self._graph.session.guard(binding.copy_outputs_to_cpu)
        return {
            name: torch.from_numpy(np.asarray(value)).to(self._graph.place.device, copy=True)
            for name, value in zip(self._graph.outputs, made, strict=True)
        }


class _SizedRuns:
    """The runs of a graph on inputs of the same sizes; what stays where it was is not bound again.

    Args:
        sizes: of the outputs.
        kept: the outputs' memory, if it is for good.
    """

    def __init__(self, graph: _Graph, sizes: Shapes, kept: dict[str, torch.Tensor] | None) -> None:
        self._graph = graph
        self._sizes = sizes
        self._kept = kept
        self._number = graph.session.new_graph()
        self._binding = graph.session.io_binding()
        self._inputs: dict[str, int] = {}
        self._outputs: dict[str, int] = {}
        self._copies: dict[str, torch.Tensor] = {}
        self._prepared: dict[int, PreparedInputs] = {}

    def run(self, fitted: Tensors, prepared: Sequence[PreparedInputs], in_place: bool) -> dict[str, torch.Tensor]:
        self._take(fitted, copied=self._graph.recorded)
        for index, each in enumerate(prepared):
            if self._prepared.get(index) is not each:
                self._take(each.values, copied=self._graph.recorded and not each.fixed)
                self._prepared[index] = each
        fixed = in_place or self._graph.recorded
        outputs = self._kept if fixed and self._kept else self._graph.allocated(self._sizes)
        self._kept = outputs if fixed else None
        for name, value in outputs.items():
            if self._outputs.get(name) != value.data_ptr():
                self._graph.bind_output(self._binding, name, value)
                self._outputs[name] = value.data_ptr()
        self._graph.session.run_bound(self._binding, self._number)
        if self._graph.recorded and not in_place:
            return {name: value.clone() for name, value in outputs.items()}
        return outputs

    def _take(self, values: Tensors, *, copied: bool) -> None:
        """Bind inputs, or their copies at addresses that a recorded graph can have."""
        for name, value in values.items():
            bound = value
            if copied:
                bound = self._copies.setdefault(name, torch.empty_like(value))
                bound.copy_(value)
            if self._inputs.get(name) != bound.data_ptr():
                self._graph.bind_input(self._binding, name, bound)
                self._inputs[name] = bound.data_ptr()
