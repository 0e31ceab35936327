"""What is known of the families of single-file checkpoints and is not in their tensors.

Facts of ``scheduler_config.json``, ``config.json`` and ``model_index.json`` of stable-diffusion-v1-5,
stabilityai/stable-diffusion-2-1, stable-diffusion-xl-base-1.0 and -refiner-1.0, playgroundai/playground-v2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sdort.pipelines.clip_tokenizer import EOS
from sdort.pipelines.weight_names import EDITING, INPAINTING, REFINER, SD1, SD2, SDXL

Config = Mapping[str, Any]

_NOISE: Config = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "trained_betas": None,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
}
PNDM: Config = {"_class_name": "PNDMScheduler", **_NOISE, "prediction_type": "epsilon"}
DDIM_V: Config = {"_class_name": "DDIMScheduler", **_NOISE, "prediction_type": "v_prediction"}
EULER: Config = {
    "_class_name": "EulerDiscreteScheduler",
    **_NOISE,
    "prediction_type": "epsilon",
    "interpolation_type": "linear",
    "sample_max_value": 1.0,
    "timestep_spacing": "leading",
    "use_karras_sigmas": False,
}
ZERO_SNR: Config = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
"""Settings of a model that was trained down to a signal of zero (https://arxiv.org/abs/2305.08891)."""
EDM: Config = {
    "_class_name": "EDMDPMSolverMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "sigma_data": 0.5,
    "sigma_max": 80.0,
    "sigma_min": 0.002,
    "rho": 7.0,
    "solver_order": 2,
}
EDM_VAE: Config = {
    "scaling_factor": 0.5,
    "latents_mean": [-1.6574, 0.886, -1.383, 2.5155],
    "latents_std": [8.4927, 5.9022, 6.5498, 5.2299],
}
_SD_VAE: Config = {"scaling_factor": 0.18215, "sample_size": 512}
# Its activations exceed what fp16 holds (madebyollin/sdxl-vae-fp16-fix is another one).
_XL_VAE: Config = {"scaling_factor": 0.13025, "sample_size": 1024, "force_upcast": True}

_TEXT_TO_IMAGE: Mapping[str | None, str] = {
    None: "StableDiffusionPipeline",
    INPAINTING: "StableDiffusionInpaintPipeline",
    EDITING: "StableDiffusionInstructPix2PixPipeline",
}


@dataclass(frozen=True)
class TextPart:
    """A text encoder of a family."""

    prefixes: tuple[str, ...]
    """What stands before its tensors' names, in the order in which they are looked for."""
    component: str = "text_encoder"
    class_name: str = "CLIPTextModel"
    activation: str = "quick_gelu"
    pad: str = EOS
    """The token that fills up short prompts."""
    unused: int | None = None
    """The number of layers of the original, whose last one the family does not use; None where it uses all."""
    config: Config = field(default_factory=dict)

    @property
    def tokenizer(self) -> str:
        """The folder of its tokenizer."""
        return self.component.replace("text_encoder", "tokenizer")


@dataclass(frozen=True)
class Release:
    """A family of single-file checkpoints."""

    name: str
    pipelines: Mapping[str | None, str]
    """Variant of the UNet -> class of the pipeline in diffusers."""
    scheduler: Config
    vae: Config
    encoders: tuple[TextPart, ...]
    sample_size: int
    """Latents of a side of the images that it was trained on."""
    index: Config = field(default_factory=dict)
    """Further entries of ``model_index.json``."""


_CLIP_XL = TextPart(("conditioner.embedders.0.transformer.",), config={"projection_dim": 768})
_BIG_G: Config = {
    "component": "text_encoder_2",
    "class_name": "CLIPTextModelWithProjection",
    "activation": "gelu",
    "pad": "!",
}

RELEASES = {
    SD1: Release(
        SD1,
        _TEXT_TO_IMAGE,
        PNDM,
        _SD_VAE,
        (
            TextPart(
                ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer."),
                config={"projection_dim": 768},
            ),
        ),
        64,
    ),
    SD2: Release(
        SD2,
        _TEXT_TO_IMAGE,
        PNDM,
        _SD_VAE,
        (
            TextPart(
                ("cond_stage_model.model.", "conditioner.embedders.0.model.", "cond_stage_model.transformer."),
                activation="gelu",
                pad="!",
                unused=24,
                config={"projection_dim": 512},
            ),
        ),
        64,
    ),
    SDXL: Release(
        SDXL,
        {None: "StableDiffusionXLPipeline", INPAINTING: "StableDiffusionXLInpaintPipeline"},
        EULER,
        _XL_VAE,
        (_CLIP_XL, TextPart(("conditioner.embedders.1.model.",), **_BIG_G)),
        128,
        {"force_zeros_for_empty_prompt": True},
    ),
    REFINER: Release(
        REFINER,
        {None: "StableDiffusionXLImg2ImgPipeline"},
        EULER,
        _XL_VAE,
        (TextPart(("conditioner.embedders.0.model.",), **_BIG_G),),
        128,
        {"force_zeros_for_empty_prompt": False, "requires_aesthetics_score": True},
    ),
}
