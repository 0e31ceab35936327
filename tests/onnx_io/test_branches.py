"""An If whose condition is known before it runs gives way to one of its branches; every other one is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from support.small_graphs import Array

from sdort.errors import BadModelError
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model

CONDITIONS = {
    "constant": ("yes = Constant <value: tensor = bool {1}> ()", True),
    "size": ("n = Shape <start = 0, end = 1> (x)  e = Equal (n, one)  yes = Squeeze (e)", True),
    "gathered": ("n = Shape (x)  k = Gather <axis = 0> (n, two)  yes = Equal (k, two)", False),
    "behind a product": (
        "m = MatMul (x, w)  n = Shape (m)  k = Gather <axis = 0> (n, two)  yes = Less (k, two)",
        False,
    ),
    "rank": ("n = Shape (x)  k = Size (n)  e = Equal (k, two)  yes = Not (e)", True),
    "cast": ("n = Shape <start = 0, end = 1> (x)  c = Cast <to = 9> (n)  yes = Squeeze (c)", True),
    "beside an open size": ("n = Shape (u)  k = Gather <axis = 0> (n, last)  yes = Equal (k, five)", True),
    "behind an open view": (
        "n = Shape <start = 0, end = 1> (u)  c = Concat <axis = 0> (n, sizes)  v = Reshape (u, c)  "
        "k = Shape <start = 2> (v)  e = Equal (k, one)  yes = Squeeze (e)",
        False,
    ),
}
"""The lines that make ``yes`` in a graph of x [1, 4, 5] and u [batch, 5], and what it is."""
_NAMED = "r = Relu (x)"
BRANCHES = {
    "captures": ("s = Squeeze (x, zero)  a = Relu (s)", "a = Neg (x)"),
    "hands on what it captures": ("", "a = Relu (x)"),
    "has constants": ("k = Constant <value_float = 3.0> ()  a = Mul (x, k)", "a = Add (x, big)"),
    "uses names again": (f"{_NAMED}  a = Neg (r)", f"{_NAMED}  a = Abs (r)"),
    "nests": (
        """f = Shape <start = 1, end = 2> (x)  g = Equal (f, one)  h = Squeeze (g)  t = Relu (x)
        a = If (h) <then_branch = c () => (float[] a1) { a1 = Abs (t) },
                    else_branch = d () => (float[] a2) { t2 = Neg (t)  a2 = Sub (t2, big) }>""",
        "a = Neg (x)",
    ),
}


def model(condition: str, branch: str, batch: str = "batch") -> onnx.ModelProto:
    then_lines, else_lines = BRANCHES[branch]
    whole = [lines.replace(" a = ", f" {name} = ") if f" {name} = " not in lines else lines
             for lines, name in ((f" {then_lines}", "a_then"), (f" {else_lines}", "a_else"))]  # fmt: skip
    ends = ["x" if not lines.strip() else name for lines, name in zip(whole, ("a_then", "a_else"), strict=True)]
    extra = ["b1 = Exp (x)", "b2 = Abs (x)"]
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[1, 4, 5] x, float[{batch}, 5] u) => (float[] y, float[] z) {{
        {CONDITIONS[condition][0]}
        p, q = If (yes) <then_branch = th () => (float[] {ends[0]}, float[] b1) {{ {whole[0]} {extra[0]} }},
                         else_branch = el () => (float[] {ends[1]}, float[] b2) {{ {whole[1]} {extra[1]} }}>
        r = Relu (p)  y = Add (r, big)  z = Identity (q)
    }}"""
    made = parser.parse_model(text)
    values = {"one": np.array([1]), "two": np.array(2), "zero": np.array([0]), "last": np.array(1), "five": np.array(5),
              "sizes": np.array([1, 5]), "w": np.ones((5, 3), np.float32),
              "big": np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)}  # fmt: skip
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    return made


def run(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize(("condition", "branch"), [*product(CONDITIONS, BRANCHES)])
def test_the_branch_that_is_taken_stands_in_its_place(tmp_path: Path, condition: str, branch: str) -> None:
    proto = model(condition, branch)
    onnx.save(proto, tmp_path / "in.onnx")
    loaded = load_model(tmp_path / "in.onnx", "unet")
    assert "If" not in {node.op for node in loaded.graph.nodes}
    assert "If" not in {node.op_type for node in read_component(tmp_path / "in.onnx", "unet").graph.graph.node}
    ends = {node.op for node in loaded.graph.nodes}
    assert ("Exp" in ends) == CONDITIONS[condition][1]
    save_model(loaded, tmp_path / "out.onnx")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((1, 4, 5)).astype(np.float32), "u": rng.standard_normal((3, 5), np.float32)}
    expected = ReferenceEvaluator(proto).run(
        None, feeds
    )  # ONNX Runtime refuses a branch that hands on what it captures
    for each, result in zip(expected, run(onnx.load(tmp_path / "out.onnx"), feeds), strict=True):
        np.testing.assert_allclose(result, each, rtol=1e-6)


def test_a_large_constant_of_a_branch_is_read(tmp_path: Path) -> None:
    proto = model("constant", "captures")
    (node,) = [each for each in proto.graph.node if each.op_type == "If"]
    branch = next(each.g for each in node.attribute if each.name == "then_branch")
    values = np.arange(2048, dtype=np.float32)
    branch.initializer.append(numpy_helper.from_array(values, "table"))
    branch.node[-1].CopyFrom(onnx.helper.make_node("Identity", ["table"], ["b1"]))
    onnx.save(proto, tmp_path / "in.onnx")
    save_model(load_model(tmp_path / "in.onnx", "unet"), tmp_path / "out.onnx")
    feeds = {"x": np.ones((1, 4, 5), np.float32), "u": np.ones((3, 5), np.float32)}
    np.testing.assert_array_equal(run(onnx.load(tmp_path / "out.onnx"), feeds)[1], values)


@pytest.mark.parametrize(
    "lines",
    [
        "n = Shape <start = 0, end = 1> (u)  e = Equal (n, one)  yes = Squeeze (e)",
        "n = Shape <start = 0, end = 1> (u)  c = Cast <to = 9> (n)  yes = Squeeze (c)",
        "n = Shape <start = 0, end = 1> (u)  e = Greater (n, one)  yes = Squeeze (e)",
        "m = ReduceMax <keepdims = 0> (x)  f = Cast <to = 9> (m)  yes = Not (f)",
        "n = Size (u)  yes = Equal (n, five)",
    ],
)
def test_what_depends_on_data_or_on_an_open_size_is_refused(
    tmp_path: Path, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONDITIONS, "own", (lines, True))
    onnx.save(model("own", "captures"), tmp_path / "in.onnx")
    with pytest.raises(BadModelError, match="the condition of this If is not known before it runs; control flow"):
        load_model(tmp_path / "in.onnx", "unet")


def test_a_default_is_no_constant(tmp_path: Path) -> None:
    proto = model("constant", "captures")
    del proto.graph.node[0]
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
    onnx.save(proto, tmp_path / "in.onnx")
    with pytest.raises(BadModelError, match="not known before it runs"):
        load_model(tmp_path / "in.onnx", "unet")
