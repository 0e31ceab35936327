"""The graph without inputs for images computes what the whole one does where zeros are in them, or keeps the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

from sdort.runtime.step.control_inputs_removed import _makes_zeros, _take_unread, remove_control_inputs

MID = "mid_block_additional_residual"
DOWN = "down_block_additional_residuals.0"
SCALE = "image_scale.0"
TOKENS = "image_tokens.0"
SHAPES = {"x": (2, 3, 4), MID: (2, 3, 4), DOWN: (2, 3, 4), SCALE: (1, 1), TOKENS: (2, 3, 4)}
HEAD = """<ir_version: 8, opset_import: ["": 17]>
g ({inputs}) => ({outputs}) <float[4, 4] w, int64[3] back = {{2, 3, 4}}, int64[1] one = {{1}}> {{ {nodes} }}"""


def graph(nodes: str, *names: str, outputs: str = "y") -> onnx.ModelProto:
    inputs = ", ".join(f"float{list(SHAPES[name])} {name}" for name in ("x", *names)).replace("'", "")
    results = ", ".join(f"float[A{name}, B{name}, C{name}] {name}" for name in outputs.split())
    for name in (MID, DOWN, SCALE, TOKENS):  # the text form takes no points in names
        inputs, nodes = inputs.replace(name, name.replace(".", "_")), nodes.replace(name, name.replace(".", "_"))
    model = parser.parse_model(HEAD.format(inputs=inputs, outputs=results, nodes=nodes))
    values = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    plain = {name.replace(".", "_"): name for name in (DOWN, SCALE, TOKENS)}
    for info in model.graph.input:
        info.name = plain.get(info.name, info.name)
    for node in model.graph.node:
        node.input[:] = [plain.get(name, name) for name in node.input]
    onnx.checker.check_model(model)
    return model


def agree(model: onnx.ModelProto, whole: onnx.ModelProto) -> None:
    rng = np.random.default_rng(0)
    fed = {
        info.name: np.zeros(SHAPES[info.name], np.float32)
        if info.name != "x"
        else rng.normal(size=SHAPES["x"]).astype(np.float32)
        for info in whole.graph.input
    }
    wanted = ReferenceEvaluator(whole).run(None, fed)
    onnx.checker.check_model(model)
    kept = {info.name: fed[info.name] for info in model.graph.input}
    for found, value in zip(ReferenceEvaluator(model).run(None, kept), wanted, strict=True):
        np.testing.assert_array_equal(found, value)


GOES = {
    "alone": ("y = Add (x, MID)", 0),
    "first": ("y = Add (MID, x)", 0),
    "behind a product": ("m = MatMul (MID, w) s = Add (x, m) y = Neg (s)", 1),
    "another residual first": ("s = Add (x, DOWN) t = Add (s, MID) y = Neg (t)", 1),
    "moved": ("c = Cast <to = 1> (MID) r = Reshape (c, back) s = Add (r, x) y = Neg (s)", 1),
    "turned twice": (
        "t = Transpose <perm = [0, 2, 1]> (MID) u = Transpose <perm = [0, 2, 1]> (t) s = Add (x, u) y = Exp (s)",
        1,
    ),
    "read twice": ("s = Add (x, MID) n = Neg (x) t = Add (n, MID) y = Mul (s, t)", 2),
    "one after the other": ("s = Add (x, MID) t = Add (s, MID) y = Neg (t)", 1),
    "scaled": ("p = Mul (x, SCALE) s = Add (x, p) y = Neg (s)", 1),
}


@pytest.mark.parametrize("name", GOES)
def test_what_reaches_sums_alone_is_taken_out(name: str) -> None:
    text, left = GOES[name]
    for short, own in (("MID", MID), ("DOWN", DOWN), ("SCALE", SCALE)):
        text = text.replace(short, own)
    model = graph(text, *(own for own in (MID, DOWN, SCALE) if own in text))
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    remove_control_inputs(model, "unet")
    if name in ("alone", "first"):  # the sum was the result itself, whose name has to stay
        return
    assert [info.name for info in model.graph.input] == ["x"]
    assert len(model.graph.node) == left
    agree(model, whole)


STAYS = {
    "a difference": "s = Sub (x, MID) y = Neg (s)",
    "a function of its own": "e = Exp (MID) s = Add (x, e) y = Neg (s)",
    "a normalization": "n = Softmax (MID) s = Add (x, n) y = Neg (s)",
    "one of two readers": "s = Add (x, MID) e = Exp (MID) y = Mul (s, e)",
    "as another input": "s = Concat <axis = 1> (x, MID) y = Neg (s)",
    "a sum of two residuals": "s = Add (MID, DOWN) t = Add (x, s) y = Neg (t)",
    "a quotient": "q = Div (x, MID) s = Add (x, q) y = Neg (s)",
}


@pytest.mark.parametrize("name", STAYS)
def test_what_reaches_another_operator_stays_and_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("sdort.runtime.step.control_inputs_removed.detail", told.append)
    text = STAYS[name].replace("MID", MID).replace("DOWN", DOWN)
    own = [each for each in (MID, DOWN) if each in text]
    model = graph(text, *own)
    before = model.SerializeToString()
    remove_control_inputs(model, "unet")
    assert model.SerializeToString() == before
    assert told == [f"unet: its input {each} is part of another operator, and zeros are in it" for each in own]


def test_tokens_go_with_the_scale_that_makes_them_zeros() -> None:
    text = "p = MatMul (TOKENS, w) q = Mul (p, SCALE) s = Add (x, q) y = Neg (s)"
    model = graph(text.replace("TOKENS", TOKENS).replace("SCALE", SCALE), SCALE, TOKENS)
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    remove_control_inputs(model, "unet")
    assert ([info.name for info in model.graph.input], [node.op_type for node in model.graph.node]) == (["x"], ["Neg"])
    agree(model, whole)


def test_tokens_that_something_else_reads_stay() -> None:
    text = "p = MatMul (TOKENS, w) q = Mul (p, SCALE) s = Add (x, q) t = Neg (TOKENS) y = Mul (s, t)"
    model = graph(text.replace("TOKENS", TOKENS).replace("SCALE", SCALE), SCALE, TOKENS)
    remove_control_inputs(model, "unet")
    assert [info.name for info in model.graph.input] == ["x", TOKENS]
    assert [node.op_type for node in model.graph.node] == ["Neg", "Mul"]
    both = graph(text.replace("TOKENS", TOKENS).replace("SCALE", SCALE), SCALE, TOKENS, outputs="y p")
    remove_control_inputs(both, "unet")
    assert [node.op_type for node in both.graph.node] == ["MatMul", "Neg", "Mul"]


def node(op_type: str, inputs: str, domain: str = "") -> Any:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op_type, names, ["out"], domain=domain)


MS = "com.microsoft"


@pytest.mark.parametrize(
    ("made", "zeros"),
    [
        (node("Mul", "zero a"), True),
        (node("Mul", "a zero"), True),
        (node("MatMul", "a zero"), True),
        (node("Mul", "zero a", "other"), False),
        (node("Add", "zero a"), False),
        (node("Cast", "zero"), True),
        (node("Identity", "zero"), True),
        (node("Unsqueeze", "zero axes"), True),
        (node("Transpose", "zero"), True),
        (node("Reshape", "zero shape"), True),
        (node("Reshape", "a zero"), False),
        (node("Unsqueeze", "a zero"), False),
        (node("Cast", "zero", MS), False),
        (node("MultiHeadAttention", "q k zero", MS), True),
        (node("MultiHeadAttention", "q k zero -", MS), True),
        (node("MultiHeadAttention", "q k zero - mask", MS), True),
        (node("MultiHeadAttention", "q k zero bias", MS), False),
        (node("MultiHeadAttention", "q zero v", MS), False),
        (node("MultiHeadAttention", "zero k v", MS), False),
        (node("MultiHeadAttention", "zero k zero", MS), False),
        (node("MultiHeadAttention", "q zero zero", MS), False),
        (node("MultiHeadAttention", "q k", MS), False),
        (node("Attention", "q k zero"), True),
        (node("Attention", "q k zero mask"), True),
        (node("Attention", "q k v zero"), False),
        (node("Attention", "q k zero", "other"), False),
        (node("MultiHeadAttention", "q k v zero", MS), False),
    ],
)
def test_which_operators_make_zeros_of_zeros(made: Any, zeros: bool) -> None:
    assert _makes_zeros(made, "zero") is zeros


@pytest.mark.parametrize(
    ("read", "left", "gone"),
    [
        ("a", ["Split", "Neg"], {"r"}),
        ("b", ["Split", "Neg"], {"r"}),
        ("x", ["Neg"], {"image", "r", "a", "b"}),
    ],
)
def test_a_node_stays_while_one_of_its_outputs_is_read(read: str, left: list[str], gone: set[str]) -> None:
    nodes = [
        helper.make_node("Split", ["image"], ["a", "b"], axis=0),
        helper.make_node("Relu", ["b" if read == "a" else "a"], ["r"]),
        helper.make_node("Neg", [read], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "image", "y")]
    whole = helper.make_graph(nodes, "g", infos[:2], infos[2:])
    assert _take_unread(whole, {"image"}) == gone
    assert [node.op_type for node in whole.node] == left
