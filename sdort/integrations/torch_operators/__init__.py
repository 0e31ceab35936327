"""The library's kernels as PyTorch operators: importing this package makes ``torch.ops.sdort.*``."""

from __future__ import annotations

from sdort.integrations.torch_operators import definitions as _definitions  # noqa: F401  (registers them)
from sdort.integrations.torch_operators.module_replacement import Replacement, replace

__all__ = ["Replacement", "replace"]
