"""The walk over an ONNX file's fields: what it moves out, what it leaves, what it refuses, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import sdort.onnx_io.wire
from sdort.errors import BadModelError
from sdort.graph.weights import Stored
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.load import load_model
from sdort.onnx_io.wire import OWN_FILE, encode_varint, read_graph

GRAPH, FUNCTIONS, METADATA, INITIALIZER, NODE, DOC = 7, 25, 14, 5, 1, 10
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def field(number: int, content: bytes) -> bytes:
    """One length-delimited field."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(content)) + content


def tensor(count: int, name: str = "w") -> TensorProto:
    return numpy_helper.from_array(np.arange(count, dtype=np.uint8), name)


def read(folder: Path, content: bytes) -> onnx.ModelProto:
    (folder / "model.onnx").write_bytes(content)
    return read_graph(folder / "model.onnx", "unet")


def refused(folder: Path, content: bytes) -> str:
    with pytest.raises(BadModelError) as caught:
        read(folder, content)
    return caught.value.message


def place(found: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in found.external_data}


@pytest.mark.parametrize(("count", "moved"), [(1023, False), (1024, False), (1025, True), (5000, True)])
def test_raw_data_above_1_kib_is_moved(tmp_path: Path, count: int, moved: bool) -> None:
    data = np.random.default_rng(count).bytes(count)
    proto = onnx.ModelProto(graph=helper.make_graph([], "g", [], [], [tensor(1)]))
    proto.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.UINT8, [count], data, raw=True))
    content = proto.SerializeToString()
    (found,) = read(tmp_path, content).graph.initializer
    assert (found.data_location == TensorProto.EXTERNAL) == moved
    assert found.raw_data == (b"" if moved else data)
    if moved:
        at = place(found)
        assert at.pop("location") == OWN_FILE
        start, length = int(at.pop("offset")), int(at.pop("length"))
        assert (content[start : start + length], at) == (data, {})


def test_tensors_of_functions_and_attributes_are_moved_too(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (float[16, 32] x) => (float[16, 32] y) { c = Constant () y = f.a (x) }
    <domain: "f", opset_import: ["" : 17]> a (t) => (r) { c = Constant () r = Add (t, c) }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((16, 32), np.float32) for _ in range(2)]
    for node, array in zip((model.graph.node[0], model.functions[0].node[0]), arrays, strict=True):
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(array)))
    content = model.SerializeToString()
    found = read(tmp_path, content)
    for node, array in zip((found.graph.node[0], found.functions[0].node[0]), arrays, strict=True):
        at = place(node.attribute[0].t)
        start = int(at["offset"])
        assert not node.attribute[0].t.raw_data
        assert content[start : start + int(at["length"])] == array.tobytes()
    weights = [t._values for n in load_model(tmp_path / "model.onnx").graph.nodes for t in n.inputs[1:]]
    assert [type(weight) for weight in weights] == [Stored]
    np.testing.assert_array_equal(weights[0].load(), arrays[1])


def test_a_location_that_the_file_states_does_not_win(tmp_path: Path) -> None:
    """Some exporters write data_location = DEFAULT, after the data."""
    weight = tensor(2000).SerializeToString() + encode_varint(14 << 3) + b"\0"
    (found,) = read(tmp_path, field(GRAPH, field(INITIALIZER, weight))).graph.initializer
    assert found.data_location == TensorProto.EXTERNAL
    assert place(found)["length"] == "2000"


def test_a_tensor_with_two_values_is_refused(tmp_path: Path) -> None:
    """A parser would take the last one without a word."""
    raw = encode_varint(9 << 3 | BYTES) + encode_varint(2000) + b"\1" * 2000
    weight = tensor(2000).SerializeToString() + raw
    output = helper.make_tensor_value_info("w", TensorProto.UINT8, [2000]).SerializeToString()
    opset = helper.make_opsetid("", 17).SerializeToString()
    graph = field(INITIALIZER, weight) + field(12, output)
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08" + field(8, opset) + field(GRAPH, graph))
    with pytest.raises(BadModelError, match="two entries"):
        load_model(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    "last",
    [
        encode_varint(99 << 3 | VARINT) + b"\x80",  # a number that goes on after the graph
        encode_varint(99 << 3 | FIXED64) + b"\0" * 7,
        encode_varint(99 << 3 | FIXED32) + b"\0" * 3,
        encode_varint(99 << 3 | BYTES) + b"\x01",
        b"\x80",
    ],
    ids=["number", "8 bytes", "4 bytes", "bytes", "tag"],
)
def test_no_field_reads_beyond_its_message(tmp_path: Path, last: bytes) -> None:
    """In a graph that is large enough to be walked; what follows it would complete the field."""
    graph = field(NODE, helper.make_node("Neg", ["x"], ["y"]).SerializeToString()) + field(DOC, b"d" * 2000)
    follows = b"\x01\x08\x08"  # one byte more, and a model goes on soundly
    assert len(read(tmp_path, field(GRAPH, graph) + follows[1:]).graph.node) == 1
    assert "not an ONNX model" in refused(tmp_path, field(GRAPH, graph + last) + follows)


@pytest.mark.parametrize(("wire", "size"), [(FIXED64, 8), (FIXED32, 4)])
def test_numbers_of_fixed_size_pass_up_to_the_last_byte(tmp_path: Path, wire: int, size: int) -> None:
    unknown = encode_varint(99 << 3 | wire) + bytes(range(1, size + 1))
    content = field(GRAPH, field(DOC, b"d" * 2000) + unknown)
    assert read(tmp_path, content).SerializeToString() == onnx.ModelProto.FromString(content).SerializeToString()


def test_numbers_of_64_bits_pass_and_longer_ones_do_not(tmp_path: Path) -> None:
    """A negative number takes ten bytes."""
    number = encode_varint(99 << 3) + b"\xff" * 9 + b"\x01"
    graph = field(DOC, b"d" * 2000)
    read(tmp_path, field(GRAPH, graph + number))
    longer = encode_varint(99 << 3) + b"\xff" * 10 + b"\x01"
    assert "not an ONNX model" in refused(tmp_path, field(GRAPH, graph + longer))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 129, 255, 256, 16383, 16384, 2**32, 2**63, 2**64 - 1])
def test_numbers_are_written_as_protobuf_does(value: int) -> None:
    signed = value - 2**64 if value >= 2**63 else value
    assert b"\x28" + encode_varint(value) == onnx.ModelProto(model_version=signed).SerializeToString()


def test_what_is_no_tensor_counts_against_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdort.onnx_io.wire.MAX_GRAPH_BYTES", 10_000)
    weights = field(INITIALIZER, helper.make_tensor("w", 2, [50_000], b"\0" * 50_000, raw=True).SerializeToString())
    assert len(read(tmp_path, field(GRAPH, weights)).graph.initializer) == 1
    assert "too large" in refused(tmp_path, field(GRAPH, field(DOC, b"d" * 10_001)))
    assert "too large" in refused(tmp_path, field(GRAPH, field(DOC, b"d" * 900) * 11))


def test_the_limit_is_64_mib_and_real_graphs_are_below() -> None:
    """20 MB is the largest graph known, and what is parsed takes a hundred times the bytes."""
    assert 20e6 < sdort.onnx_io.wire.MAX_GRAPH_BYTES < 100e6


# ---------------------------------------------------------------------------------------------------- metadata


def metadata(folder: Path, content: bytes) -> dict[str, str]:
    (folder / "model.onnx").write_bytes(content)
    return read_component(folder / "model.onnx").metadata


def entry(key: str, value: str) -> bytes:
    return field(METADATA, onnx.StringStringEntryProto(key=key, value=value).SerializeToString())


def test_metadata_is_found_on_both_sides_of_the_graph(tmp_path: Path) -> None:
    numbers = b"\x08\x08" + encode_varint(99 << 3 | FIXED32) + b"\0" * 4 + encode_varint(98 << 3 | FIXED64) + b"\0" * 8
    graph = field(GRAPH, field(METADATA + 2, entry("inside", "the graph")))
    content = numbers + entry("a", "1") + graph + entry("b", "2")
    assert metadata(tmp_path, content) == {"a": "1", "b": "2"}


def test_metadata_of_a_file_that_was_cut_off(tmp_path: Path) -> None:
    content = entry("a", "1") + field(GRAPH, field(DOC, b"d" * 100))
    for end in (len(content) - 1, len(content) - 101, len(entry("a", "1")) - 1):
        with pytest.raises(BadModelError, match="not an ONNX model"):
            metadata(tmp_path, content[:end])


def test_metadata_of_endless_empty_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdort.onnx_io.wire.MAX_GRAPH_BYTES", 10_000)
    with pytest.raises(BadModelError, match="too large"):
        metadata(tmp_path, b"\x3a\x00" * 1000)


# -------------------------------------------------------------------------------------------------------- names

TEXT = """<ir_version: 8, opset_import: ["" : 17, "domain_" : 1]>
graph_ (float[size_, 2] input_) => (float[m, 2] output_) <float[k, 2] hidden_> {
    [node_] hidden_ = Neg (input_)
    output_ = domain_.operator_ <attribute_ = 1> (hidden_)
}
<domain: "domain_", opset_import: ["" : 17, "elsewhere_" : 1]>
operator_ <reference_> (parameter_, unused_) => (result_) {
    [inner_] result_ = Flatten <axis: int = @reference_> (parameter_)
}"""
NAMES = [
    "graph_",
    "size_",
    "input_",
    "output_",
    "hidden_",
    "node_",
    "domain_",
    "operator_",
    "attribute_",
    "reference_",
    "parameter_",
    "unused_",
    "overload_",
    "result_",
    "inner_",
    "elsewhere_",
    "constant_",
    "key_",
    "value_",
    "tensor_",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_to_be_text(tmp_path: Path, name: str) -> None:
    model = parser.parse_model(TEXT)
    model.functions[0].overload = "overload_"
    model.metadata_props.add(key="key_", value="value_")
    model.graph.initializer.append(tensor(8, "constant_"))
    model.graph.node[0].attribute.append(helper.make_attribute("t", tensor(8, "tensor_")))
    content = model.SerializeToString()
    assert name.encode() in content
    read(tmp_path, content)
    broken = content.replace(name.encode(), b"\xff" * len(name))
    assert "not text" in refused(tmp_path, broken)
