"""Scaled dot-product attention without a mask: softmax(scale * Q K^T) V (https://arxiv.org/abs/1706.03762).

torch writes 0 where softmax gives NaN, masked or not: scores that no mask has closed are finite.
"""

import math
from itertools import product
from typing import Any

import onnx_graphsurgeon as gs

from sdort.rewrite.decomposed import is_attention
from sdort.rewrite.editor import Editor
from sdort.rewrite.match import Match, Refusal, decline, refuse

STAGE = "raise"
ANCHOR = "Softmax"
MUST_FUSE = True
RUN_AFTER = ("transpose_last_two", "safe_softmax")
_HEAD = """
g (float[B, N, S, D] q, float[B, N, L, D] k, float[B, N, L, E] v) => (float[B, N, S, E] y)
<float scale, float zero = {0.0}> {
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    score = MatMul (q, kt)
"""
_TURNED = """
g (float[B, N, S, D] q, float[B, L, N, D] k, float[B, N, L, E] v) => (float[B, N, S, E] y)
<float scale, float zero = {0.0}> {
    kt = Transpose <perm = [0, 2, 3, 1]> (k)
    score = MatMul (q, kt)
"""
_SCORES = (
    "logits = Mul (score, scale)  p = Softmax <axis = -1> (logits)",
    "p = Softmax <axis = -1> (score)",
)
_ENDS = ("y = MatMul (p, v) }", "bad = IsNaN (p)  safe = Where (bad, zero, p)  y = MatMul (safe, v) }")
_AFTER = """
g (float[B, N, S, D] q, float[B, N, L, D] k, float[B, N, L, E] v) => (float[B, N, S, E] y) {
    y = Attention <scale: float = @factor> (q, k, v)
}"""
_AFTER_TURNED = """
g (float[B, N, S, D] q, float[B, L, N, D] k, float[B, N, L, E] v) => (float[B, N, S, E] y) {
    heads = Transpose <perm = [0, 2, 1, 3]> (k)
    y = Attention <scale: float = @factor> (q, heads, v)
}"""
_FORMS = tuple(product(((_HEAD, _AFTER), (_TURNED, _AFTER_TURNED)), _SCORES, _ENDS))
BEFORE = tuple(head + scores + "\n" + end for (head, _), scores, end in _FORMS)
AFTER = tuple(after for (_, after), _, _ in _FORMS)
EXAMPLE = {"B": 2, "N": 3, "S": 5, "L": 7, "D": 4, "E": 4, "scale": [0.3]}


def check(m: Match) -> Refusal | None:
    if not m.known("D") or not m.known("E"):
        return refuse("the head size is not fixed", (m.dims["D"], m.dims["E"]))
    if "N" in m.dims and not m.known("N"):
        return decline("the number of heads is not fixed", m.dims["N"])
    scale = m.scalar("scale") if "scale" in m.tensors else 1.0
    return None if scale > 0 else decline("Attention is defined for positive scales", scale)


def derive(m: Match) -> dict[str, Any]:
    """The scale as an attribute: None where it is the operator's default, 1/sqrt(head size)."""
    scale = m.scalar("scale") if "scale" in m.tensors else 1.0
    return {"factor": None if math.isclose(scale, m.size("D") ** -0.5, rel_tol=1e-5) else scale}


def concerns(editor: Editor, anchor: gs.Node) -> bool:
    """Whether the softmax is an attention's, over heads or without."""
    shape = editor.shape(anchor.inputs[0])
    return is_attention(editor, anchor) and (shape is None or len(shape) in (3, 4))
