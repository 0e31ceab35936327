"""The request for an adapter: a file, and how strongly it changes the pipeline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sdort.errors import UsageError
from sdort.errors.plain_text import cut
from sdort.families.known_families import DENOISERS
from sdort.options.number_ranges import ADAPTER_SCALE

_SCALED = re.compile(r"(?P<path>.+):(?P<scale>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)", re.DOTALL)


@dataclass(frozen=True)
class AdapterChoice:
    """An adapter's file and its scale: 1 is as it was trained, 0 is nothing, less turns its effect round."""

    path: Path
    scale: float = 1.0
    text_scale: float | None = None
    """Of the text encoders; None for ``scale``."""

    def __post_init__(self) -> None:
        ADAPTER_SCALE.check(self.scale)
        ADAPTER_SCALE.check(self.of_text)

    @property
    def of_text(self) -> float:
        """The scale of the text encoders."""
        return self.scale if self.text_scale is None else self.text_scale

    def scale_of(self, component: str) -> float:
        """The scale of what it changes in a component."""
        return self.scale if component in DENOISERS else self.of_text


def parse_adapter_choice(text: str) -> AdapterChoice:
    """The choice that ``FILE`` or ``FILE:SCALE`` names; a file of that whole name goes before a scale.

    Raises:
        UsageError: there is no file's name in it, or the scale is out of range.
    """
    scaled = _SCALED.fullmatch(text)
    if not text or text.startswith(":"):
        raise UsageError(f"--lora {cut(text)!r}: expected FILE or FILE:SCALE, such as style.safetensors:0.8")
    if scaled is None or Path(text).is_file():
        return AdapterChoice(_path(text))
    return AdapterChoice(_path(scaled["path"]), ADAPTER_SCALE.check(float(scaled["scale"])))


def _path(text: str) -> Path:
    """The path, unless it is a file's name with something behind a colon that is no scale."""
    file, colon, rest = text.partition(".safetensors:")
    if colon and not Path(text).exists():
        raise UsageError(
            f"--lora {cut(text, 200)!r}: {cut(rest)!r} is no scale",
            hint=f"Give one number for all of it, as {file}.safetensors:0.8; weights of single blocks are not taken.",
        )
    return Path(text)
