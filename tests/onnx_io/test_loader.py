"""What the loader makes of good models: constants, weights, order, functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT_OPERATORS
from sdort.graph.model import Model
from sdort.graph.weights import Absent, Inline, Stored, Weight
from sdort.onnx_io.graph_import import tensors_of
from sdort.onnx_io.load import from_proto, load_model
from sdort.onnx_io.save import save_model

RNG = np.random.default_rng(0)
LARGE = RNG.standard_normal((16, 32), np.float32)  # 2 KiB
SMALL = RNG.standard_normal((32,), np.float32)


def linear(nodes: str = "h = MatMul (x, w)  y = Add (h, b)", opset: int = 17) -> onnx.ModelProto:
    """``x @ w + b`` with a large ``w`` and a small ``b``."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> linear (float[N, 16] x) => (float[N, 32] y) {{ {nodes} }}'
    model = parser.parse_model(text)
    model.graph.initializer.extend([numpy_helper.from_array(LARGE, "w"), numpy_helper.from_array(SMALL, "b")])
    return model


def save(model: onnx.ModelProto, folder: Path, **kwargs: Any) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path, **kwargs)
    return path


def constants(model: Model) -> dict[str, Any]:
    """Name -> array or weight, of every constant in the graph."""
    return {t.name: t._values for t in tensors_of(model.graph) if isinstance(t, gs.Constant)}


def run(path: Path, *inputs: np.ndarray[Any, Any]) -> list[Any]:
    session = ReferenceEvaluator(str(path))
    return list(session.run(None, dict(zip(session.input_names, inputs, strict=True))))


def test_large_tensors_in_the_file_are_described_not_read(tmp_path: Path) -> None:
    values = constants(load_model(save(linear(), tmp_path)))
    assert isinstance(values["w"], Stored)
    assert values["w"].path == tmp_path / "model.onnx"
    np.testing.assert_array_equal(values["w"].load(), LARGE)
    np.testing.assert_array_equal(values["b"], SMALL)
    assert isinstance(values["b"], np.ndarray)


def test_large_external_tensors_are_described_and_small_ones_read(tmp_path: Path) -> None:
    path = save(linear(), tmp_path, save_as_external_data=True, location="weights.pb", size_threshold=0)
    values = constants(load_model(path))
    assert isinstance(values["w"], Stored)
    assert values["w"].path == tmp_path / "weights.pb"
    np.testing.assert_array_equal(values["w"].load(), LARGE)
    assert isinstance(values["b"], np.ndarray)
    np.testing.assert_array_equal(values["b"], SMALL)


def test_a_kibibyte_is_the_most_that_is_read(tmp_path: Path) -> None:
    model = linear()
    for name, nbytes in (("kept", 1024), ("described", 1025)):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(nbytes, np.bool_), name))
        model.graph.node.append(helper.make_node("Not", [name], [f"-{name}"]))
    path = save(model, tmp_path, save_as_external_data=True, location="weights.pb", size_threshold=0)
    values = constants(load_model(path))
    assert isinstance(values["kept"], np.ndarray)
    assert isinstance(values["described"], Stored)


def test_one_external_file_per_tensor_in_a_subfolder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    model = linear()
    for tensor in model.graph.initializer:
        (tmp_path / "data" / tensor.name).write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"data/{tensor.name}")
    values = constants(load_model(save(model, tmp_path)))
    np.testing.assert_array_equal(values["w"].load(), LARGE)
    np.testing.assert_array_equal(values["b"], SMALL)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT, np.float32),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.INT16, np.int16),
        (TensorProto.UINT16, np.uint16),
        (TensorProto.INT32, np.int32),
        (TensorProto.INT64, np.int64),
        (TensorProto.UINT32, np.uint32),
        (TensorProto.UINT64, np.uint64),
        (TensorProto.BOOL, np.bool_),
    ],
)
@pytest.mark.parametrize("count", [3, 1200])
def test_every_element_type_in_raw_and_in_typed_fields(tmp_path: Path, kind: int, dtype: Any, count: int) -> None:
    expected = np.array([1, 0, 2] * (count // 3)).astype(dtype)
    raw = helper.make_tensor("raw", kind, [count], expected.tobytes(), raw=True)
    typed = helper.make_tensor("typed", kind, [count], expected.tolist())
    assert not typed.raw_data
    info = [helper.make_tensor_value_info(name, kind, [count]) for name in ("a", "b")]
    nodes = [helper.make_node("Identity", ["raw"], ["a"]), helper.make_node("Identity", ["typed"], ["b"])]
    graph = helper.make_graph(nodes, "g", [], info, [raw, typed])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    values = constants(load_model(save(model, tmp_path)))
    for name in ("raw", "typed"):
        value = values[name].load() if isinstance(values[name], Weight) else values[name]
        assert isinstance(values[name], Weight) == (expected.nbytes > 1024)
        assert value.dtype == expected.dtype
        assert value.tobytes() == expected.tobytes()


def test_large_values_in_typed_fields_become_weights() -> None:
    model = linear()
    model.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, LARGE.shape, LARGE.reshape(-1)))
    values = constants(from_proto(model, None, "unet"))
    assert isinstance(values["w"], Inline)
    np.testing.assert_array_equal(values["w"].load(), LARGE)


def test_constant_nodes_of_every_kind_become_constants(tmp_path: Path) -> None:
    model = linear(
        """c1 = Constant <value_float = 0.5> ()  c2 = Constant <value_floats = [1.0, 2.0]> ()
           c3 = Constant <value_int = 3> ()  c4 = Constant <value_ints = [-1, 32]> ()
           c5 = Constant <value = float[2] {4.0, 5.0}> ()
           m = MatMul (x, big)  r = Reshape (m, c4)  s = Mul (r, c1)  y = Add (s, b)
           u = Add (c2, c5)  v = Cast <to = 1> (c3)"""
    )
    node = helper.make_node("Constant", [], ["big"], value=numpy_helper.from_array(LARGE))
    model.graph.node.insert(0, node)
    graph = load_model(save(model, tmp_path))
    values = constants(graph)
    assert [n.op for n in graph.graph.nodes] == ["MatMul", "Reshape", "Mul", "Add", "Add", "Cast"]
    assert isinstance(values["big"], Stored)
    np.testing.assert_array_equal(values["big"].load(), LARGE)
    for name, expected in {"c1": np.array(0.5, np.float32), "c3": np.array(3)}.items():
        assert values[name].dtype == expected.dtype
        assert values[name].shape == ()
        assert values[name] == expected
    assert values["c2"].tolist() == [1.0, 2.0]
    assert values["c4"].tolist() == [-1, 32]
    assert values["c5"].tolist() == [4.0, 5.0]


def test_every_consumer_of_a_small_constant_has_its_own() -> None:
    model = linear(
        "h = MatMul (x, w)  i = Add (h, b)  j = Mul (i, b)  k = Sub (b, b)  l = MatMul (x, w)  y = Add (j, k)"
    )
    graph = from_proto(model, None, "unet").graph
    small = [
        t
        for node in graph.nodes
        for t in node.inputs
        if isinstance(t._values if hasattr(t, "_values") else 0, np.ndarray)
    ]
    assert len(small) == 4
    assert len({t.name for t in small}) == 4
    assert all(len(t.outputs) == 1 for t in small)
    small[0]._values[:] = 0
    np.testing.assert_array_equal(small[1]._values, SMALL)
    first, second = graph.nodes[0].inputs[1], graph.nodes[4].inputs[1]
    assert first is second  # a large one is shared: it is never changed in place
    assert len(first.outputs) == 2


def test_outputs_that_are_used_inside_or_are_constants(tmp_path: Path) -> None:
    model = linear("h = MatMul (x, w)  i = Add (h, b)  y = Add (i, b)")
    shapes: dict[str, list[int | str]] = {"i": ["N", 32], "b": [32], "w": [16, 32]}
    for name, shape in shapes.items():
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    graph = load_model(save(model, tmp_path)).graph
    y, inner, small, large = graph.outputs
    assert [t.name for t in graph.outputs] == ["y", "i", "b", "w"]
    assert y.inputs[0].inputs[0] is inner
    assert [n.outputs[0].name for n in inner.outputs] == ["y"]
    assert len(small.outputs) == 0  # its consumers have copies
    assert all(n.inputs[1].name != "b" for n in graph.nodes[1:])
    assert [n.op for n in large.outputs] == ["MatMul"]


def test_import_compares_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node.__eq__ compares attributes and inputs; a list search over a shared constant's consumers would be O(n^2)."""
    calls: list[gs.Node] = []

    def compare(first: gs.Node, second: gs.Node) -> bool:
        calls.append(second)
        return first is second

    monkeypatch.setattr(gs.Node, "__eq__", compare)
    chain = " ".join(f"h{i + 1} = Add (h{i}, b)" for i in range(300))
    graph = from_proto(linear(f"h0 = MatMul (x, w) {chain} y = Add (h300, b)"), None, "unet").graph
    assert len(graph.nodes) == 302
    assert calls == []


def test_unsorted_nodes_are_sorted_and_compute_the_same(tmp_path: Path) -> None:
    sorted_model = linear("a = MatMul (x, w)  b1 = Relu (a)  c = Neg (a)  d = Add (b1, c)  y = Add (d, b)")
    nodes = list(sorted_model.graph.node)
    model = linear()
    del model.graph.node[:]
    model.graph.node.extend(nodes[i] for i in (4, 3, 1, 2, 0))
    loaded = load_model(save(model, tmp_path))
    order = [n.outputs[0].name for n in loaded.graph.nodes]
    assert sorted(order) == ["a", "b1", "c", "d", "y"]
    assert order.index("a") < min(order.index("b1"), order.index("c"))
    assert order[-2:] == ["d", "y"]
    save_model(loaded, tmp_path / "again.onnx")
    x = RNG.standard_normal((2, 16), np.float32)
    expected = np.maximum(x @ LARGE, 0) - x @ LARGE + SMALL
    np.testing.assert_allclose(run(tmp_path / "again.onnx", x)[0], expected, rtol=1e-5, atol=1e-5)


FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1, "sdort" : 1]>
f (float[N] x) => (float[N] y) { a = local.scale <by = 3.0> (x)  b = local.scale (a)  y = sdort.keep (b) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
scale <by: float = 2.0> (t) => (r) { f = Constant <value_float : float = @by> ()  s = local.neg (t)  r = Mul (s, f) }
<domain: "local", opset_import: ["" : 17]>
neg (t) => (r) { r = Neg (t) }
<domain: "sdort", opset_import: ["" : 17]>
keep (t) => (r) { r = Abs (t) }
"""


def test_functions_are_expanded_except_our_own(tmp_path: Path) -> None:
    model = load_model(save(parser.parse_model(FUNCTIONS), tmp_path))
    assert [n.op for n in model.graph.nodes] == ["Neg", "Mul", "Neg", "Mul", "keep"]
    assert model.graph.nodes[-1].domain == "sdort"
    save_model(model, tmp_path / "again.onnx")
    np.testing.assert_array_equal(
        run(tmp_path / "again.onnx", np.array([1, -2], np.float32))[0], np.array([6, 12], np.float32)
    )
    onnx.checker.check_model(str(tmp_path / "again.onnx"))


def test_nodes_are_named_and_dtypes_are_numpy(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["ai.onnx" : 17]>
    g (bfloat16[2] x) => (bfloat16[2] y) <bfloat16[2] a> { a = Neg (x)  b = Neg (a)  y = ai.onnx.Neg (b) }"""
    model = parser.parse_model(text)
    model.graph.node[0].name = model.graph.node[1].name = "same"
    graph = load_model(save(model, tmp_path)).graph
    assert graph.nodes[0].name == "same"
    assert len({n.name for n in graph.nodes}) == 3
    assert all(n.name for n in graph.nodes)
    assert {n.domain for n in graph.nodes} == {None}
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    assert (graph.inputs[0].dtype, graph.outputs[0].dtype, graph.nodes[0].outputs[0].dtype) == (bfloat16,) * 3
    assert graph.opset == 17


def test_value_info_without_a_type_or_twice_or_for_an_output_is_ignored(tmp_path: Path) -> None:
    model = linear()
    wrong = [helper.make_tensor_value_info(name, TensorProto.INT64, [7]) for name in ("y", "w", "h")]
    model.graph.value_info.extend([helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N", 32]), *wrong])
    model.graph.value_info.add(name="h")
    graph = load_model(save(model, tmp_path)).graph
    assert (graph.outputs[0].dtype, graph.outputs[0].shape) == (np.float32, ["N", 32])
    hidden = graph.nodes[0].outputs[0]
    assert (hidden.dtype, hidden.shape) == (np.float32, ["N", 32])


def test_two_entries_for_one_value_are_not_mixed() -> None:
    model = linear()
    model.graph.value_info.extend(
        [
            helper.make_tensor_value_info("h", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("h", TensorProto.INT64, [7]),
        ]
    )
    hidden = from_proto(model, None, "unet").graph.nodes[0].outputs[0]
    assert (hidden.dtype, hidden.shape) == (np.float32, None)


def test_the_default_domain_has_a_long_name_in_functions_too() -> None:
    text = FUNCTIONS.replace("y = sdort.keep (b)", "y = Abs (b)").replace("r = Neg", "r = ai.onnx.Neg")
    graph = from_proto(parser.parse_model(text), None, "unet").graph
    assert [n.op for n in graph.nodes] == ["Neg", "Mul", "Neg", "Mul", "Abs"]
    assert {n.domain or "" for n in graph.nodes} == {""}


def test_resolve_brings_the_weights_of_an_architecture() -> None:
    model = linear()
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    values = constants(from_proto(model, lambda t: Absent(t.name, t.dims, np.float32), "unet"))
    assert isinstance(values["w"], Absent)
    assert isinstance(values["b"], Absent)
    assert values["w"].shape == (16, 32)


def test_resolve_may_not_bring_another_shape() -> None:
    with pytest.raises(BadModelError, match=r"shape \(3,\) for an initializer of shape \(16, 32\)") as caught:
        from_proto(linear(), lambda t: Absent(t.name, [3], np.float32), "unet")
    assert caught.value.node == "w"
    with pytest.raises(BadModelError, match=r"shape \(17, 32\) for an initializer of shape \(16, 32\)"):
        from_proto(linear(), lambda t: Absent(t.name, [17, 32], np.float32), "unet")


def test_metadata_versions_and_component_are_kept(tmp_path: Path) -> None:
    model = linear()
    model.metadata_props.add(key="model", value="tiny")
    model.opset_import.add(domain="com.microsoft", version=1)
    loaded = load_model(save(model, tmp_path), "unet")
    assert loaded.metadata == {"model": "tiny"}
    assert (loaded.component, loaded.path) == ("unet", tmp_path / "model.onnx")
    assert (loaded.graph.opset, loaded.graph.ir_version) == (17, 8)
    assert [entry.domain for entry in loaded.graph.import_domains] == [""]  # nothing uses com.microsoft


def test_a_component_is_called_what_its_graph_is_and_else_what_its_file_is(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (int64[N, 77] ids) => (float[N, 77, 32] y) { y = Gather (w, ids) }"""
    encoder = parser.parse_model(text)
    encoder.graph.initializer.append(numpy_helper.from_array(LARGE, "w"))
    assert load_model(save(encoder, tmp_path)).component == "text_encoder"
    assert load_model(save(encoder, tmp_path), "mine").component == "mine"
    assert load_model(save(linear(), tmp_path)).component == "model"


def test_contrib_operators_load() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "unused.domain" : 7]>
    g (float[N] x) => (float[N] y) { y = com.microsoft.QuickGelu <alpha = 1.702> (x) }"""
    graph = from_proto(parser.parse_model(text), None, "unet").graph
    assert [(n.op, n.domain) for n in graph.nodes] == [("QuickGelu", "com.microsoft")]
    assert {entry.domain: entry.version for entry in graph.import_domains} == {"": 17, "com.microsoft": 1}


def test_tied_weights_share_their_bytes(tmp_path: Path) -> None:
    model = linear("h = MatMul (x, w)  i = MatMul (x, w2)  j = Add (h, i)  y = Add (j, b)")
    (tmp_path / "data").write_bytes(LARGE.tobytes())
    del model.graph.initializer[0]
    for name in ("w", "w2"):
        tied = model.graph.initializer.add(name=name, dims=LARGE.shape, data_type=1, data_location=TensorProto.EXTERNAL)
        tied.external_data.add(key="location", value="data")
    values = constants(load_model(save(model, tmp_path)))
    np.testing.assert_array_equal(values["w"].load(), values["w2"].load())


def test_the_hub_cache_links_its_files(tmp_path: Path) -> None:
    """A snapshot's files are links to blobs of the same repository; no other link may leave the folder."""
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1234" / "unet", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save(linear(), snapshot, save_as_external_data=True, location="weights.pb", size_threshold=0)
    for name, blob in (("model.onnx", "a" * 40), ("weights.pb", "b" * 64)):
        (snapshot / name).rename(blobs / blob)
        (snapshot / name).symlink_to(blobs / blob)
    values = constants(load_model(snapshot / "model.onnx"))
    np.testing.assert_array_equal(values["w"].load(), LARGE)


def test_the_list_of_contrib_operators_is_the_runtimes() -> None:
    pytest.importorskip("onnxruntime")
    from onnxruntime.capi import _pybind_state

    schemas = {s.name for s in _pybind_state.get_all_operator_schema() if s.domain == "com.microsoft"}
    assert schemas <= MICROSOFT_OPERATORS
