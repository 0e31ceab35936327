"""Running what the tests made for a provider on that provider.

``SDORT_TEST_PROVIDER=cuda pytest tests/optimizer/test_attention_forms.py ...`` runs the graphs made for CUDA on
the GPU (``rocm`` and ``migraphx`` likewise). Everything else, and everything without it, runs on the CPU, where a GPU's
operators are expanded by their definitions. ``NVIDIA_TF32_OVERRIDE=0`` keeps sums in fp32, for which the tolerances
are.
"""

from __future__ import annotations

import os

from sdort.providers import PROVIDERS


def provider_of(target: str) -> str:
    """Where a target's graph runs: the target's own name, or ``cpu``."""
    return target if os.environ.get("SDORT_TEST_PROVIDER") == target else "cpu"


def execution_provider(target: str) -> str:
    """The same, as ONNX Runtime calls it."""
    return PROVIDERS[provider_of(target)].ep
