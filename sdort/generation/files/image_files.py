"""Files of images: PNG, JPEG and WebP with the generation's parameters inside, and where they go."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from sdort.console import to_json, warn
from sdort.errors import OutputError, UsageError, did_you_mean
from sdort.errors.plain_text import one_line
from sdort.files.disk import existing
from sdort.files.staging import check_writable, refuse_odd, staged_output
from sdort.generation.files.infotext import parameters_text
from sdort.generation.requests.record import GenerationRecord
from sdort.graph.signature import Array
from sdort.options.number_ranges import QUALITY


class ImageFormat(NamedTuple):
    """A format of image files."""

    name: str
    """Pillow's name."""
    longest_side: int
    """Pixels."""
    quality: int | None
    """By default, from 1 to 100; None where every pixel is kept."""


FORMATS = {
    ".png": ImageFormat("PNG", (1 << 31) - 1, None),
    ".jpg": ImageFormat("JPEG", 65_535, 95),
    ".jpeg": ImageFormat("JPEG", 65_535, 95),
    ".webp": ImageFormat("WEBP", 16_383, 95),
}
"""Suffix of a file -> its format."""
NOT_KEPT = ("seconds",)
"""Fields of a record that files do not have: they differ between two runs of one command, whose files are equal."""
_LONGEST_EXIF = 65_533
"""Bytes of Exif in a JPEG file, whose segments count themselves in 16 bits.
https://www.w3.org/Graphics/JPEG/itu-t81.pdf, section B.1.1.4"""
_BESIDE_TEXTS = 1 << 13
"""Bytes of Exif that are left to all parameters but the prompts."""
EXIF, USER_COMMENT, MAKER_NOTE = 0x8769, 0x9286, 0x927C
"""Tags: of Exif's own directory, and in it of a comment and of what the program keeps for itself."""
MAKER = b"sdort\0"
"""The beginning of sdort's maker note; a record as JSON follows."""
_COMPRESSION = 6
"""Of PNG, from 0 to 9: one level on every machine, so that the same pixels give the same file."""


def format_of(path: Path) -> ImageFormat:
    """The format that a file's suffix says.

    Raises:
        UsageError: it says none that sdort writes.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(
            f"{one_line(str(path))} is no {', '.join(list(FORMATS)[:-1])} or {list(FORMATS)[-1]} file",
            hint=f"{did_you_mean(suffix, FORMATS) or ''}The suffix says how an image is written: -o FILE.png keeps "
            "every pixel, .jpg and .webp are smaller.",
        )
    return FORMATS[suffix]


def check_quality(paths: Sequence[Path], quality: int | None) -> None:
    """Refuse a quality that is none, and one for files that keep every pixel.

    Raises:
        UsageError: it is.
    """
    if quality is None:
        return
    QUALITY.check(quality)
    lossless = next((path for path in paths if format_of(path).quality is None), None)
    if lossless:
        raise UsageError(
            f"--quality is for JPEG and WebP: {one_line(str(lossless))} keeps every pixel",
            hint="Write -o FILE.jpg or FILE.webp, or leave --quality out.",
        )


def check_sides(path: Path, size: tuple[int, int]) -> None:
    """Refuse an image that is larger than its file's format has.

    Args:
        size: height and width in pixels.

    Raises:
        UsageError: it is.
    """
    kind, (height, width) = format_of(path), size
    if max(size) > kind.longest_side:
        raise UsageError(
            f"{one_line(str(path))} would have {width}x{height} pixels, a side of {kind.name} {kind.longest_side:,}",
            hint="PNG has more: -o FILE.png.",
        )


def check_texts(path: Path, texts: Sequence[str]) -> None:
    """Refuse prompts for which the format of a file has no room.

    Raises:
        UsageError: the format is JPEG, and they are longer than its Exif data may be.
    """
    # Each is there twice: in UTF-16, and in a record of ASCII.
    needed = sum(2 * len(text.encode("utf-16-be", "surrogatepass")) + len(json.dumps(text)) for text in texts)
    if format_of(path).name == "JPEG" and needed + _BESIDE_TEXTS > _LONGEST_EXIF:
        raise UsageError(
            f"{one_line(str(path))}: a JPEG file has no room for the parameters of prompts of "
            f"{sum(map(len, texts)):,} characters",
            hint="PNG and WebP hold them: -o FILE.png.",
        )


def _without_folders(text: str) -> str:
    """Text whose absolute paths are the names of their files: folders tell who made an image."""
    return re.sub(r"(?<![\w./])/(?:[^\s/'\"]+/)+", "", text)


def output_paths(output: Path | None, seed: int, count: int, overwrite: bool) -> list[Path]:
    """Paths of the images: ``output`` itself for one, ``name-1.png``, ``name-2.png`` ... for several.

    Without ``output`` the first free ``sdort-SEED.png`` in the current folder. Checked before anything is computed.

    Raises:
        UsageError: ``output`` has none of :data:`FORMATS`.
        OutputError: the folder cannot be made or written, or a file exists and ``overwrite`` is not set.
    """
    if output is None:
        paths = _free_paths(Path(f"sdort-{seed}.png"), count)
        _check_place(paths[0])
        return paths
    return free_for_output(numbered(output, count), overwrite)


def free_for_output(paths: list[Path], overwrite: bool) -> list[Path]:
    """``paths``, that may be written.

    Raises:
        UsageError: one has none of :data:`FORMATS`.
        OutputError: as :func:`output_paths`.
    """
    for path in paths:
        format_of(path)
    for folder in {path.parent: path for path in paths}.values():
        _check_place(folder)
    for path in paths:
        refuse_odd(path)
    taken = [path for path in paths if os.path.lexists(path)]
    if taken and not overwrite:
        others = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise OutputError(
            f"{taken[0]}{others} {'exist' if others else 'exists'}",
            hint="Choose another file with -o, or replace what is there with --overwrite.",
        )
    return paths


def _check_place(path: Path) -> None:
    """Refuse an image that cannot be written; a folder that is missing is made with the first one."""
    nearest = existing(path.parent)
    if not nearest.is_dir():
        raise OutputError(f"{nearest} is no folder", hint="Choose another file with -o.")
    check_writable(nearest / path.name)


def numbered(path: Path, count: int) -> list[Path]:
    """``path`` for one image, ``path`` with -1, -2, ... before its suffix for several."""
    if count == 1:
        return [path]
    return [path.with_name(f"{path.stem}-{index}{path.suffix}") for index in range(1, count + 1)]


def free_path(path: Path) -> Path:
    """``path``, or where there is such a file the next ``name-run2.png``."""
    return _free_paths(path, 1)[0]


def _free_paths(path: Path, count: int) -> list[Path]:
    attempt = 1
    candidate = path
    while any(os.path.lexists(path) for path in numbered(candidate, count)):
        attempt += 1
        candidate = path.with_name(f"{path.stem}-run{attempt}{path.suffix}")
    return numbered(candidate, count)


def save_image(
    path: Path,
    pixels: Array,
    record: GenerationRecord,
    seed: int,
    *,
    overwrite: bool = False,
    quality: int | None = None,
) -> Path:
    """Write an image as :func:`write_image` in the format of ``path``, by :func:`save_file`."""
    kind = format_of(path)
    return save_file(path, lambda file: write_image(file, pixels, record, seed, kind, quality), overwrite)


def save_file(path: Path, write: Callable[[BinaryIO], None], overwrite: bool) -> Path:
    """Write an image's file: never a part of one. Its folder is made where it is missing.

    Args:
        write: writes it to an open file.

    Returns:
        ``path``; or :func:`free_path`, which is told, where another program has put a file there since it was planned,
        and ``overwrite`` is off.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {path.parent}: {error.strerror or error}") from error
    target = path
    while True:
        try:
            with staged_output(target, overwrite=overwrite) as file:
                write(file)
            break
        except FileExistsError:
            target = free_path(path)
    if target != path:
        warn(f"another program has written {path} meanwhile: this image is {target}")
    return target


def write_image(
    file: BinaryIO,
    pixels: Array,
    record: GenerationRecord,
    seed: int,
    kind: ImageFormat = FORMATS[".png"],
    quality: int | None = None,
) -> None:
    """Write an image with its parameters inside to an open file.

    They are there twice: for people and other programs (PNG's text ``parameters``, elsewhere Exif's user comment in
    UTF-16, as AUTOMATIC1111 writes both) and as ``record`` in JSON (PNG's text ``sdort``, elsewhere the maker note).

    Args:
        quality: from 1 to 100, of JPEG and WebP; by default the format's. WebP of 100 keeps every pixel.
    """
    texts = {"parameters": parameters_text(record, seed), "sdort": json.dumps(kept_record(record, seed))}
    write_pixels(file, pixels, texts, kind, quality)


def write_pixels(
    file: BinaryIO,
    pixels: Array,
    texts: dict[str, str],
    kind: ImageFormat,
    quality: int | None = None,
    profile: bytes | None = None,
) -> None:
    """Write pixels, uint8 [height, width, 3], with texts by PNG's keywords; of others Exif takes those of
    :func:`write_image`.

    Args:
        pixels: also [height, width] of a grey image, or with an alpha channel, which JPEG does not have.
        profile: the ICC profile of the colours; sRGB without one.
    """
    from PIL import Image, PngImagePlugin

    options: dict[str, Any]
    if kind.quality is None:
        chunks = PngImagePlugin.PngInfo()
        for keyword, text in texts.items():
            chunks.add_text(keyword, text)
        options = {"pnginfo": chunks, "compress_level": _COMPRESSION}
    else:
        quality = kind.quality if quality is None else quality
        options = {"exif": _exif(texts, kind), "quality": quality}
        # JPEG with every pixel's colour: edges of red are the first to suffer.
        options |= {"subsampling": 0} if kind.name == "JPEG" else {"lossless": quality == QUALITY.high}
    if profile:
        options["icc_profile"] = profile
    Image.fromarray(pixels).save(file, format=kind.name, **options)


def _exif(texts: dict[str, str], kind: ImageFormat) -> bytes:
    """Exif data of texts. A JPEG file whose record finds no room has the parameters alone, which is told."""
    from PIL import Image

    exif = Image.Exif()
    directory = exif.get_ifd(EXIF)
    # The order of bytes is the file's own, the high one first.
    directory[USER_COMMENT] = b"UNICODE\0" + texts["parameters"].encode("utf-16-be", "surrogatepass")
    if "sdort" in texts:
        directory[MAKER_NOTE] = MAKER + texts["sdort"].encode()
    data = exif.tobytes()
    if kind.name == "JPEG" and len(data) > _LONGEST_EXIF:
        warn("a JPEG file has no room for sdort's record: the image keeps A1111's parameters alone")
        del directory[MAKER_NOTE]
        data = exif.tobytes()
    return data


def kept_record(record: GenerationRecord, seed: int) -> dict[str, Any]:
    """A record as files have it."""
    kept = {name: value for name, value in to_json(record).items() if name not in NOT_KEPT} | {"seed": seed}
    # Whether images were decoded one by one is seen in none of them, and free memory decides it.
    kept["decoded"] = {"tile": record.decoded.tile} if record.decoded and record.decoded.tile else None
    if record.fallback:
        kept["fallback"] = _without_folders(kept["fallback"])
    return kept
