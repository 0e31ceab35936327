"""Sessions of ONNX Runtime's on the pieces of a graph, as one session on the whole of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx

from sdort.runtime.late_ort import Argument, arguments_of
from sdort.runtime.placed_weights import PlacedWeights
from sdort.runtime.streamed_weights import StreamedWeights


@dataclass(frozen=True)
class Offloaded:
    """The weights of a denoiser's step of which the device's memory does not hold all."""

    resident: int
    """Bytes that stay in the device's memory."""
    streamed: int
    """Bytes that are copied to it in every step."""
    pieces: int
    """Pieces in which they are."""
    copy_seconds: float
    """Estimated seconds of a step's copies, most of which go on while pieces compute."""


class _Tensor(NamedTuple):
    """A tensor between two pieces."""

    last: int
    """The last piece that takes it."""
    on_host: bool
    """Whether it lies in the host's memory: shapes do, which pieces read there."""


class PiecewiseOrt:
    """Stand-in for an ``InferenceSession`` on a graph of which there are pieces.

    Args:
        graph: the whole.
        sessions: an ``InferenceSession`` for each piece, in the order in which they run.
        streamed: the weights of the last ones.
        resident: those of the first one, where it has its own.
        offloaded: how many they are.
        memory: device name and index, where tensors between pieces lie.
    """

    def __init__(
        self,
        graph: onnx.ModelProto,
        sessions: Sequence[Any],
        streamed: StreamedWeights,
        resident: PlacedWeights | None,
        offloaded: Offloaded,
        memory: tuple[str, int],
    ) -> None:
        given = {tensor.name for tensor in graph.graph.initializer}
        self._inputs = arguments_of(info for info in graph.graph.input if info.name not in given)
        self._outputs = arguments_of(graph.graph.output)
        self.sessions = sessions
        self.streamed = streamed
        self._resident = resident  # sessions do not hold it
        self.offloaded = offloaded
        self.memory = memory
        self.takes = [[each.name for each in session.get_inputs()] for session in sessions]
        self.gives = [[each.name for each in session.get_outputs()] for session in sessions]
        last = {name: number for number, taken in enumerate(self.takes) for name in taken}
        types = {each.name: each.type for session in sessions for each in session.get_outputs()}
        self.between = {
            name: _Tensor(last.get(name, -1), "float" not in types[name] and "double" not in types[name])
            for given in self.gives
            for name in given
        }

    def get_inputs(self) -> list[Argument]:
        return self._inputs

    def get_outputs(self) -> list[Argument]:
        return self._outputs

    def get_providers(self) -> list[str]:
        return list(self.sessions[0].get_providers())

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return dict(self.sessions[0].get_provider_options())

    def get_tuning_results(self) -> list[dict[str, Any]]:
        found = [each for each in self.sessions if hasattr(each, "get_tuning_results")]
        return [result for session in found for result in session.get_tuning_results()]

    def needed(self, values: dict[str, Any], number: int) -> dict[str, Any]:
        """Those of some tensors that pieces after this one take."""
        return {name: value for name, value in values.items() if self.between[name].last > number}

    def io_binding(self) -> PiecewiseBinding:
        return PiecewiseBinding(self)

    def run_with_iobinding(self, binding: PiecewiseBinding, options: Any = None) -> None:
        binding.run(options)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray[Any, Any]], options: Any = None) -> Any:
        binding = self.io_binding()
        for name, values in feeds.items():
            binding.bind_cpu_input(name, values)
        return self._all(binding, names, options).copy_outputs_to_cpu()

    def run_with_ort_values(self, names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any = None) -> Any:
        binding = self.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        return self._all(binding, names, options).get_outputs()

    def _all(self, binding: PiecewiseBinding, names: Sequence[str] | None, options: Any) -> PiecewiseBinding:
        """A binding run, with outputs where the provider puts them."""
        for name in names or [each.name for each in self._outputs]:
            binding.bind_output(name, *self.memory)
        binding.run(options)
        binding.synchronize_outputs()
        return binding


class PiecewiseBinding:
    """Stand-in for an ``IOBinding`` of a :class:`PiecewiseOrt`. Tensors between pieces live until the last piece that
    takes them has run."""

    def __init__(self, ort: PiecewiseOrt) -> None:
        self._ort = ort
        self._inputs: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self._outputs: dict[str, tuple[str, tuple[Any, ...]]] = {}
        """Of each tensor the method of an ``IOBinding`` that binds it, and its further arguments."""
        self._values: dict[str, Any] = {}
        """Outputs of the last run."""

    def bind_input(self, name: str, *place: Any) -> None:
        self._inputs[name] = "bind_input", place

    def bind_cpu_input(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self._inputs[name] = "bind_cpu_input", (values,)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self._inputs[name] = "bind_ortvalue_input", (value,)

    def bind_output(self, name: str, *place: Any) -> None:
        self._outputs[name] = "bind_output", place

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        self._outputs[name] = "bind_ortvalue_output", (value,)

    def run(self, options: Any = None) -> None:
        """Run all pieces."""
        ort, between, self._values = self._ort, dict[str, Any](), {}
        first = len(ort.sessions) - len(ort.streamed.sizes)
        for number, session in enumerate(ort.sessions):
            binding = session.io_binding()
            for name in ort.takes[number]:
                if name in between:
                    binding.bind_ortvalue_input(name, between[name])
                else:
                    method, place = self._inputs[name]
                    getattr(binding, method)(name, *place)
            for name in ort.gives[number]:
                where = ("cpu",) if ort.between[name].on_host else ort.memory
                method, place = self._outputs.get(name, ("bind_output", where))
                getattr(binding, method)(name, *place)
            if number >= first:
                ort.streamed.begin(number - first)
            session.run_with_iobinding(binding, options)
            if number >= first:
                ort.streamed.end(number - first)
            made = dict(zip(ort.gives[number], binding.get_outputs(), strict=True))
            self._values.update((name, value) for name, value in made.items() if name in self._outputs)
            between = ort.needed(between | made, number)

    def get_outputs(self) -> list[Any]:
        """Outputs of the last run, in the order in which they were bound."""
        return [self._values[name] for name in self._outputs]

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        return [value.numpy() for value in self.get_outputs()]

    def synchronize_inputs(self) -> None:
        """Nothing: each piece waits for its own."""

    def synchronize_outputs(self) -> None:
        self._ort.sessions[-1].io_binding().synchronize_outputs()
