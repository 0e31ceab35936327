"""A1111's ``parameters`` text, which most programs and model sites write, as options of a generation.

    a lighthouse, (dusk:1.2)
    Negative prompt: people
    Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7, Seed: 5, Size: 512x768, Clip skip: 2

The prompt may have several lines; the last line has names and values, quoted as JSON where they hold commas or colons.
https://github.com/AUTOMATIC1111/stable-diffusion-webui, modules/infotext_utils.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sdort.errors import SdortError
from sdort.errors.number_ranges import (
    CLIP_SKIP,
    ETA,
    GUIDANCE,
    HEIGHT,
    HIRES,
    HIRES_STEPS,
    HIRES_STRENGTH,
    MASK_BLUR,
    MASK_PADDING,
    SEED,
    STEPS,
    STRENGTH,
    VARIATION_SEED,
    VARIATION_STRENGTH,
    WIDTH,
    Range,
)
from sdort.errors.plain_text import cut, one_line
from sdort.generation.prompt_syntax import WEIGHTINGS
from sdort.generation.request import UPSCALES
from sdort.pipelines.scheduler_names import find_scheduler

_PAIR = re.compile(r'\s*([\w][\w \-/]*):\s*("(?:\\.|[^"\\])*"|[^,]*)(?:,|$)')
_NEGATIVE = "Negative prompt:"
_FEWEST = 3
"""Pairs of the last line; with fewer it is part of a prompt."""

_NUMBERS: dict[str, Range[int] | Range[float]] = {
    "Steps": STEPS,
    "CFG scale": GUIDANCE,
    "Seed": SEED,
    "Clip skip": CLIP_SKIP,
    "Eta": ETA,
    "Mask blur": MASK_BLUR,
    "Masked area padding": MASK_PADDING,
    "Variation seed": VARIATION_SEED,
    "Variation seed strength": VARIATION_STRENGTH,
    "Hires upscale": HIRES,
    "Hires steps": HIRES_STEPS,
}
"""A1111's name -> the option's range."""
_OTHERS = ("Sampler", "Schedule type", "Denoising strength", "Hires upscaler", "Inpaint area")
_STRENGTH = "Denoising strength"
_TOLD = {"Model", "Model hash", "VAE", "VAE hash", "Version", "Size", "RNG", "Created Date", "Civitai resources",
         "Civitai metadata", "Prompt weighting", "Template", "Negative Template"}  # fmt: skip
"""Names whose values are no options, and change nothing or are told elsewhere."""


_UPSCALERS = {"Latent": UPSCALES[0], "Lanczos": UPSCALES[1]}
"""A1111's upscaler -> the option ``hires_upscale``; others that enlarge the image are like ``image``, and told."""


@dataclass
class Infotext:
    """What a ``parameters`` text says."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of a generation, ``prompt`` among them."""
    model: str | None = None
    """The model's name and hash."""
    left: list[str] = field(default_factory=list)
    """What it says that sdort does not take over."""


def read_infotext(text: str) -> Infotext:
    """The options in a ``parameters`` text."""
    *lines, last = text.strip().split("\n")
    pairs = {name.strip(): _unquoted(value.strip()) for name, value in _PAIR.findall(last)}
    if len(pairs) < _FEWEST:
        lines, pairs = [*lines, last], {}
    start = next((number for number, line in enumerate(lines) if line.strip().startswith(_NEGATIVE)), len(lines))
    negative = "\n".join(lines[start:]).strip().removeprefix(_NEGATIVE).strip()
    info = Infotext({"prompt": _unquoted("\n".join(lines[:start]).strip()), "negative_prompt": _unquoted(negative)})
    _take_numbers(info, pairs)
    _take_scheduler(info, pairs)
    _take_task(info, pairs)
    named = [pairs[name] for name in ("Model", "Model hash") if name in pairs]
    info.model = " ".join(map(one_line, named)) or None
    known = {*_NUMBERS, *_OTHERS, *_TOLD}
    info.left += [f"{name}: {cut(one_line(value), 40)}" for name, value in pairs.items() if name not in known]
    return info


def _take_numbers(info: Infotext, pairs: Mapping[str, str]) -> None:
    said = [(limits, name, pairs[name]) for name, limits in _NUMBERS.items() if name in pairs]
    size = re.fullmatch(r"([0-9]+)x([0-9]+)", pairs.get("Size", ""))
    said += [
        (limits, "Size", number) for limits, number in zip((WIDTH, HEIGHT), size.groups() if size else (), strict=False)
    ]
    if _STRENGTH in pairs:  # of the second pass where there is one
        said.append((HIRES_STRENGTH if "Hires upscale" in pairs else STRENGTH, _STRENGTH, pairs[_STRENGTH]))
    for limits, name, text in said:
        value = limits.parse(text)
        if limits.problem(value):
            info.left.append(f"{name}: {cut(one_line(text), 40)}")
        else:
            info.options[limits.name] = limits.check(value)
    if pairs.get("Prompt weighting") in WEIGHTINGS:
        info.options["prompt_weighting"] = pairs["Prompt weighting"]


def _take_scheduler(info: Infotext, pairs: Mapping[str, str]) -> None:
    if "Sampler" not in pairs:
        return
    spacing = pairs.get("Schedule type", "Automatic")
    names = [f"{pairs['Sampler']} {spacing}", pairs["Sampler"]] if spacing != "Automatic" else [pairs["Sampler"]]
    for name in names:
        try:
            find_scheduler(name)
        except SdortError:
            info.left.append(f"Sampler: {cut(one_line(name), 40)}")
            continue
        info.options["scheduler"] = name
        return


def _take_task(info: Infotext, pairs: Mapping[str, str]) -> None:
    """What is no number of inpainting and of the second pass; sdort has two of A1111's upscalers."""
    area, upscaler = pairs.get("Inpaint area"), pairs.get("Hires upscaler")
    if area == "Only masked":
        info.options["only_masked"] = True
    elif area not in (None, "Whole picture"):
        info.left.append(f"Inpaint area: {cut(one_line(area), 40)}")
    if upscaler in _UPSCALERS:
        info.options["hires_upscale"] = _UPSCALERS[upscaler]
    elif upscaler is not None:
        info.left.append(f"Hires upscaler: {cut(one_line(upscaler), 40)}")
        if "hires" in info.options and not upscaler.startswith("Latent"):
            info.options["hires_upscale"] = UPSCALES[1]


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value
    return value
