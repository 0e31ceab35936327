"""Corresponding tensors of two graphs, and their values on the same inputs.

Tensors become extra outputs, a bounded number in one session, so it works on every build of ONNX Runtime and the memory
for them stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx

from sdort.engines.rounding import emulate_graph, narrow_tensors
from sdort.errors import BadModelError
from sdort.graph import float16
from sdort.graph.pieces import split
from sdort.graph.signature import Array, Feeds
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.precision_mark import stored_dtype
from sdort.operator_library.library import OFF
from sdort.rewrite.provenance import Provenance, read_provenance
from sdort.runtime.session import Session
from sdort.verification.limits import Tolerance
from sdort.verification.runners import Outputs, RunConfiguration, is_emulated, open_model
from sdort.workload.judgement import measure_errors

TENSORS_PER_SESSION = 16
"""Tensors that are recorded in one session."""
CHANNELS_LAST = (0, 2, 3, 1)


@dataclass(frozen=True)
class TensorPair:
    """A tensor of the original and the candidate's that corresponds to it: the one of the same name, or a channels-last
    one of another name."""

    original: str
    candidate: str


@dataclass(frozen=True)
class GraphPair:
    """A component's original and candidate, and how to run them."""

    component: str
    original: Path
    candidate: Path
    configuration: RunConfiguration
    feeds: Feeds

    @cached_property
    def provenance(self) -> Provenance:
        return read_provenance(self.graph(self.candidate))

    @cached_property
    def narrow(self) -> set[str]:
        """The candidate's tensors that are stored in fp16 or bf16."""
        dtype = stored_dtype(self.graph(self.candidate))
        return set() if dtype == "float32" else narrow_tensors(self.candidate, self.component)

    @cached_property
    def emulated(self) -> bool:
        """Whether the candidate runs with every result rounded as a GPU stores it, as it did when it failed."""
        return is_emulated(self.graph(self.candidate), self.configuration)

    def graph(self, path: Path) -> onnx.ModelProto:
        """A fresh copy: sessions change what they get."""
        return read_component(path, self.component).copy()

    def pairs(self, output: str) -> list[TensorPair]:
        """The corresponding tensors that ``output`` depends on, in the order of the original; it is the last one.

        A tensor of the candidate that has the name of one of the original holds the same values: passes give what
        is new a new name. A channels-last copy corresponds to the tensor that the provenance names.

        Raises:
            BadModelError: the original has no such output; what is wrong may then lie behind the last pair.
        """
        original, candidate = self.graph(self.original), self.graph(self.candidate)
        if output not in outputs_of(original.graph):
            raise BadModelError(f"the original has no output {output}", component=self.component)
        needed = set(ancestors(candidate.graph, [output]))
        order = {name: index for index, name in enumerate(outputs_of(original.graph))}
        matching: dict[str, str] = {}
        for name in outputs_of(candidate.graph):
            meant = name if name in order else self.provenance.layouts.get(name)
            if meant in order and name in needed and (meant == name or meant not in matching):
                matching[meant] = name
        return [TensorPair(name, matching[name]) for name in sorted(matching, key=order.__getitem__)]

    def values(self, pairs: Sequence[TensorPair]) -> dict[TensorPair, tuple[Array, Array]]:
        """Values of each pair: (the original's in the candidate's layout, the candidate's)."""
        names, ours = [pair.original for pair in pairs], [pair.candidate for pair in pairs]
        expected = record_tensors(self.graph(self.original), self, names, original=True)
        actual = record_tensors(self.graph(self.candidate), self, ours, original=False)
        return {
            pair: (in_layout_of(pair, expected[pair.original], actual[pair.candidate]), actual[pair.candidate])
            for pair in pairs
        }


def outputs_of(graph: onnx.GraphProto) -> Iterator[str]:
    """Every tensor that a node computes, in order."""
    return (name for node in graph.node for name in node.output if name)


def ancestors(graph: onnx.GraphProto, outputs: Iterable[str], stop: Set[str] = frozenset()) -> list[str]:
    """``outputs`` and the tensors that they are computed from, up to and with those in ``stop`` and the inputs."""
    producers = {name: node for node in graph.node for name in node.output}
    tensors = dict.fromkeys(outputs)
    stack = [name for name in tensors if name in producers]
    while stack:
        for source in producers[stack.pop()].input:
            if source and source not in tensors:
                tensors[source] = None
                if source in producers and source not in stop:
                    stack.append(source)
    return list(tensors)


def record_tensors(model: onnx.ModelProto, graphs: GraphPair, names: Sequence[str], original: bool) -> Outputs:
    """The values of the named tensors, by the nodes that they need alone. ``model`` belongs to this function now."""
    graph = model.graph
    needed = set(ancestors(graph, names))
    nodes = [node for node in graph.node if needed & set(node.output)]
    weights = [weight for weight in graph.initializer if weight.name in needed]
    inputs = [value for value in graph.input if value.name in needed]
    declared = {value.name: value for value in graph.output}
    # Without a type, if it is not declared: ONNX Runtime infers it.
    outputs = [declared.get(name, onnx.ValueInfoProto(name=name)) for name in dict.fromkeys(names)]
    part = onnx.GraphProto(name=graph.name, node=nodes, initializer=weights, input=inputs, output=outputs)
    model.graph.CopyFrom(part)
    return run_graph(model, graphs, graphs.feeds, original)


def run_graph(
    graph: onnx.ModelProto, graphs: GraphPair, feeds: Feeds, original: bool, *, exact: bool = False
) -> Outputs:
    """Run a graph as the original (CPU, without ONNX Runtime's own fusions) or where and as the candidate runs.

    Args:
        exact: a part of the candidate that is in fp32, so nothing is rounded as a GPU would.
    """
    if original:
        return run_session(open_model(graph, graphs.original, graphs.component), feeds)
    configuration = graphs.configuration
    if graphs.emulated:
        graph = graph if exact else emulate_graph(graph, graphs.narrow)
        configuration = RunConfiguration(configuration.provider, replace(configuration.options, custom_ops=OFF))
    return run_session(open_model(graph, graphs.candidate, graphs.component, configuration), feeds)


def run_session(session: Session, feeds: Feeds) -> Outputs:
    """All outputs of a session on a part of a graph.

    Raises:
        SdortError: it does not run.
    """
    # Copies: an output lies in the session's arena, which lives as long as the smallest of them.
    return {name: np.array(value) for name, value in session.run(feeds).items()}


def in_layout_of(pair: TensorPair, value: Array, like: Array) -> Array:
    """The original's value in the layout of the candidate's: channels-last, or another view of the same elements.

    A channels-last tensor is recognized by its name, not by its shape: where height, width and channels are all 64 the
    shapes are equal.
    """
    if pair.original != pair.candidate and value.ndim == 4:
        return value.transpose(CHANNELS_LAST)
    return value.reshape(like.shape) if value.size == like.size else value


def difference(expected: Array, actual: Array) -> tuple[float, float]:
    """Errors of a tensor inside a graph: (largest relative error, mean over the standard deviation).

    Values that fp16 cannot hold are cut for tensors in fp16: a mask's -3e38 is -inf there, and means the same.

    Returns:
        Infinities where the shapes differ or something is NaN, or infinite without being so in the original.
    """
    if expected.shape != actual.shape:
        return np.inf, np.inf
    if expected.dtype.kind != "f" or not expected.size:
        return (0.0, 0.0) if np.array_equal(expected, actual) else (np.inf, np.inf)
    if any(_is_lost(expected, value) for expected, value in zip(split(expected), split(actual), strict=True)):
        return np.inf, np.inf
    limit = float16.LARGEST if actual.dtype == np.float16 else float(np.finfo(np.float32).max)
    errors = measure_errors(actual, expected, limit)
    return errors.largest_relative, errors.mean_share


def _is_lost(expected: Array, value: Array) -> bool:
    """Whether there is a NaN, or an infinity in the place of a number that means something."""
    overflow = np.isinf(value) & (np.abs(expected) <= 1e30)
    return bool(np.isnan(value).any() or np.isnan(expected).any() or overflow.any())


def tolerance_share(limit: Tolerance, expected: Array, actual: Array) -> float:
    """Error of a tensor as a multiple of the tolerance."""
    largest, mean = difference(expected, actual)
    return max(largest / limit.largest, mean / limit.mean)
