"""Images for IP-Adapters as a caller names them: ``IMAGE``, with a scale."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sdort.errors import UsageError
from sdort.errors.plain_text import cut
from sdort.generation.pictures.input_image import ImageSource, InputImage, read_image
from sdort.options.number_ranges import IP_ADAPTER_SCALE

OPTION = "--ip-adapter-image"
_SCALED = re.compile(r"(?P<path>.+):(?P<scale>[-+]?(?:\d+(?:\.\d*)?|\.\d+))", re.DOTALL)


@dataclass(frozen=True)
class IpAdapterChoice:
    """An image that an IP-Adapter takes beside the prompt, and how much it counts.

    Raises:
        UsageError: the scale is out of range.
    """

    image: ImageSource
    scale: float = 1.0
    """1 is as the adapter was trained; 0.5 to 0.8 leave more to the prompt."""

    def __post_init__(self) -> None:
        IP_ADAPTER_SCALE.check(self.scale)

    def read(self) -> IpAdapterImage:
        """The choice with its image.

        Raises:
            UsageError: the image cannot be read.
        """
        return IpAdapterImage(read_image(self.image, OPTION), self.scale)


@dataclass(frozen=True)
class IpAdapterImage:
    """An :class:`IpAdapterChoice` whose image was read."""

    image: InputImage
    scale: float


def parse_ip_adapter_choice(text: str) -> IpAdapterChoice:
    """The choice that ``IMAGE`` or ``IMAGE:SCALE`` names; a file of that whole name goes before a scale.

    Raises:
        UsageError: there is no file's name in it, or the scale is out of range.
    """
    if not text or text.startswith(":"):
        raise UsageError(f"{OPTION} {cut(text)!r}: expected IMAGE or IMAGE:SCALE, such as photo.jpg:0.6")
    scaled = _SCALED.fullmatch(text)
    if scaled is None or Path(text).is_file():
        return IpAdapterChoice(Path(text))
    return IpAdapterChoice(Path(scaled["path"]), float(scaled["scale"]))
