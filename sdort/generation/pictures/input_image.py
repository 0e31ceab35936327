"""Images that a caller gives: a file, a picture of Pillow or an array, as 8-bit RGB or, for a mask, as 8-bit grey.

Files come from strangers: they are bounded in bytes and in pixels before they are decoded, and only formats of pictures
are tried, none that runs another program.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sdort.console import say, warn
from sdort.errors import SdortError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.files.input_file import read_input
from sdort.generation.pictures.image_structure import check_directories, count_pictures
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


ImageSource: TypeAlias = "str | Path | Image.Image | npt.NDArray[np.uint8]"
"""A file's path, a picture of Pillow, or an array uint8 [height, width], [height, width, 3] or [height, width, 4]."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats that are read, by Pillow's names."""
MAX_BYTES = 1 << 28
MAX_PIXELS = 1 << 26
"""Pixels of an image, 67 million: a photograph has a third of them; its arrays in fp32 take 12 bytes a pixel."""


@dataclass(frozen=True, eq=False)
class InputImage:
    """An image that was read: ``picture`` is 8-bit ``RGB``; or ``L`` for a mask, or what :func:`read_picture` found."""

    name: str
    """The file's name without its folder; empty for a picture in memory."""
    picture: Image.Image

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.picture.height, self.picture.width

    @cached_property
    def digest(self) -> str:
        """A short hash of its size and pixels."""
        content = str(self.size).encode() + self.picture.tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def __str__(self) -> str:
        return self.name or "the image"


def read_image(source: ImageSource, option: str) -> InputImage:
    """An image as RGB, upright as its EXIF data says; what is transparent becomes white, which is told.

    Args:
        option: the option that names it, for messages, such as ``--init-image``.

    Raises:
        UsageError: it cannot be read, is no image, is too large, or has more than 16 bits a channel.
    """
    name, picture = _opened(source, option)
    if _sees_through(picture):
        say(f"{option} {name}: its transparent parts are taken as white")
    return InputImage(name, on_white(picture).convert("RGB"))


def read_picture(source: ImageSource, option: str) -> InputImage:
    """An image as it is, upright as its EXIF data says: grey, RGB, or RGBA where it is transparent somewhere.

    Raises:
        UsageError: as :func:`read_image`.
    """
    name, picture = _opened(source, option)
    if picture.mode == "RGBA" and not _sees_through(picture):
        picture = picture.convert("RGB")
    return InputImage(name, picture)


def read_mask(source: ImageSource, option: str) -> InputImage:
    """A mask as grey: white is what it selects, by :func:`selected_by`.

    Raises:
        UsageError: as :func:`read_image`, or of two meanings.
    """
    name, picture = _opened(source, option)
    return InputImage(name, selected_by(picture, f"{option} {name}".rstrip()))


def decode_picture(
    content: bytes, option: str, formats: tuple[str, ...] = FORMATS, most: int | None = None
) -> Image.Image:
    """The picture in a file's bytes, upright, in one of Pillow's modes ``L``, ``RGB`` and ``RGBA``.

    Args:
        option: its name, for messages.
        formats: that are read, of :data:`FORMATS`.
        most: pixels that it may have; by default :data:`MAX_PIXELS`.

    Raises:
        UsageError: as :func:`read_image`.
    """
    with _told(option):
        return _decoded(content, option, "", formats, most)


def _opened(source: ImageSource, option: str) -> tuple[str, Image.Image]:
    """The name, and the picture in one of Pillow's modes ``L``, ``RGB`` and ``RGBA``."""
    from PIL import Image

    if isinstance(source, Image.Image):
        with _told(option):
            return "", _eight_bits(source, option)
    if isinstance(source, np.ndarray):
        return "", _from_array(source, option)
    if not isinstance(source, str | Path):
        raise UsageError(f"{option} is a file, a picture of Pillow or an array, not {type(source).__name__}")
    path = Path(source)
    with _told(f"{option} {path}"):
        return path.name, _decoded(read_input(path, limit=MAX_BYTES), option, path.name)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Code that reads a picture.

    Raises:
        UsageError: for whatever ended it.
    """
    try:
        yield
    except UsageError:
        raise
    except SdortError as error:
        raise UsageError(f"{what.split()[0]}: {error.message}", hint=error.hint or "Give a picture's file.") from error
    except Exception as error:  # decoders of broken files end in any error
        raise UsageError(
            f"{what} is no image that can be read: {library_reason(error)}",
            hint=f"Save it as PNG or JPEG; {', '.join(FORMATS)} are read.",
        ) from error


def _decoded(
    content: bytes, option: str, name: str, formats: tuple[str, ...] = FORMATS, most: int | None = None
) -> Image.Image:
    from PIL import Image, ImageOps, UnidentifiedImageError

    what = f"{option} {name}".rstrip()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged metadata; of too many pixels is judged here
        pictures = count_pictures(content)
        try:
            picture = Image.open(io.BytesIO(content), formats=formats)
        except UnidentifiedImageError as error:
            raise ValueError(_other_format(content)) from error
        _check_pixels(picture, what, most)
        _check_tiles(picture)
        if pictures not in ("0", "1"):
            say(f"{what}: the first of its {pictures} pictures is taken")
        picture.load()
        if isinstance(
            profile := picture.info.get("Raw profile type exif"), str
        ):  # ImageMagick's form of Exif, in hexadecimal
            check_directories(bytes.fromhex("".join(profile.split("\n")[3:])))
        return _eight_bits(ImageOps.exif_transpose(picture), what)


def _check_tiles(picture: Image.Image) -> None:
    """Refuse a picture whose parts lie over each other; a channel may be a part of its own."""
    sides = (each[1] for each in getattr(picture, "tile", ()) if each[1])
    covered = sum((right - left) * (lower - upper) for left, upper, right, lower in sides)
    if covered > 8 * max(picture.width * picture.height, 1 << 16):
        raise ValueError("its strips or tiles lie over each other")


def _other_format(content: bytes) -> str:
    """Description of a file that has none of :data:`FORMATS`."""
    if not content:
        return "the file is empty"
    if content[4:8] == b"ftyp":  # ISO 14496-12: the file's type and its brand
        brand = content[8:12].decode("ascii", "replace")
        return {"avif": "it is AVIF", "avis": "it is AVIF"}.get(brand, f"it is HEIC or a video ({brand})")
    return "it has none of the formats that are read"


def _check_pixels(picture: Image.Image, what: str, most: int | None = None) -> None:
    most = MAX_PIXELS if most is None else most
    if picture.width * picture.height > most:
        raise UsageError(
            f"{what} has {picture.width}x{picture.height} pixels, at most {most:,} are taken",
            hint="Make it smaller first: images of 512 to 2,048 pixels a side are usual.",
        )


def _eight_bits(picture: Image.Image, what: str) -> Image.Image:
    """The picture in ``L``, ``RGB`` or ``RGBA``."""
    from PIL import Image

    _check_pixels(picture, what)
    if picture.mode.startswith("I"):
        values = np.asarray(picture)
        if values.min() < 0 or values.max() > 65535:
            raise UsageError(f"{what} has 32 bits a channel", hint="Save it with 8 or 16 bits a channel.")
        grey = Image.fromarray((values / 257).round().astype(np.uint8))
        clear = picture.info.get("transparency")  # PNG's level that is transparent
        if isinstance(clear, int):
            grey = grey.convert("RGBA")
            grey.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
        return grey
    if picture.mode == "F":
        raise UsageError(f"{what} has floating-point pixels", hint="Save it with 8 or 16 bits a channel.")
    if picture.has_transparency_data:  # a channel, or a colour of PNG and GIF
        return picture if picture.mode == "RGBA" else picture.convert("RGBA")
    if picture.mode in ("L", "RGB"):
        return picture
    return picture.convert("L" if picture.mode == "1" else "RGB")


def _from_array(values: Array, option: str) -> Image.Image:
    from PIL import Image

    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or values.shape[2:] not in ((), (3,), (4,)):
        raise UsageError(
            f"{option} is an array {values.dtype} {list(values.shape)}, not uint8 [height, width, 3]",
            hint="Of a float array in [0, 1]: (255 * array).round().astype('uint8').",
        )
    if 0 in values.shape:
        raise UsageError(f"{option} is an array without pixels")
    picture = Image.fromarray(values)
    _check_pixels(picture, option)
    return picture


def _sees_through(picture: Image.Image) -> bool:
    return picture.mode == "RGBA" and np.asarray(picture.getchannel("A")).min() < 255


def on_white(picture: Image.Image) -> Image.Image:
    """A picture whose transparent parts are white."""
    from PIL import Image

    if picture.mode != "RGBA":
        return picture
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
