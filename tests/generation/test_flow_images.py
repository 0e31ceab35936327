"""Images of a pipeline whose scheduler is of flow matching: those of its own modules, stepped by diffusers' class."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.relisted import relist
from support.tiny_pipeline import VAE_FACTOR, Tiny

import sdort
from sdort.generation.schedules.image_noise import SeededNormal
from sdort.graph.signature import Array

CONFIG = {"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": True, "shift": 3.0}
PROMPT, GUIDANCE, STEPS = "a red star", 3.0, 5


def expected(tiny: Tiny, side: int) -> Array:
    """The image as float64 [3, side, side] from 0 to 1, by the torch modules."""
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    scheduler = FlowMatchEulerDiscreteScheduler.from_config(CONFIG)
    scheduler.set_timesteps(STEPS, mu=calculate_shift((side // VAE_FACTOR // 2) ** 2))
    pipeline = tiny.pipeline
    latents = torch.from_numpy(SeededNormal(7).draw((1, 4, side // VAE_FACTOR, side // VAE_FACTOR)))
    with torch.no_grad():
        texts = torch.cat(pipeline.encode_prompt(PROMPT, "cpu", 1, True, "")[::-1])
        for time in scheduler.timesteps:
            empty, full = pipeline.unet(torch.cat([latents] * 2), time, texts).sample.chunk(2)
            latents = scheduler.step(empty + GUIDANCE * (full - empty), time, latents).prev_sample
        image = pipeline.vae.decode(latents / pipeline.vae.config.scaling_factor).sample
    return np.asarray((image[0] / 2 + 0.5).clamp(0, 1).double())


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "flow"
    shutil.copytree(tiny.onnx, made)
    (made / "scheduler" / "scheduler_config.json").write_text(json.dumps(CONFIG))
    relist(made)
    return made


@pytest.mark.parametrize("side", [32, 64])
def test_an_image_is_that_of_the_modules_and_diffusers_steps(side: int, folder: Path, tiny: Tiny) -> None:
    """Whose noise levels follow the size."""
    options: dict[str, Any] = {
        "height": side,
        "width": side,
        "seed": 7,
        "guidance_scale": GUIDANCE,
        "steps": STEPS,
        "output": None,
    }
    [image] = sdort.run(folder, PROMPT, provider="cpu", **options).images
    wanted = np.moveaxis(expected(tiny, side), 0, 2)
    assert np.std(wanted) > 0.05
    assert np.abs(image.pixels / 255 - wanted).max() < 1.01 / 255


def test_a_shift_draws_another_image_and_is_recorded(folder: Path) -> None:
    pipeline = sdort.load(folder, provider="cpu")
    options: dict[str, Any] = {"height": 32, "width": 32, "seed": 7, "steps": STEPS}
    [own] = pipeline.generate(PROMPT, **options).images
    [other] = pipeline.generate(PROMPT, shift=6.0, **options).images
    assert (own.pixels != other.pixels).any()
    assert (own.record.shift, other.record.shift) == (None, 6.0)
