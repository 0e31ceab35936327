"""Products that an exporter took apart: each is one product again, and what only looks like one is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.small_graphs import Described, check_step, edit, feeds_for, operators, parse, run

from sdort.graph.weights import Absent, Weight
from sdort.passes import tidy
from sdort.rewrite.apply import apply_fusion
from sdort.rewrite.fusion import load_fusions

SIZES = {"B": 2, "S": 5, "H": 3, "M": 10, "O": 8}
CLOSE = 1e-5
"""Of the largest element: the same fp32 products, summed in another order."""


def weights(**shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


# --- rows that were merged ---

LINEAR = """
g (float[B, S, 6] x{more}) => (float[{out}] y)
<int64[2] merge = {merge}, int64[3] split = {split}, float zero = {{0.0}}> {{
    rows = Reshape (x, merge)
    {product}
    v = Reshape (z, {target})
    y = Neg (v)
}}"""
_GIVEN = {"more": "", "out": "B, S, 8", "merge": "{-1, 6}", "split": "{2, -1, 8}", "target": "shape"}


def linear(**settings: str) -> str:
    """A Linear of merged rows; the sizes of its result are read off its input."""
    text = LINEAR.format(**{**_GIVEN, **settings})
    sizes = "sizes = Shape <end = 2> (x)  shape = Concat <axis = 0> (sizes, width)"
    return text.replace("rows =", sizes + "\n    rows =").replace("<int64[2]", "<int64[1] width = {8}, int64[2]")


MERGED = {
    "without a bias": ("z = MatMul (rows, w)", {"MatMul": 1, "Neg": 1}),
    "with one": ("z = Gemm (rows, w, b)", {"Add": 1, "MatMul": 1, "Neg": 1}),
    "with one of a row": ("z = Gemm (rows, w, b2)", {"Add": 1, "MatMul": 1, "Neg": 1}),
    "turned": ("z = Gemm <transB = 1> (rows, wt, b)", {"Add": 1, "MatMul": 1, "Neg": 1}),
}


@pytest.mark.parametrize(("product", "wanted"), MERGED.values(), ids=MERGED)
def test_a_linear_of_merged_rows_is_one_of_rows(product: str, wanted: dict[str, int]) -> None:
    given = weights(w=(6, 8), wt=(8, 6), b=(8,), b2=(1, 8))
    used = {name: value for name, value in given.items() if f" {name}" in product.replace(")", " )").replace(",", " ,")}
    assert check_step(linear(product=product), tidy.run, SIZES, used, rtol=CLOSE) == wanted


STAYS = {
    "alpha": {"product": "z = Gemm <alpha = 2.0> (rows, w, b)"},
    "beta": {"product": "z = Gemm <beta = 2.0> (rows, w, b)"},
    "a bias for each row": {"product": "z = Gemm (rows, w, c)", "more": ", float[M, 8] c"},
    "a result that is read as it is": {"product": "z = Gemm (rows, w, b)  other = Softmax <axis = 0> (z)"},
    "other rows behind it": {"product": "z = Gemm (rows, w, b)", "out": "S, B, 8", "target": "turned"},
    "other columns before it": {"product": "z = Gemm (rows, w, b)", "merge": "{-1, 3}"},
}


@pytest.mark.parametrize("settings", STAYS.values(), ids=STAYS)
def test_other_linears_stay(settings: dict[str, str]) -> None:
    text = linear(**settings)
    if "turned" in text:
        text = text.replace("rows =", "t = Shape <start = 1, end = 2> (x)  u = Shape <end = 1> (x)\n"
                            "    turned = Concat <axis = 0> (t, u, width)\n    rows =", 1)  # fmt: skip
    if "other" in text:
        text = text.replace("=> (float", "=> (float[M, 8] other, float", 1)
    editor = edit(text, weights(w=(3 if "3}" in text else 6, 8), b=(8,)))
    tidy.run(editor)
    assert operators(editor)["Gemm"] == 1


def test_a_transposed_left_operand_stays() -> None:
    text = """g (float[2, 3, 6] x) => (float[2, 3, 8] y) <int64[2] merge = {6, 6}, int64[3] split = {2, 3, 8}> {
        rows = Reshape (x, merge)
        z = Gemm <transA = 1> (rows, w, b)
        y = Reshape (z, split)
    }"""
    editor = edit(text, weights(w=(6, 8), b=(8,)))
    tidy.run(editor)
    assert operators(editor) == {"Gemm": 1, "Reshape": 2}


def test_a_row_that_was_no_stack_of_rows_stays() -> None:
    text = """g (float[6] x) => (float[8] y) <int64[2] up = {1, 6}, int64[1] down = {8}> {
        row = Reshape (x, up)
        z = Gemm (row, w, b)
        y = Reshape (z, down)
    }"""
    editor = edit(text, weights(w=(6, 8), b=(8,)))
    tidy.run(editor)
    assert operators(editor) == {"Gemm": 1, "Reshape": 2}


def test_a_reader_that_is_no_view_keeps_the_rows_merged() -> None:
    text = """g (float[1, 2, 6] x, float[1, 2, 8] t) => (float[1, 2, 8] y) <int64[2] merge = {2, 6}> {
        rows = Reshape (x, merge)
        z = Gemm (rows, w, b)
        y = Add (z, t)
    }"""
    assert check_step(text, tidy.run, {}, weights(w=(6, 8), b=(8,))) == {"Add": 1, "Gemm": 1, "Reshape": 1}


def test_some_rows_may_stay_merged() -> None:
    text = """g (float[2, 3, 5, 6] x) => (float[2, 3, 5, 8, 1] y)
    <int64[3] merge = {6, 5, 6}, int64[5] split = {2, 3, 5, -1, 1}> {
        rows = Reshape (x, merge)
        z = MatMul (rows, w)
        y = Reshape (z, split)
    }"""
    assert check_step(text, tidy.run, {}, weights(w=(6, 8)), rtol=CLOSE) == {"MatMul": 1, "Reshape": 1}


def test_an_output_stays_as_it_is() -> None:
    text = """g (float[2, 5, 6] x) => (float[10, 8] z, float[2, 5, 8] y)
    <int64[2] merge = {10, 6}, int64[3] split = {2, 5, 8}> {
        rows = Reshape (x, merge)
        z = MatMul (rows, w)
        y = Reshape (z, split)
    }"""
    assert check_step(text, tidy.run, {}, weights(w=(6, 8)), rtol=CLOSE) == {"MatMul": 1, "Reshape": 2}


# --- batch and heads that were merged ---

HEADS = """
g (float[{q}] q, float[{k}] k) => (float[{out}] y)
<int64[3] m1 = {{6, 5, 4}}, int64[3] m2 = {{6, 4, 7}}, int64[{rank}] split = {{{out}}}> {{
    a = Reshape (q, m1)
    b = Reshape (k, m2)
    s = MatMul (a, b)
    v = Reshape (s, split)
    y = Neg (v)
}}"""


@pytest.mark.parametrize(
    ("q", "k", "out", "views"),
    [
        ("2, 3, 5, 4", "2, 3, 4, 7", "2, 3, 5, 7", 0),
        ("1, 6, 5, 4", "1, 6, 4, 7", "1, 6, 5, 7", 0),
        ("2, 3, 5, 4", "2, 3, 4, 7", "2, 3, 5, 7, 1", 1),
        # What stays: other axes in the two, in the result, and a merged axis that is not the batch.
        ("2, 3, 5, 4", "3, 2, 4, 7", "2, 3, 5, 7", 3),
        ("2, 3, 5, 4", "2, 3, 4, 7", "3, 2, 5, 7", 3),
        ("2, 3, 4, 5", "2, 3, 4, 7", "2, 3, 5, 7", 3),
    ],
)
def test_heads_are_apart_where_they_were(q: str, k: str, out: str, views: int) -> None:
    text = HEADS.format(q=q, k=k, out=out, rank=out.count(",") + 1)
    wanted = {"MatMul": 1, "Neg": 1} | ({"Reshape": views} if views else {})
    assert check_step(text, tidy.run, {}, rtol=CLOSE) == wanted


# --- what was repeated over the batch ---

REPEATED = {
    "a weight": ("e = Expand (w, to)  y = MatMul (x, e)", {"w": (6, 6)}, {"MatMul": 1}),
    "a weight on the left": ("e = Expand (w, to)  y = MatMul (e, x)", {"w": (6, 6)}, {"MatMul": 1}),
    "a weight with a batch of 1": ("e = Expand (w, to)  y = MatMul (x, e)", {"w": (1, 6, 6)}, {"MatMul": 1}),
    "columns too": ("e = Expand (w, to)  y = MatMul (x, e)", {"w": (6, 1)}, {"Expand": 1, "MatMul": 1}),
    "rows too": ("e = Expand (w, to)  y = MatMul (x, e)", {"w": (1, 6)}, {"Expand": 1, "MatMul": 1}),
    "an addend": ("e = Expand (w, to)  y = Add (x, e)", {"w": (6,)}, {"Add": 1}),
    "a choice": ("e = Expand (w, to)  c = IsNaN (x)  y = Where (c, e, x)", {"w": ()}, {"IsNaN": 1, "Where": 1}),
    "more than the other": ("e = Expand (x, w4)  y = Add (w, e)", {"w": (6,)}, {"Add": 1, "Expand": 1}),
    "two of which one has to be": (
        "e = Expand (w, to)  f = Expand (v, to)  p = Add (e, f)  y = Mul (p, x)", {"w": (6,), "v": (1,)},
        {"Add": 1, "Expand": 1, "Mul": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "shapes", "wanted"), REPEATED.values(), ids=REPEATED)
def test_operators_repeat_what_they_read_themselves(
    lines: str, shapes: dict[str, tuple[int, ...]], wanted: dict[str, int]
) -> None:
    text = f"""g (float[B, 6, 6] x) => (float[] y) <int64[2] sizes = {{6, 6}}, int64[4] w4 = {{2, 1, 1, 1}}> {{
        batch = Shape <end = 1> (x)
        to = Concat <axis = 0> (batch, sizes)
        {lines}
    }}"""
    found = check_step(text, tidy.run, SIZES, weights(**shapes), rtol=CLOSE)
    assert {k: n for k, n in found.items() if k not in ("Shape", "Concat")} == wanted


def test_a_product_with_a_larger_batch_keeps_it() -> None:
    text = """g (float[1, 5, 6] x, float[6, 8] w) => (float[3, 5, 8] y) <int64[3] to = {3, 6, 8}> {
        e = Expand (w, to)
        y = MatMul (x, e)
    }"""
    assert check_step(text, tidy.run, {}, rtol=CLOSE) == {"Expand": 1, "MatMul": 1}


@pytest.mark.parametrize(
    ("stack", "rank"),
    [
        (lambda w: np.stack([w, w]), 2),
        (lambda w: w[None], 2),
        (lambda w: np.stack([w, w + np.float32(1e-6)]), 3),
        (lambda w: np.stack([w, -w]), 3),
    ],
)
def test_a_weight_that_was_repeated_and_folded_is_one(stack: Any, rank: int) -> None:
    text = "g (float[2, 5, 6] x) => (float[2, 5, 8] y) { y = MatMul (x, w) }"
    given = {"w": stack(weights(w=(6, 8))["w"])}
    assert check_step(text, tidy.run, {}, given, rtol=1e-7) == {"MatMul": 1}
    editor = edit(text, given)
    tidy.run(editor)
    assert len(editor.graph.nodes[0].inputs[1].shape) == rank


@pytest.mark.parametrize(
    ("size", "weight"),
    [(600, Described((2, 600, 600), np.float32)), (6, Absent("w", (2, 6, 6), np.float32))],
    ids=["large", "not there yet"],
)
def test_a_weight_that_is_large_or_not_there_is_not_looked_at(size: int, weight: Weight) -> None:
    text = f"g (float[2, 5, {size}] x) => (float[2, 5, {size}] y) {{ y = MatMul (x, w) }}"
    shape, editor = weight.shape, edit(text, {"w": weight})
    tidy.run(editor)
    assert editor.graph.nodes[0].inputs[1].shape == shape


@pytest.mark.parametrize(("values", "rank"), [(np.zeros, 0), (np.ones, 0), (lambda s: np.eye(*s[1:])[None], 3)])
def test_a_tensor_of_one_number_is_the_number(values: Any, rank: int) -> None:
    text = "g (float[1, 4, 4] x) => (float[1, 4, 4] y) { c = IsNaN (x)  y = Where (c, w, x) }"
    given = {"w": np.asarray(values((1, 4, 4)), np.float32)}
    assert check_step(text, tidy.run, {}, given) == {"IsNaN": 1, "Where": 1}
    editor = edit(text, given)
    tidy.run(editor)
    (node,) = (n for n in editor.graph.nodes if n.op == "Where")
    assert len(node.inputs[1].shape) == rank


def test_a_row_of_one_number_stays() -> None:
    text = "g (float[4] x) => (float[4] y) <float[4] w = {1.0, 1.0, 1.0, 1.0}> { c = IsNaN (x)  y = Where (c, w, x) }"
    editor = edit(text)
    assert tidy.run(editor) == 0


# --- softmax of closed rows ---

GUARD = """
g (float[2, 3, 5] x) => (float[2, 3, 5] y)
<float lowest = {{{lowest}}}, float zero = {{{zero}}}, int64[1] axis = {{{axis}}}> {{
    p = Softmax <axis = -1> ({softmax})
    closed = Equal (x, lowest)
    open = {negation} (closed)
    number = Cast <to = 7> (open)
    any = {reduction} <keepdims = 1> (number, axis)
    some = Cast <to = 9> (any)
    none = Not (some)
    y = Where ({choice})
}}"""
_USUAL = {"lowest": "-inf", "zero": "0.0", "axis": "-1", "softmax": "x", "negation": "Not", "reduction": "ReduceMax",
          "choice": "none, zero, p"}  # fmt: skip
UNLIKE = {
    "another closed score": {"lowest": "-10000.0"},
    "another number for closed rows": {"zero": "1.0"},
    "rows of another axis": {"axis": "-2"},
    "shares of something else": {"softmax": "twice"},
    "closed ones counted": {"negation": "Identity"},
    "all open": {"reduction": "ReduceMin"},
    "the other way round": {"choice": "none, p, zero"},
    "another choice": {"choice": "some, zero, p"},
}


def guarded(**settings: str) -> str:
    text = GUARD.format(**{**_USUAL, **settings})
    return text.replace("p = Softmax", "twice = Add (x, x)  p = Softmax") if "twice" in text else text


def closed_rows() -> dict[str, Any]:
    x = np.random.default_rng(1).standard_normal((2, 3, 5)).astype(np.float32)
    x[0, 1], x[1, 2, 3:] = -np.inf, -np.inf
    return {"x": x}


def test_a_safe_softmax_gives_zeros_for_closed_rows() -> None:
    editor = edit(guarded())
    assert apply_fusion(load_fusions()["safe_softmax"], editor).matched == 1
    editor.finish()
    assert operators(editor) == {"IsNaN": 1, "Softmax": 1, "Where": 1}
    (wanted,), (found,) = run(parse(guarded()), closed_rows()), run(editor.model, closed_rows())
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=0)
    assert (found[0, 1] == 0).all()


@pytest.mark.parametrize("settings", UNLIKE.values(), ids=UNLIKE)
def test_what_guards_something_else_is_left(settings: dict[str, str]) -> None:
    editor = edit(guarded(**settings))
    assert apply_fusion(load_fusions()["safe_softmax"], editor).matched == 0


# --- projections that were merged ---

PROJECTED = """
g (float[2, 5, 12] x{more}) => (float[2, 5, {values}] y) {{
    {lines}
    y = Attention <q_num_heads = {heads}, kv_num_heads = {heads}{causal}> (q, k, v)
}}"""
_QKV = "m = MatMul (x, w)  q, k, v = Split <axis = -1, num_outputs = 3> (m)"
_KV = "m = MatMul (x, w)  k, v = Split <axis = -1, num_outputs = 2> (m)"
_BIASED = "m = MatMul (x, w)  n = Add (m, b)  q, k, v = Split <axis = -1, num_outputs = 3> (n)"
PACKED: dict[str, list[tuple[str, dict[str, str]]]] = {
    "packed_qkv": [(_QKV, {}), (f"q = MatMul (x, u)  {_KV}", {})],
    "packed_kv": [(_KV, {"more": ", float[2, 5, 12] q"})],
    "packed_attention": [(_BIASED, {"causal": ", is_causal = 1"})],
}
FORMS = [(name, lines, more) for name, forms in PACKED.items() for lines, more in forms]


def projected(lines: str, width: int, values: int, heads: int, more: dict[str, str]) -> tuple[str, dict[str, Any]]:
    text = PROJECTED.format(lines=lines, heads=heads, values=values, **{"more": "", "causal": "", **more})
    given = weights(w=(12, width), u=(12, -(-width // 2)), b=(width,))
    return text, {name: given[name] for name in given if f" {name})" in text}


@pytest.mark.parametrize(("name", "lines", "more"), FORMS)
def test_merged_projections_are_packed(name: str, lines: str, more: dict[str, str]) -> None:
    text, given = projected(lines, 36 if "q, k, v =" in lines else 24, 12, 3, more)
    editor = edit(text, given)
    assert apply_fusion(load_fusions()[name], editor).matched == 1
    editor.finish()
    feeds = feeds_for(parse(text, given), {})
    (wanted,), (found,) = run(parse(text, given), feeds), run(editor.model, feeds)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "lines", "more"), FORMS)
def test_projections_of_unequal_width_are_not_packed(name: str, lines: str, more: dict[str, str]) -> None:
    """Of 35 or 23 columns the last piece has one less: query and value heads of different sizes."""
    if "float" in more.get("more", ""):
        more = {"more": ", float[2, 5, 12] q"}
    text, given = projected(lines, 35 if "q, k, v =" in lines else 23, 11, 1, more)
    editor = edit(text, given)
    assert apply_fusion(load_fusions()[name], editor).matched == 0


@pytest.mark.parametrize(("name", "lines", "more"), FORMS)
def test_projections_that_others_read_stay(name: str, lines: str, more: dict[str, str]) -> None:
    text, given = projected(lines, 36 if "q, k, v =" in lines else 24, 12, 3, more)
    text = text.replace("=> (", "=> (float[2, 5, 12] z, ").replace("    y =", "    z = Neg (v)\n    y =")
    assert apply_fusion(load_fusions()[name], edit(text, given)).matched == 0
