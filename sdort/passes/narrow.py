"""Casts in graphs of half precision: what is wrapped in casts, although its kernels need none, is unwrapped.

Exporters and converters cast up before what they take for delicate and down after it. Of a single operator that reads
what was half and whose result is rounded to half again, that says nothing: kernels compute such operators in single
inside, and round once. What computes in single over several operators keeps its precision; where they are one
operator in other words, raising makes them one (:mod:`sdort.rewrite.match`), which then comes here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.float16 import convert
from sdort.graph.weights import cast_values
from sdort.rewrite.editor import Editor, array, producer
from sdort.rewrite.match import is_float, widest
from sdort.rewrite.worklist import apply_rules

MOVING = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Gather", "Expand"})
"""Operators that move the elements of their first input."""
NORMALIZING = frozenset({"LayerNormalization", "GroupNormalization", "InstanceNormalization", "RMSNormalization"})
ROUNDED_ONCE = frozenset(
    "Abs Add Clip Concat Div Erf Gelu LogSoftmax Max Min Mul Neg Relu Sigmoid Softmax Sqrt Sub Tanh Where".split()  # noqa: SIM905
)
"""Computed in single inside, or exact: half's result is single's, rounded (for arithmetic, see
https://dl.acm.org/doi/10.1145/221332.221334). Sums over many elements, products of matrices and attentions are not
among them: their kernels may store in half what only single can hold."""
NARROWED = MOVING | NORMALIZING | ROUNDED_ONCE


def run(editor: Editor) -> int:
    """Move and remove casts between floating-point types until no more can be; returns the number of changes."""
    return apply_rules(editor, (_merge, _sink, _hoist, _narrow))


def _widened(editor: Editor, tensor: gs.Tensor) -> gs.Tensor | None:
    """The tensor of which this is the exact copy in a wider type; None if it is no such copy."""
    node = producer(tensor, "Cast")
    if node is None:
        return None
    before, after = editor.dtype(node.inputs[0]), editor.dtype(tensor)
    if before is None or after is None or before == after or not (is_float(before) and is_float(after)):
        return None
    return node.inputs[0] if widest({before, after}) == after else None


def _narrowing(editor: Editor, node: gs.Node) -> np.dtype[Any] | None:
    """The type that a Cast from a wider floating-point type rounds to."""
    if node.op != "Cast":
        return None
    before, after = editor.dtype(node.inputs[0]), editor.dtype(node.outputs[0])
    if before is None or after is None or before == after or not (is_float(before) and is_float(after)):
        return None
    return after if widest({before, after}) == before else None


def _merge(editor: Editor, node: gs.Node) -> bool:
    """A Cast of an exact copy is a Cast of what was copied; back to its own type, it is nothing."""
    source = _widened(editor, node.inputs[0]) if node.op == "Cast" else None
    if source is None:
        return False
    if editor.dtype(source) == editor.dtype(node.outputs[0]):
        editor.replace(node.outputs[0], source)
        node.inputs.clear()
    else:
        node.inputs[0] = source
    return True


def _rebuild(editor: Editor, node: gs.Node, inputs: list[gs.Tensor]) -> gs.Tensor:
    """The same operator on other inputs."""
    return editor.op(node.op, inputs, dict(node.attrs))


def _sink(editor: Editor, node: gs.Node) -> bool:
    """Elements are moved before they are widened: fewer bytes, and the cast stands beside what it is for."""
    source = _widened(editor, node.inputs[0]) if node.op in MOVING else None
    if source is None or len(node.inputs[0].outputs) != 1:
        return False
    output, dtype = node.outputs[0], editor.dtype(node.outputs[0])
    moved = _rebuild(editor, node, [source, *node.inputs[1:]])
    node.inputs.clear()
    assert dtype is not None  # it is the Cast's
    editor.cast(moved, dtype, output=output)
    return True


def _hoist(editor: Editor, node: gs.Node) -> bool:
    """Elements are rounded before they are moved, where nothing else reads them."""
    dtype, moving = _narrowing(editor, node), producer(node.inputs[0]) if node.inputs else None
    if dtype is None or moving is None or moving.op not in MOVING or moving.domain:
        return False
    if len(node.inputs[0].outputs) != 1 or editor.is_output(node.inputs[0]):
        return False
    output = node.outputs[0]
    rounded = editor.cast(moving.inputs[0], dtype).outputs[0]
    node.inputs.clear()
    editor.node(moving.op, [rounded, *moving.inputs[1:]], dict(moving.attrs), outputs=[output])
    return True


def _narrow(editor: Editor, node: gs.Node) -> bool:
    """Cast up, one operator, cast down -> the operator."""
    if node.op not in NARROWED or len(node.outputs) != 1 or editor.is_output(node.outputs[0]):
        return False
    readers = list(node.outputs[0].outputs)
    dtypes = {_narrowing(editor, reader) for reader in readers}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype is None:
        return False
    inputs = [_in_half(editor, node, index, dtype) for index in range(len(node.inputs))]
    if not any(isinstance(t, gs.Variable) and editor.dtype(t) == dtype for t in inputs if t is not None):
        return False
    narrowed = [tensor for tensor in inputs if tensor is not None]
    if len(narrowed) != len(inputs):
        return False
    made = _rebuild(editor, node, narrowed)
    for reader in readers:
        editor.replace(reader.outputs[0], made)
        reader.inputs.clear()
        reader.outputs.clear()
    return True


def _in_half(editor: Editor, node: gs.Node, index: int, dtype: np.dtype[Any]) -> gs.Tensor | None:
    """An input of the node in its narrow form; None if it has none."""
    tensor = node.inputs[index]
    actual = editor.dtype(tensor) if tensor.name else None
    if not tensor.name or (actual is not None and not is_float(actual)):
        return tensor
    if not isinstance(tensor, gs.Constant):
        source = _widened(editor, tensor)
        return source if source is not None and editor.dtype(source) == dtype else None
    values = array(tensor)
    if values is None:  # it may hold what half cannot, unless it weighs channels
        return editor.constant(cast_values(tensor._values, dtype), tensor.name) if node.op in NORMALIZING else None
    narrow = convert(values, dtype)
    return editor.constant(narrow, tensor.name) if np.array_equal(np.isfinite(narrow), np.isfinite(values)) else None
