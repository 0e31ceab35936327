"""A1111's ``parameters`` text, which most programs and model sites write: read as options, and written of a record.

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdort.errors import SdortError
from sdort.errors.plain_text import cut, one_line
from sdort.generation.prompts.prompt_syntax import WEIGHTINGS
from sdort.generation.requests.record import GenerationRecord
from sdort.generation.requests.request import UPSCALES
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.options.declared_options import Option, declared
from sdort.samplers.sampler_names import a1111_sampler
from sdort.samplers.scheduler_names import find_scheduler

_NAME = re.compile(r"\s*(\w[\w \-/.+]*):\s*")
_STRING = re.compile(r'("(?:\\.|[^"\\])*")\s*(?:,|\Z)')
_PARAMETERS = re.compile(r"\s*Steps: ?[0-9]+,")
_BRACKETS = ("{", "[")
_NEGATIVE = "Negative prompt:"
_FEWEST = 3
"""Pairs of the last line; with fewer it is part of a prompt."""
_MOST_BROKEN = 100
"""Values of a line that begin as JSON and are none; of each Python's parser counts the lines before it."""

_OPTIONS = declared(DrawnOptions)
_NAMED = {name: option for option in _OPTIONS.values() for name in option.a1111}
"""A1111's name -> the option."""
_OTHERS = (
    "Size",
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

_KNOWN = frozenset((*_NAMED, *_OTHERS, *_TOLD))
_CASES = {name.lower(): name for name in _KNOWN}
USUAL_SPACING = dict.fromkeys(
    ("DPM++ 2M", "DPM++ SDE", "DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM2", "DPM2 a"), "Karras"
)
"""A1111's sampler -> the schedule type that it means by ``Automatic``; the noise schedule's own for others."""
USUAL_SPACING["DPM++ 3M SDE"] = "Exponential"
_UPSCALERS = {"Latent": UPSCALES[0], "Lanczos": UPSCALES[1]}
"""A1111's upscaler -> the option ``hires_upscale``; others that enlarge the image are like ``image``, and told."""


@dataclass
class Infotext:
    """The contents of a ``parameters`` text."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of a generation, ``prompt`` among them."""
    model: str | None = None
    """The model's name and hash."""
    left: list[str] = field(default_factory=list)
    """Settings that sdort does not take over."""


def read_infotext(text: str) -> Infotext:
    """The options in a ``parameters`` text."""
    lines, pairs, behind = _divided(text.strip().split("\n"))
    start = next((number for number, line in enumerate(lines) if line.strip().startswith(_NEGATIVE)), len(lines))
    negative = "\n".join(lines[start:]).strip().removeprefix(_NEGATIVE).strip()
    info = Infotext({"prompt": _unquoted("\n".join(lines[:start]).strip()), "negative_prompt": _unquoted(negative)})
    _take_options(info, pairs)
    _take_emphasis(info, pairs)
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


def _take_options(info: Infotext, pairs: Mapping[str, str]) -> None:
    said = [(_NAMED[name], name, text) for name, text in pairs.items() if name in _NAMED]
    size = re.fullmatch(r"([0-9]+)\s*[x*]\s*([0-9]+)", pairs.get("Size", ""))
    sides = zip(("width", "height"), size.groups() if size else (), strict=False)
    said += [(_OPTIONS[side], "Size", number) for side, number in sides]
    if _STRENGTH in pairs:  # of the second pass where there is one
        name = "hires_strength" if "Hires upscale" in pairs else "strength"
        said.append((_OPTIONS[name], _STRENGTH, pairs[_STRENGTH]))
    for option, name, text in said:
        value = option.range.parse(text) if option.range else text
        take(info, option, value, f"{name}: {cut(one_line(text), 40)}")
    if "Size" in pairs and not size:
        info.left.append(f"Size: {cut(one_line(pairs['Size']), 40)}")


def take(info: Infotext, option: Option, value: Any, told: str) -> None:
    """Take the value of an option that is a number or one of some texts.

    Args:
        told: what is left of the image where the option has no such value.
    """
    if option.range and not option.range.problem(value):
        info.options[option.name] = option.range.check(value)
    elif value in option.choices:
        info.options[option.name] = value
    else:
        info.left.append(told)


def _take_emphasis(info: Infotext, pairs: Mapping[str, str]) -> None:
    emphasis = pairs.get("Emphasis")
    if emphasis in _EMPHASIS:
        info.options.setdefault("prompt_weighting", _EMPHASIS[emphasis])
    elif emphasis is not None:
        info.left.append(f"Emphasis: {cut(one_line(emphasis), 40)}")


def _tell_files(info: Infotext, pairs: Mapping[str, str]) -> None:
    """Files that change the image, whose place is another option's or none's."""
    vae = pairs.get("VAE", pairs.get("VAE hash"))
    if vae is not None and vae not in _OWN_VAE:
        info.left.append(f"VAE: {cut(one_line(vae), 40)}")
    if "Civitai resources" in pairs:
        info.left += [f"Civitai resource: {cut(one_line(each), 60)}" for each in _resources(pairs["Civitai resources"])]


def _resources(text: str) -> list[str]:
    """Resources that Civitai lists beside the checkpoint, such as LoRAs with their weights."""
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
        spacing = USUAL_SPACING.get(sampler)
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
    """Take settings of inpainting and of the second pass that are no numbers; sdort has two of A1111's upscalers."""
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
    }
    fields |= _other_options(record, fields) | {
        "Lora hashes": ", ".join(f"{Path(one.name).stem}: {one.tensors_sha256[:12]}" for one in record.lora) or None,
        "Template": dict(record.templates).get("prompt"),
        "Negative Template": dict(record.templates).get("negative_prompt"),
        "Version": f"sdort {record.versions['sdort']}",
    }
    values = {name: str(value) for name, value in fields.items() if value is not None}
    lines.append(", ".join(f"{name}: {parameter_value(text)}" for name, text in values.items()))
    return "\n".join(lines)


def _other_options(record: GenerationRecord, written: Collection[str]) -> dict[str, object]:
    """Options by A1111's names that are not written yet and differ from their defaults."""
    named = {option.a1111[0]: option for option in declared(DrawnOptions).values() if option.a1111}
    values = {name: (getattr(record, option.name), option.default) for name, option in named.items()}
    return {name: value for name, (value, default) in values.items() if name not in written and value != default}


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


_NAMES = ("negative prompt", "sampler", "schedule type", "size", "model hash", "model", "version", "hashes", "template",
          *(option.a1111[0] for option in declared(DrawnOptions).values() if option.a1111))  # fmt: skip
_PARAMETER = re.compile(rf"\b({'|'.join(map(re.escape, _NAMES))})\s*:", re.IGNORECASE)


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
