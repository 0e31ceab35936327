"""Families of pipelines: their text encoders, and how the encoders' outputs condition the UNet.

Everything else, from tokens to the denoising loop and the decoder, is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sdort.errors import BadModelError, UsageError
from sdort.model.component_names import CLIP_SKIP, DECODER
from sdort.model.signature import Array

Conditioning = dict[str, Array]
"""Conditioning inputs of the UNet by name, arrays [1, ...]: all it takes beside latents and timestep."""

LAST, PENULTIMATE = "last_hidden_state", "hidden_states of the last layer but one"

SIZE_NUMBERS = 6
"""In ``time_ids``: height and width before cropping, the crop's top and left, height and width of the image.

https://arxiv.org/abs/2307.01952, section 2.2.
"""

AESTHETIC_NUMBERS = 5
"""In ``time_ids`` of SDXL's refiner: height and width before cropping, the crop's top and left, an aesthetic score."""

_LATENTS_AND_TIME = {"sample", "timestep"}


@dataclass(frozen=True)
class Encoder:
    """A text encoder.

    ``conditioning`` maps inputs of the UNet to the outputs that feed them. Where several encoders feed one input, they
    stand side by side in its last dimension.
    """

    component: str
    tokenizer: str
    """The folder of its tokenizer."""
    conditioning: Mapping[str, str]

    def outputs(self, names: Sequence[str], config: Mapping[str, Any], clip_skip: int = 1) -> dict[str, str]:
        """The names of the outputs that condition the UNet, by the UNet's inputs.

        Args:
            names: of all outputs of the encoder.
            config: the encoder's.
            clip_skip: the layer whose output conditions, counted from the last one, which is 1. SDXL takes the last but
                one by itself: 1 and 2 are that.

        Raises:
            BadModelError: it lacks one of them.
            UsageError: it lacks one of another clip skip than 1.
        """
        return {name: self._output(output, names, config, clip_skip) for name, output in self.conditioning.items()}

    def _output(self, output: str, names: Sequence[str], config: Mapping[str, Any], clip_skip: int) -> str:
        if output == LAST and clip_skip > 1:
            output = f"{CLIP_SKIP}.{clip_skip}"
        if output == LAST and LAST not in names:
            return names[0]  # whatever an exporter calls it, it comes first
        if output == PENULTIMATE:
            # Counted from the embeddings on, which are hidden_states.0.
            output = f"hidden_states.{int(config.get('num_hidden_layers', 0)) + 1 - max(clip_skip, 2)}"
        if clip_skip > 1 and (output not in names or output == "hidden_states.0"):
            raise self._no_clip_skip(names, config, clip_skip)
        if output not in names:
            raise BadModelError(
                f"it has no output {output}, which conditions the UNet",
                component=self.component,
                hint="Export the whole pipeline: sdort export MODEL OUT, and keep each component's config.json.",
            )
        return output

    def _no_clip_skip(self, names: Sequence[str], config: Mapping[str, Any], clip_skip: int) -> UsageError:
        layers = int(config.get("num_hidden_layers", 0))
        if any(name.startswith((f"{CLIP_SKIP}.", "hidden_states.")) for name in names):
            message = f"--clip-skip {clip_skip} is more than {self.component} can skip: it has {layers} layers"
            return UsageError(message, hint="Usual are 1 and 2.")
        return UsageError(
            f"{self.component} was exported without clip skip",
            hint="Export the checkpoint again, with this version of sdort.",
        )


@dataclass(frozen=True)
class Family:
    """A family of pipelines."""

    name: str
    side: int
    """Pixels of the images that it was trained on, where no config says."""
    scaling_factor: float
    """The scale of its latents, where no config says."""
    encoders: tuple[Encoder, ...]
    size_conditioning: bool = False
    """The UNet also takes the size of the image, as ``time_ids``."""
    empty_is_zero: bool = False
    """An empty negative prompt conditions as zeros, unless the pipeline's index says otherwise."""
    preview_factors: tuple[tuple[float, float, float], ...] = ()
    """Red, green and blue of each channel of its latents, fitted to its VAE's decoder:
    https://github.com/comfyanonymous/ComfyUI/blob/master/comfy/latent_formats.py"""
    preview_bias: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Red, green and blue of latents of zeros."""
    aesthetic: bool = False
    """The last of ``time_ids`` is an aesthetic score: a refiner, which works on an image or on what a base left."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The components that text to image runs, in their order."""
        return (*(encoder.component for encoder in self.encoders), "unet", DECODER)

    @property
    def inputs(self) -> set[str]:
        """The names of the inputs of its UNets."""
        conditioning = {name for encoder in self.encoders for name in encoder.conditioning}
        return _LATENTS_AND_TIME | conditioning | ({"time_ids"} if self.size_conditioning else set())

    @property
    def size_numbers(self) -> int:
        """How many ``time_ids`` its UNets take."""
        return AESTHETIC_NUMBERS if self.aesthetic else SIZE_NUMBERS

    def scored(self, condition: Conditioning, score: float) -> Conditioning:
        """The same conditioning with an aesthetic score, where the family has one."""
        if not self.aesthetic:
            return condition
        numbers = condition["time_ids"].copy()
        numbers[:, -1] = score
        return condition | {"time_ids": numbers}

    def condition(self, parts: Sequence[Conditioning], size: tuple[int, int]) -> Conditioning:
        """The conditioning of the UNet by one prompt.

        Args:
            parts: each encoder's, by the UNet's inputs.
            size: height and width of the image in pixels.
        """
        condition: Conditioning = {}
        for part in parts:
            for name, value in part.items():
                condition[name] = np.concatenate([condition[name], value], -1) if name in condition else value
        if self.size_conditioning:
            condition["time_ids"] = np.array([[*size, 0, 0, *size][: self.size_numbers]], np.float32)
        return condition

    def at_size(self, condition: Conditioning, size: tuple[int, int]) -> Conditioning:
        """The same conditioning, arrays [images, ...], for images of another height and width in pixels."""
        if not self.size_conditioning:
            return condition
        before = condition["time_ids"]
        score = before[0, -1:].tolist() if self.aesthetic else size
        return condition | {"time_ids": np.tile(np.array([*size, 0, 0, *score], before.dtype), (len(before), 1))}


STABLE_DIFFUSION = Family(
    "Stable Diffusion 1.x and 2.x",
    512,
    0.18215,
    (Encoder("text_encoder", "tokenizer", {"encoder_hidden_states": LAST}),),
    preview_factors=(
        (0.3512, 0.2297, 0.3227),
        (0.3250, 0.4974, 0.2350),
        (-0.2829, 0.1762, 0.2721),
        (-0.2120, -0.2616, -0.7177),
    ),
)
SDXL = Family(
    "SDXL",
    1024,
    0.13025,
    (
        Encoder("text_encoder", "tokenizer", {"encoder_hidden_states": PENULTIMATE}),
        Encoder(
            "text_encoder_2",
            "tokenizer_2",
            {"encoder_hidden_states": PENULTIMATE, "text_embeds": "text_embeds"},
        ),
    ),
    size_conditioning=True,
    empty_is_zero=True,
    preview_factors=(
        (0.3651, 0.4232, 0.4341),
        (-0.2533, -0.0042, 0.1068),
        (0.1076, 0.1111, -0.0362),
        (-0.3165, -0.2492, -0.2188),
    ),
    preview_bias=(0.1084, -0.0175, -0.0011),
)
REFINER = replace(SDXL, name="SDXL's refiner", encoders=SDXL.encoders[1:], empty_is_zero=False, aesthetic=True)


def family_of(components: Collection[str]) -> Family:
    """The family of a pipeline with these components."""
    if "text_encoder_2" not in components:
        return STABLE_DIFFUSION
    return SDXL if "text_encoder" in components else REFINER
