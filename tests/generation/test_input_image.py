"""Images that a caller gives: every kind that people have, and a sentence for every other."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import UsageError
from sdort.generation.pictures import input_image
from sdort.generation.pictures.input_image import read_image, read_mask

GREY = np.arange(0, 256, dtype=np.uint8).reshape(16, 16)
COLOUR = np.stack([GREY, GREY.T, 255 - GREY], axis=2)


def saved(folder: Path, picture: Image.Image, name: str, **options: Any) -> Path:
    picture.save(folder / name, **options)
    return folder / name


def test_files_pictures_and_arrays_are_the_same_image(tmp_path: Path) -> None:
    file = saved(tmp_path, Image.fromarray(COLOUR), "a.png")
    images = [read_image(source, "--init-image") for source in (file, str(file), Image.fromarray(COLOUR), COLOUR)]
    for image in images:
        np.testing.assert_array_equal(np.asarray(image.picture), COLOUR)
    assert len({image.digest for image in images}) == 1
    assert [image.name for image in images] == ["a.png", "a.png", "", ""]
    assert read_image(COLOUR.transpose(1, 0, 2).copy(), "--init-image").digest != images[0].digest


@pytest.mark.parametrize(
    ("mode", "name"),
    [("1", "a.png"), ("L", "a.png"), ("P", "a.gif"), ("CMYK", "a.tif"), ("RGB", "a.webp"), ("L", "a.pgm")],
)
def test_every_mode_becomes_rgb(mode: str, name: str, tmp_path: Path) -> None:
    picture = Image.fromarray(COLOUR).convert(mode)
    file = saved(tmp_path, picture, name, **({"lossless": True} if name.endswith("webp") else {}))
    image = read_image(file, "--init-image")
    np.testing.assert_array_equal(np.asarray(image.picture), np.asarray(picture.convert("RGB")))


def test_sixteen_bits_keep_their_whole_range(tmp_path: Path) -> None:
    file = saved(tmp_path, Image.fromarray(GREY.astype(np.uint16) * 257), "a.png")
    np.testing.assert_array_equal(np.asarray(read_mask(file, "--mask").picture), GREY)


def test_exif_says_what_is_up(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    file = saved(tmp_path, Image.fromarray(COLOUR[:8]), "a.png", exif=exif)
    assert read_image(file, "--init-image").size == (16, 8)


def test_transparent_parts_are_white_in_an_image_and_what_a_photograph_selects_as_mask(
    capsys: pytest.CaptureFixture[str],
) -> None:
    glass = np.dstack([COLOUR, np.where(GREY < 128, 0, 255).astype(np.uint8)])
    image = np.asarray(read_image(glass, "--init-image").picture)
    assert (image[:8] == 255).all()
    np.testing.assert_array_equal(image[8:], COLOUR[8:])
    assert "transparent parts are taken as white" in capsys.readouterr().err
    mask = np.asarray(read_mask(glass, "--mask").picture)
    np.testing.assert_array_equal(mask, np.where(GREY < 128, 255, 0))
    assert "its transparent parts are generated anew" in capsys.readouterr().err


HOLE = np.pad(np.ones((6, 6), bool), 5)
"""True in the middle of 16 x 16 pixels."""


def photo(kind: str) -> np.ndarray[Any, Any]:
    """A photograph, [16, 16, 3]: colours, greys, a night, or a white table."""
    rng = np.random.default_rng(4)
    colours = rng.integers(0, 256, (16, 16, 3)).astype(np.uint8)
    dark = np.where(rng.random((16, 16, 3)) < 0.9, 5, colours)
    light = np.where(rng.random((16, 16, 3)) < 0.9, 250, colours)
    grey = np.repeat(colours[:, :, :1], 3, axis=2)
    return {"colours": colours, "greys": grey, "night": dark, "white table": light}[kind].astype(np.uint8)


@pytest.mark.parametrize("form", ["RGBA", "LA", "P", "PA", "key", "webp", "array"])
@pytest.mark.parametrize("kind", ["colours", "greys", "night", "white table"])
def test_the_hole_of_a_photograph_is_what_it_selects(
    kind: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every form that keeps transparency, whatever the colours in the hole; ComfyUI's LoadImage: 1 - alpha."""
    picture = np.dstack([photo(kind), np.where(HOLE, 0, 255).astype(np.uint8)])
    made: Any = Image.fromarray(picture)
    if form == "key":  # PNG's one transparent colour
        picture[HOLE, :3] = (1, 2, 3)
        picture[~HOLE & (picture[:, :, :3] == (1, 2, 3)).all(axis=2), 0] = 9
        made = saved(tmp_path, Image.fromarray(picture[:, :, :3].copy()), "a.png", transparency=(1, 2, 3))
    elif form == "array":
        made = picture
    elif form == "P":
        made = saved(tmp_path, made.quantize(255, method=Image.Quantize.FASTOCTREE), "a.png")
    elif form == "webp":
        made = saved(tmp_path, made, "a.webp", lossless=True, exact=True)
    elif form != "RGBA":
        made = made.convert(form)
    mask = np.asarray(read_mask(made, "--mask").picture)
    np.testing.assert_array_equal(mask >= 128, HOLE)
    assert "its transparent parts are generated anew" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("ground", ["transparent", "opaque"])
@pytest.mark.parametrize("form", ["RGBA", "LA", "L", "1", "16 bits"])
def test_a_drawn_mask_selects_what_is_white(ground: str, form: str, tmp_path: Path) -> None:
    """As diffusers and A1111 take it, on a transparent or a black ground."""
    white = np.where(HOLE, 255, 0).astype(np.uint8)
    alpha = white if ground == "transparent" else np.full_like(white, 255)
    made: Any = Image.fromarray(np.dstack([white, white, white, alpha]))
    if form == "16 bits":
        made = saved(tmp_path, Image.fromarray(white.astype(np.uint16) * 257), "a.png",
                     **({"transparency": 0} if ground == "transparent" else {}))  # fmt: skip
    elif form in ("L", "1"):
        made = saved(tmp_path, Image.fromarray(white).convert(form), "a.png",
                     **({"transparency": 0} if ground == "transparent" else {}))  # fmt: skip
    else:
        made = made.convert(form)
    np.testing.assert_array_equal(np.asarray(read_mask(made, "--mask").picture) >= 128, HOLE)


def test_black_with_a_hole_selects_the_hole_and_soft_holes_stay_soft() -> None:
    alpha = np.where(HOLE, 100, 255).astype(np.uint8)
    black = np.dstack([np.zeros((16, 16, 3), np.uint8), alpha])
    np.testing.assert_array_equal(np.asarray(read_mask(black, "--mask").picture), 255 - alpha)


def test_strokes_of_one_colour_on_a_transparent_ground_may_mean_both() -> None:
    red = np.dstack([np.full((16, 16, 3), (200, 30, 40), np.uint8), np.where(HOLE, 255, 0).astype(np.uint8)])
    with pytest.raises(UsageError, match="--mask is one colour on a transparent ground"):
        read_mask(red, "--mask")


def test_a_mask_of_one_value_or_of_greys_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    read_mask(np.full((16, 16), 255, np.uint8), "--mask")
    assert "--mask selects the whole image" in capsys.readouterr().err
    read_mask(photo("greys"), "--mask")
    assert "is not black and white" in capsys.readouterr().err
    read_mask(np.where(HOLE, 255, 0).astype(np.uint8), "--mask")
    assert capsys.readouterr().err == ""


def test_the_first_picture_of_several_is_taken_and_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = [Image.fromarray(COLOUR[:, :, index]) for index in range(3)]
    file = saved(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(np.asarray(read_mask(file, "--mask").picture), COLOUR[:, :, 0])
    assert "the first of its 3 pictures is taken" in capsys.readouterr().err


def png_of(width: int, height: int) -> bytes:
    """A PNG that says a size and has no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def truncated() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()[:3000]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "is no image that can be read: it has none of the formats that are read"),
        (b"", "is no image that can be read: the file is empty"),
        (b"\0\0\0\x18ftypheic" + bytes(99), r"is no image that can be read: it is HEIC or a video \(heic\)"),
        (b"\0\0\0\x18ftypavif" + bytes(99), "is no image that can be read: it is AVIF"),
        (truncated(), "is no image that can be read: "),
        (png_of(10_000, 10_000), "has 10000x10000 pixels, at most 67,108,864 are taken"),
        (png_of(50_000, 50_000), r"is no image that can be read: Image size \(2500000000 pixels\) exceeds limit"),
        (png_of(16, 16), "is no image that can be read: "),
    ],
    ids=["eps", "empty", "heic", "avif", "truncated", "large", "bomb", "no pixels"],
)
def test_a_file_that_is_no_image_is_one_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UsageError, match="--init-image .*a.png " + sentence):
        read_image(tmp_path / "a.png", "--init-image")


def test_a_picture_of_a_mode_without_a_conversion_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="init_image is no image that can be read: conversion from La"):
        read_image(Image.new("La", (8, 8)), "init_image")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("missing.png", "--mask: cannot read missing.png: No such file"),
        (Path(), "--mask: . is a folder, not a regular file"),
        (7, "is a file, a picture of Pillow or an array, not int"),
        (np.zeros((4, 4, 3), np.float32), r"is an array float32 \[4, 4, 3\], not uint8"),
        (np.zeros((4, 4, 2), np.uint8), r"is an array uint8 \[4, 4, 2\]"),
        (np.zeros((0, 4), np.uint8), "is an array without pixels"),
        (Image.new("F", (4, 4)), "has floating-point pixels"),
        (Image.fromarray(np.full((4, 4), 70_000, np.int32)), "has 32 bits a channel"),
    ],
    ids=["missing", "folder", "number", "floats", "two channels", "no pixels", "mode F", "mode I"],
)
def test_what_is_no_image_is_refused(
    source: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        read_mask(source, "--mask")


def test_a_file_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_image, "MAX_BYTES", 10)
    file = saved(tmp_path, Image.fromarray(COLOUR), "a.png")
    with pytest.raises(UsageError, match="has 89 B, and such a file has at most 10 B"):
        read_image(file, "--init-image")
