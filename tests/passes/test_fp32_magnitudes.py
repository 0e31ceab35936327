"""How large a tensor is, and whether fp16 holds it: each operator's magnitude from its inputs', and each walk."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from support.small_graphs import edit

from sdort.passes import fp32_structure
from sdort.passes.fp32_structure import ACTIVATION, Magnitude
from sdort.rewrite.editor import Editor

NORMAL = 2.0**-14
"""fp16's smallest normal number."""


def held(magnitude: Magnitude) -> bool:
    return magnitude.fits


@pytest.mark.parametrize(
    ("magnitude", "fits"),
    [
        (Magnitude(), True),
        (Magnitude(0), True),
        (Magnitude(0.5), True),
        (Magnitude(-0.5), False),
        (Magnitude(1.5), False),
        (Magnitude(2), False),
        (Magnitude(-1), False),
        (Magnitude(1, large=True), False),
        (Magnitude(0, large=True), False),
        (Magnitude(1, least=1.0), True),
        (Magnitude(-1, least=1.0), True),
        (Magnitude(-1, least=NORMAL), True),
        (Magnitude(-1, least=NORMAL / 2), False),
        (Magnitude(1, least=NORMAL / 2), False),
        (Magnitude(-2, least=1.0), False),
        (Magnitude(-1, True, 1.0), False),
    ],
)
def test_fp16_holds_what_is_of_an_activations_size(magnitude: Magnitude, fits: bool) -> None:
    assert held(magnitude) == fits


LARGE, SQUARE, SMALL = Magnitude(1, True), Magnitude(2), Magnitude(1, least=1e-12)
JOINED: dict[str, tuple[list[Magnitude], Magnitude]] = {
    "nothing": ([], Magnitude(0)),
    "one": ([SMALL], SMALL),
    "the farthest degree": ([SQUARE, ACTIVATION], SQUARE),
    "the farthest degree, below": ([ACTIVATION, Magnitude(-2)], Magnitude(-2)),
    "one that is large": ([ACTIVATION, LARGE], LARGE),
    "the smallest guard": ([Magnitude(1, least=0.5), ACTIVATION, SMALL], SMALL),
}


@pytest.mark.parametrize("case", JOINED.values(), ids=JOINED)
def test_what_is_joined_is_as_its_largest(case: tuple[list[Magnitude], Magnitude]) -> None:
    assert fp32_structure._joined(case[0]) == case[1]


CONSTANTS = {
    **{name: np.array(value, np.float32) for name, value in {
        "one": 1.0, "half": 0.5, "eps": 1e-6, "tiny": 1e-12, "huge": 1e6, "minus": -1e6, "zero": 0.0, "two": 2.0,
        "root": -0.5, "many": [1e-6, 3.0], "far": [0.25, -1e6], "most": 65504.0, "more": 65505.0, "infinite": -math.inf,
        "normal": NORMAL, "rows": [[[1.0, 2.0]] * 9],
    }.items()},
    "last": np.array([-1]), "both": np.array([1, 2]), "axis": np.array(1), "axes": np.array([0, 1]), "k": np.array([1]),
    "w": np.ones((2, 5), np.float32),
}  # fmt: skip
RESULTS: dict[str, tuple[str, dict[str, Magnitude], Magnitude]] = {
    # moves
    "a view": ("Neg (x)", {"x": SQUARE}, SQUARE),
    "a view of what is not known": ("Neg (x)", {"z": SQUARE}, ACTIVATION),
    "rows of a large table": ("Gather (x, last)", {"x": LARGE}, LARGE),
    "a view of a constant": ("Neg (many)", {}, Magnitude(0)),
    "all that is joined": ("Concat <axis = 0> (x, z)", {"z": SQUARE}, SQUARE),
    "what is joined with a constant": ("Concat <axis = 0> (x, rows)", {"x": SQUARE}, SQUARE),
    "maxima": ("ReduceMax (x, last)", {"x": SMALL}, SMALL),
    # sums of two
    "a sum": ("Add (x, z)", {"x": SQUARE, "z": LARGE}, Magnitude(2, True)),
    "a difference": ("Sub (z, x)", {"x": SMALL}, SMALL),
    "a mean": ("Mean (z, x)", {"x": LARGE}, LARGE),
    "a choice": ("Where (b, x, z)", {"x": SQUARE}, SQUARE),
    "a choice, otherwise": ("Where (b, z, x)", {"x": SQUARE}, SQUARE),
    "a guard that is added": ("Add (x, eps)", {"x": SQUARE}, Magnitude(2, least=1e-6)),
    "a guard that is subtracted": ("Sub (x, eps)", {"x": SQUARE}, Magnitude(2, least=1e-6)),
    "a guard instead of another": ("Add (x, one)", {"x": SMALL}, Magnitude(1, least=1.0)),
    "a guard of zero": ("Add (x, zero)", {"x": SMALL}, SMALL),
    "a guard of several": ("Max (x, eps, half)", {"x": SQUARE}, Magnitude(2, least=0.5)),
    "a guard's largest element": ("Add (x, many)", {"x": SQUARE}, Magnitude(2, least=3.0)),
    "a constant beyond": ("Add (x, huge)", {"x": SMALL}, Magnitude(1, True, 1e-12)),
    "a constant beyond, below zero": ("Add (x, minus)", {}, LARGE),
    "one element beyond": ("Add (x, far)", {}, LARGE),
    "the largest number": ("Add (x, most)", {}, Magnitude(1, least=65504.0)),
    "one more than the largest number": ("Add (x, more)", {}, LARGE),
    "an infinity": ("Where (b, x, infinite)", {"x": SQUARE}, SQUARE),
    "a bound beyond": ("Min (x, huge)", {}, ACTIVATION),
    "a bound beyond, of a clip": ("Clip (x, minus, huge)", {"x": SQUARE}, SQUARE),
    "a bound that guards": ("Clip (x, tiny)", {"x": Magnitude(0.5)}, Magnitude(0.5, least=1e-12)),
    "a bound of what is large": ("Max (x, one)", {"x": LARGE}, Magnitude(1, True, 1.0)),
    # products
    "a square": ("Mul (x, x)", {"x": ACTIVATION}, SQUARE),
    "a product": ("Mul (x, z)", {"x": SQUARE}, Magnitude(3)),
    "a product that is large": ("Mul (x, z)", {"z": LARGE}, Magnitude(2, True)),
    "a product with a reciprocal": ("Mul (x, z)", {"z": Magnitude(-1, True, 1e-12)}, Magnitude(0)),
    "a product with a root's reciprocal": ("Mul (x, z)", {"z": Magnitude(-3, least=0.5)}, Magnitude(-2, least=0.5)),
    "a product that leaves a half": ("Mul (x, z)", {"z": Magnitude(-0.5, True)}, Magnitude(0.5, True)),
    "a quotient of alike": ("Div (x, z)", {"x": LARGE, "z": LARGE}, Magnitude(0)),
    "a quotient that is normalized": ("Div (x, z)", {"x": Magnitude(2, True), "z": ACTIVATION}, Magnitude(1)),
    "a quotient that is a root": ("Div (x, z)", {"z": Magnitude(0.5)}, Magnitude(0.5)),
    "a quotient that is not": ("Div (x, z)", {"x": Magnitude(3, True), "z": ACTIVATION}, Magnitude(2, True)),
    "a quotient by a square": ("Div (x, z)", {"z": Magnitude(2, least=0.5)}, Magnitude(-1, least=0.5)),
    "a quotient's own guard": ("Div (x, z)", {"x": SMALL, "z": SQUARE}, Magnitude(-1)),
    "a reciprocal": ("Div (one, x)", {"x": Magnitude(2, True, 1e-12)}, Magnitude(-2, True, 1e-12)),
    "a small factor": ("Mul (x, eps)", {"x": SQUARE}, Magnitude(2, least=1e-6)),
    "a small factor in front": ("Mul (eps, x)", {"x": SQUARE}, Magnitude(2, least=1e-6)),
    "the smallest normal factor": ("Mul (x, normal)", {}, ACTIVATION),
    "the largest factor": ("Mul (x, most)", {}, ACTIVATION),
    "a factor beyond": ("Mul (x, more)", {}, LARGE),
    "a usual factor": ("Mul (x, one)", {"x": SMALL}, SMALL),
    "a usual factor of what is large": ("Mul (x, one)", {"x": LARGE}, LARGE),
    "a factor that makes a mean": ("Mul (x, half)", {"x": LARGE}, ACTIVATION),
    "a large factor": ("Mul (x, minus)", {}, LARGE),
    "a divisor that makes a mean": ("Div (x, two)", {"x": LARGE}, ACTIVATION),
    "a divisor that makes large": ("Div (x, eps)", {}, LARGE),
    "a divisor of one": ("Div (x, one)", {"x": LARGE}, LARGE),
    "a divisor that makes small": ("Div (x, huge)", {}, Magnitude(1, least=1e-6)),
    "a divisor of zero": ("Div (x, zero)", {"x": LARGE}, LARGE),
    "the largest element of a factor": ("Mul (x, many)", {"x": LARGE}, LARGE),
    # powers
    "a root": ("Sqrt (x)", {"x": Magnitude(2, True, 1e-12)}, Magnitude(1.0, True, 1e-6)),
    "a reciprocal by name": ("Reciprocal (x)", {"x": Magnitude(1, True, 0.5)}, Magnitude(-1.0, True, 0.5)),
    "a power": ("Pow (x, two)", {"x": Magnitude(1, least=0.5)}, Magnitude(2.0, least=0.25)),
    "a root's reciprocal": ("Pow (x, root)", {"x": Magnitude(2, least=0.25)}, Magnitude(-1.0, least=0.5)),
    "a power that is not known": ("Pow (x, z)", {}, Magnitude(2.0)),
    "a power of each": ("Pow (x, many)", {}, Magnitude(2.0)),
    "exponentials": ("Exp (x)", {}, LARGE),
    # sums of many
    "a sum of few": ("ReduceSum (x, last)", {}, ACTIVATION),
    "a sum of sixteen": ("ReduceSum (few, last)", {}, ACTIVATION),
    "a sum of seventeen": ("ReduceSum (more17, last)", {}, LARGE),
    "a sum of few squares": ("ReduceSum (x, last)", {"x": SQUARE}, Magnitude(2, True)),
    "a sum of few that are large": ("ReduceSum (x, last)", {"x": LARGE}, LARGE),
    "a sum of all": ("ReduceSum (x)", {"x": SMALL}, Magnitude(1, True, 1e-12)),
    "a sum of more": ("ReduceSum (x, both)", {}, LARGE),
    "magnitudes of few": ("ReduceL1 (x, last)", {}, LARGE),
    "a norm of few": ("ReduceL2 (x, last)", {}, LARGE),
    "sums up to each": ("CumSum (x, axis)", {"x": SMALL}, Magnitude(1, True, 1e-12)),
    "a mean of many": ("ReduceMean (x, both)", {"x": SQUARE}, SQUARE),
    "squares of many": ("ReduceSumSquare (x, last)", {"x": Magnitude(0.5)}, Magnitude(1.0, True)),
    "products of many": ("ReduceProd (x, last)", {}, Magnitude(2.0, True)),
    # what bounds
    "shares": ("Softmax (x)", {"x": LARGE}, ACTIVATION),
    "gates": ("Sigmoid (x)", {"x": SQUARE}, ACTIVATION),
    "a product with weights": ("MatMul (x, w)", {"x": LARGE}, ACTIVATION),
}  # fmt: skip


def editor_of(body: str) -> Editor:
    used = {name: values for name, values in CONSTANTS.items() if re.search(rf"[(,] ?{name}\b", body)}
    inputs = "float[3, 9, 2] x, float[3, 9, 2] z, float[3, 2, 4] v, float[3, 16] few, float[3, 17] more17"
    inputs += ", bool[3, 9, 2] b, int64[1] sizes"
    return edit(f"g ({inputs}) => (float[] y) {{ {body} }}", used)


@pytest.mark.parametrize("case", RESULTS.values(), ids=RESULTS)
def test_magnitudes_follow_from_those_of_the_inputs(case: tuple[str, dict[str, Magnitude], Magnitude]) -> None:
    body, magnitudes, wanted = case
    editor = editor_of(f"y = {body}")
    (node,) = editor.graph.nodes
    found = fp32_structure._result(editor, node, magnitudes)
    assert (found.degree, found.large) == (wanted.degree, wanted.large)
    assert (found.least is None) == (wanted.least is None)
    assert found.least is None or math.isclose(found.least, wanted.least or 0, rel_tol=1e-5)


UNHELD: dict[str, tuple[str, str]] = {
    # back from a sum: squares on the way, and what lies between; nothing before the square
    "a square that is summed": ("n = Neg (x)  q = Mul (n, n)  t = Transpose (q)  y = ReduceMean (t, last)", "q t y"),
    "a product that is summed": ("a = Neg (x)  q = Mul (a, z)  y = ReduceMean (q, last)", "q y"),
    "a scaled summand": ("q = Mul (x, two)  y = ReduceMean (q, last)", "y"),
    "a power that is summed": ("n = Neg (x)  q = Pow (n, two)  y = ReduceMean (q, last)", "q y"),
    "a fourth power by squares": ("q = Mul (x, x)  r = Mul (q, q)  y = ReduceMean (r, last)", "q r y"),
    "exponentials that are summed": ("n = Neg (x)  e = Exp (n)  y = ReduceMean (e, last)", "e y"),
    "shares that are summed": ("p = Softmax (x)  y = ReduceMean (p, last)", "y"),
    "a product of matrices that is summed": ("p = MatMul (x, v)  y = ReduceMean (p, last)", "y"),
    "a branch that squares": ("n = Neg (z)  q = Mul (x, x)  a = Add (n, q)  y = ReduceMean (a, last)", "q a y"),
    "a square behind a function": ("q = Mul (x, x)  t = Tanh (q)  y = ReduceMean (t, last)", "y"),
    "a sum of integers": ("s = Shape (x)  y = ReduceSum (s)", ""),
    "a sum behind a sum": ("q = Mul (x, x)  r = ReduceMean (q, last)  y = ReduceMean (r, both)", "q r y"),
    # small numbers count in front of roots and logarithms
    "a root of shares": ("p = Softmax (x)  y = Sqrt (p)", "p y"),
    "a root of gates, moved": ("p = Sigmoid (x)  t = Transpose (p)  y = Sqrt (t)", "p t y"),
    "a logarithm of a quotient": ("d = Div (x, z)  y = Log (d)", "d y"),
    "a logarithm of a difference": ("d = Sub (x, z)  y = Log (d)", "d y"),
    "a logarithm of a sum of two": ("d = Add (x, z)  y = Log (d)", "y"),
    "a logarithm of a softplus": ("d = Softplus (x)  y = Log (d)", "d y"),
    "a logarithm of a product of matrices": ("p = MatMul (x, v)  y = Log (p)", "p y"),
    "a logarithm of a projection": ("p = MatMul (x, w)  y = Log (p)", "y"),
    "a logarithm of a sum of many": ("p = Softmax (x)  y = ReduceLogSum (p, last)", "p y"),
    "a square root by a power": ("p = Sigmoid (x)  y = Pow (p, root)", "p y"),
    "a power above one": ("p = Sigmoid (x)  y = Pow (p, two)", ""),
    "a reciprocal": ("p = Sigmoid (x)  y = Reciprocal (p)", ""),
    "a power of one": ("p = Sigmoid (x)  y = Pow (p, one)", ""),
    "a root in double": ("d = Cast <to = 11> (x)  y = Sqrt (d)", ""),
    "two ways from shares": ("p = Softmax (x)  a = Mul (p, two)  c = Mul (p, half)  l = Log (a)  s = Sqrt (c)"
                             "  y = Add (l, s)", "p a c l s"),
    "a way from shares": ("p = Softmax (x)  a = Mul (p, two)  y = Log (a)", "p a y"),
    "a quotient of shares by a number": ("q = Mul (x, x)  d = Div (q, two)  y = ReduceMean (d, last)", "q d y"),
    "what is squared, however small": ("s = Sigmoid (x)  q = Mul (s, s)  y = Log (q)", "q y"),
    "what is raised, however small": ("s = Sigmoid (x)  q = Pow (s, two)  y = Log (q)", "q y"),
    "a power that is squared": ("q = Pow (x, two)  r = Mul (q, q)  y = ReduceMean (r, last)", "q r y"),
    "a square to a power": ("q = Mul (x, x)  r = Pow (q, two)  y = ReduceMean (r, last)", "q r y"),
    "a power to a power": ("q = Pow (x, two)  r = Pow (q, two)  y = ReduceMean (r, last)", "q r y"),
    "shares that are multiplied": ("p = Softmax (x)  m = MatMul (p, v)  y = Log (m)", "p m y"),
    "gates in an exponent": ("g = Sigmoid (x)  e = Exp (g)  y = Log (e)", "g e y"),
    "a logarithm of a mean": ("p = Softmax (x)  s = ReduceMean (p, last)  y = Log (s)", "s y"),
    # guards
    "a guard that fp16 just holds": ("p = Sigmoid (x)  y = Add (p, normal)", ""),
    "a constant that fp16 just holds": ("p = Mul (x, x)  y = Add (p, most)", ""),
    "a guard that is filled in": (
        "e = ConstantOfShape <value: tensor = float[1] {0.000001}> (sizes)  y = Add (x, e)", "e y"
    ),
    "zeros that are filled in": ("e = ConstantOfShape (sizes)  y = Add (x, e)", ""),
    "a guard that fp16 loses": ("p = Sigmoid (x)  y = Add (p, eps)", "p y"),
    "a guard in front": ("p = Sigmoid (x)  y = Max (eps, p)", "p y"),
    "a guard that is compared": ("p = Sigmoid (x)  c = Less (p, eps)  y = Where (c, x, z)", "p c"),
    "a guard that is repeated": ("e = Expand (eps, sizes)  u = Unsqueeze (e, axes)  y = Add (x, u)", "e u y"),
    "a constant that is too large": ("p = Sigmoid (x)  y = Add (p, huge)", "y"),
    "a constant that is too large, and squares": ("p = Mul (x, x)  y = Add (p, huge)", "p y"),
    "an infinite constant": ("y = Add (x, infinite)", ""),
    "a constant of zeros": ("y = Add (x, zero)", ""),
    "a constant of which one element counts": ("y = Add (x, many)", ""),
    # forward, until a result is an activation again
    "what reads a sum of many": ("s = ReduceSum (x, both)  a = Add (s, z)  t = Tanh (a)  y = Neg (t)", "s a t"),
    "what reads a mean": ("s = ReduceMean (x, both)  a = Add (s, z)  y = Neg (a)", "s"),
    "a size of a sum": ("s = ReduceSum (x, both)  y = Shape (s)", "s"),
    "what weights of a sum give": ("s = ReduceSum (x, both)  p = MatMul (s, w)  y = Neg (p)", "s p"),
    "a dividend": ("p = MatMul (x, v)  s = ReduceSum (p, both)  y = Div (p, s)", "p s y"),
    "a dividend that is a sum": ("p = Add (x, x)  s = ReduceSum (p, both)  y = Div (p, s)", "s y"),
    "a dividend of shares": ("p = Softmax (x)  s = ReduceSum (z, both)  y = Div (p, s)", "s y"),
    "a dividend of a large number": ("p = MatMul (x, v)  y = Div (p, huge)", "y"),
    "the largest and where it is": ("s = ReduceSum (x, both)  t, i = TopK (s, k)  y = Cast <to = 7> (i)", "s t"),
    "a function between": ("q = ReduceMean (x, last)  t = Tanh (q)  y = ReduceMean (t, last)", "q y"),
    "a divisor": ("p = MatMul (x, v)  s = ReduceSum (z, both)  y = Div (s, p)", "s y"),
    # what only hands on from one to another
    "a view between": ("q = ReduceMean (x, last)  t = Transpose (q)  y = ReduceMean (t, last)", "q t y"),
    "two views between": ("q = ReduceMean (x, last)  t = Transpose (q)  u = Neg (t)  y = ReduceMean (u, last)",
                          "q t u y"),
    "a view behind": ("q = ReduceMean (x, last)  t = Transpose (q)  y = Tanh (t)", "q"),
    "a view before": ("t = Transpose (x)  y = ReduceMean (t, last)", "y"),
    "an operator of another domain": ("q = Mul (x, x)  t = com.microsoft.QuickGelu (q)  y = ReduceMean (t, last)", "y"),
    "a sum into another domain": ("s = ReduceSum (x, both)  t = com.microsoft.QuickGelu (s)  y = Neg (t)", "s t"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNHELD.values(), ids=UNHELD)
def test_what_fp16_does_not_hold_is_found_and_nothing_else(case: tuple[str, str]) -> None:
    body, wanted = case
    editor = editor_of(body)
    by_name: dict[str, str] = {node.name: node.outputs[0].name for node in editor.graph.nodes}
    assert {by_name[name] for name in fp32_structure.unheld_nodes(editor)} == set(wanted.split())
