"""The parts that a pipeline's index names: all that are models are exported, but for those that are left out by rule.

A pipeline without one of its models is another pipeline, so that an export of the rest is an error and not a result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sdort.checkpoints.file_kind import EXPORTED
from sdort.checkpoints.weight_names import unet_variant
from sdort.errors import BadModelError
from sdort.exporter.signatures import FOLDERS, LIBRARIES, VAES
from sdort.families.component_names import IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.family import Denoiser
from sdort.families.known_families import DENOISER_CLASSES, DENOISERS, TEXT_ENCODERS
from sdort.families.text_models import TEXT_MODELS
from sdort.families.unet import EDITING, INPAINTING, UNET

VISION = "CLIPVisionModelWithProjection"

_CLASSES: Mapping[str, tuple[str, ...]] = {
    **{name: tuple(sorted(classes)) for name, classes in DENOISER_CLASSES.items()},
    "vae": VAES,
    **dict.fromkeys(TEXT_ENCODERS, tuple(TEXT_MODELS)),
    "controlnet": ("ControlNetModel",),
    "adapter": ("T2IAdapter",),
    IMAGE_ENCODER: (VISION,),
    SAFETY_CHECKER: ("StableDiffusionSafetyChecker",),
}
"""Part of a pipeline -> its classes that are exported."""
_WITHOUT_WEIGHTS = re.compile(
    r"diffusers(\.\w+)*\.\w*(Scheduler|ImageProcessor)"
    r"|(?!diffusers\.)\w+(\.\w+)*\.\w*(Scheduler|Tokenizer|Processor|FeatureExtractor)(Fast)?"
)
"""Libraries and classes of parts that are no models: they have settings and tables only. diffusers has models that it
calls tokenizers."""
_CLASS = re.compile(r"_*[A-Z]\w*", re.ASCII)


def exported_class(folder: str, class_name: Any) -> bool:
    """Whether a part of a pipeline is exported: by its folder's name and its class."""
    return isinstance(class_name, str) and class_name in LIBRARIES and class_name in _CLASSES.get(folder, ())


def check_parts(index: Mapping[str, Any], name: str) -> None:
    """Refuse a pipeline that has models which are not exported.

    Left out are safety checkers of classes that sdort does not know, which change no image, and the image encoder of a
    pipeline that is conditioned by text, which only IP-Adapters use: ``--ip-adapter`` exports it.

    Args:
        index: its ``model_index.json``.
        name: the pipeline's, for messages.

    Raises:
        BadModelError: it has; all of them are named.
    """
    parts = dict(model_parts(index))
    foreign = [part for part in parts if not _known(part, parts)]
    # Of a component's folder that holds another class, what follows says that, and of which component it is.
    usual = set(FOLDERS.values()) - {IMAGE_ENCODER, *DENOISERS} | {UNET.component}
    if not foreign or set(foreign) <= usual:
        return
    named = " and ".join(f"a {part} ({parts[part]})" for part in foreign)
    rest = [component for component, folder in FOLDERS.items() if folder in parts and folder not in foreign]
    alone = f" Parts of it alone: --component {' --component '.join(rest)}" if rest else ""
    raise BadModelError(
        f"{name} is a {index.get('_class_name', 'pipeline')} with {named}, which sdort does not export",
        hint=EXPORTED + alone,
    )


def _known(part: str, parts: Mapping[str, str]) -> bool:
    """Whether a part is exported, or left out by rule."""
    if part == IMAGE_ENCODER and not any(name in parts for name in TEXT_ENCODERS):
        return False
    return part == SAFETY_CHECKER or exported_class(part, parts[part])


def model_parts(index: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The parts of a pipeline that have weights: name and class."""
    for name, entry in index.items():
        # A library and a class; modular pipelines add settings. Other lists are settings of the pipeline.
        if name.startswith("_") or not isinstance(entry, list) or len(entry) not in (2, 3):
            continue
        library, class_name = entry[:2]
        if not isinstance(library, str) or not isinstance(class_name, str) or not _CLASS.fullmatch(class_name):
            continue
        if not _WITHOUT_WEIGHTS.fullmatch(f"{library}.{class_name}"):
            yield name, class_name


def check_channels(
    index: Mapping[str, Any], denoiser: Denoiser, unet: Mapping[str, Any], vae: Mapping[str, Any] | None
) -> None:
    """Refuse a pipeline whose UNet takes or makes other channels than text to image, inpainting and InstructPix2Pix do.

    Args:
        index: the pipeline's ``model_index.json``.
        denoiser: of its family.
        unet: the denoiser's config.
        vae: the VAE's; None for a pipeline without one.

    Raises:
        BadModelError: it does.
    """
    inputs, outputs = denoiser.channels_of(unet), denoiser.channels_of(unet, made=True)
    pipeline = str(index.get("_class_name"))
    variant = unet_variant(inputs, outputs)
    if variant not in (None, INPAINTING) and not (variant == EDITING and "InstructPix2Pix" in pipeline):
        raise BadModelError(
            f"the {denoiser.title} of a {pipeline} takes {inputs} channels and makes {outputs}, which sdort does not "
            "export",
            component=denoiser.component,
            hint=EXPORTED,
        )
    if vae and outputs != vae["latent_channels"]:
        raise BadModelError(
            f"it makes {outputs} channels, and the VAE decodes latents of {vae['latent_channels']}",
            component=denoiser.component,
            hint="The two are not of one pipeline, or of a kind that sdort does not export.",
        )
