"""Configs of pipelines and components: read, checked, and reduced to what shapes a graph.

Two checkpoints of one architecture rarely have equal ``config.json`` files: they were saved by different versions
of diffusers, name different parents, and differ in what only matters in training. ``normalise`` makes them equal,
so that the second one finds the first one's trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sdort.exporter.signatures import LIBRARIES
from sdort.families.known_families import FAMILIES
from sdort.families.text_models import TEXT_MODELS
from sdort.machine.optional_packages import need_packages

# Arguments of the architectures that do not change the graph. Whatever is not listed is taken to change it.
_NO_EFFECT = {
    **{each.denoiser.class_name: set(each.denoiser.without_effect) for each in FAMILIES.values()},
    "AutoencoderKL": {
        "sample_size",
        "scaling_factor",
        "shift_factor",
        "latents_mean",
        "latents_std",
        "force_upcast",
    },
    "ControlNetModel": set(),
    "T2IAdapter": set(),
}
_NO_EFFECT["AutoencoderTiny"] = _NO_EFFECT["AutoencoderKL"] | {"latent_magnitude", "latent_shift"}
_OF_TRANSFORMERS = {
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dropout",
    "dropout_rate",
    "dtype",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers_version",
}
_NO_EFFECT |= dict.fromkeys(
    (*TEXT_MODELS, "CLIPVisionModelWithProjection", "StableDiffusionSafetyChecker"), _OF_TRANSFORMERS
)


DOWNLOAD_AGAIN = "Copy or download it again."
"""Advice where a file of a checkpoint is broken."""


def normalise(class_name: str, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with defaults filled in, without what the architecture does not take or the graph does not show."""
    kept = defaults.keys() - _NO_EFFECT[class_name]
    return {key: config.get(key, defaults[key]) for key in sorted(kept)}


def class_defaults(class_name: str) -> dict[str, Any]:
    """The arguments of an architecture and their defaults, as JSON values. Imports diffusers or transformers."""
    need_packages("diffusers", "transformers", what=f"the architecture {class_name}")
    if class_name in TEXT_MODELS:
        import transformers

        text = TEXT_MODELS[class_name]
        defaults = _public(getattr(transformers, text.config_class)()) | dict.fromkeys(text.derived)
    elif class_name == "CLIPVisionModelWithProjection":
        from transformers import CLIPVisionConfig

        defaults = {**_public(CLIPVisionConfig()), "projections": []}
    elif class_name == "StableDiffusionSafetyChecker":
        from transformers import CLIPVisionConfig

        defaults = _public(CLIPVisionConfig())
    else:
        import inspect
        from importlib import import_module

        module = import_module(LIBRARIES.get(class_name, "diffusers"))
        parameters = inspect.signature(getattr(module, class_name).__init__).parameters.values()
        defaults = {
            parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
        }
    # Tuples become lists, as they are in a config.json.
    parsed: dict[str, Any] = json.loads(json.dumps(defaults))
    return parsed


def _public(config: Any) -> dict[str, Any]:
    return {key: value for key, value in config.to_dict().items() if not key.startswith("_")}
