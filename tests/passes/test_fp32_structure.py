"""What fp16 cannot hold stays in fp32: random graphs of guards, squares, sums, scaled products and norms, in fp16.

Each graph is optimized for a provider with --fp16, run with every tensor stored in its type, and judged against numpy
in float64 on inputs that fp16 holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support import stored
from support.small_graphs import Array, edit, load, operators

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes import fp32_structure
from sdort.providers import load_target
from sdort.rewrite.editor import producer

TOLERANCE = 8e-3
"""Of the largest element: three roundings to 11 bits of what a result is computed from, each 2^-11."""
WIDTH = 48


@dataclass(frozen=True)
class Spelling:
    """A graph's body from ``x`` and ``z`` [2, 48] to ``y``, its constants, and what it means."""

    body: str
    meaning: Callable[[Array, Array], Array]
    constants: tuple[tuple[str, float], ...] = ()


def _norm(x: Array) -> Any:
    return np.sqrt((x * x).sum(-1, keepdims=True))


def _mean_root(x: Array, eps: float) -> Any:
    return np.sqrt((x * x).mean(-1, keepdims=True) + eps)


EPS = 1e-12
SQUARES = {
    "Mul, ReduceSum": "q = Mul (x, x)  s = ReduceSum <keepdims = 1> (q, last)",
    "Pow, ReduceSum": "q = Pow (x, two)  s = ReduceSum <keepdims = 1> (q, last)",
    "ReduceSumSquare": "s = ReduceSumSquare <keepdims = 1> (x, last)",
    "viewed": "q = Mul (x, x)  v = Reshape (q, six)  w = Reshape (v, back)  s = ReduceSum <keepdims = 1> (w, last)",
    "MatMul": "u = Unsqueeze (x, one_axis)  t = Transpose <perm = [0, 2, 1]> (u)  m = MatMul (u, t)"
    "  s = Squeeze (m, one_axis)",
    "CumSum": "q = Mul (x, x)  c = CumSum (q, axis)  s = Slice (c, minus, far, last)",
}
ENDS = {
    "Sqrt, Div": "d = Sqrt (s)  e = Max (d, eps)  y = Div (x, e)",
    "Sqrt, Add, Div": "d = Sqrt (s)  e = Add (d, eps)  y = Div (x, e)",
    "Clip, Expand": "d = Sqrt (s)  e = Clip (d, eps)  h = Shape (x)  f = Expand (e, h)  y = Div (x, f)",
    "Pow, Mul": "e = Max (s, tiny)  d = Pow (e, minus_half)  y = Mul (x, d)",
    "Reciprocal, Mul": "d = Sqrt (s)  e = Add (eps, d)  r = Reciprocal (e)  y = Mul (x, r)",
    "Where": "d = Sqrt (s)  b = Less (d, eps)  e = Where (b, eps, d)  y = Div (x, e)",
    "filled": "d = Sqrt (s)  h = Shape (d)  f = Expand (eps, h)  e = Max (d, f)  y = Div (x, e)",
    "Log": "e = Max (s, tiny)  d = Log (e)  y = Mul (d, small)",
}


def _normalized(x: Array, end: str) -> Any:
    if end == "Log":
        return 0.01 * np.log(np.maximum((x * x).sum(-1, keepdims=True), 1e-24))
    return x / np.maximum(_norm(x), EPS)


SPELLINGS = {
    f"{square} / {end}": Spelling(f"{SQUARES[square]}  {ENDS[end]}", lambda x, z, end=end: _normalized(x, end))  # type: ignore[misc]
    for square in SQUARES
    for end in ENDS
} | {
    "ReduceL2": Spelling(
        "d = ReduceL2 <keepdims = 1> (x, last)  e = Clip (d, eps)  y = Div (x, e)", lambda x, z: _normalized(x, "")
    ),
    "ReduceL1": Spelling(
        "d = ReduceL1 <keepdims = 1> (x, last)  e = Clip (d, eps)  y = Div (x, e)",
        lambda x, z: x / np.maximum(np.abs(x).sum(-1, keepdims=True), EPS),
    ),
    "x / (x + eps)": Spelling("a = Abs (x)  e = Add (a, eps)  y = Div (x, e)", lambda x, z: x / (np.abs(x) + EPS)),
    "x / (x - -eps)": Spelling(
        "a = Abs (x)  e = Sub (a, minus_eps)  y = Div (x, e)", lambda x, z: x / (np.abs(x) + EPS)
    ),
    "eps in a row": Spelling("a = Abs (x)  e = Add (a, row)  y = Div (x, e)", lambda x, z: x / (np.abs(x) + EPS)),
    "logarithm of shares": Spelling(
        "p = Softmax <axis = -1> (n)  e = Add (p, eps)  l = Log (e)  y = Mul (l, small)",
        lambda x, z: 0.01 * np.log(_softmax(z) + EPS),
    ),
    "logarithm of gates": Spelling(
        "a = Mul (n, n)  b = Neg (a)  p = Sigmoid (b)  l = Log (p)  y = Mul (l, small)",
        lambda x, z: -0.01 * np.log1p(np.exp(z * z)),
    ),
    "logarithm of a sum": Spelling(
        "y = ReduceLogSumExp <keepdims = 1> (n, last)", lambda x, z: np.log(np.exp(z).sum(-1, keepdims=True))
    ),
    "exponentials": Spelling(
        "e = Exp (n)  s = ReduceSum <keepdims = 1> (e, last)  y = Div (e, s)", lambda x, z: _softmax(z)
    ),
    "root mean square, Pow": Spelling(
        "q = Pow (x, two)  m = ReduceMean <keepdims = 1> (q, last)  a = Add (m, guard)  d = Pow (a, minus_half)"
        "  y = Mul (x, d)",
        lambda x, z: x / _mean_root(x, 1e-8),
    ),
    "root mean square of a sum": Spelling(
        "q = Mul (x, x)  s = ReduceSum <keepdims = 1> (q, last)  m = Div (s, count)  a = Add (m, guard)  d = Sqrt (a)"
        "  r = Reciprocal (d)  y = Mul (r, x)",
        lambda x, z: x / _mean_root(x, 1e-8),
    ),
    "variance of two means": Spelling(
        "q = Mul (x, x)  s = ReduceMean <keepdims = 1> (q, last)  m = ReduceMean <keepdims = 1> (x, last)"
        "  n2 = Mul (m, m)  v = Sub (s, n2)  w = Relu (v)  a = Add (w, one)  d = Sqrt (a)  c = Sub (x, m)"
        "  y = Div (c, d)",
        lambda x, z: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1),
    ),
    "linear attention": Spelling(
        "k = Relu (n)  kt = Transpose (k)  kv = MatMul (kt, x)  a = MatMul (k, kv)"
        "  o = ReduceSum <keepdims = 1> (kt, last)  b = MatMul (k, o)  e = Add (b, eps)  y = Div (a, e)",
        lambda x, z: _linear_attention(np.maximum(z, 0), x),
    ),
    "large constants": Spelling("a = Mul (n, huge)  b = Add (a, huge)  y = Div (b, huge)", lambda x, z: z + 1),
    "small factors": Spelling(
        "a = Mul (x, eps)  b = Div (a, eps)  c = Mul (b, small)  y = Neg (c)", lambda x, z: -0.01 * x
    ),
    "a mean by hand": Spelling(
        "s = ReduceSum <keepdims = 1> (x, last)  y = Div (s, count)", lambda x, z: x.mean(-1, keepdims=True)
    ),
    "scaled products": Spelling(
        "q = Mul (x, share)  k = Mul (x, share)  kt = Transpose (k)  y = MatMul (q, kt)", lambda x, z: x @ x.T / 2**20
    ),
    "a product that is scaled behind": Spelling(
        "kt = Transpose (x)  p = MatMul (x, kt)  s = Mul (p, share)  y = Mul (s, share)", lambda x, z: x @ x.T / 2**20
    ),
}  # fmt: skip
CONSTANTS = {
    "last": np.array([-1]), "axis": np.array(-1), "one_axis": np.array([1]), "minus": np.array([-1]),
    "far": np.array([2**31]), "six": np.array([2, 6, 8]), "back": np.array([2, WIDTH]),
    "eps": np.float32(EPS), "minus_eps": np.float32(-EPS), "tiny": np.float32(1e-24),
    "row": np.full(WIDTH, EPS, np.float32),
    "two": np.float32(2), "one": np.float32(1), "minus_half": np.float32(-0.5), "guard": np.float32(1e-8),
    "small": np.float32(0.01), "huge": np.float32(1e6), "count": np.float32(WIDTH), "share": np.float32(2**-10),
}  # fmt: skip


def _softmax(x: Array) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _linear_attention(k: Array, v: Array) -> Any:
    return k @ (k.T @ v) / (k @ k.sum(0)[:, None] + EPS)


def inputs(seed: int) -> dict[str, Array]:
    """Rows of zeros, of fp16's smallest, usual and largest numbers; ``n`` has usual ones."""
    rng = np.random.default_rng(seed)
    sizes = ((0.0, 3e-7), (1e-4, 1.0), (300.0, 2e4))[seed % 3]
    x = rng.standard_normal((2, WIDTH)).clip(-3, 3) * np.array(sizes)[:, None]
    n = rng.standard_normal((2, WIDTH)).clip(-3, 3)
    return {"x": x.astype(np.float16).astype(np.float32), "n": n.astype(np.float16).astype(np.float32)}


@pytest.mark.parametrize("target", ["rocm", "migraphx"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_stored_in_fp16_it_is_what_float64_gives(name: str, target: str) -> None:
    spelling = SPELLINGS[name]
    used = {key: np.asarray(value) for key, value in CONSTANTS.items() if key in _words(spelling.body)}
    given = ", ".join(f"float[2, {WIDTH}] {key}" for key in ("x", "n") if key in _words(spelling.body))
    model = load(f"g ({given}) => (float[p, q] y) {{ {spelling.body} }}", used, 18)
    optimize_model(model, OptimizeOptions(load_target(target), fp16=True))
    for seed in range(3):
        feeds = inputs(seed)
        (found,) = stored.run(model, {key: value for key, value in feeds.items() if f" {key}" in given})
        wanted = spelling.meaning(feeds["x"].astype(np.float64), feeds["n"].astype(np.float64))
        # Each row by itself: what is zero beside another row may still be wrong.
        worst = np.abs(found - wanted).max(-1) - TOLERANCE * np.abs(wanted).max(-1)
        assert np.isfinite(found).all(), (seed, found)
        assert (worst <= 1e-7).all(), (seed, found[:, :4], wanted[:, :4])


def _words(text: str) -> set[str]:
    return set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())


HELD = {
    "a gate": "s = Sigmoid (x)  y = Mul (x, s)",
    "a product of projections": "a = MatMul (x, w)  b = MatMul (x, w)  y = Mul (a, b)",
    "a usual guard": "a = Abs (x)  e = Add (a, one)  y = Div (x, e)",
    "a softmax": "y = Softmax <axis = -1> (x)",
    "a bias with small elements": "y = Add (x, bias)",
    "a cube in a function": "c = Pow (x, three)  a = Add (c, x)  y = Tanh (a)",
    "an attention": "t = Transpose (x)  s = MatMul (x, t)  p = Softmax <axis = -1> (s)  y = MatMul (p, x)",
}


@pytest.mark.parametrize("body", HELD.values(), ids=HELD)
def test_what_fp16_holds_is_not_kept(body: str) -> None:
    bias = np.full(WIDTH, 1e-6, np.float32)
    bias[3] = 0.5
    values = {"w": np.ones((WIDTH, WIDTH), np.float32), "one": np.float32(1), "three": np.float32(3), "bias": bias}
    used = {key: np.asarray(value) for key, value in values.items() if key in _words(body)}
    editor = edit(f"g (float[2, {WIDTH}] x) => (float[p, q] y) {{ {body} }}", used, 18)
    assert fp32_structure.unheld_nodes(editor) == set()


def test_a_sum_ends_where_it_is_normalized() -> None:
    """Nothing behind the division, and nothing before the square, is in fp32."""
    text = f"""g (float[2, {WIDTH}] x) => (float[p, q] y) <int64[1] last = {{-1}}, float eps = {{1e-12}}> {{
        a = Sub (x, x)  q = Mul (a, a)  s = ReduceSum (q, last)  d = Sqrt (s)  e = Max (d, eps)  v = Identity (e)
        n = Div (a, v)  y = Neg (n) }}"""
    editor = edit(text, None, 18)
    kept = fp32_structure.unheld_nodes(editor)
    assert {node.op for node in editor.graph.nodes if node.name in kept} == set(operators(editor)) - {"Neg", "Sub"}


def test_the_walks_are_linear_in_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums along a residual stream, each of which is made of all that was added before."""
    calls = 0

    def counted(tensor: gs.Tensor, *more: str) -> gs.Node | None:
        nonlocal calls
        calls += 1
        return producer(tensor, *more)

    monkeypatch.setattr(fp32_structure, "producer", counted)
    steps = []
    for layers in (20, 40):
        body = "".join(
            f"s{n} = ReduceSum (h{n}, last)  c{n} = Sub (h{n}, s{n})  "
            f"m{n} = MatMul (c{n}, w)  h{n + 1} = Add (h{n}, m{n})  "
            for n in range(layers)
        )
        values = {"last": np.array([-1]), "w": np.ones((WIDTH, WIDTH), np.float32)}
        text = f"g (float[2, {WIDTH}] h0) => (float[p, q] y) {{ {body} y = Neg (h{layers}) }}"
        editor, calls = edit(text, values, 18), 0
        fp32_structure.unheld_nodes(editor)
        steps.append(calls)
    assert steps[0] > 0
    assert steps[1] <= 2.2 * steps[0]
