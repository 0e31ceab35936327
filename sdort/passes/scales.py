"""Scales of attentions: behind the product of queries and keys for the patterns, in front of it in fp16.

Exporters scale the queries, the keys, both or the scores, by products or divisions. Patterns know scores that are
multiplied once, so all scales meet there. That rounds otherwise than the model says: it is done only where no kernel
gives the result to the last bit anyway, in front of a softmax or an error function, and never where a rounding could
become another integer or the other side of a comparison.

What stays a product of its own after the fusions is scaled before it in fp16: unscaled scores are beyond 65504 with
elements of 110 in heads of 64. A model that is fp16 itself is rounded so in front of a softmax or an error function
alone.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from sdort.passes.simplify import keeps_shape, multiply_instead, normal_number, rebuild
from sdort.rewrite.editor import Editor, producer, scalar
from sdort.rewrite.match import is_float
from sdort.rewrite.worklist import RewriteRule

_CURVES = frozenset({"Softmax", "LogSoftmax", "Erf", "Attention"})
"""Operators whose result no two kernels give to the last bit."""
_BETWEEN = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand", "Slice", "Split", "Concat",
     "Cast", "Add", "Mul", "Div", "Where", "MatMul"}
)  # fmt: skip
"""Operators between a scale and a softmax."""
_VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand", "Slice", "Cast"})
_OF_ANY_SIZE = frozenset({"IsNaN", "IsInf", "Shape", "Size"})
"""Operators that do not see a rounding."""


def _meets_curve(editor: Editor, tensor: gs.Tensor) -> bool:
    """Whether a softmax or an error function is behind all that reads a tensor, with sums and products in between."""
    stack, seen = [tensor], set[int]()
    while stack:
        current = stack.pop()
        dtype = editor.dtype(current)
        if id(current) in seen or (dtype is not None and not is_float(dtype)):
            continue
        seen.add(id(current))
        if editor.is_output(current) or not current.outputs:
            return False
        for reader in current.outputs:
            if reader.domain or not (reader.op in _CURVES | _OF_ANY_SIZE or _is_between(editor, reader)):
                return False
            stack.extend(reader.outputs if reader.op in _BETWEEN else ())
    return True


def _is_between(editor: Editor, node: gs.Node) -> bool:
    if node.op == "Equal":  # minus infinity, where a mask closes a row, is no question of rounding
        return any(value is not None and math.isinf(value) for value in map(scalar, node.inputs))
    if node.op == "Cast":
        dtype = editor.dtype(node.outputs[0])
        return dtype is not None and is_float(dtype)
    if node.op == "MatMul":
        return not any(isinstance(tensor, gs.Constant) for tensor in node.inputs)
    return node.op in _BETWEEN


def _divide_to_multiply(editor: Editor, node: gs.Node) -> bool:
    """x / c -> x * (1/c)."""
    return node.op == "Div" and _meets_curve(editor, node.outputs[0]) and multiply_instead(editor, node)


def _scaled(editor: Editor, tensor: gs.Tensor) -> tuple[gs.Tensor, float] | None:
    """(x, c) if the tensor is x times a scalar constant and nothing else reads it."""
    node = producer(tensor, "Mul")
    if node is None or len(tensor.outputs) != 1 or editor.is_output(tensor):
        return None
    for index, other in ((0, 1), (1, 0)):
        factor = scalar(node.inputs[other])
        if factor is not None and not isinstance(node.inputs[index], gs.Constant) and keeps_shape(editor, node, index):
            return node.inputs[index], factor
    return None


def _hoist(editor: Editor, node: gs.Node) -> bool:
    """op(x * c) -> op(x) * c for operators that are linear in x."""
    if node.op == "MatMul" and not any(isinstance(t, gs.Constant) for t in node.inputs):
        candidates = [0, 1]
    elif node.op == "Transpose":
        candidates = [0]
    else:
        return False
    for index in candidates:
        scaling = _scaled(editor, node.inputs[index])
        if scaling is None or not _meets_curve(editor, node.outputs[0]):
            continue
        inputs = list(node.inputs)
        inputs[index], scale = scaling
        dtype = editor.dtype(inputs[index])
        inner = editor.op(node.op, inputs, dict(node.attrs))
        rebuild(editor, node, "Mul", [inner, editor.constant(np.array(scale, dtype), "factor")])
        return True
    return False


def _merge(editor: Editor, node: gs.Node) -> bool:
    """(x * a) * b -> x * (a*b)."""
    dtype = editor.dtype(node.outputs[0]) if node.op == "Mul" else None
    if dtype is None or not is_float(dtype):
        return False
    for index, other in ((0, 1), (1, 0)):
        factor, scaling = scalar(node.inputs[other]), _scaled(editor, node.inputs[index])
        if factor is None or scaling is None or not keeps_shape(editor, node, index):
            continue
        tensor, scale = scaling
        merged = normal_number(scale * factor, dtype)
        if merged is None or not _meets_curve(editor, node.outputs[0]):
            return False
        rebuild(editor, node, "Mul", [tensor, editor.constant(merged, "factor")])
        return True
    return False


RULES: tuple[RewriteRule, ...] = (_divide_to_multiply, _hoist, _merge)


def scale_before(editor: Editor, *, half: bool) -> int:
    """(a b) * c -> (a * c) b for products of two computed matrices and factors below 1, where fp16 needs it.

    Products of shares need it not: these sum to 1, and may be too small to be made smaller.

    Args:
        half: whether the graph's fp32 becomes fp16. What is fp16 in the model itself is rounded otherwise only in front
            of a softmax or an error function.

    Returns:
        The number of factors.
    """
    changes = 0
    for node in [n for n in editor.graph.nodes if n.op == "MatMul" and not n.domain]:
        dtype, result = editor.dtype(node.outputs[0]), node.outputs[0]
        needed = (half and dtype == np.float32) or (dtype == np.float16 and _meets_curve(editor, result))
        product = node if needed and not any(map(_is_shares, node.inputs)) else None
        while product is not None and (factor := _factor_behind(editor, product)) is not None:
            (reader,) = product.outputs[0].outputs
            result, constant = reader.outputs[0], np.array(factor, editor.dtype(product.inputs[0]))
            left = editor.op("Mul", [product.inputs[0], editor.constant(constant, "factor")])
            rebuild(editor, reader, "MatMul", [left, product.inputs[1]])
            product, changes = producer(result), changes + 1
    if changes:
        editor.finish()
    return changes


def _is_shares(tensor: gs.Tensor) -> bool:
    """Whether a tensor is a softmax, or a view of one."""
    node = producer(tensor)
    while node is not None and node.op in _VIEWS and not node.domain:
        node = producer(node.inputs[0])
    return node is not None and node.op == "Softmax" and not node.domain


def _factor_behind(editor: Editor, node: gs.Node) -> float | None:
    """The factor that the only reader of a product shrinks it by."""
    result = node.outputs[0]
    if any(isinstance(t, gs.Constant) for t in node.inputs) or len(result.outputs) != 1 or editor.is_output(result):
        return None
    reader = result.outputs[0]
    if reader.op not in ("Mul", "Div") or reader.domain or editor.shape(reader.outputs[0]) != editor.shape(result):
        return None
    numbers = [scalar(tensor) for tensor in reader.inputs]
    value = numbers[1] if reader.op == "Div" else next((number for number in numbers if number is not None), None)
    if not value:
        return None
    factor = 1 / value if reader.op == "Div" else value
    return factor if abs(factor) < 1 else None
