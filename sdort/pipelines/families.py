"""What sets the families apart when they draw: their text encoders, and what these tell the UNet.

Everything else, from tokens to the denoising loop and the decoder, is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sdort.errors import BadModelError

Array = npt.NDArray[Any]

Condition = dict[str, Array]
"""What the UNet is told beside latents and time: its inputs by name, [1, ...] each."""

LAST, PENULTIMATE = "last_hidden_state", "hidden_states of the last layer but one"

SIZE_NUMBERS = 6
"""In ``time_ids``: height and width before cropping, the crop's top and left, height and width to draw.

https://arxiv.org/abs/2307.01952, section 2.2.
"""

_LATENTS_AND_TIME = {"sample", "timestep"}


@dataclass(frozen=True)
class Encoder:
    """A text encoder.

    ``tells`` are its outputs by the UNet's inputs that they go to. Where several encoders tell the same input, they
    stand side by side in the last dimension.
    """

    component: str
    tokenizer: str
    """The folder of its tokenizer."""
    tells: Mapping[str, str]

    def outputs(self, names: Sequence[str], config: Mapping[str, Any]) -> dict[str, str]:
        """The outputs that are told, by the UNet's inputs that they go to.

        Args:
            names: of all outputs of the encoder.
            config: the encoder's.

        Raises:
            BadModelError: it lacks one of them.
        """
        return {told: self._output(wanted, names, config) for told, wanted in self.tells.items()}

    def _output(self, wanted: str, names: Sequence[str], config: Mapping[str, Any]) -> str:
        if wanted == LAST and LAST not in names:
            return names[0]  # whatever an exporter calls it, it comes first
        if wanted == PENULTIMATE:
            # Counted from the embeddings on, which are hidden_states.0.
            wanted = f"hidden_states.{int(config.get('num_hidden_layers', 0)) - 1}"
        if wanted not in names:
            raise BadModelError(
                f"it has no output {wanted}, which the UNet is told of",
                component=self.component,
                hint="Export the whole pipeline: sdort export MODEL OUT, and keep each component's config.json.",
            )
        return wanted


@dataclass(frozen=True)
class Family:
    """A family of pipelines."""

    name: str
    side: int
    """Pixels of the images that it was trained on, where no config tells."""
    scaling_factor: float
    """Of its latents, where no config tells."""
    encoders: tuple[Encoder, ...]
    told_size: bool = False
    """The UNet is also told the size of the image, as ``time_ids``."""
    empty_is_zero: bool = False
    """An empty negative prompt is told as zeros, unless the pipeline's index says otherwise."""

    @property
    def inputs(self) -> set[str]:
        """What its UNets take."""
        told = {name for encoder in self.encoders for name in encoder.tells}
        return _LATENTS_AND_TIME | told | ({"time_ids"} if self.told_size else set())

    def condition(self, parts: Sequence[Condition], size: tuple[int, int]) -> Condition:
        """What the UNet is told of one prompt.

        Args:
            parts: of each encoder, by the inputs that it tells.
            size: height and width of the image in pixels.
        """
        condition: Condition = {}
        for part in parts:
            for name, value in part.items():
                condition[name] = np.concatenate([condition[name], value], -1) if name in condition else value
        if self.told_size:
            condition["time_ids"] = np.array([[*size, 0, 0, *size]], np.float32)
        return condition


STABLE_DIFFUSION = Family(
    "Stable Diffusion 1.x and 2.x",
    512,
    0.18215,
    (Encoder("text_encoder", "tokenizer", {"encoder_hidden_states": LAST}),),
)
SDXL = Family(
    "SDXL",
    1024,
    0.13025,
    (
        Encoder("text_encoder", "tokenizer", {"encoder_hidden_states": PENULTIMATE}),
        Encoder(
            "text_encoder_2",
            "tokenizer_2",
            {"encoder_hidden_states": PENULTIMATE, "text_embeds": "text_embeds"},
        ),
    ),
    told_size=True,
    empty_is_zero=True,
)


def family_of(components: Collection[str]) -> Family:
    """The family of a pipeline with these components."""
    return SDXL if "text_encoder_2" in components else STABLE_DIFFUSION
