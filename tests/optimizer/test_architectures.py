"""Full-size architectures without weights: what fuses is what their configs say."""

from __future__ import annotations

import pytest
from support.expected_fusions import check_fusions
from support.full_exports import weightless

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.providers import load_target

TARGETS = {
    "sd15": ("cuda", "cpu", "migraphx"),
    "sd21": ("rocm",),
    "vae_encoder": ("cpu",),
    "vae_decoder": ("migraphx",),
    "clip_l": ("migraphx",),
}
"""What tests/runtime/test_rocm_placement.py does not optimize: it checks the same of all that it does, for ROCm."""


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_gets_what_the_config_says(name: str) -> None:
    for target in TARGETS[name]:
        built, model = weightless(name)
        check_fusions(
            name, target, built, model, optimize_model(model, OptimizeOptions(load_target(target), fp16=True))
        )
