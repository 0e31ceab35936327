"""Disk space and memory of a warm-up, before its first slow step."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.files.disk import PlannedWrite, WritePlan, plan_writes
from sdort.generation.memory_need import weight_bytes
from sdort.tuning.store import Store
from sdort.warmup.items import Item, WarmupTarget

_RECORDS = 1_000_000
"""Upper bound in bytes of a bundle of an item for which nothing is compiled: its record and tables of results."""
_KERNELS = 50_000_000
"""Allowance in bytes for the kernels and databases that MIOpen keeps of an item; not measured."""
_RUNTIME = 500_000_000
"""Allowance in bytes of main memory for ONNX Runtime and a GPU's libraries; not measured."""


def plan_space(items: Sequence[Item], store: Store, target: WarmupTarget) -> WritePlan:
    """The writes of a warm-up: compiled programs hold a component's weights, all else is small."""
    there = set(store.names())
    writes, weights = [], [0]
    for item in items:
        size = weight_bytes(target.folder, [item.case.component])
        weights.append(size)
        if item.key.name in there:
            writes.append(PlannedWrite(str(item), store.folder, 0, "kept already"))
        elif target.provider.programs:
            writes.append(PlannedWrite(str(item), store.folder, size + _KERNELS, "compiled program"))
        elif target.provider.on_gpu:
            writes.append(PlannedWrite(str(item), store.folder, _KERNELS, "kernels and tables"))
        else:
            writes.append(PlannedWrite(str(item), store.folder, _RECORDS, "that it ran"))
    return plan_writes(writes, peak_memory=_RUNTIME + 2 * max(weights))
