"""The operators' CPU kernels under AddressSanitizer and UBSan: their tests, and malformed problems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import native

TESTS = Path(__file__).parent
MODULES = (
    "test_ops_malformed.py",
    "test_ops_attention_cpu.py",
    "test_ops_group_norm_cpu.py",
    "test_ops_nhwc_conv.py",
)
ON_THE_CPU = (
    "test_ops_rows.py::test_bias_split_gelu_on_the_cpu",
    "test_ops_rows.py::test_bias_add_on_the_cpu",
    "test_ops_rows.py::test_any_skip_layer_norm_on_the_cpu",
    "test_ops_rows.py::test_skip_layer_norm_on_the_cpu",
    "test_ops_rows.py::test_wrong_shapes_name_operator_node_and_value",
)


def run_sanitized(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the sanitizers' libraries, in which the operator library under test is the sanitized one."""
    environment = {
        **os.environ,
        "LD_PRELOAD": native.sanitizer_runtimes(),
        "SDORT_OPS_BUILD": str(native.sanitized_folder()),
        # Python itself leaks at its end; an allocation that is too large is the operator's error, not the process's.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.long
def test_the_cpu_kernels_touch_nothing_but_their_tensors() -> None:
    tests = [str(TESTS / name) for name in (*MODULES, *ON_THE_CPU)]
    options = ("-q", "-x", "-s", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = run_sanitized("-m", "pytest", *options, *tests)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert " passed" in done.stdout


def test_the_sanitizers_watch() -> None:
    """One byte too many is read, by Python itself: the report that a kernel would get."""
    code = (
        "import ctypes, numpy, sys; sys.path.insert(0, 'tests'); from support import native\n"
        "library = ctypes.CDLL(str(native.library()))\n"
        "library.sdort_ops_describe.restype = ctypes.c_void_p\n"
        "values = numpy.zeros(8, numpy.uint8)\n"
        "ctypes.string_at(values.ctypes.data, 9)\n"
    )
    done = run_sanitized("-c", code)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
