"""What a checkpoint's UNet predicts: noise (epsilon) or velocity (v), which its tensors' names do not say."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdort.machine.input_file import read_input
from sdort.model.weights import Weight
from sdort.pipelines.checkpoints.releases import DDIM_V
from sdort.pipelines.weight_names import INPAINTING, SD2

PREDICTIONS = ("epsilon", "v_prediction", "sample")
"""diffusers' names of what a UNet can predict."""

_MARKED = "up_blocks.3.attentions.2.transformer_blocks.0.norm1.bias"
_DEVIATION = 0.09
"""SD 2.x: standard deviation of this vector above which a UNet predicts velocity. Stability's two releases lie on the
two sides, and their descendants with them; ComfyUI tells them apart in this way too (``SD20.model_type`` of
https://github.com/comfyanonymous/ComfyUI/blob/master/comfy/supported_models.py)."""
_PARAMETERIZATIONS = {"v": "v_prediction", "eps": "epsilon", "x0": "sample"}
"""Values of ``parameterization`` (``ddpm.py`` of Stability-AI/stablediffusion) -> diffusers' names."""
_YAML_BYTES = 1 << 20
_SPEC = {"v": "v_prediction", "epsilon": "epsilon"}
"""Values of ``modelspec.prediction_type`` (https://github.com/Stability-AI/ModelSpec) -> diffusers' names."""


@dataclass(frozen=True)
class Prediction:
    """What a UNet predicts, and how that is known."""

    kind: str
    """One of :data:`PREDICTIONS`."""
    reason: str | None = None
    """Why it was taken for that, where that can be wrong; None where it is certain."""
    scheduler: Mapping[str, Any] | None = None
    """The config of the release's scheduler, where it is not the family's usual one."""
    sample_size: int | None = None
    """Latents of a side, where they are not the family's usual ones."""


def find_prediction(
    family: str,
    variant: str | None,
    unet: Mapping[str, Weight],
    names: Collection[str],
    notes: Mapping[str, str],
    chosen: str | None,
    beside: str | None = None,
) -> Prediction:
    """What a UNet predicts.

    Args:
        unet: its tensors by diffusers' names; of SD 2.x one vector is read.
        names: of all tensors of the file; one that is called ``v_pred`` is a mark.
        notes: the file's metadata.
        chosen: what the user says.
        beside: what the config beside the file says, see :func:`prediction_beside`.
    """
    kind, reason = _judge(family, variant, unet, names, notes, chosen)
    if beside and not chosen:
        kind, reason = beside, "says the .yaml beside it"
    if family == SD2 and kind == "v_prediction":
        return Prediction(kind, reason, DDIM_V, 96)  # 2.1 of 768 pixels
    return Prediction(kind, reason)


def prediction_beside(path: Path) -> str | None:
    """What the config of the original's training says that its UNet predicts: AUTOMATIC1111 and ComfyUI look for a
    ``.yaml`` of the checkpoint's name beside it.

    Raises:
        BadModelError: it cannot be read, or is too large for one.
    """
    config = path.with_suffix(".yaml")
    if not config.is_file():
        return None
    text = read_input(config, "the config", limit=_YAML_BYTES).decode(errors="replace")
    found = re.search(r"^[^\S\n]*parameterization:\s*[\"']?(v|eps|x0)\b", text, re.MULTILINE)
    return _PARAMETERIZATIONS[found[1]] if found else "epsilon"  # the default of the original's LatentDiffusion


def _judge(
    family: str,
    variant: str | None,
    unet: Mapping[str, Weight],
    names: Collection[str],
    notes: Mapping[str, str],
    chosen: str | None,
) -> tuple[str, str | None]:
    if chosen:
        return chosen, None
    if "v_pred" in names:
        return "v_prediction", None
    if spec := _SPEC.get(notes.get("modelspec.prediction_type", "").lower()):
        return spec, None
    if family != SD2 or variant == INPAINTING:  # both releases for inpainting predict noise
        return "epsilon", None
    if _MARKED not in unet:
        return "epsilon", f"it has no {_MARKED}, which would tell"
    deviation = float(np.std(unet[_MARKED].load().astype(np.float64)))
    sign, kind = (">", "v_prediction") if deviation > _DEVIATION else ("<=", "epsilon")
    return kind, f"the deviation of its last self-attention's norm is {deviation:.3f} {sign} {_DEVIATION}"
