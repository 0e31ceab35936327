"""The prediction of a checkpoint's UNet: noise (epsilon) or velocity (v), which its tensors' names do not say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdort.checkpoints.weight_names import SD2
from sdort.console import warn
from sdort.errors import BadModelError
from sdort.errors.plain_text import cut, one_line
from sdort.families.scheduler_configs import DDIM_V
from sdort.families.unet import INPAINTING
from sdort.files.input_file import read_input
from sdort.graph.weights import Weight

PREDICTIONS = ("epsilon", "v_prediction", "sample")
"""diffusers' names of what a UNet can predict."""

_MARKED = "up_blocks.3.attentions.2.transformer_blocks.0.norm1.bias"
_DEVIATION = 0.09
"""SD 2.x: standard deviation of this vector above which a UNet predicts velocity. Stability's two releases lie on the
two sides, and their descendants with them; ComfyUI tells them apart in this way too (``SD20.model_type`` of
https://github.com/comfyanonymous/ComfyUI/blob/master/comfy/supported_models.py)."""
_WIDEST = 1 << 16
"""Values of such a vector; those of SD 2.x have 320."""
_SPELLINGS = {
    **dict.fromkeys(("v", "vprediction", "vpred", "vparameterization", "vscaling", "velocity"), "v_prediction"),
    **dict.fromkeys(
        ("epsilon", "eps", "epsprediction", "epspred", "epsilonprediction", "epsscaling", "noise"), "epsilon"
    ),
    **dict.fromkeys(("x0", "sample", "original"), "sample"),
}
"""Predictions as programs write them, without case and punctuation -> diffusers' names: ``parameterization`` of
Stability-AI/stablediffusion, ``modelspec.prediction_type`` of Stability-AI/ModelSpec, ComfyUI's
``modelspec.predict_key``, kohya-ss/sd-scripts, OneTrainer; classes of ``denoiser_scaling.py`` of
Stability-AI/generative-models."""
_FOREIGN = re.compile(r"flow|rectifiedflow|.*edm")
"""Predictions of other processes of noise, such as ``VScalingWithEDMcNoise``."""
_KEYS = (
    "modelspec.predict_key",
    "modelspec.prediction_type",
    "ss_prediction_type",
    "prediction_type",
    "parameterization",
)
"""Keys of a file's metadata that say what its UNet predicts."""
_SWITCHES = ("ss_v_parameterization", "v_parameterization", "v_pred", "vpred")
"""Keys of a file's metadata that say whether it predicts velocity (kohya-ss/sd-scripts)."""
_ZERO_SNR_SWITCHES = ("ss_zero_terminal_snr", "zero_terminal_snr", "ztsnr", "zsnr", "rescale_betas_zero_snr")
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off", "none", "null", ""})
_YAML_BYTES = 1 << 20
_YAML_KEYS = ("parameterization", "denoiser_scaling")
"""Keys of the original's config: a value of its LatentDiffusion, and the module of a class; the first counts."""
_YAML_MARK = re.compile(rf"""\b({"|".join(_YAML_KEYS)})["']?(?:[ \t]*:[ \t]*["']?|\.)(\w+)""")


@dataclass(frozen=True)
class Prediction:
    """The prediction of a UNet, and how it is known."""

    kind: str
    """One of :data:`PREDICTIONS`."""
    reason: str | None = None
    """Why it was taken for that, where that can be wrong; None where it is certain."""
    scheduler: Mapping[str, Any] | None = None
    """The config of the release's scheduler, where it is not the family's usual one."""
    sample_size: int | None = None
    """Latents of a side, where they are not the family's usual ones."""


class Mark(NamedTuple):
    """A statement on what a UNet predicts."""

    place: str
    """Where it stands."""
    kind: str
    """One of :data:`PREDICTIONS`."""
    usual: bool = False
    """Whether it says nothing, which there means this: another mark goes before it."""


def find_prediction(
    family: str,
    variant: str | None,
    unet: Mapping[str, Weight],
    names: Collection[str],
    notes: Mapping[str, str],
    chosen: str | None,
    beside: Mark | None = None,
) -> Prediction:
    """Find the prediction of a UNet. Marks that contradict one another, and values that are not known, are told.

    Args:
        unet: its tensors by diffusers' names; of SD 2.x one vector is read.
        names: of all tensors of the file; one that is called ``v_pred`` is a mark.
        notes: the file's metadata.
        chosen: what the user says.
        beside: what the config beside the file says, see :func:`prediction_beside`.

    Raises:
        BadModelError: a mark is of another process of noise, such as flow matching.
    """
    if chosen:
        kind, reason = chosen, None
    else:
        kind, reason = _marked(_marks(names, notes, beside)) or _judge(family, variant, unet)
    if family == SD2 and kind == "v_prediction":
        return Prediction(kind, reason, DDIM_V, 96)  # 2.1 of 768 pixels
    return Prediction(kind, reason)


def prediction_beside(path: Path) -> Mark | None:
    """The prediction by the config of the original's training: AUTOMATIC1111 and ComfyUI look for a
    ``.yaml`` of the checkpoint's name beside it.

    Raises:
        BadModelError: it cannot be read, is too large for one, or names another process of noise.
    """
    config = path.with_suffix(".yaml")
    if not config.is_file():
        return None
    text = read_input(config, "the config", limit=_YAML_BYTES).decode(errors="replace")
    place, said = "the .yaml beside it", dict[str, str]()
    for line in text.splitlines():
        for mark in _YAML_MARK.finditer(line.partition("#")[0]):
            said.setdefault(mark[1], mark[2])
    kinds = [_kind(place, key, said[key]) for key in _YAML_KEYS if key in said]
    kind = next(filter(None, kinds), None)
    return Mark(place, kind or "epsilon", usual=kind is None)  # the default of the original's LatentDiffusion


def has_zero_snr(names: Collection[str], notes: Mapping[str, str]) -> bool:
    """Whether a file's tensors or metadata say that it was trained down to a signal of zero."""
    return "ztsnr" in names or any(_switched(key, notes) for key in _ZERO_SNR_SWITCHES)


def _marks(names: Collection[str], notes: Mapping[str, str], beside: Mark | None) -> Iterator[Mark]:
    """The marks of a file, the weightiest first."""
    if beside and not beside.usual:
        yield beside
    if "v_pred" in names:
        yield Mark("its tensor v_pred", "v_prediction")
    for key in _KEYS:
        if key in notes and (kind := _kind("its metadata", key, notes[key])):
            yield Mark(f"its metadata ({key})", kind)
    for key in _SWITCHES:
        if _switched(key, notes):
            yield Mark(f"its metadata ({key})", "v_prediction")
    if beside and beside.usual:
        yield beside


def _marked(marks: Iterable[Mark]) -> tuple[str, str | None] | None:
    """The prediction by marks, and why it may be wrong; None where there are none."""
    known = list(marks)
    if not known:
        return None
    first = known[0]
    if other := next((mark for mark in known if not mark.usual and mark.kind != first.kind), None):
        warn(
            f"marks contradict one another: {first.place} says {first.kind}, which is taken, and {other.place} says "
            f"{other.kind}; sdort export --prediction-type {other.kind} takes that"
        )
    return first.kind, f"says {first.place}" if first.place.endswith("beside it") else None


def _kind(place: str, key: str, value: str) -> str | None:
    """diffusers' name of what a value names; None, which is told, for one that is not known.

    Raises:
        BadModelError: it is of another process of noise.
    """
    text = re.sub(r"[^a-z0-9]", "", value[:100].lower())
    if _FOREIGN.match(text):
        raise BadModelError(
            f"{place} says that it predicts {cut(one_line(value))!r} ({key}), with which sdort does not draw",
            hint="Is that wrong? --prediction-type overrides it.",
        )
    if text not in _SPELLINGS and text not in _FALSE:
        warn(
            f"{place} has {key}: {cut(one_line(value))!r}, which sdort does not know; sdort export --prediction-type "
            "says it better"
        )
    return _SPELLINGS.get(text)


def _switched(key: str, notes: Mapping[str, str]) -> bool:
    """Whether a switch of a file's metadata is on; a value that is neither is told."""
    text = notes.get(key, "").strip().lower()
    if text not in _TRUE | _FALSE:
        warn(f"its metadata has {key}: {cut(one_line(notes[key]))!r}, which is neither true nor false")
    return text in _TRUE


def _judge(family: str, variant: str | None, unet: Mapping[str, Weight]) -> tuple[str, str | None]:
    """The prediction by the weights of a UNet without marks."""
    if family != SD2 or variant == INPAINTING:  # both releases for inpainting predict noise
        return "epsilon", None
    if _MARKED not in unet or len(unet[_MARKED].shape) != 1 or not 0 < unet[_MARKED].shape[0] <= _WIDEST:
        return "epsilon", f"it has no {_MARKED} that would tell"
    deviation = float(np.std(unet[_MARKED].load().astype(np.float64)))
    sign, kind = (">", "v_prediction") if deviation > _DEVIATION else ("<=", "epsilon")
    return kind, f"the deviation of its last self-attention's norm is {deviation:.3f} {sign} {_DEVIATION}"
