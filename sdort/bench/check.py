"""Is what was timed right: finite, not constant, repeatable, and equal to a reference within a stated tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sdort.runtime.images import Generated
from sdort.runtime.session import Array

TOLERANCE = {
    # A different order of summation over a few thousand products of unit size, through some hundred layers.
    "float32": 1e-4,
    # The same with 11 bits: an fp16 rounding is 5e-4 of a value, and a UNet adds up a few tens of them.
    "float16": 2e-2,
}
"""Largest error, relative to the spread (max - min) of the reference's output, by the dtype of the weights."""

PSNR = {
    # What the same noise must give in fp32: no pixel is visibly different.
    "float32": 40.0,
    # Rounding errors of fp16 grow over the steps; below this an image is another image.
    "float16": 25.0,
}
"""Lowest peak signal-to-noise ratio in dB of an image against the reference's, by the dtype of the weights."""


NO_REFERENCE = "no reference: only finite, not constant, repeatable"


@dataclass(frozen=True)
class Verdict:
    """``problem`` is None when the output may be trusted; ``checked`` says in words what was compared."""

    problem: str | None
    checked: str
    error: float | None = None
    """Largest error relative to the reference's spread, of a component."""
    psnr: float | None = None
    """In dB, of images; infinite when they are equal."""


def check_outputs(
    outputs: Mapping[str, Array], reference: Mapping[str, Array] | None, against: str, dtype: str
) -> Verdict:
    """Check a component's outputs.

    Args:
        outputs: by name, in the order of the model.
        reference: the outputs of the reference, None if there is none. Outputs are compared by name, or by their
            order where the two models share no name.
        against: what the reference is, in words.
        dtype: ``float32`` or ``float16``: which tolerance holds.
    """
    for name, value in outputs.items():
        if not np.isfinite(value).all():
            return Verdict(f"{name} has NaN or infinite values", "finite")
        if value.size > 1 and value.min() == value.max():
            return Verdict(f"{name} is constant", "not constant")
    if reference is None:
        return Verdict(None, NO_REFERENCE)
    worst = 0.0
    for name, value, wanted in _pairs(outputs, reference):
        if value.shape != wanted.shape:
            return Verdict(f"{name} has the shape {value.shape}, {against} {wanted.shape}", against)
        if not np.isfinite(wanted).all():
            return Verdict(f"{against} itself gives NaN or infinite values", against)
        worst = max(worst, relative_error(value, wanted))
    limit = TOLERANCE[dtype]
    problem = f"differs from {against} by {worst:.1e} of its spread (limit {limit:.0e})" if worst > limit else None
    return Verdict(problem, against, error=worst)


def _pairs(outputs: Mapping[str, Array], reference: Mapping[str, Array]) -> list[tuple[str, Array, Array]]:
    common = [(name, value, reference[name]) for name, value in outputs.items() if name in reference]
    by_order = zip(outputs.items(), reference.values(), strict=False)
    return common or [(name, value, wanted) for (name, value), wanted in by_order]


def relative_error(value: Array, reference: Array) -> float:
    """The largest difference as a share of the reference's spread."""
    wide = reference.astype(np.float64)
    spread = float(wide.max() - wide.min()) or 1.0
    return float(np.abs(value.astype(np.float64) - wide).max()) / spread


def check_images(
    images: Sequence[Generated], reference: Sequence[Generated] | None, against: str, dtype: str
) -> Verdict:
    """Check a pipeline's images; arguments as for :func:`check_outputs`."""
    for image in images:
        if image.problem:
            return Verdict(f"the image of seed {image.seed} is bad: {image.problem}", "finite, not constant")
    if reference is None:
        return Verdict(None, NO_REFERENCE)
    worst = math.inf
    for image, wanted in zip(images, reference, strict=True):
        if wanted.problem:
            return Verdict(f"{against} itself gives a bad image: {wanted.problem}", against)
        if image.pixels.shape != wanted.pixels.shape:
            return Verdict(f"the image is {image.pixels.shape}, {against} {wanted.pixels.shape}", against)
        worst = min(worst, psnr(image.pixels, wanted.pixels))
    limit = PSNR[dtype]
    problem = f"has {worst:.1f} dB PSNR against {against} (at least {limit:.0f} wanted)" if worst < limit else None
    return Verdict(problem, against, psnr=worst)


def psnr(image: Array, reference: Array) -> float:
    """Peak signal-to-noise ratio in dB of two uint8 images; infinite when they are equal."""
    error = float(np.mean((image.astype(np.float64) - reference.astype(np.float64)) ** 2))
    return math.inf if error == 0 else 10 * math.log10(255.0**2 / error)
