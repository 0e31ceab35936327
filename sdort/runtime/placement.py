"""Placement of nodes on providers, from ONNX Runtime's own report.

Every version since 1.10 writes the placement to its verbose log while a session initialises; no Python call returns it
in the versions that have the ROCm provider.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sdort.errors import ProviderError
from sdort.providers import CPU
from sdort.providers.provider import Provider

_PLACED = re.compile(r"(?:Node\(s\)|All nodes) placed on \[(\w+)\]\. Number of nodes: (\d+)")
_NODE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\w+) \(")

# ONNX Runtime keeps small integer arithmetic on shapes on the CPU on purpose: its results are needed there. The log has
# no dtypes, so these operators pass on any; every GPU provider has them for floats.
# fmt: off
SHAPE_OPERATORS = frozenset([
    "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal",
    "Expand", "Floor", "Gather", "Greater", "Identity", "Less", "Max", "MemcpyFromHost", "MemcpyToHost", "Min", "Mod",
    "Mul", "Neg", "Not", "Or", "Range", "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze",
    "Sub", "Unsqueeze", "Where",
])
# fmt: on


COPIES = ("MemcpyFromHost", "MemcpyToHost")
"""The nodes that ONNX Runtime inserts where a tensor is needed on the other side."""


def run_logged(call: Callable[[], Any]) -> tuple[Any, str]:
    """Run ``call`` and return its result with everything that was written to file descriptor 2 meanwhile."""
    with tempfile.TemporaryFile() as log:
        with _stderr_to(log.fileno()):
            result = call()
        log.seek(0)
        return result, log.read().decode(errors="replace")


@contextmanager
def _stderr_to(target: int) -> Iterator[None]:
    """Point file descriptor 2 at ``target``: ONNX Runtime's C++ logger writes there, past ``sys.stderr``."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def parse_placement(log: str) -> dict[str, Counter[str]]:
    """Operator counts per provider (``CPUExecutionProvider``, ...) from a verbose log.

    When one provider has the whole graph ONNX Runtime lists no operators; they are then counted under ``""``.
    """
    placed: dict[str, Counter[str]] = {}
    current: Counter[str] | None = None
    for line in log.splitlines():
        if header := _PLACED.search(line):
            current = placed.setdefault(header[1], Counter())
            if "All nodes" in line:
                current[""] += int(header[2])
        elif current is not None and (node := _NODE.search(line)):
            current[node[1]] += 1
    return placed


def refuse_fallback(log: str, provider: Provider, component: str) -> None:
    """Check that only shape arithmetic was left on the CPU.

    Raises:
        ProviderError: another operator runs on the CPU; it names them with their counts.
    """
    fallen = {
        op: count
        for op, count in parse_placement(log).get(CPU.ep, Counter()).items()
        if not provider.is_fallback and op not in SHAPE_OPERATORS
    }
    if not fallen:
        return
    if "" in fallen:
        what = f"all {fallen['']} nodes"
    else:
        what = ", ".join(f"{count} {op}" for op, count in sorted(fallen.items()))
    raise ProviderError(
        f"{what} would run on the CPU, not on {provider.name}",
        component=component,
        hint=f"Optimize the model for it (sdort optimize --provider {provider.name}), or leave out --no-fallback.",
    )
