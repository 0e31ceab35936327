"""Stable Diffusion 1.x. Facts of stable-diffusion-v1-5."""

from __future__ import annotations

from sdort.families.family import LAST, ComfyUI, Encoder, Family, Latents
from sdort.families.scheduler_configs import PNDM
from sdort.families.unet import EDITING, INPAINTING, UNET, has_linear_projections, takes_sizes

FAMILY = Family(
    name="SD 1.x",
    title="Stable Diffusion 1.x and 2.x",
    side=512,
    denoiser=UNET,
    encoders=(
        Encoder(
            "text_encoder",
            {UNET.roles.context: LAST},
            prefixes=("cond_stage_model.transformer.", "conditioner.embedders.0.transformer."),
            config={"projection_dim": 768},
        ),
    ),
    latents=Latents(
        scaling_factor=0.18215,
        preview_factors=(
            (0.3512, 0.2297, 0.3227),
            (0.3250, 0.4974, 0.2350),
            (-0.2829, 0.1762, 0.2721),
            (-0.2120, -0.2616, -0.7177),
        ),
    ),
    context_width=768,
    pipelines={
        None: "StableDiffusionPipeline",
        INPAINTING: "StableDiffusionInpaintPipeline",
        EDITING: "StableDiffusionInstructPix2PixPipeline",
    },
    scheduler=PNDM,
    vae={"scaling_factor": 0.18215, "sample_size": 512},
    holds=lambda shapes: not takes_sizes(shapes) and not has_linear_projections(shapes),
    comfyui=ComfyUI("SD15", "SD20"),
)
