"""A graph made for a GPU runs as it is on the CPU with the library, and gives the original's result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import models, native
from support.exports import Case
from support.optimized_models import optimized, samples_of
from support.parity import compare
from support.turns import in_turns

from sdort.errors import UsageError
from sdort.onnx_io.save import save_model

Exported = Callable[[Case], Path]


FAMILIES = sorted(set(models.FAMILIES) - {"sd1_wide", "inpaint"})
GRAPHS = [("rocm", True), ("cuda", True), ("rocm", False)]


@pytest.mark.parametrize(("family", "graph"), in_turns(FAMILIES, GRAPHS, whole=["sd1", "vae_decoder", "clip"]))
def test_gpu_graphs_run_on_the_cpu(exported: Exported, tmp_path: Path, family: str, graph: tuple[str, bool]) -> None:
    target, fp16 = graph
    case = Case(family, "ts17")
    model, _ = optimized(exported, case, target, fp16)
    if not model.component.startswith("text"):
        # Otherwise any ONNX Runtime would do.
        assert {"NhwcConv", "MultiHeadAttention"} <= {node.op for node in model.graph.nodes}
    save_model(model, tmp_path / "model.onnx")
    parity = compare(
        exported(case),
        tmp_path / "model.onnx",
        component=model.component,
        samples=samples_of(case, model.component),
        custom_ops=str(native.library()),
    )
    parity.check()


def test_without_the_library_they_do_not(exported: Exported, tmp_path: Path) -> None:
    import onnxruntime

    case = Case("sd1", "ts17")
    model, _ = optimized(exported, case, "rocm", True)
    save_model(model, tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])


def test_a_library_that_is_none_is_refused(exported: Exported, tmp_path: Path) -> None:
    path = exported(Case("clip", "ts17"))
    with pytest.raises(UsageError, match="there is no such file"):
        compare(path, path, component="text_encoder", custom_ops=str(tmp_path / "none.so"))
