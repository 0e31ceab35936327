"""Sines and cosines that are written out are those of float64, to fp32's rounding, at all angles of a timestep."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_graphs import edit, run, to_proto

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes import sines
from sdort.providers import PROVIDER_NAMES, load_target

ANGLES = np.concatenate([np.linspace(-1100, 1100, 40001), np.arange(-8, 9) * np.pi / 2]).astype(np.float32)


@pytest.mark.parametrize("op", ["Sin", "Cos"])
def test_they_are_exact(op: str) -> None:
    editor = edit(f"g (float[N] x) => (float[N] y) {{ y = {op} (x) }}")
    assert sines.run(editor) == 1
    assert {node.op for node in editor.graph.nodes} == {"Add", "Floor", "Mul", "Sub"}
    (found,) = run(to_proto(editor.model), {"x": ANGLES})
    expected = getattr(np, op.lower())(ANGLES.astype(np.float64))
    assert np.abs(found - expected).max() < 3e-6
    assert sines.run(editor) == 0


@pytest.mark.parametrize("op", ["Sin", "Cos"])
def test_those_of_fp16_are_exact_to_its_rounding(op: str) -> None:
    """WebGPU promises nothing of an angle beyond pi in fp16 either."""
    editor = edit(f"g (float16[N] x) => (float16[N] y) {{ y = {op} (x) }}")
    assert sines.run(editor) == 1
    angles = ANGLES.astype(np.float16)
    (found,) = run(to_proto(editor.model), {"x": angles})
    expected = getattr(np, op.lower())(angles.astype(np.float64))
    assert found.dtype == np.float16
    assert np.abs(found - expected).max() < 5e-4


def test_another_precision_is_left() -> None:
    editor = edit("g (double[N] z) => (double[N] w) { w = Cos (z) }")
    assert sines.run(editor) == 0
    assert [node.op for node in editor.graph.nodes] == ["Cos"]


@pytest.mark.parametrize("name", PROVIDER_NAMES)
@pytest.mark.parametrize("fp16", [False, True])
def test_only_webgpus_are_written_out(name: str, fp16: bool) -> None:
    """What is named is the result, so that who compares graphs finds it."""
    editor = edit("g (float[2] t) => (float[2, 8] y) <float[8] f = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1] one = {1}> {"
                  "u = Unsqueeze (t, one)  a = Mul (u, f)  s = Sin (a)  y = Neg (s) }")  # fmt: skip
    optimize_model(editor.model, OptimizeOptions(load_target(name), fp16))
    nodes = {output.name: node for node in editor.graph.nodes for output in node.outputs}
    if not fp16:
        assert (nodes["s"].op == "Mul") == (name == "webgpu")
    assert ("Sin" in {node.op for node in editor.graph.nodes}) != (name == "webgpu")
    feeds = {"t": np.array([999, 3], np.float32)}
    expected = -np.sin(feeds["t"][:, None].astype(np.float64) * np.arange(1, 9))
    (found,) = run(to_proto(editor.model), feeds)
    assert np.abs(found - expected).max() < (2e-3 if fp16 else 1e-3)
