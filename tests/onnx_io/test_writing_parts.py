"""The parts of loading and writing a graph by themselves: names, types of attributes, order, domains, value infos."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Described, edit, load, parse

from sdort.errors import BadModelError, OutputError
from sdort.graph.model import Model
from sdort.graph.operator import REQUIRED
from sdort.graph.weights import Absent, Cast, Inline, Reshaped, Stored
from sdort.machine.os_calls import os_calls
from sdort.onnx_io.check_inference import _place, _refusal, _without_shapes, check_inference
from sdort.onnx_io.check_nodes import shorten_domains
from sdort.onnx_io.data_file import Blob, weight_of
from sdort.onnx_io.evaluate import evaluate_nodes
from sdort.onnx_io.graph_import import (
    _constant_value,
    _copy_shared_constants,
    _keep_used_domains,
    _name_nodes,
    unique_name,
)
from sdort.onnx_io.load import _clean_value_info, _Reader
from sdort.onnx_io.own_functions import _parameter, _type_of, functions_of
from sdort.onnx_io.save import _Beginning, _refuse_own_source, _temporary, _write_file, data_file
from sdort.onnx_io.serialize import (
    _attribute,
    _check_defined,
    _dim,
    _list_type,
    _sorted_nodes,
    _typed_variables,
    constants_of,
    serialize,
)
from sdort.operators import load_operators


def test_names_that_are_taken_get_the_first_free_number() -> None:
    taken = {"a", "a__2"}
    assert [unique_name("a", taken) for _ in range(3)] == ["a__1", "a__3", "a__4"]
    assert unique_name("b", taken) == "b"
    assert taken == {"a", "a__1", "a__2", "a__3", "a__4", "b"}


def test_every_node_has_a_name_of_its_own() -> None:
    named = [("Add", ""), ("Add", "x"), ("Mul", "x"), ("Add", ""), ("Mul", "Add_0"), ("Add", ""), ("Mul", "x")]
    graph = gs.Graph([gs.Node(op, name) for op, name in named])
    graph.nodes.append(gs.Node("FusedMatMul", "f", domain="com.microsoft"))
    graph.nodes.append(gs.Node("SimplifiedLayerNormalization", "s"))
    _name_nodes(graph)
    assert [node.name for node in graph.nodes[:-2]] == ["Add_0", "x", "x_0", "Add_1", "Add_0_0", "Add_2", "x_1"]
    assert [node.domain for node in graph.nodes[-2:]] == ["com.microsoft", "com.microsoft"]
    assert {node.domain for node in graph.nodes[:-2]} == {None}


@pytest.mark.parametrize(
    ("name", "value", "dtype"),
    [("value_float", 2.5, "float32"), ("value_int", 3, "int64"), ("value_floats", [2.5, 1.0], "float32"),
     ("value_ints", [3, -4], "int64")],
)  # fmt: skip
def test_values_of_constant_nodes(name: str, value: Any, dtype: str) -> None:
    values = _constant_value(gs.Node("Constant", "c", {name: value}))
    assert (values.dtype, values.shape) == (np.dtype(dtype), np.shape(value))
    assert np.array_equal(values, value)
    array = np.arange(3)
    assert _constant_value(gs.Node("Constant", "c", {"value": gs.Constant("v", array)})) is array


def test_each_reader_of_a_small_constant_has_its_own_and_weights_are_shared() -> None:
    small, large = gs.Constant("small", np.arange(3.0)), gs.Constant("large", np.arange(3.0))
    shown = gs.Constant("shown", np.arange(2.0))
    large._values = Described([3], np.float32)
    clash = gs.Variable("small__1")
    nodes = [
        gs.Node("Add", "a", {}, [small, small], [gs.Variable("x")]),
        gs.Node("Mul", "b", {}, [large, small], [clash]),
        gs.Node("Mul", "c", {}, [large, shown], [gs.Variable("z")]),
    ]
    graph = gs.Graph(nodes, outputs=[nodes[2].outputs[0], shown])
    _copy_shared_constants(graph)
    read = [t for node in nodes for t in node.inputs]
    assert [t.name for t in read] == ["small", "small__2", "large", "small__3", "large", "shown__1"]
    assert read[0] is small
    assert read[2] is read[4] is large
    for tensor in (read[0], read[1], read[3], read[5]):
        assert len(tensor.outputs) == 1
        assert any(t is tensor for t in tensor.outputs[0].inputs)
    assert not shown.outputs
    read[1].values[0] = 9
    assert small.values[0] == 0


def test_only_domains_that_are_used_are_kept() -> None:
    make = onnx.helper.make_opsetid
    imports = [make("ai.onnx", 18), make("com.microsoft", 1), make("a.b", 2), make("in.function", 3)]
    graph = gs.Graph([gs.Node("Add", "a"), gs.Node("C", "c", domain="a.b")], import_domains=imports)
    function = gs.Function("f", domain="sdort")
    function.nodes = [gs.Node("D", "d", domain="in.function"), gs.Node("E", "e")]
    graph.functions = [function]
    _keep_used_domains(graph)
    assert {entry.domain: entry.version for entry in graph.import_domains} == {"": 18, "a.b": 2, "in.function": 3}
    assert all(entry is not old for entry, old in itertools.product(graph.import_domains, imports))


def test_value_infos_are_one_for_a_name() -> None:
    proto = parse("g (float[2] x) => (float[2] y) <float c = {1.0}> { a = Neg (x)  b = Abs (a)  y = Mul (b, c) }")
    make = onnx.helper.make_tensor_value_info
    infos = [
        make("a", 1, [2]),
        make("a", 10, [3]),
        make("x", 1, [4]),
        make("y", 1, [4]),
        make("c", 1, []),
        make("b", 0, [2]),
    ]
    proto.graph.value_info.extend(infos)
    _clean_value_info(proto.graph)
    assert [(v.name, v.type.tensor_type.elem_type) for v in proto.graph.value_info] == [("a", 1)]
    proto.graph.value_info.append(make("b", 1, [2]))
    _clean_value_info(proto.graph)
    assert [v.name for v in proto.graph.value_info] == ["a", "b"]


def test_small_stored_values_are_read_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(np.arange(512, dtype=np.float32).tobytes())
    reader = _Reader(None, "unet", None)
    small, large = (Stored(tmp_path / "data", 4, [count], np.float32) for count in (256, 257))
    assert np.array_equal(reader.read_small(small), np.arange(1, 257))
    assert reader.read_small(large) is large
    inline, array = Inline(np.arange(3)), np.arange(3)
    assert np.array_equal(reader.read_small(inline), array)
    assert reader.read_small(array) is array
    absent = Absent("p", [2], np.float32)
    assert reader.read_small(absent) is absent


@pytest.mark.parametrize(
    ("op", "key", "domain", "wanted"),
    [("Resize", "axes", "", "INTS"), ("Constant", "value_floats", "", "FLOATS"),
     ("Constant", "value_strings", "", "STRINGS"), ("Unheard", "axes", "", "INTS"), ("Resize", "nothing", "", "INTS"),
     ("Constant", "value_floats", "elsewhere", "INTS")],
)  # fmt: skip
def test_an_empty_list_has_the_type_of_its_attribute(op: str, key: str, domain: str, wanted: str) -> None:
    node = gs.Node(op, "n", {}, [], [], domain=domain or None)
    assert _list_type(node, key) == getattr(onnx.AttributeProto, wanted)
    empties: tuple[Any, ...] = ([], ())
    for empty in empties:
        made = _attribute(node, key, empty)
        assert (made.name, made.type) == (key, getattr(onnx.AttributeProto, wanted))


@pytest.mark.parametrize(
    ("value", "kind", "read"),
    [(2, "INT", 2), (2.5, "FLOAT", 2.5), ("text", "STRING", b"text"), ([1, 2], "INTS", [1, 2]),
     ([1.5], "FLOATS", [1.5]), (np.float16, "INT", 10), (np.dtype("int64"), "INT", 7)],
    ids=repr,
)  # fmt: skip
def test_attributes(value: Any, kind: str, read: Any) -> None:
    made = _attribute(gs.Node("Any", "n"), "key", value)
    assert (made.name, made.type) == ("key", getattr(onnx.AttributeProto, kind))
    assert onnx.helper.get_attribute_value(made) == read


def test_the_value_of_a_tensor_attribute_is_read() -> None:
    made = _attribute(gs.Node("Any", "n"), "value", gs.Constant("name", np.array([[1, 2]], np.int32)))
    assert (made.type, made.t.name, list(made.t.dims)) == (onnx.AttributeProto.TENSOR, "name", [1, 2])
    assert np.array_equal(onnx.numpy_helper.to_array(made.t), [[1, 2]])


def ring() -> gs.Graph:
    a, b = gs.Variable("a"), gs.Variable("b")
    return gs.Graph([gs.Node("Neg", "first", {}, [a], [b]), gs.Node("Abs", "second", {}, [b], [a])], outputs=[a])


def test_nodes_are_sorted_by_their_tensors_and_not_by_names() -> None:
    x, same, also = gs.Variable("x"), gs.Variable("t"), gs.Variable("t")
    nodes = [
        gs.Node("Add", "last", {}, [same, also, gs.Variable.empty()], [gs.Variable("y"), gs.Variable.empty()]),
        gs.Node("Abs", "second", {}, [same], [also]),
        gs.Node("Neg", "first", {}, [x], [same, gs.Variable.empty()]),
    ]
    assert [node.name for node in _sorted_nodes(gs.Graph(nodes, inputs=[x]), "unet")] == ["first", "second", "last"]
    with pytest.raises(BadModelError, match="the graph has a cycle") as caught:
        _sorted_nodes(ring(), "vae_encoder")
    assert caught.value.component == "vae_encoder"
    assert caught.value.node in ("first", "second")


@pytest.mark.parametrize("lost", ["input", "output"])
def test_what_nothing_defines_is_refused(lost: str) -> None:
    x, nowhere, y = (gs.Variable(name) for name in ("x", "nowhere", "y"))
    constant = gs.Constant("c", np.ones(2))
    node = gs.Node("Sum", "s", {}, [x, constant, gs.Variable.empty()], [y])
    graph = gs.Graph([node], inputs=[x], outputs=[y, x, constant])
    _check_defined(graph, "unet")
    (node.inputs if lost == "input" else graph.outputs).append(nowhere)
    with pytest.raises(BadModelError, match="used, but nothing defines it") as caught:
        _check_defined(graph, "unet")
    assert (caught.value.component, caught.value.node) == ("unet", "nowhere")


def test_constants_come_once_in_the_order_of_their_use() -> None:
    a, b, c = (gs.Constant(name, np.ones(1)) for name in ("same", "same", "c"))
    nodes = [gs.Node("Add", "n", {}, [a, c], []), gs.Node("Add", "m", {}, [a, gs.Variable("v")], [])]
    found = list(constants_of(gs.Graph(nodes, outputs=[b, gs.Variable("w")]), nodes))
    assert [id(t) for t in found] == [id(b), id(a), id(c)]


def test_types_of_what_is_no_input_or_output_are_written() -> None:
    x, y = gs.Variable("x", np.float32), gs.Variable("y", np.float32)
    typed, untyped = gs.Variable("typed", np.float16, [2]), gs.Variable("untyped")
    nodes = [gs.Node("Any", "n", {}, [x], [typed, untyped, gs.Variable.empty(), y, x])]
    assert [t.name for t in _typed_variables(gs.Graph(nodes, inputs=[x], outputs=[y]), nodes)] == ["typed"]
    assert [_dim(d) for d in (np.int64(3), 4, "n", None)] == [3, 4, "n", None]
    assert type(_dim(np.int64(3))) is int


@pytest.mark.parametrize(("ir", "written"), [(8, 8), (3, 4), (4, 4), (None, onnx.helper.find_min_ir_version_for([]))])
def test_the_header_of_a_model(ir: int | None, written: int) -> None:
    model = load("g (float[2] x) => (float[2] y) { a = Neg (x)  y = com.microsoft.QuickGelu (a) }", opset=21)
    model.graph.ir_version = ir
    model.graph.import_domains = [onnx.helper.make_opsetid("com.microsoft", 1), onnx.helper.make_opsetid("unused", 5)]
    model.graph.nodes.append(gs.Node("C", "c", {}, [model.graph.inputs[0]], [gs.Variable("z")], domain="a.b"))
    model.metadata.update({"z": "1", "a": "2"})
    proto = onnx.ModelProto.FromString(serialize(model, "model.onnx.data").proto)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [
        ("", 21),
        ("a.b", 1),
        ("com.microsoft", 1),
    ]
    least = onnx.helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True)
    assert proto.ir_version == (written if ir is not None else max(least, 4))
    assert proto.producer_name == "sdort"
    assert [(entry.key, entry.value) for entry in proto.metadata_props if len(entry.key) == 1] == [
        ("a", "2"),
        ("z", "1"),
    ]


def test_a_constants_values_in_whatever_form() -> None:
    array = np.arange(4, dtype=np.float32)
    plain = gs.Constant("c", array)
    assert isinstance(weight_of(plain), Inline)
    assert weight_of(plain).dtype == np.float32
    for export, dtype in ((np.float16, np.float16), (onnx.TensorProto.DOUBLE, np.float64)):
        cast = gs.Constant("c", array, export_dtype=export)
        weight = weight_of(cast)
        assert isinstance(weight, Cast)
        assert weight.dtype == np.dtype(dtype)
        assert np.array_equal(weight.load(), array)
    assert isinstance(weight_of(gs.Constant("c", array, export_dtype=np.float32)), Inline)
    described = gs.Constant("c", array)
    described._values = Described([4], np.float32)
    assert weight_of(described) is described._values


def test_the_finished_beginning_of_a_file() -> None:
    sizes = (4, 7, 2, 9)
    blobs = []
    for index, size in enumerate(sizes):
        blobs.append(Blob(f"b{index}", Described([size], np.uint8), 10 * index))
    ends = [10 * index + size for index, size in enumerate(sizes)]
    for order in itertools.permutations(range(4)):
        beginning, done = _Beginning(blobs), set[int]()
        for index in order:
            done.add(index)
            whole = next((i for i in range(4) if i not in done), 4)
            assert beginning.add(blobs[index]) == (ends[whole - 1] if whole else 0)


def test_a_model_is_not_written_over_what_it_reads(tmp_path: Path) -> None:
    source, other = tmp_path / "source", tmp_path / "other"
    source.write_bytes(bytes(16))
    (tmp_path / "link").symlink_to(source)
    stored = Stored(source, 0, [2], np.float32)
    blobs = [
        Blob("a", Described([2], np.float32), 0),
        Blob("b", Reshaped(Cast(stored, np.float16), [2, 1]), 64),
    ]
    _refuse_own_source(blobs, (other, tmp_path / "more"), "unet")
    for targets in ((source, other), (other, source), (other, tmp_path / "link")):
        with pytest.raises(OutputError, match="cannot be written: the model reads its weights from it") as caught:
            _refuse_own_source(blobs, targets, "unet")
        assert (caught.value.component, str(source) in caught.value.message) == ("unet", True)


def test_hidden_names_go_whatever_happens(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert data_file(path) == tmp_path / "model.onnx.data"

    def write_half(model: Path, data: Path) -> None:
        assert model.parent == data.parent == tmp_path
        assert model.name.startswith(".model.onnx.")
        assert data.name.startswith(".model.onnx.data.")
        model.write_bytes(b"a")
        data.write_bytes(b"b")
        raise RuntimeError

    with pytest.raises(RuntimeError), _temporary(path) as names:
        write_half(*names)
    assert list(tmp_path.iterdir()) == []
    with _temporary(path) as one, _temporary(path) as other:
        assert not {*one} & {*other}


@pytest.mark.parametrize("sync", [True, False])
def test_bytes_are_on_the_disk_where_that_is_asked(tmp_path: Path, sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    _write_file(tmp_path / "f", b"12345", sync)
    assert (tmp_path / "f").read_bytes() == b"12345"
    assert synced == [5] * sync


@pytest.mark.parametrize(
    ("number", "raised"), [("EOPNOTSUPP", False), ("EINVAL", False), ("ENOSYS", False), ("ENOSPC", True), ("EIO", True)]
)
def test_a_file_has_its_size_from_the_start(
    tmp_path: Path, number: str, raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        assert (offset, length) == (0, 1000)
        raise OSError(getattr(errno, number), "no")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with open(tmp_path / "f", "w+b") as file:
        if raised:
            with pytest.raises(OSError, match="no"):
                os_calls.reserve(file.fileno(), 1000)
        else:
            os_calls.reserve(file.fileno(), 1000)
    assert (tmp_path / "f").stat().st_size == (0 if raised else 1000)
    monkeypatch.delattr(os, "posix_fallocate")
    with open(tmp_path / "g", "w+b") as file:
        os_calls.reserve(file.fileno(), 77)
    assert (tmp_path / "g").stat().st_size == 77


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("(op_type:Add, node name: n1): [ShapeInferenceError] bad", ("Add", "n1", "bad")),
        ("(op_type:Add): [TypeInferenceError] bad: worse", ("Add", None, "bad: worse")),
        ("first\n(op_type:Mul, node name: m): plain\n(op_type:Add): x", ("Mul", "m", "plain")),
        ("(op_type:Add, node name: a): (op_type:Mul): [X] y", ("Add", "a", "(op_type:Mul): [X] y")),
        ("no place at all", None), ("(op_type:Add, node name: n)", None),
    ],
)  # fmt: skip
def test_what_onnxs_inference_says_is_read(text: str, place: tuple[str, str | None, str] | None) -> None:
    assert _place(text) == place
    error = _refusal(f"{text}", "unet")
    operator, node, reason = place or ("a node", None, text)
    assert (error.message, error.node, error.component) == (
        f"{operator} cannot take its inputs: {reason}",
        node,
        "unet",
    )
    assert error.hint == "ONNX Runtime refuses the model, too. Export it again."


def test_types_are_asked_about_in_order_and_without_the_shapes_of_results() -> None:
    text = "g (float[2, 3] x) => (float[2, 3] y) { b = Abs (a)  y = com.microsoft.BiasGelu (b, v)  a = Mul (x, w) }"
    proto = parse(text, {"w": np.ones(3, np.float32), "v": np.ones(3, np.float32)})
    proto.graph.name = "named"
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", 1, [9]))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("b", 0, [9]))
    stored = proto.graph.initializer[0]
    stored.data_location = onnx.TensorProto.EXTERNAL
    before = proto.SerializeToString()
    copy = _without_shapes(proto, [2, 0, 1], {"w": np.full(3, 2, np.float32), "v": np.zeros(3, np.float32)})
    assert proto.SerializeToString() == before
    assert [node.op_type for node in copy.graph.node] == ["Mul", "Abs", "BiasGelu"]
    assert (copy.graph.name, copy.ir_version) == ("named", proto.ir_version)
    values = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in copy.graph.initializer}
    assert values == {"w": [2.0] * 3, "v": [1.0] * 3}  # only what stands in another file is put in
    assert [(v.name, v.type.tensor_type.HasField("shape")) for v in copy.graph.value_info] == [("a", False)]
    assert [(v.name, v.type.tensor_type.elem_type) for v in copy.graph.output] == [("y", 1)]
    assert not copy.graph.output[0].type.tensor_type.HasField("shape")
    assert list(copy.graph.input) == list(proto.graph.input)
    del proto.opset_import[1:]
    alone = _without_shapes(proto, [2, 0, 1], {})
    assert {entry.domain: entry.version for entry in alone.opset_import}["com.microsoft"] == 1


def test_the_long_name_of_the_default_domain_is_shortened_everywhere() -> None:
    proto = parse("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    function = proto.functions.add(name="f", domain="f")
    for nodes in (proto.graph.node, function.node):
        nodes.add(op_type="Abs", domain="ai.onnx")
        nodes.add(op_type="Abs", domain="a.b")
    shorten_domains(proto)
    assert [node.domain for node in (*proto.graph.node, *function.node)] == ["", "", "a.b", "", "a.b"]


def test_values_of_nodes_are_the_last_ones_first_output() -> None:
    make = onnx.helper.make_node
    feeds = {"a": np.array([3, 1, 2]), "k": np.array([2])}
    nodes = [make("Neg", ["a"], ["n"]), make("TopK", ["n", "k"], ["v", "i"])]
    found = evaluate_nodes(nodes, feeds, 18)
    assert found is not None
    assert found.tolist() == [-1, -2]
    assert found.dtype == np.int64
    assert evaluate_nodes([make("Add", ["a", "nowhere"], ["y"])], feeds, 18) is None
    assert evaluate_nodes([make("Reshape", ["a", "k"], ["y"])], feeds, 18) is None
    root = evaluate_nodes([make("Sqrt", ["a"], ["y"])], {"a": np.array([-1.0], np.float32)}, 18)
    assert root is not None
    assert np.isnan(root[0])  # without a warning


def test_own_operators_have_one_form_in_a_model() -> None:
    operator = next(o for o in load_operators().values() if o.domain == "sdort" and len(o.inputs) > 2)
    full = [gs.Variable(name) for name in operator.inputs]
    part = [gs.Variable(name) if i < 2 else gs.Variable.empty() for i, name in enumerate(operator.inputs)]
    nodes = [
        gs.Node(operator.name, f"n{i}", {}, inputs, [gs.Variable("y")], domain="sdort")
        for i, inputs in enumerate((full, part))
    ]
    nodes.append(gs.Node("Neg", "neg", {}, [full[0]], [gs.Variable("z")]))
    with pytest.raises(BadModelError, match="a model has one form") as caught:
        functions_of(nodes, 18, "unet")
    assert (caught.value.component, caught.value.node) == ("unet", "n1")
    assert f"sdort.{operator.name} is used with {sorted(operator.inputs[:2])} and with {sorted(operator.inputs)}" in (
        caught.value.message
    )
    assert functions_of(nodes[2:], 18, "unet") == []


def test_parameters_of_functions() -> None:
    rows = [
        (REQUIRED, "int", "k"),
        (3, "int", "k: int = 3"),
        (0.5, "float", "k: float = 0.5"),
        ("no", "string", "k: string = no"),
    ]
    assert [(_type_of(d), _parameter("k", d)) for d, _, _ in rows] == [(kind, text) for _, kind, text in rows]


def test_an_untyped_input_is_named() -> None:
    editor = edit("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    model: Model = editor.model
    model.graph.inputs[0].dtype = None
    with pytest.raises(BadModelError, match="an input or output has no dtype") as caught:
        serialize(model, "data")
    assert (caught.value.component, caught.value.node) == ("test", "x")


def test_nodes_and_functions_are_written_as_they_are() -> None:
    text = """g (float[B, 4, 4, 8] x, float[8] w, float[8] b) => (float[B, 4, 4, 8] z) {
        y, s = sdort.GroupNorm <groups = 2, activation = 0, epsilon = 0.5> (x, "", w, w, x, b)
        n = Clip (y, , ones)  z = Add (n, s)
    }"""
    model = load(text.replace(", ones", ", one"), {"one": np.array(1, np.float32)}, opset=21)
    x, y = model.graph.inputs[0], gs.Variable("simple", np.float32)
    node = gs.Node("SimplifiedLayerNormalization", "Add.2", {}, [x, model.graph.inputs[1]], [y], domain="com.microsoft")
    model.graph.nodes.extend([node, gs.Node("Erf", "", {}, [x], [gs.Variable("erf")])])
    for name, domain in (("GroupNorm", "a.b"), ("GroupNorm", "sdort"), ("other", "sdort")):
        inner = gs.Variable("i")
        body = [gs.Node("Neg", "n", {}, [inner], [gs.Variable("o")])]
        made = gs.Function(name, domain=domain, nodes=body, inputs=[inner], outputs=body[0].outputs, opset=21)
        model.graph.functions.append(made)
    model.graph.functions = model.graph.functions[-3:]
    proto = onnx.ModelProto.FromString(serialize(model, "data").proto)
    assert [(f.domain, f.name) for f in proto.functions] == [
        ("sdort", "GroupNorm"),
        ("a.b", "GroupNorm"),
        ("sdort", "other"),
    ]
    assert {n.op_type for n in proto.functions[0].node} != {"Neg"}
    nodes = {node.op_type: node for node in proto.graph.node}
    norm, clip, add = (nodes[op] for op in ("GroupNorm", "Clip", "Add"))
    assert (norm.domain, list(norm.input), list(norm.output)) == ("sdort", ["x", "", "w", "w", "x", "b"], ["y", "s"])
    attributes = [(a.name, onnx.helper.get_attribute_value(a)) for a in norm.attribute]
    assert {("activation", 0), ("epsilon", 0.5), ("groups", 2)} <= {*attributes}
    assert attributes == sorted(attributes)
    assert list(clip.input)[:2] == ["y", ""]
    assert list(add.input) == ["n", "s"]
    assert (nodes["Erf"].name, nodes["Erf"].domain) == ("Erf", "")
    assert nodes["SimplifiedLayerNormalization"].domain == ""  # as files have it
    assert len({n.name for n in proto.graph.node}) == 5
    assert proto.producer_version


def test_a_runtimes_own_operator_is_not_asked_about() -> None:
    """ONNX has LayerNormalization from opset 17 on, ONNX Runtime in each; one is enough for its domain."""
    for opset, domain in ((16, "com.microsoft"), (17, "")):
        proto = parse("g (float[2, 3] x, float[3] w) => (float[2, 3] y) { y = LayerNormalization (x, w) }", opset=opset)
        proto.functions.add(name="f", domain="sdort")
        copy = _without_shapes(proto, [0], {})
        assert [node.domain for node in copy.graph.node] == [domain]
        assert [(e.domain, e.version) for e in copy.opset_import] == [(e.domain, e.version) for e in proto.opset_import]
        assert [f.name for f in copy.functions] == ["f"]
    proto.opset_import.extend([onnx.helper.make_opsetid("ai.onnx", 17)])
    del proto.opset_import[0]  # its own domain comes first, in version 1
    assert [node.domain for node in _without_shapes(proto, [0], {}).graph.node] == [""]


@pytest.mark.parametrize("kind", ["shape", "type"])
def test_what_onnxs_inference_refuses_is_refused(kind: str) -> None:
    proto = parse("g (float[2, 3] x, float[4, 5] k) => (float[2, 5] y) { a = Neg (x)  y = MatMul (a, k) }")
    if kind == "type":
        proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 3
        check_inference(proto, [0, 1], {}, "unet")
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.INT64, None))
    with pytest.raises(BadModelError, match=r"(MatMul|Neg) cannot take its inputs: ") as caught:
        check_inference(proto, [0, 1], {}, "unet")
    assert caught.value.component == "unet"
    assert caught.value.node in ("MatMul.1", "Neg.0")
