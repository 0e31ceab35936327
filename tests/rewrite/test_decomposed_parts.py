"""What stands in parts in a graph is recognized by what it computes, and nothing else is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.small_graphs import edit

from sdort.rewrite.decomposed import find_decomposed, is_of_norm

CONSTANTS = """<int64[1] last = {-1}, int64[1] second = {2}, int64[1] inner = {1}, int64[2] both = {-2, -1}, float eps =
{0.00001}, float two = {2.0}, float three = {3.0}, float half = {0.5}, float minus_half = {-0.5}, float one = {1.0},
float root2 = {1.4142135}, float c = {0.044715}, int64[3] shape = {0, 0, 6}, int64[4] four = {2, 2, 3, 6},
float[6, 5] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0,
3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0}, float[3] g = {1.0, 2.0, 3.0}>"""
INPUTS = "float[2, 3, 6] x, float[2, 6, 5] k, float[2, 5, 4] v, bool[2, 3, 5] m, float[3, 6] flat"
SCORES = "s = MatMul (x, k)"
SHARES = "p = Softmax <axis = -1> (s)"
SUM = "y = MatMul (p, v)"
MEAN = "q = Mul (x, x)  u = ReduceMean <keepdims = 1> (q, last)"


def kinds(body: str) -> list[str]:
    editor = edit(f"g ({INPUTS}) => (float[] y) {CONSTANTS} {{ {body} }}")
    return [kind for kind, _ in find_decomposed(editor)]


ATTENTIONS = {
    "plain": f"{SCORES}  {SHARES}  {SUM}",
    "over an axis by its number": f"{SCORES}  p = Softmax <axis = 2> (s)  {SUM}",
    "over the default axis": f"{SCORES}  p = Softmax (s)  {SUM}",
    **{
        f"{op} of scores": f"{SCORES.replace('s =', 't =')}  s = {op} ({arguments})  {SHARES}  {SUM}"
        for op, arguments in (
            ("Mul", "t, half"), ("Div", "t, two"), ("Add", "t, half"), ("Sub", "t, half"), ("Where", "m, t, half"),
            ("Tanh", "t"), ("Clip", "t, minus_half, half"), ("Min", "t, two"), ("Max", "half, t"), ("Identity", "t"),
        )
    },
    "Cast of scores": f"{SCORES.replace('s =', 't =')}  s = Cast <to = 11> (t)  o = Softmax (s)"
    f"  p = Cast <to = 1> (o)  {SUM}",
    "Reshape of scores": f"{SCORES.replace('s =', 't =')}  n = Shape (t)  s = Reshape (t, n)  {SHARES}  {SUM}",
    **{
        f"{op} of shares": f"{SCORES}  {SHARES.replace('p =', 'o =')}  p = {op} ({arguments})  {SUM}"
        for op, arguments in (("Where", "m, o, half"), ("Mul", "o, half"), ("Dropout", "o"), ("Identity", "o"))
    },
    "Reshape of shares": f"{SCORES}  {SHARES.replace('p =', 'o =')}  n = Shape (o)  p = Reshape (o, n)  {SUM}",
    "by Einsum": f'{SCORES}  {SHARES}  y = Einsum <equation = "bij,bjk->bik"> (p, v)',
    "of Einsum": f's = Einsum <equation = "bij,bjk->bik"> (x, k)  {SHARES}  {SUM}',
    "of FusedMatMul": f"s = com.microsoft.FusedMatMul (x, k)  {SHARES}  {SUM}",
    "several steps": f"{SCORES.replace('s =', 'a =')}  b = Mul (a, half)  d = Add (b, half)  s = Where (m, d, half)  "
    f"p0 = Softmax (s)  p1 = Dropout (p0)  p = Mul (p1, two)  {SUM}",
}  # fmt: skip
NO_ATTENTIONS = {
    "over another axis": f"{SCORES}  p = Softmax <axis = 1> (s)  {SUM}",
    "of a projection": f"s = MatMul (x, w)  {SHARES}  {SUM}",
    "into a projection": "s = MatMul (k, v)  p = Softmax (s)  t = Transpose <perm = [0, 2, 1]> (p)  y = MatMul (t, w)",
    "of no product": f"s = Exp (m2)  {SHARES}  {SUM}",
    "into no product": f"{SCORES}  p = Softmax (s)  y = Neg (p)",
    "behind an exponential": f"t = MatMul (x, k)  s = Exp (t)  {SHARES}  {SUM}",
    "before an exponential": f"{SCORES}  p0 = Softmax (s)  p = Exp (p0)  {SUM}",
    "as the second factor": f"{SCORES}  p0 = Softmax (s)  p = Transpose <perm = [0, 2, 1]> (p0)  y = MatMul (k, p)",
    "of matrices": "f = Transpose (flat)  s = MatMul (flat, f)  p = Softmax (s)  y = MatMul (p, flat)",
    "another domain's": f"{SCORES}  p = com.microsoft.QuickGelu (s)  {SUM}",
}


@pytest.mark.parametrize("body", ATTENTIONS.values(), ids=ATTENTIONS)
def test_attentions(body: str) -> None:
    assert kinds(body) == ["attention"]


@pytest.mark.parametrize("body", NO_ATTENTIONS.values(), ids=NO_ATTENTIONS)
def test_what_is_no_attention(body: str) -> None:
    assert kinds(body.replace("Exp (m2)", "Cast <to = 1> (m)")) == []


NORMS: dict[str, tuple[str, list[str]]] = {
    "root mean square": (f"{MEAN}  a = Add (u, eps)  d = Sqrt (a)  y = Div (x, d)", ["RMS norm"]),
    "with a reciprocal": (f"{MEAN}  a = Add (eps, u)  d = Sqrt (a)  r = Reciprocal (d)  y = Mul (x, r)", ["RMS norm"]),
    "by Pow": ("q = Pow (x, two)  u = ReduceMean <keepdims = 1> (q, last)  a = Add (u, eps)  d = Pow (a, minus_half)"
               "  y = Mul (x, d)", ["RMS norm"]),
    "by a root of Pow": (f"{MEAN}  a = Add (u, eps)  d = Pow (a, half)  y = Div (x, d)", ["RMS norm"]),
    "without a number": (f"{MEAN}  d = Sqrt (u)  y = Div (x, d)", ["RMS norm"]),
    "with a bound": (f"{MEAN}  a = Max (u, eps)  d = Sqrt (a)  y = Div (x, d)", ["RMS norm"]),
    "clipped": (f"{MEAN}  a = Clip (u, eps)  d = Sqrt (a)  y = Div (x, d)", ["RMS norm"]),
    "in doubles": ("e = Cast <to = 11> (x)  q = Mul (e, e)  u = ReduceMean <keepdims = 1> (q, last)"
                   "  f = Cast <to = 1> (u)  d = Sqrt (f)  h = Cast <to = 1> (d)  y = Div (x, h)", ["RMS norm"]),
    **{f"of differences, axis {axes}": (
        f"n = ReduceMean <keepdims = 1> (x, {axes})  t = Sub (x, n)  q = Mul (t, t)"
        f"  u = ReduceMean <keepdims = 1> (q, {axes})  a = Add (u, eps)  d = Sqrt (a)  y = Div (t, d)", [kind])
       for axes, kind in (("last", "layer norm"), ("second", "layer norm"), ("inner", "norm over inner axes"),
                          ("both", "norm over inner axes"))},
    "of groups": ("z = Reshape (x, shape)  n = ReduceMean <keepdims = 1> (z, both)  t = Sub (z, n)  q = Mul (t, t)"
                  "  u = ReduceMean <keepdims = 1> (q, both)  a = Add (u, eps)  d = Sqrt (a)  y = Div (t, d)",
                  ["group norm"]),
    "InstanceNormalization of groups": (
        "z = Reshape (x, shape)  n = InstanceNormalization (z, g, g)  y = Reshape (n, shape)", ["group norm"]),
    "InstanceNormalization of groups, cast": (
        "z = Reshape (x, shape)  c0 = Cast <to = 1> (z)  n = InstanceNormalization (c0, g, g)  e = Cast <to = 11> (n)"
        "  y0 = Reshape (e, shape)  y = Cast <to = 1> (y0)", ["group norm"]),
    "no views behind": ("z = Reshape (x, shape)  n = InstanceNormalization (z, g, g)  y = Neg (n)", []),
    "no views before": ("z = Exp (x)  n = InstanceNormalization (z, g, g)  y = Reshape (n, shape)", []),
    "another power": (f"{MEAN}  a = Add (u, eps)  d = Pow (a, two)  y = Div (x, d)", []),
    "a root that is divided": (f"{MEAN}  a = Add (u, eps)  d = Sqrt (a)  y = Div (d, x)", []),
    "a root that is multiplied": (f"{MEAN}  a = Add (u, eps)  d = Sqrt (a)  y = Mul (x, d)", []),
    "a sum": ("q = Mul (x, x)  u = ReduceSum <keepdims = 1> (q, last)  d = Sqrt (u)  y = Div (x, d)", []),
    "no square": ("q = Mul (x, half)  u = ReduceMean <keepdims = 1> (q, last)  d = Sqrt (u)  y = Div (x, d)", []),
    "a cube": ("q = Pow (x, three)  u = ReduceMean <keepdims = 1> (q, last)  d = Sqrt (u)  y = Div (x, d)", []),
    "a mean that is scaled": (f"{MEAN}  a = Mul (u, eps)  d = Sqrt (a)  y = Div (x, d)", []),
}  # fmt: skip


@pytest.mark.parametrize(("body", "wanted"), NORMS.values(), ids=NORMS)
def test_norms(body: str, wanted: list[str]) -> None:
    assert kinds(body) == wanted


GELUS = {
    "erf": ("t = Div (x, root2)  e = Erf (t)  a = Add (e, one)  y = Mul (x, a)", True),
    "erf of a product": ("t = Mul (x, half)  e = Erf (t)  a = Add (one, e)  y = Mul (a, x)", True),
    "tanh": ("t = Mul (x, half)  e = Tanh (t)  a = Add (e, one)  y = Mul (x, a)", True),
    "tanh of a quotient": ("t = Div (x, root2)  e = Tanh (t)  a = Add (e, one)  y = Mul (x, a)", False),
    "tanh of a sum": ("t = Add (x, half)  e = Tanh (t)  a = Add (e, one)  y = Mul (x, a)", False),
    "plus two": ("t = Mul (x, half)  e = Erf (t)  a = Add (e, two)  y = Mul (x, a)", False),
    "minus one": ("t = Mul (x, half)  e = Erf (t)  a = Sub (e, one)  y = Mul (x, a)", False),
    "no factor": ("t = Mul (x, half)  e = Erf (t)  a = Add (e, one)  y = Neg (a)", False),
    "of an input": ("e = Erf (x)  a = Add (e, one)  y = Mul (x, a)", False),
    "sigmoid": ("t = Mul (x, half)  e = Sigmoid (t)  a = Add (e, one)  y = Mul (x, a)", False),
}


@pytest.mark.parametrize(("body", "is_gelu"), GELUS.values(), ids=GELUS)
def test_gelus(body: str, is_gelu: bool) -> None:
    assert kinds(body) == ["Gelu"] * is_gelu


@pytest.mark.parametrize(("steps", "near"), [(0, True), (5, True), (6, False)])
def test_a_mean_is_of_a_norm_where_the_root_is_near(steps: int, near: bool) -> None:
    names = ["n", *(f"i{index}" for index in range(steps))]
    casts = "  ".join(f"{b} = Identity ({a})" for a, b in pairwise(names))
    body = f"n = ReduceMean <keepdims = 1> (x, last)  {casts}  q = Mul ({names[-1]}, {names[-1]})"
    body += "  u = ReduceMean <keepdims = 1> (q, last)  d = Sqrt (u)  y = Div (x, d)"
    editor = edit(f"g ({INPUTS}) => (float[] y) {CONSTANTS} {{ {body} }}")
    mean = next(node for node in editor.graph.nodes if node.op == "ReduceMean")
    # The product, the second mean and its root are three steps more.
    assert is_of_norm(editor, mean) is near


ROTARIES = {
    "halves": "a, b = Split <axis = -1, num_outputs = 2> (x)  n = Neg (b)  t = Concat <axis = -1> (n, a)"
    "  s = Mul (x, two)  r = Mul (t, half)  y = Add (s, r)",
    "halves of a precision": "a, b = Split <axis = -1, num_outputs = 2> (x)  n = Neg (b)  h = Concat <axis = -1> (n, a)"
    "  t = Cast <to = 1> (h)  r = Mul (half, t)  s = Mul (two, x)  y = Add (r, s)",
    "pairs": "e = Reshape (x, pairs)  a, b = Split <axis = -1, num_outputs = 2> (e)  n = Neg (b)"
    "  u = Concat <axis = -1> (n, a)  t = Reshape (u, shape)  s = Mul (x, two)  r = Mul (t, half)  y = Add (s, r)",
    "a Gather": "t = Gather <axis = -1> (x, order)  s = Mul (x, two)  r = Mul (t, half)  y = Add (s, r)",
    "a complex product": "a, b = Split <axis = -1, num_outputs = 2> (x)  ac = Mul (a, two)  bs = Mul (b, half)"
    "  u = Sub (ac, bs)  bc = Mul (two, b)  as = Mul (a, half)  z = Add (bc, as)  y = Concat <axis = -1> (u, z)",
}
NO_ROTARIES = {
    "the halves exchanged": "a, b = Split <axis = -1, num_outputs = 2> (x)  t = Concat <axis = -1> (b, a)"
    "  s = Mul (x, two)  r = Mul (t, half)  y = Add (s, r)",
    "of another tensor": "a, b = Split <axis = -1, num_outputs = 2> (x)  n = Neg (b)  t = Concat <axis = -1> (n, a)"
    "  e = Exp (x)  s = Mul (e, two)  r = Mul (t, half)  y = Add (s, r)",
    "a Gather that keeps one": "t = Gather <axis = -1> (x, kept)  s = Mul (x, two)  r = Mul (t, half)  y = Add (s, r)",
    "a Gather of rows": "t = Gather <axis = 0> (x, rows)  s = Mul (x, two)  r = Mul (t, half)  y = Add (s, r)",
    "a sum of two products": "s = Mul (x, two)  r = Mul (x, half)  y = Add (s, r)",
    "the real part alone": "a, b = Split <axis = -1, num_outputs = 2> (x)  ac = Mul (a, two)  bs = Mul (b, half)"
    "  u = Sub (ac, bs)  bc = Mul (b, three)  as = Mul (a, half)  z = Add (bc, as)  y = Concat <axis = -1> (u, z)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "wanted"),
    [*((body, ["rotary embedding"]) for body in ROTARIES.values()), *((body, []) for body in NO_ROTARIES.values())],
    ids=[*ROTARIES, *NO_ROTARIES],
)
def test_rotary_embeddings(body: str, wanted: list[str]) -> None:
    more = ", int64[4] pairs = {2, 3, 3, 2}, int64[6] order = {1, 0, 3, 2, 5, 4}, int64[2] rows = {1, 0}, "
    constants = CONSTANTS.replace(">", f"{more}int64[6] kept = {{1, 0, 2, 3, 5, 4}}>")
    editor = edit(f"g ({INPUTS}) => (float[] y) {constants} {{ {body} }}")
    assert [kind for kind, _ in find_decomposed(editor)] == wanted
