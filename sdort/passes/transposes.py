"""Transposes and views behind what does not mind them, where they meet their inverse.

A norm over the last axis does not know in which order the others are, nor does a Concat along one of them; a rotary
embedding takes heads as rows, too. Heads that
are normalized one by one, and joined with those of another sequence, are so as rows of [batch, rows, heads, size], and
the exporter's Transposes cancel against those of the attention (:mod:`sdort.passes.attention_form`).
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.worklist import RewriteRule

_NORMS = frozenset({"RMSNormalization", "LayerNormalization"})


def _behind_norm(editor: Editor, node: gs.Node) -> bool:
    """A norm over the last axis of a Transpose that keeps it there -> a Transpose of the norm."""
    if node.op not in _NORMS or node.domain or any(tensor.name for tensor in node.outputs[1:]):
        return False
    turn = _own(editor, node.inputs[0], "Transpose")
    shape, perm = editor.shape(node.inputs[0]), _perm(turn)
    if turn is None or shape is None or perm is None or perm[-1] != len(shape) - 1:
        return False
    ranks = [editor.shape(tensor) for tensor in node.inputs[1:] if tensor.name]
    if node.attrs.get("axis", -1) not in (-1, len(shape) - 1) or any(s is None or len(s) > 1 for s in ranks):
        return False
    normal = editor.op(node.op, [turn.inputs[0], *node.inputs[1:]], dict(node.attrs))
    _end(editor, node, "Transpose", [normal], {"perm": perm})
    return True


def _behind_rotary(editor: Editor, node: gs.Node) -> bool:
    """A rotary embedding of heads that a Transpose has put first -> one of rows, and the Transpose behind it."""
    if node.op != "RotaryEmbedding" or node.domain:
        return False
    turn = _own(editor, node.inputs[0], "Transpose")
    shape = editor.shape(node.inputs[0])
    if turn is None or shape is None or len(shape) != 4 or _perm(turn) != [0, 2, 1, 3]:
        return False
    heads, size = shape[1], shape[3]
    if not isinstance(heads, int) or not isinstance(size, int):
        return False
    rows = editor.op("Reshape", [turn.inputs[0], editor.ints([0, 0, heads * size], "shape")])
    rotated = editor.op("RotaryEmbedding", [rows, *node.inputs[1:]], {**node.attrs, "num_heads": heads})
    by_head = editor.op("Reshape", [rotated, editor.ints([0, 0, heads, size], "shape")])
    _end(editor, node, "Transpose", [by_head], {"perm": [0, 2, 1, 3]})
    return True


def _repeated_heads(editor: Editor, node: gs.Node) -> bool:
    """Heads that are put first, repeated for the query heads that share them, and put back -> repeated as rows.

    [B, S, K, D] -> [B, K, S, D] -> [B, K, 1, S, D] -> [B, K, G, S, D] -> [B, K G, S, D] -> [B, S, K G, D]
    """
    if node.op != "Transpose" or node.domain or _perm(node) != [0, 2, 1, 3]:
        return False
    merge = _own(editor, node.inputs[0], "Reshape")
    expand = None if merge is None else _own(editor, merge.inputs[0], "Expand")
    apart = None if expand is None else _own(editor, expand.inputs[0], "Reshape")
    turn = None if apart is None else _own(editor, apart.inputs[0], "Transpose")
    if merge is None or expand is None or turn is None or _perm(turn) != [0, 2, 1, 3]:
        return False
    rows, wide = editor.shape(turn.inputs[0]), editor.shape(expand.outputs[0])
    if rows is None or wide is None or len(rows) != 4 or len(wide) != 5:
        return False
    batch, length, heads, size = rows
    times = wide[2]
    if not isinstance(heads, int) or not isinstance(size, int) or not isinstance(times, int):
        return False
    if editor.shape(expand.inputs[0]) != (batch, heads, 1, length, size):
        return False
    if wide != (batch, heads, times, length, size):
        return False
    if editor.shape(node.inputs[0]) != (batch, heads * times, length, size):
        return False
    one = editor.op("Reshape", [turn.inputs[0], editor.ints([0, 0, heads, 1, size], "shape")])
    each = editor.op("Expand", [one, editor.ints([1, 1, 1, times, 1], "times")])
    _end(editor, node, "Reshape", [each, editor.ints([0, 0, heads * times, size], "shape")], {})
    return True


def _behind_concat(editor: Editor, node: gs.Node) -> bool:
    """A Concat of equal Transposes -> a Transpose of the Concat."""
    if node.op != "Concat" or node.domain:
        return False
    turns = [_own(editor, tensor, "Transpose") for tensor in node.inputs]
    perms = [_perm(turn) for turn in turns]
    if perms[0] is None or any(perm != perms[0] for perm in perms):
        return False
    sources = [turn.inputs[0] for turn in turns if turn is not None]
    joined = editor.op("Concat", sources, {"axis": perms[0][node.attrs["axis"]]})
    _end(editor, node, "Transpose", [joined], {"perm": perms[0]})
    return True


def _views_behind_concat(editor: Editor, node: gs.Node) -> bool:
    """A Concat of tensors whose last axis a Reshape has parted alike -> a Reshape of the Concat."""
    if node.op != "Concat" or node.domain:
        return False
    views = [_own(editor, tensor, "Reshape") for tensor in node.inputs]
    before = [None if view is None else editor.shape(view.inputs[0]) for view in views]
    after = [editor.shape(tensor) for tensor in node.inputs]
    first, rank = after[0], len(before[0] or ())
    if first is None or not 1 < rank < len(first):
        return False
    parts = first[rank - 1 :]
    for whole, parted in zip(before, after, strict=True):
        if whole is None or parted is None or len(whole) != rank or whole[:-1] != parted[: rank - 1]:
            return False
        if parted[rank - 1 :] != parts or not all(isinstance(size, int) for size in parts):
            return False
    axis = node.attrs["axis"] % len(first)
    if axis >= rank - 1:
        return False
    joined = editor.op("Concat", [view.inputs[0] for view in views if view is not None], {"axis": axis})
    target = editor.ints([*[0] * (rank - 1), *(size for size in parts if isinstance(size, int))], "shape")
    _end(editor, node, "Reshape", [joined, target], {})
    return True


def _own(editor: Editor, tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The ``op`` that computes a tensor which nothing else reads."""
    node = producer(tensor, op)
    return None if node is None or len(tensor.outputs) != 1 or editor.is_output(tensor) else node


def _perm(node: gs.Node | None) -> list[int] | None:
    return None if node is None or "perm" not in node.attrs else list(node.attrs["perm"])


def _end(editor: Editor, node: gs.Node, op: str, inputs: list[gs.Tensor], attrs: dict[str, list[int]]) -> None:
    """Let another node compute what ``node`` did."""
    output = node.outputs[0]
    node.inputs.clear()
    editor.node(op, inputs, attrs, outputs=[output])


RULES: tuple[RewriteRule, ...] = (_behind_norm, _behind_rotary, _repeated_heads, _behind_concat, _views_behind_concat)
