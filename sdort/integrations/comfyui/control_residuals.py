"""A ControlNet's residuals in ComfyUI's order, as the inputs of the exported UNet.

ComfyUI's UNet takes residuals from the ends of three lists: ``output`` for the skip connections, the deepest first, so
that the list stands in the order of the encoder's blocks, aligned at its end; ``middle`` for the middle block;
``input`` for the encoder's blocks themselves, the first one first, so that this list is reversed (T2I-Adapters). None
stands for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sdort.errors import UsageError
from sdort.families.component_names import CONTROLNET, T2I_ADAPTER

Residuals = Mapping[str, Sequence[torch.Tensor | None]]
"""ComfyUI's ``control``."""

SKIPS, MIDDLE, BLOCKS = "output", "middle", "input"


def residual_feeds(
    control: Residuals, inputs: Mapping[str, Sequence[str]], config: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The UNet's inputs for residuals by name; those that nothing is for are left out.

    Args:
        control: as ComfyUI's UNet gets it; it is left as it is.
        inputs: :func:`sdort.workload.steering_inputs.residual_inputs` of the graph.
        config: the UNet's.

    Raises:
        UsageError: there are more than the UNet takes, one for a block where it takes none, or the graph has no such
            inputs.
    """
    *skips, middle = inputs[CONTROLNET] or [""]
    places = {
        SKIPS: [*skips],
        MIDDLE: [middle] if middle else [],
        BLOCKS: [*reversed(_block_inputs(inputs[T2I_ADAPTER], len(skips), config))],
    }
    if unknown := [kind for kind, values in control.items() if kind not in places and any(_there(values))]:
        raise UsageError(f"sdort's UNet knows no residuals for {unknown[0]!r}")
    feeds = {}
    for kind, names in places.items():
        values = list(control.get(kind) or ())
        if len(values) > len(names) and any(_there(values[: len(values) - len(names)])):
            raise UsageError(
                f"{len(values)} residuals for {kind!r}, and this UNet takes {len(names)}",
                hint="The ControlNet is for another family, or the model was exported without inputs for it.",
            )
        for name, value in zip(reversed(names), reversed(values), strict=False):
            if value is not None and not name:
                raise UsageError(
                    f"a residual for {kind!r} is for a block at which this UNet takes none",
                    hint="sdort's UNets take those of T2I-Adapters alone, one a level.",
                )
            if value is not None:
                feeds[name] = value
    return feeds


def _block_inputs(names: Sequence[str], blocks: int, config: Mapping[str, Any]) -> list[str]:
    """The input of each block of the encoder, empty where there is none.

    diffusers' UNet takes one at the last residual block of a level with attentions, and behind the downsampler of one
    without (``UNet2DConditionModel.forward``).
    """
    places, layers = [""] * blocks, int(config["layers_per_block"])
    for level, (name, kind) in enumerate(zip(names, config["down_block_types"], strict=False)):
        last = level * (layers + 1) + layers
        places[last if "CrossAttn" in kind else min(last + 1, blocks - 1)] = name
    return places


def _there(values: Sequence[torch.Tensor | None] | None) -> list[bool]:
    return [value is not None for value in values or ()]
