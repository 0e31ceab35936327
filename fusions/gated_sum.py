"""A branch's bias and gate, and the stream that it is added to, where no modulated norm takes them in."""

from typing import Any

import numpy as np

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "fuse"
ANCHOR = "Mul"
BIASED = (", float[C] bias", "biased = Add (branch, bias)  gated = Mul (gate, biased)")
BRANCH = ("", "gated = Mul (gate, branch)")
"""Constants and nodes of a gated branch."""
_BEFORE = """
g (float[B, S, C] x, float[B, S, C] branch, float[B, 1, C] gate) => (float[B, S, C] sum) <float[B, S, C] gated{0}> {{
    {1}
    sum = Add (x, gated)
}}"""
BEFORE = tuple(_BEFORE.format(*form) for form in (BIASED, BRANCH))
AFTER = """
g (float[] x, float[] branch, float[] bias, float[] gate) => (float[] sum) {
    sum = sdort.GatedSum (x, branch, bias, gate)
}"""
EXAMPLE = {"B": 2, "S": 5, "C": 8}


def check(m: Match) -> Refusal | None:
    if m.known("C") is None and "bias" not in m.tensors:
        return refuse("the width is not fixed", m.dims["C"])
    return None


def derive(m: Match) -> dict[str, Any]:
    return no_bias(m)


def no_bias(m: Match) -> dict[str, Any]:
    """Zeros in the place of a bias that a match does not have: a model has one form of each own operator."""
    return (
        {}
        if "bias" in m.tensors
        else {"bias": m.editor.constant(np.zeros(m.size("C"), m.editor.dtype(m["x"])), "bias")}
    )
