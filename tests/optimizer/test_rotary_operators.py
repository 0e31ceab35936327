"""Flux with sdort's own rotary embeddings: they take in the norms of heads that no Concat of text and image follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.diffusion_transformers import Traceable, built, write

from sdort.engines.rounding import emulate
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import expand
from sdort.providers import load_target
from sdort.rewrite.decomposed import RMS_NORM, ROTARY

DOUBLE, SINGLE = 1, 2
PLAIN = {"rocm": "sdort.RotaryEmbedding", "cuda": "com.microsoft.RotaryEmbedding"}
"""What turns heads that were normalized before text and image were joined."""


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> tuple[Traceable, Path]:
    made = built("flux", double=DOUBLE, single=SINGLE)
    path = tmp_path_factory.mktemp("flux") / "model.onnx"
    write(made, path, 23, dynamic=False)
    return made, path


@pytest.mark.parametrize(("target", "fp16"), [("rocm", True), ("cuda", False)])
def test_norms_of_heads_are_in_the_rotary_embeddings(flux: tuple[Traceable, Path], target: str, fp16: bool) -> None:
    made, source = flux
    model = load_model(source, "model", None)
    report = optimize_model(model, OptimizeOptions(load_target(target), fp16=fp16, sdort_ops=True))
    wanted = {"sdort.RMSNormRotaryEmbedding": 2 * SINGLE, PLAIN[target]: 2 * DOUBLE}
    assert {name: n for name, n in report.operators.items() if "RotaryEmbedding" in name} == wanted
    assert report.remaining == []
    assert report.whole[ROTARY] == 2 * (DOUBLE + SINGLE)
    assert report.whole[RMS_NORM] == 4 * DOUBLE + 2 * SINGLE
    path = source.parent / f"{target}.onnx"
    save_model(model, path)
    proto = emulate(path, "model") if fp16 else onnx.load(path)
    if not fp16:
        expand(proto)
    onnx.save(proto, source.parent / "run.onnx")
    session = onnxruntime.InferenceSession(source.parent / "run.onnx", providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    (found,) = session.run(None, {name: value.numpy() for name, value in made.inputs.items() if name in names})
    expected = made.expected()
    assert np.sqrt(np.square(found - expected).mean()) / expected.std() <= (2e-3 if fp16 else 5e-5)
