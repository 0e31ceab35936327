"""The models of :mod:`exports`, optimized, and what every one of them has to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from support import models
from support.exports import Case

from sdort.graph.model import Model
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.optimizer.expected import architecture, expected_operators
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.workload.samples import Sample

Exported = Callable[[Case], Path]


CHANNELS_LAST = tuple(name for name in PROVIDER_NAMES if load_target(name).channels_last)


@lru_cache
def described(family: str) -> tuple[str, dict[str, Any]]:
    """A family's component and config."""
    built = models.build(family)
    return built.component, built.config


def optimized(
    exported: Exported, case: Case, target: str, fp16: bool = False, sdort_ops: bool = False
) -> tuple[Model, ComponentReport]:
    model = load_model(exported(case), described(case.family)[0])
    return model, optimize_model(model, OptimizeOptions(load_target(target), fp16, sdort_ops=sdort_ops))


def samples_of(case: Case, component: str) -> list[Sample]:
    """Batches of one and two, not square; sizes that the trace allows."""
    if component.startswith("text"):
        return [Sample(1, sequence=77), Sample(2, sequence=13)]
    if case.odd or component == "vae_decoder":
        return [Sample(1, 9, 13, 7), Sample(2, 11, 6, 5)]
    return [Sample(1, 16, 24, 7), Sample(2, 24, 8, 5)]


def check_structure(case: Case, target: str, model: Model, report: ComponentReport) -> None:
    config = described(case.family)[1]
    assert report.misses == []
    raised = expected_operators(config, model.component, "raised")
    counts = report.operators_raised
    assert [e.difference(sum(counts.get(op, 0) for op in e.operators)) for e in raised] == [None] * len(raised)
    skipped = declined(case, target)
    fused = [e for e in expected_operators(config, model.component, target) if e.name not in skipped]
    assert [message for e in fused if (message := e.miss(model.graph))] == []
    if target in CHANNELS_LAST and not model.component.startswith("text"):
        assert report.operators.get("Transpose", 0) <= 2
    if target in CHANNELS_LAST and model.component == "unet":
        parts = architecture(config, "unet")
        inputs = Counter(len(node.inputs) for node in model.graph.nodes if node.op == "MultiHeadAttention")
        own, cross = parts["attention_self"], parts["attention_cross"]
        assert inputs == (
            {3: own + cross} if target == "cuda" else {1: own, 2: cross}
        )  # cuda's kernels copy packed ones
    if not case.dynamic:
        residue = {"Shape", "Gather", "Slice", "Range"} & set(report.operators)
        assert residue - ({"Gather", "Slice"} if model.component.startswith("text") else set()) == set()


def counts(report: ComponentReport) -> dict[str, int]:
    return {name: count for name, count in report.operators.items() if name not in ("Cast", "Identity")}


def declined(case: Case, target: str) -> set[str]:
    """Expectations that the tiny sizes put out of reach of a GPU's kernels; see the models' comments."""
    if target not in ("cuda", "rocm") or case.family not in models.UNET_CONFIGS:
        return set()
    geglu = set() if case.family == "sd1_geglu" else {"geglu", "gelu"}
    return geglu | ({"group_norm", "group_norm_silu"} if case.family == "sd1_odd_groups" else set())
