"""Decomposed programs and merged projections give the graphs that plain exports of the same models give."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support import decomposed_exports
from support.expected_fusions import without_phases
from support.parity import compare
from support.turns import in_turns

from sdort.graph.domains import MICROSOFT
from sdort.graph.model import Model
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.optimizer.expected import architecture, expected_operators
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.workload.samples import Sample

SAMPLES = [Sample(1, 16, 24, 7), Sample(3, 8, 16, 5)]
PROMPTS = [Sample(1, sequence=77), Sample(2, sequence=13)]


def optimized(path: Path, component: str, target: str, folder: Path, dynamic: bool) -> tuple[Model, ComponentReport]:
    """A model for a target, with the numbers of the exported one."""
    model = load_model(path, component)
    report = optimize_model(model, OptimizeOptions(load_target(target)))
    assert report.misses == []
    save_model(model, folder / "model.onnx")
    samples = PROMPTS if component == "text_encoder" else SAMPLES
    parity = compare(path, folder / "model.onnx", component=component, samples=samples)
    assert len({output.sample for output in parity.outputs}) == (2 if dynamic else 1)
    parity.check()
    return model, report


CASES = [("unet", "de18", True), ("unet", "de18raw", True), ("text_encoder", "de23", True),
         ("text_encoder", "de23raw", True), ("text_encoder", "de18", False), ("text_encoder", "de18raw", False),
         ("vae_decoder", "de18", False), ("vae_decoder", "de18raw", False)]  # fmt: skip


@pytest.mark.parametrize(("case", "target"), in_turns(CASES, PROVIDER_NAMES, each=2))
def test_a_decomposed_program_is_the_model_that_it_was(
    request: pytest.FixtureRequest, tmp_path: Path, case: tuple[str, str, bool], target: str
) -> None:
    kind, exporter, dynamic = case
    cache = request.config.cache.mkdir("exports")
    plain = load_model(decomposed_exports.export(kind, "ts17", dynamic, cache), kind)
    wanted = optimize_model(plain, OptimizeOptions(load_target(target))).operators
    source = decomposed_exports.export(kind, exporter, dynamic, cache)
    found = optimized(source, kind, target, tmp_path, dynamic)[1].operators
    if kind == "text_encoder":  # the exporters write the pooling by other operators; what fuses is the same
        wanted, found = ({k: n for k, n in each.items() if "." in k or "Norm" in k} for each in (wanted, found))
        assert len(wanted) > (1 if target == "openvino" else 2)
    assert without_phases(found) == without_phases(wanted)


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("kind", ["unet_merged", "vae_decoder_merged"])
def test_merged_projections_are_packed_where_the_target_packs(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, target: str
) -> None:
    cache = request.config.cache.mkdir("exports")
    component = kind.removesuffix("_merged")
    source = decomposed_exports.export(kind, "ts17", True, cache)
    model, report = optimized(source, component, target, tmp_path, True)
    config = decomposed_exports.build(component).config
    parts = architecture(config, component)
    count = parts["attention_self"] + parts["attention_cross"]
    raised = next(e for e in expected_operators(config, component, "raised") if e.name == "attention")
    assert raised.count == report.operators_raised["Attention"] == count
    inputs = Counter(len(node.inputs) for node in model.graph.nodes if node.op == "MultiHeadAttention")
    packs = target in ("rocm", "dml") and component == "unet"
    if f"{MICROSOFT}.MultiHeadAttention" not in load_target(target).conditions:
        count = 0
    assert inputs == (
        {1: parts["attention_self"], 2: parts["attention_cross"]} if packs else {3: count} if count else {}
    )
