"""One graph of ONNX Runtime on torch tensors: inputs are read where they lie, outputs are memory of torch's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from sdort.graph.signature import TensorSpec
from sdort.integrations.torch.torch_place import StreamOrder
from sdort.runtime.session import UNRECORDED
from sdort.runtime.step.preparation import Part
from sdort.runtime.step.step_caches import aligned_places

Tensors = Mapping[str, torch.Tensor]
Shapes = tuple[torch.Size, ...]
COPIED = 1 << 20
"""Bytes of an input that are rather copied to memory that stays bound, and so with outputs: ONNX Runtime takes longer
to bind another address than a device to copy them."""
KEPT_SIZES = 16
"""Sizes of inputs for which memory and bindings are kept, where they are not recorded."""


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Torch's dtype of numpy's."""
    return torch.from_numpy(np.zeros(0, dtype)).dtype


def shapes_of(values: Tensors) -> Shapes:
    """The shapes of tensors, in their order."""
    return tuple([value.shape for value in values.values()])


def in_one_piece(values: Tensors) -> dict[str, torch.Tensor]:
    """Copies of tensors of one device that share a piece of memory, which is copied at once (:func:`piece_of`)."""
    starts, end = aligned_places(value.nbytes for value in values.values())
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
    order: StreamOrder
    inputs: Mapping[str, tuple[np.dtype[Any], torch.dtype]]
    outputs: Mapping[str, tuple[np.dtype[Any], torch.dtype]]
    recorded: bool

    def fitted(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """An input as the graph reads it: the same tensor where it already is so."""
        dtype, device = self.inputs[name][1], self.order.place.device
        if value.dtype is dtype and value.device == device and value.is_contiguous() and not value.is_neg():
            return value
        if value.is_floating_point() and not dtype.is_floating_point:
            value = value.round()  # timesteps: cut off, 998.9999 would be 998
        # Views that torch negates when it reads them are read here by their address.
        return value.to(device, dtype).resolve_neg().contiguous()

    def bind_input(self, binding: Any, name: str, value: torch.Tensor) -> None:
        """Let an ``IOBinding`` read an input where it is."""
        memory = self.order.place.memory
        binding.bind_input(name, *memory, self.inputs[name][0], list(value.shape), value.data_ptr())

    def bind_output(self, binding: Any, name: str, value: torch.Tensor) -> None:
        """Let an ``IOBinding`` write an output where it is."""
        memory = self.order.place.memory
        binding.bind_output(name, *memory, self.outputs[name][0], list(value.shape), value.data_ptr())

    def allocated(self, sizes: Shapes) -> dict[str, torch.Tensor]:
        """Memory for outputs of these sizes."""
        device = self.order.place.device
        return {
            name: torch.empty(size, dtype=dtype, device=device)
            for (name, (_, dtype)), size in zip(self.outputs.items(), sizes, strict=True)
        }

    def run(self, binding: Any, number: int) -> None:
        """Run an ``IOBinding``, in the order of the streams."""
        self.order.run(lambda: self.session.run_bound(binding, number))


class TensorBinding:
    """A session's graph alone, without what is prepared for it. One thread at a time.

    A large tensor is bound by its address: nothing is copied where it is contiguous, of the dtype that the graph
    declares and on the place's device. A small one is copied (:data:`COPIED`). Outputs are allocated by torch; their
    sizes are those of the first run on inputs of the same sizes, whose outputs pass through the host.

    Args:
        session: an open one, of which this is the graph, or a part of a split one.
        inputs: those of the graph, which are others than those of a session whose graph is a step.
        order: of the streams, in a call that has begun.
        graph: whether runs are recorded as a graph of the device, one for inputs of each size. It has inputs and
            outputs at addresses of its own; a copy on the device each leads to it and away.
    """

    def __init__(self, session: Part, inputs: Collection[TensorSpec], order: StreamOrder, graph: bool) -> None:
        read = {spec.name: (spec.dtype, torch_dtype(spec.dtype)) for spec in inputs}
        written = {spec.name: (spec.dtype, torch_dtype(spec.dtype)) for spec in session.outputs}
        self.order = order
        self._graph = _Graph(session, order, read, written, graph)
        self._sized: dict[tuple[Shapes, ...], _SizedRuns] = {}
        self._last: tuple[tuple[Shapes, tuple[PreparedInputs, ...]], _SizedRuns] | None = None
        """Sizes and prepared inputs of the run before: to look for the sizes of all inputs takes longer."""

    @property
    def inputs(self) -> Collection[str]:
        """The names of the inputs."""
        return self._graph.inputs.keys()

    def fitted(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """An input as the graph reads it: the same tensor where it already is so."""
        return self._graph.fitted(name, value)

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
        given = shapes_of(values), prepared
        if self._last and self._last[0] == given:
            return self._last[1].run(values, prepared)
        sizes = given[0], *[each.shapes for each in prepared]
        if known := self._sized.get(sizes):
            self._last = given, known
            return known.run(values, prepared)
        fitted = {name: self._graph.fitted(name, value) for name, value in values.items()}
        made = self._first(fitted, prepared)
        if in_place:
            made = in_one_piece(made)
        if len(self._sized) == KEPT_SIZES and not self._graph.recorded:
            del self._sized[next(iter(self._sized))]
        self._sized[sizes] = _SizedRuns(self._graph, fitted, made, in_place)
        return made

    def _first(self, fitted: Tensors, prepared: Sequence[PreparedInputs]) -> dict[str, torch.Tensor]:
        """The outputs of inputs of new sizes, which ONNX Runtime allocates."""
        binding = self._graph.session.io_binding()
        for values in (fitted, *(each.values for each in prepared)):
            for name, value in values.items():
                self._graph.bind_input(binding, name, value)
        for name in self._graph.outputs:
            binding.bind_output(name)
        self._graph.run(binding, UNRECORDED)
        self._graph.session.guard(binding.synchronize_outputs)
        made = self._graph.session.guard(binding.copy_outputs_to_cpu)
        return {
            name: torch.from_numpy(np.asarray(value)).to(self._graph.order.place.device, copy=True)
            for name, value in zip(self._graph.outputs, made, strict=True)
        }


class _SizedRuns:
    """The runs of a graph on inputs of the same sizes; what stays where it was is not bound again.

    Args:
        inputs: those that are not prepared, as the graph reads them.
        outputs: of the same sizes as those to come.
        in_place: whether these are their memory.
    """

    def __init__(self, graph: _Graph, inputs: Tensors, outputs: dict[str, torch.Tensor], in_place: bool) -> None:
        self._graph = graph
        self._number = graph.session.new_graph()
        self._binding = graph.session.io_binding()
        self._addresses: dict[str, int] = {}
        self._prepared: dict[int, PreparedInputs] = {}
        self._sizes = shapes_of(outputs)
        self._in_place = in_place
        self._outputs = outputs if in_place else None
        """Memory for outputs that is the same in every run."""
        with graph.order.making():
            self._copies = {
                name: torch.empty_like(value)
                for name, value in inputs.items()
                if graph.recorded or value.nbytes <= COPIED
            }
            """Memory for inputs that is."""
            if graph.recorded or sum(value.nbytes for value in outputs.values()) <= COPIED:
                self._outputs = self._outputs or graph.allocated(self._sizes)
        self._bind(self._copies)
        for name, value in (self._outputs or {}).items():
            graph.bind_output(self._binding, name, value)

    def run(self, values: Tensors, prepared: Sequence[PreparedInputs]) -> dict[str, torch.Tensor]:
        for name, value in values.items():
            copy = self._copies.get(name)
            if copy is None:
                self._bind({name: self._graph.fitted(name, value)})
            elif copy.is_floating_point() or not value.is_floating_point():
                copy.copy_(value)
            else:
                copy.copy_(self._graph.fitted(name, value))
        for index, each in enumerate(prepared):
            if self._prepared.get(index) is not each:
                self._prepare(each)
                self._prepared[index] = each
        outputs = self._outputs or self._graph.allocated(self._sizes)
        if self._outputs is None:
            for name, value in outputs.items():
                self._graph.bind_output(self._binding, name, value)
        self._graph.run(self._binding, self._number)
        if self._outputs is None or self._in_place:
            return outputs
        return {name: value.clone() for name, value in outputs.items()}

    def _prepare(self, prepared: PreparedInputs) -> None:
        """Have inputs read that are prepared; a recorded graph has addresses of its own for those that move."""
        if not self._graph.recorded or prepared.fixed:
            self._bind(prepared.values)
            return
        new = {name: value for name, value in prepared.values.items() if name not in self._copies}
        with self._graph.order.making():
            made = {name: torch.empty_like(value) for name, value in new.items()}
        self._copies |= made
        self._bind(made)
        for name, value in prepared.values.items():
            self._copies[name].copy_(value)

    def _bind(self, values: Tensors) -> None:
        for name, value in values.items():
            if self._addresses.get(name) != (address := value.data_ptr()):
                self._graph.bind_input(self._binding, name, value)
                self._addresses[name] = address
