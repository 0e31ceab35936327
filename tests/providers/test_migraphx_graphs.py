"""What ``--provider migraphx`` emits: only what its execution provider lists, in forms that its parser reads.

The forms are those that MIGraphX 2.14 refused or misread when it was given the demo pipeline
(scripts/check_migraphx.py); MIGraphX itself is not needed here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from pathlib import Path

import check_migraphx
import numpy as np
import onnx
import pytest
from support import models, small_graphs
from support.exports import DYNAMO, Case
from support.full_exports import weightless
from support.optimized_models import optimized
from support.parity import compare
from support.turns import in_turns

from sdort.graph.model import Model
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.providers import load_target
from sdort.providers.migraphx import STANDARD, TARGET
from sdort.verification.limits import Tolerance
from sdort.workload.judgement import Errors
from sdort.workload.samples import Sample, declared_inputs, make_inputs


def check(model: Model) -> None:
    assert model.graph.opset == 18
    assert {each.domain for each in model.graph.import_domains} <= {"", "ai.onnx", "com.microsoft"}
    unnamed_output = False
    for node in model.graph.nodes:
        known = STANDARD.split() if not node.domain else {n.rpartition(".")[2] for n in TARGET.conditions}
        assert node.domain in (None, "", "com.microsoft")
        assert node.op in known, node
        if node.op == "Resize":
            assert node.attrs.get("keep_aspect_ratio_policy") is None
        if node.op == "Reshape" and hasattr(node.inputs[1], "values"):
            assert len(node.inputs[1].values) > 0
        if unnamed_output:
            assert [index for index, value in enumerate(node.inputs) if not value.name] == []
        unnamed_output |= any(not value.name for value in node.outputs)


CASES = [
    *(Case(family, "ts17") for family in sorted(set(models.FAMILIES) - {"sd1_wide"})),
    Case("sd1", "ts14", odd=True),
    *DYNAMO,
]
WHOLE = [Case(family, "ts17") for family in ("sd1", "clip", "vae_decoder")]


@pytest.mark.parametrize(("case", "fp16"), in_turns(CASES, (False, True), whole=WHOLE), ids=str)
def test_tiny_families(exported: Callable[[Case], Path], case: Case, fp16: bool) -> None:
    check(optimized(exported, case, "migraphx", fp16)[0])


@pytest.mark.parametrize("name", ["sd15", "vae_encoder", "vae_decoder", "clip_l"])
def test_full_size(name: str) -> None:
    _, model = weightless(name)
    report = optimize_model(model, OptimizeOptions(load_target("migraphx"), fp16=True))
    assert report.misses == []
    check(model)


def test_resize_says_what_other_targets_leave_out(exported: Callable[[Case], Path]) -> None:
    """A UNet of odd sizes goes to the size of another tensor; its scales and region are empty, not left out."""
    for target, empty in (("migraphx", False), ("cpu", True)):
        model = optimized(exported, Case("sd1", "ts14", odd=True), target)[0]
        nodes = [node for node in model.graph.nodes if node.op == "Resize" and len(node.inputs) == 4]
        assert nodes
        assert {not node.inputs[index].name for node in nodes for index in (1, 2)} == {empty}


# --- the rule of scripts/check_migraphx.py, without MIGraphX ---


def test_an_unfused_original_is_the_original(exported: Callable[[Case], Path], tmp_path: Path) -> None:
    """What an optimized graph is held to where a target errs: nothing of sdort's in it, and the same numbers."""
    for case in (Case("sd1", "dy23", dynamic=False), Case("text2", "dy23")):
        component, folder = models.build(case.family).component, tmp_path / str(case)
        folder.mkdir()
        path = check_migraphx.unfused(exported(case), component, False, folder)
        check(load_model(path, component))
        parity = compare(exported(case), path, component=component, samples=[Sample(2, 16, 24, 7)])
        assert len(parity.outputs) == len(models.build(case.family).outputs)
        found = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
        assert not {*check_migraphx.UNKNOWN, "MultiHeadAttention", "SkipLayerNormalization"} & found


def test_the_reference_is_in_float64(exported: Callable[[Case], Path]) -> None:
    path = exported(Case("sd1", "dy23", dynamic=False))
    inputs = declared_inputs(onnx.load(path), "unet")
    feeds = make_inputs(inputs, Sample(2, 16, 24, 7), "unet", seed=0)
    (wanted,) = check_migraphx.reference(path, feeds).values()
    (found,) = small_graphs.run(onnx.load(path), feeds)
    assert wanted.dtype == np.float64
    error = np.abs(found - wanted) / wanted.std()
    assert 0 < error.max() < 1e-5  # not the same arithmetic, but the same numbers


def test_errors_are_held_to_both_limits() -> None:
    limits = {"a": Tolerance(1e-2, 1e-3), "b": Tolerance(1e-2, 1e-3)}
    for largest, mean, outside in ((1e-2, 1e-3, []), (1.1e-2, 1e-3, ["b"]), (1e-2, 1.1e-3, ["b"]), (nan, nan, ["b"])):
        errors = {"a": Errors(0, 0, 1, 0, 0, 0), "b": Errors(0, 0, 1, largest, mean, 0)}
        assert check_migraphx.exceeding(errors, limits) == outside
