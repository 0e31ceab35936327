"""Which nodes count as made of integers alone: through each operator, up to each that rounds, and no further."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_graphs import edit

from sdort.passes.counted import counted_nodes

MADE = "c = Cast <to = 1> (i)  d = Cast <to = 1> (j)"
COUNTED: dict[str, tuple[str, str]] = {
    # what rounds
    **{op: (f"c = Cast <to = 1> (i)  m = Mul (c, two)  y = {op} (m)", "c m y") for op in ("Floor", "Ceil", "Round")},
    "Sign": ("c = Cast <to = 1> (i)  y = Sign (c)", "c y"),
    "Mod": ("c = Cast <to = 1> (i)  y = Mod <fmod = 1> (c, two)", "c y"),
    "a cast to integers": ("c = Cast <to = 1> (i)  y = Cast <to = 6> (c)", "c y"),
    "a cast to unsigned integers": ("c = Cast <to = 1> (i)  y = Cast <to = 2> (c)", "c y"),
    "a cast to truth": ("c = Cast <to = 1> (i)  y = Cast <to = 9> (c)", ""),
    "a cast to half": ("c = Cast <to = 1> (i)  y = Cast <to = 10> (c)", ""),
    "a comparison": ("c = Cast <to = 1> (i)  y = Less (c, two)", "c y"),
    "a comparison of two": (f"{MADE}  y = Equal (c, d)", "c d y"),
    "an index": ("c = Cast <to = 1> (i)  y = ArgMax <axis = 0> (c)", "c y"),
    "values and their places": ("c = Cast <to = 1> (i)  y, p = TopK (c, one)", ""),
    "a shape": ("c = Cast <to = 1> (i)  y = Shape (c)", ""),
    "nothing": ("c = Cast <to = 1> (i)  m = Mul (c, two)  y = Neg (m)", ""),
    # what they are made from
    "unsigned integers": ("c = Cast <to = 1> (u)  y = Floor (c)", "c y"),
    "truth": ("c = Cast <to = 1> (b)  y = Floor (c)", ""),
    "half": ("c = Cast <to = 1> (h)  y = Floor (c)", ""),
    "data": ("m = Mul (x, two)  y = Floor (m)", ""),
    "data in part": ("c = Cast <to = 1> (i)  m = Mul (c, x)  y = Floor (m)", ""),
    "data in part, the other way": ("c = Cast <to = 1> (i)  m = Sub (x, c)  y = Floor (m)", ""),
    "a comparison with data": ("c = Cast <to = 1> (i)  y = Less (c, x)", ""),
    "a comparison of data": ("c = Cast <to = 1> (i)  y = Less (x, c)", ""),
    "constants": ("a = Add (two, two)  y = Floor (a)", ""),
    "to double": ("c = Cast <to = 11> (i)  y = Floor (c)", ""),
    "a choice by data": ("c = Cast <to = 1> (i)  w = Where (b, c, two)  y = Floor (w)", "c w y"),
    # through what
    "arithmetic": (f"{MADE}  a = Add (c, d)  s = Sqrt (a)  y = Floor (s)", "c d a s y"),
    "a view": ("c = Cast <to = 1> (i)  r = Reshape (c, flat)  t = Transpose (r)  y = Floor (t)", "c r t y"),
    "a list": (f"{MADE}  k = Concat <axis = 0> (c, d)  y = Floor (k)", "c d k y"),
    "pieces": ("c = Cast <to = 1> (i)  s, t = Split <axis = 0, num_outputs = 2> (c)  y = Floor (t)", "c s y"),
    "a sum": ("c = Cast <to = 1> (i)  s = ReduceSum (c, one)  y = Floor (s)", "c s y"),
    "a sum up to each": ("c = Cast <to = 1> (i)  s = CumSum (c, zero)  y = Floor (s)", "c s y"),
    "the largest": ("c = Cast <to = 1> (i)  s = ReduceMax (c, one)  y = Floor (s)", "c s y"),
    "the smallest": ("c = Cast <to = 1> (i)  s = ReduceMin (c, one)  y = Floor (s)", "c s y"),
    "a range": ("c = Cast <to = 1> (count)  s = Range (start, c, step)  y = Floor (s)", "c s y"),
    "a range of counted numbers": ("c = Cast <to = 1> (count)  s = Range (c, c, c)  y = Floor (s)", "c s y"),
    "a product of matrices": (f"{MADE}  m = MatMul (c, d)  y = Floor (m)", ""),
    "another domain": ("c = Cast <to = 1> (i)  q = com.microsoft.QuickGelu (c)  y = Floor (q)", ""),
    "of another domain, rounded": ("c = Cast <to = 1> (i)  y = com.microsoft.QuickGelu (c)", ""),
    # what else reads them
    "another reader": ("c = Cast <to = 1> (i)  f = Floor (c)  n = Neg (c)  y = Add (f, n)", "c f n y"),
    "another reader with data": ("c = Cast <to = 1> (i)  f = Floor (c)  n = Add (c, x)  y = Add (f, n)", "c f"),
    "a reader of a reader": (
        "c = Cast <to = 1> (i)  f = Floor (c)  n = Neg (c)  m = Exp (n)  y = Mul (m, x)", "c f n m"
    ),
    "another chain": (f"{MADE}  f = Floor (c)  n = Neg (d)  y = Mul (n, x)", "c f"),
}  # fmt: skip
CONSTANTS = {
    "two": np.float32(2), "one": np.array([1]), "zero": np.array(0), "flat": np.array([4, -1]),
    "start": np.float32(0), "step": np.float32(1),
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED.values(), ids=COUNTED)
def test_what_is_made_of_integers_and_rounded_is_counted(case: tuple[str, str]) -> None:
    body, wanted = case
    used = {name: np.asarray(value) for name, value in CONSTANTS.items() if f" {name})" in body or f"{name}," in body}
    inputs = "int64[4, 4] i, int32[4, 4] j, uint8[4, 4] u, bool[4, 4] b, float16[4, 4] h, float[4, 4] x, int64 count"
    editor = edit(f"g ({inputs}) => (float[] y) {{ {body} }}", used)
    made = {node.name: node.outputs[0].name for node in editor.graph.nodes}
    assert {made[name] for name in counted_nodes(editor)} == set(wanted.split())
