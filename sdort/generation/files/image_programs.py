"""The program that drew an image, by the forms of its notes; A1111's text and ComfyUI's graph alone are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sdort.errors.plain_text import cut, one_line
from sdort.files.json_text import parse_json
from sdort.generation.files.image_texts import XMP
from sdort.generation.files.infotext import has_parameters

COMFYUI = "ComfyUI"
UNKNOWN = "another program"

Texts = Mapping[str, str]
Object = Mapping[str, Any]


def _has(*keywords: str) -> Callable[[Texts, Object], bool]:
    """Texts of one of these keywords, or an object with such a key."""
    return lambda texts, value: not {*texts, *value}.isdisjoint(keywords)


def _says(name: str, *keywords: str) -> Callable[[Texts, Object], bool]:
    """A name in a text of one of these keywords."""
    return lambda texts, value: any(name in str(texts.get(each) or value.get(each) or "") for each in keywords)


def _is_graph(texts: Texts, value: Object) -> bool:
    """A graph of ComfyUI's as it saves it, or as model sites put it into the user comment."""
    graph = any(isinstance(each, dict) and "class_type" in each for each in value.values())
    return graph or "workflow" in texts or texts.get("prompt", "").lstrip().startswith("{")


_FORMS: tuple[tuple[str, Callable[[Texts, Object], bool]], ...] = (
    ("NovelAI", _says("NovelAI", "Software", "Title", "Source")),
    ("SwarmUI", _has("sui_image_params")),
    ("InvokeAI", _has("invokeai_metadata", "invokeai_graph", "invokeai_workflow", "sd-metadata", "Dream")),
    ("Draw Things", _says("Draw Things", XMP, "Software")),
    ("Draw Things", lambda _, value: {"c", "uc"} <= value.keys()),
    ("Easy Diffusion", _has("use_stable_diffusion_model", "num_inference_steps", "Stable Diffusion model")),
    ("RuinedFooocus", _says("RuinedFooocus", "software")),
    ("Fooocus", _has("fooocus_scheme")),
    ("Fooocus", _says("Fooocus", "version", "software")),
    ("Midjourney", _says("Job ID:", "Description")),
    ("TensorArt", _has("generation_data")),
    ("NovelAI", lambda texts, _: {"uc", "scale"} <= _object(texts.get("Comment", "")).keys()),
    (COMFYUI, _is_graph),
)
"""Program -> whether an image is its own, by the texts and the JSON object in ``parameters``; the first counts."""


def program_of(texts: Texts) -> str | None:
    """The program that drew an image whose texts are not A1111's; None if they are, or there are none."""
    parameters = texts.get("parameters", "")
    value = _object(parameters)
    if not value and has_parameters(parameters):
        return None
    found = next((program for program, is_own in _FORMS if is_own(texts, value)), None)
    if found or not value:
        return found
    named = next((value[key] for key in ("Software", "software", "app", "generator") if value.get(key)), None)
    return cut(one_line(named), 40) if isinstance(named, str) else UNKNOWN


def _object(text: str) -> Object:
    try:
        value = parse_json(text.encode(), constants=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
