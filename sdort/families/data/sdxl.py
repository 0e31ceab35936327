"""SDXL. Facts of stable-diffusion-xl-base-1.0."""

from __future__ import annotations

from sdort.families.family import (
    CROP_LEFT,
    CROP_TOP,
    HEIGHT,
    PENULTIMATE,
    WIDTH,
    ComfyUI,
    Encoder,
    Family,
    Latents,
)
from sdort.families.scheduler_configs import EULER
from sdort.families.unet import INPAINTING, UNET, attends_to_pooled, takes_sizes
from sdort.families.unet_signature import POOLED

FAMILY = Family(
    name="SDXL",
    title="SDXL",
    side=1024,
    denoiser=UNET,
    encoders=(
        Encoder(
            "text_encoder",
            {UNET.roles.context: PENULTIMATE},
            prefixes=("conditioner.embedders.0.transformer.",),
            config={"projection_dim": 768},
        ),
        Encoder(
            "text_encoder_2",
            {UNET.roles.context: PENULTIMATE, POOLED: "text_embeds"},
            prefixes=("conditioner.embedders.1.model.",),
            class_name="CLIPTextModelWithProjection",
            activation="gelu",
            pad="!",
        ),
    ),
    latents=Latents(
        scaling_factor=0.13025,
        preview_factors=(
            (0.3651, 0.4232, 0.4341),
            (-0.2533, -0.0042, 0.1068),
            (0.1076, 0.1111, -0.0362),
            (-0.3165, -0.2492, -0.2188),
        ),
        preview_bias=(0.1084, -0.0175, -0.0011),
    ),
    context_width=2048,
    pipelines={None: "StableDiffusionXLPipeline", INPAINTING: "StableDiffusionXLInpaintPipeline"},
    scheduler=EULER,
    # The VAE's activations exceed what fp16 holds (madebyollin/sdxl-vae-fp16-fix is another one).
    vae={"scaling_factor": 0.13025, "sample_size": 1024, "force_upcast": True},
    holds=lambda shapes: takes_sizes(shapes) and not attends_to_pooled(shapes),
    index={"force_zeros_for_empty_prompt": True},
    # Before cropping, of the crop, and of the image: https://arxiv.org/abs/2307.01952, section 2.2.
    sizes=(HEIGHT, WIDTH, CROP_TOP, CROP_LEFT, HEIGHT, WIDTH),
    empty_is_zero=True,
    comfyui=ComfyUI("SDXL", "SDXL", "SDXL"),
)
