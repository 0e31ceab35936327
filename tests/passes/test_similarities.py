"""Products of vectors of length one keep what decides by them in fp32, whatever way the length is spelled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import stored
from support.small_graphs import edit, load

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes.similarities import similarity_nodes
from sdort.providers import load_target

WIDTH, CONCEPTS = 32, 5
LENGTHS = {
    "ReduceL2": "l = ReduceL2 (v, last)  k = Clip (l, eps)  u = Div (v, k)",
    "repeated": "l = ReduceL2 (v, last)  k = Clip (l, eps)  h = Shape (v)  f = Expand (k, h)  u = Div (v, f)",
    "ReduceSumSquare": "q = ReduceSumSquare (v, last)  r = Sqrt (q)  k = Max (r, eps)  u = Div (v, k)",
    "Mul": "m = Mul (v, v)  q = ReduceSum (m, last)  r = Sqrt (q)  k = Add (r, eps)  u = Div (v, k)",
    "Pow": "m = Pow (v, two)  q = ReduceSum (m, last)  r = Sqrt (q)  u = Div (v, r)",
    "LpNormalization": "u = LpNormalization <axis = -1, p = 2> (v)",
}
ENDS = {
    "Sub": "s = MatMul (u, concepts)  y = Sub (s, limits)",
    "Gemm": "s = Gemm <transB = 1> (u, rows)  y = Sub (s, limits)",
    "moved": "s = MatMul (u, concepts)  d = Sub (s, limits)  y = Reshape (d, flat)",
}
_VALUES = np.random.default_rng(4)
_ROWS = _VALUES.standard_normal((CONCEPTS, WIDTH))
_ROWS /= np.linalg.norm(_ROWS, axis=1, keepdims=True)
LIMITS = np.asarray([0.19, 0.21, 0.23, 0.17, 0.25], np.float32)
CONSTANTS: dict[str, Any] = {
    "last": np.asarray([-1]), "eps": np.float32(1e-12), "two": np.float32(2), "flat": np.asarray([-1, CONCEPTS]),
    "concepts": _ROWS.T.astype(np.float32), "rows": _ROWS.astype(np.float32), "limits": LIMITS,
    "w": (_VALUES.standard_normal((WIDTH, WIDTH)) / 6).astype(np.float32),
}  # fmt: skip


def graph(body: str, outputs: str = "float[p, q] y") -> tuple[str, dict[str, Any]]:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    constants = {name: np.asarray(value) for name, value in CONSTANTS.items() if name in words}
    return f"g (float[3, {WIDTH}] x) => ({outputs}) {{ {body} }}", constants


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("end", ENDS)
def test_scores_are_as_exact_as_the_vector(length: str, end: str) -> None:
    """Stored in fp16, all that is lost is what the vector itself loses."""
    model = load(*graph(f"v = MatMul (x, w)  {LENGTHS[length]}  {ENDS[end]}"), 18)
    optimize_model(model, OptimizeOptions(load_target("rocm"), fp16=True))
    x = np.random.default_rng(2).standard_normal((3, WIDTH)).astype(np.float16)
    (found,) = stored.run(model, {"x": x.astype(np.float32)})
    half = CONSTANTS["w"].astype(np.float16).astype(np.float64)
    vector = (x.astype(np.float64) @ half).astype(np.float32).astype(np.float16).astype(np.float64)
    unit = vector / np.linalg.norm(vector, axis=1, keepdims=True)
    assert found == pytest.approx(unit @ _ROWS.T - LIMITS, abs=1e-6)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_comparison_is_a_decision_too(length: str) -> None:
    editor = edit(*graph(f"v = Neg (x)  {LENGTHS[length]}  {ENDS['Sub']}  b = Greater (y, eps)", "bool[p, q] b"), 18)
    kept = {node.op for node in editor.graph.nodes if node.name in similarity_nodes(editor)}
    assert {"MatMul", "Sub", "Greater"} <= kept
    assert "Neg" not in kept


ELSEWHERE = {
    "attention": "t = Transpose (u)  s = MatMul (u, t)  p = Softmax <axis = -1> (s)  y = MatMul (p, x)",
    "a layer": "s = MatMul (u, w)  r = Relu (s)  y = MatMul (r, w)",
    "no product": "y = Mul (u, two)",
    "a convolution of it": "s = MatMul (u, w)  n = Unsqueeze (s, last)  m = GlobalMaxPool (n)  y = Squeeze (m, last)",
    "one way to a softmax": "s = MatMul (u, w)  y = Softmax (s)  z = Sub (s, two)",
}


@pytest.mark.parametrize("body", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_goes_on_is_not_kept(body: str) -> None:
    outputs = "float[p, q] y, float[p, q] z" if "z =" in body else "float[p, q] y"
    editor = edit(*graph(f"v = Neg (x)  {LENGTHS['ReduceL2']}  {body}", outputs), 18)
    assert similarity_nodes(editor) == set()


def test_what_is_no_length_is_not_kept() -> None:
    for divisor in ("l = ReduceL2 (x, last)  u = Div (v, l)", "l = ReduceL1 (v, last)  u = Div (v, l)"):
        editor = edit(*graph(f"v = Neg (x)  {divisor}  {ENDS['Sub']}"), 18)
        assert similarity_nodes(editor) == set()
