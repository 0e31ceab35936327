"""Masks and biases that are added to an attention's scores one after the other, or before these are scaled, as one.

(c + b) + m is c + (b + m), and (c + m) * s is c * s + m * s, to the rounding of a sum.
"""

import onnx_graphsurgeon as gs

from sdort.rewrite.editor import producer
from sdort.rewrite.match import Match, Refusal, decline

STAGE = "raise"
ANCHOR = "Softmax"
RUN_AFTER = ("transpose_last_two", "safe_softmax")
_BEFORE = """
g (float[] q, float[] k{0}) => (float[] p) <float scale> {{
    score = MatMul (q, k)
    {1}
    p = Softmax <axis = -1> (masked)
}}"""
_AFTER = """
g (float[] q, float[] k{0}) => (float[] p) {{
    score = MatMul (q, k)
    {1}
    p = Softmax <axis = -1> (masked)
}}"""
_TWO, _ONE, _SCALE = ", float[] bias, float[] mask", ", float[] mask", ", float scale"
_FORMS = (
    (
        _TWO,
        "logits = Mul (score, scale)  biased = Add (logits, bias)  masked = Add (biased, mask)",
        _TWO + _SCALE,
        "logits = Mul (score, scale)  both = Add (bias, mask)  masked = Add (logits, both)",
    ),
    (
        _TWO,
        "biased = Add (score, bias)  masked = Add (biased, mask)",
        _TWO,
        "both = Add (bias, mask)  masked = Add (score, both)",
    ),
    (
        _ONE,
        "sum = Add (score, mask)  masked = Mul (sum, scale)",
        _ONE + _SCALE,
        "logits = Mul (score, scale)  scaled = Mul (mask, scale)  masked = Add (logits, scaled)",
    ),
)
BEFORE = tuple(_BEFORE.format(inputs, lines) for inputs, lines, _, _ in _FORMS)
AFTER = tuple(_AFTER.format(inputs, lines) for _, _, inputs, lines in _FORMS)
EXAMPLE = {
    "q": [2, 3, 5, 4], "k": [2, 3, 4, 7], "bias": [1, 3, 5, 7], "mask": [2, 1, 1, 7], "scale": [0.3],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    """Of two products, as relative positions have them, the one that is added last stays the scores."""
    last = m["mask"] if "bias" in m.tensors else None
    return decline("what is added last are scores, too", last.name) if last is not None and _is_product(last) else None


def _is_product(tensor: gs.Tensor) -> bool:
    """Whether it is the product of two matrices, or a multiple of one."""
    node = producer(tensor)
    inner = node.inputs if node is not None and node.op == "Mul" and not node.domain else [tensor]
    return any(producer(each, "MatMul") is not None for each in inner)
