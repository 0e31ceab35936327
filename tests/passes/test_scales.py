"""Scales of attentions meet behind the product, and nothing else is rounded otherwise than the model says."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from support import stored
from support.rules import run_fold
from support.small_graphs import Array, Described, check_step, edit, operators, parse, run, to_proto
from support.small_graphs import load as load_graph

from sdort.graph.weights import Weight
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes import scales, tidy
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.editor import Editor

SIZES = {"B": 3, "H": 5, "W": 7}
ATTENTION = """g (float[B, H, 4] x, float[B, 4, W] z) => (float[B, H, W] y)
<float two = {2.0}, float[1] half2 = {0.5}, float three = {3.0}>"""
SOFTMAX = "y = Softmax <axis = -1> (s)"


def gather(editor: Editor) -> int:
    return tidy.run(editor, tidy.BEFORE_FUSIONS)


HOISTED = {
    "left": ("q = Mul (x, two)  s = MatMul (q, z)", {}),
    "right": ("q = Mul (half2, z)  s = MatMul (x, q)", {}),
    "both": ("q = Mul (x, two)  k = Mul (z, three)  s = MatMul (q, k)", {}),
    "through a transpose": (
        "q = Mul (x, two)  t = Transpose <perm = [1, 0, 2]> (q)  u = Transpose <perm = [1, 0, 2]> (t)"
        "  k = Div (z, three)  s = MatMul (u, k)", {},
    ),
    "three in a row": ("q = Mul (x, two)  r = Mul (q, two)  t = Mul (half2, r)  s = MatMul (t, z)", {}),
    "behind": ("q = Mul (x, two)  p = MatMul (q, z)  s = Div (p, three)", {}),
    "before a mask": ("q = Div (x, three)  p = MatMul (q, z)  m = Neg (p)  s = Add (p, m)", None),
    "masked": ("q = Div (x, three)  p = MatMul (q, z)  s = Add (p, half2)", {"Add": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", HOISTED.values(), ids=HOISTED)
def test_the_scales_of_an_attention_meet_behind_its_product(case: tuple[str, dict[str, int] | None]) -> None:
    text = f"{ATTENTION} {{ {case[0]}  {SOFTMAX} }}"
    editor = edit(text)
    gather(editor)
    if case[1] is None:  # a Neg is none of the operators between a scale and its softmax
        assert operators(editor) == {"Add": 1, "Div": 1, "MatMul": 1, "Neg": 1, "Softmax": 1}
        return
    assert check_step(text, gather, SIZES, rtol=1e-6) == {"MatMul": 1, "Mul": 1, "Softmax": 1, **case[1]}


STAYING = {
    "by a row": "q = Mul (x, row)  s = MatMul (q, z)",
    "read twice": "q = Mul (x, two)  p = MatMul (q, z)  n = ReduceMax <keepdims = 1> (q)  s = Add (p, n)",
    "a projection": "q = Mul (x, two)  s = MatMul (q, w)",
    "to a larger shape": "q = Mul (x, large)  s = MatMul (q, z)",
    "data times data": "n = Neg (x)  q = Mul (x, n)  s = MatMul (q, z)",
    "scores that are rounded": "q = Mul (x, three)  p = MatMul (q, z)  s = Floor (p)",
    "scores that are counted": "q = Div (x, three)  s = MatMul (q, z)  i = Cast <to = 7> (s)  e = Neg (i)",
    "scores that are compared": "q = Div (x, three)  s = MatMul (q, z)  b = Greater (s, two)  e = Not (b)",
    "factors in a row": "q = Mul (x, three)  r = Mul (q, three)  i = Round (r)  s = MatMul (i, z)",
}


@pytest.mark.parametrize("body", STAYING.values(), ids=STAYING)
def test_other_factors_stay_where_they_are(body: str) -> None:
    more = "float[4] row = {1.0, 2.0, 3.0, 4.0}, float[1, 1, 1, 1] large = {2.0}"
    outputs = "(float[] y, int64[] e)" if "(i)" in body and "Neg" in body else "(float[] y, bool[] e)"
    header = ATTENTION.replace("(float[B, H, W] y)", outputs if " e = " in body else "(float[] y)")
    editor = edit(f"{header[:-1]}, {more}> {{ {body}  {SOFTMAX} }}", {"w": Described([4, 8], np.float32)})
    before = operators(editor)
    gather(editor)
    assert operators(editor) == before


def test_scores_that_are_an_output_stay() -> None:
    text = ATTENTION.replace("y)", "y, float[B, H, W] s)") + f"{{ q = Mul (x, three)  s = MatMul (q, z)  {SOFTMAX} }}"
    assert gather(edit(text)) == 0


# --- integers and branches ---

ENDS = {
    "Floor": ("float", "{y} = Floor ({x})"),
    "Ceil": ("float", "{y} = Ceil ({x})"),
    "Round": ("float", "{y} = Round ({x})"),
    "Sign": ("float", "{y} = Sign ({x})"),
    "Mod": ("float", "{y} = Mod <fmod = 1> ({x}, one)"),
    "Cast": ("int64", "{y} = Cast <to = 7> ({x})"),
    "Greater": ("bool", "{y} = Greater ({x}, one)"),
    "Equal": ("bool", "{y}_r = Round ({x})  {y} = Equal ({x}, {y}_r)"),
    "Where": ("float", "{y}_c = Less ({x}, one)  {y} = Where ({y}_c, one, none)"),
    "ArgMax": ("int64", "{y} = ArgMax <axis = 0, keepdims = 0> ({x})"),
    "MatMul": ("float", "{y}_m = MatMul ({x}, unit)  {y} = Floor ({y}_m)"),
    "MatMul of data": ("float", "{y}_t = Transpose ({x})  {y}_m = MatMul ({x}, {y}_t)  {y} = Floor ({y}_m)"),
    "scaled MatMul": (
        "float",
        "{y}_t = Transpose ({x})  {y}_m = MatMul ({x}, {y}_t)  {y}_s = Mul ({y}_m, tenth)  {y} = Floor ({y}_s)",
    ),
}
STEPS = ("Div ({x}, {c})", "Mul ({x}, {c})", "Add ({x}, {c})", "Sub ({x}, {c})", "Div ({c}, {x})", "Sub ({c}, {x})",
         "Mul ({x}, {x})", "Transpose ({x})", "Neg ({x})", "Sqrt ({x})", "Pow ({x}, {c})")  # fmt: skip
CONSTANTS = (0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 7.0, 10.0, 41.0, 83.0, 0.1, 1 / 3, 2.5, 640.0, 1e-3)


def arithmetic(seed: int) -> tuple[str, dict[str, Array]]:
    """A random chain of arithmetic with constants, and a reader of it that a rounding would change."""
    rng = np.random.default_rng(seed)
    lines, name, constants = [], "x", dict[str, Array]()
    for index in range(rng.integers(1, 5)):
        step, weight = STEPS[rng.choice(len(STEPS), p=[0.3, 0.25] + [0.05] * 9)], f"c{index}"
        if "{c}" in step:
            shape = [(), (1,), (1, 1)][rng.integers(3)]
            constants[weight] = np.full(shape, rng.choice(CONSTANTS), np.float32)
        lines.append(f"s{index} = {step.format(x=name, c=weight)}")
        name = f"s{index}"
    kind, end = ENDS[list(ENDS)[rng.integers(len(ENDS))]]
    values = {
        "one": np.float32(1),
        "none": np.float32(0),
        "tenth": np.float32(0.1),
        "unit": np.eye(12, dtype=np.float32),
    }
    lines.append(end.format(x=name, y="y"))
    constants |= {key: np.asarray(value) for key, value in values.items() if key in "\n".join(lines)}
    return f"g (float[12, 12] x) => ({kind}[] y) {{ {'  '.join(lines)} }}", constants


@pytest.mark.parametrize("target", PROVIDER_NAMES)
def test_integers_and_branches_are_those_of_the_model(target: str) -> None:
    """Divisors of 1 to 144 at their multiples are where x / c and x * (1 / c) differ."""
    x = np.arange(144, dtype=np.float32).reshape(12, 12)
    for seed in range(60):
        text, constants = arithmetic(seed)
        model, proto = load_graph(text, constants, 18), parse(text, constants, 18)
        optimize_model(model, OptimizeOptions(load_target(target)))
        for scale in (1, 41, 0.7):
            feeds = {"x": x * np.float32(scale)}
            (found,), (wanted,) = run(model, feeds), run(proto, feeds)
            np.testing.assert_array_equal(found, wanted, err_msg=text)


def test_those_of_a_model_in_fp16_are_too() -> None:
    """By ONNX's reference, which stores every tensor in its type."""
    x = np.arange(144).reshape(12, 12)
    for seed in range(60):
        text, wide = arithmetic(seed)
        constants = {name: value.astype(np.float16) for name, value in wide.items()}
        text = text.replace("float[", "float16[")
        model, proto = load_graph(text, constants, 18), parse(text, constants, 18)
        optimize_model(model, OptimizeOptions(load_target("cuda")))
        made = ReferenceEvaluator(to_proto(model))
        for scale in (0.1, 0.7):
            feeds = {"x": (x * scale).astype(np.float16)}
            with np.errstate(all="ignore"):
                (found,), (wanted,) = made.run(None, feeds), ReferenceEvaluator(proto).run(None, feeds)
            np.testing.assert_array_equal(found, wanted, err_msg=text)


# --- fp16 ---


@pytest.mark.parametrize("scale", ["Mul (p, c)", "Mul (c, p)", "Div (p, d)"])
@pytest.mark.parametrize("half", [True, False], ids=["becomes fp16", "is fp16"])
def test_an_unfused_product_is_scaled_before_it(scale: str, half: bool) -> None:
    kind, dtype = ("float", np.float32) if half else ("float16", np.float16)
    header = f"g ({kind}[B, H, 4] x, {kind}[B, 4, W] z) => ({kind}[B, H, W] y)"
    text = f"{header} {{ p = MatMul (x, z)  s = {scale}  y = {'Neg (s)' if half else 'Softmax <axis = -1> (s)'} }}"
    constants = {"c": np.array(1 / 64, dtype), "d": np.array(64, dtype)}
    editor = edit(text, {name: value for name, value in constants.items() if name in scale.split("(")[1]})
    assert scales.scale_before(editor, half=half) == 1
    assert [node.op for node in editor.graph.nodes][:2] == ["Mul", "MatMul"]
    tidy.run(editor)
    run_fold(editor)
    assert [node.op for node in editor.graph.nodes][:2] == ["Mul", "MatMul"]
    x, z = np.full((1, 2, 4), 512, dtype), np.full((1, 4, 2), 384, dtype)
    np.testing.assert_array_equal(run(editor.model, {"x": x, "z": z})[0], np.full((1, 2, 2), -12288 if half else 0.5))


def test_a_product_of_shares_is_not_made_smaller() -> None:
    """Shares of 4096 rows, a 4096th of them: both factors are usual numbers of fp16, and what they make is nothing."""
    text = """g (float[4096, 8] k, float[4096, 8] v) => (float[a, b] y) <float share = {0.000244140625}> {
        p = Softmax <axis = 0> (k)  t = Transpose (p)  c = MatMul (t, v)  y = Mul (c, share) }"""
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((4096, 8)).astype(np.float32) for name in "kv"}
    model = load_graph(text, opset=18)
    (wanted,) = run(model, feeds)
    optimize_model(model, OptimizeOptions(load_target("rocm"), fp16=True))
    (found,) = stored.run(model, feeds)
    assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()


KEPT = {
    "by more than 1": "p = MatMul (x, z)  y = Mul (p, three)",
    "read by another": "p = MatMul (x, z)  q = Mul (p, half2)  y = Sub (q, p)",
    "a projection": "p = MatMul (x, w)  y = Mul (p, half2)",
    "a factor for each": "p = MatMul (x, z)  y = Mul (p, row)",
    "a number that it divides": "p = MatMul (x, z)  y = Div (three, p)",
    "by 1": "p = MatMul (x, z)  y = Mul (p, one)",
    "by less than -1": "p = MatMul (x, z)  y = Mul (p, minus)",
    "by nothing": "p = MatMul (x, z)  y = Mul (p, none)",
    "a division by less than 1": "p = MatMul (x, z)  y = Div (p, half2)",
    "a division by nothing": "p = MatMul (x, z)  y = Div (p, none)",
    "to a larger shape": "p = MatMul (x, z)  y = Mul (p, quarter)",
    "another operator": "p = MatMul (x, z)  y = Add (p, half2)",
    "another domain's": "p = MatMul (x, z)  y = com.microsoft.BiasGelu (p, half2)",
}
NUMBERS = """, float[2] row = {0.5, 0.25}, float one = {1.0}, float minus = {-1.5}, float none = {0.0},
float[1, 1, 1, 1] quarter = {0.25}>"""


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_other_products_stay(body: str) -> None:
    header = ATTENTION.replace("(float[B, H, W] y)", "(float[] y)")[:-1] + NUMBERS
    text = header.replace(" W]", " 2]")
    editor = edit(f"{text} {{ {body} }}", {"w": Described([4, 8], np.float32)})
    assert scales.scale_before(editor, half=True) == 0


@pytest.mark.parametrize("factors", [(1e-30, 1e-30), (1e30, 1e30)], ids=["to zero", "to infinity"])
def test_factors_whose_product_is_no_number_stay_apart(factors: tuple[float, float]) -> None:
    text = """g (float[B, H, 4] x) => (float[B, H, 4] y) { a = Mul (x, first)  s = Mul (a, second)
        y = Softmax <axis = -1> (s) }"""
    made = {name: np.array(value, np.float32) for name, value in zip(("first", "second"), factors, strict=True)}
    assert gather(edit(text, made)) == 0


SHRUNK = {
    "twice": ("p = MatMul (x, z)  q = Mul (p, half2)  y = Div (q, three)", 2),
    "negatively": ("p = MatMul (x, z)  y = Mul (p, minus)", 1),
    "of shares": ("s = MatMul (x, z)  r = Softmax (s)  p = MatMul (r, r)  y = Mul (p, half2)", 0),
    "up and then down": ("p = MatMul (x, z)  q = Mul (p, three)  y = Mul (q, half2)", 0),
}


@pytest.mark.parametrize("case", SHRUNK.values(), ids=SHRUNK)
def test_every_factor_in_a_row_goes_before_the_product(case: tuple[str, int]) -> None:
    header = ATTENTION.replace("W]", "5]").replace("(float[B, H, 5] y)", "(float[] y)")[:-1] + ", float minus = {-0.5}>"
    text = f"{header} {{ {case[0]} }}"
    editor = edit(text)
    assert scales.scale_before(editor, half=True) == case[1]
    assert scales.scale_before(edit(text), half=False) == 0
    found, wanted = run(editor.model, FEEDS), run(parse(text), FEEDS)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)


FEEDS = {
    name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for name, shape in (("x", (3, 5, 4)), ("z", (3, 4, 5)))
}
COMPARED = {
    "with minus infinity": ("Equal (s, closed)", True),
    "with infinity before it": ("Equal (opened, s)", True),
    "with a number": ("Equal (s, two)", False),
    "with data": ("Equal (s, s2)", False),
    "whether it is less": ("Less (s, closed)", False),
    "whether it is a number": ("IsNaN (s)", True),
    "whether it is infinite": ("IsInf (s)", True),
}


@pytest.mark.parametrize("case", COMPARED.values(), ids=COMPARED)
def test_a_comparison_that_no_rounding_changes_does_not_hold_a_scale(case: tuple[str, bool]) -> None:
    """A mask that closes a row is looked for beside the softmax."""
    infinite: dict[str, Array | Weight] = {
        name: np.array([value], np.float32) for name, value in (("closed", -np.inf), ("opened", np.inf))
    }
    header = ATTENTION.replace("(float[B, H, W] y)", "(float[] y, bool[] e)")
    text = f"{header} {{ q = Mul (x, three)  s = MatMul (q, z)  s2 = Exp (s)  e = {case[0]}  {SOFTMAX} }}"
    if "s2)" not in case[0]:
        text = text.replace("s2 = Exp (s)", "")
    editor = edit(text, {name: value for name, value in infinite.items() if name in case[0]})
    gather(editor)
    names = [node.op for node in editor.graph.nodes]
    assert (names.index("MatMul") < names.index("Mul")) == case[1]
