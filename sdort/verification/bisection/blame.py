"""Cause of a divergence: the candidate's subgraph between agreeing tensors and the wrong one, run alone.

Its inputs are the original's own values. Wrong as it is and right in fp32: rounding to fp16 is to blame. Wrong in both:
what rewrote these nodes. Right in both: no node, but the errors before it, which add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from sdort.errors import SdortError
from sdort.graph import float16
from sdort.graph.signature import Array
from sdort.onnx_io.precision_mark import stored_dtype
from sdort.rewrite.fusion_names import fusion_names
from sdort.verification.bisection.fused_steps import StepComparison, WrongStep, compare_steps
from sdort.verification.bisection.search import Divergence, find_divergence
from sdort.verification.bisection.subgraph import extract_subgraph, nodes_between, source_values
from sdort.verification.bisection.tensor_pairs import GraphPair, TensorPair, run_graph, tolerance_share
from sdort.verification.component_comparison import Comparison
from sdort.verification.limits import PRECISIONS, Tolerance
from sdort.workload.judgement import magnitude

FUSION, CAST, NODE, SUM, RUNTIME = "fusion", "cast", "node", "sum of errors", "runtime"
OTHER = "other model"
"""The two are not of one another, or were edited: what differs is no fault of a fusion."""


@dataclass(frozen=True)
class Culprit:
    """One node of the candidate between the last agreeing tensors and the first wrong one."""

    node: str
    """The node's name."""
    operator: str
    """Its operator."""
    makers: tuple[str, ...]
    """The fusions and steps that made it; empty if it is the original's."""


@dataclass(frozen=True)
class BisectionFinding:
    """The first wrong node of a component, and the reason."""

    component: str
    """The component."""
    output: str
    """The output that is wrong."""
    kind: str
    """``fusion``, ``cast``, ``node`` (changed by neither), ``sum of errors``, ``runtime``, or ``other model`` where the
    candidate was not made of this original, or one of them was edited."""
    message: str
    """The finding in words."""
    node: str | None = None
    """The first wrong node, by the original's name."""
    operator: str | None = None
    """The first wrong node's operator."""
    tensor: str | None = None
    """Its output, in the original."""
    share: float = 0.0
    """Its error as a multiple of the tolerance."""
    largest_value: float = 0.0
    """The largest magnitude of that tensor in the original; fp16 ends at :data:`sdort.graph.float16.LARGEST`."""
    blamed: tuple[str, ...] = ()
    """Fusions or steps."""
    culprits: tuple[Culprit, ...] = ()
    """The candidate's nodes between the last agreeing tensors and the first wrong one."""
    originals: tuple[str, ...] = ()
    """The original's nodes that the culprits stand for."""
    sessions: int = 0
    """Number of sessions of ONNX Runtime that the search opened."""
    sources: dict[str, float] = field(default_factory=dict)
    """Tensors of the original that the wrong one is computed from -> their errors as multiples of the tolerance."""
    inside: WrongStep | None = None
    """The first wrong step of a fused operator, by the original's node; the message says if there is none."""


def bisect(graphs: GraphPair, failed: Comparison) -> BisectionFinding:
    """Find the first node after which the graphs differ, and what made it.

    Args:
        failed: a comparison with the original's ONNX that is out of tolerance, on ``graphs.feeds``.
    """
    divergence = find_divergence(graphs, failed.output, failed.limit)
    if divergence is None:
        message = (
            "the output is right as soon as tensors inside the graph are outputs: no node is wrong, but one of ONNX "
            "Runtime's own fusions, which extra outputs prevent"
        )
        return BisectionFinding(graphs.component, failed.output, RUNTIME, message)
    return find_cause(graphs, failed.output, divergence, failed.limit)


def of_other_models(finding: BisectionFinding, reason: str) -> BisectionFinding:
    """A finding in two models that are not of one another, or no longer, which blames no fusion.

    Args:
        reason: why they are not, as a sentence.
    """
    message = f"{reason}, so that no fusion is blamed; {finding.message}"
    return replace(finding, kind=OTHER, message=message, blamed=())


def find_cause(graphs: GraphPair, output: str, divergence: Divergence, limit: Tolerance) -> BisectionFinding:
    """Name the nodes between the agreeing tensors and the wrong one, and what is wrong with them."""
    original, candidate = graphs.graph(graphs.original).graph, graphs.graph(graphs.candidate).graph
    sources = list(divergence.sources)
    culprits = nodes_between(candidate, divergence.pair.candidate, {pair.candidate for pair in sources})
    replaced = nodes_between(original, divergence.pair.original, {pair.original for pair in sources})
    values = graphs.values([divergence.pair, *sources])
    ratios = [_share(graphs, culprits, divergence.pair, values, limit, wide) for wide in (False, True)]
    kind = _kind(ratios, culprits, graphs)
    makers = tuple(dict.fromkeys(maker for n in culprits for maker in graphs.provenance.makers.get(n.name, ())))
    fusions = tuple(maker for maker in makers if maker in fusion_names())  # steps are named where none of these is
    precision = _precision(graphs)
    producer = replaced[-1]
    largest = magnitude(values[divergence.pair][0])
    steps = None if kind == SUM else compare_steps(graphs, culprits, divergence.pair, values, limit)
    return BisectionFinding(
        graphs.component,
        output,
        kind,
        _message(kind, producer, culprits, fusions, precision, largest, steps),
        producer.name,
        producer.op_type,
        divergence.pair.original,
        divergence.share,
        largest,
        _blamed(kind, precision, fusions or makers),
        tuple(Culprit(n.name, n.op_type, graphs.provenance.makers.get(n.name, ())) for n in culprits),
        tuple(node.name for node in replaced),
        divergence.sessions,
        {pair.original: share for pair, share in divergence.sources.items()},
        steps.first if steps else None,
    )


def _kind(shares: Sequence[float | None], culprits: Sequence[onnx.NodeProto], graphs: GraphPair) -> str:
    narrow, wide = shares
    if narrow is not None and narrow <= 1:
        return SUM
    if narrow is not None and wide is not None and wide <= 1:
        return CAST
    return FUSION if any(node.name in graphs.provenance.makers for node in culprits) else NODE


def _blamed(kind: str, precision: str, makers: tuple[str, ...]) -> tuple[str, ...]:
    """The provider itself rounds to bf16; to fp16, a step of the pipeline does."""
    if kind == CAST:
        return ("bf16",) if precision == "bf16" else ("half",)
    return makers if kind == FUSION else ()


def _message(
    kind: str,
    producer: onnx.NodeProto,
    culprits: Sequence[onnx.NodeProto],
    fusions: Sequence[str],
    precision: str,
    largest: float,
    steps: StepComparison | None,
) -> str:
    first = f"the graphs diverge at {producer.name or producer.output[0]} ({producer.op_type})"
    made = f", made by {', '.join(fusions)}" if fusions else ""
    operators = [*dict.fromkeys(node.op_type for node in culprits)]
    here = "it" if operators == [producer.op_type] and not made else f"{', '.join(operators)}{made}"
    named = "" if here == "it" else f"{here}: "
    sizes = "" if steps and steps.first else f"; {_sizes(precision, largest)}"
    reasons = {
        FUSION: f"{named}it does not compute what the original's nodes do, or has other weights",
        CAST: f"rounding to {precision} does it: {here} is right in fp32 on the same inputs{sizes}",
        NODE: f"{named}no fusion touched it; its weights, its attributes or the provider's kernel differ",
        SUM: f"{here} is right on the original's own values: the errors before it have added up",
    }
    hint = "; sdort optimize --fp16 auto keeps such nodes in fp32" if kind == CAST and precision == "fp16" else ""
    return f"{first}: {reasons[kind]}{_describe_steps(steps, kind, precision) if steps else ''}{hint}"


def _precision(graphs: GraphPair) -> str:
    model = graphs.graph(graphs.candidate)
    return PRECISIONS[stored_dtype(model)]


def _describe_steps(steps: StepComparison, kind: str, precision: str) -> str:
    """The comparison of steps in words."""
    step = steps.first
    if step is None:
        return f"; {steps.note}"
    right = f"; right before it: {', '.join(step.right)}" if step.right else ""
    how = f"off by {step.share:.3g} times the tolerance"
    if step.share == np.inf:
        how = _sizes(precision, step.largest_value)
    elif kind == CAST and step.largest_before:
        apart = _spacing(precision, step.largest_before)
        how += f"; values up to {step.largest_before:.3g} go in, where {precision} has steps of {apart:.3g}"
    return f"; its first wrong step is {step.step}, {step.node or step.tensor} ({step.operator}): {how}{right}"


def _spacing(precision: str, value: float) -> float:
    """Distance of neighbouring numbers of this size: fp16 has 11 bits, bf16 has 8."""
    return math.ldexp(1.0, math.frexp(value)[1] - (11 if precision == "fp16" else 8))


def _sizes(precision: str, largest: float) -> str:
    ends = f", and fp16 ends at {float16.LARGEST:g}" if precision == "fp16" else ""
    return f"values up to {largest:.3g} come out{ends}"


def _share(
    graphs: GraphPair,
    nodes: Sequence[onnx.NodeProto],
    target: TensorPair,
    values: Mapping[TensorPair, tuple[Array, Array]],
    limit: Tolerance,
    wide: bool,
) -> float | None:
    """Error of the nodes alone on the original's values, as a multiple of the tolerance; None if they do not run."""
    inputs = source_values(target, values, wide)
    subgraph = extract_subgraph(graphs, nodes, target.candidate, inputs, wide)
    feeds = {**graphs.feeds, **inputs}
    try:
        outputs = run_graph(subgraph, graphs, feeds, original=False, exact=wide)
    except SdortError:  # what the nodes lack alone, only ONNX Runtime knows
        return None
    return tolerance_share(limit, values[target][0], outputs[target.candidate])
