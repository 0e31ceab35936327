"""The graph of a UNet's step without its deep part, which takes what that made in an earlier step.

DeepCache (Ma, Fang and Wang, "DeepCache: Accelerating Diffusion Models for Free", 2023, arXiv:2312.00858): from one
step to the next the deep levels of a UNet change little, the outer ones do. So every few steps the whole graph runs and
gives the hidden state before one of its skip connections beside its output; in the steps between a shallow graph takes
that, and computes the outer levels alone.

A skip connection is found by what a ``Concat``, or an operator that does its work, joins: a tensor, and another one
that is made from it through further weights. No names of nodes or weights are looked at. Both graphs have their
weights from the file of the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from sdort.errors import BadModelError, UsageError
from sdort.families.known_families import roles_of
from sdort.graph.domains import OWN_DOMAIN
from sdort.onnx_io.branches import outer_names
from sdort.runtime.step.step_split import Parts, constants_of, graph_inputs, tensor_types
from sdort.workload.steering_inputs import is_residual

DEPTH = 2
"""Skip connections that the shallow graph has where nobody says how many, counted from the output: DeepCache's own
choice for Stable Diffusion, a fifth of the work."""
_JOINS = frozenset({("", "Concat"), (OWN_DOMAIN, "GroupNorm")})
"""Operators that write tensors one beside the other: sdort's GroupNorm reads both parts and gives the whole too."""
_COUNTS = frozenset({"Shape", "Size"})
_INDICES = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL})
"""Types of constants that are no weights: shapes, axes, conditions."""


@dataclass(frozen=True)
class DeepCut:
    """The graphs of a step.

    Attributes:
        whole: all of it, which gives ``kept`` too.
        shallow: the outer levels, with the input ``kept``.
        kept: the hidden state, [samples, channels, height, width] or channels last.
    """

    whole: onnx.ModelProto
    shallow: onnx.ModelProto
    kept: str


def cut_deep(model: onnx.ModelProto, depth: int, component: str) -> DeepCut:
    """Cut a graph, whose nodes are in topological order, at a skip connection. The results share nothing with it.

    Args:
        depth: how many skip connections the shallow graph has.

    Raises:
        BadModelError, UsageError: as :func:`check_depth`.
    """
    hidden = hidden_states(model.graph)
    check_depth(len(hidden), depth, component)
    kept = hidden[depth - 1]
    inputs = graph_inputs(model.graph)
    types, shapes = tensor_types(model, inputs, model.graph.node)
    parts = Parts(model, inputs, types, shapes)
    outputs = [info.name for info in model.graph.output]
    every = list(dict.fromkeys([*outputs, kept]))
    return DeepCut(
        parts.model("whole", parts.needed(every, set()), every),
        parts.model("shallow", parts.needed(outputs, {kept}), outputs),
        kept,
    )


def check_depth(found: int, depth: int, component: str) -> None:
    """Refuse a depth that a graph does not have.

    Args:
        found: its skip connections.

    Raises:
        BadModelError: it has none.
        UsageError: it has fewer.
    """
    if not found:
        raise BadModelError(
            "its graph has no skip connections, at which --deep-cache cuts it",
            component=component,
            hint="Leave it out.",
        )
    if depth > found:
        raise UsageError(
            f"--deep-cache-depth {depth} is more than the {found} skip connections that the {component} has",
            hint=f"Take 1 to {found}; small ones are fast, and {min(DEPTH, found)} is usual.",
        )


def hidden_states(graph: onnx.GraphProto) -> list[str]:
    """The hidden state before each skip connection, beginning at the output: each is made from the next."""
    search = _Search(graph)
    made = {name: index for index, node in enumerate(graph.node) for name in node.output}
    last = [search.before[name] for name in (info.name for info in graph.output) if name in made]
    within = last[0] if last else 0
    found = []
    for index in range(len(graph.node) - 1, -1, -1):
        hidden = search.hidden(graph.node[index]) if within >> index & 1 else None
        if hidden is not None:
            found.append(hidden)
            within = search.before[hidden]
    return found


class _Search:
    """Origin of each tensor of a graph, as far as it depends on the latents."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        weights = _weights(graph)
        inputs = graph_inputs(graph)
        sample = roles_of(inputs).sample
        self.before: dict[str, int] = {name: 0 for name in inputs if name == sample or is_residual(name)}
        """Bits of the nodes that a tensor needs; tensors that do not depend on the latents are not here."""
        self.weighted = 0
        """Bits of the nodes that read weights."""
        for index, node in enumerate(graph.node):
            read = [name for name in (*node.input, *outer_names(node)) if name in self.before]
            if node.op_type in _COUNTS or not read:
                continue
            bits = 1 << index
            for name in read:
                bits |= self.before[name]
            self.before.update(dict.fromkeys(filter(None, node.output), bits))
            if not weights.isdisjoint(node.input):
                self.weighted |= 1 << index

    def hidden(self, node: onnx.NodeProto) -> str | None:
        """The hidden state that a node joins with a tensor that it was made from; None for other nodes."""
        joined: list[str] = [name for name in node.input if name in self.before]
        if (node.domain, node.op_type) not in _JOINS or len(joined) != 2:
            return None
        first, second = (self.before[name] & self.weighted for name in joined)
        if first == second or not (first and second) or first & second not in (first, second):
            return None
        return joined[0] if first & second == second else joined[1]


def _weights(graph: onnx.GraphProto) -> set[str]:
    """The constants that are weights: no numbers alone."""
    constants = constants_of(graph)
    found = {
        name for name, tensor in constants.items() if tensor.data_type not in _INDICES and math.prod(tensor.dims) > 1
    }
    for node in graph.node:  # a weight in another form is a weight: transposed, or stored smaller
        if not found.isdisjoint(node.input) and all(name in found or name in constants for name in node.input):
            found.update(node.output)
    return found
