"""Graphs that are in half precision before they come here: they fuse as in fp32, load, and give what they gave."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support import half_exports, models
from support.exports import Case
from support.hardware import provider_of
from support.optimized_models import counts
from support.parity import compare
from support.small_graphs import Array, Described, edit, feeds_for, load, operators, parse, run

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.graph.weights import Weight
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.passes import narrow, types
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.apply import apply_fusion
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions
from sdort.workload.samples import Sample

Exported = Callable[[Case], Path]
HALF = np.dtype(np.float16)
EXPORTS = {"sd1": "ts17", "vae_decoder": "ts17", "openclip": "dy18"}
"""TorchScript spells the Gelu out, dynamo at 18 the attention and the norms too."""


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A family's model in half precision, exported once."""
    folder = tmp_path_factory.mktemp("half")

    def export(family: str) -> Path:
        path = folder / f"{family}.onnx"
        return path if path.is_file() else half_exports.export_half(family, EXPORTS[family], path)

    return export


def optimized(path: Path, target: str, fp16: bool = False) -> tuple[Model, ComponentReport]:
    component = {"sd1": "unet", "openclip": "text_encoder", "clip": "text_encoder"}.get(path.stem, path.stem)
    model = load_model(path, component)
    return model, optimize_model(model, OptimizeOptions(load_target(target), fp16))


def refuses(path: Path) -> str:
    """Why ONNX Runtime does not take the file as it is; empty if all that it lacks are kernels."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base
        return "" if "NOT_IMPLEMENTED" in str(error) else str(error)
    return ""


def check_parity(original: Path, target: str, model: Model, folder: Path) -> None:
    save_model(model, folder / "model.onnx")
    assert not refuses(folder / "model.onnx")
    text = model.component.startswith("text")
    samples = [Sample(1, 16, 24, 77 if text else 7), Sample(2, 24, 8, 13 if text else 5)]
    parity = compare(
        original, folder / "model.onnx", component=model.component, samples=samples, provider=provider_of(target)
    )
    assert parity.dtype == "float16"
    parity.check()


# --- exported in half precision ---

COMBINATIONS = [
    ("sd1", "rocm", False),
    ("sd1", "migraphx", True),
    *(
        (family, target, fp16)
        for family in ("vae_decoder", "openclip")
        for target in PROVIDER_NAMES
        for fp16 in (False, True)
    ),
]


@pytest.mark.parametrize(("family", "target", "fp16"), COMBINATIONS)
def test_exports_in_half_precision(
    half: Callable[[str], Path], tmp_path: Path, family: str, target: str, fp16: bool
) -> None:
    model, report = optimized(half(family), target, fp16)
    assert report.misses == []
    norms = [n for n in model.graph.nodes if n.op in ("GroupNorm", "SkipGroupNorm")]
    assert bool(norms) == (family != "openclip" and load_target(target).channels_last)
    assert {t.dtype for n in norms for t in n.inputs[1:3]} <= {np.dtype(np.float32)}
    check_parity(half(family), target, model, tmp_path)


@pytest.mark.parametrize(
    ("family", "target"), [("sd1", "rocm"), *((f, t) for f in ("vae_decoder", "openclip") for t in ("rocm", "cpu"))]
)
def test_they_fuse_as_in_float32(half: Callable[[str], Path], exported: Exported, family: str, target: str) -> None:
    case = Case(family, EXPORTS[family], dynamic=EXPORTS[family].startswith("ts"))
    wanted = optimize_model(
        load_model(exported(case), models.build(family).component), OptimizeOptions(load_target(target), True)
    )
    assert counts(optimized(half(family), target)[1]) == counts(wanted)


# --- converted ---

DELICATE = ("Erf", "Softmax", "Pow", "ReduceMean", "Sqrt", "LayerNormalization", "InstanceNormalization")
CONVERSIONS: dict[str, tuple[half_exports.Convert, str, bool, Collection[str]]] = {
    "tool": (half_exports.convert_with_tool, "vae_decoder", True, ()),
    "tool, fp16 in and out": (half_exports.convert_with_tool, "clip", False, ()),
    "tool, delicate operators blocked": (half_exports.convert_with_tool, "clip", True, DELICATE),
    "converter, delicate operators blocked": (half_exports.convert_with_converter, "clip", True, DELICATE),
}


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_converted_graphs(exported: Exported, tmp_path: Path, name: str, target: str) -> None:
    convert, family, keep_io, block = CONVERSIONS[name]
    source = exported(Case(family, "ts17"))
    path = convert(source, tmp_path / f"{family}.onnx", keep_io, block)
    model, report = optimized(path, target)
    assert report.misses == []
    component = models.build(family).component
    wanted = optimize_model(load_model(source, component), OptimizeOptions(load_target(target), True))
    assert counts(report) == counts(wanted)
    check_parity(path, target, model, tmp_path)


# --- casts around single operators ---

UNWRAPPED = {
    "Softmax": "b = Softmax <axis = -1> (a)",
    "Erf": "b = Erf (a)",
    "Sigmoid": "b = Sigmoid (a)",
    "LayerNormalization": "b = LayerNormalization (a, g, g)",
    "Gelu": "b = Gelu (a)",
    "arithmetic": "b = Add (a, g)",
    "of two halves": "o = Cast <to = 1> (other)  b = Mul (a, o)",
    "a view": "b = Reshape (a, shape)",
    "a view and an operator": "v = Reshape (a, shape)  b = Erf (v)",
    "an operator and a view": "v = Sigmoid (a)  b = Transpose <perm = [1, 0]> (v)",
}
HEADER = """g (float16[B, 8] x, float16[B, 8] other) => (float16[n, m] y, float16[p, q] z)
<int64[2] shape = {-1, 4}, float[8] g = {1.0, 0.5, 2.0, -1.0, 0.25, 3.0, 1.5, -0.5}>"""


def narrowed(text: str) -> Editor:
    """The graph after the pass, and a check that it computes the same but for one rounding."""
    editor, proto = edit(text), parse(text)
    feeds = feeds_for(proto, {"B": 3})
    narrow.run(editor)
    types.check(editor, 23, "")
    for found, wanted in zip(run(editor.model, feeds), run(proto, feeds), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2**-10, atol=2**-14)
    return editor


@pytest.mark.parametrize("name", UNWRAPPED)
def test_what_needs_no_casts_loses_them(name: str) -> None:
    body = f"a = Cast <to = 1> (x)  {UNWRAPPED[name]}  y = Cast <to = 10> (b)  z = Neg (x)"
    editor = narrowed(f"{HEADER} {{ {body} }}")
    assert "Cast" not in operators(editor)
    assert {editor.dtype(n.outputs[0]) for n in editor.graph.nodes} == {HALF}


WRAPPED = {
    "a matrix product": "o = Cast <to = 1> (other)  t = Transpose (o)  b = MatMul (a, t)",
    "a sum": "b = ReduceSum <keepdims = 1> (a)",
    "a power": "b = Pow (a, two)",
    "sines": "b = Sin (a)",
    "two operators": "s = Sigmoid (a)  b = Mul (a, s)",
    "read in single too": "b = Sigmoid (a)  k = Mul (b, b)  w = Cast <to = 10> (k)",
    "a constant that half does not hold": "b = Mul (a, huge)",
    "a large constant, whose values nobody reads": "b = Add (a, weights)",
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_computes_in_single_stays(name: str) -> None:
    header = HEADER.replace("-0.5}>", "-0.5}, float two = {2.0}, float huge = {100000.0}>")
    end = "z = Neg (w)" if "w =" in WRAPPED[name] else "z = Neg (x)"
    body = f"a = Cast <to = 1> (x)  {WRAPPED[name]}  y = Cast <to = 10> (b)  {end}"
    weights: dict[str, Array | Weight] = {"weights": Described([3000, 8], np.float32)}
    editor = edit(f"{header} {{ {body} }}", weights if "weights" in body else None)
    before = operators(editor)
    narrow.run(editor)
    assert {k: v for k, v in operators(editor).items() if k != "Transpose"} == {
        k: v for k, v in before.items() if k != "Transpose"
    }


def test_what_was_single_before_is_not_made_half() -> None:
    text = "g (float[B, 8] x) => (float16[B, 8] y) { s = Sigmoid (x)  y = Cast <to = 10> (s) }"
    editor = narrowed(text)
    assert operators(editor) == {"Cast": 1, "Sigmoid": 1}
    assert editor.dtype(editor.graph.nodes[0].outputs[0]) == np.float32


def test_a_result_that_is_an_output_in_single_stays() -> None:
    text = """g (float16[B, 8] x) => (float[B, 8] s, float16[B, 8] y) {
        a = Cast <to = 1> (x)  s = Sigmoid (a)  y = Cast <to = 10> (s) }"""
    assert operators(narrowed(text)) == {"Cast": 2, "Sigmoid": 1}


def test_there_and_back_is_nothing() -> None:
    body = "a = Cast <to = 1> (x)  b = Cast <to = 10> (a)  y = Neg (b)  z = Neg (other)"
    assert operators(narrowed(f"{HEADER} {{ {body} }}")) == {"Neg": 2}


def test_back_and_there_rounds() -> None:
    text = "g (float[B, 8] x) => (float[B, 8] y) { a = Cast <to = 10> (x)  b = Cast <to = 1> (a)  y = Neg (b) }"
    assert operators(narrowed(text)) == {"Cast": 2, "Neg": 1}


# --- operators in other words, cast up and down within ---

_NORM = """
    mean = ReduceMean <keepdims = 1> (a, last)  d = Sub (a, mean)
    {square}  v = ReduceMean <keepdims = 1> (sq, last)
    e = Add (v, eps)  s = Sqrt (e)  n = Div (d, s)"""
CHAINS = {
    "a LayerNormalization in single": (
        "LayerNormalization",
        "a = Cast <to = 1> (x)" + _NORM.format(square="sq = Pow (d, two)") + "h = Cast <to = 10> (n)"
        "m = Mul (h, gamma)  y = Add (m, beta)",
    ),
    "a LayerNormalization whose square alone is": (
        "LayerNormalization",
        """mean = ReduceMean <keepdims = 1> (x, last)  d = Sub (x, mean)  w = Cast <to = 1> (d)  q = Pow (w, two)
        v = ReduceMean <keepdims = 1> (q, last)  e = Add (v, eps)  s = Sqrt (e)  h = Cast <to = 10> (s)
        n = Div (d, h)  m = Mul (n, gamma)  y = Add (m, beta)""",
    ),
    "a Gelu in single": (
        "Gelu",
        """a = Cast <to = 1> (x)  t = Mul (a, root)  f = Erf (t)  p = Add (f, one)  h = Cast <to = 10> (p)
        q = Mul (x, h)  y = Mul (q, half)""",
    ),
    "a Gelu in half": ("Gelu", "t = Mul (x, r16)  f = Erf (t)  p = Add (f, o16)  q = Mul (x, p)  y = Mul (q, half)"),
}
CHAIN_VALUES = {
    "gamma": np.linspace(0.5, 1.5, 8, dtype=np.float16),
    "beta": np.linspace(-1, 1, 8, dtype=np.float16),
    "half": np.array(0.5, np.float16),
    "r16": np.array(0.5**0.5, np.float16),
    "o16": np.array(1, np.float16),
}


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("name", CHAINS)
def test_chains_with_casts_are_one_operator(name: str, target: str) -> None:
    operator, body = CHAINS[name]
    constants = """<int64[1] last = {-1}, float two = {2.0}, float one = {1.0}, float eps = {0.00001},
    float root = {0.70710678}>"""
    values = {k: v for k, v in CHAIN_VALUES.items() if f"{k})" in body}
    text = f"g (float16[2, S, 8] x) => (float16[a0, a1, a2] y) {constants} {{ {body} }}"
    proto = parse(text, values, 18)
    feeds = feeds_for(proto, {"S": 5})
    model = load(text, values, 18)
    report = optimize_model(model, OptimizeOptions(load_target(target)))
    assert report.misses == []
    raised = {name: count for name, count in report.operators_raised.items() if name != "Identity"}
    assert raised == {operator: 1}
    (found,), (wanted,) = run(model, feeds), run(proto, feeds)
    assert found.dtype == HALF
    assert np.abs(found.astype(float) - wanted).max() <= 4e-3 * np.abs(wanted.astype(float)).max()


def test_what_was_rounded_before_stays_rounded() -> None:
    """Casts that round count for nothing inside a pattern only, not before it."""
    body = "t = Mul (x, root)  f = Erf (t)  p = Add (f, one)  q = Mul (x, p)  y = Mul (q, half)"
    text = f"""g (float[B, 8] z) => (float[n, m] y)
    <float root = {{0.70710678}}, float one = {{1.0}}, float half = {{0.5}}> {{
        h = Cast <to = 10> (z)  x = Cast <to = 1> (h)  {body} }}"""
    editor = edit(text)
    assert apply_fusion(load_fusions()["gelu_erf"], editor).matched == 1
    editor.finish()
    assert operators(editor) == {"Cast": 2, "Gelu": 1}
    feeds = feeds_for(parse(text), {"B": 3})
    np.testing.assert_allclose(run(editor.model, feeds)[0], run(parse(text), feeds)[0], rtol=1e-5, atol=1e-6)


def test_scores_that_are_cast_up_stay_in_single() -> None:
    """As diffusers' ``upcast_attention``: half does not hold these scores."""
    text = """g (float16[1, 2, 4, 8] q, float16[1, 2, 4, 8] k, float16[1, 2, 4, 8] v) => (float16[a, b, c, d] y)
    <float scale = {0.01}> {
        q32 = Cast <to = 1> (q)  k32 = Cast <to = 1> (k)  kt = Transpose <perm = [0, 1, 3, 2]> (k32)
        scores = MatMul (q32, kt)  logits = Mul (scores, scale)  p = Softmax <axis = -1> (logits)
        h = Cast <to = 10> (p)  y = MatMul (h, v) }"""
    feeds = {name: value * 200 for name, value in feeds_for(parse(text), {}).items()}
    editor = edit(text)
    narrow.run(editor)
    assert apply_fusion(load_fusions()["attention"], editor).matched == 1
    editor.finish()
    (attention,) = (n for n in editor.graph.nodes if n.op == "Attention")
    assert {editor.dtype(t) for t in attention.inputs} == {np.dtype(np.float32)}
    narrow.run(editor)
    assert editor.dtype(attention.outputs[0]) == np.float32
    types.check(editor, 23, "")
    (found,), (wanted,) = run(editor.model, feeds), run(parse(text), feeds)
    assert np.isfinite(found).all()
    assert np.abs(found.astype(float) - wanted).max() <= 2e-3 * np.abs(wanted.astype(float)).max()


@pytest.mark.parametrize("target", ["rocm", "cuda"])
def test_a_group_norm_that_no_kernel_takes_sums_in_single(target: str) -> None:
    """One channel a group, and squares whose sum half does not hold."""
    weights = {"g": np.ones(4, np.float16), "b": np.zeros(4, np.float16)}
    w = np.eye(4, dtype=np.float16).reshape(4, 4, 1, 1)
    text = """g (float16[1, 4, 32, 32] x) => (float16[n, c, h, w0] y) {
        c0 = Conv (x, w)  y = GroupNormalization <num_groups = 4> (c0, g, b) }"""
    model = load(text, {**weights, "w": w})
    assert optimize_model(model, OptimizeOptions(load_target(target))).misses == []
    x = (1000 + 300 * np.random.default_rng(0).standard_normal((1, 4, 32, 32))).astype(np.float16)
    (found,) = run(model, {"x": x})
    wide = x.astype(np.float64)
    mean, deviation = wide.mean((2, 3), keepdims=True), wide.std((2, 3), keepdims=True)
    assert found.dtype == HALF
    assert np.abs(found - (wide - mean) / deviation).max() < 4e-3


# --- what does not fit together, and bfloat16 ---

INVALID = {
    "two types": ("float16[4] x, float[4] z", "y = Add (x, z)", "input 1 of this Add ('z') is float32, another is"),
    "a type that it does not take": (
        "float16[4] x, int64[4] z",
        "y = Erf (z)",
        "input 0 of this Erf ('z') is int64, which",
    ),
    "a weight": ("float[2, 4] x, float16[4] z", "y = LayerNormalization (x, z)", "input 1 of this LayerNormalization"),
    "a declared output": ("float16[4] x", "y = Neg (x)", "output 'y' is declared float32 and computed as float16"),
    "of several": ("float16[4] x, float[4] z", "y = Concat <axis = 0> (x, x, z)", "input 2 of this Concat ('z')"),
}


@pytest.mark.parametrize("name", INVALID)
def test_types_that_do_not_fit_are_told(name: str) -> None:
    inputs, body, message = INVALID[name]
    model = load(f"g ({inputs}) => (float[a] y) {{ {body} }}")
    with pytest.raises(BadModelError) as caught:
        optimize_model(model, OptimizeOptions(load_target("cpu")))
    assert message in str(caught.value)
    assert "Make it again" in (caught.value.hint or "")
    assert caught.value.node


@pytest.mark.parametrize("inputs", ["x, g16, g", "x, g, g16", "x, g16, g16"])
def test_a_group_norm_with_weights_in_half_is_never_handed_out(inputs: str) -> None:
    values: dict[str, Array] = {"g": np.ones(4, np.float32), "g16": np.ones(4, np.float16)}
    text = f"""g (float16[1, 2, 2, 4] x) => (float16[a, b, c, d] y) {{
        y = com.microsoft.GroupNorm <groups = 2, activation = 1> ({inputs}) }}"""
    editor = edit(text, {k: v for k, v in values.items() if k in inputs.replace(",", " ").split()})
    with pytest.raises(BadModelError, match="float16, not float32"):
        types.check(editor, 18, "")


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("fp16", [False, True])
def test_bfloat16_is_refused_in_words(target: str, fp16: bool) -> None:
    text = "g (bfloat16[B, 8] x) => (bfloat16[B, 8] y) { y = Sigmoid (x) }"
    with pytest.raises(BadModelError, match="Sigmoid computes in bfloat16") as caught:
        optimize_model(load(text), OptimizeOptions(load_target(target), fp16))
    assert "Export the model in float32" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "body",
    [
        "y = Div (x, two)",
        "a = Div (x, three)  y = Softmax <axis = -1> (a)",
        "a = Mul (x, two)  b = Mul (a, three)  y = Softmax <axis = -1> (b)",
        "c = CastLike (two, x)  y = Mul (x, c)",
    ],
)
def test_arithmetic_in_bfloat16_is_refused_in_words(body: str) -> None:
    kind = onnx.helper.tensor_dtype_to_np_dtype(16)
    values = {name: np.array(value, kind) for name, value in (("two", 2), ("three", 3)) if name in body}
    text = f"g (bfloat16[B, 8] x) => (bfloat16[B, 8] y) {{ {body} }}"
    with pytest.raises(BadModelError, match="computes in bfloat16"):
        optimize_model(load(text, values), OptimizeOptions(load_target("cuda")))


def test_weights_that_are_only_stored_in_bfloat16_are_taken() -> None:
    stored = np.linspace(-1, 1, 32).reshape(8, 4).astype(onnx.helper.tensor_dtype_to_np_dtype(16))
    text = "g (float[B, 8] x) => (float[B, n] y) { v = Cast <to = 1> (w)  y = MatMul (x, v) }"
    model = load(text, {"w": stored})
    optimize_model(model, OptimizeOptions(load_target("cpu")))
    x = np.eye(8, dtype=np.float32)
    np.testing.assert_array_equal(run(model, {"x": x})[0], stored.astype(np.float32))
