"""Heads merged into the batch around a one-head Attention become heads of the Attention."""

from typing import Any

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "raise"
ANCHOR = "Attention"
RUN_AFTER = ("attention_merged",)
BEFORE = """
g (float[B, S, C] q, float[B, L, C] k, float[B, L, V] v, int64[] sq, int64[] sk, int64[] sv, int64[] mq, int64[] mk,
   int64[] mv, int64[] so, int64[] mo) => (float[B, S, V] y)
<float[B, S, N, D] q4, float[B, L, N, D] k4, float[B, L, N, E] v4, float[B, N, S, E] o4> {
    q4 = Reshape (q, sq)
    k4 = Reshape (k, sk)
    v4 = Reshape (v, sv)
    qh = Transpose <perm = [0, 2, 1, 3]> (q4)
    kh = Transpose <perm = [0, 2, 1, 3]> (k4)
    vh = Transpose <perm = [0, 2, 1, 3]> (v4)
    qm = Reshape (qh, mq)
    km = Reshape (kh, mk)
    vm = Reshape (vh, mv)
    o = Attention <q_num_heads = 1, kv_num_heads = 1, scale: float = @scale> (qm, km, vm)
    o4 = Reshape (o, so)
    ot = Transpose <perm = [0, 2, 1, 3]> (o4)
    y = Reshape (ot, mo)
}"""
AFTER = """
g (float[B, S, C] q, float[B, L, C] k, float[B, L, V] v) => (float[B, S, V] y) {
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale> (q, k, v)
}"""
EXAMPLE = {
    "B": 2, "S": 5, "L": 7, "C": 12, "V": 12, "N": 3, "D": 4, "E": 4, "scale": 0.3,
    "sq": [0, 0, 3, 4], "sk": [0, 0, 3, 4], "sv": [0, 0, 3, 4], "mq": [6, 5, 4], "mk": [6, 7, 4], "mv": [6, 7, 4],
    "so": [2, 3, 5, 4], "mo": [0, 0, 12],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    return None if m.known("N") else refuse("the number of heads is not fixed", m.dims["N"])


def derive(m: Match) -> dict[str, Any]:
    return {"heads": m.dims["N"]}
