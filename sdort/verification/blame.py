"""What made two graphs part: the part of the candidate between agreeing tensors and the wrong one, run alone.

It is fed with the original's own values. Wrong as it is and right in fp32: rounding to fp16 is to blame. Wrong in both:
what rewrote these nodes. Right in both: no node, but the errors before it, which add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from sdort.errors import SdortError
from sdort.runtime.session import Array
from sdort.verification.bisect import Parting, find_parting
from sdort.verification.components import Comparison
from sdort.verification.limits import Tolerance
from sdort.verification.watch import Graphs, Pair, ancestors, difference, outputs_of, run_graph

FUSION, CAST, NODE, SUM, RUNTIME = "fusion", "cast", "node", "sum of errors", "runtime"
STEPS = ("tidy", "tidy raised", "channels last", "tidy layout", "tidy lowered", "tidy half", "borrow shapes", "half")
"""Makers that are named only when no fusion is."""


@dataclass(frozen=True)
class Culprit:
    """One node of the candidate between the last agreeing tensors and the first wrong one."""

    node: str
    operator: str
    makers: tuple[str, ...]
    """The fusions and steps that made it; empty if it is the original's."""


@dataclass(frozen=True)
class Finding:
    """Where and why a component goes wrong."""

    component: str
    output: str
    kind: str
    """``fusion``, ``cast``, ``node`` (changed by neither), ``sum of errors`` or ``runtime``."""
    message: str
    node: str | None = None
    """The first wrong node, by the original's name."""
    operator: str | None = None
    tensor: str | None = None
    """Its output, in the original."""
    share: float = 0.0
    """How much of the tolerance that tensor uses."""
    largest_value: float = 0.0
    """The largest magnitude of that tensor in the original; fp16 ends at 65504."""
    blamed: tuple[str, ...] = ()
    """Fusions or steps."""
    culprits: tuple[Culprit, ...] = ()
    originals: tuple[str, ...] = ()
    """The original's nodes that the culprits stand for."""
    sessions: int = 0
    sources: dict[str, float] = field(default_factory=dict)
    """The tensors of the original that the wrong one is computed from, and how much of the tolerance they use."""


def bisect(graphs: Graphs, failed: Comparison) -> Finding:
    """Find the first node after which the graphs differ, and what touched it.

    Args:
        failed: a comparison with the original's ONNX that is out of tolerance, on ``graphs.feeds``.
    """
    parting = find_parting(graphs, failed.output, failed.limit)
    if parting is None:
        message = (
            "the output is right as soon as tensors inside are watched: no node is wrong, but one of ONNX Runtime's "
            "own fusions, which watching prevents, or in fp16 the scores inside an attention, which sdort optimize "
            "--fp16 auto measures"
        )
        return Finding(graphs.component, failed.output, RUNTIME, message)
    return explain(graphs, failed.output, parting, failed.limit)


def explain(graphs: Graphs, output: str, parting: Parting, limit: Tolerance) -> Finding:
    """Name the nodes between the agreeing tensors and the wrong one, and what is wrong with them."""
    original, candidate = graphs.graph(graphs.original).graph, graphs.graph(graphs.candidate).graph
    sources = list(parting.sources)
    culprits = nodes_between(candidate, parting.pair.candidate, {pair.candidate for pair in sources})
    replaced = nodes_between(original, parting.pair.original, {pair.original for pair in sources})
    values = graphs.values([parting.pair, *sources])
    shares = [_share(graphs, culprits, parting.pair, values, limit, wide) for wide in (False, True)]
    kind = _kind(shares, culprits, graphs)
    makers = dict.fromkeys(maker for node in culprits for maker in graphs.provenance.makers.get(node.name, ()))
    fusions = tuple(maker for maker in makers if maker not in STEPS)
    blamed = ("half",) if kind == CAST else (fusions or tuple(makers)) if kind == FUSION else ()
    producer = replaced[-1]
    largest = float(np.abs(values[parting.pair][0].astype(np.float64)).max(initial=0))
    return Finding(
        graphs.component,
        output,
        kind,
        _message(kind, producer, culprits, fusions, largest),
        producer.name,
        producer.op_type,
        parting.pair.original,
        parting.share,
        largest,
        blamed,
        tuple(Culprit(n.name, n.op_type, graphs.provenance.makers.get(n.name, ())) for n in culprits),
        tuple(node.name for node in replaced),
        parting.sessions,
        {pair.original: share for pair, share in parting.sources.items()},
    )


def _kind(shares: Sequence[float | None], culprits: Sequence[onnx.NodeProto], graphs: Graphs) -> str:
    narrow, wide = shares
    if narrow is not None and narrow <= 1:
        return SUM
    if narrow is not None and wide is not None and wide <= 1:
        return CAST
    return FUSION if any(node.name in graphs.provenance.makers for node in culprits) else NODE


def _message(
    kind: str, producer: onnx.NodeProto, culprits: Sequence[onnx.NodeProto], fusions: Sequence[str], largest: float
) -> str:
    first = f"the graphs part at {producer.name or producer.output[0]} ({producer.op_type})"
    made = f", made by {', '.join(fusions)}" if fusions else ""
    here = f"{', '.join(dict.fromkeys(node.op_type for node in culprits))}{made}"
    reasons = {
        FUSION: f"{here}: it computes something else than the original's nodes, or its weights are not theirs",
        CAST: f"rounding to fp16 does it: {here} is right in fp32 on the same inputs; values up to {largest:.3g} come "
        "out, and fp16 ends at 65504",
        NODE: f"{here}: no fusion touched it; its weights, its attributes or the provider's kernel differ",
        SUM: f"{here} is right on the original's own values: the errors before it have added up",
    }
    return f"{first}: {reasons[kind]}"


def nodes_between(graph: onnx.GraphProto, tensor: str, sources: set[str]) -> list[onnx.NodeProto]:
    """The nodes that compute ``tensor`` from ``sources`` and the graph's inputs, in order; its producer is the last."""
    needed = set(ancestors(graph, [tensor], sources)) - sources
    return [node for node in graph.node if needed & set(node.output)]


def _share(
    graphs: Graphs,
    nodes: Sequence[onnx.NodeProto],
    target: Pair,
    values: Mapping[Pair, tuple[Array, Array]],
    limit: Tolerance,
    wide: bool,
) -> float | None:
    """How much of the tolerance the nodes alone use, fed with the original's values; None if they do not run alone."""
    given = {pair.candidate: (wanted, actual) for pair, (wanted, actual) in values.items() if pair != target}
    inputs: dict[str, Array] = {
        name: wanted if wide or wanted.dtype.kind != "f" else wanted.astype(actual.dtype)
        for name, (wanted, actual) in given.items()
    }
    region = extract(graphs, nodes, target.candidate, inputs, wide)
    try:
        found = run_graph(region, graphs.candidate.parent, graphs, {**graphs.feeds, **inputs}, original=False)
    except SdortError:  # what the nodes lack alone, only ONNX Runtime knows
        return None
    largest, mean = difference(values[target][0], found[target.candidate])
    return max(largest / limit.largest, mean / limit.mean)


def extract(
    graphs: Graphs, nodes: Sequence[onnx.NodeProto], output: str, inputs: Mapping[str, Array], wide: bool
) -> onnx.ModelProto:
    """The candidate's ``nodes`` as a model of their own, weights inside.

    Args:
        inputs: what is computed outside.
        wide: in fp32, whatever the candidate is in.
    """
    model = graphs.graph(graphs.candidate)
    used = {name for node in nodes for name in node.input}
    weights = [_load(each, graphs.candidate.parent, wide) for each in model.graph.initializer if each.name in used]
    made = set(outputs_of(onnx.GraphProto(node=nodes)))
    declared = [value for value in model.graph.input if value.name in used - made - set(inputs)]
    del model.graph.node[:], model.graph.initializer[:], model.graph.input[:], model.graph.output[:]
    del model.graph.value_info[:]
    model.graph.node.extend(_widened(node) if wide else node for node in nodes)
    model.graph.initializer.extend(weights)
    model.graph.input.extend(_wide_value(value) if wide else value for value in declared)
    for name in sorted(set(inputs) & used):
        kind = onnx.helper.np_dtype_to_tensor_dtype(inputs[name].dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, [None] * inputs[name].ndim))
    model.graph.output.append(onnx.ValueInfoProto(name=output))
    return model


def _load(tensor: TensorProto, folder: Path, wide: bool) -> TensorProto:
    """A weight with its values inside."""
    loaded = TensorProto()
    loaded.CopyFrom(tensor)
    if loaded.data_location == TensorProto.EXTERNAL:
        load_external_data_for_tensor(loaded, str(folder))
        loaded.data_location = TensorProto.DEFAULT
        del loaded.external_data[:]
    if not wide or loaded.data_type != TensorProto.FLOAT16:
        return loaded
    return numpy_helper.from_array(numpy_helper.to_array(loaded).astype(np.float32), loaded.name)


def _widened(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with fp32 in the place of fp16 in its attributes."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    for attribute in wide.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT16:
            attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32)))
    return wide


def _wide_value(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    wide = onnx.ValueInfoProto()
    wide.CopyFrom(value)
    if wide.type.tensor_type.elem_type == TensorProto.FLOAT16:
        wide.type.tensor_type.elem_type = TensorProto.FLOAT
    return wide
