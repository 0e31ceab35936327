"""Nodes that fp16 would harm, by the ranges of the tensors that they read and write.

Sums inside an operator (of a residual and a bias) need no rule of their own: there are no more summands than
:data:`sdort.precision.ranges.HEADROOM`, and one that is larger than its share is a risk by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.float16 import LARGEST
from sdort.operators import find_operator
from sdort.precision.ranges import MOVES, NO_RANGE, Range, Ranges
from sdort.rewrite.editor import Editor

ADDITIVE = frozenset({"Add", "Sub", "Sum", "Concat"})
"""Standard operators in which what is small is lost beside what it is added to, or stays as small."""
FACTORS = {"Mul": (0, 1), "Div": (0, 1), "MatMul": (0, 1), "Gemm": (0, 1), "Conv": (1,), "ConvTranspose": (1,),
           "Attention": (1,)}  # fmt: skip
"""Inputs of standard operators whose relative error is the output's; the others (biases, shifts) are added.

Both of other operators: :mod:`sdort.operators`.
"""


@dataclass(frozen=True)
class Risk:
    """``what`` of a node fp16 cannot hold, and its range."""

    what: str
    range: Range

    @property
    def reason(self) -> str:
        """The reason in words, with the numbers."""
        measured = self.range
        if not measured.too_large:
            lost = f", {measured.vanish:.1%} of it becomes zero" if measured.vanish else ""
            return f"{self.what} is at most {measured.largest:.1e}{lost}"
        over = f", {measured.overflow:.1%} of it overflows" if measured.overflow else ""
        near = "" if measured.largest > LARGEST else f", fp16 ends at {LARGEST:.0f}"
        return f"{self.what} reaches {measured.largest:.3g}{over}{near}"


def find_risks(editor: Editor, ranges: Ranges) -> dict[str, Risk]:
    """The nodes at risk by name, each with its worst; those that only show other tensors are left out."""
    risks = {}
    for node in editor.graph.nodes:
        if node.op in MOVES or not any(editor.dtype(t) == np.float32 for t in node.outputs if t.name):
            continue
        of_node = list(_risks(node, ranges))
        if of_node:
            risks[node.name] = max(of_node, key=lambda risk: risk.range.largest)
    return risks


def _risks(node: gs.Node, ranges: Ranges) -> Iterator[Risk]:
    for index, tensor in enumerate(node.inputs):
        measured = ranges.of(tensor)
        weight = isinstance(tensor, gs.Constant)
        if measured.too_large or (measured.too_small and _counts(node, index, weight)):
            yield Risk(f"its {'weight' if weight else 'input'} {tensor.name}", measured)
    for tensor in node.outputs:
        measured = ranges.of(tensor)
        if measured.too_large or (measured.too_small and any(not _adds(reader) for reader in _readers(tensor))):
            yield Risk(f"its output {tensor.name}", measured)
    logits = ranges.logits.get(node.name, NO_RANGE)
    if logits.too_large:
        yield Risk("the bound on its scores", logits)


def _counts(node: gs.Node, index: int, weight: bool) -> bool:
    """Whether an input's relative error is the output's."""
    return index in _factors(node) if weight else not _adds(node)


def _adds(node: gs.Node) -> bool:
    operator = find_operator(node.domain, node.op)
    return node.op in ADDITIVE if operator is None else operator.additive


def _factors(node: gs.Node) -> tuple[int, ...]:
    operator = find_operator(node.domain, node.op)
    return FACTORS.get(node.op, ()) if operator is None else operator.input_positions(operator.factors)


def _readers(tensor: gs.Tensor) -> Iterator[gs.Node]:
    """The nodes that compute with a tensor, through those that only show it."""
    for node in tensor.outputs:
        if node.op in MOVES:
            yield from _readers(node.outputs[0])
        else:
            yield node
