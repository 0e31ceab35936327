"""Causal attention masks, recognized by their values at several sequence lengths.

An attention mask is built by a dozen operators that differ from exporter to exporter, so that no pattern describes it.
Where it is computed from shapes alone, its values for a few sequence lengths do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from sdort.graph.signature import Array
from sdort.graph.symbolic import Dim, Expr, symbols
from sdort.onnx_io.evaluate import evaluate_nodes
from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.inference.facts import plain_attributes

LENGTHS = (1, 2, 7, 77)
"""Sequence lengths for which a mask is evaluated, beside those around the numbers that it is computed with."""
LARGEST_NUMBER = 4096
"""A mask that is computed with a larger number is not evaluated: what it does there would not be seen."""
CLOSED = -1e4
"""A score at or below this is masked: exp(-10000) is 0 in every float type."""


def is_causal(editor: Editor, mask: gs.Tensor, rows: Dim) -> bool:
    """Whether an attention mask is the lower triangle (0 or True) with everything else closed, at every size.

    Args:
        mask: the mask; what is no float is taken for booleans that say what is open.
        rows: how many queries there are, and as many keys.
    """
    if isinstance(mask, gs.Constant):
        size = rows if isinstance(rows, int) else mask.shape[-1] if mask.shape else 1
        # Of a mask of one element every row and column would be the same.
        return (size > 1 or rows == 1) and _lower_triangle(np.asarray(mask.values), size)
    nodes = _cone(mask) if mask.name else None
    lengths = None if nodes is None else _lengths(nodes)
    if nodes is None or lengths is None:
        return False
    for length in lengths if isinstance(rows, Expr) else (1,):
        # Sizes that are none of the queries' may be anything: a mask that follows them is not causal.
        for others in (length, length + 3, 1):
            sizes = dict.fromkeys(_names(editor, nodes), others) | _batch(editor, 3)
            sizes |= dict.fromkeys(symbols(rows), length)
            value = _at(editor, mask, nodes, sizes, length)
            if value is None or not _lower_triangle(value, _size(rows, sizes, length)):
                return False
    return True


def _lower_triangle(mask: Array, size: int) -> bool:
    if mask.shape[-2:] != (size, size):
        return False
    open_ = mask if mask.dtype == np.bool_ else mask == 0
    closed = ~mask if mask.dtype == np.bool_ else mask <= CLOSED
    triangle = np.tril(np.ones((size, size), bool))
    return bool((open_ == triangle).all() and (closed == ~triangle).all())


def _lengths(nodes: list[gs.Node]) -> list[int] | None:
    """Lengths at which a mask would show what it is: around every number that it compares or cuts with."""
    lengths = set(LENGTHS)
    for tensor in (t for node in nodes for t in node.inputs if isinstance(t, gs.Constant)):
        if math.prod(tensor.shape) > 8 or tensor.values.dtype.kind not in "iuf":
            continue
        for value in np.asarray(tensor.values, np.float64).reshape(-1).tolist():
            if 2 < abs(value) <= LARGEST_NUMBER:
                lengths |= {int(abs(value)) + step for step in (-1, 0, 1, 2)}
            elif LARGEST_NUMBER < value < 2**31 - 1:  # beyond are the ends of slices that take all
                return None
    return sorted(lengths)


def _names(editor: Editor, nodes: list[gs.Node]) -> set[str]:
    """The named sizes that Shapes hand to a mask."""
    dims = (dim for node in nodes if node.op == "Shape" for dim in editor.dims(node.outputs[0]) or ())
    return {name for dim in dims for name in symbols(dim) if not name.startswith("?")}


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


def _at(editor: Editor, tensor: gs.Tensor, nodes: list[gs.Node], sizes: dict[str, int], length: int) -> Array | None:
    """The tensor's values at these sizes; sizes without a name are ``length``."""
    feeds: dict[str, Any] = {}
    protos: list[onnx.NodeProto] = []
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
