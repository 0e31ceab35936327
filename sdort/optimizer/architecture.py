"""The parts of a component that its config promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sdort.errors import BadModelError
from sdort.families import part_counts
from sdort.families.component_names import CONTROLNET, DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER, T2I_ADAPTER
from sdort.families.family import Config
from sdort.families.known_families import TEXT_ENCODERS, find_denoiser


def architecture(config: Config, component: str) -> Counter[str]:
    """Count the architecture's parts; a key that is absent counts 0.

    Keys: ``attention_self``, ``attention_cross``, ``attention_causal`` (of the self attentions), ``group_norm``,
    ``group_norm_silu`` (of them, those followed by SiLU), ``conv``, ``layer_norm``, ``skip_layer_norm`` (of them,
    those whose input is a residual sum), ``geglu``, ``transformer``, ``gelu``, ``quick_gelu``.

    Args:
        config: the component's ``config.json``; both halves of a VAE share one.
        component: one of those that sdort exports.

    Raises:
        BadModelError: the config names a block or setting whose structure is not known, or lacks one.
    """
    builders: dict[str, Callable[[Config], Counter[str]]] = {
        **dict.fromkeys(TEXT_ENCODERS, part_counts.text_encoder),
        ENCODER: part_counts.vae_encoder,
        DECODER: part_counts.vae_decoder,
        CONTROLNET: part_counts.controlnet,
        T2I_ADAPTER: part_counts.t2i_adapter,
        IMAGE_ENCODER: part_counts.image_encoder,
        SAFETY_CHECKER: part_counts.safety_checker,
    }
    if denoiser := find_denoiser(component, config.get("_class_name")):
        builders[component] = denoiser.counts
    if component not in builders:
        raise BadModelError(f"no expected operators are known for a {component!r}", component=component)
    try:
        return builders[component](config)
    except KeyError as error:
        raise BadModelError(f"its config has no {error.args[0]!r}", component=component) from error
    except (IndexError, TypeError, ValueError) as error:
        raise BadModelError(f"its config contradicts itself: {error}", component=component) from error
