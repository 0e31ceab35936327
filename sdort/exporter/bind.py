"""A checkpoint's tensors bound to an architecture's parameters, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np

from sdort.errors import BadModelError
from sdort.errors.plain_text import some
from sdort.graph.weights import Cast, Weight
from sdort.tables import counted

_FLOATS = {np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}

# Tensors of older checkpoints that the architectures no longer have as parameters.
_IGNORED = (
    # CLIP: 0, 1, 2, ...; a buffer that transformers saved until 4.31.
    re.compile(r"(?:(?:text|vision)_model\.)*embeddings\.position_ids"),
    re.compile(r"logit_scale"),
    re.compile(r"lm_head\.weight"),  # what a language model has besides, to choose a token
)
_VISION = ("vision_model.", "visual_projection.")
"""CLIP's other half, where a folder of its text encoder holds the whole model: transformers leaves it out as well."""

# diffusers renamed the VAE's attention in 0.15 and still converts old checkpoints while it loads them
# (ModelMixin._fix_state_dict_keys_on_load).
_VAE_ATTENTION = re.compile(r"(.*\battentions\.\d+\.)(query|key|value|proj_attn)(\.\w+)")
# T5's table of tokens, which files may have under both of its names.
_TIED = {"shared.weight": "encoder.embed_tokens.weight"}
_VAE_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}

_HINT = "The file is incomplete, or the weights and the config (config.json) are not of the same model."


def bind(tensors: Mapping[str, Weight], parameters: Mapping[str, tuple[int, ...]], component: str) -> dict[str, Weight]:
    """The tensor of every parameter, as float32.

    Args:
        tensors: the checkpoint's tensors, by the names that it uses.
        parameters: the architecture's parameters with their shapes.
        component: for messages.

    Raises:
        BadModelError: a parameter has no tensor, a tensor has no parameter, or a shape or dtype does not fit.
    """
    bound: dict[str, Weight] = {}
    foreign = []
    for name, tensor in tensors.items():
        if _TIED.get(name) in tensors:
            continue
        parameter = next((known for known in _aliases(name) if known in parameters), None)
        if parameter is None:
            foreign.append(name)
        elif parameter in bound:
            raise BadModelError(
                f"the checkpoint has parameter {parameter!r} twice, also as {name!r}", component=component
            )
        else:
            bound[parameter] = tensor
    other_half = () if any(name.startswith(_VISION) for name in parameters) else _VISION
    foreign = [
        name
        for name in foreign
        if not name.startswith(other_half) and not any(pattern.fullmatch(name) for pattern in _IGNORED)
    ]
    missing = [name for name in parameters if name not in bound]
    if missing or foreign:
        raise _mismatch(missing, foreign, component)
    _check_shapes(bound, parameters, component)
    return {name: _as_float32(name, weight, component) for name, weight in bound.items()}


def _aliases(name: str) -> Iterator[str]:
    """``name``, and the same parameter's names in other versions of the libraries."""
    yield name
    # transformers 5 dropped CLIPTextModel's inner module of that name (CLIPTextModelWithProjection kept it).
    yield name.removeprefix("text_model.")
    yield f"text_model.{name}"
    # transformers 5 dropped CLIPVisionModel's too, which a safety checker has in a module of the same name.
    if name.startswith("vision_model."):
        yield name.removeprefix("vision_model.")
    if name in _TIED:
        yield _TIED[name]
    # A Qwen3Model of a checkpoint of Qwen3ForCausalLM, which has it beside the head.
    if name.startswith("model."):
        yield name.removeprefix("model.")
    old = _VAE_ATTENTION.fullmatch(name)
    if old:
        yield f"{old[1]}{_VAE_NAMES[old[2]]}{old[3]}"


def _mismatch(missing: list[str], foreign: list[str], component: str) -> BadModelError:
    parts = []
    if missing:
        parts.append(f"lacks {len(missing)} of the parameters that its config asks for ({some(missing)})")
    if foreign:
        parts.append(f"has {counted(len(foreign), 'tensor')} that its config has no place for ({some(foreign)})")
    return BadModelError(
        f"the checkpoint {' and '.join(parts)}",
        component=component,
        hint=_HINT,
    )


def _check_shapes(bound: Mapping[str, Weight], parameters: Mapping[str, tuple[int, ...]], component: str) -> None:
    wrong = [name for name, weight in bound.items() if weight.shape != tuple(parameters[name])]
    if wrong:
        name = min(wrong)
        raise BadModelError(
            f"the checkpoint has {counted(len(wrong), 'tensor')} of another shape than its config asks for: "
            f"{name!r} is {list(bound[name].shape)}, not {list(parameters[name])} ({some(wrong)})",
            component=component,
            hint=_HINT,
        )


def _as_float32(name: str, weight: Weight, component: str) -> Weight:
    if weight.dtype not in _FLOATS:
        raise BadModelError(
            f"parameter {name!r} is stored as {weight.dtype}, a quantized or foreign format",
            component=component,
            hint="Save the checkpoint as float32, float16 or bfloat16.",
        )
    return weight if weight.dtype == np.float32 else Cast(weight, np.float32)
