"""What has to fuse in the optimized graphs of the real architectures: what their configs say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from support.models import Built

from sdort.graph.model import Model
from sdort.lowering.component_report import ComponentReport
from sdort.optimizer.expected import expected_operators

SD15_UNET = {
    "MultiHeadAttention": 32,
    "NhwcConv": 98,
    "BiasSplitGelu": 16,
    "BiasAdd": 16 + 15,  # behind transformers, and residual sums with the biases of their convolutions
    "SkipLayerNormalization": 32,
    "LayerNormalization": 16,
}


def check_fusions(name: str, target: str, built: Built, model: Model, report: ComponentReport) -> None:
    """Assert that everything fused; ``name`` is that of :mod:`full_size`."""
    assert report.misses == []
    raised = expected_operators(built.config, built.component, "raised")
    counts = report.operators_raised
    assert [e.difference(sum(counts.get(op, 0) for op in e.operators)) for e in raised] == [None] * len(raised)
    if target in ("rocm", "cuda"):
        assert report.declined == {}
        fused = expected_operators(built.config, built.component, target)
        assert [e.miss(model.graph) for e in fused] == [None] * len(fused)
        assert report.operators.get("Transpose", 0) <= 2
    if name == "sd15" and target in ("rocm", "cuda"):
        _check_sd15(target, model, report)
    if name == "sdxl" and target in ("rocm", "cuda"):
        assert report.operators["com.microsoft.MultiHeadAttention"] == 140
        assert report.operators["com.microsoft.BiasSplitGelu"] == 70


def _check_sd15(target: str, model: Model, report: ComponentReport) -> None:
    """The numbers that everybody who knows this UNet can count."""
    counts = {name.rpartition(".")[2]: count for name, count in report.operators.items()}
    assert {name: counts[name] for name in SD15_UNET} == SD15_UNET
    norms = [n for n in model.graph.nodes if n.op in ("GroupNorm", "SkipGroupNorm")]
    assert len(norms) == 61
    assert sum(n.attrs["activation"] for n in norms) == 45
    packed = [len(n.inputs) for n in model.graph.nodes if n.op == "MultiHeadAttention"]
    # Packed QKV; query and packed KV. cuda's kernels would copy them apart.
    assert sorted(packed) == ([1] * 16 + [2] * 16 if target == "rocm" else [3] * 32)
    # Dynamic height and width: the batch for the timestep, one shape for each of four levels.
    assert counts["Shape"] <= 5
    assert "Unsqueeze" not in counts
    assert "Gather" not in counts


def without_phases(operators: Mapping[str, int]) -> Counter[str]:
    """The operators as if no upsampling had become phases, which needs sizes that are known to be twice as large."""
    phases = operators.get("DepthToSpace", 0)
    each = Counter({"Conv": 3, "Concat": 1, "Split": 1, "DepthToSpace": 1, "Resize": -1})
    return +Counter({name: operators.get(name, 0) - phases * each[name] for name in {*operators, *each}})
