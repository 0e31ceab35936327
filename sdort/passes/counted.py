"""Floats that are made of integers alone: positions, places in a grid, buckets of distances.

fp16 counts to 2048, and a position times a scale has no fraction left long before. What is rounded or compared among
such numbers would be another integer, or the other side, so all of it stays in fp32. They are small beside activations.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.element_operators import BROADCAST, UNARY
from sdort.passes.fp32_structure import BLIND, MOVES, SUMS
from sdort.rewrite.editor import Editor

_COMPUTES = UNARY | BROADCAST | MOVES | SUMS | {"ReduceMax", "ReduceMin", "Range"}
"""Operators whose results are numbers of the same kind."""
_ROUNDS = frozenset({"Floor", "Ceil", "Round", "Mod", "Sign"})


def counted_nodes(editor: Editor) -> set[str]:
    """Names of the nodes that compute fp32 from integers alone, where some of it is rounded or compared."""
    made: dict[str, gs.Node] = {}
    for node in editor.graph.nodes:
        if _is_counted(editor, node, made):
            made.update({t.name: node for t in node.outputs if editor.dtype(t) == np.float32})
    stack, kept = [node for node in editor.graph.nodes if _rounds(editor, node, made)], dict[int, gs.Node]()
    while stack:
        node = stack.pop()
        if id(node) not in kept:
            kept[id(node)] = node
            stack.extend(made[t.name] for t in node.inputs if t.name in made)
            readers = [reader for t in node.outputs if t.name in made for reader in t.outputs]
            stack.extend(reader for reader in readers if any(t.name in made for t in reader.outputs))
    return {node.name for node in kept.values()}


def _is_counted(editor: Editor, node: gs.Node, made: dict[str, gs.Node]) -> bool:
    """Whether a node's results are made of integers alone, and constants."""
    if node.domain or node.op not in _COMPUTES:
        return False
    dtype = editor.dtype(node.inputs[0])
    if node.op == "Cast" and dtype is not None and dtype.kind in "iu":
        return True
    floats = _floats(editor, node)
    return bool(floats) and all(t.name in made for t in floats)


def _rounds(editor: Editor, node: gs.Node, made: dict[str, gs.Node]) -> bool:
    """Whether a node makes integers, indices or comparisons of such numbers. Whether one is 0 fp16 tells as well."""
    floats = _floats(editor, node)
    if node.domain or node.op in BLIND or not floats or any(t.name not in made for t in floats):
        return False
    kinds = "iu" if node.op == "Cast" else "iub"
    dtypes = [editor.dtype(t) for t in node.outputs if t.name]
    return node.op in _ROUNDS or all(dtype is not None and dtype.kind in kinds for dtype in dtypes)


def _floats(editor: Editor, node: gs.Node) -> list[gs.Tensor]:
    """The computed inputs in fp32."""
    return [t for t in node.inputs if t.name and not isinstance(t, gs.Constant) and editor.dtype(t) == np.float32]
