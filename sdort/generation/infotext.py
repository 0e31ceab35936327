"""A1111's ``parameters`` text, which most programs and model sites write, as options of a generation.

    a lighthouse, (dusk:1.2)
    Negative prompt: people
    Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7, Seed: 5, Size: 512x768, Clip skip: 2

The prompt may have several lines; the last line has names and values, quoted as JSON where they hold commas or colons.
Forge, SD.Next, Fooocus and Civitai write the same with names of their own, and with JSON as it stands.
https://github.com/AUTOMATIC1111/stable-diffusion-webui, modules/infotext_utils.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sdort.errors import SdortError
from sdort.errors.number_ranges import (
    CLIP_SKIP,
    DEEP_CACHE,
    DEEP_CACHE_DEPTH,
    ETA,
    GUIDANCE,
    HEIGHT,
    HIRES,
    HIRES_STEPS,
    HIRES_STRENGTH,
    MASK_BLUR,
    MASK_PADDING,
    REFINER_START,
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

_NAME = re.compile(r"\s*(\w[\w \-/.+]*):\s*")
_STRING = re.compile(r'("(?:\\.|[^"\\])*")\s*(?:,|\Z)')
_PARAMETERS = re.compile(r"\s*Steps: ?[0-9]+,")
_BRACKETS = ("{", "[")
_NEGATIVE = "Negative prompt:"
_FEWEST = 3
"""Pairs of the last line; with fewer it is part of a prompt."""
_MOST_BROKEN = 100
"""Values of a line that begin as JSON and are none; of each Python's parser counts the lines before it."""

_NUMBERS: dict[str, Range[int] | Range[float]] = {
    "Steps": STEPS,
    "CFG scale": GUIDANCE,
    "Seed": SEED,
    "Clip skip": CLIP_SKIP,
    "Eta": ETA,
    "Eta DDIM": ETA,
    "Mask blur": MASK_BLUR,
    "Masked area padding": MASK_PADDING,
    "Variation seed": VARIATION_SEED,
    "Variation seed strength": VARIATION_STRENGTH,
    "Hires upscale": HIRES,
    "Hires steps": HIRES_STEPS,
    "Refiner switch at": REFINER_START,
    "Deep cache": DEEP_CACHE,
    "Deep cache depth": DEEP_CACHE_DEPTH,
}
"""A1111's name -> the option's range."""
_OTHERS = (
    "Size",
    "Prompt weighting",
    "Emphasis",
    "Sampler",
    "Schedule type",
    "Denoising strength",
    "Hires upscaler",
    "Inpaint area",
    "VAE",
    "VAE hash",
    "Civitai resources",
)
_STRENGTH = "Denoising strength"
_TOLD = {"Model", "Model hash", "Version", "RNG", "Created Date", "Civitai metadata", "Hashes", "Template",
         "Negative Template", "App", "Backend", "Pipeline", "Operations", "User", "Batch size",
         "Batch pos"}  # fmt: skip
"""Names whose values are no options, and change nothing or are told elsewhere. All others change the image."""
_OWN_VAE = ("None", "Automatic")
"""A1111's VAE -> the checkpoint's own."""
_EMPHASIS = {"Original": WEIGHTINGS[0], "None": "none"}
"""A1111's emphasis -> the option ``prompt_weighting``."""

_KNOWN = frozenset((*_NUMBERS, *_OTHERS, *_TOLD))
_CASES = {name.lower(): name for name in _KNOWN}
_USUAL_SPACING = dict.fromkeys(
    ("DPM++ 2M", "DPM++ SDE", "DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM2", "DPM2 a"), "Karras"
)
"""A1111's sampler -> the schedule type that it means by ``Automatic``; the noise schedule's own for others."""
_USUAL_SPACING["DPM++ 3M SDE"] = "Exponential"
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
    lines, pairs, behind = _divided(text.strip().split("\n"))
    start = next((number for number, line in enumerate(lines) if line.strip().startswith(_NEGATIVE)), len(lines))
    negative = "\n".join(lines[start:]).strip().removeprefix(_NEGATIVE).strip()
    info = Infotext({"prompt": _unquoted("\n".join(lines[:start]).strip()), "negative_prompt": _unquoted(negative)})
    _take_numbers(info, pairs)
    _take_weighting(info, pairs)
    _take_scheduler(info, pairs)
    _take_task(info, pairs)
    _tell_files(info, pairs)
    named = [pairs[name] for name in ("Model", "Model hash") if name in pairs]
    info.model = " ".join(map(one_line, named)) or None
    info.left += [*_unknown(pairs), *(cut(one_line(line), 40) for line in behind)]
    return info


def has_parameters(text: str) -> bool:
    """Whether a text has a line of parameters, and is not any note in a photograph."""
    return bool(_divided(text.strip().split("\n"))[1])


def _divided(lines: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """The lines of the prompts; the parameters, of the last line or of one that some program put more behind; that."""
    places = [len(lines) - 1, *(number for number, line in enumerate(lines) if _PARAMETERS.match(line))]
    for place in dict.fromkeys(places):
        pairs = _pairs(lines[place])
        if len(pairs) >= _FEWEST:
            return lines[:place], pairs, lines[place + 1 :]
    return lines, {}, []


def _pairs(line: str) -> dict[str, str]:
    """The parameters of a line, by A1111's names whatever their letters' case."""
    pairs: dict[str, str] = {}
    place = broken = 0
    while place < len(line):
        name = _NAME.match(line, place)
        if name:
            begin = name.end()
            end = _json_end(line, begin) if line[begin : begin + 1] in _BRACKETS and broken < _MOST_BROKEN else None
            broken += end == begin
            value, place = _value(line, begin, end or begin)
            pairs[_CASES.get(name[1].strip().lower(), name[1].strip())] = value
        else:
            place = (line.find(",", place) + 1) or len(line)
    return pairs


def _json_end(line: str, place: int) -> int:
    """Where the JSON value at a place of a line ends; the place itself for text that begins with a bracket."""
    try:
        return json.JSONDecoder().raw_decode(line, place)[1]
    except (ValueError, RecursionError):
        return place


def _value(line: str, place: int, end: int) -> tuple[str, int]:
    """The value at a place of a line, and where the next name begins.

    Args:
        end: of the JSON value that it begins with; the place itself without one.
    """
    quoted = _STRING.match(line, place)
    if quoted:
        return _unquoted(quoted[1]), quoted.end()
    comma = line.find(",", end)
    end = len(line) if comma < 0 else comma
    return line[place:end].strip(), end + 1


def _unknown(pairs: Mapping[str, str]) -> list[str]:
    """The parameters that sdort does not take over; many of one extension as one."""
    unknown = {name: value for name, value in pairs.items() if name not in _KNOWN}
    groups: dict[str, list[str]] = {}
    for name in unknown:
        groups.setdefault(name.split()[0], []).append(name)
    told = []
    for word, names in groups.items():
        value = cut(one_line(unknown[names[0]]), 40)
        told += (
            [f"{word} ({len(names)} settings)"]
            if len(names) > _FEWEST
            else [f"{names[0]}: {value}", *(f"{name}: {cut(one_line(unknown[name]), 40)}" for name in names[1:])]
        )
    return told


def _take_numbers(info: Infotext, pairs: Mapping[str, str]) -> None:
    said = [(limits, name, pairs[name]) for name, limits in _NUMBERS.items() if name in pairs]
    size = re.fullmatch(r"([0-9]+)\s*[x*]\s*([0-9]+)", pairs.get("Size", ""))
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
    if "Size" in pairs and not size:
        info.left.append(f"Size: {cut(one_line(pairs['Size']), 40)}")


def _take_weighting(info: Infotext, pairs: Mapping[str, str]) -> None:
    said = {"Emphasis": _EMPHASIS, "Prompt weighting": {name: name for name in WEIGHTINGS}}
    for name, known in said.items():
        value = pairs.get(name)
        if value in known:
            info.options["prompt_weighting"] = known[value]
        elif value is not None:
            info.left.append(f"{name}: {cut(one_line(value), 40)}")


def _tell_files(info: Infotext, pairs: Mapping[str, str]) -> None:
    """Files that change the image, whose place is another option's or none's."""
    vae = pairs.get("VAE", pairs.get("VAE hash"))
    if vae is not None and vae not in _OWN_VAE:
        info.left.append(f"VAE: {cut(one_line(vae), 40)}")
    if "Civitai resources" in pairs:
        info.left += [f"Civitai resource: {cut(one_line(each), 60)}" for each in _resources(pairs["Civitai resources"])]


def _resources(text: str) -> list[str]:
    """What Civitai lists beside the checkpoint, such as LoRAs with their weights."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        return [text]
    others = [each if isinstance(each, dict) else {"type": each} for each in listed]
    names = ("type", "modelName", "modelVersionId", "weight")
    return [
        " ".join(str(each[name]) for name in names if name in each)
        for each in others
        if each.get("type") != "checkpoint"
    ]


def _take_scheduler(info: Infotext, pairs: Mapping[str, str]) -> None:
    sampler, spacing = pairs.get("Sampler", "Default"), pairs.get("Schedule type")
    if spacing == "Automatic":
        spacing = _USUAL_SPACING.get(sampler)
    if sampler == "Default":  # SD.Next's name for the model's own
        info.left += [f"Schedule type: {cut(one_line(spacing), 40)}"] if spacing else []
        return
    names = [f"{sampler} {spacing}", sampler] if spacing else [sampler]
    # stable-diffusion.cpp writes the schedule behind the sampler: euler_a discrete.
    take_scheduler(info, "Sampler: ", [*names, *[sampler.rpartition(" ")[0]] * (" " in sampler)])


def take_scheduler(info: Infotext, word: str, names: Sequence[str]) -> None:
    """Take the first of several names of a scheduler that there is; those before it are told.

    Args:
        word: what a name is, for the message.
    """
    for name in names:
        try:
            find_scheduler(name)
        except SdortError:
            info.left.append(f"{word}{cut(one_line(name), 40)}")
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
