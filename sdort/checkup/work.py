"""The work of each node of a model, what it computes and moves at least, from shapes: its roofline on a card."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sdort.benchmark.roofline import flops
from sdort.checkup.rates import Device
from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.rewrite.editor import Editor

LATENTS = frozenset({"sample", "latent_sample"})
"""Names of the inputs that change in every step."""
KINDS = ("convolutions", "products", "attention", "GroupNorm", "LayerNorm", "BiasSplitGelu", "sums", "phases")
_MATRIX = ("convolutions", "products", "attention")
FREE = {"Reshape", "Cast", "Unsqueeze", "Squeeze", "Shape", "Gather", "Identity", "Expand"}
"""Operators that move nothing in the graph, or a few numbers."""
_BYTES = {"float16": 2, "float32": 4}
_ENDS = {"MatMul": "products", "Gemm": "products", "Attention": "attention", "GroupNorm": "GroupNorm",
         "LayerNormalization": "LayerNorm", "SplitGelu": "BiasSplitGelu", "Phases": "phases"}  # fmt: skip

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """The least work of one node: its kind of kernel, operations (a multiply-add is two) and bytes."""

    kind: str
    flops: float
    bytes: float

    def roofline(self, device: Device) -> float:
        """Microseconds."""
        arithmetic = self.flops / device.peak if self.kind in _MATRIX else 0
        return 1e6 * max(self.bytes / device.bandwidth, arithmetic)


def works_of(model: Model, latents: Collection[str] = LATENTS) -> list[Work]:
    """The nodes of a model of static sizes that depend on the latents: what else there is runs before the steps."""
    editor, depends = Editor(model), set(latents)
    found = []
    for node in model.graph.nodes:
        if not depends.isdisjoint(tensor.name for tensor in node.inputs):
            depends |= {tensor.name for tensor in node.outputs}
            if node.op not in FREE:
                found.append(work_of(node, editor))
    return found


def work_of(node: gs.Node, editor: Editor) -> Work:
    """The work of one node.

    Raises:
        BadModelError: the shape of one of its tensors is not known.
    """
    inputs, outputs = ([_shape_of(t, editor) for t in tensors if t.name] for tensors in (node.inputs, node.outputs))
    name = node.op.removeprefix("Nhwc") if node.op.startswith("Nhwc") else node.op
    done = _convolution_flops(inputs, outputs) if "Conv" in name else flops(name, inputs, outputs)
    moved = sum(_BYTES.get(dtype, 0) * math.prod(shape) for dtype, shape in [*inputs, *outputs])
    return Work(kind_of(node.op, [shape for _, shape in inputs]), done or 0, moved)


def _convolution_flops(inputs: list[tuple[str, Shape]], outputs: list[tuple[str, Shape]]) -> int:
    """Operations of a convolution whose filters are [outputs, ...], in either layout."""
    return 2 * math.prod(outputs[0][1]) * math.prod(inputs[1][1][1:])


def _shape_of(tensor: gs.Tensor, editor: Editor) -> tuple[str, Shape]:
    fact = editor.facts.of(tensor)
    if fact.shape is None or fact.dtype is None or not all(isinstance(dim, int) for dim in fact.shape):
        raise BadModelError(f"the shape of {tensor.name} is not known: {fact}")
    return fact.dtype.name, tuple(int(dim) for dim in fact.shape if isinstance(dim, int))


def kind_of(op: str, shapes: list[Shape]) -> str:
    """The kind of kernel that computes a node; convolutions of 1x1 are products in the profiles."""
    if "Conv" in op:
        filters = shapes[1]
        inner = filters[1:3] if op.startswith("Nhwc") else filters[2:]
        return "products" if math.prod(inner) == 1 else "convolutions"
    return next((kind for end, kind in _ENDS.items() if op.endswith(end)), "sums")


Totals = Mapping[str, tuple[float, int]]
"""Kind -> the sum of its nodes' rooflines in microseconds, and how many they are."""


def totals(found: Iterable[Work], device: Device) -> Totals:
    """The sums of each kind of kernel."""
    sums: dict[str, tuple[float, int]] = {}
    for work in found:
        rooflines, nodes = sums.get(work.kind, (0.0, 0))
        sums[work.kind] = rooflines + work.roofline(device), nodes + 1
    return sums
