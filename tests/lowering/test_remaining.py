"""The last sentence counts what the written graph has in parts, whatever the rules say of themselves."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_graphs import edit, load

from sdort.lowering.component_report import ComponentReport
from sdort.lowering.remaining import _is_inner, _meets_inverse, _reason, needless_transposes
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.optimizer.report import OptimizeReport
from sdort.optimizer.summary import conclusion
from sdort.providers import load_target
from sdort.rewrite.apply import DISABLED, Outcome, Unfused
from sdort.rewrite.decomposed import find_decomposed

ATTENTION = """t = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, t)  c = Mul (s, scale)  {0}
    p = Softmax <axis = -1> ({1})  y = MatMul (p, v)"""
QKV = "graph (float[2, 4, 5, 8] q, float[2, 4, 7, 8] k, float[2, 4, 7, 8] v) => (float[2, 4, 5, 8] y) {{ {} }}"
GROUPED = """graph (float[2, 8, 3, 5] x) => (float[2, 8, 3, 5] y) {
    g = Reshape (x, group)  n = InstanceNormalization (g, ones, zeros)  b = Reshape (n, sizes)
    s = Mul (b, gamma)  y = Add (s, beta)
}"""
VALUES = {
    "scale": np.array(0.3, np.float32), "root": np.array(1.5, np.float32), "low": np.array(-5.0, np.float32),
    "one": np.array(1.0, np.float32), "half": np.array(0.5, np.float32), "epsilon": np.array(1e-5, np.float32),
    "sqrt_two": np.array(2**0.5, np.float32),
    "two": np.array(2.0, np.float32), "group": np.array([0, 4, -1]), "sizes": np.array([2, 8, 3, 5]),
    "volume": np.array([2, 8, 3, 5, 2]),
    "ones": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32), "w": np.ones((8, 1), np.float32),
    "gamma": np.ones((8, 1, 1), np.float32), "beta": np.zeros((8, 1, 1), np.float32), "axis": np.array([1]),
    "eight": np.ones(8, np.float32), "last": np.array([-1]),
}  # fmt: skip


def optimized(text: str, target: str = "cpu") -> ComponentReport:
    model = load(text, {name: value for name, value in VALUES.items() if name in text}, 18)
    return optimize_model(model, OptimizeOptions(load_target(target)))


def verdict(report: ComponentReport, target: str) -> str:
    whole = OptimizeReport("in", "out", target, False)
    report.architecture_known = True
    whole.components["unet"] = report
    return conclusion(whole)


STAY = {
    "an attention of clipped scores": (
        QKV.format(ATTENTION.format("m = Clip (c, low) ", "m")), "cpu", "1 of 1 attention (",
    ),
    "group norms that the provider lacks": (
        GROUPED, "cpu", "1 of 1 group norm (cpu has no kernel for GroupNorm)",
    ),
    "a layer norm over channels": (
        """graph (float[2, 8, 3] x) => (float[2, 8, 3] y) {
            m = ReduceMean <keepdims = 1> (x, axis)  c = Sub (x, m)  s = Mul (c, c)
            v = ReduceMean <keepdims = 1> (s, axis)  e = Add (v, epsilon)  r = Sqrt (e)  y = Div (c, r)
        }""", "cpu", "1 of 1 norm over inner axes (no rule takes this form)",
    ),
    "a group norm of a volume": (
        GROUPED.replace("3, 5]", "3, 5, 2]").replace("sizes", "volume"),
        "cuda",
        "1 of 1 group norm (GroupNorm takes images of four axes, channels last)",
    ),
    "scores that are replaced by a low number": (
        QKV.replace("float[2, 4, 7, 8] v", "float[2, 4, 7, 8] v, bool[2, 1, 1, 7] o").format(
            ATTENTION.format("m = Where (o, c, low)", "m")
        ),
        "cpu",
        "1 of 1 attention (a row of such scores alone would not be a row of equal ones)",
    ),
    "a root mean square norm that is clamped": (
        """graph (float[2, 3, 8] x) => (float[2, 3, 8] y) {
            s = Mul (x, x)  v = ReduceMean <keepdims = 1> (s, last)  e = Max (v, epsilon)  r = Sqrt (e)  y = Div (x, r)
        }""", "cpu", "1 of 1 RMS norm (no rule takes this form)",
    ),
    "one of two": (
        """graph (float[2, 3, 8] x) => (float[2, 3, 8] y) {
            n = LayerNormalization (x, eight)
            s = Mul (n, n)  v = ReduceMean <keepdims = 1> (s, last)  e = Add (v, epsilon)  r = Sqrt (e)  t = Div (n, r)
            q = Mul (t, t)  f = ReduceMean <keepdims = 1> (q, last)  h = Max (f, epsilon)  k = Sqrt (h)  y = Div (t, k)
        }""", "cpu", "1 of 2 RMS norms (no rule takes this form)",
    ),
    "a Gelu that the provider lacks": (
        """graph (float[2, 8] x) => (float[2, 8] y) {
            d = Div (x, sqrt_two)  e = Erf (d)  a = Add (e, one)  m = Mul (x, a)  y = Mul (m, half)
        }""", "migraphx", "1 of 1 Gelu (migraphx has no kernel",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAY.values(), ids=STAY)
def test_what_stays_is_counted(case: tuple[str, str, str]) -> None:
    text, target, words = case
    report = optimized(text, target)
    sentence = verdict(report, target)
    assert sentence.startswith("In standard operators stay ")
    assert words in sentence
    assert "Everything" not in sentence


CLAMPED = """q{1} = Mul ({0}, {0})  v{1} = ReduceMean <keepdims = 1> (q{1}, last)  e{1} = Max (v{1}, epsilon)
    r{1} = Sqrt (e{1})  {1} = Div ({0}, r{1})"""
WHOLE = {
    "RMSNormalization": "b = SimplifiedLayerNormalization (x, eight)",
    "with a skip": "b, i, d, o = com.microsoft.SkipSimplifiedLayerNormalization (x, u, eight)",
}


def of_norms(line: str, clamped: int) -> ComponentReport:
    """The report on a norm that is one operator, and as many in parts behind it."""
    lines = [line, *(CLAMPED.format(f"{'b' * number}", f"{'b' * (number + 1)}") for number in range(1, clamped + 1))]
    end = f"y = Identity ({'b' * (clamped + 1)})"
    body = "  ".join([*lines, end])
    return optimized(f"graph (float[2, 3, 8] x, float[2, 3, 8] u) => (float[2, 3, 8] y) {{ {body} }}", "cuda")


@pytest.mark.parametrize("line", WHOLE.values(), ids=WHOLE)
def test_what_is_one_operator_is_of_the_number(line: str) -> None:
    report = of_norms(line, 2)
    assert [(row.kind, row.left, row.of) for row in report.remaining] == [("RMS norm", 2, 3)]


def test_components_are_counted_together() -> None:
    whole = OptimizeReport("in", "out", "cuda", False)
    for name, clamped in (("unet", 1), ("vae_decoder", 2), ("vae_encoder", 1)):
        whole.components[name] = of_norms(WHOLE["RMSNormalization"], clamped)
    assert conclusion(whole).startswith("In standard operators stay 4 of 7 RMS norms (")


@pytest.mark.parametrize(
    ("axes", "kind"),
    [([-1], "layer norm"), ([2], "layer norm"), ([1], "norm over inner axes"), ([-2], "norm over inner axes")],
)
def test_a_norm_over_the_last_axis_is_a_layer_norm_however_that_is_called(axes: list[int], kind: str) -> None:
    body = """m = ReduceMean <keepdims = 1> (x, axes)  c = Sub (x, m)  s = Mul (c, c)
        v = ReduceMean <keepdims = 1> (s, axes)  e = Max (v, epsilon)  r = Sqrt (e)  y = Div (c, r)"""
    values = {"epsilon": VALUES["epsilon"], "axes": np.array(axes)}
    editor = edit(f"graph (float[2, 8, 3] x) => (float[2, 8, 3] y) {{ {body} }}", values)
    assert [found for found, _ in find_decomposed(editor)] == [kind]


NONE = {
    "a fused attention": (QKV.format(ATTENTION.format("", "c")), "cpu"),
    "a classifier": (
        "graph (float[2, 3, 8] x) => (float[2, 3, 1] y) { m = MatMul (x, w)  y = Softmax <axis = -1> (m) }", "cpu",
    ),
    "attention pooling": (
        """graph (float[2, 3, 8] x) => (float[2, 1, 8] y) {
            m = MatMul (x, w)  p = Softmax <axis = 1> (m)  t = Transpose <perm = [0, 2, 1]> (p)  y = MatMul (t, x)
        }""", "cpu",
    ),
    "a softmax over another axis": (QKV.format(ATTENTION.format("", "c").replace("-1", "2")), "cpu"),
    "an instance norm": (
        "graph (float[2, 4, 3, 5] x) => (float[2, 4, 3, 5] y) { y = InstanceNormalization (x, ones, zeros) }", "cuda",
    ),
    "an instance norm of a volume": (
        "graph (float[2, 4, 3, 5, 2] x) => (float[2, 4, 3, 5, 2] y) { y = InstanceNormalization (x, ones, zeros) }",
        "rocm",
    ),
    "a mean": ("graph (float[2, 3, 8] x) => (float[2, 1, 8] y) { y = ReduceMean <keepdims = 1> (x, axis) }", "cpu"),
    "a standard deviation": (
        """graph (float[2, 3, 8] x) => (float[2, 3, 1] y) {
            m = ReduceMean <keepdims = 1> (x, last)  c = Sub (x, m)  s = Mul (c, c)
            v = ReduceMean <keepdims = 1> (s, last)  e = Add (v, epsilon)  y = Sqrt (e)
        }""", "cpu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NONE.values(), ids=NONE)
def test_nothing_is_missed_where_nothing_is_to_fuse(case: tuple[str, str]) -> None:
    text, target = case
    report = optimized(text, target)
    assert (report.misses, report.remaining) == ([], [])
    assert verdict(report, target) == "Everything that should fuse did."


def test_the_keys_of_an_attention_are_no_image() -> None:
    text, _, _ = STAY["an attention of clipped scores"]
    by_row = text.replace("float[2, 4, 7, 8] k", "float[2, 7, 4, 8] k")
    keys = "r = Relu (k)  t = Transpose <perm = [0, 2, 3, 1]> (r)"
    report = optimized(by_row.replace("t = Transpose <perm = [0, 1, 3, 2]> (k)", keys), "cuda")
    assert [row.kind for row in report.remaining] == ["attention"]


@pytest.mark.parametrize(
    ("body", "target", "count"),
    [
        ("t = Transpose <perm = [0, 2, 3, 1]> (x)  s = Add (t, t)  y = Transpose <perm = [0, 3, 1, 2]> (s)", "cpu", 1),
        ("t = Transpose <perm = [0, 2, 3, 1]> (x)  s = Softmax (t)  y = Transpose <perm = [0, 3, 1, 2]> (s)", "cpu", 0),
        ("r = Relu (x)  t = Transpose <perm = [0, 2, 3, 1]> (r)  y = Softmax (t)", "cuda", 1),
        ("r = Relu (x)  t = Transpose <perm = [0, 2, 3, 1]> (r)  y = Softmax (t)", "cpu", 0),
        ("t = Transpose <perm = [0, 2, 3, 1]> (x)  y = Softmax (t)", "cuda", 0),
        ("r = Relu (x)  t = Transpose <perm = [0, 2, 3, 1]> (r)  y = Cast <to = 1> (t)", "cuda", 0),
    ],
)
def test_needless_transposes(body: str, target: str, count: int) -> None:
    editor = edit(f"graph (float[2, 3, 4, 5] x) => (float[a, b, c, d] y) {{ {body} }}")
    assert len(needless_transposes(editor, load_target(target))) == count


PLACES_OF: dict[str, tuple[str, dict[str, Outcome], str]] = {
    "nothing said": ("attention", {}, ""),
    "a rule of another kind": ("attention", {"gelu": Outcome("gelu", declined={"too wide": 3})}, ""),
    "a name of no rule": ("attention", {"nothing": Outcome("nothing", declined={"too wide": 3})}, ""),
    "what the target declined for a rule that may leave its places": (
        "attention", {"packed_attention": Outcome("p", declined={"too wide": 3})}, "",
    ),
    "what the target declined for a lowering": (
        "Gelu", {"gelu_to_standard": Outcome("g", declined={"too wide": 3})}, "too wide",
    ),
    "what the target declined": (
        "attention", {"multi_head_attention": Outcome("m", declined={"too wide": 3, "a mask": 5, "odd": 4})},
        "a mask; odd",
    ),
    "misses and no others": (
        "attention",
        {"multi_head_attention": Outcome("m", left=[
            Unfused("m", "a", "other", 1, 1, applicable=True, kind="o"),
            Unfused("m", "b", "missed", 1, 1, applicable=True, miss=True, kind="k"),
            Unfused("m", "c", "other", 1, 1, applicable=True, kind="o"),
        ])},
        "missed",
    ),
    "a disabled one by its option, miss or not": (
        "attention",
        {
            "attention_to_standard": Outcome("a", left=[
                Unfused("a", name, DISABLED, 1, 1, applicable=False, kind=DISABLED) for name in ("a", "b")
            ]),
            "multi_head_attention": Outcome("m", declined={"too wide": 1}),
        },
        "--disable attention_to_standard; too wide",
    ),
    "two rules of one kind together": (
        "attention",
        {
            "attention_to_standard": Outcome("s", declined={"both": 2, "first": 3}),
            "multi_head_attention": Outcome("m", declined={"both": 2}),
        },
        "both; first",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "outcomes", "words"), PLACES_OF.values(), ids=PLACES_OF)
def test_reasons_are_those_of_the_kind_s_rules_most_frequent_first(
    kind: str, outcomes: dict[str, Outcome], words: str
) -> None:
    assert _reason(kind, load_target("rocm"), outcomes) == words


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("group norm", "GroupNorm"),
        ("RMS norm", "SimplifiedLayerNormalization"),
        ("Gelu", "Gelu"),
        ("attention", "MultiHeadAttention"),
        ("layer norm", ""),
    ],
)
def test_a_kernel_that_a_kind_needs_is_named_where_it_lacks(kind: str, operator: str) -> None:
    lacking = load_target("rocm").without(f"com.microsoft.{operator}")
    said = Outcome("multi_head_attention", declined={"a mask": 1})
    assert _reason(kind, lacking, {said.name: said}) == (f"rocm has no kernel for {operator}" if operator else "")


TO_LAST, TO_FIRST = "Transpose <perm = [0, 2, 3, 1]>", "Transpose <perm = [0, 3, 1, 2]>"
LAYOUTS = {
    "inside": (f"r = Relu (x)  t = {TO_LAST} (r)  y = Softmax (t)", True),
    "back inside": (f"r = Relu (x)  t = {TO_FIRST} (r)  y = Softmax (t)", True),
    "another order": ("r = Relu (x)  t = Transpose <perm = [0, 2, 1, 3]> (r)  y = Softmax (t)", False),
    "behind an input that is cast": (f"r = Cast <to = 1> (x)  i = Identity (r)  t = {TO_LAST} (i)  y = Softmax (t)",
                                     False),
    "behind a result that is cast": (f"a = Relu (x)  r = Cast <to = 1> (a)  t = {TO_LAST} (r)  y = Softmax (t)", True),
    "before an output through both": (f"r = Relu (x)  t = {TO_LAST} (r)  c = Cast <to = 1> (t)  y = Identity (c)",
                                      False),
    "an output and a reader": (f"r = Relu (x)  y = {TO_LAST} (r)  z = Softmax (y)", False),
    "cast for two readers": (f"r = Relu (x)  t = {TO_LAST} (r)  c = Cast <to = 1> (t)  y = Softmax (c)  z = Relu (t)",
                             True),
    "a product's operand alone": (f"r = Relu (x)  t = {TO_LAST} (r)  y = MatMul (r, t)", False),
    "a product's operand and more": (f"r = Relu (x)  t = {TO_LAST} (r)  y = MatMul (r, t)  z = Softmax (t)", True),
}  # fmt: skip


@pytest.mark.parametrize(("body", "counts"), LAYOUTS.values(), ids=LAYOUTS)
def test_images_change_their_layout_inside_of_a_graph(body: str, counts: bool) -> None:
    editor = edit(f"graph (float[2, 3, 4, 5] x) => (float[a, b, c, d] y) {{ {body} }}")
    (node,) = (node for node in editor.graph.nodes if node.op == "Transpose")
    assert _is_inner(editor, node) == counts


BETWEEN = {
    "nothing": (f"t = {TO_LAST} (x)  y = {TO_FIRST} (t)", True),
    "the same again": (f"t = {TO_LAST} (x)  y = {TO_LAST} (t)", False),
    "many that know no layout": (
        f"t = {TO_FIRST} (x)  a = Relu (t)  b = Mul (a, a)  c = Cast <to = 1> (b)  y = {TO_LAST} (c)", True,
    ),
    "on one of two ways": (
        f"t = {TO_FIRST} (x)  a = Softmax (t)  b = Relu (t)  c = Mul (b, b)  z = Neg (a)  y = {TO_LAST} (c)", True,
    ),
    "a product": (f"t = {TO_FIRST} (x)  a = MatMul (t, t)  y = {TO_LAST} (a)", False),
    "another domain's": (f"t = {TO_FIRST} (x)  a = com.microsoft.Gelu (t)  y = {TO_LAST} (a)", False),
    "more than sixty": (
        f"t = {TO_FIRST} (x)  a0 = Relu (t)  "
        + "  ".join(f"a{n + 1} = Relu (a{n})" for n in range(64)) + f"  y = {TO_LAST} (a64)", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "counts"), BETWEEN.values(), ids=BETWEEN)
def test_a_transpose_meets_its_inverse(body: str, counts: bool) -> None:
    editor = edit(f"graph (float[2, 3, 4, 5] x) => (float[a, b, c, d] y) {{ {body} }}")
    node = next(node for node in editor.graph.nodes if node.op == "Transpose")
    assert _meets_inverse(node) == counts
