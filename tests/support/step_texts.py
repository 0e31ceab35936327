"""A plain denoising loop in torch whose prompts are those of every call, from diffusers' UNet, scheduler and VAE.

https://arxiv.org/abs/2206.01714, equation 11
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Text = str | tuple[str, str]
"""A prompt, or SDXL's two."""


def embedded(pipeline: Any, text: Text, size: tuple[int, int]) -> dict[str, Any]:
    """The UNet's arguments for a text, by diffusers."""
    import torch

    plain = {"device": "cpu", "num_images_per_prompt": 1, "do_classifier_free_guidance": False}
    with torch.no_grad():
        if isinstance(text, str):
            return {"encoder_hidden_states": pipeline.encode_prompt(text, **plain)[0]}
        hidden, _, pooled, _ = pipeline.encode_prompt(text[0], prompt_2=text[1], **plain)
    numbers = torch.tensor([[*size, 0, 0, *size]], dtype=torch.float32)
    return {"encoder_hidden_states": hidden, "added_cond_kwargs": {"text_embeds": pooled, "time_ids": numbers}}


def image_by_step_texts(
    pipeline: Any,
    scheduler: Any,
    negative: Sequence[Text],
    parts: Sequence[tuple[Sequence[Text], float]],
    *,
    scale: float,
    steps: int,
    size: tuple[int, int],
    seed: int,
) -> np.ndarray[Any, Any]:
    """The image of the loop, uint8 [height, width, 3].

    Args:
        negative: the text of every call.
        parts: the texts of every call, and a weight.
        size: height and width in pixels.
    """
    import torch

    scheduler.set_timesteps(steps)
    shape = (1, 4, *(side // pipeline.vae_scale_factor for side in size))
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scheduler.init_noise_sigma
    with torch.no_grad():
        for call, now in enumerate(scheduler.timesteps):
            sample = scheduler.scale_model_input(latents, now)
            without, *prompted = (
                pipeline.unet(sample, now, **embedded(pipeline, texts[call], size)).sample
                for texts in (negative, *(texts for texts, _ in parts))
            )
            weights = [scale * weight for _, weight in parts]
            output = without + sum(weight * (each - without) for weight, each in zip(weights, prompted, strict=True))
            latents = scheduler.step(output, now, latents).prev_sample
        image = pipeline.vae.decode(latents / pipeline.vae.config.scaling_factor).sample[0]
    pixels: np.ndarray[Any, Any] = ((image / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return pixels.transpose(1, 2, 0)
