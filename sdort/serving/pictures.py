"""Pictures on their way in and out: data URLs, uploads within bounds, small previews."""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING, Any

from sdort.errors import UsageError
from sdort.generation.pictures.input_image import decode_picture
from sdort.serving.refusals import Refused, of_error
from sdort.serving.serve_options import ServeOptions

if TYPE_CHECKING:
    from PIL import Image

UPLOADS = ("PNG", "JPEG", "WEBP")
"""Formats that are taken, by Pillow's names."""
_PREVIEW_SIDE = 256
"""Pixels of the longer side of a preview."""


def preview_url(pixels: Any) -> str:
    """A small JPEG of pixels, uint8 [height, width, 3], as a data URL."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail((_PREVIEW_SIDE, _PREVIEW_SIDE))
    with io.BytesIO() as file:
        picture.save(file, format="JPEG", quality=80)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def read_upload(content: bytes, field: str, limits: ServeOptions) -> Image.Image:
    """A picture that a client sent; its size is checked before a pixel is decoded.

    Raises:
        Refused: it is too large, or none that is read.
    """
    try:
        return decode_picture(content, field, UPLOADS, limits.max_pixels)
    except UsageError as error:
        raise of_error(error, field=field) from error


def bytes_of_text(text: str, field: str) -> bytes:
    """The bytes of a data URL, or of base64 without its head; a path or another URL is none.

    Raises:
        Refused: it is none of these.
    """
    head, comma, data = text.partition(",")
    if comma and not re.fullmatch(r"data:image/[a-z+.-]{1,20};base64", head):
        raise Refused(f"{field} is no data URL of an image in base64", field=field)
    try:
        return base64.b64decode(data if comma else text, validate=True)
    except ValueError as error:
        raise Refused(f"{field} is no base64", field=field) from error


def hole_of(picture: Image.Image) -> Image.Image | None:
    """The transparent part of a picture as a mask, white where something is drawn; None where it has none."""
    from PIL import ImageChops

    if picture.mode != "RGBA":
        return None
    hole = ImageChops.invert(picture.getchannel("A"))
    return hole if hole.getbbox() else None
