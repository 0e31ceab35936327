"""The conditioning of a denoiser by prompts and sizes: which outputs of text encoders feed which of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import CLIP_SKIP
from sdort.families.family import (
    AESTHETIC,
    CROP_LEFT,
    CROP_TOP,
    HEIGHT,
    LAST,
    PENULTIMATE,
    WIDTH,
    Encoder,
    Family,
)
from sdort.graph.signature import Array

Conditioning = dict[str, Array]
"""Conditioning inputs of the denoiser by name, arrays [1, ...]: all it takes beside latents and timestep."""


def encoder_outputs(
    encoder: Encoder, names: Sequence[str], config: Mapping[str, Any], clip_skip: int = 1
) -> dict[str, str]:
    """The names of the outputs that condition the denoiser, by its inputs.

    Args:
        encoder: a text encoder.
        names: of all its outputs.
        config: its config.
        clip_skip: the layer whose output conditions, counted from the last one, which is 1. SDXL takes the last but
            one by itself: 1 and 2 are that.

    Raises:
        BadModelError: it lacks one of them.
        UsageError: it lacks one of another clip skip than 1, or reads plain text.
    """
    if encoder.plain and clip_skip > 1:
        raise UsageError(
            f"--clip-skip is for CLIP's text encoders, and {encoder.component} is a {encoder.class_name}",
            hint="Leave it out.",
        )
    return {name: _output(encoder, output, names, config, clip_skip) for name, output in encoder.conditioning.items()}


def _output(encoder: Encoder, output: str, names: Sequence[str], config: Mapping[str, Any], clip_skip: int) -> str:
    if output == LAST and clip_skip > 1:
        output = f"{CLIP_SKIP}.{clip_skip}"
    if output == LAST and LAST not in names:
        return names[0]  # whatever an exporter calls it, it comes first
    if output == PENULTIMATE:
        # Counted from the embeddings on, which are hidden_states.0.
        output = f"hidden_states.{int(config.get('num_hidden_layers', 0)) + 1 - max(clip_skip, 2)}"
    if clip_skip > 1 and (output not in names or output == "hidden_states.0"):
        raise _no_clip_skip(encoder, names, config, clip_skip)
    if output not in names:
        raise BadModelError(
            f"it has no output {output}, which conditions the UNet",
            component=encoder.component,
            hint="Export the whole pipeline: sdort export MODEL OUT, and keep each component's config.json.",
        )
    return output


def _no_clip_skip(encoder: Encoder, names: Sequence[str], config: Mapping[str, Any], clip_skip: int) -> UsageError:
    layers = int(config.get("num_hidden_layers", 0))
    if any(name.startswith((f"{CLIP_SKIP}.", "hidden_states.")) for name in names):
        message = f"--clip-skip {clip_skip} is more than {encoder.component} can skip: it has {layers} layers"
        return UsageError(message, hint="Usual are 1 and 2.")
    return UsageError(
        f"{encoder.component} was exported without clip skip",
        hint="Export the checkpoint again, with this version of sdort.",
    )


def condition(
    family: Family, parts: Sequence[Conditioning], size: tuple[int, int], width: int | None = None
) -> Conditioning:
    """The conditioning of the denoiser by one prompt.

    Args:
        family: its family.
        parts: each encoder's, by the denoiser's inputs.
        size: height and width of the image in pixels.
        width: of the states that the denoiser attends to, for encoders that are absent.
    """
    made: Conditioning = {}
    for encoder, part in zip(family.encoders, parts, strict=True):
        for name, value in part.items():
            made[name] = _joined(made[name], value, encoder.behind and value.ndim == 3) if name in made else value
    for encoder in family.absent:
        for name in encoder.conditioning:
            zeros = np.zeros((1, family.tokens(encoder.component), width or 0), made[name].dtype)
            made[name] = _joined(made[name], zeros, True)
    if family.sizes:
        made[_sizes(family)] = np.array([_numbers(family, size, size[0])], np.float32)
    return made


def _joined(first: Array, second: Array, behind: bool) -> Array:
    """Two arrays [1, tokens, width] or [1, width] side by side; or behind each other, as wide as the wider one."""
    if not behind:
        return np.concatenate([first, second], -1)
    width = max(first.shape[-1], second.shape[-1])
    wide = [np.pad(each, ((0, 0), (0, 0), (0, width - each.shape[-1]))) for each in (first, second)]
    return np.concatenate(wide, 1)


def at_size(family: Family, conditioning: Conditioning, size: tuple[int, int]) -> Conditioning:
    """The same conditioning, arrays [images, ...], for images of another height and width in pixels."""
    if not family.sizes:
        return conditioning
    before = conditioning[_sizes(family)]
    numbers = np.array(_numbers(family, size, before[0, -1]), before.dtype)
    return conditioning | {_sizes(family): np.tile(numbers, (len(before), 1))}


def scored(family: Family, conditioning: Conditioning, score: float) -> Conditioning:
    """The same conditioning with an aesthetic score, where the family has one."""
    if not family.aesthetic:
        return conditioning
    numbers = conditioning[_sizes(family)].copy()
    numbers[:, family.sizes.index(AESTHETIC)] = score
    return conditioning | {_sizes(family): numbers}


def _sizes(family: Family) -> str:
    name = family.denoiser.roles.sizes
    assert name is not None, f"{family.name} has numbers and no input for them"
    return name


def _numbers(family: Family, size: tuple[int, int], score: float) -> list[float]:
    """The family's numbers for images of a height and width in pixels."""
    values = {HEIGHT: size[0], WIDTH: size[1], CROP_TOP: 0, CROP_LEFT: 0, AESTHETIC: score}
    return [values[name] for name in family.sizes]
