"""IP-Adapters in a run, held against diffusers' own pipelines from the same noise and the same images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import tiny_pipeline
from support.pipelines import trace_folder
from support.tiny_control import export_part
from support.tiny_ip_adapter import ENCODER, build_image_encoder, build_ip_adapter, published_state

import sdort
from sdort.console import quiet_libraries
from sdort.errors import SdortError
from sdort.generation.input_image import InputImage
from sdort.generation.ip_adapter_choice import IpAdapterChoice, parse_ip_adapter_choice
from sdort.generation.ip_adapter_tokens import clip_pixels

LIKE = 60
"""Decibels: fp32 sums in another order; a wrong scale, token or negative image costs tens of them."""
PROMPT, NEGATIVE = "a red star", "dull"
KINDS = ("plain", "plus")
STEPS = 4


@dataclass
class Made:
    """A pipeline with an IP-Adapter of each kind, in diffusers and exported, and an image for each."""

    folder: Path
    pipeline: Any
    out: Path

    def image(self, number: int) -> Path:
        return self.folder / f"image{number}.png"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Made:
    from diffusers import StableDiffusionPipeline
    from transformers import CLIPImageProcessorPil

    folder = tmp_path_factory.mktemp("ip adapter")
    plain = tiny_pipeline.build_diffusers(folder / "pipeline", {"layers_per_block": 1})
    encoder = build_image_encoder(folder / "image_encoder")
    files = [folder / f"{kind}.safetensors" for kind in KINDS]
    for kind, file in zip(KINDS, files, strict=True):
        build_ip_adapter(file, plain.unet, kind, encoder)
    side = ENCODER["image_size"]
    out = export_part(folder / "pipeline", folder / "exported", trace_folder(request.config), ip_adapter=files)
    generator = np.random.default_rng(0)
    for number, size in enumerate([(90, 61), (40, 75)]):
        Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8)).save(folder / f"image{number}.png")
    parts = {name: getattr(plain, name) for name in ("vae", "text_encoder", "tokenizer", "unet", "scheduler")}
    with quiet_libraries():
        pipeline = StableDiffusionPipeline(
            **parts, image_encoder=encoder, feature_extractor=CLIPImageProcessorPil(size=side, crop_size=side),
            safety_checker=None, requires_safety_checker=False,
        )  # fmt: skip
        states = [published_state(file) for file in files]
        pipeline.load_ip_adapter(states, subfolder=["", ""], weight_name=["", ""])
    pipeline.set_progress_bar_config(disable=True)
    return Made(folder, pipeline, out)


@pytest.fixture(scope="module")
def ours(made: Made) -> Any:
    return sdort.load(made.out, provider="cpu")


def _theirs(made: Made, scales: tuple[float, float], kind: Any = None, **options: Any) -> Any:
    """The image of diffusers' pipeline, [height, width, 3] in 0 to 255."""
    import torch

    pipeline = kind.from_pipe(made.pipeline) if kind else made.pipeline
    pipeline.set_progress_bar_config(disable=True)
    pipeline.set_ip_adapter_scale(list(scales))
    with quiet_libraries():
        result = pipeline(
            PROMPT, negative_prompt=NEGATIVE, num_inference_steps=STEPS,
            ip_adapter_image=[Image.open(made.image(number)) for number in range(2)],
            generator=torch.Generator().manual_seed(7), output_type="np", **options,
        )  # fmt: skip
    return result.images[0] * 255


def _generate(made: Made, pipeline: Any, scales: tuple[float, float] | None, **options: Any) -> Any:
    images = [f"{made.image(number)}:{scale}" for number, scale in enumerate(scales or ())]
    settings = {"negative_prompt": NEGATIVE, "steps": STEPS, "seed": 7, "ip_adapter_image": images, **options}
    return pipeline.generate(PROMPT, **settings).images[0].pixels


def _decibels(ours: Any, theirs: Any) -> float:
    error = np.square(np.asarray(ours, np.float64) - np.round(theirs)).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-12)))


@pytest.mark.parametrize("scales", [(1.0, 0.0), (0.0, 0.7), (0.5, 1.2)], ids=["plain", "plus", "both"])
def test_images_are_those_of_diffusers(made: Made, ours: Any, scales: tuple[float, float]) -> None:
    expected = _theirs(made, scales)
    assert _decibels(_generate(made, ours, scales), expected) > LIKE
    assert _decibels(_generate(made, ours, None), expected) < 40


def test_without_guidance_no_negative_image_counts(made: Made, ours: Any) -> None:
    expected = _theirs(made, (0.8, 0.8), guidance_scale=1.0)
    assert _decibels(_generate(made, ours, (0.8, 0.8), guidance_scale=1.0), expected) > LIKE


def test_an_init_image_and_the_host_loop(made: Made, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers import StableDiffusionImg2ImgPipeline

    init = Image.open(made.image(0)).resize((64, 64))
    expected = _theirs(made, (0.6, 0.9), StableDiffusionImg2ImgPipeline, image=init, strength=0.6)
    assert _decibels(_generate(made, ours, (0.6, 0.9), init_image=init, strength=0.6), expected) > LIKE
    monkeypatch.setattr(type(ours._models.loop), "fits", lambda *args: False)
    assert _decibels(_generate(made, ours, (0.6, 0.9), init_image=init, strength=0.6), expected) > LIKE
