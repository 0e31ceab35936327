"""Images from the decoder's output, those that must not be written, and their parameters as a text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdort.errors.plain_text import one_line
from sdort.generation.prompt_syntax import WEIGHTINGS
from sdort.generation.record import GenerationRecord
from sdort.model.signature import Array
from sdort.pipelines.sampler_names import a1111_sampler

FLAT = 1.0
"""Standard deviation, of 255, below which every channel of an image shows nothing: overflow and dead weights end in one
colour, with a border or a few pixels of another. The demo's images have 16.6 or more (85 images of its prompts, at 1 to
20 steps and guidance 1 to 15), and 18.7 or more decoded from noise; a decoder with random weights has 60 from noise and
0 from zeros. A black frame with one dim lamp has 1.5. An image of blank paper
alone, under 1, is refused; trained models but the demo's were not measured."""


@dataclass(frozen=True)
class Generated:
    """One image: ``pixels`` is uint8 [height, width, 3]; ``problem`` says why it must not be used, None if it may."""

    seed: int
    pixels: Array
    problem: str | None
    variation_seed: int | None = None


def to_image(decoded: Array, seed: int) -> Generated:
    """An image from the decoder's float output [3, height, width] in [-1, 1].

    The rounding is that of diffusers' ``VaeImageProcessor``: (x / 2 + 0.5) clamped to [0, 1], times 255, to nearest.
    """
    values = np.asarray(decoded, np.float32)
    channels, height, width = values.shape
    if not np.isfinite([values.min(), values.max()]).all():  # both are NaN where one value is
        return Generated(seed, np.zeros((height, width, channels), np.uint8), "it has NaN or infinite pixels")
    pixels = np.empty((height, width, channels), np.uint8)
    rows = max(1, _AT_ONCE // width)
    for first in range(0, height, rows):
        strip = np.s_[first : first + rows]
        shares = values[:, strip] / 2
        shares += 0.5
        np.clip(shares, 0, 1, out=shares)
        shares *= 255
        rounded = np.rint(shares, out=shares).astype(np.uint8)
        for channel in range(channels):  # three times as fast as all of them at once
            pixels[strip, :, channel] = rounded[channel]
    return Generated(seed, pixels, constant_problem(pixels))


_AT_ONCE = 1 << 16
"""Pixels that are rounded at once: their floats stay in a processor's cache."""
_SAMPLED = 64
"""One pixel of so many is looked at first."""


def constant_problem(pixels: Array) -> str | None:
    """The reason why an 8-bit image shows nothing, None when it shows something."""
    channels = pixels.reshape(-1, pixels.shape[-1])
    # The squares of some pixels' differences from their own mean are at most those of all from theirs.
    few = np.ascontiguousarray(channels[::_SAMPLED].T)
    if few.var(axis=1, dtype=np.float32).max() * few.shape[1] >= 1.01 * FLAT**2 * len(channels):
        return None
    deviation = float(channels.std(axis=0, dtype=np.float64).max())
    if deviation >= FLAT:
        return None
    colour = np.median(channels, axis=0).astype(int).tolist()
    if max(colour) <= 2 * FLAT:
        return "it is all black"
    return f"every pixel has nearly the same value ({', '.join(map(str, colour))}; standard deviation {deviation:.2f})"


def parameters_text(record: GenerationRecord, seed: int) -> str:
    """The generation parameters in the form that image viewers and other front ends read from ``parameters``.

    They are AUTOMATIC1111's: the prompt, a line ``Negative prompt: ...``, and a line of ``name: value`` with commas
    between. As there, a value that would read as something else is a JSON string; here the prompts too, so that each
    is one line and names no parameter.
    """
    lines = [_quoted(record.prompt, _is_ambiguous(record.prompt))]
    if record.negative_prompt:
        quoted = _quoted(record.negative_prompt, _is_ambiguous(record.negative_prompt))
        lines.append(f"Negative prompt: {quoted}")
    fields = {
        "Steps": record.steps,
        **a1111_sampler(record.scheduler, record.scheduler_name),
        "CFG scale": record.guidance_scale,
        "Seed": seed,
        "Size": f"{record.width}x{record.height}",
        **task_parameters(record),
        # A1111's, which model sites find: the first ten digits of the file's SHA-256.
        "Model hash": record.checkpoint_sha256[:10] if record.checkpoint_sha256 else record.model_hash,
        "Model": record.model,
        "Clip skip": None if record.clip_skip == 1 else record.clip_skip,
        "Eta": record.eta,
        "Deep cache": record.deep_cache,
        "Deep cache depth": record.deep_cache_depth,
        "Prompt weighting": None if record.prompt_weighting == WEIGHTINGS[0] else record.prompt_weighting,
        "Lora hashes": ", ".join(f"{Path(one.name).stem}: {one.tensors_sha256[:12]}" for one in record.lora) or None,
        "Template": dict(record.templates).get("prompt"),
        "Negative Template": dict(record.templates).get("negative_prompt"),
        "Version": f"sdort {record.versions['sdort']}",
    }
    values = {name: str(value) for name, value in fields.items() if value is not None}
    lines.append(", ".join(f"{name}: {parameter_value(text)}" for name, text in values.items()))
    return "\n".join(lines)


def task_parameters(record: GenerationRecord) -> dict[str, object]:
    """Parameters of a refiner, img2img, inpainting, variations and the second pass, by AUTOMATIC1111's names."""
    named: dict[str, object] = {}
    if record.refiner:
        hashed = f" [{record.refiner_hash[:10]}]" if record.refiner_hash else ""
        named |= {"Refiner": f"{record.refiner}{hashed}", "Refiner switch at": record.refiner_start}
    if record.hires:
        upscaler = record.hires_upscaler or ("Lanczos" if record.hires_upscale == "image" else "Latent")
        named |= {"Denoising strength": record.hires_strength, "Hires upscale": record.hires}
        named |= {"Hires steps": record.hires_steps, "Hires upscaler": upscaler}
    if record.init_image:
        named["Denoising strength"] = record.strength
    if record.mask:
        named["Mask blur"] = record.mask_blur
    if record.only_masked:
        named |= {"Inpaint area": "Only masked", "Masked area padding": record.mask_padding}
    if record.upscale:
        named |= {"Postprocess upscale by": record.upscale_by, "Postprocess upscaler": record.upscale}
    if record.variation_strength:
        named |= {"Variation seed": record.variation_seed, "Variation seed strength": record.variation_strength}
    return named


_PARAMETER = re.compile(
    r"\b(negative prompt|steps|sampler|schedule type|cfg scale|seed|size|model hash|model|version|hashes|template"
    r"|clip skip|eta|prompt weighting)\s*:",
    re.IGNORECASE,
)


def _is_ambiguous(text: str) -> bool:
    """Whether a reader of ``parameters`` would get something else than this text."""
    is_line = one_line(text) == text == text.strip()
    return not is_line or text.startswith('"') or bool(_PARAMETER.search(text))


def parameter_value(text: str) -> str:
    """A text as a value of the last line of ``parameters``: quoted where a reader would divide it."""
    return _quoted(text, any(mark in text for mark in ",:") or _is_ambiguous(text))


def _quoted(text: str, needed: bool) -> str:
    """Text as a JSON string without a colon, which would end a parameter's name; as it is where that is not needed."""
    return json.dumps(text).replace(":", "\\u003a") if needed else text
