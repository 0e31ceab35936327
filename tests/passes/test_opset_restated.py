"""One node in another opset: whether it means the same there, and which stated defaults it loses for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import helper
from support.small_graphs import edit, load

from sdort.errors import BadModelError
from sdort.lowering.component_report import count_operators
from sdort.passes import upgrade
from sdort.rewrite.editor import Editor
from sdort.rewrite.pattern import OPSET

Case = tuple[str, dict[str, Any], str, int, int, "dict[str, Any] | None"]
RESTATED: dict[str, Case] = {
    # operator, attributes, its inputs ("-" for one that is left out), opsets from and to, what attributes are left
    "as it was": ("Transpose", {"perm": [0, 1]}, "x", 13, 18, {"perm": [0, 1]}),
    "more types": ("Relu", {}, "x", 11, 23, {}),
    "not there yet": ("Gelu", {}, "x", 23, 18, None),
    "nowhere": ("QuickGelu", {}, "x", 23, 18, None),
    "not in the opset it is said to be of": ("Gelu", {}, "x", 18, 23, None),
    "gone": ("Upsample", {"mode": "nearest"}, "xx", 9, 18, None),
    "gone, and in between": ("Upsample", {"mode": "nearest"}, "xx", 10, 9, None),
    "a default that came later": ("Cast", {"to": 10, "saturate": 1}, "x", 23, 18, {"to": 10}),
    "another than the default": ("Cast", {"to": 10, "saturate": 0}, "x", 23, 18, None),
    "a default that came": ("Cast", {"to": 10, "saturate": 0}, "x", 19, 23, {"to": 10, "saturate": 0}),
    "a word by default": ("Cast", {"to": 10, "round_mode": "up"}, "x", 24, 23, {"to": 10}),
    "another word": ("Cast", {"to": 10, "round_mode": "down"}, "x", 24, 23, None),
    "two defaults": ("Cast", {"to": 10, "round_mode": "up", "saturate": 1}, "x", 24, 18, {"to": 10}),
    "one default of two": ("Cast", {"to": 10, "round_mode": "up", "saturate": 0}, "x", 24, 18, None),
    "the other default of two": ("Cast", {"to": 10, "round_mode": "down", "saturate": 1}, "x", 24, 18, None),
    "a number by default": ("Shape", {"start": 0}, "x", 15, 13, {}),
    "another number": ("Shape", {"start": 1}, "x", 15, 13, None),
    "what has no default": ("Shape", {"end": 3}, "x", 15, 13, None),
    "what no opset knows": ("Relu", {"slope": 1}, "x", 14, 13, None),
    "another default": ("Softmax", {"axis": 1}, "x", 11, 13, None),
    "attributes that are gone": ("ReduceMean", {"axes": [1]}, "x", 13, 18, None),
    "attributes that came": ("Reshape", {}, "xx", 13, 14, {}),
    "attributes that came, backwards": ("Reshape", {"allowzero": 0}, "xx", 14, 13, {}),
    "an input that came": ("Pad", {"mode": "edge"}, "xx", 13, 18, {"mode": "edge"}),
    "an input that is not there yet": ("Pad", {"mode": "edge"}, "xx-x", 18, 13, None),
    "an input that is left out": ("Pad", {"mode": "edge"}, "xx--", 18, 13, {"mode": "edge"}),
    "as many inputs as there may be": ("Pad", {"mode": "edge"}, "xxx", 18, 13, {"mode": "edge"}),
    "as many inputs as one likes": ("Concat", {"axis": 0}, "xxxxxx", 11, 13, {"axis": 0}),
    "no input": ("Constant", {"value_int": 1}, "", 13, 23, {"value_int": 1}),
    "an input instead of an attribute": ("DFT", {"axis": 1}, "x", 17, 20, None),
    "a word that came later": ("Pad", {"mode": "wrap"}, "xx", 19, 18, None),
    "a word that came": ("Pad", {"mode": "wrap"}, "xx", 19, 23, {"mode": "wrap"}),
    "a word that is gone": (
        "Resize", {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}, "xxx", 11, 13, None,
    ),
    "another operator's word": ("Resize", {"mode": "wrap"}, "xxx", 19, 18, {"mode": "wrap"}),
    "images by their old names": ("GridSample", {"mode": "bilinear"}, "xx", 16, 23, {"mode": "linear"}),
    "images by their old names, cubic": ("GridSample", {"mode": "bicubic"}, "xx", 18, 20, {"mode": "cubic"}),
    "images by their new names": ("GridSample", {"mode": "linear"}, "xx", 23, 18, {"mode": "bilinear"}),
    "images by their new names, cubic": ("GridSample", {"mode": "cubic"}, "xx", 20, 16, {"mode": "bicubic"}),
    "images by no name": ("GridSample", {}, "xx", 23, 18, {"mode": "bilinear"}),
    "images by no old name": ("GridSample", {}, "xx", 16, 20, {"mode": "linear"}),
    "images by one name": ("GridSample", {"mode": "nearest", "align_corners": 1}, "xx", 16, 20,
                           {"mode": "nearest", "align_corners": 1}),
    "images as they were": ("GridSample", {"mode": "linear"}, "xx", 20, 23, {"mode": "linear"}),
    "volumes": ("GridSample", {"mode": "linear"}, "vx", 20, 18, None),
    "volumes in opsets that have them": ("GridSample", {"mode": "linear"}, "vx", 22, 20, {"mode": "linear"}),
}  # fmt: skip


@pytest.mark.parametrize("case", RESTATED.values(), ids=RESTATED)
def test_a_node_means_the_same_in_another_opset_or_is_left_as_it_is(case: Case) -> None:
    op, attrs, letters, before, after, left = case
    shapes = {"x": [1, 2, 4, 4], "v": [1, 2, 4, 4, 4]}
    inputs = [
        gs.Variable.empty() if letter == "-" else gs.Variable(f"{letter}{index}", np.float32, shapes[letter])
        for index, letter in enumerate(letters)
    ]
    node = gs.Node(op, "n", dict(attrs), inputs, [gs.Variable("y")])
    assert upgrade._restate(node, before, after) == (left is not None)
    assert node.attrs == (attrs if left is None else left)


def test_nodes_of_other_domains_are_expressible_and_standard_ones_by_their_opset() -> None:
    gelu = gs.Node("Gelu", "n", {}, [gs.Variable("x")], [gs.Variable("y")])
    assert upgrade.inexpressible(gelu, 20) is None
    told = upgrade.inexpressible(gelu, 18)
    assert told == f"Gelu of opset {OPSET} cannot be expressed in opset 18, the newest the target loads"
    gelu.domain = "com.microsoft"
    assert upgrade.inexpressible(gelu, 18) is None


def test_the_default_domain_is_declared_once_by_either_name() -> None:
    model = load("g (float[2] x) => (float[2] y) { y = Neg (x) }", opset=14)
    names = [("ai.onnx", 12), ("", 14), ("com.microsoft", 1), ("sdort", 3)]
    model.graph.import_domains = [helper.make_opsetid(*entry) for entry in names]
    upgrade.set_opset(model, 19)
    assert model.graph.opset == 19
    assert [(d.domain, d.version) for d in model.graph.import_domains] == [("", 19), ("com.microsoft", 1), ("sdort", 3)]
    model.graph.import_domains = None
    upgrade.set_opset(model, 20)
    assert [(d.domain, d.version) for d in model.graph.import_domains] == [("", 20)]


COUNTS: dict[str, tuple[int, str, int, dict[str, int]]] = {
    "nothing": (11, "y = Neg (x)", 0, {"Neg": 1}),
    "axes that are an input": (13, "y = ReduceMean <axes = [1], keepdims = 1> (x)", 1, {"ReduceMean": 1}),
    "no axes": (13, "y = ReduceMean <keepdims = 0> (x)", 0, {"ReduceMean": 1}),
    "axes that were one": (13, "y = ReduceSum (x, one)", 0, {"ReduceSum": 1}),
    "pieces": (13, "y, z = Split <axis = 1> (x)", 1, {"Split": 1}),
    "pieces of sizes": (13, "y, z = Split <axis = 1> (x, sizes)", 0, {"Split": 1}),
    "the last axis": (11, "y = Softmax <axis = -1> (x)", 0, {"Softmax": 1}),
    "the last axis by its number": (12, "y = Softmax <axis = 2> (x)", 1, {"Softmax": 1}),
    "the last axis, now": (13, "y = Softmax <axis = 2> (x)", 0, {"Softmax": 1}),
    "an axis before ones": (11, "u = Unsqueeze <axes = [3]> (x)  y = LogSoftmax <axis = 2> (u)", 2,
                            {"Flatten": 1, "LogSoftmax": 1, "Reshape": 1, "Shape": 1, "Unsqueeze": 1}),
    "an axis behind ones": (11, "u = Unsqueeze <axes = [2]> (x)  y = LogSoftmax <axis = 2> (u)", 2,
                            {"LogSoftmax": 1, "Unsqueeze": 1}),
    "all axes": (12, "y = Hardmax <axis = 0> (x)", 1, {"Flatten": 1, "Hardmax": 1, "Reshape": 1, "Shape": 1}),
    "a share that is dropped": (11, "y = Dropout <ratio = 0.3> (x)", 1, {"Dropout": 1}),
    "several": (11, "a = Softmax <axis = 1> (x)  w, z = Split <axis = 2> (a)  y = ReduceSum <axes = [0]> (z)", 3,
                {"Flatten": 1, "ReduceSum": 1, "Reshape": 1, "Shape": 1, "Softmax": 1, "Split": 1}),
    "groups": (18, "y = GroupNormalization <num_groups = 2> (x, two, two)", 1,
               {"Expand": 2, "GroupNormalization": 1, "Reshape": 2, "Unsqueeze": 2}),
    "groups of now": (21, "y = GroupNormalization <num_groups = 2> (x, four, four)", 0, {"GroupNormalization": 1}),
    "newer": (24, "y = Swish (x)", 1, {"Mul": 2, "Sigmoid": 1}),
    "another domain": (11, "y = com.microsoft.QuickGelu (x)", 0, {"com.microsoft.QuickGelu": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTS.values(), ids=COUNTS)
def test_operators_that_are_written_otherwise_are_counted(case: tuple[int, str, int, dict[str, int]]) -> None:
    opset, body, changes, operators = case
    values: dict[str, Any] = {"one": np.array([1]), "sizes": np.array([1, 3])}
    values |= {"two": np.ones(2, np.float32), "four": np.ones(4, np.float32)}
    used = {name: value for name, value in values.items() if f"{name})" in body}
    editor = edit(f"g (float[2, 4, 6] x) => (float[] y) {{ {body} }}", used, opset)
    assert upgrade.run(editor) == changes
    found = count_operators(editor.model)
    assert {op: found.get(op, 0) for op in operators} == operators
    assert set(found) - set(operators) <= {"Constant", "Cast", "CastLike"}
    assert editor.graph.opset == OPSET
    assert upgrade.run(editor) == 0


@pytest.mark.parametrize(("asked", "trains"), [("", False), ("m", True), ("v", True), ("q", True), ("mvpq", True)])
def test_a_batch_normalization_that_is_asked_for_statistics_trains(asked: str, trains: bool) -> None:
    text = "g (float[2, 4, 6] x) => (float[] y) { y, m, v, p, q = BatchNormalization (x, s, s, s, s) }"
    editor = edit(text, {"s": np.ones(4, np.float32)}, 13)
    (node,) = editor.graph.nodes
    for index in (index for index in range(1, 5) if node.outputs[index].name not in list(asked)):
        node.outputs[index] = gs.Variable.empty()
    if not trains:
        upgrade.run(editor)
        return
    with pytest.raises(BadModelError, match="this BatchNormalization of opset 13 trains") as caught:
        upgrade.run(editor)
    assert (caught.value.component, caught.value.node) == ("test", "BatchNormalization.0")
    assert "evaluation mode" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "opset", "said", "advice"),
    [
        ("y = DFT (x)", 17, "DFT of opset 17 has changed since", f"with opset 17 to {OPSET}"),
        ("y = TensorScatter (x, x, i)", 24, f"as opset 24 has it cannot be expressed in opset {OPSET}", "again"),
    ],
)
def test_what_is_refused_says_from_which_opset(text: str, opset: int, said: str, advice: str) -> None:
    values = {"i": np.array([1, 1])}
    used = {name: value for name, value in values.items() if f"{name})" in text}
    editor = Editor(load(f"g (float[2, 4, 6] x) => (float[] y) {{ {text} }}", used, opset))
    with pytest.raises(BadModelError, match=said) as caught:
        upgrade.run(editor)
    assert advice in (caught.value.hint or "")
