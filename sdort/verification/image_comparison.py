"""Images of a pipeline against those of its reference: same prompts, same seeds, same noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median_high, median_low
from typing import Any, ClassVar

import numpy as np

from sdort.errors import UsageError
from sdort.generation.files.prompts_file import read_lines
from sdort.generation.pictures.images import Generated
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.requests.request import Request
from sdort.graph.signature import Array
from sdort.verification.limits import ENOUGH, OTHER, OTHERS, PIXEL, PSNR, SSIM
from sdort.verification.metrics import WINDOW, largest_pixel, psnr, ssim


def no_image() -> Array:
    """An image without pixels, [0, 0, 3], uint8."""
    return np.zeros((0, 0, 3), np.uint8)


REFINED = 0.5
"""Strength with which refiners change an image."""


@dataclass(frozen=True)
class ImageComparison:
    """One image against its reference."""

    __json__: ClassVar = (
        "prompt", "seed", "precision", "psnr", "ssim", "largest_pixel", "differs", "passed", "problem", "limit_share",
    )  # fmt: skip

    prompt: str
    """The prompt."""
    seed: int
    """The seed."""
    precision: str
    """The precision whose limits hold."""
    psnr: float | None = None
    """PSNR in dB, infinite when they are equal; None where nothing could be measured."""
    ssim: float | None = None
    """Structural similarity, from -1 to 1."""
    largest_pixel: int | None = None
    """Largest difference of a pixel, of 255."""
    problem: str | None = None
    """Reason that makes it bad whatever the other images are: not generated, shows nothing, of another size."""
    differs: str | None = None
    """The limits that it exceeds; :func:`summarize_images` says whether too many are."""
    image: Array = field(default_factory=no_image, repr=False, compare=False)
    reference: Array = field(default_factory=no_image, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        """Whether there is nothing to say about it."""
        return self.problem is None and self.differs is None

    @property
    def limit_share(self) -> float | None:
        """Difference as a multiple of what the limits of the median allow: of PSNR's root mean square, of 1 - SSIM and
        of the largest pixel's difference the one that uses most. None where nothing was measured."""
        if self.psnr is None:
            return None
        most = PIXEL[self.precision]
        return max(
            10 ** ((PSNR[self.precision] - self.psnr) / 20),
            0.0 if self.ssim is None else (1 - self.ssim) / (1 - SSIM[self.precision]),
            (self.largest_pixel or 0) / most if most else 0.0,
        )


@dataclass(frozen=True)
class ImageSummary:
    """The images of one pipeline together.

    Attributes:
        images: how many could be compared.
        psnr: their median, that of an even number the upper one; infinite when as many are equal.
        lowest: the lowest PSNR.
        problem: what is wrong, None if nothing is.
        few: there is a problem, but so few images that chance may have made it.
    """

    images: int
    psnr: float | None = None
    lowest: float | None = None
    problem: str | None = None
    few: bool = False


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a file, each once, as :func:`sdort.generation.files.prompts_file.read_lines` reads it.

    Raises:
        BadModelError, UsageError: the file cannot be read, has no prompt, or lines with options of their own.
    """
    groups = read_lines(path)
    named = sorted({name for lines in groups for name in lines.options})
    if named:
        raise UsageError(
            f"{path} has lines with options of their own: {', '.join(named)}",
            hint="Images are compared with the same seeds, steps and guidance for all prompts: leave prompts alone.",
        )
    return tuple(dict.fromkeys(prompt for lines in groups for prompt in lines.prompts))


def make_requests(
    prompts: Sequence[str],
    seeds: int,
    steps: int,
    refined: tuple[int, int] | None = None,
    size: tuple[int, int] | None = None,
) -> list[Request]:
    """One request a prompt, with the seeds 0, 1, ...; one image at a time, so that each can be made again alone.

    Brackets are text, as they are to diffusers, which may be the reference.

    Args:
        refined: height and width in pixels of the image that a refiner works on, which does not begin with text.
        size: height and width in pixels; by default the model's own.
    """
    begin: dict[str, Any] = {"init_image": blots(refined), "strength": REFINED} if refined else {}
    height, width = size or (None, None)
    begin |= {"height": height, "width": width}
    return [
        Request(prompt, steps=steps, seed=0, num_images=seeds, images_at_once=1, prompt_weighting="none", **begin)
        for prompt in prompts
    ]


def blots(size: tuple[int, int]) -> InputImage:
    """An image of large soft blots of random colours, the same for each size.

    Args:
        size: height and width in pixels.
    """
    from PIL import Image

    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    return InputImage("blots", Image.fromarray(colours).resize(size[::-1], Image.Resampling.BICUBIC))


def compare_images(
    images: Mapping[tuple[str, int], Generated], references: Mapping[tuple[str, int], Generated], precision: str
) -> list[ImageComparison]:
    """Compare image by image; both have the same prompts and seeds."""
    return [
        compare_image(prompt, image, references[prompt, seed], precision) for (prompt, seed), image in images.items()
    ]


def compare_image(prompt: str, image: Generated, expected: Generated | None, precision: str) -> ImageComparison:
    """Measure one image; without a reference it is only looked at whether it shows something.

    Args:
        precision: the dtype of the weights.
    """
    comparison = partial(ImageComparison, prompt, image.seed, precision, image=image.pixels)
    if expected is None:
        return comparison(problem=f"the image is bad: {image.problem}" if image.problem else None)
    comparison = partial(comparison, reference=expected.pixels)
    for what, measured in (("the reference", expected), ("the image", image)):
        if measured.problem:
            return comparison(problem=f"{what} is bad: {measured.problem}")
    if image.pixels.shape != expected.pixels.shape:
        sizes = ["{1}x{0} pixels".format(*shown.pixels.shape) for shown in (image, expected)]
        return comparison(problem=f"it is {sizes[0]}, the reference {sizes[1]}")
    decibels, pixel = psnr(image.pixels, expected.pixels), largest_pixel(image.pixels, expected.pixels)
    similarity = ssim(image.pixels, expected.pixels) if min(image.pixels.shape[:2]) >= WINDOW else None
    differs = exceeded_limits(decibels, similarity, pixel, precision)
    return comparison(decibels, similarity, pixel, differs=differs)


def failed_images(
    request: Request, references: Mapping[tuple[str, int], Generated], precision: str, problem: str, done: int
) -> list[ImageComparison]:
    """The images of a request that could not be generated, after ``done`` that could."""
    seeds = range(request.seed + done, request.seed + request.num_images)
    return [
        ImageComparison(
            request.prompt, seed, precision, problem=problem, reference=references[request.prompt, seed].pixels
        )
        for seed in seeds
    ]


def exceeded_limits(
    decibels: float, similarity: float | None, pixel: int, precision: str, what: str = ""
) -> str | None:
    """The limits that these measurements exceed, in words; None if none. ``what`` says of what they are."""
    reasons = []
    if decibels < PSNR[precision]:
        reasons.append(f"{what}PSNR {decibels:.1f} dB, at least {PSNR[precision]:g} wanted")
    if similarity is not None and similarity < SSIM[precision]:
        reasons.append(f"{what}SSIM {similarity:.4f}, at least {SSIM[precision]:g} wanted")
    most = PIXEL[precision]
    if most is not None and pixel > most:
        reasons.append(f"{what}largest pixel difference {pixel}, {most} allowed")
    return "; ".join(reasons) or None


def summarize_images(images: Sequence[ImageComparison]) -> ImageSummary:
    """Judge all images of a pipeline together, by the medians of what was measured.

    Single images of a right pipeline may be far from their references: see :data:`sdort.verification.limits.PSNR`. One
    that could not be compared is a problem of its own.
    """
    bad = next((comparison for comparison in images if comparison.problem), None)
    decibels = sorted(comparison.psnr for comparison in images if comparison.psnr is not None)
    middle, lowest = (median_high(decibels), decibels[0]) if decibels else (None, None)
    if bad or middle is None:
        return ImageSummary(len(decibels), middle, lowest, f"seed {bad.seed}: {bad.problem}" if bad else None)
    precision, many = images[0].precision, len(decibels) > 1
    alike = [comparison.ssim for comparison in images if comparison.ssim is not None]
    pixel = median_low(comparison.largest_pixel or 0 for comparison in images)
    problem = exceeded_limits(
        middle, median_high(alike) if alike else None, pixel, precision, "median " if many else ""
    )
    problem = problem or _too_many_others(decibels, precision)
    if problem and many:
        problem = f"{problem} ({len(decibels)} images)"
    few = bool(problem) and OTHERS[precision] > 0 and len(decibels) < ENOUGH
    return ImageSummary(len(decibels), middle, lowest, problem, few)


def _too_many_others(decibels: Sequence[float], precision: str) -> str | None:
    """A problem, in words, if more images than allowed show something else than their references."""
    allowed, limit = math.ceil(OTHERS[precision] * len(decibels)), OTHER[precision]
    others = sum(value < limit for value in decibels)
    return f"images with a PSNR below {limit:g} dB: {others}, allowed: {allowed}" if others > allowed else None
