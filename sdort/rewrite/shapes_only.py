"""Tensors that depend on nothing but the inputs' shapes, evaluated for several sizes.

An attention mask is built by a dozen operators that differ from exporter to exporter. What it *is* needs no pattern:
where it is computed from shapes alone, its values for a few batch sizes and sequence lengths tell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from sdort.passes.fold import evaluate_nodes
from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.infer import plain_attributes
from sdort.rewrite.symbolic import Dim, Expr
from sdort.weights import Array

SIZES = ((1, 1), (1, 2), (2, 7), (3, 77))
"""(batch, sequence) pairs for which a mask is evaluated."""
CLOSED = -1e4
"""A score at or below this is masked: exp(-10000) is 0 in every float type."""


def is_causal(editor: Editor, mask: gs.Tensor) -> bool:
    """Whether an attention mask is the lower triangle (0 or True) with everything else closed, at every size."""
    return all(_lower_triangle(value) for value in evaluate(editor, mask)) if mask.name else False


def _lower_triangle(mask: Array | None) -> bool:
    if mask is None or mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    open_ = mask if mask.dtype == np.bool_ else mask == 0
    closed = ~mask if mask.dtype == np.bool_ else mask <= CLOSED
    wanted = np.tril(np.ones(mask.shape[-2:], bool))
    return bool((open_ == wanted).all() and (closed == ~wanted).all())


def evaluate(editor: Editor, tensor: gs.Tensor) -> list[Array | None]:
    """The tensor's values at each of :data:`SIZES`; None where it depends on data."""
    if isinstance(tensor, gs.Constant):
        return [np.asarray(tensor.values)]
    nodes = _cone(tensor)
    if nodes is None:
        return [None]
    return [_at(editor, tensor, nodes, batch, length) for batch, length in SIZES]


def _cone(tensor: gs.Tensor) -> list[gs.Node] | None:
    """The nodes behind a tensor in order, cut at Shape; None if data flows in."""
    order: dict[int, gs.Node] = {}
    stack: list[tuple[gs.Tensor, bool]] = [(tensor, False)]
    while stack:
        current, done = stack.pop()
        node = producer(current)
        if isinstance(current, gs.Constant) or not current.name:
            continue
        if node is None:
            return None
        if id(node) in order:
            continue
        if done:
            order[id(node)] = node
            continue
        stack.append((current, True))
        if node.op != "Shape":
            stack.extend((t, False) for t in node.inputs)
    return list(order.values())


def _at(editor: Editor, tensor: gs.Tensor, nodes: list[gs.Node], batch: int, length: int) -> Array | None:
    feeds: dict[str, Any] = {}
    protos: list[onnx.NodeProto] = []
    sizes = _batch(editor, batch)
    for node in nodes:
        if node.op == "Shape":
            dims = editor.dims(node.outputs[0])
            if dims is None:
                return None
            feeds[node.outputs[0].name] = np.array([_size(d, sizes, length) for d in dims], np.int64)
            continue
        feeds.update({t.name: np.asarray(t.values) for t in node.inputs if isinstance(t, gs.Constant)})
        names = [t.name for t in node.inputs], [t.name for t in node.outputs]
        protos.append(helper.make_node(node.op, *names, domain=node.domain or "", **plain_attributes(node)))
    return evaluate_nodes(protos, feeds, editor.graph.opset) if protos else feeds.get(tensor.name)


def _size(dim: Dim, sizes: dict[str, int], default: int) -> int:
    """A number for a symbolic dim; sizes that are not listed are ``default``."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms.items():
        for atom in monomial:
            if isinstance(atom, str):
                factor *= sizes.get(atom, default)
            else:
                factor *= _size(atom[0], sizes, default) // atom[1]
        total += factor
    return total


def _batch(editor: Editor, size: int) -> dict[str, int]:
    """The first axis of the first graph input is the batch, whatever its name."""
    shape = editor.shape(editor.graph.inputs[0]) if editor.graph.inputs else None
    first = shape[0] if shape else None
    return {str(first): size} if isinstance(first, Expr) else {}
