"""The classes of text encoders that are exported: transformers' models, and what their graphs and configs have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sdort.families import part_counts
from sdort.families.component_names import CLIP_SKIP
from sdort.families.family import Config
from sdort.families.graph_tensor import GraphTensor, size_of
from sdort.options.number_ranges import CLIP_SKIP as CLIP_SKIPS

CLIP, PROJECTED_CLIP, T5, QWEN3 = "CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel", "Qwen3Model"


@dataclass(frozen=True)
class TextModel:
    """A class of text encoders."""

    class_name: str
    """Its class in transformers."""
    config_class: str
    """The class of its config in transformers."""
    model_type: str
    """Its name in a config."""
    sources: str
    """The folder of its code in ``transformers.models``."""
    required: tuple[str, ...]
    """Entries that every published config of it has."""
    outputs: Callable[[Config, bool], Sequence[GraphTensor]]
    """The outputs of its graph by its config, and by whether those of all layers condition."""
    counts: Callable[[Config], Counter[str]]
    """The operators that its config promises: :func:`sdort.optimizer.expected.architecture`."""
    settings: Config
    """Arguments of its config that shape its trace, and not what it computes."""
    penultimate: bool = False
    """Its graph ends before its last layer, with ``hidden_states[-2]``."""
    derived: tuple[str, ...] = ()
    """Entries of a config that the class makes of others where they are missing, so that none has a default."""


def _clip(config: Config, hidden_states: bool) -> list[GraphTensor]:
    width, layers = size_of(config, "hidden_size"), size_of(config, "num_hidden_layers")
    outputs = [_states("last_hidden_state", width), GraphTensor("pooler_output", "float32", ("batch_size", width))]
    if hidden_states:
        return [*outputs, *_all_states(width, layers)]
    skips = range(2, min(layers, CLIP_SKIPS.high) + 1)
    return [*outputs, *(_states(f"{CLIP_SKIP}.{skip}", width) for skip in skips)]


def _projected_clip(config: Config, hidden_states: bool) -> list[GraphTensor]:
    width, layers = size_of(config, "hidden_size"), size_of(config, "num_hidden_layers")
    # The pipelines take the pooled output by its position, the first.
    pooled = GraphTensor("text_embeds", "float32", ("batch_size", size_of(config, "projection_dim")))
    return [pooled, _states("last_hidden_state", width), *(_all_states(width, layers) if hidden_states else ())]


def _t5(config: Config, hidden_states: bool) -> list[GraphTensor]:
    return [_states("last_hidden_state", size_of(config, "d_model"))]


def _qwen3(config: Config, hidden_states: bool) -> list[GraphTensor]:
    # Its last layer chooses the next token: pipelines read what comes before.
    return [_states(f"hidden_states.{size_of(config, 'num_hidden_layers') - 1}", size_of(config, "hidden_size"))]


def _all_states(width: int, layers: int) -> list[GraphTensor]:
    return [_states(f"hidden_states.{index}", width) for index in range(layers + 1)]


def _states(name: str, width: int) -> GraphTensor:
    return GraphTensor(name, "float32", ("batch_size", "sequence_length", width))


_CLIP_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "vocab_size",
)
# sdpa is what the exporter turns into one Attention; the eager path becomes a dozen operators.
_SDPA = {"attn_implementation": "sdpa"}

TEXT_MODELS = {
    model.class_name: model
    for model in (
        TextModel(
            CLIP, "CLIPTextConfig", "clip_text_model", "clip", _CLIP_KEYS, _clip, part_counts.text_encoder, _SDPA
        ),
        TextModel(
            PROJECTED_CLIP,
            "CLIPTextConfig",
            "clip_text_model",
            "clip",
            _CLIP_KEYS,
            _projected_clip,
            part_counts.text_encoder,
            _SDPA,
        ),
        TextModel(
            T5,
            "T5Config",
            "t5",
            "t5",
            ("d_model", "d_kv", "d_ff", "num_layers", "num_heads", "feed_forward_proj", "vocab_size"),
            _t5,
            part_counts.t5_encoder,
            {"is_encoder_decoder": False, "use_cache": False, **_SDPA},
        ),
        TextModel(
            QWEN3,
            "Qwen3Config",
            "qwen3",
            "qwen3",
            (
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "rms_norm_eps",
                "hidden_act",
                "vocab_size",
            ),
            _qwen3,
            part_counts.qwen3,
            {"use_cache": False, **_SDPA},
            penultimate=True,
            derived=("layer_types", "rope_parameters", "rope_scaling", "rope_theta"),
        ),
    )
}
"""Class -> what is known of it."""


def text_counts(config: Config) -> Counter[str]:
    """The operators that a text encoder's config promises; one that names no model is CLIP's."""
    kinds = {model.model_type: model.counts for model in TEXT_MODELS.values()}
    return kinds.get(str(config.get("model_type")), part_counts.text_encoder)(config)
