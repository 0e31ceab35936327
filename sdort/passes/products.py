"""Matrix products as layers write them, where an exporter took the layers apart.

A decomposed Linear is a product of two axes with views around it, or a batch of products whose weight was repeated for
each of them; heads of an attention come merged with the batch. The rules here give every product the axes of what it
multiplies, so that patterns see one form.
"""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

from sdort.graph.fact import broadcast
from sdort.graph.symbolic import Shape
from sdort.graph.weights import Inline, Reshaped, as_weight
from sdort.rewrite.editor import Editor, array, producer
from sdort.rewrite.equal_sizes import BROADCASTING
from sdort.rewrite.worklist import RewriteRule

LARGEST_CONSTANT = 1 << 18
"""Constants of up to this many elements are looked at: no exporter folds what is larger."""


def _rows_apart(editor: Editor, node: gs.Node) -> bool:
    """A product of merged rows, [.., I] -> [M, I] -> [M, O] -> [.., O], is one of rows that are not merged."""
    x = _unmerged(editor, node.inputs[0], 1) if _is_linear(editor, node) else None
    if x is None:
        return False
    views = _views(editor, node, (editor.shape(x) or ())[:-1])
    if views is None:
        return False
    matrix = node.inputs[1]
    if node.attrs.get("transB"):
        matrix = editor.op("Transpose", [matrix], {"perm": [1, 0]})
    rows = editor.op("MatMul", [x, matrix])
    if len(node.inputs) > 2 and node.inputs[2].name:
        rows = editor.op("Add", [rows, node.inputs[2]])
    _view_again(editor, node, views, rows)
    return True


def _is_linear(editor: Editor, node: gs.Node) -> bool:
    """Whether the node is x W, or x W + b with one b for all rows."""
    left, right = (editor.shape(t) for t in node.inputs[:2]) if node.op in ("MatMul", "Gemm") else (None, None)
    if left is None or right is None or len(right) != 2:
        return False
    if node.op == "MatMul":
        return True
    if node.attrs.get("transA") or node.attrs.get("alpha", 1) != 1 or node.attrs.get("beta", 1) != 1:
        return False
    bias = editor.shape(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2].name else ()
    return bias is not None and all(size == 1 for size in bias[:-1])


def _batches_apart(editor: Editor, node: gs.Node) -> bool:
    """[.., S, D] -> [M, S, D] times [.., D, L] -> [M, D, L], and back to [.., S, L]: a product of those axes."""
    if node.op != "MatMul":
        return False
    inner = [_unmerged(editor, tensor, 2) for tensor in node.inputs]
    shapes = [editor.shape(tensor) for tensor in inner if tensor is not None]
    left, right = shapes if len(shapes) == 2 else (None, None)
    if left is None or right is None or left[:-2] != right[:-2]:
        return False
    views = _views(editor, node, left[:-1])
    if views is None:
        return False
    _view_again(editor, node, views, editor.op("MatMul", [t for t in inner if t is not None]))
    return True


def _unmerged(editor: Editor, tensor: gs.Tensor, kept: int) -> gs.Tensor | None:
    """The tensor of which a Reshape made this one by merging axes, of which the ``kept`` last are none."""
    node, shape = producer(tensor, "Reshape"), editor.shape(tensor)
    before = None if node is None else editor.shape(node.inputs[0])
    if node is None or shape is None or before is None or len(before) <= len(shape):
        return None
    return node.inputs[0] if before[-kept:] == shape[-kept:] else None


def _views(editor: Editor, node: gs.Node, axes: Shape) -> list[gs.Node] | None:
    """The readers of a product, if all of them are views that give it these first axes again."""
    (result,) = node.outputs
    if not result.outputs or editor.is_output(result):
        return None
    for reader in result.outputs:
        shape = editor.shape(reader.outputs[0]) if reader.op == "Reshape" and not reader.domain else None
        if shape is None or shape[: len(axes)] != axes:
            return None
    return list(result.outputs)


def _view_again(editor: Editor, node: gs.Node, views: list[gs.Node], result: gs.Tensor) -> None:
    """Their targets stay: where one copies a size of what was merged, it copies the same of what begins as they do."""
    for view in views:
        target, outputs = view.inputs[1], list(view.outputs)
        view.inputs.clear()
        editor.node("Reshape", [result, target], dict(view.attrs), outputs=outputs)
    node.inputs.clear()


def _plain_operand(editor: Editor, node: gs.Node) -> bool:
    """A product repeats its operands over the batch itself: one that was repeated before is taken as it was."""
    if node.op != "MatMul":
        return False
    for index in (0, 1):
        shapes = [editor.shape(tensor) for tensor in node.inputs]
        shapes[index] = _once(editor, node.inputs[index])
        left, right = shapes
        if left is None or right is None or _product_shape(left, right) != editor.shape(node.outputs[0]):
            continue
        inputs, outputs = list(node.inputs), list(node.outputs)
        inputs[index] = _taken_once(editor, inputs[index], shapes[index] or ())
        node.inputs.clear()
        editor.node("MatMul", inputs, outputs=outputs)
        return True
    return False


def _once(editor: Editor, tensor: gs.Tensor) -> Shape | None:
    """The shape of an operand without what it repeats over the batch; None if it does not repeat."""
    node, shape = producer(tensor, "Expand"), editor.shape(tensor)
    if node is not None:
        before = editor.shape(node.inputs[0])
        return before if before is not None and shape is not None and before[-2:] == shape[-2:] else None
    if not isinstance(tensor, gs.Constant) or len(tensor.shape) < 3:
        return None
    return tuple(tensor.shape[-2:]) if _repeats(tensor) else None


def _repeats(tensor: gs.Constant) -> bool:
    """Whether a stack of matrices is one matrix again and again: exporters fold an Expand of small weights."""
    if math.prod(tensor.shape[:-2]) == 1:
        return True
    values = array(tensor, LARGEST_CONSTANT)
    if values is None:
        return False
    matrices = values.reshape(-1, *tensor.shape[-2:])
    return bool((matrices == matrices[:1]).all())


def _taken_once(editor: Editor, tensor: gs.Tensor, shape: Shape) -> gs.Tensor:
    node = producer(tensor, "Expand")
    if node is not None:
        return node.inputs[0]
    values = as_weight(tensor._values)
    if values.shape[:-2] and math.prod(values.shape[:-2]) > 1:
        values = Inline(values.load().reshape(-1, *values.shape[-2:])[0])
    return editor.constant(Reshaped(values, values.shape[-2:]), tensor.name)


def _product_shape(left: Shape, right: Shape) -> Shape | None:
    """The shape of a product of operands of two axes or more."""
    batch = broadcast(left[:-2], right[:-2]) if len(left) > 1 and len(right) > 1 else None
    return None if batch is None else (*batch, left[-2], right[-1])


def _plain_addend(editor: Editor, node: gs.Node) -> bool:
    """An operator that broadcasts takes what was repeated as it was, where the other inputs are as large."""
    if node.op not in BROADCASTING:
        return False
    for index, tensor in enumerate(node.inputs):
        plain: gs.Tensor | None = _element(editor, tensor) if node.op == "Where" else None
        expand = producer(tensor, "Expand")
        if expand is not None:
            plain = expand.inputs[0]
        if plain is None:
            continue
        inputs = list(node.inputs)
        inputs[index] = plain
        shape = broadcast(*(editor.shape(t) if isinstance(t, gs.Variable) else tuple(t.shape) for t in inputs))
        if shape is None or shape != editor.shape(node.outputs[0]):
            continue
        outputs, attrs = list(node.outputs), dict(node.attrs)
        node.inputs.clear()
        editor.node(node.op, inputs, attrs, outputs=outputs)
        return True
    return False


def _element(editor: Editor, tensor: gs.Tensor) -> gs.Constant | None:
    """The element of a large constant that holds nothing else: exporters fold an Expand to the scores' size."""
    if not isinstance(tensor, gs.Constant) or len(tensor.shape) < 3 or math.prod(tensor.shape) < 2:
        return None
    values = array(tensor, LARGEST_CONSTANT)
    if values is None or not (values == values.reshape(-1)[0]).all():
        return None
    return editor.constant(values.reshape(-1)[:1].reshape(()).copy(), "element")


RULES: tuple[RewriteRule, ...] = (_rows_apart, _batches_apart, _plain_operand, _plain_addend)
