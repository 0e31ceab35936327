"""The kernels' C interface without ONNX Runtime: what it takes, refuses, and asks of a caller."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import native, rocm_stub
from support.kernel_cases import Guarded, aligned
from support.problems import problem_type

from sdort.errors import ProviderError, UsageError
from sdort.operator_library import library, pointer_kernels
from sdort.operator_library.pointer_kernels import (
    Attention,
    AttentionTensor,
    BiasAdd,
    GroupNorm,
    Kernels,
    Place,
    Problem,
)
from sdort.runtime import device_block


@pytest.fixture(scope="module")
def loaded() -> Kernels:
    return Kernels(native.library())


def layout(struct: type[ctypes.Structure]) -> list[tuple[str, Any]]:
    return [(name, layout(kind) if issubclass(kind, ctypes.Structure) else kind) for name, kind, *_ in struct._fields_]


@pytest.mark.parametrize("problem", Problem.__subclasses__(), ids=lambda problem: problem.__name__)
def test_a_problem_is_the_kernels_own_struct(problem: type[Problem]) -> None:
    assert layout(problem) == layout(problem_type(problem.kernel.decode()))


def bias_add(rows: int = 300, width: int = 250) -> tuple[BiasAdd, Guarded, np.ndarray[Any, Any]]:
    """A problem of several tasks, the output, and what has to be in it."""
    rng = np.random.default_rng(0)
    x, skip = (aligned(rng.integers(-8, 8, (rows, width)).astype(np.float32)) for _ in range(2))
    bias, y = aligned(rng.integers(-8, 8, width).astype(np.float32)), Guarded((rows, width), np.float32)
    made = BiasAdd(x.ctypes.data, bias.ctypes.data, skip.ctypes.data, y.pointer, rows, width)
    made.tensors = x, skip, bias
    return made, y, x + bias + skip


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_threads_of_the_cpu_share_the_rows(threads: int, loaded: Kernels) -> None:
    problem, y, wanted = bias_add()
    assert loaded.run(problem, False, Place.CPU, threads=threads) == 0
    np.testing.assert_array_equal(y.check(), wanted)


def test_what_is_empty_is_no_work(loaded: Kernels) -> None:
    assert loaded.run(BiasAdd(), False, Place.CPU) == 0


class Unknown(BiasAdd):
    kernel = b"bias_subtract"


class Short(Problem):
    kernel = b"bias_add"
    _fields_ = (("x", ctypes.c_void_p),)


@pytest.mark.parametrize(
    ("problem", "place", "message"),
    [
        (Unknown(), Place.CPU, "bias_subtract: no kernel is named bias_subtract"),
        (Short(), Place.CPU, "bias_add: a problem of bias_add has 48 bytes, not 8"),
        (BiasAdd(), 7, "bias_add: place 7 is no kind of GPU"),
        (BiasAdd(), Place.CUDA, "bias_add: no cuda driver can be loaded here"),
    ],
    ids=["name", "size", "place", "driver"],
)
def test_what_cannot_be_is_refused_in_words(problem: Problem, place: Any, message: str, loaded: Kernels) -> None:
    with pytest.raises(ProviderError) as error:
        loaded.run(problem, False, place)
    assert error.value.message == message


def test_a_place_without_kernels_is_told_once(loaded: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded.why_not(Place.CPU) is None
    assert loaded.why_not(Place.CUDA) == "no cuda driver can be loaded here"
    monkeypatch.setattr(loaded, "_device", None)  # it is not asked again
    assert loaded.why_not(Place.CUDA) == "no cuda driver can be loaded here"


def test_the_library_of_the_cache_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pointer_kernels.load_kernels.cache_clear()
    with pytest.raises(ProviderError, match="the library is not built here"):
        pointer_kernels.load_kernels()
    native.install(library.built_library())
    assert pointer_kernels.load_kernels() is pointer_kernels.load_kernels()
    pointer_kernels.load_kernels.cache_clear()


def test_another_library_is_named(tmp_path: Path) -> None:
    made = tmp_path / "other.so"
    made.write_bytes(native.simulated("mfma")._name.encode())
    with pytest.raises(UsageError, match=r"other\.so has no kernels for pointers: "):
        Kernels(made)


@pytest.fixture
def on_hip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A HIP driver whose launches run the kernels' source as CPU code."""
    rocm_stub.load_driver()
    monkeypatch.setenv("SDORT_STUB_BODIES", str(native.build_folder() / "libsdort_simulated_wmma_gfx11.so"))


@pytest.mark.usefixtures("on_hip")
def test_a_gpu_kernel_runs_on_pointers(loaded: Kernels) -> None:
    problem, y, wanted = bias_add()
    assert loaded.why_not(Place.HIP) is None
    assert loaded.run(problem, False, Place.HIP) == 0
    np.testing.assert_array_equal(y.check(), wanted)


def group_norm() -> tuple[GroupNorm, Guarded]:
    x = aligned(np.random.default_rng(0).normal(size=(2, 600, 40)).astype(np.float32))
    ones, y = aligned(np.ones(40, np.float32)), Guarded(x.shape, np.float32)
    made = GroupNorm(x.ctypes.data, gamma=ones.ctypes.data, beta=ones.ctypes.data, y=y.pointer, epsilon=1e-5)
    made.images, made.hw, made.channels, made.x_channels, made.groups = 2, 600, 40, 40, 4
    made.tensors = x, ones
    return made, y


def attention() -> tuple[Attention, Guarded]:
    x = aligned(np.random.default_rng(0).normal(size=(1, 70, 1, 192)).astype(np.float16))
    y = Guarded(x.shape, np.float16)
    rows = AttentionTensor(x.ctypes.data, 70 * 192, 192, 192)
    made = Attention(rows, rows, rows, y=y.pointer, scale=0.1)
    made.batches, made.heads, made.queries, made.keys, made.size, made.value_size = 1, 1, 70, 70, 192, 192
    made.tensors = x
    return made, y


@pytest.mark.usefixtures("on_hip")
def test_a_tuning_tables_line_of_a_problem_and_its_variants(loaded: Kernels) -> None:
    where = "gfx1100\tattention f16 n=1 s=70 l=70 h=1 d=192"
    assert loaded.variants(attention()[0], True, Place.HIP) == (where, ["wide"])
    where, names = loaded.variants(bias_add()[0], False, Place.HIP)
    assert where.startswith("gfx1100\tbias_add f32 ")
    assert names
    with pytest.raises(ProviderError, match=r"^bias_subtract: no kernel is named bias_subtract$"):
        loaded.variants(Unknown(), False, Place.HIP)


@pytest.mark.usefixtures("on_hip")
@pytest.mark.parametrize(("make", "half"), [(group_norm, False), (attention, True)], ids=["group_norm", "attention"])
def test_a_workspace_that_is_too_small_is_asked_for(make: Any, half: bool, loaded: Kernels) -> None:
    """Nothing is launched before; with it the results are the CPU's, but for float32 arithmetic in another order."""
    problem, y = make()
    needed = loaded.run(problem, half, Place.HIP)
    assert needed > 0
    assert np.isnan(y.array).all()
    assert loaded.run(problem, half, Place.HIP, workspace=needed - 1) == needed
    assert np.isnan(y.array).all()
    memory = Guarded((needed // 4,), np.float32)
    memory.array[...] = 0
    problem.workspace = memory.pointer
    assert loaded.run(problem, half, Place.HIP, workspace=needed) == 0
    memory.check()
    on_gpu = y.check().astype(np.float64)
    assert loaded.run(problem, half, Place.CPU) == 0
    ulp = 2.0**-10 if half else 2.0**-22
    assert np.abs(on_gpu - y.check()).max() <= ulp * np.abs(on_gpu).max()


@pytest.mark.usefixtures("on_hip")
def test_a_launch_that_fails_is_told(loaded: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDORT_STUB_FAIL", "hipModuleLaunchKernel:1")
    with pytest.raises(ProviderError, match=r"bias_add: launching bias_add_f32_narrow on gfx1100 .* failed"):
        loaded.run(bias_add()[0], False, Place.HIP)


def test_the_stub_of_a_driver_is_no_runtime_of_hip() -> None:
    """Else sessions of later tests in this process would ask it for memory and streams."""
    rocm_stub.load_driver()
    assert not device_block.is_reachable("amd")
