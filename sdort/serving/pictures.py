"""Pictures on their way in and out: data URLs, uploads within bounds, small previews."""

from __future__ import annotations

import base64
import io
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
    if len(content) > limits.upload_bytes:
        raise Refused(f"{field}: at most {limits.max_upload} MB are taken", 413, field)
    try:
        return decode_picture(content, field, UPLOADS, limits.max_pixels)
    except UsageError as error:
        raise of_error(error, field=field) from error
