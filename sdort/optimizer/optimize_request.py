"""The parameters of an optimization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdort.graph.group_quantized import GroupFormat
from sdort.graph.weights import Weight
from sdort.onnx_io.precision_mark import BF16
from sdort.optimizer.optimize_options import MEASURED, OptimizationOptions
from sdort.options.integer_weights import INTEGERS

USUAL_GROUP = 32
"""Neighbours that share a scale where nobody says how many. Of values with a normal distribution 4 bits miss 8.1 % of
the deviation, 9.1 % with twice as many and 10.1 % with four times."""


@dataclass(frozen=True)
class OptimizeRequest(OptimizationOptions):
    """An optimization: its options, of which ``provider`` is one by name, and what it is of."""

    source: Path
    out: Path
    unwritten: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Component -> initializer -> its weight, where the source's files of data were not written."""
    original: Mapping[str, Any] | None = None
    """The original for ``sdort.json``; None: the source, which stays where it is."""

    @property
    def half(self) -> bool:
        """Whether the result is in fp16."""
        return bool(self.fp16)

    @property
    def integers(self) -> GroupFormat | None:
        """The integers in which linear layers have their weights; None: floats."""
        return GroupFormat(INTEGERS[self.weights], self.group or USUAL_GROUP) if self.weights else None

    @property
    def measures(self) -> bool:
        """Whether the model runs first, so that what fp16 cannot hold stays in fp32."""
        return self.fp16 == MEASURED

    @property
    def precision(self) -> str:
        """``fp32``, ``fp16`` or ``bf16``."""
        return BF16 if self.bf16 else "fp16" if self.half else "fp32"
