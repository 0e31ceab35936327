"""Pictures made larger by an upscaler: :func:`sdort.upscale`, which ``sdort upscale`` calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sdort.console import document, progress, say
from sdort.errors import BadModelError, UsageError
from sdort.generation.files.image_files import (
    check_quality,
    check_sides,
    format_of,
    free_for_output,
    free_path,
    save_file,
    write_pixels,
)
from sdort.generation.files.image_texts import read_texts
from sdort.generation.files.infotext import parameter_value
from sdort.generation.pictures.input_image import InputImage, on_white, read_picture
from sdort.generation.pictures.upscaled_picture import result_size, upscale_picture
from sdort.generation.upscale_options import UpscaleKeywords, UpscaleOptions
from sdort.graph.signature import Array
from sdort.options.declared_options import made_of
from sdort.options.option_types import typed, with_options
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.memory import peak_resident
from sdort.upscaling.upscaler import Upscaler, open_upscaler

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class UpscaledImage:
    """One image that was made larger."""

    source: str
    """The file; empty for a picture in memory."""
    path: Path | None
    """The file that it was written to; None if it was not written."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    tiles: int
    """Tiles that the network ran on."""
    seconds: float
    """Seconds of the network and of resizing."""
    pixels: Array = field(metadata={"json": None}, repr=False)
    """uint8 [height, width, 3], red, green and blue; 4 with an alpha channel, 1 of a grey image."""


@document("upscale", 1)
@dataclass(frozen=True)
class Upscaled:
    """The result of :func:`sdort.upscale`, printed with ``sdort upscale --json``."""

    images: list[UpscaledImage]
    """The images, in order."""
    model: str
    """The upscaler's name."""
    architecture: str
    """``ESRGAN``, ``Compact``, ``SPAN``, or ``ONNX``."""
    model_scale: int
    """How many times as high and wide the network makes an image."""
    scale: float
    """How many times as high and wide the images became."""
    provider: str
    """The execution provider that ran."""
    precision: str
    """``fp16`` or ``fp32``."""
    load_seconds: float
    """Seconds to open the upscaler, and to make it ready on first use."""
    peak_memory: int | None
    """Bytes of the process's memory at the highest point."""


@with_options(UpscaleOptions)
@typed
def upscale(
    images: str | Path | Sequence[str | Path], model: str | Path, **options: Unpack[UpscaleKeywords]
) -> Upscaled:
    """Make images larger with an upscaler such as ESRGAN, tile by tile, and write them.

    The upscaler is made ready for the provider on first use, and kept in sdort's cache. An alpha channel is upscaled
    like the colours, grey images stay grey, and the parameters of a generated image go with it.

    Args:
        images: files of images.
        model: the upscaler: ``.pth``, ``.safetensors`` or ``.onnx``.
        options: what comes of it, and where and how the upscaler runs.

    Returns:
        The images, their files, and what was used.

    Raises:
        UsageError: an image cannot be read, is too large, or a file cannot be named so.
        BadModelError: the upscaler's file is none that sdort knows.
        ProviderError: the provider does not load.
        ParityError: the network makes NaN of an image.
        OutputError: a file exists, or cannot be written.

    Example:
        >>> sdort.upscale("star.png", "4x-UltraSharp.pth", output="large.png").images[0].width
        2048
    """
    files = [Path(images)] if isinstance(images, str | Path) else [Path(image) for image in images]
    if not files:
        raise UsageError("no image was given")
    asked = made_of(UpscaleOptions, options)
    started = time.perf_counter()
    sources = [(file, read_picture(file, "the image")) for file in files]
    with progress(f"loading {Path(model).name}"):
        precision = None if asked.precision == "auto" else asked.precision
        upscaler = open_upscaler(Path(model), made_of(RuntimeOptions, options), precision)
    scale = asked.scale or upscaler.scale
    paths = _paths(files, asked.output, scale, asked.overwrite)
    check_quality(paths, asked.quality)
    for path, (_, image) in zip(paths, sources, strict=True):
        check_sides(path, result_size(image.size, scale))
    load = time.perf_counter() - started
    done = [_one(upscaler, file, image, path, asked) for (file, image), path in zip(sources, paths, strict=True)]
    return Upscaled(
        images=done,
        model=upscaler.name,
        architecture=upscaler.architecture,
        model_scale=upscaler.scale,
        scale=float(scale),
        provider=upscaler.provider.name,
        precision=upscaler.precision,
        load_seconds=round(load, 4),
        peak_memory=peak_resident(),
    )


def _one(upscaler: Upscaler, file: Path, image: InputImage, path: Path, asked: UpscaleOptions) -> UpscaledImage:
    """Upscale and write one image."""
    started, ran = time.perf_counter(), 0
    with progress(f"{file.name}: upscaling", total=1.0) as advance:

        def on_tile(number: int, count: int) -> None:
            nonlocal ran
            ran += 1
            if number > 1:
                advance(1 / count)

        picture = upscale_picture(upscaler, image.picture, asked.scale, asked.tile, on_tile)
    seconds = time.perf_counter() - started
    if picture.mode == "RGBA" and format_of(path).name == "JPEG":
        say(f"{path}: JPEG has no transparency, so its transparent parts are white")
        picture = on_white(picture).convert("RGB")
    texts = postprocessed(_texts(file), upscaler.name, asked.scale or upscaler.scale)
    pixels, profile, kind = np.asarray(picture), picture.info.get("icc_profile"), format_of(path)
    written = save_file(
        path, lambda file: write_pixels(file, pixels, texts, kind, asked.quality, profile), asked.overwrite
    )
    size = picture.width, picture.height
    return UpscaledImage(str(file), written, *size, ran, round(seconds, 4), np.atleast_3d(pixels))


def _paths(files: Sequence[Path], output: Path | None, scale: float, overwrite: bool) -> list[Path]:
    """The files of the results: ``output`` for one image; ``NAME-SCALEx.png`` in a folder, or here, else.

    Raises:
        UsageError: a name that no image can have, or two images would have one.
        OutputError: one exists and ``overwrite`` is off, or cannot be written.
    """
    names = [f"{file.stem}-{scale:g}x.png" for file in files]
    if output is None:
        paths = [Path(name) if overwrite else free_path(Path(name)) for name in names]
    elif output.is_dir() or str(output).endswith("/") or len(files) > 1:
        if output.suffix and not output.is_dir() and len(files) > 1:
            raise UsageError(
                f"{len(files)} images do not fit into one file, {output}", hint="Give a folder: -o FOLDER/"
            )
        paths = [output / name for name in names]
    else:
        paths = [output]
    double = next((path for number, path in enumerate(paths) if path in paths[:number]), None)
    if double:
        raise UsageError(f"two images would be written to {double}", hint="Upscale them one by one, with -o.")
    return free_for_output(paths, overwrite)


def _texts(file: Path) -> dict[str, str]:
    """The text that the program that generated the image wrote into it."""
    try:
        texts = read_texts(file)
    except BadModelError:  # a format without texts, or a camera's that are damaged
        return {}
    return {keyword: texts[keyword] for keyword in ("parameters", "sdort") if keyword in texts}


def postprocessed(texts: dict[str, str], name: str, scale: float) -> dict[str, str]:
    """The texts of an image, with what AUTOMATIC1111 says of its upscaling (modules/postprocessing.py there)."""
    words = f"Postprocess upscale by: {scale:g}, Postprocess upscaler: {parameter_value(name)}"
    before = texts.get("parameters", "")
    return {**texts, "parameters": f"{before}, {words}" if before else words}
