"""Weights whose origin is recorded and that a session may replace, marks of precision, and places in a data file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sdort.errors import BadModelError
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.data_file import place_behind
from sdort.onnx_io.model_hash import hash_files, hash_model
from sdort.onnx_io.overridable import computed_weights, make_overridable, replaceable_weights, weights_of
from sdort.onnx_io.precision_mark import made_for_bf16, says_bf16, stored_dtype
from sdort.onnx_io.weight_origins import ORIGINS_KEY, leaves_of, parameters_of, read_origins, region_of, shapes_of

RANDOM = np.random.default_rng(0)
WEIGHTS: dict[str, Any] = {
    "outside": RANDOM.standard_normal((8, 64)).astype(np.float32),
    "other": RANDOM.standard_normal((64, 5)).astype(np.float16),
    "unrecorded": RANDOM.standard_normal((5, 64)).astype(np.float32),
}


def write(folder: Path, origins: Any, **metadata: str) -> Path:
    """A model of three matrices in a data file and one within the graph."""
    path, data = folder / "model.onnx", b""
    tensors = []
    for name, array in WEIGHTS.items():
        tensor = TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "model.onnx.data"), ("offset", len(data)), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        data += array.tobytes()
        tensors.append(tensor)
    (folder / "model.onnx.data").write_bytes(data)
    tensors.append(numpy_helper.from_array(np.ones((1, 64), np.float32), "inside"))
    nodes = [
        helper.make_node("MatMul", ["x", "outside"], ["a"]),
        helper.make_node("Cast", ["other"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["a", "wide"], ["b"]),
        helper.make_node("MatMul", ["b", "unrecorded"], ["c"]),
        helper.make_node("Add", ["c", "inside"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    text = origins if isinstance(origins, str) else json.dumps(origins)
    for key, value in {ORIGINS_KEY: text, **metadata}.items():
        model.metadata_props.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


def parameter(name: str, *shape: int) -> dict[str, Any]:
    return {"parameter": name, "shape": list(shape)}


ORIGINS: dict[str, Any] = {
    "outside": {"op": "transpose", "of": parameter("p", 64, 8)},
    "other": {"op": "concat", "of": [parameter("q", 3, 64), {"inner": parameter("r", 2, 64)}, parameter("q", 3, 64)]},
    "inside": parameter("s", 1, 64),
    "gone": parameter("t", 1),
}


def test_recorded_weights_in_the_data_file_can_be_replaced(tmp_path: Path) -> None:
    found = replaceable_weights(read_component(write(tmp_path, ORIGINS)))
    assert found.keys() == {"outside", "other"}
    for name, weight in found.items():
        values = weight.stored.load()
        assert values.dtype == WEIGHTS[name].dtype
        np.testing.assert_array_equal(values, WEIGHTS[name])
        assert weight.origin == ORIGINS[name]
    assert found["outside"].parameters == {"p": (64, 8)}
    assert found["other"].parameters == {"q": (3, 64), "r": (2, 64)}


@pytest.mark.parametrize("shape", [None, [0], [-1], [1.0], [True], "8", [8, "8"]])
def test_a_record_that_is_wrong_is_refused(tmp_path: Path, shape: Any) -> None:
    origins = {"outside": {"parameter": "p", "shape": shape}}
    with pytest.raises(BadModelError, match="what this weight is made of is wrong: 'p' of shape") as caught:
        replaceable_weights(read_component(write(tmp_path, origins), "unet"))
    assert (caught.value.component, caught.value.node) == ("unet", "outside")


@pytest.mark.parametrize("record", ["{", "[]", "1", '{"outside": 1}', '{"outside": null}', ""])
def test_a_record_that_is_damaged_is_none(tmp_path: Path, record: str) -> None:
    assert replaceable_weights(read_component(write(tmp_path, record))) == {}
    assert read_origins({ORIGINS_KEY: record}) == {}
    assert read_origins({}) == {}


def test_the_parameters_of_an_expression() -> None:
    entry = ORIGINS["other"]
    assert list(parameters_of(entry)) == ["q", "r", "q"]
    assert [leaf["shape"] for leaf in leaves_of(entry)] == [[3, 64], [2, 64], [3, 64]]
    assert shapes_of(parameter("a")) == {"a": ()}
    for bad in ({"parameter": 1, "shape": [1]}, {"parameter": "a"}):
        with pytest.raises(ValueError, match="is no parameter"):
            shapes_of(bad)
    assert list(parameters_of({"scale": 2, "of": [1, [2], "x"]})) == []


@pytest.mark.parametrize("required", [False, True])
def test_replaceable_weights_become_inputs(tmp_path: Path, required: bool) -> None:
    file = read_component(write(tmp_path, ORIGINS))
    weights = replaceable_weights(file)
    model = file.copy()
    make_overridable(model, weights, required=required)
    inputs = {info.name: info.type.tensor_type for info in model.graph.input}
    assert list(inputs) == ["x", "outside", "other"]
    for name in weights:
        assert [dim.dim_value for dim in inputs[name].shape.dim] == list(WEIGHTS[name].shape)
        assert inputs[name].elem_type == helper.np_dtype_to_tensor_dtype(WEIGHTS[name].dtype)
    left = [tensor.name for tensor in model.graph.initializer]
    assert left == (["unrecorded", "inside"] if required else ["outside", "other", "unrecorded", "inside"])
    assert [info.name for info in file.graph.graph.input] == ["x"]  # the file's own message stays


def test_weights_of_operators(tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path, {}), load_external_data=False)
    assert weights_of(model, {"MatMul"}) == {"outside", "wide", "unrecorded"}
    assert weights_of(model, {"Add"}) == {"inside"}
    assert weights_of(model, {"MatMul", "Add"}) == {"outside", "wide", "unrecorded", "inside"}
    assert weights_of(model, {"Cast"}) == set()
    assert computed_weights(model, {"MatMul"}) == 1
    assert computed_weights(model, {"Add"}) == 0


def test_a_region_is_its_place_and_how_it_is_read(tmp_path: Path) -> None:
    found = replaceable_weights(read_component(write(tmp_path, ORIGINS)))
    data = str(tmp_path / "model.onnx.data")
    assert region_of(found["outside"].stored) == (data, 0, (8, 64), "float32")
    assert region_of(found["other"].stored) == (data, 2048, (64, 5), "float16")


@pytest.mark.parametrize(
    ("metadata", "half", "dtype"),
    [
        ({}, False, "float32"),
        ({}, True, "float16"),
        ({"sdort.precision": "bf16"}, False, "bfloat16"),
        ({"sdort.precision": "bf16"}, True, "bfloat16"),
        ({"sdort.precision": "fp16"}, False, "float32"),
        ({"precision": "bf16"}, False, "float32"),
        ({"other": "x", "sdort.precision": "bf16"}, False, "bfloat16"),
    ],
)
def test_the_mark_of_bf16(tmp_path: Path, metadata: dict[str, str], half: bool, dtype: str) -> None:
    path = write(tmp_path, {}, **metadata)
    model = onnx.load(path, load_external_data=False)
    if not half:
        kept = [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
    assert stored_dtype(model) == dtype
    assert says_bf16(model) == made_for_bf16(path) == (dtype == "bfloat16")
    assert not made_for_bf16(tmp_path / "nowhere.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"x")
    assert not made_for_bf16(tmp_path / "broken.onnx")


@pytest.mark.parametrize("size", [0, 1, 1024, 2**20, 2**20 + 1, 2**22])
@pytest.mark.parametrize("end", [0, 1, 63, 64, 65, 4095, 4096, 4097, 10**6])
def test_regions_begin_where_they_can_be_mapped(end: int, size: int) -> None:
    step = 4096 if size > 2**20 else 64
    assert place_behind(end, size) == math.ceil(end / step) * step


def test_a_hash_is_of_names_sizes_and_samples(tmp_path: Path) -> None:
    path = write(tmp_path, {})
    found = {hash_model(path)}
    assert len(next(iter(found))) == 16
    (tmp_path / "other.bin").write_bytes(b"x")  # whose name does not begin alike
    assert hash_model(path) in found
    (tmp_path / "model_folder").mkdir()
    assert hash_model(path) in found
    data = tmp_path / "model.onnx.data"
    content = data.read_bytes()
    for change in (content + b"\0", content[:-1] + bytes([content[-1] ^ 1]), bytes([content[0] ^ 1]) + content[1:]):
        data.write_bytes(change)
        found.add(hash_model(path))
    data.write_bytes(content)
    data.rename(tmp_path / "model.onnx.dat")
    found.add(hash_model(path))
    (tmp_path / "model.onnx.dat").unlink()
    found.add(hash_model(path))
    assert len(found) == 6
    assert hash_files([path, tmp_path / "nowhere"]) == hash_files([path])


def test_a_large_file_is_hashed_at_64_places(tmp_path: Path) -> None:
    path, size = tmp_path / "a", 16 << 20
    with open(path, "wb") as file:
        file.truncate(size)
    plain = hash_files([path])
    step = size // 64
    for offset, seen in (
        (0, True), ((64 << 10) - 1, True), (64 << 10, False), (step - 1, False), (step, True), (63 * step, True),
        (63 * step + (64 << 10) - 1, True), (size - 1, False),
    ):  # fmt: skip
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(b"x")
            file.flush()
            assert (hash_files([path]) != plain) == seen, offset
            file.seek(offset)
            file.write(b"\0")
