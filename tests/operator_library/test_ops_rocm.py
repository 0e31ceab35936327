"""The AMD path without a GPU: each operator inside onnxruntime-rocm's real execution provider, on a stub of HIP.

The stub's launch runs the kernel's body as CPU code on the buffers that ONNX Runtime bound, so what comes out has gone
through ONNX Runtime's own ROCm path; and it records which code object was loaded and what was launched.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import native, rocm_stub
from support.exports import Case
from support.kernel_cases import one_node_model, run
from support.optimized_models import optimized
from support.row_cases import Rows
from support.rows import operators

from sdort.onnx_io.save import save_model
from sdort.runtime.placement import SHAPE_OPERATORS, parse_placement

Array = npt.NDArray[Any]

MACHINES = {"gfx1100": "wmma_gfx11", "gfx942": "mfma", "gfx1201": "wmma_gfx12"}


def half(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(size=shape).astype(np.float16)


def cases() -> dict[str, tuple[str, dict[str, Array | None], list[str], dict[str, Any]]]:
    """Name -> operator, inputs, outputs, attributes."""
    rng = np.random.default_rng(0)
    image, weights = half(rng, 2, 6, 5, 64), {n: rng.normal(size=64).astype(np.float32) for n in ("gamma", "beta")}
    # Of the size of the variance: a provider that leaves the attribute out is far off.
    norm: dict[str, Any] = {"groups": 8, "epsilon": 0.5, "activation": 1, "channels_last": 1}
    rows = Rows(0, "", np.float16, 18, 320, 9, 1.0, 0.0, 0.5, frozenset(("bias", "sum")))
    return {
        **{operator.kernels: operator.node(rows) for operator in operators()},
        "group_norm": ("GroupNorm", {"X": image, **weights}, ["Y"], norm),
        "skip_group_norm": (
            "SkipGroupNorm",
            {"X": image, **weights, "skip": half(rng, 2, 1, 1, 64), "bias": half(rng, 64)},
            ["Y", "S"],
            norm,
        ),
        "extended_group_norm": (
            "GroupNorm",
            {
                "X": image,
                "X2": half(rng, 2, 6, 5, 32),
                "gamma": np.ones(96, np.float32),
                "beta": np.zeros(96, np.float32),
            },
            ["Y"],
            {**norm, "domain": "sdort"},
        ),
        "self_attention": ("MultiHeadAttention", {"query": half(rng, 2, 70, 2, 3, 40)}, ["output"], {"num_heads": 2}),
        "cross_attention": (
            "MultiHeadAttention",
            {"query": half(rng, 2, 70, 160), "key": half(rng, 2, 77, 2, 2, 80)},
            ["output"],
            {"num_heads": 2},
        ),
    }


def write_model(folder: Path, case: str, name: str | None = None) -> None:
    operator, inputs, outputs, attributes = cases()[case]
    (folder / f"{name or case}.onnx").write_bytes(one_node_model(operator, inputs, outputs, **attributes))
    feeds: dict[str, Any] = {k: v for k, v in inputs.items() if v is not None}
    np.savez(folder / f"{name or case}.npz", **feeds)


def run_models(folder: Path, **settings: str) -> str:
    """Run them on the ROCm provider; its standard error."""
    script = (rocm_stub.FOLDER / "run_models.py").read_text()
    done = rocm_stub.runtime().run(script, str(folder), str(native.library()), **settings)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("architecture", MACHINES)
def test_every_operator_computes_inside_the_rocm_provider(architecture: str, tmp_path: Path) -> None:
    for case in cases():
        write_model(tmp_path, case)
    log = tmp_path / "calls"
    bodies = native.build_folder() / f"libsdort_simulated_{MACHINES[architecture]}.so"
    run_models(tmp_path, gfx=architecture, log=str(log), bodies=str(bodies))
    for name, (operator, inputs, outputs, attributes) in cases().items():
        assert not (tmp_path / f"{name}.err").exists(), (tmp_path / f"{name}.err").read_text()
        on_rocm = np.load(tmp_path / f"{name}.out.npz")
        # The CPU's own code for the operator, which other tests hold against float64: both round once to float16.
        on_cpu = run(operator, inputs, outputs, **attributes)
        for output, expected in zip([o for o in outputs if o], on_cpu, strict=True):
            np.testing.assert_allclose(on_rocm[output], expected, rtol=2**-10, atol=2e-3, err_msg=name)
    calls = rocm_stub.read_log(log)
    loads = [call for call in calls if call["call"] == "hipModuleLoadData"]
    assert [call["architecture"] for call in loads] == [architecture]  # once for the device, and the right one
    launches = [call for call in calls if call["call"] == "hipModuleLaunchKernel"]
    families = set(native.kernel_operators())
    assert {family for family in families for call in launches if call["kernel"].startswith(family)} == families
    assert all(call["stream"] for call in launches)


def test_a_launch_is_what_the_geometry_says(tmp_path: Path) -> None:
    """BiasAdd's arguments, field by field, computed here from the formula in its header."""
    write_model(tmp_path, "bias_add")
    log = tmp_path / "calls"
    run_models(tmp_path, gfx="gfx942", log=str(log))
    [call] = [call for call in rocm_stub.read_log(log) if call["call"] == "hipModuleLaunchKernel"]
    # 2 x 9 rows of 320 halves are 18 x 40 vectors of 16 bytes: three blocks of 256 threads, 19 rows of threads.
    assert call["kernel"] == "bias_add_f16_vector"
    assert (call["grid"], call["block"], call["lds"]) == ([3, 1, 1], [256, 1, 1], 0)
    *pointers, vectors, row, stride = struct.unpack("<QQQQqII", bytes.fromhex(call["args"]))
    assert (vectors, row, stride) == (720, 40, 760)
    assert len(set(pointers)) == 4
    assert all(pointer % 256 == 0 for pointer in pointers)


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ("hipModuleLoadData:209", r"node 'node': loading the code object for gfx1100 failed: hipErrorStub (209)"),
        ("hipModuleGetFunction:500", r"finding kernel bias_add_f16_vector in the code object for gfx1100 failed"),
        (
            "hipModuleLaunchKernel:1",
            "launching bias_add_f16_vector on gfx1100 with a grid of 3 x 1 blocks of 256 threads failed",
        ),
    ],
)
def test_what_the_driver_refuses_becomes_an_error_of_onnx_runtime(failure: str, text: str, tmp_path: Path) -> None:
    write_model(tmp_path, "bias_add")
    run_models(tmp_path, fail=failure)
    message = (tmp_path / "bias_add.err").read_text()
    assert "BiasAdd node 'node'" in message
    assert text in message


def test_a_gpu_without_machine_code_keeps_onnx_runtimes_kernels(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path, "bias_add", name)
    write_model(tmp_path, "layer_norm")
    log = tmp_path / "calls"
    errors = run_models(tmp_path, gfx="gfx906", log=str(log))
    assert not (tmp_path / "layer_norm.err").exists()  # whose schema stays that of ONNX
    assert rocm_stub.read_log(log) == []
    [there] = re.findall(r"have no code object for gfx906 \(there are: (.*?)\)", errors)  # told once
    assert {*there.split(", ")} == native.ARCHITECTURES
    assert "sdort ops build --arch gfx906" in errors


def test_a_whole_graph_opens_with_the_library(exported: Callable[[Case], Path], tmp_path: Path) -> None:
    """Operators that keep ONNX Runtime's kernel there (NhwcConv) and ours stand side by side."""
    model, _ = optimized(exported, Case("sd1", "ts17"), "rocm", True)
    save_model(model, tmp_path / "model.onnx")
    script = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 0
options.register_custom_ops_library(sys.argv[2])
onnxruntime.InferenceSession(sys.argv[1], options, providers=["ROCMExecutionProvider"])
"""
    log = tmp_path / "calls"
    done = rocm_stub.runtime().run(script, str(tmp_path / "model.onnx"), str(native.library()), log=str(log))
    assert done.returncode == 0, done.stderr[-1000:]
    placed = parse_placement(done.stderr)
    assert set(placed.get("CPUExecutionProvider", ())) <= SHAPE_OPERATORS
    assert placed["ROCMExecutionProvider"]["NhwcConv"] > 10
    assert [call["call"] for call in rocm_stub.read_log(log)] == ["hipModuleLoadData"]  # ours were made there
