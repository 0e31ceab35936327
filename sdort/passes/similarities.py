"""Similarities: products of vectors of length one, which are compared with thresholds.

CLIP's scores lie within some hundredths of each other, and a threshold parts them in the third decimal place. fp16 has
steps of 0.00024 from 0.25 on, so that the product, its threshold and their difference stay in fp32. They are a few
nodes at the end of a graph.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sdort.graph.element_operators import BROADCAST, UNARY
from sdort.passes.fp32_structure import COMPARES, MOVES
from sdort.rewrite.editor import Editor, producer

_PRODUCTS = frozenset({"MatMul", "Gemm"})
_LENGTHS = frozenset({"Clip", "Max", "Add", "Expand"})
"""Operators that keep a length from zero, or repeat it."""


def similarity_nodes(editor: Editor) -> set[str]:
    """Names of the nodes from vectors of length one to what is decided by their products.

    That is a graph's output or a comparison, and every way from the vector leads to one, through a single product and
    elementwise operators. Attention over such vectors goes on to a softmax, and none of it is named here.
    """
    outputs = {tensor.name for tensor in editor.graph.outputs}
    found = (_decided(node, outputs) for node in editor.graph.nodes if _has_length_one(node))
    return {node.name for nodes in found for node in nodes}


def _has_length_one(node: gs.Node) -> bool:
    """Whether a node divides a vector by its length."""
    if node.op == "LpNormalization" and not node.domain:
        return bool(node.attrs.get("p", 2) == 2)
    if node.op != "Div" or node.domain:
        return False
    length = producer(node.inputs[1])
    while length is not None and length.op in _LENGTHS:
        length = producer(length.inputs[0])
    return length is not None and _measured(length) is node.inputs[0]


def _measured(length: gs.Node) -> gs.Tensor | None:
    """The vector whose length a node computes: in one operator, or as the root of a sum of squares."""
    if length.op == "ReduceL2":
        return length.inputs[0]
    total = producer(length.inputs[0]) if length.op == "Sqrt" else None
    if total is not None and total.op == "ReduceSumSquare":
        return total.inputs[0]
    square = producer(total.inputs[0]) if total is not None and total.op == "ReduceSum" else None
    if square is not None and square.op == "Mul" and square.inputs[0] is square.inputs[1]:
        return square.inputs[0]
    return square.inputs[0] if square is not None and square.op == "Pow" else None


def _decided(start: gs.Node, outputs: set[str]) -> list[gs.Node]:
    """The nodes behind a vector of length one; none if one of them goes on to something else than a decision."""
    nodes: dict[int, gs.Node] = {}
    multiplied = False
    stack = [(start, False)]
    while stack:
        node, behind = stack.pop()
        nodes[id(node)] = node
        for tensor in node.outputs:
            if not tensor.outputs and tensor.name not in outputs:
                return []
            for reader in tensor.outputs:
                product = reader.op in _PRODUCTS
                if reader.domain or (product and behind) or not (product or reader.op in _GOES_ON | COMPARES):
                    return []
                multiplied |= product
                if reader.op in COMPARES:
                    nodes[id(reader)] = reader
                elif id(reader) not in nodes:
                    stack.append((reader, behind or product))
    return list(nodes.values()) if multiplied else []


_GOES_ON = UNARY | BROADCAST | MOVES
