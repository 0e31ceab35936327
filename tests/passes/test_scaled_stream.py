"""Residual streams that pass 65504 in front of root mean square norms, in fp16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import stored
from support.small_graphs import Array, check_step, edit, feeds_for, load, parse, run

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes import scaled_stream
from sdort.providers import load_target
from sdort.rewrite.editor import Editor

WIDTH, INNER, EPSILON = 32, 48, 1e-4
TOLERANCE = 1e-2
"""Of the largest element: the roundings of two layers to 11 bits."""
NORMS = {
    "Div": "{s}_q = Mul ({x}, {x})  {m}  {s}_d = Sqrt ({s}_e)  {y} = Div ({x}, {s}_d)",
    "Reciprocal": "{s}_q = Pow ({x}, two)  {m}  {s}_d = Sqrt ({s}_e)  {s}_r = Reciprocal ({s}_d)"
    "  {y} = Mul ({x}, {s}_r)",
    "one by the root": "{s}_q = Mul ({x}, {x})  {m}  {s}_d = Sqrt ({s}_e)  {s}_r = Div (one, {s}_d)"
    "  {y} = Mul ({s}_r, {x})",
    "Pow": "{s}_q = Pow ({x}, two)  {m}  {s}_r = Pow ({s}_e, minus_half)  {y} = Mul ({x}, {s}_r)",
    "RMSNormalization": "{y} = RMSNormalization <epsilon = 0.0001> ({x}, gamma)",
}  # fmt: skip
MEAN = "{s}_m = ReduceMean <keepdims = 1> ({s}_q, last)  {s}_e = Add ({s}_m, eps)"
EMBEDDED = {"a table": "h0 = Gather (table, i)", "an input": "h0 = Identity (x)", "a Gemm": "h0 = Gemm (x, w, b)"}
CONSTANTS = {"two": 2.0, "one": 1.0, "minus_half": -0.5, "eps": EPSILON}


def norm(name: str, x: str, y: str, step: str) -> str:
    return NORMS[name].format(x=x, y=y, s=step, m=MEAN.format(s=step))


def encoder(name: str, embedding: str, end: str = "") -> tuple[str, dict[str, Array]]:
    """Two layers of T5's feed forward: h + W2 relu(W1 norm(h)), and a last norm."""
    lines = [EMBEDDED[embedding]]
    for layer in range(2):
        lines.append(norm(name, f"h{layer}", f"n{layer}", f"s{layer}"))
        lines.append(f"a{layer} = MatMul (n{layer}, in{layer})  g{layer} = Relu (a{layer})")
        lines.append(f"o{layer} = MatMul (g{layer}, out{layer})  p{layer} = Add (o{layer}, bias)")
        lines.append(f"h{layer + 1} = Add (h{layer}, p{layer})")
    lines.append(norm(name, "h2", "y", "s2") + end)
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {f"in{layer}": rng.standard_normal((WIDTH, INNER)) for layer in range(2)}
    values |= {f"out{layer}": 3000 * rng.standard_normal((INNER, WIDTH)) for layer in range(2)}
    values |= {"bias": 20000 * rng.standard_normal(WIDTH), "table": 50 * rng.standard_normal((7, WIDTH)), "last": [-1]}
    values |= {"gamma": np.ones(WIDTH), "w": 90 * rng.standard_normal((WIDTH, WIDTH)), "b": rng.standard_normal(WIDTH)}
    return graph("  ".join(lines), embedding, values)


def graph(body: str, embedding: str, values: dict[str, Any]) -> tuple[str, dict[str, Array]]:
    """The text of a graph with this body, and those of the values that it reads."""
    used = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    arrays = {key: np.asarray(value) for key, value in (values | CONSTANTS).items() if key in used}
    constants = {
        key: value.astype(np.int64 if value.dtype.kind == "i" else np.float32) for key, value in arrays.items()
    }
    given = "int64[5] i" if embedding == "a table" else f"float[5, {WIDTH}] x"
    return f"g ({given}) => (float[p, q] y) {{ {body} }}", constants


@pytest.mark.parametrize("embedding", EMBEDDED)
@pytest.mark.parametrize("name", NORMS)
def test_a_stream_beyond_65504_is_kept_small(name: str, embedding: str) -> None:
    text, constants = encoder(name, embedding)
    model, proto = load(text, constants, 23), parse(text, constants, 23)
    feeds = feeds_for(proto, {})
    (wanted,) = run(proto, feeds)
    optimize_model(model, OptimizeOptions(load_target("cpu"), fp16=True))
    (found,) = stored.run(model, feeds)
    assert np.isfinite(found).all()
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("out", ["h1", "h2"])
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("target", ["cpu", "rocm", "migraphx"])
def test_a_stream_that_goes_out_has_its_size(target: str, name: str, out: str) -> None:
    """In the middle and at the end: as Qwen3's states, of which a denoiser reads those before the last layer."""
    text, constants = encoder(name, "a table", f"  states = Identity ({out})")
    text = text.replace("(float[p, q] y)", "(float[p, q] y, float[p, q] states)")
    model, proto = load(text, constants, 23), parse(text, constants, 23)
    feeds = feeds_for(proto, {})
    wanted = run(proto, feeds)
    optimize_model(model, OptimizeOptions(load_target(target), fp16=True))
    found = stored.run(model, feeds)
    assert np.abs(wanted[1]).max() > 65504
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == np.float32
        assert np.isfinite(ours).all()
        assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("embedding", EMBEDDED)
@pytest.mark.parametrize("name", NORMS)
def test_a_scaled_stream_computes_the_same(name: str, embedding: str, size: float) -> None:
    """A power of two rounds nothing in fp32: whether epsilon is much of a root or nothing, and all parts count."""
    body = f"{EMBEDDED[embedding]}  {norm(name, 'h0', 'n', 's0')}  o = MatMul (n, out)  p = Add (o, bias)"
    rng = np.random.default_rng(1)
    shapes = {"out": (WIDTH, WIDTH), "bias": (WIDTH,), "table": (7, WIDTH), "w": (WIDTH, WIDTH), "b": (WIDTH,)}
    values: dict[str, Any] = {key: size * rng.standard_normal(shape) for key, shape in shapes.items()}
    values |= {"last": [-1], "gamma": np.ones(WIDTH), "w": values["w"] / WIDTH**0.5}
    text, constants = graph(f"{body}  h1 = Add (h0, p)  {norm(name, 'h1', 'y', 's1')}", embedding, values)

    def step(editor: Editor) -> None:
        assert scaled_stream.run(editor) == 1

    check_step(text, step, weights=constants, rtol=1e-5)


SHOWN = {
    "the square": "z = Sqrt (s1_q)",
    "the mean": "z = Sqrt (s1_m)",
    "the guarded mean": "z = Sqrt (s1_e)",
    "the root": "z = Neg (s1_d)",
    "the root's inverse": "z = Neg (s1_r)",
}
"""What else may be read of a norm that stands in parts."""


@pytest.mark.parametrize("out", [False, True], ids=["read", "goes out"])
@pytest.mark.parametrize("part", SHOWN)
def test_what_is_read_of_a_norm_is_the_models(part: str, out: bool) -> None:
    line = SHOWN[part]
    name = line[line.index("(") + 1 : -1]
    body = f"o = MatMul (x, w)  h = Add (x, o)  {norm('one by the root', 'h', 'y', 's1')}  {'' if out else line}"
    text, constants = graph(body, "an input", {"w": np.eye(WIDTH), "last": [-1]})
    text = text.replace("[p, q] y)", f"[p, q] y, float[r, s] {name if out else 'z'})")
    check_step(text, scaled_stream.run, weights=constants, rtol=1e-5)


def test_the_root_that_a_norm_gives_is_the_models() -> None:
    text = """g (float[2, 5, 8] x) => (float[a, b, c] y, float[d, e, f] z) {
        o = MatMul (x, w)  h = Add (x, o)  y, z = SimplifiedLayerNormalization (h, g) }"""
    weights = {"w": np.eye(8, dtype=np.float32), "g": np.ones(8, np.float32)}
    check_step(text, scaled_stream.run, weights=weights, rtol=1e-5)


def test_it_costs_nothing() -> None:
    text, constants = encoder("Div", "a table")
    editor = edit(text, constants, 18)
    before = [node.op for node in editor.graph.nodes]
    assert scaled_stream.run(editor) == 1
    assert [node.op for node in editor.graph.nodes] == before
    assert {key: np.abs(value).max() for key, value in constants.items()}[
        "out0"
    ] > 6000  # no constant is changed itself


@pytest.mark.parametrize("target", ["rocm", "cpu"])
def test_fp32_streams_stay(target: str) -> None:
    text, constants = encoder("Div", "a table")
    model, proto = load(text, constants, 18), parse(text, constants, 18)
    feeds = feeds_for(proto, {})
    optimize_model(model, OptimizeOptions(load_target(target)))
    np.testing.assert_allclose(run(model, feeds)[0], run(proto, feeds)[0], rtol=1e-4, atol=1e-4)


def test_a_stream_that_something_else_reads_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    text, constants = encoder("Div", "a table", "  z = Sigmoid (h1)")
    editor = edit(text.replace("y) {", "y, float[r, s] z) {"), constants, 18)
    assert scaled_stream.run(editor) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "is not kept small for fp16, as Sigmoid" in told
    assert "--fp16 auto" in told


OTHERS = {
    "one product": "o = MatMul (x, w)  h = Add (o, b)  {norm}",
    "no sum": "h = MatMul (x, w)  {norm}",
    "a mean that is no square's": "h = Add (x, x)  s_m = ReduceMean <keepdims = 1> (h, last)  y = Sub (h, s_m)",
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_what_is_no_residual_stream_stays(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = body.format(norm=norm("Div", "h", "y", "s"))
    values = {"w": np.ones((8, 8)), "b": np.ones(8), "last": np.array([-1]), "eps": np.array(EPSILON)}
    used = {key: value for key, value in values.items() if f"{key})" in lines}
    constants = {k: v.astype(np.int64 if v.dtype.kind == "i" else np.float32) for k, v in used.items()}
    assert scaled_stream.run(edit(f"g (float[5, 8] x) => (float[p, q] y) {{ {lines} }}", constants, 18)) == 0
    assert not capsys.readouterr().err
