"""Weights in one block of a device's memory: which ones, where they lie, what a session makes of them.

Host memory takes the place of the GPU's: the session reads the block itself, by the same capsules.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from support import rocm_stub

from sdort.errors import BadModelError, MemoryShortageError, ProviderError
from sdort.graph.stored_values import StoredValues
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import device_block, placed_weights
from sdort.runtime.device_block import ALIGNMENT, DeviceBlock
from sdort.runtime.opener import create_session
from sdort.runtime.placed_weights import PlacedWeights, placeable

TEXT = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[n, 192] x, int64[t] ids) => (float[n, 128] y, float[t, 130] rows, float[129, 128] shown) {
    first = MatMul (x, plain)
    second = MatMul (first, plain_again)
    added = Add (second, vector)
    y = MatMul (added, also_added)
    twice = Add (also_added, also_added)
    rows = Gather (table, ids)
    shown = Identity (given)
    one = Constant <value = int64[1] {1}> ()
}"""
SHAPES = {
    "plain": (192, 128),
    "plain_again": (128, 128),
    "vector": (128,),
    "also_added": (128, 128),
    "table": (300, 130),
    "given": (129, 128),
    "nobody": (200, 200),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with weights of each kind beside it."""
    proto = parser.parse_model(TEXT)
    random = np.random.default_rng(3)
    for name, shape in SHAPES.items():
        values = random.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights", size_threshold=0)
    return path


def stored(path: Path) -> dict[str, StoredValues]:
    return placeable(onnx.load(path, load_external_data=False), path, "unet")


def feeds() -> dict[str, Any]:
    random = np.random.default_rng(4)
    return {"x": random.standard_normal((5, 192)).astype(np.float32), "ids": np.array([0, 299, 7])}


def test_what_other_operators_read_or_nobody_stays_where_it_was(model: Path) -> None:
    assert sorted(stored(model)) == ["plain", "plain_again", "table"]


@pytest.mark.parametrize(
    ("given", "left"),
    [("also: if", {"plain_again", "table"}), ("output", {"plain_again", "table"}), ("int", {"plain_again", "table"})],
)
def test_what_an_inner_graph_reads_or_the_model_gives_is_not_placed(model: Path, given: str, left: set[str]) -> None:
    proto = onnx.load(model, load_external_data=False)
    if given == "output":
        proto.graph.output.append(onnx.helper.make_tensor_value_info("plain", 1, [192, 128]))
    elif given == "int":
        proto.graph.initializer[0].data_type = onnx.TensorProto.INT32
    else:
        inner = parser.parse_graph("inner () => (float[a, b] z) { z = MatMul (x, plain) }")
        proto.graph.node.append(onnx.helper.make_node("If", ["x"], ["w"], then_branch=inner, else_branch=inner))
    assert set(placeable(proto, model, "unet")) == left


def test_a_name_that_has_a_place_is_left_out(model: Path) -> None:
    proto = onnx.load(model, load_external_data=False)
    assert set(placeable(proto, model, "unet", {"table"})) == {"plain", "plain_again"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_values_come_as_they_are_in_the_file(tmp_path: Path, dtype: str) -> None:
    arrays = {f"w{n}": np.random.default_rng(n).standard_normal((n, 3)).astype(dtype) for n in (1, 500, 70_000)}
    values = {}
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(b"head" + array.tobytes())
        values[name] = StoredValues(tmp_path / name, 4, array.shape, array.dtype)
    placed = PlacedWeights(values, "", 0)
    for name, array in arrays.items():
        value = placed.initializers[name]
        assert value.data_ptr() % ALIGNMENT == 0
        np.testing.assert_array_equal(value.numpy(), array)
    ends = sorted((v.data_ptr(), v.data_ptr() + arrays[n].nbytes) for n, v in placed.initializers.items())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


def test_tied_weights_have_one_place(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(1 << 20))
    half = StoredValues(tmp_path / "w", 0, (1 << 18,), "float16")
    same = StoredValues(tmp_path / "w", 0, (1 << 17, 2), "float16")
    other = StoredValues(tmp_path / "w", 1 << 19, (1 << 18,), "float16")
    placed = PlacedWeights({"a": half, "b": same, "c": other}, "", 0)
    places = {name: value.data_ptr() for name, value in placed.initializers.items()}
    assert places["a"] == places["b"] != places["c"]
    assert placed.block.nbytes == 1 << 20
    assert placed.initializers["b"].shape() == [1 << 17, 2]


def test_a_session_reads_them_where_they_are(model: Path) -> None:
    wanted = create_session(str(model), CPU, RuntimeOptions("cpu")).run(None, feeds())
    placed = PlacedWeights(stored(model), "", 0)
    session = create_session(str(model), CPU, RuntimeOptions("cpu"), initializers=placed.initializers)
    for found, expected in zip(session.run(None, feeds()), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    # Gather packs nothing: another value in the block is another result.
    placed.block.write(placed.initializers["table"].data_ptr() - placed.block.address, np.ones((1, 130), np.float32))
    np.testing.assert_array_equal(session.run(["rows"], feeds())[0][0], np.ones(130))
    (model.parent / "weights").unlink()
    np.testing.assert_array_equal(session.run(["rows"], feeds())[0][0], np.ones(130))


LOCKED = {"cuda": ("HostAlloc", "FreeHost"), "hip": ("HostMalloc", "HostFree")}


class Runtime:
    """A vendor's runtime over the host's memory."""

    def __init__(self, prefix: str, limit: int = 1 << 30) -> None:
        self.left, self.held, self.device, self.on_its_way = limit, set[int](), -1, False
        for name in ("SetDevice", "Malloc", "Memcpy", "DeviceSynchronize", "Free", "GetLastError"):
            setattr(self, prefix + name, getattr(self, name))
        for name, function in zip(LOCKED[prefix], (self.lock, self.unlock), strict=True):
            setattr(self, prefix + name, function)
        self.locks, self.error = True, 0
        self.locked: dict[int, int] = {}
        """Memory with locked pages: its address and bytes."""
        self.from_locked: set[bool] = set()
        """Whether copies were from such memory."""
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype = ctypes.c_void_p

    def SetDevice(self, number: int) -> int:
        self.device = number
        return 0 if number < 2 else 101

    def Malloc(self, pointer: Any, size: ctypes.c_size_t) -> int:
        if size.value > self.left:
            return 2
        address = self._libc.malloc(ctypes.c_size_t(size.value + ALIGNMENT))
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = address
        self.held.add(address)
        return 0

    def Memcpy(self, target: ctypes.c_void_p, source: ctypes.c_void_p, size: ctypes.c_size_t, kind: int) -> int:
        assert kind == 1
        begin, end = source.value or 0, (source.value or 0) + size.value
        self.from_locked.add(any(begin >= place and end <= place + held for place, held in self.locked.items()))
        ctypes.memmove(target, source, size.value)
        self.on_its_way = True
        return 0

    def lock(self, pointer: Any, size: ctypes.c_size_t, flags: ctypes.c_uint) -> int:
        assert self.device == 1, "it would begin to use another device"
        if not self.locks:
            self.error = 2
            return 2
        address = self._libc.malloc(size)
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = address
        self.locked[address] = size.value
        return 0

    def unlock(self, address: ctypes.c_void_p) -> int:
        assert not self.on_its_way
        del self.locked[address.value or 0]
        self._libc.free(address)
        return 0

    def GetLastError(self) -> int:
        self.error, error = 0, self.error
        return error

    def DeviceSynchronize(self) -> int:
        self.on_its_way = False
        return 0

    def Free(self, address: ctypes.c_void_p) -> int:
        self.held.remove(address.value or 0)
        self._libc.free(address)
        return 0


@pytest.fixture(params=[("nvidia", "cuda"), ("amd", "hip")])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Runtime]]:
    vendor, prefix = request.param
    runtime = Runtime(prefix)
    monkeypatch.setattr(device_block, "_loaded", lambda _: runtime)
    monkeypatch.setitem(device_block.KINDS, vendor, device_block.KINDS[""])
    yield vendor, runtime
    gc.collect()
    assert runtime.held == set()


def test_a_gpus_memory_is_taken_written_and_freed(model: Path, gpu: tuple[str, Runtime]) -> None:
    vendor, runtime = gpu
    placed = PlacedWeights(stored(model), vendor, 1)
    assert (runtime.device, len(runtime.held), runtime.on_its_way) == (1, 1, False)
    session = create_session(str(model), CPU, RuntimeOptions("cpu"), initializers=placed.initializers)
    wanted = create_session(str(model), CPU, RuntimeOptions("cpu")).run(None, feeds())
    for found, expected in zip(session.run(None, feeds()), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    del session, placed
    gc.collect()
    assert runtime.held == set()
    assert (runtime.from_locked, runtime.locked) == ({True}, {})


@pytest.mark.parametrize("locks", [True, False])
def test_weights_come_through_memory_that_the_gpu_reads(
    locks: bool, gpu: tuple[str, Runtime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, by several threads; through ordinary memory where the driver locks none, and no error is left."""
    vendor, runtime = gpu
    runtime.locks = locks
    monkeypatch.setattr(placed_weights, "STAGED", 1000)
    values = np.random.default_rng(1).standard_normal(30_000).astype(np.float16)
    values.tofile(tmp_path / "weights")
    bounds = list(itertools.pairwise([0, 499, 500, 7000, 8001, 20_000, 30_000]))
    stored = {str(a): StoredValues(tmp_path / "weights", 2 * a, (b - a,), np.float16) for a, b in bounds}
    placed = PlacedWeights(stored, vendor, 1)
    assert (runtime.from_locked, runtime.locked, runtime.error) == ({locks}, {}, 0)
    for begin, end in bounds:
        found = placed.initializers[str(begin)].numpy()
        np.testing.assert_array_equal(found.view(np.uint16), values[begin:end].view(np.uint16))
    runtime.device = 0  # as in a thread that has not used the GPU
    with placed.block.staging(10):
        assert len(runtime.locked) == locks
    placed.load_one("8001")
    assert False in runtime.from_locked, "locking pages for one weight takes longer than copying it"


def test_a_file_that_ends_early_leaves_nothing_locked(gpu: tuple[str, Runtime], tmp_path: Path) -> None:
    vendor, runtime = gpu
    (tmp_path / "weights").write_bytes(bytes(1000))
    with pytest.raises(BadModelError, match="ends 1000 bytes before the end of a tensor"):
        PlacedWeights({"w": StoredValues(tmp_path / "weights", 0, (1000,), np.float16)}, vendor, 1)
    gc.collect()
    assert (runtime.locked, runtime.held) == ({}, set())


def test_too_little_memory_is_said(gpu: tuple[str, Runtime]) -> None:
    vendor, runtime = gpu
    runtime.left = 1000
    with pytest.raises(MemoryShortageError, match=r"no memory left on the GPU for 2\.0 GB of weights\n.*--offload"):
        DeviceBlock(vendor, 0, 2_000_000_000)
    with pytest.raises(MemoryShortageError, match=r"for 2\.0 GB of rows$"):
        DeviceBlock(vendor, 0, 2_000_000_000, "rows")
    with pytest.raises(ProviderError, match="SetDevice failed with code 101"):
        DeviceBlock(vendor, 7, 10)


def test_only_a_library_that_is_loaded_gives_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not device_block.is_reachable("")
    assert not device_block.is_reachable("intel")
    monkeypatch.setattr(device_block, "_found", {})
    assert device_block.is_reachable("amd") == ("libamdhip64.so" in Path("/proc/self/maps").read_text())


def test_a_library_that_was_found_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that map memory leave gaps in the list of what is mapped."""
    maps = ["", "7f00-7f01 r-xp 0 0 0 /opt/lib/libcudart.so.13\n", ""]
    monkeypatch.setattr(device_block, "_found", {})
    monkeypatch.setattr(device_block, "System", lambda: SimpleNamespace(text=lambda name: maps.pop(0)))
    assert [device_block.is_reachable("nvidia") for _ in range(3)] == [False, True, True]
    assert maps == [""]


ON_ROCM = """
import sys, pathlib, numpy
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.runtime.session import open_session
options = RuntimeOptions("rocm", custom_ops="off")
assert choose_provider(options)[0] is ROCM
session = open_session(pathlib.Path(sys.argv[1]), "unet", ROCM, options)
print(*sorted(session._placed.initializers), session.ort.get_providers()[0])
print(session.run({"x": numpy.ones((5, 192), "f"), "ids": numpy.array([0, 299])})["y"].shape)
"""


def test_the_rocm_provider_takes_them(model: Path) -> None:
    """Its real one, on a stub of HIP, which computes nothing: how they lie is tested above."""
    done = rocm_stub.runtime().run(ON_ROCM, str(model), PYTHONPATH=str(Path(__file__).parents[2]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["plain plain_again table ROCMExecutionProvider", "(5, 128)"]
