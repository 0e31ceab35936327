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
from sdort.errors.number_ranges import CLIP_SKIP, ETA, GUIDANCE, HEIGHT, SEED, STEPS, WIDTH, Range
from sdort.errors.plain_text import cut, one_line
from sdort.generation.prompt_syntax import WEIGHTINGS
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
}
"""A1111's name -> the option's range."""
_SAMPLING = ("Sampler", "Schedule type")
_TOLD = {"Model", "Model hash", "VAE", "VAE hash", "Version", "Size", "RNG", "Created Date", "Civitai resources",
         "Civitai metadata", "Prompt weighting", "Template", "Negative Template"}  # fmt: skip
"""Names whose values are no options, and change nothing or are told elsewhere."""


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
    named = [pairs[name] for name in ("Model", "Model hash") if name in pairs]
    info.model = " ".join(map(one_line, named)) or None
    known = {*_NUMBERS, *_SAMPLING, *_TOLD}
    info.left += [f"{name}: {cut(one_line(value), 40)}" for name, value in pairs.items() if name not in known]
    return info


def _take_numbers(info: Infotext, pairs: Mapping[str, str]) -> None:
    said = [(limits, name, pairs[name]) for name, limits in _NUMBERS.items() if name in pairs]
    size = re.fullmatch(r"([0-9]+)x([0-9]+)", pairs.get("Size", ""))
    said += [
        (limits, "Size", number) for limits, number in zip((WIDTH, HEIGHT), size.groups() if size else (), strict=False)
    ]
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


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value
    return value
