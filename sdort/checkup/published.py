"""Published times of images on cards, for orientation: other software, single users' reports, each with its source."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ORT = (
    "https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/python/tools/transformers/models/"
    "stable_diffusion/README.md"
)
_RDNA4 = "https://github.com/comfyanonymous/ComfyUI/issues/15674"


@dataclass(frozen=True)
class PublishedImage:
    """Seconds of an image of Stable Diffusion 1.5 of 512x512 pixels.

    Attributes:
        card: a regular expression that the driver's name of the card contains.
        seconds: an image.
        steps: denoising steps, with guidance.
        what: the software.
        source: the public page.
    """

    card: str
    seconds: float
    steps: int
    what: str
    source: str


IMAGES = (
    PublishedImage(r"9070 XT\b", 0.9, 20, "ComfyUI, well set up", _RDNA4),
    PublishedImage(r"9070 XT\b", 85.0, 20, "ComfyUI, after a plain reinstall", _RDNA4),
    PublishedImage(r"MI250X\b", 2.2, 50, "ONNX Runtime, tuned", _ORT),
    PublishedImage(r"MI100\b", 2.4, 50, "ONNX Runtime, tuned", _ORT),
    PublishedImage(r"A100-SXM", 1.1, 50, "ONNX Runtime", _ORT),
    PublishedImage(r"RTX 3060\b", 4.8, 50, "ONNX Runtime", _ORT),
    PublishedImage(r"V100\b", 2.7, 50, "ONNX Runtime", _ORT),
    PublishedImage(r"\bT4\b", 5.5, 50, "ONNX Runtime", _ORT),
)


def published_images(card: str) -> list[PublishedImage]:
    """The published images of a card, by the name that its driver gives."""
    return [each for each in IMAGES if re.search(each.card, card)]
