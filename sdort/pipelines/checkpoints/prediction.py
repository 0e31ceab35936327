"""What a checkpoint's UNet predicts: noise (epsilon) or velocity (v), which its tensors' names do not say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
) -> Prediction:
    """What a UNet predicts.

    Args:
        unet: its tensors by diffusers' names; of SD 2.x one vector is read.
        names: of all tensors of the file; one that is called ``v_pred`` is a mark.
        notes: the file's metadata.
        chosen: what the user says.
    """
    kind, reason = _judge(family, variant, unet, names, notes, chosen)
    if family == SD2 and kind == "v_prediction":
        return Prediction(kind, reason, DDIM_V, 96)  # 2.1 of 768 pixels
    return Prediction(kind, reason)


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
