"""Checks of outputs: finite, not constant, repeatable, and equal to a reference within a stated tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdort.generation.pictures.images import Generated
from sdort.graph.signature import Array
from sdort.providers.provider import Provider
from sdort.verification.image_comparison import compare_image, summarize_images
from sdort.verification.limits import (
    COARSEST_FIRST,
    GPU_ALLOWANCE,
    LAST_ALLOWANCE,
    LAST_TIMESTEPS,
    TOLERANCES,
    Tolerance,
)
from sdort.workload.judgement import Judgement, judge_outputs

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
    """The key of tolerances: the ``dtype`` that values are rounded to, and whether that happens on a GPU."""

    dtype: str
    """The dtype that values are rounded to."""
    on_gpu: bool = False
    """Whether a GPU's rounding is meant."""

    def coarser(self, other: Precision) -> Precision:
        """The precision whose tolerances hold for two outputs that are compared."""
        return Precision(min(self.dtype, other.dtype, key=COARSEST_FIRST.index), self.on_gpu or other.on_gpu)

    def tolerance(self, component: str, timestep: float | None = None) -> Tolerance:
        """The tolerance of a component's outputs; of a UNet's also by the timestep of its inputs, of 1000."""
        factor = GPU_ALLOWANCE if self.on_gpu else 1.0
        if self.dtype == "float16" and timestep is not None and timestep < LAST_TIMESTEPS:
            factor *= LAST_ALLOWANCE
        return TOLERANCES[self.dtype, component].times(factor)


def precision(dtype: str, provider: Provider) -> Precision:
    """The precision of a model with weights of ``dtype`` on a provider.

    On NVIDIA GPUs, cuDNN and cuBLAS round fp32 operands to TF32, whose significand has the 11 bits of fp16's: so does a
    provider that has to be asked for exact products.
    """
    rounding = provider.on_gpu or provider.rounds_as_gpus
    return Precision("float16" if provider.exact and dtype == "float32" else dtype, rounding)


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
    limit = precision.tolerance(component)
    judged = judge_outputs(outputs, reference, limit, against)
    problem = next((_sentence(name, each, against) for name, each in judged.items() if each.problem), None)
    errors = [each.errors for each in judged.values() if each.errors]
    if not errors:
        return Verdict(problem, NO_REFERENCE if reference is None else against)
    worst, mean = (max(getattr(each, name) for each in errors) for name in ("largest_share", "mean_share"))
    return Verdict(problem, against, worst, mean)


def _sentence(name: str, judged: Judgement, against: str) -> str:
    return f"differs from {against} by its {judged.problem}" if judged.errors else f"{name} {judged.problem}"


def check_images(
    images: Sequence[Generated], reference: Sequence[Generated] | None, against: str, precision: Precision
) -> Verdict:
    """Check a pipeline's images together, as ``sdort verify`` does; arguments as for :func:`check_outputs`."""
    expected = [None] * len(images) if reference is None else reference
    pairs = zip(images, expected, strict=True)
    summary = summarize_images([compare_image("", image, other, precision.dtype) for image, other in pairs])
    if reference is None:
        return Verdict(summary.problem, NO_REFERENCE)
    problem = f"is not like {against}: {summary.problem}" if summary.problem else None
    return Verdict(problem, against, psnr=summary.psnr, lowest_psnr=summary.lowest, few=summary.few)
