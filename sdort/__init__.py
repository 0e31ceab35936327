"""sdort: Stable Diffusion on ONNX Runtime, exported, fused, in FP16, fast and checked.

The library's doors are one module each: :mod:`sdort.export`, :mod:`sdort.optimizer.command`, :mod:`sdort.runtime`,
:mod:`sdort.bench` and :mod:`sdort.inspection.description`. Importing this package imports none of them.
"""

from __future__ import annotations

__version__ = "0.1.0"
