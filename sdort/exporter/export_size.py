"""Disk space and memory of an export, before its first slow step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from sdort.exporter.signatures import FOLDERS, ComponentSpec
from sdort.exporter.trace_cache import TraceCache
from sdort.families.component_names import DECODER, ENCODER
from sdort.files.disk import PlannedWrite, WritePlan, plan_writes
from sdort.graph.weights import Weight

GRAPH = 1_000_000
"""Upper bound in bytes of a graph without its weights, and of a trace: SD 1.5's UNet has 0.3 and 0.44 MB."""
_HALVES = {ENCODER: ("encoder.", "quant_conv."), DECODER: ("decoder.", "post_quant_conv.")}
"""The tensors of an autoencoder's checkpoint that each of its two graphs uses."""
_KNOWN, _TRACED = 350_000_000, 900_000_000
"""Peak memory in bytes of exports whose graphs come from the cache, and of those that torch traces: measured 88
and 570 MB for the demo model, 311 and 810 MB for SD 1.5. Weights are written in pieces, whatever their size."""


def plan_space(
    components: list[ComponentSpec],
    tensors: Mapping[str, Mapping[str, Weight]],
    out: Path,
    opset: int,
    cache: TraceCache,
) -> WritePlan:
    """The writes of an export: graphs with weights in fp32 to ``out``, and traces to the cache.

    Args:
        tensors: the checkpoint's, by folder.
    """
    known = {component.name: cache.has(component, opset) for component in components}
    writes = [
        PlannedWrite(
            component.name,
            out,
            4 * weight_elements(component.name, tensors[FOLDERS[component.name]]) + GRAPH,
            "known architecture" if known[component.name] else "is traced first",
        )
        for component in components
    ]
    new = list(known.values()).count(False)
    if new:
        writes.append(PlannedWrite("traces", cache.folder, new * GRAPH, f"{new} new", only_if_room=True))
    return plan_writes(writes, peak_memory=_TRACED if new else _KNOWN)


def weight_elements(component: str, tensors: Mapping[str, Weight]) -> int:
    """The number of elements of the weights that a component's graph uses.

    Args:
        tensors: those of its folder.
    """
    prefixes = _HALVES.get(component, "")
    return sum(math.prod(tensor.shape) for name, tensor in tensors.items() if name.startswith(prefixes))
