"""Attention over merged batch and heads (diffusers' first attention processor, baddbmm and bmm)."""

from typing import Any

from sdort.fusions.attention import attention_scale

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "raise"
ANCHOR = "Softmax"
_HEAD = """
g (float[M, S, D] q, float[M, L, D] k, float[M, L, E] v) => (float[M, S, E] y) <float scale> {
    kt = Transpose <perm = [0, 2, 1]> (k)
"""
_SCALED = "score = MatMul (q, kt)  logits = Mul (score, scale)  p = Softmax <axis = -1> (logits)  y = MatMul (p, v) }"
_PLAIN = "logits = MatMul (q, kt)  p = Softmax <axis = -1> (logits)  y = MatMul (p, v) }"
BEFORE = (_HEAD + _SCALED, _HEAD + _PLAIN)
AFTER = """
g (float[M, S, D] q, float[M, L, D] k, float[M, L, E] v) => (float[M, S, E] y) {
    y = Attention <q_num_heads = 1, kv_num_heads = 1, scale: float = @factor> (q, k, v)
}"""
EXAMPLE = {"M": 6, "S": 5, "L": 7, "D": 4, "E": 4, "scale": [0.3]}


def check(m: Match) -> Refusal | None:
    return None if m.known("D") else refuse("the head size is not fixed", m.dims["D"])


def derive(m: Match) -> dict[str, Any]:
    return {"factor": attention_scale(m)}
