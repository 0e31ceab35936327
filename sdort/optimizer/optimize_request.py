"""The parameters of an optimization."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdort.model.weights import Weight
from sdort.onnx_io.precision_mark import BF16


@dataclass(frozen=True)
class OptimizeRequest:
    """The parameters of :func:`optimize`."""

    source: Path
    out: Path
    provider: str = "rocm"
    fp16: bool = False
    io_fp16: bool = False
    fp16_auto: bool = False
    """With fp16: measure what fp16 cannot hold, and leave that in fp32."""
    bf16: bool = False
    """Write an fp32 model that its provider computes in bf16 (:mod:`sdort.onnx_io.precision_mark`)."""
    fp16_plan: Path | None = None
    """With fp16: leave in fp32 what this file says (:mod:`sdort.precision.plan`)."""
    sdort_ops: bool | None = None
    """Also fuse into sdort's own operators; None: where this machine has kernels for them."""
    components: Collection[str] = ()
    """By name, what to optimize; empty for every component of the pipeline."""
    any_graph: bool = False
    """Also take models that are no component of a pipeline, and one that is not in a component's folder as it is."""
    disable: Collection[str] = ()
    expect: Mapping[str, int] = field(default_factory=dict)
    """Operator -> count, summed over the components; ``component:operator`` for one of them."""
    allow_misses: bool = False
    explain: bool = False
    overwrite: bool = False
    check: bool = True
    """Compare the source's files with what sdort wrote."""
    report: Path | None = None
    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Component -> initializer -> its weight, where the source's files of data were not written."""
    original: Mapping[str, Any] | None = None
    """The original for ``sdort.json``; None: the source, which stays where it is."""

    @property
    def precision(self) -> str:
        """``fp32``, ``fp16`` or ``bf16``."""
        return BF16 if self.bf16 else "fp16" if self.fp16 else "fp32"
