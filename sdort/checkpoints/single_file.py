"""A single-file checkpoint: its family, and each component's config and tensors in diffusers' names.

Only headers are read; of SD 2.x a vector in addition, see :mod:`sdort.checkpoints.prediction`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sdort.checkpoints.file_kind import EXPORTED
from sdort.checkpoints.layout import (
    clip_tensors,
    denoiser_tensors,
    tiny_vae_tensors,
    unet_tensors,
    vae_tensors,
)
from sdort.checkpoints.prediction import (
    Prediction,
    find_prediction,
    has_zero_snr,
    prediction_beside,
)
from sdort.checkpoints.safetensors import read_header, read_tensors
from sdort.checkpoints.scaled_tensors import dequantized
from sdort.checkpoints.shape_configs import (
    PLAIN_CONFIGS,
    Config,
    count_text_layers,
    text_config,
    tiny_vae_config,
    unet_config,
    vae_config,
)
from sdort.checkpoints.weight_names import (
    LATENTS,
    LDM_UNET,
    VAE_PREFIXES,
    FoundDenoiser,
    find_denoiser,
    recognise_tensors,
    unwrapped,
)
from sdort.console import warn
from sdort.errors import BadModelError
from sdort.errors.plain_text import some
from sdort.families.family import Encoder, Family, Shapes
from sdort.families.known_families import FAMILIES
from sdort.families.scheduler_configs import EDM, EDM_VAE, ZERO_SNR
from sdort.families.unet import UNET
from sdort.graph.weights import Inline, Stored, Weight

EMA = "model_ema."
"""Stands before the names of averaged weights, whose further dots are left out: ``model_ema.diffusion_modelout2bias``
(``ema.py`` of CompVis/latent-diffusion)."""
_LAST_NORM, _NO_SCALE = "conv_norm_out.weight", 0.02
VISION_HALF = ("vision_model.", "visual_projection.", "visual.")
"""Beginnings of the names of CLIP's image encoder, in the names of transformers and OpenCLIP."""
_UNREAD = re.compile(
    # Schedules, which follow from the scheduler's config; marks; buffers and parts that are for training.
    r"\.?((.*_)?(betas|alphas_cumprod(_prev)?|one_minus_alphas_cumprod|recip(m1)?_alphas_cumprod)"
    r"|posterior_.*|logvar|lvlb_weights|scale_factor|global_step|denoiser\..*|model_ema\..*"
    r"|v_pred|ztsnr|edm_(mean|std)|.*\.(position_ids|logit_scale)|(.*\.)?loss\..*)"
)


@dataclass
class SingleFile:
    """A single-file checkpoint, its weights described and not read."""

    path: Path
    family: Family
    variant: str | None
    """The kind of input that its UNet takes beside latents: ``inpainting``; None for none."""
    prediction: Prediction | None
    """The prediction of a UNet; None for a model of flow matching, which has one kind."""
    tensors: dict[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Folder of a component -> its tensors by diffusers' or transformers' names."""
    configs: dict[str, Config] = field(default_factory=dict)
    """Folder of a component -> its ``config.json``."""
    scheduler: Config = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    """Names of tensors that belong to no component."""
    has_ema: bool = False
    """Whether it has averaged weights of the UNet beside the others."""

    @property
    def lacks(self) -> list[str]:
        """The folders of components that its family has and the file has not."""
        parts = [*(part.component for part in self.family.encoders), "vae"]
        return [name for name in parts if name not in self.tensors]


def read_single_file(path: Path, *, ema: bool = False, prediction_type: str | None = None) -> SingleFile:
    """The components of a file that holds a denoiser, in the layout of its authors or diffusers, and perhaps more.

    Args:
        path: the file, which :func:`sdort.checkpoints.file_kind.recognise_file` takes for a checkpoint or a UNet.
        ema: read the averaged weights of the UNet.
        prediction_type: what the UNet predicts, where the user knows it.

    Raises:
        BadModelError: it is broken, incomplete, or of a kind that sdort does not export.
    """
    header = read_header(path)
    transformer = find_denoiser(header.shapes)
    if transformer and ema:
        raise BadModelError(f"{path}: it has no averaged weights (model_ema.)", hint="Leave out --ema.")
    tensors = unwrapped(read_tensors(path, fp8=transformer is not None))
    try:
        if transformer:
            return _read_transformer(path, transformer, dequantized(tensors))
        return _read(path, tensors, header.notes, ema, prediction_type)
    except BadModelError as error:
        error.message = f"{path}: {error.message}"
        raise


def _read(
    path: Path, tensors: Mapping[str, Stored], notes: Mapping[str, str], ema: bool, prediction_type: str | None
) -> SingleFile:
    prefix = LDM_UNET if any(map(_begins(LDM_UNET), tensors)) else ""
    if not prefix and any(map(_begins(EMA), tensors)):
        raise BadModelError(
            f"it has averaged weights ({EMA}) alone, whose names are not those of a UNet",
            hint="Get the checkpoint with the UNet's own weights, or its emaonly release.",
        )
    unet = unet_tensors(_averaged(tensors) if ema else _within(tensors, prefix))
    config, variant = unet_config(_shapes(unet)), _variant(tensors)
    family = _family(_shapes(unet))
    if variant not in family.pipelines and variant is not None:
        raise BadModelError(f"it is a {family.name} model ({variant}), which sdort does not export", hint=EXPORTED)
    beside = None if prediction_type else prediction_beside(path)
    found = find_prediction(family.name, variant, unet, tensors, notes, prediction_type, beside)
    file = SingleFile(
        path, family, variant, found, {UNET.component: unet}, scheduler=_scheduler(family, found, tensors, notes)
    )
    file.has_ema = any(name.startswith(EMA) for name in tensors)
    file.configs[UNET.component] = {**config, "sample_size": found.sample_size or family.sample_size}
    used = {name for name in tensors if name.startswith(prefix)}
    if prefix:
        for part in family.encoders:
            used |= _add_text_encoder(file, part, tensors)
        used |= _add_vae(file, tensors)
    if len(file.tensors) == 1:
        _refuse_differences(unet)
    _check_latents(file)
    file.unread = tuple(name for name in tensors if name not in used and not _UNREAD.fullmatch(name))
    return file


def _read_transformer(path: Path, found: FoundDenoiser, tensors: Mapping[str, Weight]) -> SingleFile:
    family, denoiser = found.family, found.family.denoiser
    assert denoiser.layers is not None
    assert denoiser.config_of is not None
    used = set(found.names(tensors))
    inner = {name.removeprefix(found.prefix): tensors[name] for name in tensors if name in used}
    weights = denoiser_tensors(_without_rest(inner), denoiser.layers)
    config = {**denoiser.config_of(_shapes(weights)), "sample_size": family.sample_size}
    scheduler = family.scheduler_of(config) if family.scheduler_of else family.scheduler
    file = SingleFile(path, family, None, None, {denoiser.component: weights}, scheduler=dict(scheduler))
    file.configs[denoiser.component] = config
    for part in family.encoders:
        used |= _add_text_encoder(file, part, tensors)
    used |= _add_vae(file, tensors)
    _check_latents(file)
    file.unread = tuple(name for name in tensors if name not in used and not _UNREAD.fullmatch(name))
    return file


def _refuse_differences(unet: Mapping[str, Weight]) -> None:
    """Raise where a lone UNet's values are differences, which are added to another model's, as those of IC-Light.

    The scales of a norm are about 1 after any training, and their differences about 0.
    """
    scales = unet.get(_LAST_NORM)
    if scales and abs(float(np.mean(scales.load().astype(np.float64)))) < _NO_SCALE:
        raise BadModelError(
            f"it holds differences of weights and no UNet (the scales of {_LAST_NORM} are 0 on average), such as "
            "IC-Light's",
            hint="Add them to the model that they are for, and save that.",
        )


def _check_latents(file: SingleFile) -> None:
    denoiser = file.family.denoiser
    made = denoiser.channels_of(file.configs[denoiser.component], made=True)
    decoded = file.configs.get("vae", {}).get("latent_channels")
    if decoded not in (None, made):
        raise BadModelError(
            f"its {denoiser.title} makes {made} channels, and its VAE decodes latents of {decoded}: it is of a "
            "kind that sdort does not export",
            hint=EXPORTED,
        )


def _family(shapes: Shapes) -> Family:
    """The family of a UNet, by what distinguishes its structure."""
    unets = (family for family in FAMILIES.values() if family.denoiser is UNET)
    return next(family for family in unets if family.holds(shapes))


def _variant(tensors: Mapping[str, Stored]) -> str | None:
    variant = recognise_tensors({name: tensor.shape for name, tensor in tensors.items()}).variant
    return None if variant == "v-prediction" else variant


def _scheduler(family: Family, prediction: Prediction, names: Mapping[str, Stored], notes: Mapping[str, str]) -> Config:
    if "edm_vpred.sigma_max" in names:
        raise BadModelError("it is a CosXL model, whose continuous noise levels sdort does not know", hint=EXPORTED)
    if "edm_mean" in names:
        return dict(EDM)
    usual = {**(prediction.scheduler or family.scheduler), "prediction_type": prediction.kind}
    if not has_zero_snr(names, notes):
        return usual
    if prediction.kind == "epsilon":
        warn(
            "it is marked as trained down to a signal of zero (zero terminal SNR), and as predicting noise, which "
            "tells nothing there: the usual noise levels are taken; sdort export --prediction-type v_prediction if it "
            "predicts velocity"
        )
        return usual
    # diffusers' PNDM has no such setting.
    own = "DDIMScheduler" if usual["_class_name"] == "PNDMScheduler" else usual["_class_name"]
    return {**usual, **ZERO_SNR, "_class_name": own}


def _averaged(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """The UNet's averaged weights, by the names of the others."""
    names = {name: EMA + name.removeprefix("model.").replace(".", "") for name in tensors if name.startswith(LDM_UNET)}
    missing = [flat for flat in names.values() if flat not in tensors]
    if missing:
        what = "no averaged weights (model_ema.)" if len(missing) == len(names) else f"no {some(missing)}"
        raise BadModelError(f"it has {what}", hint="Leave out --ema.")
    return {name.removeprefix(LDM_UNET): tensors[flat] for name, flat in names.items()}


def _add_text_encoder(file: SingleFile, part: Encoder, tensors: Mapping[str, Weight]) -> set[str]:
    prefix = next((prefix for prefix in part.prefixes if any(map(_begins(prefix), tensors))), None)
    if prefix is None:
        return set()
    add_encoder(file, part, _within(tensors, prefix))
    return {name for name in tensors if name.startswith(prefix) and not name.startswith(VISION_HALF, len(prefix))}


def add_encoder(file: SingleFile, part: Encoder, tensors: Mapping[str, Weight]) -> None:
    """Add a text encoder to a file's components.

    Args:
        part: which one.
        tensors: its tensors by the names of OpenCLIP or transformers; CLIP's image encoder may be beside them.

    Raises:
        BadModelError: they are not those of such an encoder.
    """
    if of_shapes := PLAIN_CONFIGS.get(part.class_name):
        file.tensors[part.component] = _without_rest(tensors)
        file.configs[part.component] = {**part.config, **of_shapes(_shapes(tensors))}
        return
    inner = {name: tensor for name, tensor in tensors.items() if not name.startswith(VISION_HALF)}
    original = any(name.startswith("transformer.resblocks.") for name in inner)
    encoder = clip_tensors(_without_rest(inner))
    layers = count_text_layers(_shapes(encoder))
    if part.class_name == "CLIPTextModel":
        encoder.pop("text_projection.weight", None)
    elif not part.projected:
        encoder["text_projection.weight"] = _identity(_shapes(encoder))
    if original and layers == part.unused:
        layers -= 1
        encoder = {name: tensor for name, tensor in encoder.items() if not name.startswith(f"encoder.layers.{layers}.")}
    config = text_config(_shapes(encoder), part.activation, layers)
    file.tensors[part.component] = encoder
    file.configs[part.component] = {**part.config, **config}


def read_encoder_file(path: Path, file: SingleFile, part: Encoder) -> None:
    """Add the text encoder of a file of its own to a single file.

    Args:
        part: which one.

    Raises:
        BadModelError: it is broken, or another encoder.
    """
    tensors = read_tensors(path, fp8=True)
    try:
        add_encoder(file, part, dequantized(tensors))
    except BadModelError as error:
        error.message = f"{path}, given as {part.component}: {error.message}"
        error.hint = f"The {part.component} of {file.family.name} is a {part.class_name}: give a whole file of one."
        raise


def _identity(shapes: Shapes) -> Weight:
    """The projection of a pooled output that is taken as it is."""
    [width] = {shape[-1] for name, shape in shapes.items() if name.endswith("final_layer_norm.weight")} or {0}
    return Inline(np.eye(width, dtype=np.float32))


def _add_vae(file: SingleFile, tensors: Mapping[str, Weight]) -> set[str]:
    prefix = next((prefix for prefix in VAE_PREFIXES if any(map(_begins(f"{prefix}decoder."), tensors))), None)
    if prefix is None:
        return set()
    vae = vae_tensors(_without_rest(_within(tensors, prefix)))
    scales = _edm_scales(tensors)
    file.tensors["vae"] = vae
    file.configs["vae"] = {**vae_config(_shapes(vae)), **file.family.vae, **scales}
    return {name for name in tensors if name.startswith(prefix)}


def _edm_scales(tensors: Mapping[str, Weight]) -> Config:
    """Config that scales the latents of an EDM model: Playground v2.5, with its file's means and deviations."""
    if "edm_mean" not in tensors:
        return {}
    own = {
        key: [float(value) for value in np.ravel(tensors[name].load())]
        for key, name in (("latents_mean", "edm_mean"), ("latents_std", "edm_std"))
        if name in tensors and math.prod(tensors[name].shape) == LATENTS
    }
    return {**EDM_VAE, **own}


def read_vae_file(path: Path) -> tuple[Config, Mapping[str, Weight]]:
    """The config and the tensors of a file that holds a VAE: ``AutoencoderKL``, or TAESD as ``AutoencoderTiny``.

    An ``AutoencoderKL``'s config is without what scales its latents, which depends on its family.

    Raises:
        BadModelError: it is broken, incomplete, or holds no VAE.
    """
    tensors: Mapping[str, Stored] = read_tensors(path)
    try:
        return _read_vae(path, tensors)
    except BadModelError as error:
        error.message = f"{path}: {error.message}"
        raise


def _read_vae(path: Path, tensors: Mapping[str, Stored]) -> tuple[Config, Mapping[str, Weight]]:
    if any(re.match(r"((en|de)coder\.(layers\.)?)?\d+\.conv\.", name) for name in tensors):
        tiny = tiny_vae_tensors(_both_halves(path, tensors))
        return tiny_vae_config(_shapes(tiny)), tiny
    prefix = next((prefix for prefix in VAE_PREFIXES if any(map(_begins(f"{prefix}decoder."), tensors))), "")
    vae = vae_tensors(_without_rest(_within(tensors, prefix)))
    return vae_config(_shapes(vae)), vae


def _both_halves(path: Path, tensors: Mapping[str, Stored]) -> Mapping[str, Stored]:
    """TAESD's encoder and decoder come as two files, of which one is given and the other lies beside it."""
    if not any(re.match(r"\d+\.", name) for name in tensors):
        return tensors
    halves = {half: path.with_name(re.sub("encoder|decoder", half, path.name)) for half in ("encoder", "decoder")}
    if len(set(halves.values())) != 2 or not all(half.is_file() for half in halves.values()):
        raise BadModelError(
            "it is one half of a TAESD, and the other one is not beside it",
            hint="Put both into one folder: taesd_encoder.safetensors and taesd_decoder.safetensors.",
        )
    return {f"{half}.{name}": tensor for half, file in halves.items() for name, tensor in read_tensors(file).items()}


def _within(tensors: Mapping[str, Weight], prefix: str) -> dict[str, Weight]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _without_rest(tensors: Mapping[str, Weight]) -> dict[str, Weight]:
    """The tensors without buffers and parts that are for training."""
    return {name: tensor for name, tensor in tensors.items() if not _UNREAD.fullmatch(f".{name}")}


def _begins(prefix: str) -> Any:
    return lambda name: name.startswith(prefix)


def _shapes(tensors: Mapping[str, Weight]) -> Shapes:
    return {name: tensor.shape for name, tensor in tensors.items()}
