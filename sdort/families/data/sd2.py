"""Stable Diffusion 2.x. Facts of stabilityai/stable-diffusion-2-1."""

from __future__ import annotations

from dataclasses import replace

from sdort.families.data import sd1
from sdort.families.family import LAST, Encoder
from sdort.families.unet import UNET, has_linear_projections, takes_sizes

FAMILY = replace(
    sd1.FAMILY,
    name="SD 2.x",
    encoders=(
        Encoder(
            "text_encoder",
            {UNET.roles.context: LAST},
            prefixes=("cond_stage_model.model.", "conditioner.embedders.0.model.", "cond_stage_model.transformer."),
            activation="gelu",
            pad="!",
            unused=24,
            config={"projection_dim": 512},
        ),
    ),
    context_width=1024,
    holds=lambda shapes: not takes_sizes(shapes) and has_linear_projections(shapes),
)
