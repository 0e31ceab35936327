"""Is what was timed right: finite, not constant, repeatable, and equal to a reference within a stated tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sdort.generation.images import Generated
from sdort.model.signature import Array
from sdort.providers.options import CUDA, Provider
from sdort.verification.images import compare, judge_images
from sdort.verification.limits import GPU_ALLOWANCE as GPU_ALLOWANCE
from sdort.verification.limits import PSNR as PSNR
from sdort.verification.limits import TOLERANCES
from sdort.verification.metrics import psnr as psnr

NO_REFERENCE = "no reference: only finite, not constant, repeatable"


@dataclass(frozen=True)
class Verdict:
    """``problem`` is None when the output may be trusted; ``checked`` says in words what was compared."""

    problem: str | None
    checked: str
    error: float | None = None
    mean_error: float | None = None
    """Largest and mean error of a component's outputs, relative to the standard deviation of the reference's."""
    psnr: float | None = None
    lowest_psnr: float | None = None
    """In dB, the median and the lowest of the images; infinite when they are equal."""
    few: bool = False
    """There is a problem, but so few images that chance may have made it."""


@dataclass(frozen=True)
class Precision:
    """Which tolerances hold: the ``dtype`` that values are rounded to, and whether that happens on a GPU."""

    dtype: str
    on_gpu: bool = False

    def coarser(self, other: Precision) -> Precision:
        """What holds for two outputs that are compared."""
        # "bfloat16" < "float16" < "float32"
        return Precision(min(self.dtype, other.dtype), self.on_gpu or other.on_gpu)


def precision(dtype: str, provider: Provider) -> Precision:
    """The precision of a model with weights of ``dtype`` on a provider.

    On NVIDIA GPUs, cuDNN and cuBLAS round fp32 operands to TF32, whose significand has the 11 bits of fp16's.
    """
    return Precision("float16" if provider is CUDA else dtype, provider.on_gpu)


def check_outputs(
    outputs: Mapping[str, Array],
    reference: Mapping[str, Array] | None,
    against: str,
    component: str,
    precision: Precision,
) -> Verdict:
    """Check a component's outputs; the tolerances are those of :mod:`sdort.verification.limits`.

    Args:
        outputs: by name, in the order of the model.
        reference: the outputs of the reference, None if there is none. Outputs are compared by name, or by their
            order where the two models share no name.
        against: what the reference is, in words.
        component: the component's name.
        precision: which tolerance holds.
    """
    for name, value in outputs.items():
        if not np.isfinite(value).all():
            return Verdict(f"{name} has NaN or infinite values", "finite")
        if value.size > 1 and value.min() == value.max():
            return Verdict(f"{name} is constant", "not constant")
    if reference is None:
        return Verdict(None, NO_REFERENCE)
    worst, mean = 0.0, 0.0
    for name, value, wanted in _pairs(outputs, reference):
        if value.shape != wanted.shape:
            return Verdict(f"{name} has the shape {value.shape}, {against} {wanted.shape}", against)
        if not np.isfinite(wanted).all():
            return Verdict(f"{against} itself gives NaN or infinite values", against)
        largest, average = relative_errors(value, wanted)
        worst, mean = max(worst, largest), max(mean, average)
    return Verdict(_out_of_tolerance(worst, mean, against, component, precision), against, worst, mean)


def _out_of_tolerance(worst: float, mean: float, against: str, component: str, precision: Precision) -> str | None:
    limit = TOLERANCES[precision.dtype, component]
    allowance = GPU_ALLOWANCE if precision.on_gpu else 1.0
    largest, average = allowance * limit.largest, allowance * limit.mean
    if worst <= largest and mean <= average:
        return None
    return (
        f"differs from {against} by {worst:.1e} at most and {mean:.1e} in the mean of its spread; "
        f"{largest:.1e} and {average:.1e} are allowed"
    )


def _pairs(outputs: Mapping[str, Array], reference: Mapping[str, Array]) -> list[tuple[str, Array, Array]]:
    common = [(name, value, reference[name]) for name, value in outputs.items() if name in reference]
    by_order = zip(outputs.items(), reference.values(), strict=False)
    return common or [(name, value, wanted) for (name, value), wanted in by_order]


def relative_errors(value: Array, reference: Array) -> tuple[float, float]:
    """The largest and the mean difference, as shares of the reference's standard deviation."""
    wide = reference.astype(np.float64)
    difference = np.abs(value.astype(np.float64) - wide) / (float(wide.std()) or 1.0)
    return float(difference.max()), float(difference.mean())


def check_images(
    images: Sequence[Generated], reference: Sequence[Generated] | None, against: str, precision: Precision
) -> Verdict:
    """Check a pipeline's images together, as ``sdort verify`` does; arguments as for :func:`check_outputs`."""
    for image in images:
        if image.problem:
            return Verdict(f"the image of seed {image.seed} is bad: {image.problem}", "finite, not constant")
    if reference is None:
        return Verdict(None, NO_REFERENCE)
    found = []
    for image, wanted in zip(images, reference, strict=True):
        if wanted.problem:
            return Verdict(f"{against} itself gives a bad image: {wanted.problem}", against)
        if image.pixels.shape != wanted.pixels.shape:
            return Verdict(f"the image is {image.pixels.shape}, {against} {wanted.pixels.shape}", against)
        found.append(compare("", image, wanted, precision.dtype))
    judged = judge_images(found)
    problem = f"is not like {against}: {judged.problem}" if judged.problem else None
    return Verdict(problem, against, psnr=judged.psnr, lowest_psnr=judged.lowest, few=judged.few)
