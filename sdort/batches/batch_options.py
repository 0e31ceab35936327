"""Options of a batch, each declared once; those of a run are declared there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from sdort.generation.requests.typed_options import DrawnKeywords, DrawnOptions, JobOptions
from sdort.options.declared_options import declared, option, option_of
from sdort.options.number_ranges import WORKERS
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions

Archive = Literal["parquet", "webdataset"]
ImageFormat = Literal["png", "jpg", "webp"]


@dataclass(frozen=True)
class BatchOptions:
    """Options that a batch has for itself, and those of a run that it says in other words."""

    image_format: ImageFormat = option(
        "png",
        section="Results",
        flags=("--format",),
        choices=get_args(ImageFormat),
        help="Format of the images.",
    )
    archive: Archive | None = option(
        None,
        section="Results",
        choices=get_args(Archive),
        help="Write all images into few files at the end: images.parquet, or images-000000.tar and so on.",
    )
    ray: str | None = option(
        None,
        section="Workers",
        form="address",
        metavar="[ADDRESS]",
        help="Draw with workers of Ray, one a GPU: on this machine, or on the cluster at ADDRESS (auto finds a running "
        "one).",
        doc="Draw with workers of Ray, one a GPU: ``local`` starts a Ray on this machine, ``auto`` or an address takes "
        "a running cluster. By default this process draws.",
    )
    workers: int | None = option(
        None,
        section="Workers",
        within=WORKERS,
        needs="ray",
        unset="one a GPU; without GPUs one a machine",
        help="Number of workers.",
    )
    seed: int | str | Sequence[int] | None = option_of(
        DrawnOptions,
        "seed",
        None,
        within=None,  # several, as a run takes them
        unset="one that the line's id decides",
        doc="Seeds of the noise, for lines without their own; by default each line's id decides one.",
    )
    images_at_once: int = option_of(
        DrawnOptions,
        "images_at_once",
        section="Results",
        help="Images that share a call of the UNet.",
    )
    quality: int | None = option_of(JobOptions, "quality")
    size: str | None = option_of(JobOptions, "size")
    lora_folder: Path | None = option_of(JobOptions, "lora_folder")
    wildcards: Path | None = option_of(JobOptions, "wildcards")


OWN = ("image_format", "archive", "ray", "workers")
"""Options that no run has: they say where images go and who draws them."""
OPTIONS = tuple(name for name in declared(DrawnOptions, BatchOptions, RuntimeOptions) if name != "prompt")
"""All options of a batch; those of drawing are for all lines, as far as a line says nothing else."""


def parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the runtime, and those of drawing.

    Raises:
        TypeError: a batch has no such option.
    """
    if unknown := sorted(options.keys() - {*OPTIONS}):
        raise TypeError(f"there is no option {', '.join(unknown)} of a batch; there are {', '.join(OPTIONS)}")
    runtime = {name: value for name, value in options.items() if name in declared(RuntimeOptions)}
    drawing = {name: value for name, value in options.items() if name not in {*runtime, *OWN}}
    return runtime, drawing


# Written by scripts/option_keywords.py from what is declared above.


class BatchKeywords(DrawnKeywords, LoadOptions, total=False):
    """Options of :func:`sdort.batch`, all optional."""

    seed: int | str | Sequence[int] | None
    """Seeds of the noise, for lines without their own; by default each line's id decides one."""
    image_format: ImageFormat
    """Format of the images."""
    archive: Archive | None
    """Write all images into few files at the end: images.parquet, or images-000000.tar and so on."""
    ray: str | None
    """Draw with workers of Ray, one a GPU: ``local`` starts a Ray on this machine, ``auto`` or an address takes a
    running cluster. By default this process draws."""
    workers: int | None
    """Number of workers."""
    quality: int | None
    """Of JPEG and WebP, from 1 to 100; 95 by default, and 100 of WebP keeps every pixel."""
    size: str | None
    """Width and height in pixels, as ``768x512``, in place of both of these."""
    lora_folder: str | Path | None
    """The folder of the adapters that prompts name, ``<lora:style:0.8>``; by default that of the environment variable
    ``SDORT_LORA_FOLDER``."""
    wildcards: str | Path | None
    """The folder of text files that prompts take lines of, ``__animal__``; by default that of the environment variable
    ``SDORT_WILDCARDS``."""
