"""Rounding between float32 and float16: bit by bit what numpy does, by whatever means it is done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sdort.graph.float16
from sdort.errors import ProviderError
from sdort.graph.float16 import MIN_SIZE, convert
from sdort.graph.signature import Array

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.fixture(autouse=True)
def _fresh_kernels() -> Iterator[None]:
    sdort.graph.float16._kernel.cache_clear()
    yield
    sdort.graph.float16._kernel.cache_clear()


def critical_values() -> Array:
    """Every half, the midpoints between them, the float32 on both sides of all these, and random bits."""
    finite = np.sort(HALVES[np.isfinite(HALVES)].astype(np.float64))
    # The last midpoint is that between the largest half and what would follow: where infinity begins.
    ends = np.array([-65536, 65536], np.float64)
    steps = np.unique(np.concatenate([finite, ends]))
    points = np.concatenate([steps, (steps[1:] + steps[:-1]) / 2]).astype(np.float32)
    beside = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    bits = np.random.default_rng(0).integers(0, 2**32, 2**21, np.uint32).view(np.float32)
    special = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0x00000001, 0x807FFFFF, 0x7F800000], np.uint32)
    return np.concatenate([points, *beside, bits, special.view(np.float32), np.array([-0.0], np.float32)])


def expected(values: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype)


def assert_same(found: Array, wanted: Array) -> None:
    """Equal bits, but for the payload of NaN."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    bits = f"u{wanted.itemsize}"
    np.testing.assert_array_equal(found.view(bits)[~nan], wanted.view(bits)[~nan])


def test_the_critical_values_are_what_they_should_be() -> None:
    values = critical_values()
    halves = expected(values, HALF)
    assert set(halves.view(np.uint16)[~np.isnan(halves)]) == set(HALVES.view(np.uint16)[~np.isnan(HALVES)])
    for value in (65519.996, 65520, 2**-25, 3 * 2**-25, 2**-14 - 2**-25, 1 + 2**-11):
        assert np.float32(value) in values
    assert np.isnan(values).sum() > 1000


def test_rounding_to_half_is_numpys() -> None:
    values = critical_values()
    assert sdort.graph.float16._kernel(SINGLE, HALF), "ONNX Runtime is installed here, but is not used"
    assert_same(convert(values, np.float16), expected(values, HALF))
    assert_same(sdort.graph.float16._numpy(values, HALF), expected(values, HALF))


def test_widening_of_every_half_is_exact() -> None:
    assert sdort.graph.float16._kernel(HALF, SINGLE), "ONNX Runtime is installed here, but is not used"
    assert HALVES.size >= MIN_SIZE
    assert_same(convert(HALVES, np.float32), expected(HALVES, SINGLE))


def test_other_dtypes_shapes_and_sizes() -> None:
    values = np.random.default_rng(1).standard_normal((300, 500), np.float32)
    for dtype in (np.float64, ml_dtypes.bfloat16, np.int32):
        assert_same(convert(values, dtype), values.astype(dtype))
    bfloat = values.astype(ml_dtypes.bfloat16)
    assert_same(convert(bfloat, np.float32), bfloat.astype(np.float32))
    assert convert(values, np.float32) is values
    for shape in ((), (0, 4), (1,), (MIN_SIZE - 1,), (MIN_SIZE,), (2, MIN_SIZE // 2, 1), (300, 500)):
        part = np.resize(values, shape)
        assert_same(convert(part, np.float16), part.astype(np.float16))
    assert_same(convert(values[:, ::2], np.float16), values[:, ::2].astype(np.float16))
    assert_same(convert(values.T, np.float16), values.T.astype(np.float16))


def test_small_arrays_do_not_wake_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("imported")

    monkeypatch.setattr(sdort.graph.float16, "import_onnxruntime", refuse)
    convert(np.ones(MIN_SIZE - 1, np.float32), np.float16)
    convert(np.ones(MIN_SIZE, np.float32), np.float64)
    assert sdort.graph.float16._kernel.cache_info().misses == 0


def test_many_threads_at_a_time() -> None:
    arrays = [np.full(MIN_SIZE + i, i, np.float32) for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda array: convert(array, np.float16), arrays))
    assert [(len(r), float(r[0]), bool((r == r[0]).all())) for r in results] == [
        (MIN_SIZE + i, float(i), True) for i in range(64)
    ]
    assert sdort.graph.float16._kernel.cache_info().misses == 1


def absent() -> Any:
    raise ProviderError("ONNX Runtime is not installed")


def broken() -> Any:
    raise RuntimeError("initialization failed")


def hollow() -> Any:
    """What an uninstalled distribution leaves behind."""
    return SimpleNamespace()


def inexact(values: Array) -> Array:
    """A kernel that flushes subnormals, as some processors do."""
    halves = expected(values, HALF)
    halves[np.abs(halves) < 2**-14] = 0
    return halves


def wrong_shape(values: Array) -> Array:
    return expected(values, HALF)[:-1]


@pytest.mark.parametrize("provide", [absent, broken, hollow])
def test_without_a_working_onnx_runtime_numpy_does_it(monkeypatch: pytest.MonkeyPatch, provide: Any) -> None:
    monkeypatch.setattr(sdort.graph.float16, "import_onnxruntime", provide)
    values = np.linspace(-7e4, 7e4, MIN_SIZE, dtype=np.float32)
    assert_same(convert(values, np.float16), expected(values, HALF))
    assert sdort.graph.float16._kernel(SINGLE, HALF) is None


@pytest.mark.parametrize("kernel", [inexact, wrong_shape])
def test_a_kernel_that_rounds_otherwise_is_not_used(
    monkeypatch: pytest.MonkeyPatch, kernel: Callable[[Array], Array]
) -> None:
    session = SimpleNamespace(run=lambda _, feed: [kernel(feed["x"])])
    monkeypatch.setattr(sdort.graph.float16, "_session", lambda source, target: session)
    values = np.linspace(-1e-5, 1e-5, MIN_SIZE, dtype=np.float32)
    assert_same(convert(values, np.float16), expected(values, HALF))


def test_a_right_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counterpart of the test above: what it rejects is not everything."""
    calls: list[int] = []

    def run(_: None, feed: dict[str, Array]) -> list[Array]:
        calls.append(feed["x"].size)
        return [expected(feed["x"], HALF)]

    monkeypatch.setattr(sdort.graph.float16, "_session", lambda source, target: SimpleNamespace(run=run))
    convert(np.ones(MIN_SIZE, np.float32), np.float16)
    assert calls[-1] == MIN_SIZE


def test_onnx_runtime_is_imported_only_when_it_is_used() -> None:
    code = """
import sys
import numpy as np
import sdort.optimizer.command, sdort.exporter.command
from sdort.graph.float16 import MIN_SIZE, convert
assert "onnxruntime" not in sys.modules
convert(np.ones(MIN_SIZE, np.float32), np.float16)
assert "onnxruntime" in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
