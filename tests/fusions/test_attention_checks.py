"""What no attention may be taken for: each condition of the fusions, of the one form and of the kernels alone."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit, load, operators, parse, run, to_proto

from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT
from sdort.graph.model import Model
from sdort.graph.symbolic import symbol
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes import attention_form as attention_pass
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.apply import Outcome, apply_stage
from sdort.rewrite.causal_masks import is_causal
from sdort.rewrite.fusion import load_fusions
from sdort.rewrite.masks import Extremes, extremes

# --- what is causal ---

CAUSAL = {
    "lower": ("c = LessOrEqual (i, j)", True),
    "strictly lower": ("c = Less (i, j)", False),
    "upper": ("c = GreaterOrEqual (i, j)", False),
    "all open": ("d = Sub (i, i)  c = LessOrEqual (d, j)", False),
    "a window of 100 rows": (
        "near = Sub (j, wide)  a = LessOrEqual (i, j)  b = GreaterOrEqual (i, near)  c = And (a, b)",
        False,
    ),
    "two rows ahead": ("ahead = Add (j, two)  c = LessOrEqual (i, ahead)", False),
}
_PLACES = """
    n = Shape <start = 1, end = 2> (x)
    length = Squeeze (n, axis)
    i = Range (zero, length, one)
    j = Unsqueeze (i, last)
"""
_NUMBERS = """<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 wide = {100}, int64[1] axis = {0},
               int64[1] last = {1}, float open = {0.0}, float closed = {-10000.0}, float ajar = {-9.0}>"""


@pytest.mark.parametrize("rows", ["S", "150"])
@pytest.mark.parametrize(("lines", "causal"), CAUSAL.values(), ids=CAUSAL)
def test_a_mask_is_causal_at_every_size_or_not_at_all(lines: str, causal: bool, rows: str) -> None:
    text = f"g (float[B, {rows}] x) => (bool[p, q] c) {_NUMBERS} {{ {_PLACES} {lines} }}"
    editor = edit(text)
    size = symbol("S") if rows == "S" else int(rows)
    assert is_causal(editor, editor.graph.outputs[0], size) is causal


@pytest.mark.parametrize(("low", "causal"), [("closed", True), ("ajar", False), ("open", False)])
def test_what_is_not_closed_is_not_causal(low: str, causal: bool) -> None:
    lines = f"{_PLACES} c = LessOrEqual (i, j)  m = Where (c, open, {low})"
    text = f"g (float[B, S] x) => (float[p, q] m) {_NUMBERS} {{ {lines} }}"
    editor = edit(text)
    assert is_causal(editor, editor.graph.outputs[0], symbol("S")) is causal


def test_a_mask_that_follows_another_size_is_not_causal() -> None:
    text = f"""g (float[B, S] x, float[B, T] z) => (bool[p, q] c) {_NUMBERS} {{ {_PLACES}
        m = Shape <start = 1, end = 2> (z)
        a = LessOrEqual (i, j)
        b = Less (i, m)
        c = And (a, b)
    }}"""
    editor = edit(text)
    assert not is_causal(editor, editor.graph.outputs[0], symbol("S"))


def test_a_mask_that_depends_on_data_is_not_causal() -> None:
    editor = edit("g (bool[S, S] x) => (bool[S, S] y) { y = Not (x) }")
    assert not is_causal(editor, editor.graph.outputs[0], symbol("S"))
    assert not is_causal(editor, editor.graph.inputs[0], symbol("S"))


@pytest.mark.parametrize(
    ("values", "rows", "causal"),
    [
        (np.tril(np.ones((5, 5), bool)), 5, True), (np.tril(np.ones((5, 5), bool)), symbol("S"), True),
        (np.tril(np.ones((5, 5), bool)), 6, False), (np.ones((1, 1), bool), symbol("S"), False),
        (np.ones((1, 1), bool), 1, True), (np.tril(np.ones((5, 6), bool)), 5, False), (np.zeros(5), 5, False),
        (np.where(np.tril(np.ones((2, 3, 4, 4))), 0, -np.inf), 4, True),
    ],
)  # fmt: skip
def test_constant_masks(values: Any, rows: Any, causal: bool) -> None:
    editor = edit("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    assert is_causal(editor, editor.constant(values), rows) is causal


# --- what is raised ---

TEXT = """
g (float[2, {N}, S, {D}] q, float[2, {N}, L, {D}] k, float[2, {N}, L, {D}] v{more}) => (float[2, {N}, S, {D}] y)
<float scale = {{{scale}}}, float low = {{{low}}}> {{
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    score = MatMul (q, kt)
    scaled = Mul (score, scale)
    {masking}
    p = Softmax <axis = -1> ({last})
    y = MatMul (p, v)
}}"""


def raised(**settings: Any) -> tuple[dict[str, int], Outcome, Model]:
    given = {"N": 3, "D": 4, "scale": 0.5, "low": -1e38, "more": "", "masking": "", "last": "scaled"} | settings
    editor = edit(TEXT.format(**given))
    fusions = [f for f in load_fusions().values() if f.name in ("attention", "attention_masked", "transpose_last_two")]
    outcomes = {o.name: o for o in apply_stage(fusions, editor, explain=True)}
    masked = "attention_masked" if given["masking"] else "attention"
    return operators(editor), outcomes[masked], editor.model


_ADDED = {"masking": "sum = Add (scaled, m)", "last": "sum"}
_FILLED = {"masking": "sum = Where (m, scaled, low)", "last": "sum", "more": ", bool[S, L] m"}
RAISED = {
    "plain": {}, "a scale of its own": {"scale": 0.55}, "filled": _FILLED,
    "mask": {**_ADDED, "more": ", float[S, L] m"}, "one row for all": {**_ADDED, "more": ", float[2, 1, 1, L] m"},
}  # fmt: skip
LEFT = {
    "size not fixed": ({"D": "D"}, "the head size is not fixed (D, D)", 1),
    "heads not fixed": ({"N": "N"}, "the number of heads is not fixed (N)", 0),
    "negative scale": ({"scale": -0.5}, "Attention is defined for positive scales (-0.5)", 0),
    "no scale": ({"scale": 0.0}, "Attention is defined for positive scales (0.0)", 0),
    "one key for all": (
        {**_ADDED, "more": ", float[S, 1] m"}, "one element of the mask is for all keys alike ([S, 1])", 0,
    ),
    "filled with little": (
        {**_FILLED, "low": -10000.0}, "a row of such scores alone would not be a row of equal ones (-10000.0)", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("settings", RAISED.values(), ids=RAISED)
def test_what_is_an_attention_becomes_one(settings: dict[str, Any]) -> None:
    found, _, model = raised(**settings)
    assert (found.get("Attention"), found.get("Softmax")) == (1, None)
    (node,) = (n for n in model.graph.nodes if n.op == "Attention")
    wanted = settings.get("scale")
    assert node.attrs.get("scale") == (None if wanted is None else pytest.approx(wanted))


@pytest.mark.parametrize(("settings", "reason", "misses"), LEFT.values(), ids=LEFT)
def test_what_is_no_attention_is_left(settings: dict[str, Any], reason: str, misses: int) -> None:
    found, outcome, _ = raised(**settings)
    assert (found.get("Attention"), found["Softmax"]) == (None, 1)
    (refusal,) = outcome.left
    assert refusal.reason == reason
    assert len(outcome.misses) == misses


# --- the one form ---

ATTENTION = """
g (float[2, 5, {C}] q, float[2, 7, {K}] k, float[2, 7, {C}] v{more}) => (float[2, 5, {C}] y) {{
    y = Attention <{attrs}> ({inputs})
}}"""
REFUSED = {
    "width": ({"C": 13, "K": 13}, "4 heads do not divide a width of 13"),
    "heads": ({"attrs": "q_num_heads = 4, kv_num_heads = 3"}, "4 query heads cannot share 3 key heads"),
    "sizes": ({"K": 8}, "query heads of 3 do not fit key heads of 2"),
    "no heads": ({"attrs": "kv_num_heads = 4"}, "the inputs and attributes of this Attention do not fit together"),
    "scale": ({"attrs": "q_num_heads = 4, kv_num_heads = 4, scale = -0.5"}, "its scale has to be positive, it is -0.5"),
    "half a past": (
        {"more": ", float[2, 4, 3, 3] p", "inputs": 'q, k, v, "", p'}, "past_key and past_value have to come together",
    ),
    "long mask": ({"more": ", float[5, 9] m", "inputs": "q, k, v, m"}, "its mask is for 9 keys, there are 7"),
    "mask of one key": (
        {"more": ", float[5, 1] m", "inputs": "q, k, v, m"},
        "whether its mask of one key ([5, 1]) stands for all 7 is not defined",
    ),
    "mask of five axes": ({"more": ", float[1, 2, 4, 5, 7] m", "inputs": "q, k, v, m"}, "its mask is [1, 2, 4, 5, 7]"),
}  # fmt: skip


def attention(**settings: Any) -> str:
    given = {"C": 12, "K": 12, "more": "", "inputs": "q, k, v", "attrs": "q_num_heads = 4, kv_num_heads = 4"} | settings
    return ATTENTION.format(**given)


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize(("settings", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_itself_is_refused_in_words(settings: dict[str, Any], reason: str, target: str) -> None:
    with pytest.raises(BadModelError) as error:
        optimize_model(load(attention(**settings)), OptimizeOptions(load_target(target)))
    assert reason in str(error.value)


@pytest.mark.parametrize("what", ["left_window_size", "input nonpad_kv_seqlen"])
def test_what_later_opsets_add_is_not_passed_over(what: str) -> None:
    editor = edit(attention(more=", int64[2] n"))
    (node,) = editor.graph.nodes
    if what == "left_window_size":
        node.attrs |= {"left_window_size": 2, "right_window_size": -1}
    else:
        node.inputs.extend([*(gs.Variable.empty() for _ in range(3)), editor.graph.inputs[3]])
    with pytest.raises(BadModelError, match=f"sdort does not know its {what}"):
        attention_pass.run(editor)


def test_windows_without_an_end_are_none() -> None:
    editor = edit(attention())
    editor.graph.nodes[0].attrs |= {"left_window_size": -1, "right_window_size": -1}
    attention_pass.run(editor)
    (node,) = editor.graph.nodes
    assert node.attrs == {"q_num_heads": 4, "kv_num_heads": 4}


def optimized(
    text: str, target: str, fp16: bool = False, weights: Any = None
) -> tuple[onnx.ModelProto, ComponentReport]:
    model = load(text, weights)
    report = optimize_model(model, OptimizeOptions(load_target(target), fp16))
    return to_proto(model), report


WITH_KERNEL = {name for name in PROVIDER_NAMES if f"{MICROSOFT}.MultiHeadAttention" in load_target(name).conditions}
MASKED = {"rocm", "cuda", "cpu", "dml"}
FUSED = {
    "plain": ({}, WITH_KERNEL),
    "mask": ({"more": ", float[1, 1, 5, 7] m", "inputs": "q, k, v, m"}, MASKED),
    "softcap": ({"attrs": "q_num_heads = 4, kv_num_heads = 4, softcap = 2.0"}, set()),
    "softmax in float64": ({"attrs": "q_num_heads = 4, kv_num_heads = 4, softmax_precision = 11"}, set()),
    "softmax in float32": ({"attrs": "q_num_heads = 4, kv_num_heads = 4, softmax_precision = 1"}, WITH_KERNEL),
    "not square": ({"attrs": "q_num_heads = 4, kv_num_heads = 4, is_causal = 1"}, MASKED),
}


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize(("settings", "targets"), FUSED.values(), ids=FUSED)
def test_kernels_get_what_they_take(settings: dict[str, Any], targets: set[str], target: str) -> None:
    proto, report = optimized(attention(**settings), target)
    nodes = [node for node in proto.graph.node if node.op_type == "MultiHeadAttention"]
    assert len(nodes) == (target in targets)
    assert report.misses == []
    assert all(attribute.name != "unidirectional" for node in nodes for attribute in node.attribute)
    assert bool(report.declined) is (target not in targets)


@pytest.mark.parametrize("own", [False, True], ids=["converted afterwards", "fp16 itself"])
@pytest.mark.parametrize(
    ("low", "half", "fused"),
    [(-65504.0, True, True), (-np.inf, True, True), (-65520.0, True, False), (-65520.0, False, True)],
)
def test_a_kernel_gets_no_mask_that_fp16_cannot_hold(low: float, half: bool, fused: bool, own: bool) -> None:
    """Neither of a model that is converted to fp16 afterwards, nor of one that is fp16 itself and makes it in fp32."""
    mask = "m = Where (c, open, low)"
    text = attention(more=", bool[1, 1, 5, 7] c", inputs="q, k, v, m")
    if own and half:
        mask, text, half = (
            "wide = Where (c, open, low)  m = Cast <to = 10> (wide)",
            text.replace("float[", "float16["),
            False,
        )
    text = text.replace("{", f"{{ {mask} ", 1)
    editor = edit(text, {"open": np.zeros((), np.float32), "low": np.array(low, np.float32)})
    editor.half = half
    (outcome,) = apply_stage([load_fusions()["multi_head_attention"]], editor)
    assert (outcome.matched, outcome.misses) == (int(fused), [])
    assert bool(outcome.declined) is not fused


@pytest.mark.parametrize("target", PROVIDER_NAMES)
def test_doubles_have_no_kernel(target: str) -> None:
    proto, _ = optimized(attention().replace("float[", "double["), target)
    assert {node.op_type for node in proto.graph.node} >= {"Softmax"}


# --- masks ---

EXTREMES = {
    "an input": ("y = Identity (m)", Extremes(infinite=True)),
    "sums of an input": ("a = Add (m, small)  y = Unsqueeze (a, axis)", Extremes(infinite=True)),
    "a scaled input": ("a = Sub (one, m)  y = Mul (a, small)", Extremes()),
    "booleans": ("c = Cast <to = 9> (m)  f = Cast <to = 1> (c)  a = Sub (one, f)  y = Mul (a, small)", Extremes()),
    "a choice": ("c = Cast <to = 9> (m)  y = Where (c, one, small)", Extremes()),
    "a choice of infinity": ("c = Cast <to = 9> (m)  y = Where (c, one, infinite)", Extremes(infinite=True)),
    "a choice of much": ("c = Cast <to = 9> (m)  y = Where (c, one, much)", Extremes(beyond_half=True)),
    "twice much": ("c = Cast <to = 9> (m)  a = Where (c, one, much)  y = Add (a, a)", Extremes(True, True)),
    "a logarithm": ("y = Log (m)", Extremes(infinite=True)),
    "what fp16 holds": ("c = Cast <to = 9> (m)  y = Where (c, one, most)", Extremes()),
}


@pytest.mark.parametrize(("lines", "wanted"), EXTREMES.values(), ids=EXTREMES)
def test_what_a_mask_may_hold(lines: str, wanted: Extremes) -> None:
    weights = {"infinite": np.float32(-np.inf), "small": np.float32(-1e4), "much": np.float32(-3.4e38)}
    weights |= {"one": np.float32(1), "most": np.float32(-65504)}
    constants = {name: np.array(value) for name, value in weights.items() if re.search(rf"\b{name}\b", lines)}
    text = f"g (float[5, 7] m) => (float[p, q] y) <int64[1] axis = {{0}}> {{ {lines} }}"
    editor = edit(text, constants)
    assert extremes(editor, editor.graph.outputs[0]) == wanted


MASKS = {
    "finite": ("c = Cast <to = 9> (m)  mask = Where (c, open, closed)", -1e4, False),
    "infinite": ("c = Cast <to = 9> (m)  mask = Where (c, open, closed)", -np.inf, True),
    "beyond fp16": ("c = Cast <to = 9> (m)  mask = Where (c, open, closed)", -3.4e38, False),
}


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize(("lines", "low", "guarded"), MASKS.values(), ids=MASKS)
def test_rows_without_an_open_key(lines: str, low: float, guarded: bool, target: str, fp16: bool) -> None:
    """Infinities close them, and their result is 0; of equal finite numbers it is the mean of all values."""
    text = f"""g (float[2, 5, 12] q, float[2, 7, 12] k, float[2, 7, 12] v, int64[1, 1, 5, 7] m) => (float[2, 5, 12] y)
    <float open = {{0.0}}> {{ {lines}  y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v, mask) }}"""
    proto, _ = optimized(text, target, fp16, {"closed": np.array(low, np.float32)})
    counted = [node.input[0] for node in proto.graph.node if node.op_type == "ReduceMax"]
    assert len(counted) == guarded
    # CUDA's ReduceMax has no minus infinity to begin with: its result of such a row is a finite number.
    integers = {
        node.output[0]
        for node in proto.graph.node
        if node.op_type == "Cast" and node.attribute[0].i == onnx.TensorProto.INT32
    }
    assert {*counted} <= integers
    rng = np.random.default_rng(5)
    feeds: dict[str, Any] = {
        n: rng.standard_normal((2, r, 12)).astype(np.float32) for n, r in (("q", 5), ("k", 7), ("v", 7))
    }
    feeds["m"] = np.ones((1, 1, 5, 7), np.int64)
    feeds["m"][..., 2, :] = 0
    feeds["m"][..., 3, 4:] = 0
    (found,) = run(proto, feeds)
    assert np.isfinite(found).all()
    mean = np.broadcast_to(feeds["v"].mean(1), (2, 12))
    if low < -1e30:
        np.testing.assert_allclose(found[:, 2], 0 if guarded else mean, rtol=0, atol=2e-3 if fp16 else 1e-6)
    np.testing.assert_allclose(found[:, 3], _shorter(feeds, 4)[:, 3], rtol=0, atol=5e-3 if fp16 else 1e-5)


@pytest.mark.parametrize("target", PROVIDER_NAMES)
def test_a_row_of_low_numbers_and_infinities_has_an_open_key_in_fp16_too(target: str) -> None:
    text = """
    g (float[2, 5, 12] q, float[2, 7, 12] k, float[2, 7, 12] v, bool[1, 1, 5, 7] a, bool[7] b) => (float[2, 5, 12] y)
    <float open = {0.0}> {
        c = Where (a, open, much)
        mask = Where (b, c, infinite)
        y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v, mask)
    }"""
    weights = {"much": np.array(-3.4e38, np.float32), "infinite": np.array(-np.inf, np.float32)}
    proto, _ = optimized(text, target, True, weights)
    made = {name: node for node in proto.graph.node for name in node.output}
    (asked,) = (node for node in proto.graph.node if node.op_type == "Greater")
    # ONNX Runtime's CPU provider would leave out a cast there and back.
    assert made[asked.input[0]].op_type == "Where"
    rng = np.random.default_rng(5)
    feeds: dict[str, Any] = {
        n: rng.standard_normal((2, r, 12)).astype(np.float32) for n, r in (("q", 5), ("k", 7), ("v", 7))
    }
    feeds |= {"a": np.zeros((1, 1, 5, 7), bool), "b": np.arange(7) < 4}
    wanted = np.broadcast_to(feeds["v"][:, :4].mean(1, keepdims=True), (2, 5, 12))
    np.testing.assert_allclose(run(proto, feeds)[0], wanted, rtol=0, atol=2e-3)


def test_outputs_and_inputs_that_are_left_out_are_nothing_to_each_other() -> None:
    """To fp16: a Resize without a region comes before a sum of which no statistics are wanted."""
    text = """g (float[1, 4, 2, 2] x, float[1, 4, 16] skip) => (float[1, 4, 16] y, float[1, 4, 16] s)
    <float[4] scales = {1.0, 1.0, 2.0, 2.0}, int64[3] flat = {1, 4, 16}> {
        large = Resize (x, "", scales)
        rows = Reshape (large, flat)
        s = Add (rows, skip)
        y = LayerNormalization (s, gamma, beta)
    }"""
    ones = np.ones(16, np.float32)
    proto, _ = optimized(text, "cuda", True, {"gamma": ones, "beta": ones})
    (node,) = (n for n in proto.graph.node if n.op_type == "SkipLayerNormalization")
    assert [bool(name) for name in node.output] == [True, False, False, True]


def _shorter(feeds: dict[str, Any], keys: int) -> Any:
    """The same with the first keys only."""
    text = "g (float[2, 5, 12] q, float[2, 4, 12] k, float[2, 4, 12] v) => (float[2, 5, 12] y) {"
    text += " y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v) }"
    return run(parse(text), {"q": feeds["q"], "k": feeds["k"][:, :keys], "v": feeds["v"][:, :keys]})[0]


def test_what_a_product_says_of_sizes_is_learned() -> None:
    editor = edit(
        "g (float[B, A] x, float[C, D] z, int64[2] t) => (float[a, b] y) { r = Reshape (x, t)  y = MatMul (r, z) }"
    )
    (reshaped,) = (n.outputs[0] for n in editor.graph.nodes if n.op == "Reshape")
    assert editor.shape(reshaped)[1] == symbol("C")  # type: ignore[index]
