"""Control images as a caller names them: ``DIR:IMAGE``, with a scale and a share of the steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sdort.errors import UsageError
from sdort.errors.plain_text import cut
from sdort.generation.pictures.input_image import ImageSource, InputImage, read_image
from sdort.options.number_ranges import CONTROL_END, CONTROL_SCALE, CONTROL_START

FORM = "DIR:IMAGE[:SCALE[:START:END]]"

_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
_NUMBERS = re.compile(
    rf"(?P<rest>.+?):(?P<scale>[-+]?{_NUMBER})(?::(?P<start>{_NUMBER}):(?P<end>{_NUMBER}))?", re.DOTALL
)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
"""The beginning of an absolute path on Windows, whose colon parts nothing."""


@dataclass(frozen=True)
class ControlChoice:
    """A ControlNet or T2I-Adapter, the image that steers it, and how strongly and how long it steers.

    Raises:
        UsageError: a number is out of range.
    """

    path: Path
    """The folder that ``sdort export`` or ``sdort optimize`` made of it."""
    image: ImageSource
    scale: float = 1.0
    """How strongly it steers: 1 is as it was trained."""
    start: float = 0.0
    """The share of the steps before it begins."""
    end: float = 1.0
    """The share of the steps after which it ends."""

    def __post_init__(self) -> None:
        CONTROL_SCALE.check(self.scale)
        CONTROL_START.check(self.start)
        CONTROL_END.check(self.end)
        if self.start >= self.end:
            raise UsageError(
                f"--control begins at {self.start:g} of the steps and ends at {self.end:g}",
                hint="START comes before END; 0 and 1 are all steps.",
            )

    def read(self) -> Control:
        """The choice with its image.

        Raises:
            UsageError: the image cannot be read.
        """
        return Control(Path(self.path), read_image(self.image, "--control"), self.scale, self.start, self.end)


@dataclass(frozen=True)
class Control:
    """A :class:`ControlChoice` whose image was read."""

    path: Path
    image: InputImage
    scale: float
    start: float
    end: float

    def is_active(self, step: int, steps: int) -> bool:
        """Whether it steers a step, counted from 0: the whole step has to lie in its share, as in diffusers."""
        return step / steps >= self.start and (step + 1) / steps <= self.end


def parse_control_choice(text: str) -> ControlChoice:
    """The choice that ``DIR:IMAGE``, ``DIR:IMAGE:SCALE`` or ``DIR:IMAGE:SCALE:START:END`` names.

    Colons in names are no matter where such a folder and such a file exist; those of Windows' drives never are.

    Raises:
        UsageError: the text has another form, or a number is out of range.
    """
    numbered = _NUMBERS.fullmatch(text)
    readings = [(text, None), *([(numbered["rest"], numbered)] if numbered else [])]
    pairs = [(pair, match) for rest, match in readings for pair in _pairs(rest)]
    there = [(pair, match) for pair, match in pairs if Path(pair[0]).is_dir() and Path(pair[1]).is_file()]
    if not pairs:
        raise UsageError(f"--control {cut(text)!r}: expected {FORM}, such as canny:edges.png:0.8")
    # What exists; else the first colon parts the names, and numbers at the end are numbers.
    (path, image), match = there[0] if there else next(_pairs_first(readings))
    if match is None:
        return ControlChoice(Path(path), Path(image))
    start, end = match["start"], match["end"]
    return ControlChoice(
        Path(path), Path(image), float(match["scale"]), float(start) if start else 0.0, float(end) if end else 1.0
    )


_Pair = tuple[str, str]
_Reading = tuple[str, "re.Match[str] | None"]


def _pairs(text: str) -> Iterator[_Pair]:
    """Each way to part a text at a colon that is not a drive's."""
    drives = {
        place for place in range(len(text)) if _DRIVE.match(text, place) and (place == 0 or text[place - 1] == ":")
    }
    for place, letter in enumerate(text):
        if letter == ":" and place - 1 not in drives and 0 < place < len(text) - 1:
            yield text[:place], text[place + 1 :]


def _pairs_first(readings: list[_Reading]) -> Iterator[tuple[_Pair, re.Match[str] | None]]:
    """The first pair of the reading with numbers, if it has one, else of the whole text."""
    for rest, match in reversed(readings):
        for pair in _pairs(rest):
            yield pair, match
