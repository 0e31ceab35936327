"""fp16 graphs of which some nodes compute in fp32, on the same weights; and fp16 as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.rounded import write_emulated
from support.small_graphs import Array, parse
from support.small_models import evaluate, write

from sdort.engines.rounding import emulate_graph
from sdort.passes.widen import all_nodes, attention_nodes, names_of_dtype, widen_file

RNG = np.random.default_rng(0)
HALF = np.dtype(np.float16)


def types(proto: onnx.ModelProto) -> dict[str, str]:
    """Operator -> the suffix of its first output: what it computes in."""
    return {node.op_type: node.output[0].partition("//")[2] for node in proto.graph.node if node.op_type != "Cast"}


CHAIN = "g (float16[B, 4] x) => (float16[B, 4] y) { m = MatMul (x, w)  r = Abs (m)  y = Div (r, k) }"
LOUD = {"w": np.full((4, 4), 30000, np.float16), "k": np.array(30000, np.float16)}


def test_all_of_a_graph_in_fp32_keeps_its_inputs_outputs_and_data(tmp_path: Path) -> None:
    path = write(tmp_path, CHAIN, LOUD)
    before = (tmp_path / "model.onnx.data").read_bytes()
    proto = widen_file(path, all_nodes, "test")
    assert proto is not None
    assert types(proto) == {"MatMul": "float", "Abs": "float", "Div": "float"}
    (y,) = evaluate(proto, tmp_path, {"x": np.ones((1, 4), np.float16)})
    assert y.dtype == HALF
    np.testing.assert_array_equal(y, np.full((1, 4), 4, np.float16))
    assert (tmp_path / "model.onnx.data").read_bytes() == before
    assert {t.data_location for t in proto.graph.initializer} == {onnx.TensorProto.EXTERNAL}


def test_only_what_is_chosen_is_fp32(tmp_path: Path) -> None:
    path = write(tmp_path, CHAIN, LOUD)
    proto = widen_file(path, lambda p: [n.output[0] for n in p.graph.node if n.op_type in ("MatMul", "Abs")], "test")
    assert proto is not None
    assert types(proto) == {"MatMul": "float", "Abs": "float", "Div": ""}
    casts = [node.output[0] for node in proto.graph.node if node.op_type == "Cast"]
    assert casts == ["x//float", "w//float", "r"], "none between the two that are fp32, and none for what nobody reads"


def test_a_tensor_that_both_worlds_read_is_in_both(tmp_path: Path) -> None:
    body = "a = Neg (x)  y = Abs (a)  z = Sqrt (a)  v = Ceil (a)"
    text = f"g (float16[B] x) => (float16[B] y, float16[B] z, float16[B] v) {{ {body} }}"
    path = write(tmp_path, text)
    proto = widen_file(path, lambda p: {"a", "z"}, "test")
    assert proto is not None
    assert types(proto) == {"Neg": "float", "Abs": "", "Sqrt": "float", "Ceil": ""}
    assert sorted(n.output[0] for n in proto.graph.node if n.op_type == "Cast") == ["a", "x//float", "z"]
    y, z, _ = evaluate(proto, tmp_path, {"x": np.array([-4.0], np.float16)})
    assert (y.dtype, z.dtype, float(y[0]), float(z[0])) == (HALF, HALF, 4.0, 2.0)


def test_types_in_attributes(tmp_path: Path) -> None:
    body = "s = Shape (x)  c = ConstantOfShape <value: tensor = float16[1] {16896}> (s)  f = Cast <to = 10> (i)"  # 3.0
    text = f"g (float16[B] x, int64[B] i) => (float16[B] y) {{ {body}  a = Add (c, f)  y = Mul (a, x) }}"
    proto = widen_file(write(tmp_path, text), all_nodes, "test")
    assert proto is not None
    (y,) = evaluate(proto, tmp_path, {"x": np.array([2.0], np.float16), "i": np.array([70000])})
    assert np.isinf(y[0])
    (y,) = evaluate(proto, tmp_path, {"x": np.array([0.5], np.float16), "i": np.array([70000])})
    assert y[0] == np.float16(35001.5), "the sum was fp32"


def test_a_graph_in_fp32_has_nothing_to_widen(tmp_path: Path) -> None:
    path = write(tmp_path, CHAIN.replace("float16", "float"), {k: v.astype(np.float32) for k, v in LOUD.items()})
    assert names_of_dtype(path, "test", np.dtype(np.float16)) == set()
    assert widen_file(path, all_nodes, "test") is None


def test_a_graph_without_attention_has_none_to_widen(tmp_path: Path) -> None:
    assert widen_file(write(tmp_path, CHAIN, LOUD), attention_nodes, "test") is None


OLD = """g (float16[B, S, 4] q, float16[B, 4, L] k) => (float16[B, S, L] y) {
    p = Neg (q)  s = MatMul (p, k)  t = Mul (s, c)  a = Add (t, m)  n = Softmax <axis = -1> (a)  y = Abs (n)
}"""


def test_attention_from_the_product_to_the_softmax(tmp_path: Path) -> None:
    made = {"c": np.array(1.0, np.float16), "m": np.array(0.0, np.float16)}
    path = write(tmp_path, OLD, made)
    proto = widen_file(path, attention_nodes, "test")
    assert proto is not None
    wide = {"MatMul": "float", "Mul": "float", "Add": "float", "Softmax": "float"}
    assert types(proto) == {"Neg": "", **wide, "Abs": ""}
    fused = "g (float16[B, S, 4] q, float16[B, S, 4] k) => (float16[B, S, 4] y) {{ {} }}"
    fused = fused.format("a = Neg (q)  y = com.microsoft.MultiHeadAttention <num_heads = 1> (a, k, k)")
    assert attention_nodes(parse(fused, {}, 18)) == {"y"}


# --- emulation ---


def test_what_is_stored_in_fp16_is_rounded(tmp_path: Path) -> None:
    path = write(tmp_path, CHAIN, LOUD)
    feeds = {"x": np.ones((1, 4), np.float16)}
    (kept,) = evaluate(onnx.load(path, load_external_data=False), tmp_path, feeds)
    assert np.isfinite(kept).all(), "the CPU rounds by itself: nothing needs to be emulated"
    write_emulated(path, tmp_path / "emulated.onnx", "test")
    (y,) = evaluate(onnx.load(tmp_path / "emulated.onnx", load_external_data=False), tmp_path, feeds)
    assert np.isinf(y).all()
    small = {"x": np.array([[0.2, 0.3, -0.1, 0.1]], np.float16)}
    (y,) = evaluate(onnx.load(tmp_path / "emulated.onnx", load_external_data=False), tmp_path, small)
    product = (small["x"].astype(np.float64) @ LOUD["w"].astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(y, (product.astype(np.float64) / 30000).astype(np.float16))


@pytest.mark.parametrize("scale", ["", ", scale = 0.5"])
@pytest.mark.parametrize("form", ["q, k, v", "q, kv", "qkv"])
def test_attention_stores_its_scores(form: str, scale: str, tmp_path: Path) -> None:
    sizes = {"q": (2, 5, 8), "k": (2, 7, 8), "v": (2, 7, 8), "kv": (2, 7, 2, 2, 4), "qkv": (2, 5, 2, 3, 4)}
    names = form.split(", ")
    inputs = ", ".join(f"float16[{', '.join(map(str, sizes[name]))}] {name}" for name in names)
    node = f"y = com.microsoft.MultiHeadAttention <num_heads = 2{scale}> ({form})"
    path = write(tmp_path, f"g ({inputs}) => (float16[B, S, 8] y) {{ {node} }}")
    write_emulated(path, tmp_path / "emulated.onnx", "test")
    proto = onnx.load(tmp_path / "emulated.onnx", load_external_data=False)
    feeds = {name: RNG.standard_normal(sizes[name]).astype(np.float16) for name in names}
    q, k, v = _apart(feeds)
    scores = np.einsum("bshd,blhd->bhsl", q, k) * (0.5 if scale else 4**-0.5)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = np.einsum("bhsl,blhd->bshd", shares / shares.sum(-1, keepdims=True), v).reshape(2, 5, 8)
    (y,) = evaluate(proto, tmp_path, feeds)
    assert np.abs(y - wanted).max() < 4e-3
    (y,) = evaluate(proto, tmp_path, {name: 300 * value for name, value in feeds.items()})
    assert np.isnan(y).any(), "scores of 300 x 300 x 4 do not fit"


def _apart(feeds: Mapping[str, Array]) -> list[Array]:
    """Queries, keys and values [batch, rows, heads, size]."""
    if "qkv" in feeds:
        parts = [feeds["qkv"][..., i, :] for i in range(3)]
    elif "kv" in feeds:
        parts = [feeds["q"].reshape(2, 5, 2, 4), *(feeds["kv"][..., i, :] for i in range(2))]
    else:
        parts = [feeds[name].reshape(2, -1, 2, 4) for name in "qkv"]
    return [part.astype(np.float64) for part in parts]


def test_an_attention_beside_own_operators_of_a_newer_opset_is_emulated() -> None:
    """Inlining an operator's body wants all functions of a model in the model's opset."""
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "sdort": 1]>
        g (float16[1, 4, 8] x) => (float16[1, 4, 8] z) {
            y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x)
            z = sdort.Twice (y)
        }
        <domain: "sdort", opset_import: ["": 21]> Twice (a) => (b) { b = Add (a, a) }"""
    found = emulate_graph(onnx.parser.parse_model(text), {"x", "y", "z"})
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.ones((1, 4, 8), np.float16)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x)
