"""scripts/ops_benchmark.py: processes that fail alone, and variants by name."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import ops_benchmark
import pytest
from support import native, rocm_stub


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        (os._exit, (3,), "the process ended without a result (exit code 3)"),
        (os.abort, (), "the process ended without a result (exit code -6)"),
        (sys.exit, ("no such provider",), "no such provider"),
        (int, ("seven",), "invalid literal for int() with base 10: 'seven'"),
        (time.sleep, (600,), "no result in 2 seconds: the process was ended"),
    ],
    ids=["exit", "crash", "refusal", "error", "hang"],
)
def test_a_measurement_that_fails_fails_alone(function: Any, arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(ops_benchmark.Failed) as error:
        ops_benchmark.isolated(2 if function is time.sleep else 60, function, *arguments)
    assert str(error.value) == reason
    assert ops_benchmark.isolated(60, int, "7") == 7


def test_the_benchmark_has_a_named_variant_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a HIP driver whose launches do nothing: what the library is asked, and the table that it then reads."""
    rocm_stub.load_driver()
    monkeypatch.setenv("SDORT_OPS_TUNING", str(tmp_path / "tuning.tsv"))
    case = ops_benchmark.attention(130, 77, 2, 40)
    where, names = ops_benchmark.variants(case, "rocm", native.library())
    assert where == "gfx1100\tattention f16 n=2 s=130 l=77 h=2 d=40"
    assert {"q1_whole", "q2_k64_s32"} <= set(names)
    ops_benchmark.choose(case, "rocm", native.library(), names[-1])
    assert (tmp_path / "tuning.tsv").read_text() == f"{where}\t{names[-1]}\t0\n"
    with pytest.raises(ValueError, match=r"^2x130x77 2x40 has the variants .*, not flash_wgmma$"):
        ops_benchmark.choose(case, "rocm", native.library(), "flash_wgmma")


@pytest.mark.parametrize("operator", ["RotaryEmbedding", "RMSNormRotaryEmbedding", "ModulatedLayerNormalization"])
def test_onnx_runtime_computes_no_places_in_a_run_of_a_body(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's provider leaves them to the CPU, and records no graph then."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    monkeypatch.setattr(onnxruntime, "SessionOptions", lambda: options)
    case = min((each for each in ops_benchmark.CASES if each.operator == operator), key=lambda each: each.bytes)
    values = [case.inputs(np.random.default_rng(0))]
    ops_benchmark.Runner(
        ops_benchmark.build(case, 1, values), ops_benchmark.feeds(case, values, 1), "cpu", None, graph=False
    )
    ran = onnx.shape_inference.infer_shapes(onnx.load(options.optimized_model_filepath)).graph
    whole = {info.name for info in ran.value_info if info.type.tensor_type.elem_type == onnx.TensorProto.INT64}
    assert ran.node
    assert not whole & {name for node in ran.node for name in node.output}
