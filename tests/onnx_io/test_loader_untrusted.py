"""What the loader refuses: every message names the component and the node or tensor, and no weight was read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper, parser

from sdort.errors import BadModelError
from sdort.graph.weights import Stored
from sdort.onnx_io.load import from_proto, load_model
from sdort.onnx_io.wire import encode_varint, read_graph

LARGE = np.arange(512, dtype=np.float32).reshape(16, 32)  # 2 KiB
Change = Callable[[ModelProto], object]


@pytest.fixture(autouse=True)
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The weights that were read; a refusal must come before the first."""
    names: list[str] = []
    monkeypatch.setattr(Stored, "load", lambda self: names.append(str(self)))
    return names


def model() -> ModelProto:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 16] x) => (float[N, 32] y) {
      [matmul] h = MatMul (x, w)  [add] i = Add (h, b)  [reshape] y = Reshape (i, shape) }"""
    proto = parser.parse_model(text)
    arrays = {"w": LARGE, "b": LARGE[0], "shape": np.array([-1, 32])}
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return proto


def weight(proto: ModelProto, name: str = "w") -> TensorProto:
    tensors: dict[str, TensorProto] = {tensor.name: tensor for tensor in proto.graph.initializer}
    return tensors[name]


def refusal(path: Path, read: list[str]) -> BadModelError:
    with pytest.raises(BadModelError) as caught:
        load_model(path, "unet")
    assert caught.value.component == "unet"
    assert read == []
    return caught.value


def set_dims(*dims: int, name: str = "w") -> Change:
    return lambda proto: weight(proto, name).dims.__setitem__(slice(None), dims)


def add_node(op_type: str, inputs: list[str], outputs: list[str], **kwargs: Any) -> Change:
    return lambda proto: proto.graph.node.append(helper.make_node(op_type, inputs, outputs, "extra", **kwargs))


def set_opset(version: int, domain: str = "") -> Change:
    def change(proto: ModelProto) -> None:
        proto.opset_import[0].CopyFrom(helper.make_opsetid(domain, version))

    return change


def typed(field: str, count: int, kind: int = TensorProto.FLOAT) -> Change:
    def change(proto: ModelProto) -> None:
        weight(proto, "b").ClearField("raw_data")
        weight(proto, "b").data_type = kind
        getattr(weight(proto, "b"), field).extend([b""] * count if field == "string_data" else [1] * count)

    return change


def typed_beside_no_bytes(proto: ModelProto) -> None:
    """Readers differ in which of the two they take."""
    typed("float_data", 32)(proto)
    weight(proto, "b").raw_data = b""


def typed_and_external(proto: ModelProto) -> None:
    typed("float_data", 32)(proto)
    weight(proto, "b").data_location = TensorProto.EXTERNAL


def cycle(proto: ModelProto) -> None:
    proto.graph.node[0].input[0] = "i"


def sequence_input(proto: ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_sequence_value_info("seq", TensorProto.FLOAT, None))


def optional_output(proto: ModelProto) -> None:
    proto.graph.output[0].type.CopyFrom(helper.make_optional_type_proto(proto.graph.output[0].type))


def sparse(proto: ModelProto) -> None:
    values, indices = numpy_helper.from_array(LARGE[0], "s"), numpy_helper.from_array(np.arange(32), "si")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [64]))


def subgraph(proto: ModelProto) -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["y"], ["z"])], "b", [], [helper.make_empty_tensor_value_info("z")]
    )
    proto.graph.node.append(helper.make_node("If", ["c"], ["o"], "branch", then_branch=branch, else_branch=branch))


def bad_text(proto: ModelProto) -> None:
    proto.graph.node[0].attribute.add(name="note", type=AttributeProto.STRING, s=b"\xff\xfe")


def attribute_twice(proto: ModelProto) -> None:
    proto.graph.node[2].attribute.extend([helper.make_attribute("allowzero", 0)] * 2)


def attribute_tensor(proto: ModelProto) -> None:
    value = TensorProto(data_type=TensorProto.FLOAT, dims=[2**40])
    proto.graph.node.append(helper.make_node("Constant", [], ["c"], "extra", value=value))


def function_in(text: str) -> Change:
    def change(proto: ModelProto) -> None:
        header = '<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[N] x) => (float[N] y) { y = f.a (x) }'
        proto.CopyFrom(parser.parse_model(header + text))

    return change


FUNCTION = '<domain: "f", opset_import: ["" : 17, "f" : 1]> {0} (t) => (r) {{ {1} }}'
BOMB = "".join(FUNCTION.format(chr(97 + i), f"s = f.{chr(98 + i)} (t) r = f.{chr(98 + i)} (s)") for i in range(25))
DEEP = "".join(
    FUNCTION.format(name, f"r = f.{called} (t)")
    for name, called in zip(["a", *(f"a{i}" for i in range(80))], (f"a{i}" for i in range(81)), strict=False)
)


def declared(name: str, kind: int) -> Change:
    return lambda proto: proto.graph.value_info.append(helper.make_tensor_value_info(name, kind, None))


def widen_input(proto: ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 17


CASES: dict[str, tuple[Change, str, str | None]] = {
    "an input that does not fit": (widen_input, "MatMul cannot take its inputs: Incompatible dimensions", "matmul"),
    "a declared type that is not": (
        declared("h", TensorProto.DOUBLE),
        "Add cannot take its inputs: B has inconsistent type",
        "add",
    ),
    "a cast to nothing": (
        add_node("Cast", ["x"], ["c"], to=0),
        "a node cannot take its inputs: Invalid tensor data type 0",
        None,
    ),
    "a flag of 7": (add_node("ReduceMean", ["x"], ["c"], keepdims=7), "its keepdims is 7", "extra"),
    "claims 2**40 elements": (set_dims(2**20, 2**20), r"needs 4398046511104 bytes", "w"),
    "overflows 64 bits": (set_dims(2**62, 2**62), "impossible shape", "w"),
    "overflows with a zero": (set_dims(0, 2**62, 2**62), "impossible shape", "w"),
    "overflows numpy with a zero": (set_dims(0, 2**61), "impossible shape", "w"),
    "negative dimension": (set_dims(-16, -32), "negative dimension", "w"),
    "negative last dimension": (set_dims(16, -32), "negative dimension", "w"),
    "too few values": (set_dims(16, 33), "needs 2112 bytes", "w"),
    "too many values": (set_dims(16, 31), "needs 1984 bytes", "w"),
    "small tensor's size": (set_dims(31, name="b"), "needs 124 bytes, the file has 128", "b"),
    "rank": (set_dims(*[1] * 40, name="b"), "rank 40", "b"),
    "strings": (lambda p: setattr(weight(p), "data_type", TensorProto.STRING), "type STRING", "w"),
    "4-bit": (lambda p: setattr(weight(p), "data_type", TensorProto.INT4), "type INT4", "w"),
    "no type": (lambda p: setattr(weight(p), "data_type", 0), "type UNDEFINED", "w"),
    "unheard-of type": (lambda p: setattr(weight(p), "data_type", 99), "type 99", "w"),
    "typed count": (typed("float_data", 31), "needs 128 bytes, the file has 124", "b"),
    "typed in the wrong field": (typed("int64_data", 32), "FLOAT values stand in int64_data", "b"),
    "given twice": (lambda p: weight(p, "b").float_data.extend([1] * 32), "given twice", "b"),
    "given in two fields": (
        lambda p: (typed("float_data", 32)(p), weight(p, "b").int32_data.extend([1] * 32)),
        "given twice",
        "b",
    ),
    "given beside no bytes": (typed_beside_no_bytes, "given twice", "b"),
    "typed and external": (typed_and_external, "both inside and outside", "b"),
    "not marked as external": (
        lambda p: weight(p, "b").external_data.add(key="location", value="data"),
        "not marked as such",
        "b",
    ),
    "type attribute": (
        lambda p: p.graph.node[0].attribute.add(name="t", type=AttributeProto.TYPE_PROTO),
        "unsupported kind",
        "matmul",
    ),
    "segment": (lambda p: weight(p).segment.SetInParent(), "segmented", "w"),
    "attribute's tensor": (attribute_tensor, "attribute 'value'.*needs 4398046511104", "extra"),
    "initializer twice": (lambda p: p.graph.initializer.append(weight(p)), "two initializers", "w"),
    "input twice": (lambda p: p.graph.input.append(p.graph.input[0]), "two graph inputs", "x"),
    "output twice": (lambda p: p.graph.output.append(p.graph.output[0]), "two graph outputs", "y"),
    "value twice": (add_node("Neg", ["x"], ["h"]), "two node outputs", "h"),
    "node writes an input": (add_node("Neg", ["h"], ["x"]), "writes an input", "x"),
    "node writes an initializer": (add_node("Neg", ["h"], ["w"]), "writes an input or initializer", "w"),
    "nameless initializer": (lambda p: p.graph.initializer.add(data_type=1, dims=[0]), "without a name", None),
    "nonsense version": (lambda p: p.opset_import.add(domain="a.b", version=2**40), "in version 1099511627776", None),
    "version 0 of a domain": (lambda p: p.opset_import.add(domain="a.b", version=0), "in version 0", None),
    "undefined input": (add_node("Neg", ["nowhere"], ["z"]), "nothing defines it", "nowhere"),
    "undefined output": (lambda p: setattr(p.graph.output[0], "name", "nowhere"), "nothing defines it", "nowhere"),
    "cycle": (cycle, "cycle", "add"),
    "own input": (lambda p: p.graph.node[0].input.__setitem__(0, "h"), "cycle", "matmul"),
    "unknown operator": (add_node("Florb", ["x"], ["z"]), "unknown operator Florb", "extra"),
    "operator of a later opset": (add_node("Gelu", ["x"], ["z"]), r"unknown operator Gelu \(opset 17\)", "extra"),
    "removed operator": (add_node("Upsample", ["x", "x"], ["z"]), "unknown operator Upsample", "extra"),
    "domain not imported": (add_node("BiasGelu", ["x", "b"], ["z"], domain="com.microsoft"), "not imported", "extra"),
    "unheard-of domain": (
        lambda p: (
            set_opset(17)(p),
            p.opset_import.add(domain="a.b", version=1),
            add_node("C", [], ["z"], domain="a.b")(p),
        ),
        r"unknown operator a\.b\.C",
        "extra",
    ),
    "unheard-of contrib operator": (
        lambda p: (
            p.opset_import.add(domain="com.microsoft", version=1),
            add_node("C", [], ["z"], domain="com.microsoft")(p),
        ),
        r"unknown operator com\.microsoft\.C",
        "extra",
    ),
    "our domain without a function": (
        lambda p: (p.opset_import.add(domain="sdort", version=1), add_node("C", [], ["z"], domain="sdort")(p)),
        r"unknown operator sdort\.C",
        "extra",
    ),
    "standard operator of a function's name": (
        lambda p: (
            function_in('<domain: "sdort", opset_import: ["" : 17]> keep (t) => (r) { r = Abs (t) }')(p),
            set_opset(17)(p),
            p.opset_import.add(domain="sdort", version=1),
            p.graph.node[0].CopyFrom(helper.make_node("keep", ["x"], ["y"], "extra")),
        ),
        r"unknown operator keep \(opset 17\)",
        "extra",
    ),
    "schema: inputs": (add_node("MatMul", ["x"], ["z"]), "not a valid MatMul", "extra"),
    "schema: attribute": (add_node("Neg", ["x"], ["z"], axis=1), "not a valid Neg", "extra"),
    "split into fewer parts": (
        lambda p: (set_opset(18)(p), add_node("Split", ["x"], ["s", "t"], axis=1, num_outputs=1)(p)),
        "a Split into 1 parts has 2 outputs",  # onnx's shape inference aborts the process
        "extra",
    ),
    "split into more parts": (
        lambda p: (set_opset(18)(p), add_node("Split", ["x"], ["s", "t"], axis=1, num_outputs=3)(p)),
        "a Split into 3 parts has 2 outputs",
        "extra",
    ),
    "split by an attribute": (
        lambda p: (set_opset(11)(p), add_node("Split", ["x"], ["s", "t"], axis=1, split=[8, 4, 4])(p)),
        "a Split into 3 parts has 2 outputs",
        "extra",
    ),
    "causal in another way": (
        lambda p: (set_opset(23)(p), add_node("Attention", ["x", "x", "x"], ["z"], is_causal=2)(p)),
        "its is_causal is 2",  # ONNX Runtime's is not, onnx's own is
        "extra",
    ),
    "attention without heads": (
        lambda p: (set_opset(23)(p), add_node("Attention", ["x", "x", "x"], ["z"], q_num_heads=1, kv_num_heads=0)(p)),
        "an Attention with kv_num_heads = 0",  # ONNX Runtime divides by it
        "extra",
    ),
    "attention without query heads": (
        lambda p: (set_opset(23)(p), add_node("Attention", ["x", "x", "x"], ["z"], q_num_heads=0, kv_num_heads=1)(p)),
        "an Attention with q_num_heads = 0",
        "extra",
    ),
    "schema: attribute type": (add_node("Softmax", ["x"], ["z"], axis=1.5), "not a valid Softmax", "extra"),
    "constant of strings": (add_node("Constant", [], ["z"], value_string="a"), "Constant with", "extra"),
    "constant of nothing": (add_node("Constant", [], ["z"]), "Constant with", "extra"),
    "constant of two values": (add_node("Constant", [], ["z"], value_int=1, value_float=2.0), "Constant with", "extra"),
    "attribute twice": (attribute_twice, "the name of another", "reshape"),
    "nameless attribute": (
        lambda p: p.graph.node[0].attribute.add(type=AttributeProto.INT, i=1),
        "an attribute has no name",
        "matmul",
    ),
    "attribute that is no text": (bad_text, "not text", "matmul"),
    "attribute of a list that is no text": (
        lambda p: p.graph.node[0].attribute.add(name="n", type=AttributeProto.STRINGS, strings=[b"a", b"\xff\xfe"]),
        "not text",
        "matmul",
    ),
    "attribute that refers": (
        lambda p: p.graph.node[2].attribute.add(name="allowzero", type=AttributeProto.INT, ref_attr_name="a"),
        "refers to an attribute of a function",
        "reshape",
    ),
    "subgraph": (subgraph, "control flow is not supported", "branch"),
    "sequence": (sequence_input, "kind sequence_type", "seq"),
    "optional": (optional_output, "kind optional_type", "y"),
    "sparse": (sparse, "sparse", None),
    "string input": (lambda p: p.graph.input.append(helper.make_tensor_value_info("t", 8, [])), "STRING", "t"),
    "negative input": (
        lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", -4),
        "impossible shape",
        "x",
    ),
    "input without a type": (lambda p: p.graph.input.add(name="t"), "kind unknown", "t"),
    "output without a type": (lambda p: p.graph.output[0].ClearField("type"), "kind unknown", "y"),
    "input without an element type": (
        lambda p: p.graph.input.append(helper.make_tensor_value_info("t", TensorProto.UNDEFINED, [1])),
        "element type UNDEFINED",
        "t",
    ),
    "rank of an input": (
        lambda p: p.graph.input.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [1] * 33)),
        "impossible shape",
        "t",
    ),
    "negative value": (
        lambda p: p.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [-4])),
        "impossible shape",
        "h",
    ),
    "value that is a sequence": (
        lambda p: p.graph.value_info.append(helper.make_tensor_sequence_value_info("h", TensorProto.FLOAT, None)),
        "kind sequence_type",
        "h",
    ),
    "no outputs": (lambda p: p.graph.ClearField("output"), "no outputs", None),
    "no graph": (lambda p: p.ClearField("graph"), "no graph", None),
    "no opset": (set_opset(1, "com.microsoft"), "no opset of the default domain", None),
    "old opset": (set_opset(10), "opset 10 is not supported", None),
    "future opset": (set_opset(99), "opset 99 is not supported", None),
    "two opsets": (lambda p: p.opset_import.add(domain="ai.onnx", version=18), "two versions", None),
    "future IR": (lambda p: setattr(p, "ir_version", 99), "IR version 99", None),
    "old IR": (lambda p: setattr(p, "ir_version", 2), "IR version 2", None),
    "no IR": (lambda p: p.ClearField("ir_version"), "IR version 0", None),
    "function that calls itself": (function_in(FUNCTION.format("a", "r = f.a (t)")), "calls itself", "a"),
    "functions in a ring": (
        function_in(FUNCTION.format("a", "r = f.b (t)") + FUNCTION.format("b", "r = f.a (t)")),
        "calls itself",
        None,
    ),
    "functions that explode": (function_in(BOMB + FUNCTION.format("z", "r = Neg (t)")), "too many nodes", None),
    "functions that nest": (function_in(DEEP + FUNCTION.format("a80", "r = Neg (t)")), "nests too deeply", None),
    "function twice": (function_in(FUNCTION.format("a", "r = Neg (t)") * 2), "overloaded", "a"),
    "function with undefined names": (
        function_in(FUNCTION.format("a", "r = Neg (q)")),
        "function a, but not defined",
        "q",
    ),
    "function without its output": (function_in(FUNCTION.format("a", "s = Neg (t)")), "output is not defined", "a"),
    "function that defines twice": (function_in(FUNCTION.format("a", "r = Neg (t) r = Abs (t)")), "defined twice", "r"),
    "function that writes its input": (
        function_in(FUNCTION.format("a", "t = Neg (t) r = Abs (t)")),
        "defined twice",
        "t",
    ),
    "function with equal inputs": (
        function_in(FUNCTION.format("a", "r = Neg (t)").replace("(t)", "(t, t)", 1)),
        "without a name of their own",
        "a",
    ),
    "function of another opset": (
        function_in(FUNCTION.format("a", "r = Neg (t)").replace("17", "18")),
        "imports ai.onnx 18, the model 17",
        "a",
    ),
    "function of unknown operators": (
        function_in(FUNCTION.format("a", "r = Florb (t)")),
        "unknown operator Florb",
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str, tmp_path: Path, read: list[str]) -> None:
    change, message, node = CASES[name]
    proto = model()
    change(proto)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    error = refusal(path, read)
    assert re.search(message, error.message), error.message
    if node:
        assert error.node == node


def test_functions_that_cannot_be_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no\nreason")

    proto = ModelProto()
    function_in(FUNCTION.format("a", "r = Neg (t)"))(proto)
    monkeypatch.setattr(onnx.inliner, "inline_selected_functions", fail)
    with pytest.raises(BadModelError, match=r"cannot be expanded: no$"):
        from_proto(proto, None, "unet")


def test_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdort.onnx_io.check_nodes.MAX_NODES", 2)
    with pytest.raises(BadModelError, match="3 nodes are too many"):
        from_proto(model(), None, "unet")
    monkeypatch.setattr("sdort.onnx_io.check_nodes.MAX_NODES", 3)
    assert len(from_proto(model(), None, "unet").graph.nodes) == 3


def test_the_model_without_damage_loads() -> None:
    assert len(from_proto(model(), None, "unet").graph.nodes) == 3


@pytest.mark.parametrize("ir_version", [3, onnx.IR_VERSION])
@pytest.mark.parametrize("opset", [11, onnx.defs.onnx_opset_version()])
def test_the_oldest_and_the_newest_versions_load(ir_version: int, opset: int) -> None:
    proto = model()
    proto.ir_version = ir_version
    set_opset(opset)(proto)
    assert from_proto(proto, None, "unet").graph.opset == opset


def test_a_rank_of_32_is_the_most() -> None:
    proto = model()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros([1] * 32, np.float32), "r"))
    proto.graph.input.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [1] * 32))
    assert len(from_proto(proto, None, "unet").graph.inputs) == 2
    proto = model()
    set_dims(*[1] * 33, name="b")(proto)
    with pytest.raises(BadModelError, match="rank 33"):
        from_proto(proto, None, "unet")


def test_versions_just_beyond_are_refused() -> None:
    for change, words in (
        (set_opset(onnx.defs.onnx_opset_version() + 1), "opset .* is not supported"),
        (lambda p: setattr(p, "ir_version", onnx.IR_VERSION + 1), "IR version"),
    ):
        proto = model()
        change(proto)
        with pytest.raises(BadModelError, match=words):
            from_proto(proto, None, "unet")


# ------------------------------------------------------------------------------------------------- broken files


def test_files_that_are_no_model(tmp_path: Path, read: list[str]) -> None:
    good = model().SerializeToString()
    path = tmp_path / "model.onnx"
    contents = [
        b"",
        b"\0" * 64,
        b"<html>not found</html>" * 99,
        good[:-1],
        good[: len(good) // 2],
        good + b"\xff",
        b"PK\x03\x04",
    ]
    contents += [b"\x0a" * 5000, b"\x3a\xff\xff\xff\xff\x0f", b"\x0b" * 500]
    for content in contents:
        path.write_bytes(content)
        assert "model.onnx" in refusal(path, read).message, content[:20]


def test_deeply_nested_messages(tmp_path: Path, read: list[str]) -> None:
    """graph > node > attribute > graph > ..., 5000 deep: deeper than any parser's stack."""
    content = b""
    for field in (6, 5, 1) * 1700:
        content = encode_varint(field << 3 | 2) + encode_varint(len(content)) + content
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08\x3a" + encode_varint(len(content)) + content)
    assert "not an ONNX model" in refusal(path, read).message


def test_endless_empty_fields_are_too_large(tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each empty node costs two bytes in the file and a hundred when parsed."""
    monkeypatch.setattr("sdort.onnx_io.wire.MAX_GRAPH_BYTES", 2**20)
    graph = b"\x0a\x00" * (2**20 // 60)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a" + encode_varint(len(graph)) + graph)
    assert "too large" in refusal(path, read).message


def test_names_that_are_not_text(tmp_path: Path, read: list[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString().replace(b"matmul", b"mat\xff\xfel"))
    assert "not text" in refusal(path, read).message


def test_paths_that_are_no_file(tmp_path: Path, read: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")  # reading it would wait forever
    assert "is a named pipe" in refusal(tmp_path / "pipe.onnx", read).message
    assert "is a folder" in refusal(tmp_path, read).message
    assert "No such file" in refusal(tmp_path / "missing.onnx", read).message


# ------------------------------------------------------------------------------------------------- external data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, whose data file is sound, and a secret beside the folder."""
    (tmp_path / "secret").write_bytes(LARGE.tobytes() * 2)
    folder = tmp_path / "unet"
    folder.mkdir()
    (folder / "data").write_bytes(LARGE.tobytes() * 2)
    (folder / "sub").mkdir()
    return folder


def refuse_external(folder: Path, read: list[str], **entries: str) -> BadModelError:
    proto = model()
    tensor = weight(proto)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key.rstrip("_"), value=value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    error = refusal(path, read)
    assert error.node == "w"
    return error


@pytest.mark.parametrize(
    "location",
    [
        "{parent}/secret",
        "../secret",
        "sub/../../secret",
        "sub/../data",
        "link",
        "away/secret",
        "",
        "/dev/zero",
        "..",
        "a\\..\\b",
        "C:data",
        "d\0",
    ],
)
def test_external_data_outside_the_folder(folder: Path, read: list[str], location: str) -> None:
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "away").symlink_to(folder.parent)
    error = refuse_external(folder, read, location=location.format(parent=folder.parent))
    assert "outside the model's directory" in error.message


def test_a_hub_link_of_another_repository(tmp_path: Path, read: list[str]) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / "1" / "unet"
    blobs = tmp_path / "models--c--d" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir(parents=True)
    (blobs / ("a" * 40)).write_bytes(LARGE.tobytes())
    (folder / "data").symlink_to(blobs / ("a" * 40))
    assert "outside" in refuse_external(folder, read, location="data").message


def test_a_hub_link_to_something_else_of_its_repository(tmp_path: Path, read: list[str]) -> None:
    """The cache names its blobs by their hashes; whoever wrote another file there was not the hub's library."""
    folder = tmp_path / "models--a--b" / "snapshots" / "1" / "unet"
    folder.mkdir(parents=True)
    for name in ("blobs/secret", "blobs/" + "a" * 41, "blobs/" + "A" * 40, "other/" + "a" * 40):
        target = tmp_path / "models--a--b" / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(LARGE.tobytes())
        (folder / "data").symlink_to(target)
        assert "outside" in refuse_external(folder, read, location="data").message
        (folder / "data").unlink()


def test_a_link_inside_the_folder_is_fine(folder: Path) -> None:
    (folder / "link").symlink_to("data")
    proto = model()
    weight(proto).ClearField("raw_data")
    weight(proto).data_location = TensorProto.EXTERNAL
    weight(proto).external_data.add(key="location", value="link")
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    assert load_model(folder / "model.onnx").graph.nodes[0].inputs[1]._values.path == folder / "data"


def test_missing_and_special_files(folder: Path, read: list[str]) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    assert "No such file" in refuse_external(folder, read, location="gone").message
    assert "not a regular file" in refuse_external(folder, read, location="pipe").message
    assert "not a regular file" in refuse_external(folder, read, location="sub").message
    assert "'loop': " in refuse_external(folder, read, location="loop").message
    assert "'data/x': " in refuse_external(folder, read, location="data/x").message
    assert "too long" in refuse_external(folder, read, location="x" * 5000).message


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "2049"}, "ends at byte 4097, but data has 4096"),
        ({"offset": "9223372036854775807"}, "ends at byte 9223372036854777855"),
        ({"offset": "-1"}, "offset is '-1'"),
        ({"offset": "99999999999999999999"}, "offset is"),
        ({"offset": " 0"}, "offset is"),
        ({"offset": "1_0"}, "offset is"),
        ({"offset": "\u0661"}, "offset is"),
        ({"offset": ""}, "offset is"),
        ({"length": "2047"}, "needs 2048 bytes, its length says 2047"),
        ({"length": "2049"}, "needs 2048 bytes, its length says 2049"),
        ({"length": "-2048"}, "length is '-2048'"),
        ({"offset": "0", "offset_": "8"}, "two entries 'offset'"),
    ],
)
def test_offsets_and_lengths(folder: Path, read: list[str], entries: dict[str, str], message: str) -> None:
    assert message in refuse_external(folder, read, location="data", **entries).message


def test_a_truncated_data_file(folder: Path, read: list[str]) -> None:
    (folder / "data").write_bytes(LARGE.tobytes()[:-1])
    error = refuse_external(folder, read, location="data")
    assert "ends at byte 2048, but data has 2047 bytes" in error.message
    assert error.hint
    assert "truncated" in error.hint


def test_values_inside_and_outside(folder: Path, read: list[str]) -> None:
    for name in ("w", "b"):  # w's raw data is large, so the parser never sees it
        proto = model()
        weight(proto, name).data_location = TensorProto.EXTERNAL
        weight(proto, name).external_data.add(key="location", value="data")
        (folder / "model.onnx").write_bytes(proto.SerializeToString())
        assert refusal(folder / "model.onnx", read).node == name


def regions(folder: Path, *places: tuple[int, int] | tuple[int, int, str]) -> Path:
    """A model of bytes, as many tensors as there are places: (start, end), and the file where it is not ``data``."""
    proto = model()
    for index, (start, end, *location) in enumerate(places):
        tensor = proto.graph.initializer.add(name=f"t{index}", dims=[end - start], data_type=TensorProto.UINT8)
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": (location or ["data"])[0], "offset": str(start)}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("places", "wrong"),
    [
        ([(0, 2000), (4, 2004)], "t1"),
        ([(0, 2000), (1999, 4000)], "t1"),  # one byte
        ([(1999, 4000), (0, 2000)], "t0"),  # whatever their order
        ([(0, 4000), (100, 200)], "t1"),  # inside
        ([(0, 2000), (0, 3000)], "t1"),  # of one start
        ([(0, 3000), (1000, 3000)], "t1"),  # of one end
        ([(0, 2000), (1000, 1000), (1500, 3000)], "t2"),  # nothing lies between
        ([(0, 2000), (0, 2000), (1500, 3000)], "t2"),  # nor do tied weights
        ([(0, 2000), (1500, 3000, "link")], "t1"),  # two names of one file
    ],
)
def test_overlapping_tensors(folder: Path, read: list[str], places: list[tuple[int, int]], wrong: str) -> None:
    """Otherwise a file of a few KB could claim thousands of different large tensors."""
    (folder / "link").symlink_to("data")
    error = refusal(regions(folder, *places), read)
    assert (error.node, "overlaps" in error.message) == (wrong, True)


@pytest.mark.parametrize(
    "places",
    [
        [(0, 2000), (2000, 4096)],
        [(2000, 4096), (0, 2000)],
        [(0, 2000), (0, 2000)],  # one tied weight
        [(0, 2000), (1000, 1000)],  # an empty tensor shares nothing
        [(0, 2000), (0, 0), (2000, 2000), (4096, 4096)],
        [(0, 2000), (0, 2000, "other")],
    ],
)
def test_tensors_that_do_not_overlap(folder: Path, places: list[tuple[int, int]]) -> None:
    (folder / "other").write_bytes(bytes(4096))
    assert len(load_model(regions(folder, *places)).graph.nodes) == 3


def test_external_data_without_a_file(read: list[str]) -> None:
    proto = model()
    weight(proto).data_location = TensorProto.EXTERNAL
    weight(proto).ClearField("raw_data")
    with pytest.raises(BadModelError, match="model without a file"):
        from_proto(proto, None, "unet")
    assert read == []


@pytest.mark.parametrize(
    "content",
    [
        b"\x3a\x05\x2a\x80\x10",  # an initializer of 2 KiB in a graph of 5 bytes
        b"\x3a\x85\x10\x2a\x82\x10\x4a\x82\x20" + b"\0" * 4096,  # raw data that ends after its tensor
        b"\x3b\x3c",  # a group
        b"\x3a\x04\x0d\0\0\0",  # four bytes announced, three there
        b"\x08" + b"\x80" * 10 + b"\x01",  # a number of 77 bits
        b"\x3a\x00\x80",
    ],
)
def test_broken_wire_format(tmp_path: Path, read: list[str], content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    assert "not an ONNX model" in refusal(tmp_path / "model.onnx", read).message


def test_the_walk_keeps_what_the_parser_would_see(tmp_path: Path) -> None:
    """Numbers of every wire type, unknown fields among them, in messages large enough to be walked."""
    proto = model()
    node = proto.graph.node.add(op_type="Constant", output=["c"], doc_string="d" * 2000)
    node.attribute.add(name="value", f=1.5, i=-(2**63), type=AttributeProto.TENSOR, t=weight(proto))
    data = proto.SerializeToString() + b"\xf8\x07\x05" + b"\xf9\x07" + b"\xff" * 8 + b"\xfd\x07" + b"\xff" * 4
    (tmp_path / "model.onnx").write_bytes(data)
    found = read_graph(tmp_path / "model.onnx", "unet")
    for tensor in (*found.graph.initializer, found.graph.node[-1].attribute[0].t):
        if tensor.external_data:
            place = {entry.key: entry.value for entry in tensor.external_data}
            start, length = int(place["offset"]), int(place["length"])
            tensor.raw_data = data[start : start + length]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    assert found.SerializeToString(deterministic=True) == ModelProto.FromString(data).SerializeToString(
        deterministic=True
    )


def test_graph_protos_field_numbers() -> None:
    """sdort.onnx_io.wire walks by number; onnx.proto never changes them, and this would show it."""
    fields = {m: {f.name: f.number for f in m.DESCRIPTOR.fields} for m in (ModelProto, GraphProto, TensorProto)}
    assert (fields[ModelProto]["graph"], fields[ModelProto]["functions"]) == (7, 25)
    assert (fields[GraphProto]["node"], fields[GraphProto]["initializer"]) == (1, 5)
    assert fields[TensorProto]["raw_data"] == 9
    assert onnx.NodeProto.DESCRIPTOR.fields_by_name["attribute"].number == 5
    assert onnx.FunctionProto.DESCRIPTOR.fields_by_name["node"].number == 7
    assert AttributeProto.DESCRIPTOR.fields_by_name["t"].number == 5
