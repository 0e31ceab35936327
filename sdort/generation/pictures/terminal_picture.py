"""Pictures as escape sequences of terminals: sixel, kitty's and iTerm2's graphics."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np

from sdort.graph.signature import Array
from sdort.machine.terminal import Graphics

_CELL = 10, 20
"""Pixels of a character's width and height where the terminal does not say: sixel pictures are measured in pixels."""
_PART = 4096
"""The most characters of a part of kitty's pictures, by its protocol."""
_COLOURS = 128


@dataclass(frozen=True)
class Picture:
    """A picture for a terminal: its escape sequence, and the lines that it takes."""

    sequence: str
    rows: int


def draw(pixels: Array, graphics: Graphics, columns: int, rows: int, cell: tuple[int, int] = _CELL) -> Picture:
    """A picture at the cursor, as large as fits, in its own proportions.

    Args:
        pixels: uint8 [height, width, 3].
        columns, rows: characters that there is room for.
        cell: pixels of a character's width and height.
    """
    height, width = pixels.shape[:2]
    scale = min(columns * cell[0] / width, rows * cell[1] / height)
    size = max(1, int(width * scale)), max(1, int(height * scale))
    lines, across = -(-size[1] // cell[1]), -(-size[0] // cell[0])
    if graphics is Graphics.SIXEL:
        return Picture(_sixel(pixels, size), lines)
    content = base64.b64encode(_png(pixels)).decode()
    if graphics is Graphics.ITERM:
        place = f"inline=1;width={across};height={lines};preserveAspectRatio=1"
        return Picture(f"\x1b]1337;File={place}:{content}\x07", lines)
    return Picture(_kitty(content, across, lines), lines)


def _kitty(content: str, columns: int, rows: int) -> str:
    """https://sw.kovidgoyal.net/kitty/graphics-protocol/: a PNG in parts, shown at once under one number, without
    answers, so that the next picture takes its place."""
    parts = [content[first : first + _PART] for first in range(0, len(content), _PART)]
    controls = [f"a=T,f=100,i=7361,p=1,q=2,C=1,c={columns},r={rows},", *[""] * (len(parts) - 1)]
    more = [1] * (len(parts) - 1) + [0]
    return "".join(
        f"\x1b_G{control}m={flag};{part}\x1b\\" for control, flag, part in zip(controls, more, parts, strict=True)
    )


def _sixel(pixels: Array, size: tuple[int, int]) -> str:
    """https://vt100.net/docs/vt3xx-gp/chapter14.html: bands of six rows, and in each the pixels of one colour after
    the other."""
    from PIL import Image

    image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).quantize(_COLOURS)
    indices = np.asarray(image)
    palette = np.asarray(image.getpalette(), np.float64).reshape(-1, 3)[: int(indices.max()) + 1] * 100 / 255
    colours = "".join(f"#{index};2;{';'.join(str(round(part)) for part in c)}" for index, c in enumerate(palette))
    bands = [_band(indices[first : first + 6]) for first in range(0, len(indices), 6)]
    return f'\x1bP0;1q"1;1;{size[0]};{size[1]}{colours}{"-".join(bands)}\x1b\\'


def _band(rows: Array) -> str:
    bits = (1 << np.arange(len(rows)))[:, None]
    return "$".join(f"#{index}{_runs(((rows == index) * bits).sum(axis=0))}" for index in np.unique(rows))


def _runs(columns: Array) -> str:
    """Sixels of one colour; those that repeat are counted."""
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    lengths = np.diff(starts, append=len(columns))
    letters = [chr(63 + int(columns[start])) for start in starts]
    return "".join(
        letter * int(count) if count < 4 else f"!{count}{letter}"
        for letter, count in zip(letters, lengths, strict=True)
    )


def _png(pixels: Array) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()
