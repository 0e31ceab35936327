"""SDXL's refiner. Facts of stable-diffusion-xl-refiner-1.0."""

from __future__ import annotations

from dataclasses import replace

from sdort.families.data import sdxl
from sdort.families.family import AESTHETIC, CROP_LEFT, CROP_TOP, HEIGHT, WIDTH, ComfyUI
from sdort.families.unet import attends_to_pooled, takes_sizes

FAMILY = replace(
    sdxl.FAMILY,
    name="SDXL refiner",
    title="SDXL's refiner",
    # SDXL's second one.
    encoders=(replace(sdxl.FAMILY.encoders[1], prefixes=("conditioner.embedders.0.model.",)),),
    context_width=1280,
    pipelines={None: "StableDiffusionXLImg2ImgPipeline"},
    holds=lambda shapes: takes_sizes(shapes) and attends_to_pooled(shapes),
    index={"force_zeros_for_empty_prompt": False, "requires_aesthetics_score": True},
    sizes=(HEIGHT, WIDTH, CROP_TOP, CROP_LEFT, AESTHETIC),
    empty_is_zero=False,
    refines=sdxl.FAMILY.name,
    comfyui=ComfyUI("SDXLRefiner", "SDXLRefiner", "SDXLRefiner"),
)
