"""Parts of reading an untrusted file by themselves: functions' growth, places of data, weights of one value."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper, parser

from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import REQUIRED, Operator
from sdort.graph.weights import Stored
from sdort.onnx_io import check_nodes as nodes_module
from sdort.onnx_io import functions as functions_module
from sdort.onnx_io import wire
from sdort.onnx_io.check_nodes import (
    _check_attribute,
    _check_stated,
    _has_schema,
    _is_replaced,
    _later,
    _without_tensor_values,
    check_attributes,
    check_nodes,
    node_label,
)
from sdort.onnx_io.component_file import _attribute_tensors
from sdort.onnx_io.components import _ENLARGING, _POOLING, _describe, _main_model, _named
from sdort.onnx_io.constant_weights import _is_constant, _is_matrix, _seems_constant, refuse_constant
from sdort.onnx_io.external import ExternalData
from sdort.onnx_io.functions import _expand, _give_defaults, _measure, inline_functions
from sdort.operators import load_operators

DEFAULTS = """<ir_version: 8, opset_import: ["" : 17, "f" : 1, "sdort" : 1]>
g (float[3] x) => (float[3] y) {{
    a = f.leaky {first} (x)
    b = f.outer (a)
    y = sdort.keep (b)
}}
<domain: "f", opset_import: ["" : 17]>
leaky <alpha: float = 0.5> (t) => (r) {{ r = LeakyRelu <alpha: float = @alpha> (t) }}
<domain: "f", opset_import: ["" : 17, "f" : 1]>
outer (t) => (r) {{ r = f.leaky {second} (t) }}
<domain: "sdort", opset_import: ["" : 17, "f" : 1]>
keep (t) => (r) {{ r = f.leaky {third} (t) }}"""


@pytest.mark.parametrize("stated", [("", "", ""), ("<alpha = 0.25>", "", ""), ("", "<alpha = 0.25>", "<alpha = 2.0>")])
def test_calls_have_the_defaults_of_their_functions(stated: tuple[str, str, str]) -> None:
    """onnx.inliner forgets them; what a call states stays, and sdort's own functions stay calls."""
    proto = parser.parse_model(DEFAULTS.format(first=stated[0], second=stated[1], third=stated[2]))
    made = inline_functions(proto, "unet")
    alphas = [0.5 if not text else float(text[9:-1]) for text in stated]
    leaky = [node for node in made.graph.node if node.op_type == "LeakyRelu"]
    assert [[helper.get_attribute_value(a) for a in node.attribute] for node in leaky] == [[a] for a in alphas[:2]]
    assert [node.domain for node in made.graph.node] == ["", "", "sdort"]
    assert [(f.domain, f.name) for f in made.functions] == [("sdort", "keep")]
    x = np.array([-1.0, 2.0, -3.0], np.float32)
    evaluator: Any = onnx.reference.ReferenceEvaluator(made)
    (y,) = evaluator.run(None, {"x": x})
    for alpha in alphas:
        x = np.where(x < 0, x * np.float32(alpha), x)
    np.testing.assert_allclose(y, x, rtol=1e-6)


def test_a_call_that_states_all_is_left_alone_and_other_domains_too() -> None:
    proto = parser.parse_model(DEFAULTS.format(first="<alpha = 0.25>", second="", third=""))
    other = proto.graph.node.add(op_type="leaky", domain="g")
    _give_defaults(proto, {(f.domain, f.name): f for f in proto.functions})
    assert len(proto.graph.node[0].attribute) == 1
    assert not other.attribute
    assert len(proto.functions[1].node[0].attribute) == 1


def test_overloads_are_refused() -> None:
    proto = parser.parse_model(DEFAULTS.format(first="", second="", third=""))
    proto.functions[1].overload = "second"
    with pytest.raises(BadModelError, match="overloaded functions are not supported") as caught:
        inline_functions(proto, "unet")
    assert (caught.value.component, caught.value.node) == ("unet", "outer")


def chain(*bodies: list[str]) -> dict[tuple[str, str], onnx.FunctionProto]:
    """Functions a, b, ... that call these, in which ``-`` is an operator."""
    made = {}
    for index, body in enumerate(bodies):
        function = onnx.FunctionProto(domain="f", name=chr(97 + index))
        for called in body:
            function.node.add(op_type="Neg" if called == "-" else called, domain="" if called == "-" else "f")
        made["f", function.name] = function
    return made


@pytest.mark.parametrize(
    ("bodies", "measured"),
    [
        ([["-"]], {"a": (1, 1)}), ([["-", "-", "-"]], {"a": (3, 1)}), ([[]], {"a": (0, 1)}),
        ([["b", "-"], ["-", "-"]], {"a": (3, 2), "b": (2, 1)}),
        ([["b", "b", "c"], ["c", "-"], ["-", "-"]], {"a": (8, 3), "b": (3, 2), "c": (2, 1)}),
        ([["z", "-"]], {"a": (2, 1)}),
    ],
)  # fmt: skip
def test_functions_are_measured_before_they_are_expanded(
    bodies: list[list[str]], measured: dict[str, tuple[int, int]]
) -> None:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    _measure(("f", "a"), chain(*bodies), found, "unet")
    assert {key[1]: value for key, value in found.items()} == measured


@pytest.mark.parametrize(
    ("bodies", "name"),
    [([["a"]], "a"), ([["b"], ["a"]], None), ([["b"], ["c", "-"], ["b"]], None), ([["-", "a"]], "a")],
)
def test_a_function_that_calls_itself_is_refused(bodies: list[list[str]], name: str | None) -> None:
    with pytest.raises(BadModelError, match="a function calls itself, or nests too deeply") as caught:
        _measure(("f", "a"), chain(*bodies), {}, "unet")
    assert caught.value.component == "unet"
    assert name is None or caught.value.node == name


@pytest.mark.parametrize(("depth", "nodes", "fits"), [(4, 8, True), (3, 8, False), (4, 7, False)])
def test_depth_and_number_of_nodes_are_bounded(
    depth: int, nodes: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of four, each of which calls the next twice: eight nodes."""
    monkeypatch.setattr(functions_module, "MAX_DEPTH", depth)
    monkeypatch.setattr(functions_module, "MAX_NODES", nodes)
    functions = chain(["b", "b"], ["c", "c"], ["d", "d"], ["-"])
    model = ModelProto(functions=functions.values())
    model.graph.node.add(op_type="a", domain="f")
    if fits:
        functions_module._check_expansion(model, functions, "unet")
        return
    with pytest.raises(BadModelError, match="nests too deeply" if depth == 3 else "expand to too many nodes"):
        functions_module._check_expansion(model, functions, "unet")


def test_what_cannot_be_expanded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("[ONNX] no way")

    monkeypatch.setattr(onnx.inliner, "inline_selected_functions", fail)
    with pytest.raises(BadModelError, match=r"its functions cannot be expanded: .*no way") as caught:
        _expand(ModelProto(), [("f", "a")], "unet")
    assert caught.value.component == "unet"


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [("scale", 1, "no number"), ("scale", 1.5, None), ("count", 1.5, "no whole number"), ("count", 2, None),
     ("mode", 3, "no text"), ("mode", "x", None), ("size", 2.5, "no whole number"), ("free", 2, None),
     ("free", "x", None), ("epsilon", 1, "no number"), ("mask_filter_value", 7, "no number"),
     ("mask_filter_value", 7.0, None)],
)  # fmt: skip
def test_attributes_of_own_operators_have_their_type(attribute: str, value: Any, words: str | None) -> None:
    template = next(iter(load_operators().values()))
    defaults = {"count": REQUIRED, "scale": None, "mode": "none", "size": 3, "free": None, "epsilon": 0.5,
                "mask_filter_value": None}  # fmt: skip
    operator: Operator = dataclasses.replace(template, attributes=defaults)
    node = helper.make_node("Op", ["x"], ["y"], "named", **({"count": 1} | {attribute: value}))
    if words is None:
        _check_stated(node, operator, "unet")
    else:
        with pytest.raises(BadModelError, match=f"the {attribute} of a .* is {words}") as caught:
            _check_stated(node, operator, "unet")
        assert (caught.value.component, caught.value.node) == ("unet", "named")
    with pytest.raises(BadModelError, match=r"a .* without count"):
        _check_stated(helper.make_node("Op", ["x"], ["y"]), operator, "unet")
    reference = helper.make_node("Op", ["x"], ["y"])
    reference.attribute.add(name="count", ref_attr_name="outer", type=AttributeProto.FLOAT)
    _check_stated(reference, operator, "unet")


def test_operators_that_were_withdrawn_are_checked_as_their_successors() -> None:
    assert [_is_replaced("GroupNormalization", version) for version in (17, 18, 20, 21, 23)] == [
        False, True, True, False, False
    ]  # fmt: skip
    assert not _is_replaced("Upsample", 10)
    assert _later(18).opset_imports == {"": 21}
    assert _later(22).opset_imports == {"": 22}
    assert [_has_schema(*k) for k in (("Gelu", "", 19), ("Gelu", "", 20), ("Gelu", "a", 20), ("Upsample", "", 10))] == [
        False, True, False, False
    ]  # fmt: skip


def test_tensors_of_attributes_are_emptied_for_the_schema() -> None:
    value = numpy_helper.from_array(np.arange(6, dtype=np.float16).reshape(2, 3), "v")
    node = helper.make_node("Op", ["a", ""], ["b", "c"], "named", domain="d.e", value=value, axis=2, text="x")
    before = node.SerializeToString()
    copy = _without_tensor_values(node)
    assert node.SerializeToString() == before
    assert (copy.op_type, copy.domain, copy.name, [*copy.input], [*copy.output]) == (
        "Op", "d.e", "named", ["a", ""], ["b", "c"]
    )  # fmt: skip
    kept = {a.name: a for a in copy.attribute}
    assert (kept["axis"].i, kept["text"].s) == (2, b"x")
    assert (kept["value"].type, kept["value"].t.data_type, list(kept["value"].t.dims)) == (
        AttributeProto.TENSOR, TensorProto.FLOAT16, [0]
    )  # fmt: skip


def test_nodes_are_called_by_their_name_or_outputs() -> None:
    assert node_label(helper.make_node("Op", [], ["a", "b"], "named")) == "named"
    assert node_label(helper.make_node("Op", [], ["a", "b"])) == "Op -> a, b"


@pytest.mark.parametrize("kind", ["FLOAT", "INT", "STRING", "TENSOR", "FLOATS", "INTS", "STRINGS"])
def test_kinds_of_attributes_that_are_values(kind: str) -> None:
    attribute = AttributeProto(name="k", type=AttributeProto.AttributeType.Value(kind))
    if kind == "TENSOR":
        attribute.t.CopyFrom(numpy_helper.from_array(np.arange(2)))
    _check_attribute(helper.make_node("Op", [], ["a"]), attribute, "unet")


@pytest.mark.parametrize(
    "kind", ["TENSORS", "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS", "UNDEFINED"]
)
def test_kinds_of_attributes_that_are_not(kind: str) -> None:
    attribute = AttributeProto(name="k", type=AttributeProto.AttributeType.Value(kind))
    with pytest.raises(BadModelError, match="attribute 'k' is of an unsupported kind"):
        _check_attribute(helper.make_node("Op", [], ["a"]), attribute, "unet")


@pytest.mark.parametrize("op", ["If", "Loop"])
@pytest.mark.parametrize("kind", ["GRAPH", "GRAPHS"])
def test_control_flow_is_refused_by_its_cause(op: str, kind: str) -> None:
    attribute = AttributeProto(name="body", type=AttributeProto.AttributeType.Value(kind))
    cause = "the condition of this If is not known before it runs" if op == "If" else "attribute 'body' is a subgraph"
    with pytest.raises(BadModelError, match=f"{cause}; control flow is not supported") as caught:
        _check_attribute(helper.make_node(op, [], ["a"], "named"), attribute, "unet")
    assert (caught.value.component, caught.value.node) == ("unet", "named")


def test_references_are_of_functions_only() -> None:
    node = helper.make_node("Op", [], ["a"])
    node.attribute.add(name="k", ref_attr_name="outer", type=AttributeProto.INT)
    check_attributes(node, "unet", in_function=True)
    with pytest.raises(BadModelError, match="attribute 'k' refers to an attribute of a function"):
        check_attributes(node, "unet")


@pytest.mark.parametrize(("most", "fits"), [(3, True), (2, False)])
def test_the_most_nodes(most: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "MAX_NODES", most)
    nodes = [helper.make_node("Neg", ["x"], [f"y{i}"]) for i in range(3)]
    if fits:
        check_nodes(nodes, {"": 18}, set(), "unet")
    else:
        with pytest.raises(BadModelError, match="3 nodes are too many"):
            check_nodes(nodes, {"": 18}, set(), "unet")


def test_a_function_may_have_the_name_of_an_own_or_unknown_operator() -> None:
    node = helper.make_node("Any", ["x"], ["y"], domain="a.b")
    check_nodes([node], {"": 18}, {("a.b", "Any")}, "unet")  # a function's domain need not be imported
    with pytest.raises(BadModelError, match=r"domain 'a\.b' is used but not imported"):
        check_nodes([node], {"": 18}, {("a.c", "Any"), ("a.b", "Other")}, "unet")
    for op, domain, opsets, known in (
        ("BiasGelu", MICROSOFT, {"": 18, MICROSOFT: 1}, True), ("Nothing", MICROSOFT, {"": 18, MICROSOFT: 1}, False),
        ("Nothing", "sdort", {"": 18, "sdort": 1}, False), ("Nothing", "ai.onnx.ml", {"": 18, "ai.onnx.ml": 3}, False),
        ("Scaler", "ai.onnx.ml", {"": 18, "ai.onnx.ml": 3}, True),
    ):  # fmt: skip
        made = helper.make_node(op, ["x"], ["y"], domain=domain)
        if known:
            check_nodes([made], opsets, set(), "unet")
        else:
            with pytest.raises(BadModelError, match=rf"unknown operator {domain}\.{op} \(opset {opsets[domain]}\)"):
                check_nodes([made], opsets, set(), "unet")


def external(name: str, dims: list[int], **entries: str) -> TensorProto:
    tensor = TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT16, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_places_of_external_data(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "one").write_bytes(bytes(100))
    (tmp_path / "two").write_bytes(bytes(12))
    found = ExternalData(tmp_path / "model.onnx", "unet")
    one, two = (tmp_path / "inner" / "one").resolve(), (tmp_path / "two").resolve()
    assert found.locate(external("a", [2, 3], location="inner/one")) == (one, 0)
    assert found.locate(external("b", [2, 3], location="inner/one", offset="88", length="12")) == (one, 88)
    assert found.locate(external("c", [6], location="two")) == (two, 0)
    assert found.locate(external("d", [0], location="two", offset="12")) == (two, 12)
    for offset, length, message in (
        ("89", "12", "its data ends at byte 101, but one has 100 bytes"),
        ("0", "11", "needs 12 bytes, its length says 11"),
        ("0", "13", "needs 12 bytes, its length says 13"), ("-1", "12", "external data's offset is '-1'"),
        ("0", "1" * 20, "external data's length is"), ("", "12", "external data's offset is ''"),
    ):  # fmt: skip
        with pytest.raises(BadModelError, match=message) as caught:
            found.locate(external("e", [2, 3], location="inner/one", offset=offset, length=length))
        assert (caught.value.component, caught.value.node) == ("unet", "e")
    found.check_overlaps()  # a and c lie in two files
    found.locate(external("f", [2, 3], location="inner/one", offset="88"))  # tied
    found.check_overlaps()
    found.locate(external("g", [2], location="inner/one", offset="12"))  # behind the first
    found.check_overlaps()
    found.locate(external("h", [3], location="inner/one", offset="10"))
    with pytest.raises(BadModelError, match="its data overlaps that of another tensor in one") as caught:
        found.check_overlaps()
    assert (caught.value.component, caught.value.node) == ("unet", "h")


def test_no_two_entries_of_one_key(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(100))
    tensor = external("a", [6], location="one", checksum="x")
    found = ExternalData(tmp_path / "model.onnx", "unet")
    assert found._entries(tensor) == {"location": "one", "checksum": "x"}
    tensor.external_data.add(key="location", value="one")
    with pytest.raises(BadModelError, match="external data has two entries 'location'"):
        found.locate(tensor)


def stored(path: Path, array: np.ndarray[Any, Any], offset: int = 0) -> Stored:
    path.write_bytes(bytes(range(offset)) + array.tobytes())
    return Stored(path, offset, array.shape, array.dtype)


@pytest.mark.parametrize(
    ("dtype", "shape", "matrix"),
    [("float32", (16, 17), True), ("float32", (16, 16), False), ("float32", (600,), False), ("float16", (32, 17), True),
     ("int64", (64, 64), False), ("int32", (64, 64), False), ("bool", (64, 64), False), ("int8", (64, 64), True),
     ("float32", (2, 2, 65), True)],
)  # fmt: skip
def test_which_weights_may_say_nothing(dtype: str, shape: tuple[int, ...], matrix: bool, tmp_path: Path) -> None:
    assert _is_matrix(stored(tmp_path / "w", np.zeros(shape, dtype))) is matrix


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(
    ("place", "seen"),
    [
        (0, True),
        (63, True),
        (64, False),
        (500, True),
        (563, True),
        (564, False),
        (935, False),
        (936, True),
        (999, True),
    ],
)
def test_three_samples_are_looked_at(dtype: str, place: int, seen: bool, tmp_path: Path) -> None:
    values = np.full((10, 100), 3, dtype)
    values.reshape(-1)[place] = 1
    weight = stored(tmp_path / "w", values, offset=8)
    assert _seems_constant(weight) is not seen
    assert not _is_constant(weight)


@pytest.mark.parametrize("value", [0.0, 2.5, np.nan, np.inf])
def test_a_weight_of_one_value_is_seen_whole(value: float, tmp_path: Path) -> None:
    weight = stored(tmp_path / "w", np.full((40, 50), value, np.float32), offset=4)
    assert _seems_constant(weight)
    assert _is_constant(weight)
    (tmp_path / "w").write_bytes(bytes(101))
    assert not _seems_constant(weight)  # cut off


@pytest.mark.parametrize(("varying", "refused"), [(0, True), (5, True), (6, False), (50, False)])
def test_a_tenth_of_the_bytes_has_to_vary(varying: int, refused: bool, tmp_path: Path) -> None:
    values = np.zeros((50, 20, 20), np.float32)
    values[:varying] += np.arange(20, dtype=np.float32)
    whole = stored(tmp_path / "w", values)
    weights = [Stored(whole.path, 1600 * index, (20, 20), whole.dtype) for index in range(50)]
    vector = stored(tmp_path / "vector", np.arange(10**5, dtype=np.float32))
    if not refused:
        refuse_constant([*weights, vector, object()], "unet")
        return
    with pytest.raises(BadModelError, match=rf"{100 - 2 * varying}% of their bytes .*the largest: 0\)") as caught:
        refuse_constant([*weights, vector, object()], "unet")
    assert caught.value.component == "unet"
    refuse_constant(weights[-40:], "unet")  # too little to say


def test_tensors_of_attributes_are_found_in_functions_too() -> None:
    model = ModelProto()
    function = model.functions.add(name="f")
    for nodes, name in ((model.graph.node, "a"), (function.node, "b")):
        node = nodes.add(op_type="Constant")
        node.attribute.add(name="value", type=AttributeProto.TENSOR, t=TensorProto(name=name))
        node.attribute.add(name="other", type=AttributeProto.INT, i=1)
        node.attribute.add(name="value", type=AttributeProto.TENSOR, ref_attr_name="outer", t=TensorProto(name="no"))
        node.attribute.add(name="last", type=AttributeProto.TENSOR, t=TensorProto(name=f"{name}2"))
    assert [tensor.name for tensor in _attribute_tensors(model)] == ["a", "a2", "b", "b2"]


def test_a_serialized_model_is_parsed_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelProto(ir_version=8)
    model.graph.name = "named"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(300, np.float32), "large"))
    content = model.SerializeToString()
    read = wire.parse_graph(content, "the trace", "unet")
    assert (read.graph.name, read.graph.initializer[0].data_location) == ("named", TensorProto.EXTERNAL)
    for broken in (content[:-1], b"\xff" * 20, bytes(8)):
        with pytest.raises(BadModelError, match="the trace holds no ONNX model, or one that is too large") as caught:
            wire.parse_graph(broken, "the trace", "unet")
        assert caught.value.component == "unet"
    monkeypatch.setattr(wire, "MAX_GRAPH_BYTES", 100)
    with pytest.raises(BadModelError, match="the trace holds no ONNX model, or one that is too large"):
        wire.parse_graph(content, "the trace", "unet")
    monkeypatch.undo()
    text = content.replace(b"named", b"\xff\xfe\xfdab")
    with pytest.raises(BadModelError, match="the trace has names that are not text") as caught:
        wire.parse_graph(text, "the trace", "unet")
    assert caught.value.component == "unet"


def test_operators_that_tell_the_halves_of_an_autoencoder_apart() -> None:
    assert {"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"} == _POOLING
    assert {"Resize", "Upsample", "ConvTranspose", "DepthToSpace", "InterleavePhases"} == _ENLARGING


def test_the_model_of_a_folder_and_the_names_of_the_others(tmp_path: Path) -> None:
    root = tmp_path / "root"
    a, b, c, d, e = (root / name for name in ("x/one.onnx", "y/model.onnx", "y/two.onnx", "z/p.onnx", "z/q.onnx"))
    files = [a, b, c, d, e]
    assert [_main_model(root / name, files) for name in ("x", "y", "z", "w")] == [a, b, None, None]
    assert _main_model(root, files) is None
    assert _named(root, files, ()) == {"x": a, "y": b, "y/two": c, "z/p": d, "z/q": e}
    assert _named(root, files, ("x", "y", "y/two")) == {"x/one": a, "y/model": b, "y/two.onnx": c, "z/p": d, "z/q": e}
    lone = root / "model.onnx"
    assert _named(root, [lone], ()) == {"root": lone}
    assert _named(root, [root / "other.onnx"], ()) == {"other": root / "other.onnx"}


def test_a_value_is_described_with_its_type_and_sizes() -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["b", 4, None])
    assert _describe(info) == "x: float16[b, 4, ?]"
