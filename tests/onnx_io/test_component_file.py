"""The one reader of model files: what it tells, how often it reads, and what it takes."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper, parser
from support.parity import open_raw
from support.tiny_pipeline import Tiny

import sdort
from sdort.cli import cli
from sdort.errors import BadModelError
from sdort.graph.signature import TensorSpec
from sdort.onnx_io import component_file
from sdort.onnx_io.component_file import KEPT_FILES, SETTLED_NS, read_component
from sdort.onnx_io.derived import Derived
from sdort.onnx_io.wire import read_graph
from sdort.passes.widen import all_nodes, widen_file

FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
WEIGHT = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """How often each file was parsed; nothing is kept from before."""
    counts: Counter[Path] = Counter()

    def counted(path: Path, component: str) -> onnx.ModelProto:
        counts[path] += 1
        return read_graph(path, component)

    monkeypatch.setattr("sdort.onnx_io.component_file.read_graph", counted)
    component_file._kept.clear()
    return counts


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has just written counts as written long ago."""
    monkeypatch.setattr(component_file, "SETTLED_NS", -1)


def matmul(weight: onnx.TensorProto, dtype: int = FLOAT) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", dtype, ["batch", 32])]
    outputs = [helper.make_tensor_value_info("y", dtype, None)]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, folder: Path, x: np.ndarray) -> np.ndarray:
    (y,) = open_raw(model, folder, "unet").run(None, {"x": x})
    return np.asarray(y)


# ---------------------------------------------------------------------------------------------------- how often


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run", ["--prompt", "a", "--steps", "1"]),
        ("bench", ["--steps", "1", "--warmup", "0", "--repeat", "1"]),
        ("verify", ["--steps", "1", "--inputs", "random", "--no-images", "--no-torch"]),
    ],
)
def test_a_command_parses_a_file_once(
    command: str, options: list[str], tiny: Tiny, reads: Counter[Path], settled: None, tmp_path: Path
) -> None:
    """``run`` parsed each of the tiny pipeline's files 2 times, ``bench`` 4 times, a whole ``verify`` 12 times."""
    options = [
        *options,
        *{"run": ["-o", str(tmp_path / "a.png")], "verify": ["--against", str(tiny.onnx)]}.get(command, []),
    ]
    result = CliRunner().invoke(cli, [command, str(tiny.onnx), "--provider", "cpu", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    components = ("text_encoder", "unet", "vae_decoder")
    assert reads == {tiny.onnx / name / "model.onnx": 1 for name in components}


def test_a_file_that_changed_is_parsed_again(tmp_path: Path, reads: Counter[Path], settled: None) -> None:
    path = tmp_path / "model.onnx"
    for value in (1.0, 2.0):
        onnx.save(matmul(numpy_helper.from_array(np.full((2, 2), value, np.float32), "w")), path)
        for _ in range(2):
            (weight,) = read_component(path).proto.graph.initializer
            assert (numpy_helper.to_array(weight) == value).all()
        assert reads[path] == value


def test_a_file_that_was_just_written_is_not_kept(tmp_path: Path, reads: Counter[Path]) -> None:
    """Another change within the clock's tick would go unseen."""
    path = tmp_path / "model.onnx"
    onnx.save(matmul(numpy_helper.from_array(WEIGHT, "w")), path)
    future = path.stat().st_mtime_ns + 1000 * SETTLED_NS
    os.utime(path, ns=(future, future))
    for number in (1, 2):
        read_component(path)
        assert reads[path] == number


def test_the_last_used_files_are_kept(tmp_path: Path, reads: Counter[Path], settled: None) -> None:
    paths = [tmp_path / f"{number}.onnx" for number in range(KEPT_FILES + 1)]
    for path in paths:
        onnx.save(matmul(numpy_helper.from_array(WEIGHT, "w")), path)
        read_component(path)
        read_component(paths[0])
    assert len(component_file._kept) == KEPT_FILES
    assert reads[paths[0]] == 1
    read_component(paths[1])
    assert reads[paths[1]] == 2


def test_external_data_is_looked_at_every_time(tmp_path: Path, settled: None) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        matmul(numpy_helper.from_array(WEIGHT, "w")), path, save_as_external_data=True, location="w", size_threshold=0
    )
    read_component(path).check()
    os.truncate(tmp_path / "w", 100)
    with pytest.raises(BadModelError, match="has 100 bytes"):
        read_component(path).check()


def test_nothing_else_in_the_package_reads_models() -> None:
    """``onnx.load`` parses weights too, and knows neither functions nor files above 2 GiB."""
    root = Path(sdort.__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    bare = re.compile(r"\bonnx\.(load|load_model|load_from_string)\(|from onnx import .*\bload|ModelProto\(\)\.Parse")
    assert [name for name, text in sources.items() if bare.search(text)] == []
    readers = [name for name, text in sources.items() if re.search(r"\bread_graph\b", text)]
    assert readers == ["onnx_io/component_file.py", "onnx_io/wire.py"]


# ---------------------------------------------------------------------------------------------- what a file tells


def test_the_signature_leaves_out_what_initializers_give(tmp_path: Path) -> None:
    model = matmul(numpy_helper.from_array(WEIGHT, "w"))
    model.graph.input.add().CopyFrom(helper.make_tensor_value_info("w", FLOAT, [32, 32]))
    model.graph.input.add().CopyFrom(helper.make_tensor_value_info("open", FLOAT, [None, 4]))
    model.metadata_props.add(key="made", value="here")
    onnx.save(model, tmp_path / "model.onnx")
    file = read_component(tmp_path / "model.onnx")
    float32 = np.dtype(np.float32)
    assert file.signature.inputs == {
        "x": TensorSpec("x", float32, ("batch", 32)),
        "open": TensorSpec("open", float32, (None, 4)),
    }
    assert file.signature.outputs == {"y": TensorSpec("y", float32, ())}
    assert file.metadata == {"made": "here"}


@pytest.mark.parametrize(("halves", "dtype"), [(1, "float32"), (3, "float16")])
def test_the_dtype_is_that_of_most_bytes(halves: int, dtype: str, tmp_path: Path) -> None:
    model = matmul(numpy_helper.from_array(WEIGHT, "w"))
    model.graph.initializer.add().CopyFrom(helper.make_tensor("h", HALF, [halves, 1024], [0.0] * 1024 * halves))
    onnx.save(model, tmp_path / "model.onnx")
    file = read_component(tmp_path / "model.onnx")
    assert file.weight_bytes == {"float": 4096, "float16": 2048 * halves}
    assert file.dtype == dtype


def test_a_model_without_float_weights_has_no_dtype(tmp_path: Path) -> None:
    onnx.save(matmul(numpy_helper.from_array(WEIGHT.astype(np.float64), "w")), tmp_path / "model.onnx")
    with pytest.raises(BadModelError, match="has no float weights"):
        _ = read_component(tmp_path / "model.onnx").dtype


# ------------------------------------------------------------------------------------------------- what it takes


def write_inside(folder: Path) -> None:
    onnx.save(matmul(numpy_helper.from_array(WEIGHT, "w")), folder / "model.onnx")


def write_beside(folder: Path) -> None:
    model = matmul(numpy_helper.from_array(WEIGHT, "w"))
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="data", size_threshold=0)


def write_constant(folder: Path) -> None:
    """A Constant's value is external data to the walk over the file, which ONNX does not have in attributes."""
    model = matmul(numpy_helper.from_array(WEIGHT, "w"))
    del model.graph.initializer[:]
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(WEIGHT))
    model.graph.node.insert(0, constant)
    onnx.save(model, folder / "model.onnx")


def write_function(folder: Path) -> None:
    model = matmul(numpy_helper.from_array(WEIGHT, "w"))
    model.functions.add().CopyFrom(
        parser.parse_function('<domain: "own", opset_import: ["": 17]>\nTimes (a, b) => (c) { c = MatMul (a, b) }')
    )
    model.opset_import.add(domain="own", version=1)
    model.graph.node[0].domain, model.graph.node[0].op_type = "own", "Times"
    onnx.save(model, folder / "model.onnx")


@pytest.mark.parametrize("write", [write_inside, write_beside, write_constant, write_function])
def test_a_copy_runs_beside_its_weights(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    x = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    file = read_component(tmp_path / "model.onnx")
    assert not any(len(tensor.raw_data) > 1024 for tensor in file.copy().graph.initializer)
    np.testing.assert_allclose(run(file.copy(), tmp_path, x), x @ WEIGHT, rtol=1e-4, atol=1e-5)


def test_a_copy_is_its_owner_s(tmp_path: Path) -> None:
    write_inside(tmp_path)
    file = read_component(tmp_path / "model.onnx")
    changed = file.copy()
    del changed.graph.node[:]
    assert [node.op_type for node in file.copy().graph.node] == ["MatMul"]
    assert [node.op_type for node in file.proto.graph.node] == ["MatMul"]


def test_nodes_inside_functions_compute_in_fp32_too(tmp_path: Path) -> None:
    """The names of tensors are those of the expanded graph: a node inside a function was none of its model's."""
    write_function(tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = HALF
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(WEIGHT.astype(np.float16), "w"))
    onnx.save(model, tmp_path / "half.onnx")
    widened = widen_file(tmp_path / "half.onnx", all_nodes, "unet")
    assert widened is not None
    assert [node.op_type for node in widened.graph.node] == ["Cast", "Cast", "MatMul", "Cast"]
    x = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float16)
    exact = x.astype(np.float32) @ WEIGHT.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(run(widened, tmp_path, x), exact, rtol=2**-10, atol=2**-10)


def test_threads_that_ask_more_than_is_kept_get_their_answers() -> None:
    derived, wrong = Derived(most=2), list[int]()

    def ask(first: int) -> None:
        for number in range(first, first + 3000):
            wrong.extend({derived.get(number % 5, partial(int, number % 5))} - {number % 5})

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(derived._known) == 2
