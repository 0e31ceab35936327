"""The first wrong step inside a fused operator, named by the node of the original that computes the same.

The subgraph of the candidate where the graphs diverge is decomposed and run on the original's values, in the
candidate's precision: on the CPU, whatever provider it is for, with the scores of an attention stored as a GPU's
unfused kernels store them. The steps are compared with the original's nodes one by one, so there is never more than one
pair of their tensors in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, inliner

from sdort.engines.rounding import emulate_graph
from sdort.errors import SdortError
from sdort.graph.signature import Array
from sdort.onnx_io.precision_mark import says_bf16, stored_dtype
from sdort.verification.bisection.decomposition import decompose
from sdort.verification.bisection.step_detection import STEP_NAMES, after_casts, detect_steps
from sdort.verification.bisection.subgraph import extract_subgraph, nodes_between, source_values
from sdort.verification.bisection.tensor_pairs import (
    GraphPair,
    TensorPair,
    record_tensors,
    run_session,
    tolerance_share,
)
from sdort.verification.limits import Tolerance
from sdort.verification.runners import is_for_gpu, open_model
from sdort.workload.judgement import magnitude

Values = Mapping[TensorPair, tuple[Array, Array]]


@dataclass(frozen=True)
class WrongStep:
    """The first wrong step of a fused operator."""

    step: str
    """Description of the step."""
    node: str
    """The original's node that computes it."""
    operator: str
    """That node's operator."""
    tensor: str
    """Its output in the original; of one that the original does not have apart, the operator's that computes it."""
    share: float
    """Its error as a multiple of the tolerance; above 1."""
    largest_value: float
    """The largest magnitude in the original."""
    largest_before: float
    """The largest magnitude in the step before it; 0 if none was compared."""
    right: tuple[str, ...]
    """The steps before it that were compared and are right."""


@dataclass(frozen=True)
class StepComparison:
    """The steps of a fused operator against the original's nodes."""

    first: WrongStep | None
    note: str = ""
    """Why no step is named."""


@dataclass(frozen=True)
class _Decomposed:
    """The subgraphs of both sides, with their fused operators decomposed."""

    original: onnx.ModelProto
    """Whole, its weights where they are."""
    nodes: Sequence[onnx.NodeProto]
    """The part of it."""
    candidate: onnx.ModelProto
    """The part alone, its weights inside, every result rounded where it is stored."""
    inputs: Mapping[str, Array]


def compare_steps(
    graphs: GraphPair, nodes: Sequence[onnx.NodeProto], target: TensorPair, values: Values, limit: Tolerance
) -> StepComparison | None:
    """Compare the steps of a subgraph of the candidate with the original's nodes.

    Args:
        nodes: the candidate's subgraph.
        target: the tensors in which it ends, which differ.
        values: of ``target`` and of the tensors that it is computed from, which agree.

    Returns:
        None if the original has no steps there, but one node.
    """
    fused = " and ".join(dict.fromkeys(node.op_type for node in nodes if node.domain)) or "it"
    try:
        sides = _decompose(graphs, nodes, target, values)
        return _compare(graphs, sides, target, values[target][0], limit, fused)
    except SdortError as error:
        return StepComparison(None, f"the steps of {fused} cannot be compared: {error.message}")


def _decompose(graphs: GraphPair, nodes: Sequence[onnx.NodeProto], target: TensorPair, values: Values) -> _Decomposed:
    inputs = source_values(target, values)
    part = extract_subgraph(graphs, nodes, target.candidate, inputs, wide=False)
    part = decompose(part, {node.output[0] for node in part.graph.node}, _score_type(graphs))
    part = emulate_graph(part, graphs.narrow) if graphs.narrow else inliner.inline_local_functions(part)
    original = graphs.graph(graphs.original)
    sources = {pair.original for pair in values if pair != target}
    between = nodes_between(original.graph, target.original, sources)
    whole = {node.output[0] for node in between if node.op_type == "Attention"}
    if whole:  # newer exporters write an attention as one node of ONNX's
        original = inliner.inline_local_functions(decompose(original, whole))
        between = nodes_between(original.graph, target.original, sources)
    return _Decomposed(original, between, part, {**graphs.feeds, **inputs})


def _score_type(graphs: GraphPair) -> int:
    """The type, of TensorProto, in which the scores of an attention are stored."""
    model = graphs.graph(graphs.candidate)
    if says_bf16(model):
        return TensorProto.BFLOAT16
    # ONNX Runtime's CPU provider computes in fp32 between the casts that it puts around a node.
    narrow = stored_dtype(model) == "float16" and (not graphs.configuration.provider.is_fallback or is_for_gpu(model))
    return TensorProto.FLOAT16 if narrow else TensorProto.FLOAT


def _compare(
    graphs: GraphPair, sides: _Decomposed, target: TensorPair, expected: Array, limit: Tolerance, fused: str
) -> StepComparison | None:
    """Compare step by step, the target last."""
    tensors, ours = detect_steps(sides.nodes), detect_steps(sides.candidate.graph.node)
    last = next((STEP_NAMES[step] for step, name in tensors.items() if name == target.original), "the output")
    inner = {step: name for step, name in tensors.items() if name != target.original}
    if not inner:
        return None
    right, before = list[str](), 0.0

    def wrong(words: str, tensor: str, share: float, largest: float) -> StepComparison:
        return StepComparison(WrongStep(words, *_origin(graphs, sides, tensor), share, largest, before, tuple(right)))

    for step, name in inner.items():
        measured = _measure(graphs, sides, TensorPair(name, ours[step]), limit) if step in ours else None
        if measured is not None:
            share, largest = measured
            if share > 1:
                return wrong(STEP_NAMES[step], name, share, largest)
            right.append(STEP_NAMES[step])
            before = largest
    if not right:
        return StepComparison(None, f"the steps of {fused} cannot be compared: none of them is a node of the original")
    share = tolerance_share(limit, expected, _candidate_value(graphs, sides, target.candidate))
    if share > 1:
        return wrong(last, target.original, share, magnitude(expected))
    note = f"{', '.join(right)} and {last} are right, computed one by one: the kernel of {fused} differs"
    return StepComparison(None, note)


def _measure(graphs: GraphPair, sides: _Decomposed, pair: TensorPair, limit: Tolerance) -> tuple[float, float] | None:
    """Error of a step as a multiple of the tolerance, and its largest magnitude; None if the shapes do not correspond.

    Its tensors are gone when the next step's are computed: the scores of an attention may have a GB.
    """
    model = onnx.ModelProto()
    model.CopyFrom(sides.original)
    expected = record_tensors(model, graphs, [pair.original], original=True)[pair.original]
    actual = _candidate_value(graphs, sides, after_casts(sides.candidate.graph.node, pair.candidate))
    if not same_order(expected.shape, actual.shape):
        return None
    return tolerance_share(limit, expected.reshape(actual.shape), actual), magnitude(expected)


def same_order(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether tensors of one step that are of these shapes hold the same elements in the same order.

    Heads and groups are dims of their own or merged with a neighbour, in front or behind; channels that are first in
    one and last in the other are neither.
    """
    return math.prod(one) == math.prod(other) and (tuple(one[:2]) == tuple(other[:2]) or one[-2:] == other[-2:])


def _candidate_value(graphs: GraphPair, sides: _Decomposed, name: str) -> Array:
    model = onnx.ModelProto()
    model.CopyFrom(sides.candidate)
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    session = open_model(model, graphs.candidate, graphs.component)
    return run_session(session, sides.inputs)[name]


def _origin(graphs: GraphPair, sides: _Decomposed, tensor: str) -> tuple[str, str, str]:
    """The original's node that computes a tensor, its operator and its output.

    A step of a decomposed attention belongs to that attention.
    """
    original = graphs.graph(graphs.original).graph.node
    node = next((maker for maker in original if tensor in maker.output), None)
    if node is None:
        made = {name for step in sides.nodes for name in step.output}
        node = next(step for step in original if step.op_type == "Attention" and step.output[0] in made)
        tensor = node.output[0]
    return node.name, node.op_type, tensor
