"""A finished graph is kept without weights, and filled with a checkpoint's by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sdort.errors import BadModelError
from sdort.exporter.signatures import ComponentSpec
from sdort.exporter.template import Template, TemplateBlob, Trace, fill, make_template, pack, unpack
from sdort.exporter.trace_cache import TraceCache
from sdort.graph.signature import Array
from sdort.graph.weights import (
    Absent,
    Cast,
    Combined,
    Concatenated,
    Inline,
    Reshaped,
    Scaled,
    Stored,
    Transposed,
    Weight,
)  # fmt: skip
from sdort.onnx_io.expression_json import UNREADABLE, decode, encode
from sdort.onnx_io.load import from_proto
from sdort.onnx_io.save import save_model, write
from sdort.onnx_io.serialize import serialize
from sdort.onnx_io.wire import encode_varint

RNG = np.random.default_rng(7)
PARAMETERS = {"large": (24, 40), "other": (24, 40), "bias": (24,), "unused": (5,)}
VALUES = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in PARAMETERS.items()}
TABLE = RNG.standard_normal((24, 40)).astype(np.float32)


def external(name: str) -> TensorProto:
    tensor = TensorProto(name=name, dims=PARAMETERS[name], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="parameter")
    return tensor


def traced() -> Trace:
    """x @ large^T + bias, and both large ones and a table of the graph's own added up."""
    nodes = [
        helper.make_node("Transpose", ["large"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["y"]),
        helper.make_node("Add", ["z", "other"], ["shifted"]),
        helper.make_node("Mul", ["shifted", "table"], ["w"]),
    ]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (
        ("x", ("N", 40)), ("z", (24, 40)), ("y", ("N", 24)), ("w", (24, 40)),
    )}  # fmt: skip
    table = numpy_helper.from_array(TABLE, "table")
    initializers = [external("large"), external("other"), external("bias"), table]
    graph = helper.make_graph(
        nodes, "graph", [values["x"], values["z"]], [values["y"], values["w"]], initializer=initializers
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return Trace(proto, PARAMETERS)


def weights() -> dict[str, Weight]:
    return {name: Inline(array) for name, array in VALUES.items()}


def run(path: Path) -> list[Array]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": VALUES["large"][:3], "z": VALUES["other"]}))


def test_a_filled_template_computes_what_was_traced(tmp_path: Path) -> None:
    template = make_template(traced(), "unet")
    report = write(fill(template, weights()), tmp_path / "model.onnx", "unet")
    assert report.tensors == 3  # the table, too
    y, w = run(tmp_path / "model.onnx")
    np.testing.assert_allclose(y, VALUES["large"][:3] @ VALUES["large"].T + VALUES["bias"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(w, 2 * VALUES["other"] * TABLE, rtol=1e-6)
    operators = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert "Transpose" not in operators  # the weight is turned while it is written


def test_it_can_be_filled_again_and_knows_what_it_uses() -> None:
    template = make_template(traced(), "unet")
    assert template.used == {"large", "other", "bias"}
    first = fill(template, weights())
    doubled = fill(template, {name: Inline(2 * array) for name, array in VALUES.items()})
    assert doubled.proto != first.proto  # the bias is inside
    assert fill(template, weights()).proto == first.proto


def test_equal_small_parameters_stay_apart() -> None:
    """The next checkpoint's are not equal."""
    trace = traced()
    trace.proto.graph.initializer.add().CopyFrom(external("bias"))
    trace.proto.graph.initializer[-1].name = "twin"
    trace.proto.graph.node.append(helper.make_node("Add", ["y", "twin"], ["v"]))
    trace.proto.graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, ["N", 24]))
    template = make_template(Trace(trace.proto, PARAMETERS | {"twin": (24,)}), "unet")
    assert set(template.small) == {"bias", "twin"}


EXPRESSIONS: dict[str, Callable[[Weight], Weight]] = {
    "transposed": lambda w: Transposed(w, (1, 0)),
    "reshaped": lambda w: Reshaped(w, (40, 24)),
    "cast": lambda w: Cast(w, np.float16),
    "scaled": lambda w: Scaled(w, 0.5),
    "combined": lambda w: Combined(w, 0, np.tri(3, 24).tolist()),
    "concatenated": lambda w: Concatenated([w, Inline(TABLE)], 1),
    "nested": lambda w: Cast(Transposed(Reshaped(w, (40, 24)), (1, 0)), np.float64),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_expression_comes_back(name: str) -> None:
    make = EXPRESSIONS[name]
    entry = json.loads(json.dumps(encode(make(Absent("large", (24, 40), np.float32)))))
    expected = make(Inline(VALUES["large"])).load()
    found = decode(entry, weights())
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found.load(), expected)


def test_what_has_no_form_is_no_silent_loss(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no form"):
        encode(Stored(tmp_path / "file", 0, (2,), np.float32))


def test_a_stored_template_is_the_same(tmp_path: Path) -> None:
    component = ComponentSpec("unet", "UNet2DConditionModel", {}, (), ())
    template = make_template(traced(), "unet")
    cache = TraceCache(tmp_path)
    cache.store(component, 23, template)
    loaded = cache.load(component, 23)
    assert loaded is not None
    assert loaded == template
    first, second = fill(template, weights()), fill(loaded, weights())
    assert (second.proto, second.data_bytes) == (first.proto, first.data_bytes)
    for mine, theirs in zip(second.blobs, first.blobs, strict=True):
        assert (mine.name, mine.offset) == (theirs.name, theirs.offset)
        np.testing.assert_array_equal(mine.weight.load(), theirs.weight.load())


def other_blob(**changes: Any) -> Callable[[Template], Template]:
    def change(template: Template) -> Template:
        first, *rest = template.blobs
        return replace(template, blobs=(first._replace(**changes), *rest))

    return change


def other_tensor(**changes: str) -> Callable[[Template], Template]:
    """External data of the first large initializer that says something else."""

    def change(template: Template) -> Template:
        tensor = next(tensor for tensor in template.proto.graph.initializer if tensor.external_data)
        for entry in tensor.external_data:
            entry.value = changes.get(entry.key, entry.value)
        return template

    return change


def without(name: str) -> Callable[[Template], Template]:
    return lambda template: replace(template, **{name: type(getattr(template, name))()})


def other_graph(change: Callable[[onnx.ModelProto], Any]) -> Callable[[Template], Template]:
    def forge(template: Template) -> Template:
        change(template.proto)
        return template

    return forge


def add_constant(model: onnx.ModelProto) -> None:
    """One whose values are those of a file."""
    secret = external("bias")
    secret.external_data[0].value = "../../secret"
    model.graph.node.add(op_type="Constant", output=["secret"]).attribute.append(helper.make_attribute("value", secret))


def add_branch(model: onnx.ModelProto) -> None:
    """A node whose subgraph has an initializer elsewhere."""
    inner = onnx.GraphProto(name="inner", initializer=[external("bias")])
    model.graph.node.add(op_type="If", output=["secret"]).attribute.append(helper.make_attribute("then_branch", inner))


LARGE = {"parameter": "large"}
DEEP: dict[str, Any] = LARGE
for _ in range(40):
    DEEP = {"scaled": DEEP, "factor": 1.0}
FORGERIES: dict[str, Callable[[Template], Template]] = {
    "values elsewhere": other_tensor(location="../../secret"),
    "more values": other_tensor(length="38400000"),
    "other values": other_tensor(offset="64"),
    "no number": other_tensor(offset="1e3"),
    "values of an attribute elsewhere": other_graph(add_constant),
    "values of a subgraph elsewhere": other_graph(add_branch),
    "a function": other_graph(lambda model: model.functions.add(name="f")),
    "sparse values": other_graph(lambda model: model.graph.sparse_initializer.add()),
    "no parameter": other_blob(weight={"parameter": "none"}),
    "no expression": other_blob(weight={"eval": "1"}),
    "no object": other_blob(weight=["parameter", "large"]),
    "no region": other_blob(offset=-4096),
    "an offset beyond the file": other_blob(offset=2**60),
    "an offset that is text": other_blob(offset="0"),
    "deep": other_blob(weight=DEEP),
    "axes": other_blob(weight={"transposed": LARGE, "perm": [0, 0]}),
    "more axes": other_blob(weight={"transposed": LARGE, "perm": [0, 1, 2]}),
    "a type of objects": other_blob(weight={"cast": LARGE, "dtype": TensorProto.STRING}),
    "a wider type": other_blob(weight={"cast": LARGE, "dtype": TensorProto.DOUBLE}),
    "a type": other_blob(weight={"cast": LARGE, "dtype": TensorProto.INT32}),
    "other elements": other_blob(weight={"reshaped": LARGE, "shape": [1 << 40]}),
    "parts of other sizes": other_blob(weight={"concatenated": [LARGE, {"parameter": "bias"}], "axis": 0}),
    "no parts": other_blob(weight={"concatenated": [], "axis": 0}),
    "a huge file": lambda template: replace(
        template,
        blobs=(*template.blobs, TemplateBlob("huge", 1 << 20, {"concatenated": [LARGE] * 10_000, "axis": 0})),
        data_bytes=(1 << 20) + 10_000 * 24 * 40 * 4,
    ),
    "no data": lambda template: replace(template, data_bytes=0),
    "no regions": without("blobs"),
    "no small values": without("small"),
    "a small value for nothing": lambda template: replace(template, small={**template.small, "nothing": LARGE}),
    "a large one among the small": lambda template: replace(template, small={"bias": LARGE}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_made_up_template_is_refused(forgery: str) -> None:
    """Whoever can write the cache can write a right hash: what it holds is checked as any stranger's."""
    whole = make_template(traced(), "unet")
    assert unpack(pack(whole), "unet") == whole
    forged = FORGERIES[forgery](whole)
    with pytest.raises((BadModelError, *UNREADABLE)):
        unpack(pack(forged), "unet")


def test_a_template_of_countless_fields_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parsed message may be a hundred times its bytes: each field counts 64 bytes beyond its own."""
    monkeypatch.setattr("sdort.onnx_io.wire.MAX_GRAPH_BYTES", 100_000)
    whole = pack(make_template(traced(), "unet"))
    header, _, proto = whole.partition(b"\n")
    nodes = b"\x0a\x00" * 2_000
    graph = b"\x3a" + encode_varint(len(nodes)) + nodes
    with pytest.raises(BadModelError, match="too large"):
        unpack(header + b"\n" + proto + graph, "unet")


def test_a_model_without_values_is_not_written(tmp_path: Path) -> None:
    model = from_proto(
        traced().proto, lambda t: Absent(t.name, t.dims, np.float32) if t.external_data else None, "unet"
    )
    assert set(serialize(model, "model.onnx.data").late) == {"bias"}
    with pytest.raises(BadModelError, match="'bias' has no values"):
        save_model(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
