"""The part of an image that a mask selects, of which programs have two conventions.

A mask that is drawn is black and white, and white is generated anew (diffusers, A1111, InvokeAI's canvas); what is
transparent around the strokes is kept. A photograph with a hole says by its transparency where something new is to be
(ComfyUI's LoadImage gives 1 - alpha, InvokeAI and A1111's image to image take it so). Which of the two a mask with
transparent parts is, the colours of the others tell: a drawn mask has no other than black and white. Black alone
selects nothing, so that the transparency decides there too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdort.console import say, warn
from sdort.errors import UsageError
from sdort.graph.signature import Array

if TYPE_CHECKING:
    from PIL import Image

_NEAR = 32
"""Levels of 255 that black and white may be off: JPEG and resizing move them by less."""
_DRAWN = 0.98
"""Share of the opaque pixels that are black or white in a drawn mask; strokes are soft in their transparency."""
_FLAT = 16
"""Standard deviation of the levels of one colour."""
_SAMPLES = 1 << 20
"""Pixels whose standard deviation is taken, in fp64."""
_GREY = 0.25
"""Share of greys that no mask's soft edges have."""


def selected_by(picture: Image.Image, what: str) -> Image.Image:
    """The area that a mask selects, as grey: white where something new is to be.

    Args:
        picture: in Pillow's modes ``L``, ``RGB`` or ``RGBA``.
        what: its name, for messages.

    Raises:
        UsageError: it is one colour on a transparent ground, which may mean both.
    """
    mask = _by_transparency(picture, what) if _has_hole(picture) else picture.convert("L")
    values = np.asarray(mask)
    if values.min() >= 128:
        say(f"{what} selects the whole image: nothing of it is kept")
    elif not _has_hole(picture) and ((values > _NEAR) & (values < 255 - _NEAR)).mean() > _GREY:
        warn(f"{what} is not black and white: what is lighter than middle grey is generated anew")
    return mask


def _has_hole(picture: Image.Image) -> bool:
    return picture.mode == "RGBA" and np.asarray(picture.getchannel("A")).min() < 255


def _by_transparency(picture: Image.Image, what: str) -> Image.Image:
    from PIL import Image

    values = np.asarray(picture)
    alpha = values[:, :, 3]
    if _is_drawn(values[alpha >= 128, :3], what):
        say(f"{what} is drawn on a transparent ground: its white parts are generated anew")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "black"), picture).convert("L")
    say(f"{what} is a picture with a hole: its transparent parts are generated anew, its colours mean nothing")
    return Image.fromarray(255 - alpha)


def _is_drawn(opaque: Array, what: str) -> bool:
    """Whether colours [pixels, 3] are those of a drawn mask, white among them."""
    if not opaque.size:
        return False
    white = opaque.min(axis=1) >= 255 - _NEAR
    black = opaque.max(axis=1) <= _NEAR
    if (white | black).mean() >= _DRAWN:
        return bool(white.any())
    few = opaque[:: len(opaque) // _SAMPLES + 1]
    if few.std(axis=0).max() < _FLAT:
        raise UsageError(
            f"{what} is one colour on a transparent ground: some programs generate the colour anew, others the ground",
            hint="Save it without transparency: white where something new is to be, black everywhere else.",
        )
    return False
