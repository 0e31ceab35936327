"""One picture of all images of a run, side by side with their seeds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdort.errors import UsageError
from sdort.generation.files.image_files import check_sides, format_of, kept_record, save_file, write_pixels
from sdort.generation.files.infotext import parameters_text
from sdort.graph.signature import Array

if TYPE_CHECKING:
    from sdort.generation.result import Image

MOST_PIXELS = 1 << 28
"""Pixels of a grid: 805 MB."""
_BORDER = 4
"""White pixels between images."""
_SMALLEST_TEXT = 10
"""Pixels of the letters under small images; a 32nd of the height under larger ones."""


def grid_path(path: Path, *, template: bool) -> Path:
    """The file of the grid beside the files of several images.

    Args:
        path: an image's.
        template: whether a template names them, and not their numbers.
    """
    stem = re.sub(r"-[0-9]+$", "", path.stem)
    return path.with_name(f"grid{path.suffix}" if template else f"{stem}-grid{path.suffix}")


def check_grid(path: Path, size: tuple[int, int], count: int, columns: int | None = None) -> None:
    """Refuse a grid that is larger than its format or the memory has.

    Args:
        size: height and width in pixels of the largest image.
        columns: as :func:`columns_of`; None for as near to a square as possible.

    Raises:
        UsageError: it is.
    """
    columns = columns or math.ceil(math.sqrt(count))
    height, width = math.ceil(count / columns) * (size[0] + _label_height(size[0])), columns * (size[1] + _BORDER)
    check_sides(path, (height, width))
    if height * width > MOST_PIXELS:
        raise UsageError(
            f"the grid of {count} images would have {width}x{height} pixels, more than {MOST_PIXELS:,}",
            hint="Leave --grid out, or draw fewer images in one run.",
        )


def save_grid(path: Path, images: Sequence[Image], *, overwrite: bool, quality: int | None) -> Path:
    """Write the grid of images; its parameters are those of the first, with the seeds and prompts of all.

    Raises:
        OutputError: it cannot be written.
    """
    first, columns = images[0], columns_of([image.prompt for image in images])
    prompts = list(dict.fromkeys(image.prompt for image in images))
    listed: dict[str, Any] = {"columns": columns, "seeds": [image.seed for image in images], "prompts": prompts}
    record = json.dumps({**kept_record(first.record, first.seed), "grid": listed})
    texts = {"parameters": parameters_text(first.record, first.seed), "sdort": record}
    pixels = grid_pixels([image.pixels for image in images], _labels(images, prompts), columns)
    return save_file(path, lambda file: write_pixels(file, pixels, texts, format_of(path), quality), overwrite)


def columns_of(prompts: Sequence[str]) -> int:
    """The images in a row: those of a prompt where each has as many, else as near to a square as possible."""
    names = list(dict.fromkeys(prompts))
    each = len(prompts) // len(names)
    if len(names) > 1 and each > 1 and list(prompts) == [name for name in names for _ in range(each)]:
        return each
    return math.ceil(math.sqrt(len(prompts)))


def _labels(images: Sequence[Image], prompts: Sequence[str]) -> list[str]:
    several = len(prompts) > 1
    return [f"seed {image.seed}{f': {_latin(image.prompt, prompts)}' if several else ''}" for image in images]


def _latin(prompt: str, prompts: Sequence[str]) -> str:
    """A prompt, which the font of labels has no letters for where it is not in Latin ones."""
    return prompt if prompt.isascii() and prompt.isprintable() else f"prompt {prompts.index(prompt) + 1}"


def _label_height(height: int) -> int:
    return max(_SMALLEST_TEXT, height // 32) * 3 // 2 + _BORDER


def grid_pixels(images: Sequence[Array], labels: Sequence[str], columns: int) -> Array:
    """Images, uint8 [height, width, 3] each, beside and below each other on white, a label under each."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    below = _label_height(height)
    rows = math.ceil(len(images) / columns)
    picture = Image.new("RGB", (columns * (width + _BORDER) - _BORDER, rows * (height + below)), "white")
    font, draw = ImageFont.load_default(max(_SMALLEST_TEXT, height // 32)), ImageDraw.Draw(picture)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        left, top = number % columns * (width + _BORDER), number // columns * (height + below)
        inside = (width - image.shape[1]) // 2, (height - image.shape[0]) // 2
        picture.paste(Image.fromarray(image), (left + inside[0], top + inside[1]))
        while draw.textlength(label, font) > width and label:
            label = label[: -max(1, len(label) // 8)]
        draw.text((left, top + height + 1), label, "black", font)
    return np.asarray(picture)
