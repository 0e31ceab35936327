"""The graph of a UNet that no image steers: what of its inputs for images is in an optimized graph is taken out.

The optimizer has moved each to where its addition is a node of its own (:mod:`sdort.passes.control_inputs`). Without
these inputs, and with what each was added to in the place of the sum, the graph is node for node what a UNet that was
exported without them becomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx

from sdort.console import detail
from sdort.graph.domains import MICROSOFT
from sdort.workload.steering_inputs import is_image_input, is_image_scale, is_residual

_MOVING = frozenset({"Cast", "Identity", "Reshape", "Transpose", "Unsqueeze"})
"""Operators that zeros pass through, as their first input."""
_PRODUCTS = frozenset({"MatMul", "Mul"})
"""Operators that give zeros where an input is zeros."""
_VALUES = {"Attention": 2, "MultiHeadAttention": 2}
"""Operators of attention -> their input of values: of zeros they make zeros, whatever the scores."""


def remove_control_inputs(model: onnx.ModelProto, component: str) -> None:
    """Take a UNet's inputs for control images and for those of IP-Adapters out of a graph, in place, as if zeros were
    added.

    One that does not reach additions alone stays, which is told: files of older versions have some.
    """
    graph, readers = model.graph, _readers(model.graph)
    replaced: dict[str, str] = {}
    gone: set[str] = set()
    for name in [info.name for info in graph.input if is_residual(info.name) or is_image_scale(info.name)]:
        found = _zero_sums(name, readers)
        if found is None:
            detail(f"{component}: its input {name} is part of another operator, and zeros are in it")
            continue
        zeros, sums = found
        replaced |= sums
        gone |= zeros | sums.keys()
    for node in graph.node:
        node.input[:] = [_resolved(name, replaced) for name in node.input]
    _keep(graph.node, [node for node in graph.node if not gone.intersection(node.output)])
    gone |= _take_unread(graph, {info.name for info in graph.input if is_image_input(info.name)} - gone)
    _keep(graph.input, [info for info in graph.input if info.name not in gone])
    _keep(graph.value_info, [info for info in graph.value_info if info.name not in gone])


def _take_unread(graph: onnx.GraphProto, inputs: set[str]) -> set[str]:
    """Take nodes out whose outputs nothing reads any more, of those behind ``inputs``; the names of all that is gone,
    inputs among them."""
    behind = set(inputs)
    for node in graph.node:
        if behind.intersection(node.input):
            behind.update(node.output)
    read = Counter(name for node in graph.node for name in node.input)
    read.update(info.name for info in graph.output)
    gone, kept = set(), []
    for node in reversed(graph.node):
        if behind.issuperset(node.output) and not any(read[name] for name in node.output):
            read.subtract(node.input)
            gone.update(node.output)
        else:
            kept.append(node)
    _keep(graph.node, kept[::-1])
    return gone | {name for name in inputs if not read[name]}


def _readers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    return readers


def _zero_sums(name: str, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> tuple[set[str], dict[str, str]] | None:
    """The tensors that are zeros where ``name`` is, and sum -> its other operand of all that reads them; None where
    something else than a sum does."""
    zeros, sums, stack = {name}, {}, [name]
    while stack:
        zero = stack.pop()
        for node in readers.get(zero, ()):
            if _makes_zeros(node, zero):
                zeros.add(node.output[0])
                stack.append(node.output[0])
                continue
            others = [operand for operand in node.input if operand not in zeros and not is_residual(operand)]
            if node.op_type != "Add" or node.domain or len(others) != 1:
                return None
            sums[node.output[0]] = others[0]
    return zeros, sums


def _makes_zeros(node: onnx.NodeProto, zero: str) -> bool:
    """Whether a node of which one input is zeros gives zeros."""
    if node.op_type in _VALUES and node.domain in ("", MICROSOFT):
        values = _VALUES[node.op_type]
        # MultiHeadAttention's next input is a bias; ONNX's Attention has a mask there.
        biased = bool(node.domain and any(node.input[values + 1 : values + 2]))
        return list(node.input[values : values + 1]) == [zero] and zero not in node.input[:values] and not biased
    if node.domain:
        return False
    return node.op_type in _PRODUCTS or (node.op_type in _MOVING and node.input[0] == zero)


def _resolved(name: str, replaced: Mapping[str, str]) -> str:
    while name in replaced:
        name = replaced[name]
    return name


def _keep(field: object, kept: Sequence[object]) -> None:
    """Let a repeated field hold these of its messages alone."""
    del field[:]  # type: ignore[attr-defined]
    field.extend(kept)  # type: ignore[attr-defined]
