"""The memory that a component's activations take, counted: the most bytes of tensors that are alive at once.

A session computes a graph node by node, in ONNX Runtime's own order (:func:`running_order`). An output is allocated
when its node runs and freed after its last reader; a view lies in what it is of. Nothing is computed in place, and
nothing kept for later tensors: on the CPU sdort's sessions have ONNX Runtime's reuse of memory off. What kernels take
while they run is known of attention; of others it is a stated number of the provider's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from sdort.console import detail
from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import NOTHING, Fact
from sdort.graph.symbolic import numbers
from sdort.onnx_io.branches import outer_names
from sdort.onnx_io.component_file import ComponentFile
from sdort.providers.provider import Provider
from sdort.runtime.step.prepared_tensors import split_file
from sdort.workload.samples import Sample, declared_inputs, fill_inputs, fixed_batch, no_values

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose output lies in their first input, in ONNX Runtime's kernels for CPU, CUDA and ROCm."""
_COPYING = frozenset({"BiasGelu", "FastGelu"})
"""Operators whose kernels for the CPU have a tensor of their output's size beside it."""
_NARROW_HEAD = 256
"""The widest head that fused attention on AMD's GPUs takes; what runs instead holds the scores."""

Sizes = Callable[[str], int]
"""Bytes of a tensor by name."""


@dataclass(frozen=True)
class Use:
    """A node as the allocator sees it, with the bytes that its kernel takes while it runs."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    is_view: bool = False
    scratch: int = 0


def peak_bytes(nodes: Sequence[Use], given: Sequence[str], results: Sequence[str], size: Sizes) -> int:
    """The most bytes that are taken at once.

    Args:
        nodes: in the order in which they run.
        given: inputs that are there from the start to the end. Tensors that no node makes take nothing otherwise.
        results: the graph's outputs, which stay until the end and lie in nothing else.
        size: bytes of a tensor.
    """
    places = _places(nodes, {*results})
    last = {places.get(name, name): index for index, node in enumerate(nodes) for name in node.inputs}
    last.update((name, len(nodes)) for name in results)
    taken = most = sum(map(size, given))
    for index, node in enumerate(nodes):
        made = [name for name in node.outputs if name and places.get(name) == name]
        taken += sum(map(size, made))
        most = max(most, taken + node.scratch)
        read = {places[name] for name in node.inputs if name in places}
        taken -= sum(size(name) for name in {*read, *made} if last.get(name, index) == index)
    return most


def running_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes in the order in which ONNX Runtime runs them: a depth-first search from the graph's ends, which visits
    of a node's makers the last one in the file first (``GraphViewer`` and ``Graph::ReverseDFSFrom``,
    microsoft/onnxruntime, onnxruntime/core/graph/).

    Args:
        nodes: in the file's order.
    """
    made = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    makers = [sorted({made[name] for name in (*node.input, *outer_names(node)) if name in made}) for node in nodes]
    inner = {maker for each in makers for maker in each}
    stack = [(index, False) for index in range(len(nodes)) if index not in inner]
    order, seen = [], set[int]()
    while stack:
        index, done = stack.pop()
        if done:
            order.append(nodes[index])
        elif index not in seen:
            seen.add(index)
            stack.append((index, True))
            stack.extend((maker, False) for maker in makers[index] if maker not in seen)
    return order


def _places(nodes: Sequence[Use], results: set[str]) -> dict[str, str]:
    """The tensor in whose memory each one lies that a node makes; of a view of what is given, none."""
    places: dict[str, str] = {}
    for node in nodes:
        if node.is_view and node.outputs[0] not in results:
            if node.inputs[0] in places:
                places[node.outputs[0]] = places[node.inputs[0]]
        else:
            places.update((name, name) for name in node.outputs if name)
    return places


def activation_bytes(file: ComponentFile, sample: Sample, provider: Provider, widened: bool = False) -> int | None:
    """Bytes that a component takes beside its weights and what is prepared for its steps, while it runs once.

    Args:
        sample: sizes of its inputs.
        widened: whether it is computed in fp32 by now, whatever its file has.

    Returns:
        None where the graph does not tell its tensors' sizes, or no graph library is installed, which is said.
    """
    try:
        return file.derived(_counted, sample, provider, widened)
    except (BadModelError, ImportError, _UnknownSizeError) as error:
        detail(f"{file.component}: its activations are not counted: {error}")
        return None


def between_bytes(file: ComponentFile, sample: Sample, provider: Provider, ends: Sequence[int]) -> int:
    """Bytes of the tensors that live between two pieces of a component's step, at most: a piece holds what it takes to
    its end. 0 where :func:`activation_bytes` counts nothing.

    Args:
        sample: sizes of its inputs.
        ends: for each piece how many nodes, as they run, it and those before it have.
    """
    try:
        return file.derived(_counted_between, sample, provider, tuple(ends))
    except (BadModelError, ImportError, _UnknownSizeError):  # which is said of its activations
        return 0


class _UnknownSizeError(Exception):
    """A tensor of unknown size."""


def _facts(file: ComponentFile, sample: Sample) -> Mapping[str, Fact]:
    # A graph library comes with it, which no other part of a run needs.
    from sdort.rewrite.inference.facts_at_sizes import facts_at

    return facts_at(file.graph, _input_shapes(file, sample), file.component)


def _counted_between(file: ComponentFile, sample: Sample, provider: Provider, ends: Sequence[int]) -> int:
    graph = step_graph(file)
    elements = _Elements(file.derived(_facts, sample), 4 if provider.is_fallback else 2)
    order = running_order(graph.node)
    made = {name: index for index, node in enumerate(order) for name in node.output if name}
    last = {name: index for index, node in enumerate(order) for name in (*node.input, *outer_names(node))}
    living = [[name for name in made if made[name] < end <= last.get(name, -1)] for end in ends[:-1]]
    return max((sum(map(elements.bytes, names)) for names in living), default=0)


def step_graph(file: ComponentFile) -> onnx.GraphProto:
    """The graph that runs in every step; shared: change nothing."""
    split = split_file(file)
    return (split.step if split else file.graph).graph


def _counted(file: ComponentFile, sample: Sample, provider: Provider, widened: bool) -> int:
    graph = step_graph(file)
    inputs = _input_shapes(file, sample)
    elements = _Elements(file.derived(_facts, sample), 4 if widened or provider.is_fallback else 2)
    weights = {tensor.name for tensor in graph.initializer}
    given = [info.name for info in graph.input if info.name in inputs and info.name not in weights]
    results = [info.name for info in graph.output]
    fused = _sigmoids(graph.node) - {*results}
    nodes = [
        Use(node.input, node.output, _is_view(node), _scratch(node, elements, provider))
        for node in running_order(graph.node)
        if node.op_type != "Constant" and node.output[0] not in fused
    ]
    return peak_bytes(nodes, given, results, elements.bytes) + provider.workspace_bytes


def _input_shapes(file: ComponentFile, sample: Sample) -> dict[str, tuple[int, ...]]:
    inputs = declared_inputs(file.graph, file.component)
    sample = replace(sample, batch=fixed_batch(inputs, sample))
    return {name: values.shape for name, values in fill_inputs(inputs, sample, file.component, no_values).items()}


def _is_view(node: onnx.NodeProto) -> bool:
    return node.op_type in VIEWS and not node.domain


def _sigmoids(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Results of Sigmoid that are only multiplied by what they are of: ONNX Runtime makes one operator of both."""
    of = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Sigmoid" and not node.domain}
    readers: dict[str, list[onnx.NodeProto]] = {name: [] for name in of}
    for node in nodes:
        for name in readers.keys() & set(node.input):
            readers[name].append(node)
    return {
        name
        for name, (first, *others) in ((name, found) for name, found in readers.items() if found)
        if not others and first.op_type == "Mul" and {*first.input} == {name, of[name]}
    }


def _scratch(node: onnx.NodeProto, elements: _Elements, provider: Provider) -> int:
    """Bytes that a kernel takes beside its inputs and outputs."""
    if node.op_type in _COPYING and node.domain == MICROSOFT and provider.is_fallback:
        return elements.bytes(node.output[0])
    if node.op_type == "Attention" and not node.domain:
        return (1 if provider.is_fallback else 2) * _scores(node, elements) * elements.half
    if node.op_type != "MultiHeadAttention" or node.domain != MICROSOFT:
        return 0
    if provider.is_fallback:
        # Query, key and value once more, head by head; a mask has it hold the scores.
        masked = any(node.input[3:])
        return sum(map(elements.bytes, filter(None, node.input[:3]))) + 4 * masked * _scores(node, elements)
    wide = elements.shape(node.output[0])[-1] > _NARROW_HEAD * heads_of(node)
    return 2 * 4 * _scores(node, elements) if wide and provider.vendor == "amd" else 0


def _scores(node: onnx.NodeProto, elements: _Elements) -> int:
    """The number of scores of an attention of [batch, rows, ...], or of ONNX's own of [batch, heads, rows, size]."""
    query, key = (elements.shape(name) for name in (node.input[0], (*node.input[1:2], "")[0] or node.input[0]))
    if len(query) == 4:
        return query[0] * query[1] * query[2] * key[2]
    return query[0] * heads_of(node) * query[1] * key[1]


def heads_of(node: onnx.NodeProto) -> int:
    """The heads that an attention's attributes state."""
    named = {attribute.name: attribute.i for attribute in node.attribute}
    return named.get("num_heads") or named.get("q_num_heads") or 1


class _Elements:
    """Bytes of tensors.

    Args:
        half: bytes of a number of fp16 or bf16: the CPU computes them in fp32.
    """

    def __init__(self, facts: Mapping[str, Fact], half: int) -> None:
        self._facts = facts
        self.half = half

    def shape(self, name: str) -> list[int]:
        fact = self._facts.get(name, NOTHING)
        shape = None if fact.shape is None else numbers(fact.shape)
        if shape is None:
            raise _UnknownSizeError(f"nothing says how large {name} is")
        return shape

    def bytes(self, name: str) -> int:
        dtype = self._facts.get(name, NOTHING).dtype
        if dtype is None:
            raise _UnknownSizeError(f"nothing says of which type {name} is")
        half = dtype.itemsize == 2 and dtype.kind not in "iu"
        return math.prod(self.shape(name)) * (self.half if half else dtype.itemsize)
