"""What is written: one aligned data file, each expression once, nothing half-written, and all of it loads again."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
import xxhash
from support.weight_chains import chain

import sdort
import sdort.onnx_io.save
from sdort.errors import BadModelError, OutputError
from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.graph.weights import (
    Absent,
    Cast,
    Concatenated,
    Inline,
    Reshaped,
    Scaled,
    Stored,
    Transposed,
    Weight,
)
from sdort.onnx_io.hashing import FileHash
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model

RNG = np.random.default_rng(0)


def stored(folder: Path, array: Array, name: str = "weights.bin") -> Stored:
    (folder / name).write_bytes(array.tobytes())
    return Stored(folder / name, 0, array.shape, array.dtype)


def initializers(path: Path) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in onnx.load(path, load_external_data=False).graph.initializer}


def place(tensor: onnx.TensorProto) -> tuple[int, int]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return int(entries["offset"]), int(entries["length"])


def values(path: Path) -> dict[str, Array]:
    """Initializers as onnx itself reads them."""
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def run(path: Path, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def test_written_models_check_run_and_load_again(tmp_path: Path) -> None:
    large, small = RNG.standard_normal((8, 512), np.float32), RNG.standard_normal(512, np.float32)[:100]
    model = chain(stored(tmp_path, large), Inline(np.tile(small, 6)[:512]), small[:1])
    model.graph.outputs[0].shape = ("N", 512)
    model.graph.inputs[0].shape = ("N", 512)
    report = save_model(model, tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    x = RNG.standard_normal((8, 512), np.float32)
    expected = x + large + np.tile(small, 6)[:512] + small[:1]
    np.testing.assert_allclose(run(tmp_path / "model.onnx", x), expected, rtol=1e-6)
    assert report.data_path == tmp_path / "model.onnx.data"
    assert report.tensors == 2
    assert report.bytes == sum(os.path.getsize(tmp_path / name) for name in ("model.onnx", "model.onnx.data"))
    again = load_model(tmp_path / "model.onnx", "unet")
    assert [n.name for n in again.graph.nodes] == ["add0", "add1", "add2"]
    np.testing.assert_array_equal(again.graph.nodes[0].inputs[1]._values.load(), large)


def test_small_tensors_stay_inside_and_no_data_file_is_made(tmp_path: Path) -> None:
    report = save_model(chain(np.ones(256, np.float32)), tmp_path / "model.onnx")  # 1 KiB
    assert (report.data_path, report.tensors) == (None, 0)
    assert sorted(os.listdir(tmp_path)) == ["model.onnx"]
    save_model(chain(np.ones(257, np.float32)), tmp_path / "model.onnx")
    assert os.path.getsize(tmp_path / "model.onnx.data") == 257 * 4


def test_offsets_are_aligned_in_order_and_apart(tmp_path: Path) -> None:
    sizes = [257, 300, 2**18 + 1, 999, 2**18 + 64, 2**18]
    report = save_model(
        chain(*[Inline(np.full((1, n), i, np.float32)) for i, n in enumerate(sizes)]), tmp_path / "m.onnx"
    )
    tensors = initializers(tmp_path / "m.onnx")
    places = [place(tensors[f"w{i}"]) for i in range(len(sizes))]
    end = 0
    for (offset, length), size in zip(places, sizes, strict=True):
        assert length == size * 4
        assert end <= offset < end + 4096
        assert offset % (4096 if length > 2**20 else 64) == 0
        end = offset + length
    assert os.path.getsize(report.data_path or "") == end
    for i, array in enumerate(values(tmp_path / "m.onnx").values()):
        assert array.shape == (1, sizes[i])
        assert (array == i).all()


BASE = RNG.standard_normal((6, 4, 20), np.float32)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda w: Transposed(w, (0, 2, 1)), BASE.transpose(0, 2, 1)),
        (lambda w: Cast(w, np.float16), BASE.astype(np.float16)),
        (lambda w: Cast(w, ml_dtypes.bfloat16), BASE.astype(ml_dtypes.bfloat16)),
        (lambda w: Scaled(w, 0.5), BASE * np.float32(0.5)),
        (lambda w: Reshaped(w, (24, 20)), BASE.reshape(24, 20)),
        (lambda w: Concatenated([w, Transposed(w, (0, 1, 2))], 1), np.concatenate([BASE, BASE], 1)),
        (
            lambda w: Cast(Transposed(Concatenated([Scaled(w, 2.0), w], 0), (2, 0, 1)), np.float16),
            np.concatenate([BASE * 2, BASE]).transpose(2, 0, 1).astype(np.float16),
        ),
    ],
)
def test_transforms_are_applied_while_writing(
    tmp_path: Path, build: Callable[[Weight], Weight], expected: Array
) -> None:
    model = chain(build(stored(tmp_path, BASE)))
    save_model(model, tmp_path / "model.onnx")
    (written,) = values(tmp_path / "model.onnx").values()
    assert written.dtype == expected.dtype
    np.testing.assert_array_equal(written, expected)


def test_equal_expressions_are_written_once(tmp_path: Path) -> None:
    base = RNG.standard_normal((32, 32), np.float32)
    stored(tmp_path, base)

    def fresh() -> Stored:
        return Stored(tmp_path / "weights.bin", 0, (32, 32), np.float32)

    model = chain(
        fresh(),
        fresh(),
        Transposed(fresh(), (1, 0)),
        Transposed(fresh(), (1, 0)),
        Scaled(fresh(), 2.0),
        Scaled(fresh(), 3.0),
        Reshaped(fresh(), (1, 32, 32)),
        Concatenated([fresh(), Scaled(fresh(), 2.0)], 0),
        Concatenated([fresh(), Scaled(fresh(), 2.0)], 1),
        Transposed(Transposed(fresh(), (1, 0)), (1, 0)),
    )
    report = save_model(model, tmp_path / "model.onnx")
    tensors = initializers(tmp_path / "model.onnx")
    # w1 and w3 are w0 and w2; w6 is another view of w0's bytes.
    assert sorted(tensors) == ["w0", "w2", "w4", "w5", "w6", "w7", "w8", "w9"]
    assert place(tensors["w6"]) == place(tensors["w0"])
    assert report.tensors == 7
    nodes = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.node
    assert [node.input[1] for node in nodes][:4] == ["w0", "w0", "w2", "w2"]
    written = values(tmp_path / "model.onnx")
    np.testing.assert_array_equal(written["w6"], base[None])
    np.testing.assert_array_equal(written["w9"], base)
    np.testing.assert_array_equal(written["w5"], base * 3)


def test_expressions_of_different_files_offsets_and_arrays_differ(tmp_path: Path) -> None:
    arrays = [RNG.standard_normal((16, 32), np.float32) for _ in range(4)]
    both = stored(tmp_path, np.stack(arrays[:2]))
    other = stored(tmp_path, arrays[2], "other.bin")
    second = Stored(both.path, arrays[0].nbytes, (16, 32), np.float32)
    model = chain(Stored(both.path, 0, (16, 32), np.float32), second, other, Inline(arrays[3]), Inline(arrays[0]))
    assert save_model(model, tmp_path / "model.onnx").tensors == 5
    written = values(tmp_path / "model.onnx")
    for name, array in zip(["w0", "w1", "w2", "w3", "w4"], [*arrays, arrays[0]], strict=True):
        np.testing.assert_array_equal(written[name], array)


def test_equal_small_constants_are_merged_and_clashing_names_renamed(tmp_path: Path) -> None:
    one, two = np.array([1.0], np.float32), np.array([2.0], np.float32)
    model = chain(one, one.copy(), two, one.reshape(1, 1), np.array([1], np.float32), names=["c", "d", "c", "c", "x"])
    save_model(model, tmp_path / "model.onnx")
    written = values(tmp_path / "model.onnx")
    assert sorted((a.shape, a.item()) for a in written.values()) == [((1,), 1.0), ((1,), 2.0), ((1, 1), 1.0)]
    assert run(tmp_path / "model.onnx", np.zeros((1, 1), np.float32)).item() == 1 + 1 + 2 + 1 + 1
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert (graph.input[0].name, graph.output[0].name) == ("x", "y")


def test_values_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """gs takes tensors of one name for one tensor; a pass that forgot to rename must not lose one."""
    model = chain(np.ones(1, np.float32), np.ones(1, np.float32))
    model.graph.nodes[0].outputs[0].name = "y"
    save_model(model, tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    assert run(tmp_path / "model.onnx", np.zeros((1, 1), np.float32)).item() == 2


def test_a_constant_that_is_an_output_keeps_its_name(tmp_path: Path) -> None:
    weight = stored(tmp_path, RNG.standard_normal((32, 32), np.float32))
    model = chain(weight)
    model.graph.outputs.append(gs.Constant("tied", weight))
    save_model(model, tmp_path / "model.onnx")
    tensors = initializers(tmp_path / "model.onnx")
    assert sorted(tensors) == ["tied", "w0"] or sorted(tensors) == ["tied"]
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    assert "tied" in tensors


def test_unsorted_nodes_are_sorted_and_cycles_refused(tmp_path: Path) -> None:
    model = chain(*[np.ones(1, np.float32)] * 3)
    model.graph.nodes.reverse()
    save_model(model, tmp_path / "model.onnx")
    assert [n.name for n in load_model(tmp_path / "model.onnx").graph.nodes] == ["add0", "add1", "add2"]
    model.graph.nodes[2].inputs[0] = model.graph.outputs[0]
    with pytest.raises(BadModelError, match="cycle"):
        save_model(model, tmp_path / "cyclic.onnx")
    assert not (tmp_path / "cyclic.onnx").exists()


def test_values_that_nothing_defines_are_refused(tmp_path: Path) -> None:
    model = chain(*[np.ones(1, np.float32)] * 3)
    del model.graph.nodes[1]
    with pytest.raises(BadModelError, match="nothing defines it") as caught:
        save_model(model, tmp_path / "model.onnx")
    assert caught.value.node == "h1"
    model = chain(np.ones(1, np.float32))
    model.graph.outputs.append(gs.Variable("lost", np.float32, (1,)))
    with pytest.raises(BadModelError, match="nothing defines it"):
        save_model(model, tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == []


def test_overflow_is_counted_and_named(tmp_path: Path) -> None:
    base = np.zeros((16, 64), np.float32)
    base[0, :3] = [70000.0, -1e30, 65519.0]  # the last rounds to 65504, float16's largest
    infinite = np.zeros((16, 64), np.float32)
    infinite[1, :2] = [np.inf, np.nan]
    model = chain(
        Cast(stored(tmp_path, base, "a"), np.float16),
        Cast(stored(tmp_path, infinite, "b"), np.float16),
        Cast(Scaled(stored(tmp_path, base + 40000, "c"), 1.0), np.float16),
        Cast(stored(tmp_path, np.full((16, 64), 65504, np.float32), "d"), np.float16),
        names=["over", "was_infinite", "third", "fits"],
    )
    report = save_model(model, tmp_path / "model.onnx")
    assert report.overflow_counts == {"over": 2, "third": 3}
    assert report.overflowed == ["over", "third"]


def test_overflow_is_counted_over_all_pieces(tmp_path: Path) -> None:
    """A large tensor is evaluated piece by piece: one value in the first, two in the last."""
    base = np.zeros((1024, 4096), np.float32)
    base[0, 0] = base[-1, -1] = base[-1, -2] = 1e5
    weight = Cast(stored(tmp_path, base), np.float16)
    assert sum(1 for _ in weight.pieces()) > 2
    report = save_model(chain(weight, names=["large"]), tmp_path / "model.onnx")
    assert report.overflow_counts == {"large": 3}


def test_other_types_do_not_overflow(tmp_path: Path) -> None:
    """Bits that are infinity in float16 are ordinary numbers in float32 and bfloat16."""
    bits = np.full((16, 64), 0x7C007C00, np.uint32).view(np.float32)
    model = chain(Inline(bits), Inline(bits.view(ml_dtypes.bfloat16)[:, :64]), Inline(bits[0, :1]))
    assert save_model(model, tmp_path / "model.onnx").overflow_counts == {}


def test_overflow_of_small_tensors(tmp_path: Path) -> None:
    model = chain(Cast(Inline(np.array([1e9, 1.0], np.float32)), np.float16))
    assert save_model(model, tmp_path / "model.onnx").overflow_counts == {"w0": 1}


def test_progress_and_checksum(tmp_path: Path) -> None:
    model = chain(*[Inline(RNG.standard_normal((64, 64), np.float32)) for _ in range(20)])
    seen: list[float] = []
    threads = set()

    def advance(amount: float) -> None:
        seen.append(amount)
        threads.add(threading.get_ident())

    report = save_model(model, tmp_path / "model.onnx", advance=advance, checksum=True, sync=True)
    assert sum(seen) == 20 * 64 * 64 * 4
    assert threads == {threading.get_ident()}  # a progress bar is not thread-safe
    files = [tmp_path / "model.onnx", tmp_path / "model.onnx.data"]
    assert report.hashes == {file: xxhash.xxh3_128_hexdigest(file.read_bytes()) for file in files}
    assert save_model(model, tmp_path / "model.onnx").hashes == {}


@pytest.mark.parametrize("order", [1, -1])
def test_the_checksum_does_not_depend_on_what_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    stream = sdort.onnx_io.save._stream

    def ordered(blobs: Any, descriptor: int) -> Any:
        yield from list(stream(blobs, descriptor))[::order]

    monkeypatch.setattr(sdort.onnx_io.save, "_stream", ordered)
    # Sizes that leave gaps between the regions, and one of several blocks.
    sizes = [257, 2**18 + 1, 300, 2**18 + 64, 999]
    model = chain(*[Inline(RNG.standard_normal((1, size), np.float32)) for size in sizes])
    report = save_model(model, tmp_path / "m.onnx", checksum=True)
    assert report.hashes[tmp_path / "m.onnx.data"] == xxhash.xxh3_128_hexdigest((tmp_path / "m.onnx.data").read_bytes())


@pytest.mark.parametrize("most", [2**20, 10000])  # short reads happen
def test_a_file_is_hashed_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, start: preadv(fd, [buffers[0][:most]], start))
    content = RNG.bytes(3 * 2**20 + 5)
    with open(tmp_path / "data", "w+b", buffering=0) as file, FileHash(file.fileno()) as digest:
        for start, end in itertools.pairwise([0, 100, 100, 2**20 + 7, len(content)]):
            file.write(content[start:end])
            digest.extend(end)
        assert digest.hexdigest() == xxhash.xxh3_128_hexdigest(content)
        digest.extend(len(content) + 1)
        with pytest.raises(OSError, match=r"1 bytes .* cannot be read back"):
            digest.hexdigest()


def interrupted_hash(path: Path) -> None:
    with open(path, "rb") as file, FileHash(file.fileno()) as digest:
        for end in range(2**10, 2**20, 2**10):
            digest.extend(end)
        raise KeyboardInterrupt


def test_an_interrupted_hash_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    (tmp_path / "data").write_bytes(bytes(2**20))
    with pytest.raises(KeyboardInterrupt):
        interrupted_hash(tmp_path / "data")
    assert threading.active_count() == before


class Disk:
    """What a crash would leave: the bytes of each file as they were when it was last synced, and every rename.

    A rename is taken to survive a crash and what was not synced not to, which file systems are free to do.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, bytes] = {}
        self.places: list[dict[str, bytes]] = [{}]
        """After each rename: the files in their places, and what is on the disk of each."""
        replace = os.replace

        def sync(descriptor: int) -> None:
            self.synced[os.fstat(descriptor).st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

        def put(source: Path, target: Path) -> None:
            self.places.append({**self.places[-1], target.name: self.synced.get(source.stat().st_ino, b"")})
            replace(source, target)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", put)


def test_a_crash_leaves_no_model_without_all_of_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    arrays = [RNG.standard_normal((64, 64), np.float32) for _ in range(5)]
    save_model(chain(*map(Inline, arrays)), tmp_path / "model.onnx", sync=True)
    written = {name: (tmp_path / name).read_bytes() for name in ("model.onnx.data", "model.onnx")}
    assert disk.places == [{}, {"model.onnx.data": written["model.onnx.data"]}, written]


def test_nothing_waits_for_the_disk_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    save_model(chain(Inline(RNG.standard_normal((64, 64), np.float32))), tmp_path / "model.onnx")
    assert disk.synced == {}
    assert [list(files) for files in disk.places] == [[], ["model.onnx.data"], ["model.onnx.data", "model.onnx"]]


@pytest.mark.parametrize("renames", [0, 1])
def test_a_rename_that_fails_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int) -> None:
    real = os.replace
    done: list[Path] = []

    def replace(source: Path, target: Path) -> None:
        if len(done) == renames:
            raise OSError(5, "Input/output error")
        done.append(target)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OutputError, match="Input/output error"):
        save_model(chain(Inline(RNG.standard_normal((64, 64), np.float32))), tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == ["model.onnx.data"][:renames]


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path) -> None:
    arrays = [RNG.standard_normal((64, 64), np.float32) for _ in range(10)]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_model(chain(*map(Inline, arrays)), tmp_path / name / "model.onnx")
    for file in ("model.onnx", "model.onnx.data"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_header(tmp_path: Path) -> None:
    model = chain(np.ones(1, np.float32))
    model.metadata = {"b": "2", "a": "1"}
    model.graph.nodes.append(
        gs.Node("QuickGelu", "gelu", {"alpha": 1.702}, [model.graph.inputs[0]], [gs.Variable("z")], "com.microsoft")
    )
    save_model(model, tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx")
    assert [(entry.key, entry.value) for entry in proto.metadata_props] == [("a", "1"), ("b", "2")]
    assert (proto.producer_name, proto.producer_version) == ("sdort", sdort.__version__)
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 17, "com.microsoft": 1}
    assert proto.ir_version == 8
    model.graph.ir_version = None
    save_model(model, tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx").ir_version == 8  # what opset 17 asks for
    model.graph.ir_version = 3  # in which every initializer had to be an input
    save_model(model, tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx").ir_version == 4


def test_constants_as_graphsurgeon_makes_them(tmp_path: Path) -> None:
    """Lazy values, which its importer makes, and an export dtype, which it offers instead of a cast."""
    array = RNG.standard_normal((32, 32), np.float32)
    save_model(chain(Inline(array)), tmp_path / "model.onnx")
    graph = gs.import_onnx(onnx.load(tmp_path / "model.onnx"))
    save_model(Model(graph, "unet"), tmp_path / "again.onnx")
    np.testing.assert_array_equal(values(tmp_path / "again.onnx")["w0"], array)
    model = chain(array)
    model.graph.nodes[0].inputs[1] = gs.Constant("half", array, export_dtype=onnx.TensorProto.FLOAT16)
    save_model(model, tmp_path / "half.onnx")
    np.testing.assert_array_equal(values(tmp_path / "half.onnx")["half"], array.astype(np.float16))


def test_known_types_of_values_are_kept_and_omitted_inputs_stay_so(tmp_path: Path) -> None:
    x, y = gs.Variable("x", np.float32, ("N",)), gs.Variable("y", np.float32, ("N",))
    a, b = gs.Variable("a", np.float32, ("N",)), gs.Variable("b")
    clash = gs.Constant("a", np.ones((), np.float32))
    nodes = [
        gs.Node("Clip", "low", inputs=[x, gs.Variable.empty(), clash], outputs=[a]),
        gs.Node("Clip", "high", inputs=[a, gs.Variable.empty(), clash], outputs=[b]),
        gs.Node("Neg", "neg", inputs=[b], outputs=[y]),
    ]
    save_model(Model(gs.Graph(nodes, [x], [y], opset=17), "unet"), tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [(info.name, info.type.tensor_type.shape.dim[0].dim_param) for info in graph.value_info] == [("a", "N")]
    assert [list(node.input) for node in graph.node] == [["x", "", "a__1"], ["a", "", "a__1"], ["b"]]
    onnx.checker.check_model(str(tmp_path / "model.onnx"))


def test_attributes_of_every_kind_survive(tmp_path: Path) -> None:
    attrs: dict[str, Any] = {"axes": [0], "keepdims": np.int64(0)}
    x, y = gs.Variable("x", np.float32, (2, 2)), gs.Variable("y", np.float32, (2, 2))
    fill = gs.Constant("", np.array([3], np.float16))
    image, filters = (gs.Constant(name, np.ones((1, 1, 3, 3), np.float32)) for name in ("image", "filters"))
    nodes = [
        gs.Node("ReduceMean", "reduce", attrs, [x], [gs.Variable("a")]),
        gs.Node("ReduceMean", "empty", {"axes": []}, [x], [gs.Variable("b")]),
        gs.Node("ConstantOfShape", "fill", {"value": fill}, [gs.Constant("s", np.array([2]))], [gs.Variable("c")]),
        gs.Node("Conv", "names", {"auto_pad": "SAME_UPPER", "strides": (1, 1)}, [image, filters], [gs.Variable("d")]),
        gs.Node("Cast", "cast", {"to": np.float16}, [x], [gs.Variable("e")]),
        gs.Node("LeakyRelu", "leaky", {"alpha": np.float32(0.5)}, [x], [y]),
    ]
    save_model(Model(gs.Graph(nodes, [x], [y], opset=13), "unet"), tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    found = {n.name: n.attrs for n in load_model(tmp_path / "model.onnx").graph.nodes}
    assert found["reduce"] == {"axes": [0], "keepdims": 0}
    assert found["empty"] == {"axes": []}
    assert found["fill"]["value"].values.tolist() == [3]
    assert found["fill"]["value"].dtype == np.float16
    assert found["names"] == {"auto_pad": "SAME_UPPER", "strides": [1, 1]}
    assert found["cast"] == {"to": onnx.TensorProto.FLOAT16}
    assert found["leaky"] == {"alpha": 0.5}


# ----------------------------------------------------------------------------------------------------- failures


def test_missing_dtypes_and_absent_weights_leave_nothing(tmp_path: Path) -> None:
    model = chain(Absent("conv_in.weight", (64, 64), np.float32))
    with pytest.raises(BadModelError, match=r"conv_in\.weight"):
        save_model(model, tmp_path / "model.onnx")
    model.graph.outputs[0].dtype = None
    with pytest.raises(BadModelError, match="no dtype") as caught:
        save_model(model, tmp_path / "model.onnx")
    assert (caught.value.component, caught.value.node) == ("unet", "y")
    assert os.listdir(tmp_path) == []


def test_small_weights_without_values_leave_nothing_either(tmp_path: Path) -> None:
    model = chain(Inline(np.ones((64, 64), np.float32)), Absent("conv_in.bias", (64,), np.float32))
    with pytest.raises(BadModelError, match=r"conv_in\.bias"):
        save_model(model, tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == []


def test_a_truncated_source_leaves_nothing(tmp_path: Path) -> None:
    weight = stored(tmp_path, np.ones((64, 64), np.float32))
    os.truncate(weight.path, 100)
    with pytest.raises(BadModelError, match="bytes before the end of a tensor"):
        save_model(chain(weight), tmp_path / "out.onnx")
    assert os.listdir(tmp_path) == ["weights.bin"]


def test_a_full_disk_is_an_output_error(tmp_path: Path) -> None:
    """A real limit on file size; as on a full disk, it shows when the file gets its size, before a weight is read."""
    code = f"""
import sys, signal, resource
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import numpy as np
from support.weight_chains import chain
from sdort.graph.weights import Inline
from sdort.errors import OutputError
from sdort.onnx_io.save import save_model
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = chain(*[Inline(np.ones((64, 64), np.float32) * i) for i in range(20)])
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
try:
    save_model(model, Path({str(tmp_path)!r}) / "model.onnx")
except OutputError as error:
    assert error.exit_code == 7 and error.component == "unet", error
    assert "too large" in str(error), error
else:
    raise AssertionError("written")
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert os.listdir(tmp_path) == []


def test_a_disk_without_the_room_is_known_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match="No space left"):
        save_model(chain(Broken(AssertionError)), tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwrite, []

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:1000], offset)  # short writes happen, too

    (tmp_path / "model.onnx").write_bytes(b"old")
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OutputError, match="No space left"):
        save_model(chain(*[Inline(np.full((64, 64), i, np.float32)) for i in range(30)]), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:1000], offset))
    arrays = [RNG.standard_normal((64, 64), np.float32) for _ in range(5)]
    save_model(chain(*map(Inline, arrays)), tmp_path / "model.onnx")
    for name, array in values(tmp_path / "model.onnx").items():
        np.testing.assert_array_equal(array, arrays[int(name[1:])])


def test_a_file_system_without_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, offset: int, size: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    array = RNG.standard_normal((64, 64), np.float32)
    save_model(chain(Inline(array)), tmp_path / "model.onnx")
    np.testing.assert_array_equal(values(tmp_path / "model.onnx")["w0"], array)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        save_model(chain(np.ones(1, np.float32)), tmp_path / "missing" / "model.onnx")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write"):
        save_model(chain(Inline(np.ones(999, np.float32))), tmp_path / "file" / "model.onnx")


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    save_model(chain(Inline(np.ones((64, 64), np.float32))), tmp_path / "model.onnx")
    before = (tmp_path / "model.onnx.data").read_bytes()
    with pytest.raises(OutputError, match="reads its weights from it"):
        save_model(load_model(tmp_path / "model.onnx"), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx.data").read_bytes() == before


def test_the_source_is_never_overwritten_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    array = np.ones((64, 64), np.float32)
    stored(tmp_path / "real", array, "model.onnx.data")
    behind = Stored(tmp_path / "link" / "model.onnx.data", 0, array.shape, np.float32)
    for source, folder in ((behind, "real"), (behind, "link"), (Cast(Transposed(behind, (1, 0)), np.float16), "real")):
        with pytest.raises(OutputError, match="reads its weights from it"):
            save_model(chain(Inline(array), source), tmp_path / folder / "model.onnx")
    assert os.listdir(tmp_path / "real") == ["model.onnx.data"]
    # Weights that lie in the model file itself.
    onnx.save(_whole(chain(Inline(array)), tmp_path), tmp_path / "whole.onnx")
    before = (tmp_path / "whole.onnx").read_bytes()
    with pytest.raises(OutputError, match=r"whole\.onnx cannot be written"):
        save_model(load_model(tmp_path / "whole.onnx"), tmp_path / "whole.onnx")
    assert (tmp_path / "whole.onnx").read_bytes() == before


def _whole(model: Model, folder: Path) -> onnx.ModelProto:
    save_model(model, folder / "parts.onnx")
    return onnx.load(folder / "parts.onnx")


class Broken(Weight):
    """Evaluates to what it is not, or to more than the memory holds."""

    def __init__(self, result: Array | type[Exception]) -> None:
        super().__init__((64, 64), np.float32)
        self.result = result

    def load(self) -> Array:
        if isinstance(self.result, type):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros((64, 65), np.float32), "more"),
        (np.zeros((64, 63), np.float32), "256 bytes less"),
        (np.zeros((64, 128), np.float16), "float16"),
    ],
)
def test_a_weight_that_lies_about_its_values_is_caught(tmp_path: Path, result: Array, message: str) -> None:
    with pytest.raises(RuntimeError, match=rf"w1: Broken.* evaluated to .*{message}"):
        save_model(chain(Inline(np.ones((64, 64), np.float32)), Broken(result)), tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == []


def test_a_tensor_that_does_not_fit_the_memory(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not enough memory") as caught:
        save_model(chain(Broken(MemoryError)), tmp_path / "model.onnx")
    assert caught.value.node == "w0"
    assert os.listdir(tmp_path) == []


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    model = chain(*[Inline(np.full((64, 64), i, np.float32)) for i in range(50)])
    with pytest.raises(KeyboardInterrupt):
        save_model(model, tmp_path / "model.onnx", advance=interrupt)
    assert os.listdir(tmp_path) == []


class Slow(Weight):
    """Takes until the writing has failed, and then looks many times whether the file that it is for is still there."""

    failed: ClassVar[threading.Event]
    missing: ClassVar[list[int]]

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__((64, 64), np.float32)
        self.folder, self.number = folder, number

    def load(self) -> Array:
        if self.number:
            Slow.failed.wait()
            Slow.missing += [1 for _ in range(5000) if not os.listdir(self.folder)]
        return np.full(self.shape, self.number, self.dtype)


def test_no_thread_writes_when_the_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdort.onnx_io.save, "WORKERS", 2)
    monkeypatch.setattr(Slow, "failed", threading.Event(), raising=False)
    monkeypatch.setattr(Slow, "missing", [], raising=False)

    def interrupt(_: float) -> None:
        Slow.failed.set()
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        save_model(chain(*[Slow(tmp_path, n) for n in range(8)]), tmp_path / "model.onnx", advance=interrupt)
    assert threading.active_count() == before
    assert Slow.missing == []
    assert os.listdir(tmp_path) == []


class Tracked(Weight):
    """Zeros that know how many of their bytes are being evaluated at a time."""

    lock = threading.Lock()
    used: ClassVar[list[int]] = [0]

    def __init__(self, size: int, number: int) -> None:
        super().__init__((size, 2**20), np.float32)
        self.number = number  # or all would be one expression

    def load(self) -> Array:
        cost = 2 * self.nbytes  # what is read and what is written
        with Tracked.lock:
            Tracked.used.append(Tracked.used[-1] + cost)
        array = np.zeros(self.shape, self.dtype)
        with Tracked.lock:
            Tracked.used.append(Tracked.used[-1] - cost)
        return array


def test_bytes_in_flight_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are evaluated together fit the budget; one that is larger than it comes alone."""
    monkeypatch.setattr(sdort.onnx_io.save, "IN_FLIGHT", 20 * 2**20)
    monkeypatch.setattr(sdort.onnx_io.save, "WORKERS", 4)
    monkeypatch.setattr(Tracked, "used", [0])
    sizes = [1] * 12 + [4] + [1] * 12  # MiB * 8 each
    save_model(chain(*[Tracked(size, number) for number, size in enumerate(sizes)]), tmp_path / "model.onnx")
    assert len(Tracked.used) == 2 * len(sizes) + 1
    assert sorted(set(Tracked.used))[-1] == 32 * 2**20
    assert all(used <= 20 * 2**20 or used == 32 * 2**20 for used in Tracked.used)


def test_peak_memory_is_bounded(tmp_path: Path) -> None:
    """256 MB of weights, cast and transposed, under an address-space limit of 160 MB above the start."""
    size = 256 * 2**20
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(size)
    code = f"""
import ctypes, sys, resource
from pathlib import Path
ctypes.CDLL("libgcc_s.so.1")  # the end of a thread loads it
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import numpy as np
from support.weight_chains import chain
from sdort.graph.weights import Stored, Cast, Transposed
import sdort.onnx_io.save
sdort.onnx_io.save.IN_FLIGHT, sdort.onnx_io.save.WORKERS = 48 * 2**20, 2
weights = [Stored(Path({str(tmp_path / "weights.bin")!r}), i * 2**22, (1024, 1024), np.float32) for i in range(64)]
model = chain(*[Cast(Transposed(w, (1, 0)), np.float16) for w in weights])
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 160 * 2**20,) * 2)
sdort.onnx_io.save.save_model(model, Path({str(tmp_path / "model.onnx")!r}))
"""
    # Each thread's arena would reserve 64 MiB of addresses, whether it uses them or not.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    assert os.path.getsize(tmp_path / "model.onnx.data") == size // 2
