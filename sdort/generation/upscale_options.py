"""Options of upscaling, each declared once; ``scripts/option_keywords.py`` writes the keyword arguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from sdort.options.declared_options import option, option_of
from sdort.options.number_ranges import QUALITY
from sdort.providers.runtime_options import ExecutionOptions


@dataclass(frozen=True, kw_only=True)
class UpscaleOptions:
    """Options of :func:`sdort.upscale`."""

    output: Path | None = option(
        None,
        section="Result",
        flags=("-o", "--output"),
        unset="NAME-4x.png",
        help="File to write (.png, .jpg or .webp), or a folder.",
        doc="File of a single image, or a folder; by default ``NAME-SCALEx.png`` in the current folder.",
    )
    scale: float | None = option(
        None,
        section="Result",
        within=(0.1, 32.0, "it is how many times as high and wide the result is"),
        unset="the upscaler's own",
        help="How many times as high and wide the result is. To reach this, the upscaler runs again, or the result is "
        "resized.",
        doc="How many times as high and wide the results are; by default what the upscaler was made for. The network "
        "runs again, or the result is resized, to reach another.",
    )
    quality: int | None = option(
        None,
        section="Result",
        within=QUALITY,
        unset="95",
        help="Quality of JPEG and WebP. WebP with 100 keeps every pixel.",
        doc="Quality of JPEG and WebP, from 1 to 100.",
    )
    overwrite: bool = option(False, section="Result", help="Replace files that exist.", doc="Replace files that exist.")
    tile: int | None = option(
        None,
        section="Execution",
        within=(64, 4096, "smaller tiles repeat most of the work, larger ones are no faster"),
        unset="what fits into memory, at most 512",
        help="Largest side of a tile, in pixels. Smaller tiles take less memory and more time.",
        doc="Most pixels of a tile's side; by default what fits into memory, at most 512.",
    )
    precision: Literal["auto", "fp16", "fp32"] = option(
        "auto",
        section="Execution",
        choices=("auto", "fp16", "fp32"),
        help="Precision of the upscaler. auto is fp16 on a GPU. If it gives NaN in fp16, sdort continues in fp32.",
        doc="``fp16``, ``fp32``, or ``auto``: fp16 on a GPU.",
    )
    provider: str = option_of(ExecutionOptions, "provider")
    fallback: bool | None = option_of(
        ExecutionOptions, "fallback", doc="Whether the CPU may stand in for a named provider that does not load."
    )
    device_id: int = option_of(ExecutionOptions, "device_id")


# Written by scripts/option_keywords.py from what is declared above.


class UpscaleKeywords(TypedDict, total=False):
    """Options of :func:`sdort.upscale`, all optional."""

    output: str | Path | None
    """File of a single image, or a folder; by default ``NAME-SCALEx.png`` in the current folder."""
    scale: float | None
    """How many times as high and wide the results are; by default what the upscaler was made for. The network runs
    again, or the result is resized, to reach another."""
    quality: int | None
    """Quality of JPEG and WebP, from 1 to 100."""
    overwrite: bool
    """Replace files that exist."""
    tile: int | None
    """Most pixels of a tile's side; by default what fits into memory, at most 512."""
    precision: Literal["auto", "fp16", "fp32"]
    """``fp16``, ``fp32``, or ``auto``: fp16 on a GPU."""
    provider: str
    """The execution provider: ``rocm``, ``migraphx``, ``cuda``, ``cpu``, or ``auto``, the best that loads."""
    fallback: bool | None
    """Whether the CPU may stand in for a named provider that does not load."""
    device_id: int
    """The number of the GPU."""
