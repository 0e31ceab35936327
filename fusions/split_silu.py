"""SwiGLU, hidden * SiLU(gate), of one product: two projections of one tensor are packed (https://arxiv.org/abs/2002.05202)."""

from typing import Any

from sdort.graph.weights import Concatenated, as_weight
from sdort.rewrite.match import Match

STAGE = "fuse"
ANCHOR = "Sigmoid"
SILU = "share = Sigmoid (gate)  act = Mul (gate, share)"
_BEFORE = """
g (float[B, S, I] x) => (float[B, S, H] y) <float[I, H] w_hidden, float[I, H] w_gate> {{
    gate = MatMul (x, w_gate)
    hidden = MatMul (x, w_hidden)
    {0}
    y = Mul (act, hidden)
}}"""
_BEFORE_PACKED = """
g (float[B, S, P] x) => (float[B, S, H] y) {{
    hidden, gate = Split <axis = -1, num_outputs = 2> (x)
    {0}
    y = Mul (act, hidden)
}}"""
_AFTER = """
g (float[] x, float[] weight) => (float[] y) {{
    packed = MatMul (x, weight)
    y = sdort.{0} (packed)
}}"""
_AFTER_PACKED = "g (float[] x) => (float[] y) {{ y = sdort.{0} (x) }}"
EXAMPLE = {"B": 2, "S": 5, "I": 12, "H": 8, "P": 16}


def before(activation: str) -> tuple[str, ...]:
    return _BEFORE.format(activation), _BEFORE_PACKED.format(activation)


def after(operator: str) -> tuple[str, ...]:
    return _AFTER.format(operator), _AFTER_PACKED.format(operator)


BEFORE, AFTER = before(SILU), after("SplitSilu")


def derive(m: Match) -> dict[str, Any]:
    return packed(m)


def packed(m: Match) -> dict[str, Any]:
    """The weights of both projections beside each other: [inputs, hidden and gate]."""
    if "w_gate" not in m.tensors:
        return {}
    both = [as_weight(m[name]._values) for name in ("w_hidden", "w_gate")]
    return {"weight": m.editor.constant(Concatenated(both, 1), m["w_hidden"].name)}
