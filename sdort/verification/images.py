"""Images of a pipeline against those of its reference: same prompts, same seeds, same noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from sdort.bench.check import psnr
from sdort.errors import UsageError
from sdort.runtime.images import Generated
from sdort.runtime.request import Request
from sdort.runtime.session import Array
from sdort.verification.limits import PIXEL, PSNR, SSIM
from sdort.verification.metrics import WINDOW, largest_pixel, ssim

PROMPTS = ("a photo of an astronaut riding a horse on mars", "a small red circle left of a blue square on white")
"""A photograph's texture, and edges and flat areas, where errors show."""


@dataclass(frozen=True)
class ImageComparison:
    """One image against its reference."""

    prompt: str
    seed: int
    precision: str
    psnr: float | None = None
    """In dB; infinite when they are equal."""
    ssim: float | None = None
    largest_pixel: int | None = None
    problem: str | None = None
    image: Array = field(default_factory=lambda: np.zeros((0, 0, 3), np.uint8), repr=False, compare=False)
    reference: Array = field(default_factory=lambda: np.zeros((0, 0, 3), np.uint8), repr=False, compare=False)

    @property
    def passed(self) -> bool:
        return self.problem is None


def read_prompts(path: Path | None) -> tuple[str, ...]:
    """One prompt a line; empty lines and those that begin with # are left out.

    Raises:
        UsageError: the file cannot be read or has no prompt.
    """
    if path is None:
        return PROMPTS
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompts in {path}: {error}") from None
    prompts = tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not prompts:
        raise UsageError(f"{path} has no prompt", hint="Write one a line.")
    return prompts


def make_requests(prompts: Sequence[str], seeds: int, steps: int) -> list[Request]:
    """One request a prompt, with the seeds 0, 1, ...; one image at a time, so that each can be drawn again alone."""
    return [Request(prompt, steps=steps, seed=0, num_images=seeds, images_at_once=1) for prompt in prompts]


def compare_images(
    images: Mapping[tuple[str, int], Generated], references: Mapping[tuple[str, int], Generated], precision: str
) -> list[ImageComparison]:
    """Compare image by image; both have the same prompts and seeds."""
    return [_compare(prompt, image, references[prompt, seed], precision) for (prompt, seed), image in images.items()]


def _compare(prompt: str, image: Generated, wanted: Generated, precision: str) -> ImageComparison:
    found = partial(ImageComparison, prompt, image.seed, precision, image=image.pixels, reference=wanted.pixels)
    for what, each in (("the reference", wanted), ("the image", image)):
        if each.problem:
            return found(problem=f"{what} is bad: {each.problem}")
    if image.pixels.shape != wanted.pixels.shape:
        return found(problem=f"it is {image.pixels.shape}, the reference {wanted.pixels.shape}")
    decibels, pixel = psnr(image.pixels, wanted.pixels), largest_pixel(image.pixels, wanted.pixels)
    similarity = ssim(image.pixels, wanted.pixels) if min(image.pixels.shape[:2]) >= WINDOW else None
    problem = judge_image(decibels, similarity, pixel, precision)
    return found(decibels, similarity, pixel, problem)


def failed_images(
    request: Request, references: Mapping[tuple[str, int], Generated], precision: str, problem: str, done: int
) -> list[ImageComparison]:
    """The images of a request that could not be drawn, after ``done`` that could."""
    seeds = range(request.seed + done, request.seed + request.num_images)
    return [
        ImageComparison(
            request.prompt, seed, precision, problem=problem, reference=references[request.prompt, seed].pixels
        )
        for seed in seeds
    ]


def judge_image(decibels: float, similarity: float | None, pixel: int, precision: str) -> str | None:
    """What is wrong with an image of these measurements, None if nothing is."""
    reasons = []
    if decibels < PSNR[precision]:
        reasons.append(f"PSNR {decibels:.1f} dB, at least {PSNR[precision]:g} wanted")
    if similarity is not None and similarity < SSIM[precision]:
        reasons.append(f"SSIM {similarity:.4f}, at least {SSIM[precision]:g} wanted")
    most = PIXEL[precision]
    if most is not None and pixel > most:
        reasons.append(f"a pixel differs by {pixel}, {most} allowed")
    return "; ".join(reasons) or None
